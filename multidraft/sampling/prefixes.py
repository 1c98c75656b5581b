"""What processors may look at: the sequences that lead to the nodes of a tree."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor


@dataclass(frozen=True)
class Prefix:
    """What a processor may look at: the whole sequence that ends at a node, and the prompt that it belongs to."""

    row: int  # of the prompts that it started with, each of which may have processors of its own
    tokens: Int[Tensor, " length"]

    def then(self, tokens: Int[Tensor, " more"]) -> "Prefix":
        """The sequence with more tokens; those of an empty slot (-1), which nobody asks for, become valid ones."""
        return replace(self, tokens=torch.cat([self.tokens, tokens.clamp(min=0)]))


Prefixes = list[Prefix | None]  # None for rows whose settings do not look back


def lengthened(prefixes: Prefixes, tokens: Int[Tensor, " rows"]) -> Prefixes:
    """Every row's sequence with its token."""
    return [prefix and prefix.then(token[None]) for prefix, token in zip(prefixes, tokens, strict=True)]
