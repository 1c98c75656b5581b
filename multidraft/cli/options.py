"""Options that several commands have, each said once, in groups; and what holds for every value of every option."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from itertools import pairwise
from typing import Annotated, Any

from typer import Option
from typer.core import TyperCommand

from multidraft.cli.crews import RAY, WORKERS
from multidraft.cli.models import DRAFT, ENGINE, TARGET, TRUST
from multidraft.errors import AdviceError
from multidraft.generation import SCHEME, TREE, TUNE_BUDGET

MODELS, PROMPTS, SAMPLING, DRAFTING, RUN, OUTPUT = "Models", "Prompts", "Sampling", "Drafting", "Run", "Output"
FILE = 'File with one {"id", "task", "prompt"} a line.'
TREES = "auto: what pays; or 4x2x2x1, '8 paths of 4', a JSON list of paths; limits as in `auto,nodes=24,depth=6`."
SECONDS = "Seconds of the run's own steps in which `--tree auto` times trees for a new pair; 0 for none."
HALF_CHARACTER = re.compile("[\ud800-\udfff]")
LARGEST = 2**32  # far more of anything than can be meant, and what every library below takes
RENAMED = re.compile("^--new-tokens(?=$|=)"), "--max-new-tokens"  # an option by its old name


def asked(text: str, panel: str, *names: str, **more: Any) -> Any:
    """An option with its help, in a panel of the command's help."""
    return Option(*names, help=text, rich_help_panel=panel, **more)


Target = Annotated[str | None, asked(TARGET, MODELS)]
Draft = Annotated[str | None, asked(DRAFT, MODELS)]
Scheme = Annotated[str, asked("Drafting law and rule; see `multidraft schemes`.", DRAFTING)]
Walk = Annotated[str, asked("How a tree is traversed: deferred, or commit as in the papers.", DRAFTING)]
Seed = Annotated[int, asked("The same seed gives the same output.", RUN, min=0, max=2**32)]
Limit = Annotated[int | None, asked("Only the first N prompts of the file.", PROMPTS, min=1)]
Workers = Annotated[int | None, asked(WORKERS, RUN, min=1, max=1024)]
Ray = Annotated[str | None, asked(RAY, RUN)]
Wait = Annotated[bool, asked("Where another run writes to the same place, wait for its end.", RUN, "--wait")]
Json = Annotated[bool, asked("Print JSON, and progress on stderr.", OUTPUT, "--json")]


@dataclass(frozen=True)
class Named:
    """The models, and how they are loaded."""

    target: Target = None
    draft: Draft = None
    engine: Annotated[str | None, asked(ENGINE, MODELS)] = None
    trust: Annotated[bool, asked(TRUST, MODELS, "--trust-remote-code")] = False


@dataclass(frozen=True)
class Drafting:
    """What is drafted, and how it is verified."""

    scheme: Scheme = SCHEME
    tree: Annotated[str, asked(TREES, DRAFTING)] = TREE
    plan: Annotated[str | None, asked("What `multidraft tune --out` has written, for --tree auto.", DRAFTING)] = None
    tune_budget: Annotated[float, asked(SECONDS, DRAFTING, "--tune-budget", min=0)] = TUNE_BUDGET
    walk: Walk = "deferred"


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """A command of groups of options as one of their fields: typer knows parameters, but no groups of them."""
    parameters = signature(command).parameters.values()
    groups: dict[str, Any] = {each.name: each.annotation for each in parameters if is_dataclass(each.annotation)}
    own = [signature(groups[each.name]).parameters.values() if each.name in groups else [each] for each in parameters]
    flat = [each.replace(kind=Parameter.KEYWORD_ONLY) for group in own for each in group]

    @wraps(command)
    def called(**given: Any) -> None:
        made = {name: kind(**{f.name: given.pop(f.name) for f in fields(kind)}) for name, kind in groups.items()}
        command(**made, **given)

    called.__dict__["__signature__"] = Signature(flat)
    called.__annotations__ = {each.name: each.annotation for each in flat}
    return called


class Checked(TyperCommand):
    """A command whose values are checked before it runs."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = [word for arg in args for word in (arg.split("=", 1) if arg.startswith("--") else [arg])]
        for option, value in pairwise([*words, "end"]):
            if option.startswith("--") and value == "" and option != "--prompt":
                raise AdviceError(f"{option} is empty; give it a value, or leave it out")
        rest = super().parse_args(ctx, [RENAMED[0].sub(RENAMED[1], arg) for arg in args])
        for parameter in self.params:
            given = ctx.params.get(parameter.name)
            for fault in filter(None, map(fault_of, given if isinstance(given, list | tuple) else [given])):
                raise AdviceError(f"{max(parameter.opts, key=len)} {fault}")
        return rest

    def get_params(self, ctx: Any) -> list[Any]:
        return without_types(super().get_params(ctx))


def without_types(parameters: list[Any]) -> list[Any]:
    """Parameters whose help shows no <bool> for a switch, which takes no value."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.display_type_rich = lambda ctx: None
    return parameters


def fault_of(value: object) -> str | None:
    """What is wrong with a value of an option, and what to do."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"is {value}; give a finite number"
    if isinstance(value, int | float) and abs(value) > LARGEST:
        return f"is too large; give a number of at most {LARGEST}"
    if isinstance(value, str) and HALF_CHARACTER.search(value):
        return "is not UTF-8 text; check the terminal's encoding"
    return None
