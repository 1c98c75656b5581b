"""`multidraft capture`: keep the logits of a model pair, for every study and every temperature."""

from dataclasses import asdict, dataclass
from functools import cached_property, partial
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from multidraft.cli import options as o
from multidraft.cli import terminal
from multidraft.cli.engines import EMBEDDED
from multidraft.cli.prompts import DEMO, Prompt, encode, read_prompts
from multidraft.errors import AdviceError
from multidraft.io import files
from multidraft.machine import versions
from multidraft_research.cli.executors import RAY_HELP, WORKERS_HELP, executor_of
from multidraft_research.cli.pretrained import DraftOption, TargetOption, load_pair

if TYPE_CHECKING:
    from multidraft.zoo import Pair
    from multidraft_research.captures.capturing import Manner
    from multidraft_research.captures.folder import Capture
    from multidraft_research.captures.recording import Recording
    from multidraft_research.captures.work import Load
    from multidraft_research.cli.executors import Executor

PROMPTS, SHIPPED = 'File with one {"id", "task", "prompt"} a line.', "those of make demo"


@dataclass(frozen=True)
class Source:
    """Two models and the prompts that they are studied on."""

    target: str | None
    draft: str | None
    prompts: Path = DEMO
    limit: int | None = None

    @cached_property
    def load(self) -> "Load":
        """What loads the models, in this process or in another; one object, so that a process loads them once."""
        return partial(load_pair, self.target, self.draft)

    @property
    def names(self) -> dict[str, str]:
        """What the models are called."""
        return {"target": self.target or EMBEDDED, "draft": self.draft or EMBEDDED}

    def read(self) -> "tuple[Pair, list[Prompt]]":
        """The models, and the prompts in tokens; the prompts are read first, because they are sooner found wrong."""
        from multidraft_research.captures.work import load_once

        chosen = read_prompts(None, self.prompts, self.limit)
        pair = load_once(self.load)
        encode(chosen, pair)
        return pair, chosen


def capture(
    out: Annotated[Path | None, Option(help="Folder of the capture; the same command goes on with it.")] = None,
    target: TargetOption = None,
    draft: DraftOption = None,
    prompts: Annotated[Path, Option(help=PROMPTS, show_default=SHIPPED)] = DEMO,
    limit: Annotated[int | None, Option(min=1, help="Only the first N prompts of the file.")] = None,
    max_new_tokens: Annotated[int, Option(min=1, help="Positions for each prompt.")] = 64,
    temperature: Annotated[float, Option(min=0, help="Of the text; the logits serve all temperatures.")] = 1.0,
    top_k: Annotated[
        int | None, Option(min=1, help="Keep K tokens at each position, and what all others have together.")
    ] = None,
    score: Annotated[bool, Option("--score", help="Take the prompts' own text after the first token.")] = False,
    seed: Annotated[int, Option(min=0, max=2**32)] = 0,
    workers: Annotated[int | None, Option(min=1, max=1024, help=WORKERS_HELP)] = None,
    ray: Annotated[str | None, Option(help=RAY_HELP)] = None,
    wait: o.Wait = False,
    show: Annotated[Path | None, Option(help="Say what is in a capture, and check it, instead.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print JSON, and progress on stderr.")] = False,
) -> None:
    """Keep the logits of a model pair at every token of continuations sampled from the target."""
    from multidraft.sampling.params import check as check_setting
    from multidraft_research.captures.capturing import Manner
    from multidraft_research.captures.folder import Capture

    if (out is None) == (show is None):
        raise AdviceError("give either --out DIR, to capture, or --show DIR, to see what was captured")
    check_setting("temperature", temperature, "--temperature")
    executor = executor_of(workers, ray)
    if out is not None:
        manner = Manner(max_new_tokens, temperature, seed, score, top_k)
        finished = make_capture(Source(target, draft, prompts, limit), manner, out, executor, wait)
    else:
        assert show is not None  # as of the check above
        finished = Capture.open(show)
        for index in range(len(finished.entries)):
            finished.shard(index)
    report(finished, as_json)


def make_capture(
    source: Source, manner: "Manner", folder: Path, executor: "Executor | None" = None, wait: bool = False
) -> "Capture":
    """The capture in a folder, made or gone on with, in this process unless there is an executor."""
    from multidraft.io.journal import Journal
    from multidraft.models.user_models import vocabulary_size
    from multidraft_research.captures.folder import FORMAT, MANIFEST, Capture, clear, is_whole
    from multidraft_research.captures.work import Capturing, Passage, check_room, check_scored
    from multidraft_research.cli.executors import run, serial

    files.make_folder(folder, "--out")
    pair, chosen = source.read()
    passages = [Passage(prompt.id, prompt.task, prompt.tokens) for prompt in chosen]
    check_scored(passages, manner)
    vocabulary = vocabulary_size(pair.target)
    settings: dict[str, object] = {"capture": FORMAT, **source.names, "vocabulary": vocabulary}
    settings |= {"prompts": len(passages), "prompts_digest": digest(chosen)} | asdict(manner) | versions()
    journal = Journal(folder / MANIFEST, settings, wait)
    pairs = zip(journal.records, passages, strict=False)
    right = (record.get("id") == passage.id and is_whole(folder, record) for record, passage in pairs)
    journal.keep(sum(takewhile(bool, right)))
    if len(journal.records) < len(passages):
        clear(folder)
        terminal.note(f"up to {check_room(pair, len(passages), manner, vocabulary, folder) / 1e6:,.0f} MB")
    try:
        run(
            Capturing(source.load, passages, manner, folder.absolute()),
            len(passages),
            journal,
            executor or serial,
            "capturing",
        )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped; {folder} keeps what is done, and the same command goes on") from None
    return Capture.open(folder)


def digest(prompts: list[Prompt]) -> str:
    """Tells one list of prompts from another."""
    return sha256(repr([(prompt.id, prompt.task, prompt.text) for prompt in prompts]).encode()).hexdigest()[:16]


def record_pair(source: Source, new_tokens: int, seed: int) -> "Recording":
    """Record a pair on prompts in memory, with a progress bar."""
    from tqdm import tqdm

    from multidraft_research.captures import capturing, recording

    pair, chosen = source.read()
    manner = capturing.Manner(new_tokens=new_tokens, seed=seed)
    parts = capturing.capture(pair.target, pair.draft, [prompt.tokens for prompt in chosen], manner)
    return recording.join(tqdm(parts, total=len(chosen), desc="recording", unit="prompt"))


def report(finished: "Capture", as_json: bool) -> None:
    """What was captured, and what keeping fewer tokens has cost."""
    lost = {
        name: sum(getattr(e, name) * e.positions for e in finished.entries) / finished.positions
        for name in ("target_loss", "draft_loss")
    }
    facts = {
        "folder": str(finished.folder),
        "positions": finished.positions,
        "bytes": sum(e.bytes for e in finished.entries),
    }
    facts |= finished.settings | lost | {"fingerprint": finished.fingerprint}
    if as_json:
        return terminal.print_json(facts | {"shards": [asdict(entry) for entry in finished.entries]})
    terminal.print_table(["", ""], [[name.replace("_", " "), text(value)] for name, value in facts.items()])


def text(value: object) -> str:
    """A setting or a number as people read it."""
    if value is None or isinstance(value, bool):
        return "no" if not value else "yes"
    return f"{value:,}" if isinstance(value, int) else str(value)
