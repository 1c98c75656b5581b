"""Prompts with their tasks, from a file of JSON lines in the forms in which benchmarks of decoding come."""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from multidraft_judge.errors import AdviceError, check_text

DEFAULT_FILE = Path(__file__).parent / "prompts.jsonl"
MAX_BYTES = 2**28
LINE_FORMAT = 'write one object a line, such as {"prompt": "Once upon a time"}'
# Where a line has its prompt: ours and HumanEval's; Spec-Bench's, SPEED-Bench's (turns as published, messages as its
# script prepares them), GSM8K's, MATH-500's and MBPP's, which aiperf calls spec_al_*.
TEXT_FIELDS = ("prompt", "turns", "messages", "question", "problem", "text")
TASK_FIELDS = ("task", "category")
PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"  # in SPEED-Bench as it is published


class Prompt(NamedTuple):
    """A prompt, and the task that it belongs to if it is known."""

    text: str
    task: str | None = None


def read_prompts(file: Path, limit: int | None = None) -> list[Prompt]:
    """The prompts of a file, at most so many; raises AdviceError at a line without one."""
    prompts = list(islice(lines_of(file), limit))
    if not prompts:
        raise AdviceError(f"prompts file {file} has no prompts; {LINE_FORMAT}")
    return prompts


def lines_of(file: Path) -> Iterator[Prompt]:
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
            yield prompt_in(line, f"{file} line {number}", file.stem)


def prompt_in(line: str, where: str, file_name: str) -> Prompt:
    """The prompt of a line: its text, or the first of its turns. A line that names no task has the file's name."""
    item: Any = None
    with suppress(ValueError, RecursionError):
        item = json.loads(line)
    fields = item if isinstance(item, dict) else {}
    prompt = first_turn(next((fields[name] for name in TEXT_FIELDS if name in fields), None))
    if not isinstance(prompt, str):
        raise AdviceError(f'{where} has no "prompt" string, and no "turns"; {LINE_FORMAT}')
    check_text(prompt, f"the prompt in {where}")
    if PLACEHOLDER in prompt:
        raise AdviceError(f"{where} is a placeholder of SPEED-Bench; prepare the file by its own script first")
    tasks = [fields[name] for name in TASK_FIELDS if isinstance(fields.get(name), str)]
    return Prompt(prompt, tasks[0] if tasks else file_name)


def first_turn(turns: Any) -> Any:
    """What the user says first: a text, or the content of the first message that is not the system's.

    >>> first_turn([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
    'Hi'
    """
    if not isinstance(turns, list):
        return turns
    turns_without_system = [turn for turn in turns if not (isinstance(turn, dict) and turn.get("role") == "system")]
    first = turns_without_system[0] if turns_without_system else None
    return first.get("content") if isinstance(first, dict) else first


def default_prompts() -> list[Prompt]:
    """The prompts that come with the package."""
    return read_prompts(DEFAULT_FILE)


def digest(texts: Sequence[str]) -> str:
    """A short hash of the prompts."""
    return sha256(json.dumps(list(texts)).encode()).hexdigest()[:16]
