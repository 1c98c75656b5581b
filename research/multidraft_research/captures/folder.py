"""A capture on disk: a manifest, which has a line for every shard with its checksum, and the shards, one a prompt."""

from dataclasses import dataclass
from hashlib import file_digest, sha256
from itertools import accumulate
from pathlib import Path
from typing import Any

from multidraft.errors import AdviceError
from multidraft.io import files, journal
from multidraft.io.fields import Number, Object, Text, Whole, read
from multidraft_research.captures import shard
from multidraft_research.captures.recording import Recording, join
from multidraft_research.captures.shard import Shard

HOW = "make one with `multidraft capture --out DIR`"
AGAIN = "run the command that makes it again, and it goes on"
MANIFEST = "manifest.jsonl"
FORMAT = 1
FIRST = Object({"vocabulary": Whole(1, 2**24, required=True), "prompts": Whole(1, 10**8, required=True)})
LOSS = Number(0, 1.001, required=True)  # a total variation, with what rounding adds
ENTRY = Object(
    {
        "file": Text(r"[\w-]+\.safetensors", "the name of a file of safetensors", required=True),
        "sha256": Text("[0-9a-f]{64}", "a checksum", required=True),
        "bytes": Whole(1, 2**50, required=True),
        "id": Text(required=True),
        "task": Text(required=True),
        "positions": Whole(1, 2**31, required=True),
        "target_loss": LOSS,
        "draft_loss": LOSS,
    }
)


@dataclass(frozen=True)
class ShardEntry:
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
    entries: list[ShardEntry]

    @classmethod
    def open(cls, folder: Path) -> "Capture":
        """Read the manifest; raises where it is none, or where prompts are missing."""
        path = folder / MANIFEST
        if not path.is_file():
            raise AdviceError(f"there is no capture in {str(folder)!r}; {HOW}")
        lines, _ = journal.read_lines(path, "the manifest")
        settings, *records = journal.read_records(lines, path, HOW) or [{}]
        check_settings(settings, path)
        entries = [entry(record, path) for record in records]
        if len(entries) != settings["prompts"]:
            raise AdviceError(
                f"the capture {str(folder)!r} has {len(entries)} of {settings['prompts']} prompts; {AGAIN}"
            )
        return cls(folder, settings, entries)

    @property
    def vocabulary(self) -> int:
        """How many tokens each position has logits for."""
        return self.settings["vocabulary"]

    @property
    def is_drawn(self) -> bool:
        """Whether the target drew the text, at temperature 1."""
        return not self.settings.get("score") and self.settings.get("temperature") == 1

    @property
    def positions(self) -> int:
        """How many positions there are."""
        return sum(entry.positions for entry in self.entries)

    def shard(self, index: int) -> Shard:
        """What was kept of one prompt, checked against its checksum."""
        entry = self.entries[index]
        path = self.folder / entry.file
        try:
            is_same = is_of(path, entry)
        except OSError as error:
            raise AdviceError(f"cannot read the shard {path} ({error.strerror}); {AGAIN}") from None
        if not is_same:
            raise AdviceError(f"the shard {path} has another checksum than its manifest says; {AGAIN}")
        return shard.read(path, entry.positions, self.vocabulary, HOW)

    def recording(self) -> Recording:
        """All positions at once, in memory."""
        return join(self.shard(index).recording for index in range(len(self.entries)))

    def first(self, positions: int) -> Recording:
        """So many positions, of the first prompts; fewer where there are no more."""
        ends = accumulate(entry.positions for entry in self.entries)
        needed = next((count for count, end in enumerate(ends, 1) if end >= positions), len(self.entries))
        recording = join(self.shard(index).recording for index in range(needed))
        return Recording(recording.target[:positions], recording.draft[:positions])

    @property
    def fingerprint(self) -> str:
        """Tells one capture from another."""
        return sha256("".join(entry.sha256 for entry in self.entries).encode()).hexdigest()[:16]


def is_whole(folder: Path, record: dict[str, Any]) -> bool:
    """Whether the shard of a line is there, as it was when the line was written."""
    try:
        expected_entry = entry(record, folder)
        return is_of(folder / expected_entry.file, expected_entry)
    except (OSError, AdviceError):
        return False


def is_of(path: Path, entry: ShardEntry) -> bool:
    """Whether a file is the one that a line names; one of another size, as a device has, is not read at all."""
    if path.stat().st_size != entry.bytes:
        return False
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest() == entry.sha256


def clear(folder: Path) -> None:
    """Remove what a kill has left half written in a folder."""
    for path in folder.glob(f"{files.NEW_PREFIX}*"):
        path.unlink()


def check_settings(settings: Any, path: Path) -> None:
    """Raise unless a first line is one of a capture."""
    if not isinstance(settings, dict) or settings.get("capture") != FORMAT:
        raise AdviceError(f"{path} is no manifest of a capture; {HOW}")
    read(FIRST, settings, f"the first line of {path}", HOW)


def entry(record: Any, path: Path) -> ShardEntry:
    """A line after the first, checked."""
    return ShardEntry(**read(ENTRY, record, f"{path} has a line that is no shard", HOW))
