"""`multidraft train-head`: an EAGLE-3, DFlash or Medusa head for a target, trained on text that the target wrote."""

import math
import time
from contextlib import suppress
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from multidraft.cli import completion, terminal
from multidraft.cli import options as o
from multidraft.cli.engines import SMOLLM2, Loader, load_models, silence
from multidraft.cli.export_head import HUB_NAMES
from multidraft.errors import AdviceError
from multidraft.io import files, journal
from multidraft_research.cli.pretrained import check_pretrained_names

if TYPE_CHECKING:
    from multidraft_research.training.heads.run import NamedTarget

TEXT_HELP = (
    'JSON lines (gz), as {"user": "Name a colour.", "assistant": "Blue."}; messages or conversations for several '
    'turns; {"text": "..."} without any.'
)


class Kind(StrEnum):
    """Heads that can be trained."""

    eagle3 = "eagle3"
    dflash = "dflash"
    medusa = "medusa"


def train_head(
    kind: Annotated[Kind, Option(help="Which head.")],
    out: Annotated[Path, Option(help="Folder for checkpoint, log and head.")],
    target: Annotated[
        str, Option(help="A folder, a hub name, or smollm2.", autocompletion=completion.targets)
    ] = SMOLLM2,
    text: Annotated[
        Path | None,
        Option(exists=True, dir_okay=False, readable=True, help=TEXT_HELP),
    ] = None,
    self_written: Annotated[
        bool, Option("--self", help="Let the target write the text first, to OUT/text.jsonl.")
    ] = False,
    states: Annotated[
        Path | None, Option(help="Folder of captured states, which heads share. Default: in OUT.")
    ] = None,
    tokens: Annotated[int, Option(min=1, help="Tokens to write or to read at most; they bound the disk.")] = 300_000,
    vocabulary: Annotated[int, Option(min=1, help="Tokens that the head has, the most frequent ones.")] = 8192,
    depth: Annotated[int, Option(min=1, max=16, help="Tokens ahead that are trained.")] = 4,
    layers: Annotated[int, Option(min=1, help="Decoder layers, of EAGLE-3 and DFlash.")] = 1,
    start: Annotated[
        str | None, Option(metavar="KIND:FOLDER", help="A head to train further, as eagle3:smollm2; its tokens stay.")
    ] = None,
    steps: Annotated[int, Option(min=1)] = 400,
    batch: Annotated[int, Option(min=1, help="Tokens a step.")] = 1500,
    learning_rate: Annotated[float, Option(min=0, help="Of matrices, by Muon.")] = 0.02,
    mix: Annotated[float, Option(min=0, max=1, help="Share of the acceptance rate in the loss.")] = 0.0,
    every: Annotated[int, Option(min=1, help="Steps from one look at the held-out text to the next.")] = 50,
    seed: Annotated[int, Option(min=0, max=2**32)] = 0,
    wait: o.Wait = False,
) -> None:
    """Train a head that drafts from a target's hidden states, in `speculators`' format. Run it again to resume."""
    from multidraft_research.cli.distill import check_same
    from multidraft_research.training.heads import captured, run, train
    from multidraft_research.training.heads.train import HeadPlan, HeadSettings

    silence()
    if (text is None) == (not self_written):
        raise AdviceError("pass --text FILE with what the target wrote, or --self to let it write; one of the two")
    if start is not None and not start.startswith(f"{kind.value}:"):
        raise AdviceError(f"--start {start!r} does not go with --kind {kind.value}; write {kind.value}:FOLDER")
    files.make_folder(out, "--out")
    settings = HeadSettings(steps, batch, learning_rate, depth=depth, mix=mix, seed=seed)
    noted = asdict(settings) | {"kind": kind.value, "target": target, "layers": layers, "vocabulary": vocabulary}
    noted |= {"start": start} if start else {}
    with files.hold(out, wait):
        check_same(out / "settings.json", noted)
        if (out / "head" / "config.json").is_file() and last_step(out / "log.jsonl") == steps:
            return ready(out, target, kind)
        check_pretrained_names(Loader(), target)
        model: Any
        model, _, tokenizer = load_models(target, [], Loader("transformers" if target == SMOLLM2 else None))
        named_target = run.NamedTarget(model.requires_grad_(False), HUB_NAMES.get(target, target))
        train.check_trainable(model, kind.value)  # before anything is read
        mask = next((token for token in (tokenizer.mask_token_id, tokenizer.unk_token_id) if token is not None), 0)
        plan = HeadPlan(kind.value, vocabulary, layers, heads=depth, block=depth + 1, mask_token=mask)
        begin = plan if start is None else train.load_for_training(start, model)  # refused before the text is read
        try:
            records = captured.records(text or write_text(named_target, tokenizer, out / "text.jsonl", tokens))
            split = run.capture(model, tokenizer, records, states or out / "states", tokens, terminal.note)
            for _ in run.train_head(named_target, split, begin, settings, out, every, Progress(steps)):
                pass
            (out / "checkpoint.pt").unlink(missing_ok=True)  # nothing is left to go on with
        except KeyboardInterrupt:
            raise KeyboardInterrupt("stopped; run the same command again to go on from the last checkpoint") from None
        except OSError as error:
            raise AdviceError(f"cannot write to {out} ({error.strerror}); choose another --out") from None
    ready(out, target, kind)


def ready(out: Path, target: str, kind: Kind) -> None:
    """Print how the head is used."""
    terminal.note(f"{out / 'head'} is ready: multidraft generate --target {target} --draft {kind.value}:{out / 'head'}")


def last_step(log: Path) -> int:
    """The step of a log's last line; 0 without one, or where it was torn."""
    lines = log.read_text(encoding="utf-8").splitlines() if log.is_file() else []
    with suppress(AdviceError, AttributeError):
        return int(journal.parse(lines[-1], str(log), "").get("step", 0)) if lines else 0
    return 0


class Progress:
    """Prints loss and acceptance by depth at every look at the held-out text, and how long the rest takes."""

    def __init__(self, steps: int):
        self.steps, self.begin = steps, time.monotonic()
        self.first: int | None = None  # the first step that is printed: a stopped run begins late

    def __call__(self, line: dict[str, Any]) -> None:
        rates = " ".join(f"{rate:.2f}" for rate in line["T=1"])
        terminal.note(
            f"step {line['step']} of {self.steps}: loss {line['loss']:.3f}, acceptance by depth {rates}"
            f"{self.time_left(line['step'])}"
        )

    def time_left(self, step: int) -> str:
        """Of the steps since the first line; before the second one nothing is known but what the bar shows."""
        now = time.monotonic()
        if self.first is None or step == self.steps:
            self.first, self.begin = self.first or step, now
            return ""
        minutes = (now - self.begin) / (step - self.first) * (self.steps - step) / 60
        return f", about {math.ceil(minutes)} minutes left"


def write_text(target: "NamedTarget", tokenizer: Any, path: Path, tokens: int) -> Path:
    """Text that the target writes, of so many tokens."""
    from tqdm import tqdm

    from multidraft_research.training.heads import target_text

    with tqdm(desc="tokens written", unit=" tokens", total=tokens) as bar:
        for count in target_text.write(target.model, tokenizer, path, tokens):
            bar.n = count
            bar.refresh()
    return path
