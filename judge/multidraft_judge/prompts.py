"""Prompts from a file of JSON lines, in the forms in which benchmarks of decoding come."""

import json
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from multidraft_judge.errors import AdviceError, check_text

MAX_BYTES = 2**28
LINE_FORMAT = 'write one object a line, such as {"prompt": "Once upon a time"}'


def read_prompts(file: Path, limit: int | None = None) -> list[str]:
    """The prompts of a file, at most so many; raises AdviceError at a line without one."""
    texts = list(islice(lines_of(file), limit))
    if not texts:
        raise AdviceError(f"prompts file {file} has no prompts; {LINE_FORMAT}")
    return texts


def lines_of(file: Path) -> Iterator[str]:
    """The prompt of each line."""
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_BYTES + 1)
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise AdviceError(f"cannot read the prompts file {str(file)!r} ({error.strerror}); check the path") from None
    except UnicodeDecodeError as error:
        raise AdviceError(f"prompts file {file} is not UTF-8 text ({error.reason}); {LINE_FORMAT}") from None
    if len(content) > MAX_BYTES:
        raise AdviceError(f"prompts file {file} has more than {MAX_BYTES:,} bytes; {LINE_FORMAT}")
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield prompt_in(line, f"{file} line {number}")


def prompt_in(line: str, where: str) -> str:
    """The prompt of a line: its text, or the first of its turns."""
    item: Any = None
    with suppress(ValueError, RecursionError):
        item = json.loads(line)
    prompt = item.get("prompt", first_turn(item.get("turns"))) if isinstance(item, dict) else None
    if not isinstance(prompt, str):
        raise AdviceError(f'{where} has no "prompt" string, and no "turns"; {LINE_FORMAT}')
    check_text(prompt, f"the prompt in {where}")
    return prompt


def first_turn(turns: Any) -> Any:
    """What the user says first: a text, or the content of a message."""
    first = turns[0] if isinstance(turns, list) and turns else None
    return first.get("content") if isinstance(first, dict) else first
