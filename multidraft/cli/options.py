"""The options that several commands have, each said once, in groups."""

from pathlib import Path
from typing import Annotated

from typer import Option

from multidraft.cli.crews import RAY, WORKERS
from multidraft.cli.models import ENGINE, TRUST
from multidraft.cli.names import DRAFT, TARGET

MODELS, PROMPTS, SAMPLING, DRAFTING, RUN, OUTPUT = "Models", "Prompts", "Sampling", "Drafting", "Run", "Output"
FILE = 'File with one {"id", "task", "prompt"} a line.'

Target = Annotated[str | None, Option(help=TARGET, rich_help_panel=MODELS)]
Draft = Annotated[str | None, Option(help=DRAFT, rich_help_panel=MODELS)]
Engine = Annotated[str | None, Option(help=ENGINE, rich_help_panel=MODELS)]
Trust = Annotated[bool, Option("--trust-remote-code", help=TRUST, rich_help_panel=MODELS)]
PromptFile = Annotated[Path | None, Option(help=FILE, rich_help_panel=PROMPTS)]
Limit = Annotated[int | None, Option(min=1, help="Only the first N prompts of the file.", rich_help_panel=PROMPTS)]
Scheme = Annotated[str, Option(help="Drafting law and rule; see `multidraft schemes`.", rich_help_panel=DRAFTING)]
Tree = Annotated[
    str,
    Option(
        help="auto: what pays; or 4x2x2x1, '8 paths of 4', a JSON list of paths; limits as in `auto,nodes=24,depth=6`.",
        rich_help_panel=DRAFTING,
    ),
]
Plan = Annotated[
    str | None, Option(help="What `multidraft tune --out` has written, for --tree auto.", rich_help_panel=DRAFTING)
]
TuneBudget = Annotated[
    float,
    Option(
        "--tune-budget",
        min=0,
        help="Seconds of the run's own steps in which `--tree auto` times trees for a new pair; 0 for none.",
        rich_help_panel=DRAFTING,
    ),
]
Walk = Annotated[
    str,
    Option(help="How a tree is traversed: deferred, or commit as in the papers.", rich_help_panel=DRAFTING),
]
Seed = Annotated[int, Option(min=0, max=2**32, help="The same seed gives the same output.", rich_help_panel=RUN)]
Workers = Annotated[int | None, Option(min=1, max=1024, help=WORKERS, rich_help_panel=RUN)]
Ray = Annotated[str | None, Option(help=RAY, rich_help_panel=RUN)]
Wait = Annotated[
    bool, Option("--wait", help="Where another run writes to the same place, wait for its end.", rich_help_panel=RUN)
]
Json = Annotated[bool, Option("--json", help="Print JSON, and progress on stderr.", rich_help_panel=OUTPUT)]
