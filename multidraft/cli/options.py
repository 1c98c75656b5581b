"""Options that several commands share, in groups, and checks of every option's value."""

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from typer import Option
from typer.core import TyperCommand

from multidraft.autotune.limits import TreeLimits
from multidraft.cli import completion
from multidraft.cli.drafter_names import CORPUS_HELP, DRAFT_HELP
from multidraft.cli.engines import ENGINE_HELP, LLAMA_LIB_HELP, TARGET_HELP, TRUST_HELP
from multidraft.decoding.shapes import TreeShape
from multidraft.errors import AdviceError
from multidraft.generation import DEFAULT_SCHEME, DEFAULT_TREE, TUNE_BUDGET_SECONDS
from multidraft.io import files
from multidraft.models.gguf import LLAMA_CPP
from multidraft.models.gguf.places import llama_cpp_path
from multidraft.verification.names import check_name

MODELS, PROMPTS, SAMPLING, DRAFTING, RUN, OUTPUT = "Models", "Prompts", "Sampling", "Drafting", "Run", "Output"
FILE_HELP = 'File with one {"id", "task", "prompt"} a line.'
TREES_HELP = (
    "auto: by measured speed; or 4x2x2x1, '8 paths of 4', a JSON list of paths; limits as in `auto,nodes=24,depth=6`."
)
SECONDS_HELP = (
    "Seconds of the run's own steps in which `--tree auto` times trees for a new pair; 0, or a --seed, for none."
)
SEED_HELP = (
    "The same seed gives the same output; with `--tree auto` it times nothing, and takes the plan that there is. "
    "Default: 0, with timing."
)
LONE_SURROGATE = re.compile("[\ud800-\udfff]")
MAX_PLAN_BYTES = 2**24
MAX_NUMBER = 2**32  # more than any option needs; all libraries below accept it


def option(text: str, panel: str, *names: str, **settings: Any) -> Any:
    """An option with its help text, in a panel of the help page."""
    return Option(*names, help=text, rich_help_panel=panel, **settings)


SCHEME_HELP = "Drafting law and rule; see `multidraft schemes`."
TargetName = Annotated[str | None, option(TARGET_HELP, MODELS, autocompletion=completion.targets)]
DraftName = Annotated[str | None, option(DRAFT_HELP, MODELS, autocompletion=completion.drafts)]
SchemeName = Annotated[str, option(SCHEME_HELP, DRAFTING, autocompletion=completion.schemes)]
WalkName = Annotated[str, option("How a tree is traversed: deferred, or commit as in the papers.", DRAFTING)]
Seed = Annotated[int | None, option(SEED_HELP, RUN, min=0, max=2**32)]
Limit = Annotated[int | None, option("Only the first N prompts of the file.", PROMPTS, min=1)]
Wait = Annotated[bool, option("If another run writes to the same place, wait for its end.", RUN, "--wait")]
JsonFlag = Annotated[bool, option("Print JSON, and progress on stderr.", OUTPUT, "--json")]


@dataclass(frozen=True)
class ModelOptions:
    """The models' names, and how to load them."""

    target: TargetName = None
    draft: DraftName = None
    engine: Annotated[str | None, option(ENGINE_HELP, MODELS)] = None
    llama_lib: Annotated[Path | None, option(LLAMA_LIB_HELP, MODELS, "--llama-lib")] = None
    trust: Annotated[bool, option(TRUST_HELP, MODELS, "--trust-remote-code")] = False
    revision: Annotated[str | None, option("Branch, tag or commit of the target on the hub.", MODELS)] = None
    corpus: Annotated[str | None, option(CORPUS_HELP, MODELS)] = None

    @property
    def named_engine(self) -> str | None:
        """The engine, or the folder of the build of llama.cpp that is one."""
        if self.llama_lib is None:
            return self.engine
        if self.engine not in (None, LLAMA_CPP):
            raise AdviceError(f"--llama-lib names a build of {LLAMA_CPP}, and --engine {self.engine}; leave one out")
        return str(llama_cpp_path(self.llama_lib))


@dataclass(frozen=True)
class DraftingOptions:
    """What is drafted, and how it is verified."""

    scheme: SchemeName = DEFAULT_SCHEME
    tree: Annotated[str, option(TREES_HELP, DRAFTING)] = DEFAULT_TREE
    plan: Annotated[str | None, option("A file that `multidraft tune --out` wrote, for --tree auto.", DRAFTING)] = None
    tune_budget: Annotated[float, option(SECONDS_HELP, DRAFTING, "--tune-budget", min=0)] = TUNE_BUDGET_SECONDS
    walk: WalkName = "deferred"


def check_drafting(scheme: str, tree: str, plan: str | None) -> None:
    """Raise on a scheme, a tree or a plan's path that is wrong, as far as that can be told without torch."""
    check_name(scheme)
    TreeLimits.parse(tree) if tree.strip().lower().startswith("auto") else TreeShape.parse(tree)
    if plan is not None:
        files.content(Path(plan), "the plan", MAX_PLAN_BYTES)


def check_threads(threads: int | None) -> None:
    """Raise on more threads than there are processors."""
    if threads is not None and threads > (cores := os.cpu_count() or 1):
        raise AdviceError(f"--threads {threads} is more than this machine's {cores} processors; give fewer")


def flatten_options(command: Callable[..., None]) -> Callable[..., None]:
    """Flatten a command's parameters that are dataclasses into their fields, because typer has no option groups."""
    parameters = signature(command).parameters
    groups: dict[str, Any] = {name: p.annotation for name, p in parameters.items() if is_dataclass(p.annotation)}
    members = [signature(groups[n]).parameters.values() if n in groups else [p] for n, p in parameters.items()]
    flat = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for group in members for parameter in group]

    @wraps(command)
    def wrapper(**values: Any) -> None:
        arguments = {name: kind(**{f.name: values.pop(f.name) for f in fields(kind)}) for name, kind in groups.items()}
        command(**arguments, **values)

    wrapper.__dict__["__signature__"] = Signature(flat)
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return wrapper


class CheckedCommand(TyperCommand):
    """A command that checks its options' values before it runs."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = [word for arg in args for word in (arg.split("=", 1) if arg.startswith("--") else [arg])]
        for option, value in pairwise([*words, "end"]):
            if option.startswith("--") and value == "" and option != "--prompt":
                raise AdviceError(f"{option} is empty; give it a value, or leave it out")
        remaining = super().parse_args(ctx, args)
        for parameter in self.params:
            value = ctx.params.get(parameter.name)
            for fault in filter(None, map(fault_of, value if isinstance(value, list | tuple) else [value])):
                raise AdviceError(f"{max(parameter.opts, key=len)} {fault}")
        return remaining

    def get_short_help_str(self, limit: int = 45) -> str:
        """The first sentence of its help, whole."""
        return super().get_short_help_str(max(limit, 1000))

    def get_params(self, ctx: Any) -> list[Any]:
        return without_types(super().get_params(ctx))


def without_types(parameters: list[Any]) -> list[Any]:
    """Hide the type <bool> in the help of switches, which take no value."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.display_type_rich = lambda ctx: None
    return parameters


def fault_of(value: object) -> str | None:
    """What is wrong with an option's value, and what to do; None if it is fine."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"is {value}; give a finite number"
    if isinstance(value, int | float) and abs(value) > MAX_NUMBER:
        return f"is too large; give a number of at most {MAX_NUMBER}"
    if isinstance(value, str) and LONE_SURROGATE.search(value):
        return "is not UTF-8 text; check the terminal's encoding"
    return None
