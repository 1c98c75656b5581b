"""`multidraft tune --what-if`: from which acceptance on drafts would pay for a target, before there is a drafter."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from multidraft.cli import terminal
from multidraft.cli.engines import Loader, is_file, ready_model, resolve, silence
from multidraft.cli.run_report import BUSY, BUSY_NOTE
from multidraft.errors import AdviceError
from multidraft.machine import is_busy

if TYPE_CHECKING:
    from multidraft.models.user_models import Model
    from multidraft_research.tuning.target_passes import Gain, PassCosts

BAR_FORMAT = "{desc}: {bar}| {n:.0f} of {total:.0f} s"
COLUMNS = ["acceptance", "tree", "tokens a step", "times plain"]
MAX_SHARE = 10.0  # a drafter that takes more of the target's pass pays for nobody


def check(acceptances: list[float], drafter_share: float, excluded: Mapping[str, object]) -> None:
    """Raise on numbers out of range, and on options that need a drafter."""
    for value in acceptances:
        if not 0 <= value <= 1:
            raise AdviceError(f"--what-if is {value:g}; give how often a draft is accepted, from 0 to 1")
    if not 0 <= drafter_share <= MAX_SHARE:
        raise AdviceError(f"--drafter-share is {drafter_share:g}; give a share of the target's pass, such as 0.02")
    for name in (name for name, value in excluded.items() if value):
        raise AdviceError(f"--what-if measures the target alone; leave out {name}")


def tell(
    target: str, loader: Loader, acceptances: list[float], drafter_share: float, budget: float, as_json: bool
) -> None:
    """Time the target's passes, and print the best tree for every acceptance."""
    from tqdm import tqdm

    from multidraft.models.user_models import as_reader
    from multidraft_research.tuning.target_passes import best_gain, time_passes

    model = target_alone(target, loader)
    with tqdm(total=budget, desc="timing passes", bar_format=BAR_FORMAT, leave=False) as bar:
        costs = time_passes(as_reader(model), budget, lambda seconds: bar.update(min(seconds, budget - bar.n)))
    gains = [best_gain(costs, acceptance, drafter_share) for acceptance in acceptances]
    if as_json:
        return terminal.print_json(as_dict(costs, gains) | {"drafter_share": drafter_share, "busy": is_busy()})
    show(costs, gains, drafter_share, is_busy())


def target_alone(name: str, loader: Loader) -> "Model":
    """The target without a tokenizer, which passes do not need."""
    from multidraft.models.gguf.model import GGUF
    from multidraft.models.huggingface.loading import load_model

    silence()
    path = resolve(name, "target", loader)
    if is_file(path):
        return GGUF(Path(path), library=loader.library)
    return ready_model(load_model(path, **loader.settings(True)), name)


def as_dict(costs: "PassCosts", gains: "list[Gain]") -> dict[str, object]:
    """The measured passes and the trees, for scripts."""
    from multidraft.decoding.metrics import NO_TREE

    milliseconds = {str(count): 1e3 * seconds for count, seconds in costs.seconds.items()}
    return {
        "milliseconds": milliseconds,
        "gains": [asdict(gain) | {"tree": gain.tree.name or NO_TREE} for gain in gains],
    }


def show(costs: "PassCosts", gains: "list[Gain]", drafter_share: float, is_busy: bool) -> None:
    """Print what passes cost, and the trees."""
    terminal.print_table(
        ["tokens of a pass", *map(str, costs.seconds)],
        [["milliseconds", *(f"{1e3 * seconds:.1f}" for seconds in costs.seconds.values())]],
    )
    rows = [
        [
            f"{gain.acceptance:g}",
            gain.tree.name or "none",
            f"{gain.tokens:.2f}",
            BUSY if is_busy else f"{gain.times_plain:.2f}",
        ]
        for gain in gains
    ]
    terminal.print_table(COLUMNS, rows)
    typer.echo(
        f"A level of drafts is taken to cost {drafter_share:g} of the target's pass, and acceptance to be the same at "
        "every depth."
    )
    if is_busy:
        terminal.note(BUSY_NOTE)
