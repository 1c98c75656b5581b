"""Prompts in whatever form a caller has them, as lists of token ids without padding."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from multidraft.errors import AdviceError
from multidraft.errors.checks import is_integer, shown

FORMS = 'a list of lists, a tensor (batch, length), or what tokenizer(texts, padding=True, return_tensors="pt") returns'


def as_lists(inputs: Any) -> list[list[int]]:
    """Prompts as lists of token ids, without padding; raises AdviceError on what is none."""
    prompts = unpadded(inputs) if isinstance(inputs, Mapping) else [ids_of(row) for row in rows_of(inputs, "prompts")]
    if not prompts:
        raise AdviceError("there are no prompts; pass at least one")
    if not all(prompts):
        raise AdviceError(f"prompt {prompts.index([])} is empty; give it at least one token, such as the start of text")
    return prompts


def unpadded(inputs: Mapping) -> list[list[int]]:
    """A tokenizer's output, without the tokens that its attention mask hides."""
    if inputs.get("input_ids") is None:
        raise AdviceError(f"the prompts have no input_ids; pass token ids as {FORMS}")
    ids = [ids_of(row) for row in rows_of(inputs["input_ids"], "input_ids")]
    if inputs.get("attention_mask") is None:
        return ids
    mask = rows_of(inputs["attention_mask"], "attention_mask")
    if [len(row) for row in mask] != [len(row) for row in ids]:
        raise AdviceError("attention_mask has another shape than input_ids; give it a number for every token")
    if wrong := [number for row in mask for number in row if number not in (0, 1)]:
        raise AdviceError(f"attention_mask holds {shown(wrong[0])}; use 1 for a token that counts and 0 for padding")
    return [[token for token, kept in zip(row, seen, strict=True) if kept] for row, seen in zip(ids, mask, strict=True)]


def rows_of(values: Any, name: str) -> list[list]:
    """The rows of a table of numbers; a single row stands for a table of one."""
    rows = plain(values)
    if not isinstance(rows, Sequence) or isinstance(rows, str | bytes):
        raise AdviceError(f"{name} are {shown(values)}; pass token ids, not text, as {FORMS}")
    rows = [plain(row) for row in rows]
    if rows and not any(isinstance(row, Sequence) for row in rows):
        rows = [rows]
    if wrong := [row for row in rows if not isinstance(row, list | tuple)]:
        raise AdviceError(f"{name} hold {shown(wrong[0])}; pass token ids, not text, as {FORMS}")
    return [list(row) for row in rows]


def plain(values: Any) -> Any:
    """A tensor or an array as lists."""
    if isinstance(values, Tensor) and (values.layout != torch.strided or values.device.type == "meta"):
        raise AdviceError(f"the prompts are a {values.layout} tensor on {values.device}; pass a dense one with values")
    return values.tolist() if isinstance(values, Tensor | np.ndarray) else values


def ids_of(row: list) -> list[int]:
    """The same numbers, if all are whole."""
    if wrong := [token for token in row if type(token) is not int and not is_integer(token)]:
        raise AdviceError(f"a prompt holds {shown(wrong[0])}, which is no token id; pass {FORMS}")
    return [int(token) for token in row]
