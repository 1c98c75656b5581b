"""Short prompts of three kinds of text, which take turns: prose, code and lists."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FILE = Path(__file__).parent / "prompts" / "kinds.jsonl"
KINDS = ("prose", "code", "lists")


def texts(tokenizer: "PreTrainedTokenizerBase") -> list[list[int]]:
    """All of them, in tokens."""
    return [tokenizer.encode(json.loads(line)["prompt"]) for line in FILE.read_text().splitlines()]
