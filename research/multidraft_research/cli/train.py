"""`multidraft train`: the recipe of the embedded pair, on any text, with checkpoints and a report."""

import re
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from multidraft.cli import options as o
from multidraft.cli import terminal
from multidraft.cli.engines import silence
from multidraft.errors import AdviceError
from multidraft.io import files
from multidraft.machine import hardware, versions

if TYPE_CHECKING:
    from multidraft_research.training.recipe import Recipe, Shape, Teacher

SIZE = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,2})")
OF_TARGETS = {"target": "--target-size", "target_steps": "--target-steps", "vocabulary": "--vocabulary"}
LINES = {
    "target_bits_per_byte": "target, held-out bits per byte",
    "draft_bits_per_byte": "draft, held-out bits per byte",
    "mean_acceptance_one_draft": "mean acceptance, one draft, temperature 1",
    "held_out_bytes": "held-out bytes",
    "target_tokens_seen": "tokens seen by the target",
    "draft_tokens_seen": "tokens seen by the draft",
    "target_parameters": "parameters of the target",
    "draft_parameters": "parameters of the draft",
    "seconds": "seconds of training",
}


def train(
    corpus: Annotated[Path, Option(exists=True, dir_okay=False, readable=True, help="UTF-8 text, gzipped or not.")],
    out: Annotated[Path, Option(help="Folder for checkpoints, target, draft and report.json.")],
    target_steps: Annotated[int | None, Option(min=1, help="Default: that of the embedded pair, as below.")] = None,
    draft_steps: Annotated[int | None, Option(min=1)] = None,
    seed: Annotated[int | None, Option(min=0, max=2**32)] = None,
    vocabulary: Annotated[int | None, Option(min=257, max=262_144, help="Pieces of the tokenizer.")] = None,
    window: Annotated[int | None, Option(min=8, help="Tokens of a training window.")] = None,
    batch: Annotated[int | None, Option(min=1, max=65_536, help="Windows a step.")] = None,
    checkpoint_every: Annotated[int | None, Option(min=1, help="Steps between checkpoints.")] = None,
    target: Annotated[
        str | None, Option(help="Train a draft for this one alone: a folder, a hub name, or embedded.")
    ] = None,
    target_size: Annotated[str | None, Option(help="WIDTHxLAYERS, such as 64x2.")] = None,
    draft_size: Annotated[str | None, Option(help="WIDTHxLAYERS, such as 32x1.")] = None,
    wait: o.Wait = False,
    as_json: Annotated[bool, Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Train a target and a draft on a text; without options, as the embedded pair was. Run it again to resume.

    With --target, train a draft for a target that there is already: of any size, for any target with a fast tokenizer.
    """
    from multidraft_research.training.recipe import Recipe

    silence()
    shapes = {"target": shape(target_size), "draft": shape(draft_size)}
    numbers: dict[str, Any] = dict(target_steps=target_steps, draft_steps=draft_steps, seed=seed, vocabulary=vocabulary)
    numbers |= dict(window=window, batch=batch, checkpoint_every=checkpoint_every)
    settings = {name: value for name, value in (numbers | shapes).items() if value is not None}
    taught = None if target is None else teacher(target, settings)
    recipe = Recipe(**settings | ({} if taught is None else sizes(target, taught)))
    if recipe.window > recipe.context:
        raise AdviceError(f"--window {recipe.window} is longer than the models' context, {recipe.context}")
    files.make_folder(out, "--out")
    with files.hold(out, wait):
        report = run(corpus, out, recipe, taught)
    if as_json:
        return terminal.print_json(report)
    print_report(report)
    typer.echo(f"`multidraft generate --target {target or out / 'target'} --draft {out / 'draft'} ...` decodes with it")


def teacher(target: str, settings: dict[str, Any]) -> "Teacher":
    """The target that a draft is to be trained for; raises on settings of a target that would be trained first."""
    from multidraft.cli.engines import Loader, load_models
    from multidraft_research.cli.pretrained import check_pretrained_names
    from multidraft_research.training.recipe import Teacher

    if wrong := settings.keys() & OF_TARGETS.keys():
        raise AdviceError(f"{OF_TARGETS[min(wrong)]} is of a target to train, and --target names one; leave one out")
    check_pretrained_names(Loader(), target)
    model: Any
    model, _, tokenizer = load_models(target, [])
    return Teacher(model, tokenizer)


def sizes(target: str | None, taught: "Teacher") -> dict[str, Any]:
    """What a draft has from its target."""
    from multidraft.models.user_models import context_of, vocabulary_size
    from multidraft_research.training.recipe import Recipe

    return {
        "taught_by": target,
        "vocabulary": vocabulary_size(taught.model),
        "context": min(context_of(taught.model) or Recipe.context, Recipe.context),
    }


def shape(size: str | None) -> "Shape | None":
    """The model that WIDTHxLAYERS stands for; heads of 64, as in the embedded pair, or one where that is too wide."""
    from multidraft_research.training.recipe import Shape

    if size is None:
        return None
    match = SIZE.fullmatch(size)
    if match is None or int(match[1]) % 2:
        raise AdviceError(
            f"model size {size!r} is not WIDTHxLAYERS with an even width, at most 99998x999; write it like 64x2"
        )
    width, layers = int(match[1]), int(match[2])
    return Shape(width=width, layers=layers, inner=2 * width, heads=width // 64 if width % 64 == 0 else 1)


def run(corpus: Path, out: Path, recipe: "Recipe", taught: "Teacher | None") -> dict[str, Any]:
    """Train (or go on), evaluate, and write report.json."""
    from multidraft_research.cli.pretrained import load_pretrained
    from multidraft_research.training.evaluate import evaluate_pair
    from multidraft_research.training.recipe import train_draft, train_pair

    clock, roles = TrainingClock(out / "checkpoints" / "seconds"), []
    try:
        with clock:
            for role in train_draft(corpus, out, recipe, taught) if taught else train_pair(corpus, out, recipe):
                typer.echo(f"the {role} is written to {out / role}", err=True)
                roles.append(role)
        pair = load_pretrained(recipe.taught_by or str(out / "target"), str(out / "draft"))
        report: dict[str, Any] = {"recipe": asdict(recipe)} | evaluate_pair(corpus, pair, recipe).as_dict()
    except KeyboardInterrupt:
        raise KeyboardInterrupt("stopped; run the same command again to go on from the last checkpoint") from None
    except OSError as error:
        raise AdviceError(f"cannot write to {out} ({error.strerror}); choose another --out") from None
    for role in roles:
        report[f"{role}_parameters"] = parameters(out / role / "model.safetensors")
        report[f"{role}_tokens_seen"] = getattr(recipe, f"{role}_steps") * recipe.batch * recipe.window
    report |= {"seconds": round(clock.before, 1), "hardware": hardware(), "versions": versions()}
    terminal.write_json(out / "report.json", report)
    return report


class TrainingClock:
    """Seconds spent in its block, added to those of earlier runs that a file remembers."""

    def __init__(self, file: Path):
        self.file = file
        try:
            self.before = float(file.read_text()) if file.exists() else 0.0
        except ValueError:
            raise AdviceError(f"{str(file)!r} is not of an earlier run; choose another --out, or remove it") from None

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.before += time.perf_counter() - self.start
        if self.file.parent.exists():
            files.write(self.file, f"{self.before:.3f}".encode())


def parameters(file: Path) -> int:
    """How many numbers a safetensors file holds."""
    from math import prod

    from safetensors import safe_open

    with safe_open(str(file), "pt") as stored:
        return sum(prod(stored.get_slice(name).get_shape()) for name in stored.keys())


def print_report(report: dict[str, Any]) -> None:
    """The report as a table."""
    rows = [[label, figure(report[name])] for name, label in LINES.items() if name in report]
    machine = report["hardware"]
    rows.append(["hardware", str(machine["gpu"] or f"{machine['cpu']}, threads: {machine['threads']}")])
    terminal.print_table(["", ""], rows, numbers=True)


def figure(value: object) -> str:
    """A number as people read it."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4f}"
