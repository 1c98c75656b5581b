"""Traces as files: one JSON object a line, complete as soon as it is written, with a checksum."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO
from zlib import crc32

from multidraft.errors import AdviceError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FORMAT = 1
HOW = "make one with `multidraft generate --trace FILE`"


class TraceFile:
    """A trace that is written as it comes. Every line brings the text of the tokens that are new in it."""

    def __init__(self, path: Path, tokenizer: "PreTrainedTokenizerBase", settings: dict[str, Any]):
        self.file, self.tokenizer = opened(path), tokenizer
        self.known: set[int] = set()
        self.next_row = self.first_row = 0
        self.write({"record": "trace", "format": FORMAT} | settings)

    def __call__(self, record: dict[str, Any]) -> None:
        """One record; rows are counted on from one generation to the next."""
        if record["record"] == "generation":
            self.first_row, self.next_row = self.next_row, self.next_row + len(record["prompts"])
            record = record | {"first_row": self.first_row}
        elif "row" in record:
            record = record | {"row": self.first_row + record["row"]}
        new = sorted(tokens_in(record) - self.known)
        self.known |= set(new)
        self.write(record | {"pieces": {token: piece(self.tokenizer, token) for token in new}})

    def write(self, record: dict[str, Any]) -> None:
        """One line, at once."""
        self.file.write(json.dumps(record | {"check": checksum(record)}, ensure_ascii=False) + "\n")
        self.file.flush()


def opened(path: Path) -> TextIO:
    """The file, empty."""
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise AdviceError(f"cannot write the trace {path} ({error.strerror}); choose another path") from None


def checksum(record: dict[str, Any]) -> int:
    """CRC-32 of a record as JSON."""
    return crc32(json.dumps(record, ensure_ascii=False).encode(errors="surrogatepass"))


def tokens_in(record: dict[str, Any]) -> set[int]:
    """Every token that a record names."""
    lists = [*record.get("prompts", ()), *record.get("tokens", ())]
    lists += [[node["token"], *node.get("drafted", ())] for node in record.get("nodes", ())]
    lists += [[record["last"]["token"]]] if "last" in record else []
    return {token for tokens in lists for token in tokens}


def piece(tokenizer: "PreTrainedTokenizerBase", token: int) -> str:
    """A token's text, or its name where it is only part of a character."""
    text = str(tokenizer.decode([token]))
    return text if text.strip("\ufffd") else str(tokenizer.convert_ids_to_tokens(token))


def read(path: Path) -> "Reading":
    """A trace file's records, and what is wrong with them."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError:
        raise AdviceError(f"{path} is not a trace; {HOW}") from None
    except OSError as error:
        raise AdviceError(f"cannot read the trace {path} ({error.strerror}); check the path") from None
    return Reading(path, lines)


class Reading:
    """The lines of a trace file; a last one without its end was cut off when the run was killed."""

    def __init__(self, path: Path, lines: list[str]):
        self.cut = bool(lines.pop())
        self.records: list[dict[str, Any]] = []
        self.damaged: list[int] = []  # lines that are not what was written
        for number, line in enumerate(lines, 1):
            record = parsed(line, f"{path} line {number}")
            if record.pop("check", None) != checksum(record):
                self.damaged.append(number)
            self.records.append(record)
        if not self.records or self.records[0]["record"] != "trace" or self.records[0].get("format") != FORMAT:
            raise AdviceError(f"{path} is not a trace of format {FORMAT}; {HOW}")
        self.pieces = {int(t): text for record in self.records for t, text in record.get("pieces", {}).items()}

    def steps(self, row: int | None, step: int | None) -> Iterator[dict[str, Any]]:
        """The steps asked for."""
        for record in self.records:
            if record["record"] == "step" and row in (None, record["row"]) and step in (None, record["step"]):
                yield record


def parsed(line: str, where: str) -> dict[str, Any]:
    """One line's record."""
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise AdviceError(f"{where} is not JSON ({error}); {HOW}") from None
    if not isinstance(record, dict) or "record" not in record:
        raise AdviceError(f"{where} is no record of a trace; {HOW}")
    return record
