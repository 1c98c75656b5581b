"""A capture on disk: a manifest, which has a line for every shard with its checksum, and the shards, one a prompt."""

from dataclasses import dataclass, fields
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Any

from multidraft.errors import AdviceError
from multidraft.io import files, journal
from multidraft_research.captures import shard
from multidraft_research.captures.recording import Recording, joined
from multidraft_research.captures.shard import Shard

HOW = "make one with `multidraft capture --out DIR`"
AGAIN = "run the command that makes it again, and it goes on"
MANIFEST = "manifest.jsonl"
FORMAT = 1


@dataclass(frozen=True)
class Entry:
    """A line of the manifest: a shard, the prompt that it is of, and the total variation that cutting it has cost."""

    file: str
    sha256: str
    bytes: int
    id: str
    task: str
    positions: int
    target_loss: float
    draft_loss: float


@dataclass(frozen=True)
class Capture:
    """A finished capture; `settings` is the first line of its manifest."""

    folder: Path
    settings: dict[str, Any]
    entries: list[Entry]

    @classmethod
    def open(cls, folder: Path) -> "Capture":
        """Read the manifest; raises where it is none, or where prompts are missing."""
        path = folder / MANIFEST
        if not path.is_file():
            raise AdviceError(f"there is no capture in {str(folder)!r}; {HOW}")
        lines, _ = journal.whole(path, "the manifest", HOW)
        settings = journal.first(path, lines)
        check_settings(settings, path)
        entries = [entry(record, path) for record in journal.sound(lines)]
        if not len(lines) == len(entries) + 1 == settings["prompts"] + 1:
            raise AdviceError(
                f"the capture {str(folder)!r} has {len(entries)} of {settings['prompts']} prompts; {AGAIN}"
            )
        return cls(folder, settings, entries)

    @property
    def vocabulary(self) -> int:
        """How many tokens each position has logits for."""
        return self.settings["vocabulary"]

    @property
    def drawn(self) -> bool:
        """Whether the target drew the text, at temperature 1."""
        return not self.settings.get("score") and self.settings.get("temperature") == 1

    @property
    def positions(self) -> int:
        """How many positions there are."""
        return sum(entry.positions for entry in self.entries)

    def shard(self, index: int) -> Shard:
        """What was kept of one prompt, checked against its checksum."""
        path, expected = self.folder / self.entries[index].file, self.entries[index].sha256
        try:
            content = path.read_bytes()
        except OSError as error:
            raise AdviceError(f"cannot read the shard {path} ({error.strerror}); {AGAIN}") from None
        if sha256(content).hexdigest() != expected:
            raise AdviceError(f"the shard {path} has another checksum than its manifest says; {AGAIN}")
        try:
            return shard.read(content, self.vocabulary)
        except ValueError as error:
            raise AdviceError(f"the shard {path} {error}; {HOW}") from None

    def recording(self) -> Recording:
        """All positions at once, in memory."""
        return joined(self.shard(index).recording for index in range(len(self.entries)))

    def first(self, positions: int) -> Recording:
        """So many positions, of the first prompts; fewer where there are no more."""
        ends = accumulate(entry.positions for entry in self.entries)
        needed = next((count for count, end in enumerate(ends, 1) if end >= positions), len(self.entries))
        some = joined(self.shard(index).recording for index in range(needed))
        return Recording(some.target[:positions], some.draft[:positions])

    @property
    def fingerprint(self) -> str:
        """Tells one capture from another."""
        return sha256("".join(entry.sha256 for entry in self.entries).encode()).hexdigest()[:16]


def is_whole(folder: Path, record: dict[str, Any]) -> bool:
    """Whether the shard of a line is there, as it was when the line was written."""
    try:
        made = entry(record, folder)
        return sha256((folder / made.file).read_bytes()).hexdigest() == made.sha256
    except (OSError, AdviceError):
        return False


def clear(folder: Path) -> None:
    """Remove what a kill has left half written in a folder."""
    for path in folder.glob(f"{files.NEW}*"):
        path.unlink()


def check_settings(settings: Any, path: Path) -> None:
    """Raise unless a first line is one of a capture."""
    if not isinstance(settings, dict) or settings.get("capture") != FORMAT:
        raise AdviceError(f"{path} is no manifest of a capture; {HOW}")
    for name in ("vocabulary", "prompts"):
        if not isinstance(settings.get(name), int) or settings[name] < 1:
            raise AdviceError(f"the first line of {path} has no {name}; {HOW}")


def entry(record: Any, path: Path) -> Entry:
    """A line after the first, checked."""
    kinds = {field.name: field.type for field in fields(Entry)}
    right = isinstance(record, dict) and {name: type(value) for name, value in record.items()} == kinds
    if not right or Path(record["file"]).name != record["file"] or record["positions"] < 1:
        raise AdviceError(f"{path} has a line that is no shard; {HOW}")
    return Entry(**record)
