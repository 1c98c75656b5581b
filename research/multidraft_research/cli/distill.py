"""`multidraft distill`: train a draft model on the target's distributions along its own text."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from multidraft.cli import completion, terminal
from multidraft.cli import options as o
from multidraft.cli.engines import DEFAULT_LOADER, EMBEDDED, go_offline_without_hub, silence
from multidraft.errors import AdviceError
from multidraft.io import files, journal
from multidraft.machine import commit, hardware, versions
from multidraft_research.cli.pretrained import check_pretrained_names

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from multidraft_research.captures.folder import Capture
    from multidraft_research.training.distilling import DistillingSettings


def distill(
    capture: Annotated[Path, Option(help="A folder of `multidraft capture` of the target and this draft.")],
    out: Annotated[Path, Option(help="Folder for checkpoints, the draft and report.json.")],
    draft: Annotated[
        str | None,
        Option(help="The draft: a folder or a hub name. Default: embedded.", autocompletion=completion.drafts),
    ] = None,
    steps: Annotated[int, Option(min=1)] = 200,
    batch: Annotated[int, Option(min=1, max=65_536, help="Prompts a step.")] = 4,
    learning_rate: Annotated[float, Option(min=0, max=1)] = 1e-4,
    seed: Annotated[int, Option(min=0, max=2**32)] = 0,
    wait: o.Wait = False,
    as_json: Annotated[bool, Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Train a draft model on the target's distributions in a capture, and say what it gains. Run it again to resume."""
    from multidraft_research.captures.folder import Capture
    from multidraft_research.training.distilling import DistillingSettings

    silence()
    settings, source = DistillingSettings(steps, batch, learning_rate, seed=seed), Capture.open(capture)
    settings.parts(len(source.entries))
    files.make_folder(out, "--out")
    with files.hold(out, wait):
        train(draft, source, settings, out, as_json)
    terminal.note(f"{out / 'draft'} is ready for `multidraft generate --target ... --draft ...`")


def train(draft: str | None, source: "Capture", settings: "DistillingSettings", out: Path, as_json: bool) -> None:
    """Train, or go on, and write the draft and the report."""
    from multidraft_research.training.corpus import save_tokenizer
    from multidraft_research.training.distilling import distil

    check_same(out / "settings.json", asdict(settings) | {"capture": source.fingerprint, "draft": draft or EMBEDDED})
    model, tokenizer = load(draft, source.vocabulary)
    dtype = model.dtype
    try:
        draft_model = distil(model, source, settings, out / "checkpoint.pt")
    except KeyboardInterrupt:
        raise KeyboardInterrupt("stopped; run the same command again to go on from the last checkpoint") from None
    report(draft_model, source, settings, out, as_json)
    draft_model.to(dtype=dtype).save_pretrained(out / "draft")  # type: ignore[call-arg]  # hidden self
    save_tokenizer(tokenizer, out / "draft")


def check_same(note: Path, ours: dict[str, Any]) -> None:
    """Raise where a folder holds a run with other settings; else note these."""
    theirs = journal.parse(note.read_text(), str(note), "choose another --out") if note.is_file() else ours
    if theirs != ours:
        changed = [f"{name} {theirs.get(name)} is now {ours[name]}" for name in ours if theirs.get(name) != ours[name]]
        raise AdviceError(f"{note.parent} has a run with other settings ({'; '.join(changed)}); choose another --out")
    terminal.write_json(note, ours)


def load(name: str | None, vocabulary: int) -> "tuple[PreTrainedModel, Any]":
    """The draft model, with about as many tokens as the capture, and its tokenizer."""
    from multidraft.models.huggingface.loading import load_model, load_tokenizer
    from multidraft.models.user_models import vocabulary_size
    from multidraft.models.vocabularies import check_sizes
    from multidraft.zoo import load_pair

    if name is None or name == EMBEDDED:
        pair = load_pair()
        model, tokenizer = pair.draft, pair.tokenizer
    else:
        go_offline_without_hub([name])
        check_pretrained_names(DEFAULT_LOADER, name)
        tokenizer, model = load_tokenizer(name), load_model(name)
    check_sizes(vocabulary, vocabulary_size(model))
    return model, tokenizer


def report(
    draft_model: "PreTrainedModel", source: "Capture", settings: "DistillingSettings", out: Path, as_json: bool
) -> None:
    """Acceptance on the prompts that were held out, before and after, for people or for scripts, and in a file."""
    from multidraft_research.studies.running.cells import ratio, sums
    from multidraft_research.studies.running.study import Panel
    from multidraft_research.studies.running.tables import as_data, tables
    from multidraft_research.training.distilling import PANEL, gains

    sums_by_place = sums({"id": name, "cells": cells} for name, cells in gains(draft_model, source, settings))
    estimates = {place: ratio(sums_of_place) for place, sums_of_place in sums_by_place.items()}
    machine = {"commit": commit(), "hardware": hardware(), "versions": versions()}
    data = {"settings": asdict(settings), "capture": source.fingerprint, "entries": as_data(estimates)} | machine
    terminal.write_json(out / "report.json", data)
    if as_json:
        return terminal.print_json(data)
    [table] = tables({PANEL: Panel("acceptance rate, %", "candidates, on prompts held out", 100.0)}, estimates)
    terminal.print_table(*table.strings(), numbers=True)
