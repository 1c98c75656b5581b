"""What a head drafts along texts whose tokens are known, by depth: what it is trained on, and what it is measured by.

Depth 1 is the token after the one that the target has drawn but not read. A head that is asked deeper reads the text's
own tokens on the way there, and beyond depth 1 its own states instead of the target's (EAGLE-3's training-time test).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import DynamicCache

from multidraft.models.heads.networks import AnyHead, DFlash, Eagle3, Medusa
from multidraft_research.training.heads.captured import CapturedText
from multidraft_research.training.small_draft import TargetProbabilities, TokenSet


@dataclass(frozen=True)
class TextBatch:
    """Texts of about one length: tokens, the target's states, and where the law of a token's place is, or -1."""

    tokens: Int[Tensor, "rows length"]
    states: Float[Tensor, "rows length layers width"]
    laws: Int[Tensor, "rows length"]
    target_probs: TargetProbabilities
    answers: Bool[Tensor, " laws"]  # whether the place is one of the answer
    temperatures: Float[Tensor, " laws"]  # the temperature that its text was written at

    @classmethod
    def of(
        cls, captured: Sequence[CapturedText], vocabulary: TokenSet, device: torch.device | str = "cpu"
    ) -> "TextBatch":
        """These texts, filled up at their ends, which none of their tokens sees."""
        texts = [captured_text.text for captured_text in captured]
        longest = max(len(text.tokens) for text in texts)
        tokens, laws = torch.zeros(2, len(captured), longest, dtype=torch.long)
        states = torch.zeros(len(captured), longest, *captured[0].states.shape[1:])
        count, laws = 0, laws - 1
        for row, text in enumerate(texts):
            length, places = len(text.tokens), torch.from_numpy(text.places.astype(np.int64))
            tokens[row, :length] = torch.from_numpy(text.tokens.astype(np.int64))
            states[row, :length] = captured[row].states
            laws[row, places] = torch.arange(count, count + len(places))
            count += len(places)
        answers = np.concatenate([text.places >= text.about["answer"] for text in texts])
        counts = [len(text.places) for text in texts]
        temperatures = np.repeat([float(text.about["temperature"]) for text in texts], counts)
        known = TargetProbabilities.of(texts, vocabulary)
        target_probs = TargetProbabilities(known.ids.to(device), known.known.to(device), known.probability.to(device))
        of_places = torch.from_numpy(answers).to(device), torch.from_numpy(temperatures).float().to(device)
        return cls(tokens.to(device), states.to(device), laws.to(device), target_probs, *of_places)

    @property
    def features(self) -> Float[Tensor, "rows length inputs"]:
        """The states of the layers that were asked for, side by side."""
        return self.states[:, :, :-1].flatten(2)

    def law(self, places: Int[Tensor, "rows some"]) -> Int[Tensor, "rows some"]:
        """Where the laws of places are; -1 for those beyond a text."""
        known = self.laws.gather(1, places.clamp(max=self.laws.shape[1] - 1))
        return known.masked_fill(places >= self.laws.shape[1], -1)

    def token(self, places: Int[Tensor, "rows some"]) -> Int[Tensor, "rows some"]:
        """The tokens at places; beyond a text, whatever."""
        return self.tokens.gather(1, places.clamp(max=self.tokens.shape[1] - 1))


class DraftLogits(NamedTuple):
    """A head's logits at one depth, for places whose laws are known."""

    depth: int
    logits: Float[Tensor, "places drafted"]
    laws: Int[Tensor, " places"]


class Depths(NamedTuple):
    """How deep a head drafts, and at which share of the places where a depth costs a pass of its own."""

    depth: int
    share: float
    generator: torch.Generator


def draft_along(head: AnyHead, batch: TextBatch, depths: Depths) -> Iterator[DraftLogits]:
    """What a head drafts along texts, depth by depth."""
    if isinstance(head, Medusa):
        return medusa_drafts(head, batch, depths)
    return eagle3_drafts(head, batch, depths) if isinstance(head, Eagle3) else dflash_drafts(head, batch, depths)


def eagle3_drafts(head: Eagle3, batch: TextBatch, depths: Depths) -> Iterator[DraftLogits]:
    """At slot i the head reads token i + 1 beside the target's state i; a step deeper, token i + 2 beside its own."""
    slots, cache = batch.tokens.shape[1] - 1, DynamicCache()
    all_slots = torch.arange(slots, device=batch.tokens.device).expand(len(batch.tokens), -1)
    before = all_slots[:, None, :] <= all_slots[:, :, None]
    states = head(batch.tokens[:, 1:], head.fuse(batch.features[:, :-1]), all_slots, before[:, None], cache)
    yield drafts_at(head, states, batch.law(all_slots + 2), 1)
    if depths.depth == 1:
        return
    chosen = choose_slots(batch.law(all_slots + 2) >= 0, depths)
    states = states.gather(1, chosen[..., None].expand(-1, -1, states.shape[-1]))
    diagonal = torch.eye(chosen.shape[1], dtype=torch.bool, device=chosen.device).expand(len(chosen), -1, -1)
    mask = before.gather(1, chosen[..., None].expand(-1, -1, slots))
    for step in range(1, depths.depth):
        mask = torch.cat([mask, diagonal], 2)
        states = head(batch.token(chosen + step + 1), states, chosen + step, mask[:, None], cache)
        yield drafts_at(head, states, batch.law(chosen + step + 2), step + 1)


def dflash_drafts(head: DFlash, batch: TextBatch, depths: Depths) -> Iterator[DraftLogits]:
    """Blocks that begin at some of the tokens, each of which sees the target's states before it."""
    size, length, cache = head.settings.block, batch.tokens.shape[1], DynamicCache()
    all_places = torch.arange(length, device=batch.tokens.device).expand(len(batch.tokens), -1)
    head.remember(head.fuse(batch.features), all_places, cache)
    first = choose_slots(batch.law(all_places + 1) >= 0, depths)
    places = (first[..., None] + torch.arange(size, device=first.device)).flatten(1)
    tokens = torch.full_like(places, head.settings.mask_token)
    tokens[:, ::size] = batch.token(first)
    block = torch.arange(first.shape[1], device=first.device).repeat_interleave(size)
    same = (block[:, None] == block).expand(len(first), -1, -1)
    visible = all_places[:, None, :] < first.repeat_interleave(size, 1)[..., None]
    states = head(tokens, places, torch.cat([visible, same], 2)[:, None], cache).unflatten(1, (-1, size))
    offset = 0 if head.settings.from_anchor else 1  # the place in a block that says what follows the known token
    for depth in range(1, min(depths.depth, size - offset) + 1):
        yield drafts_at(head, states[:, :, depth - 1 + offset], batch.law(first + depth), depth)


def medusa_drafts(heads: Medusa, batch: TextBatch, depths: Depths) -> Iterator[DraftLogits]:
    """Each head from the last state of every token, and those beyond the first from some."""
    last = batch.states[:, :-1, -1]
    all_places = torch.arange(last.shape[1], device=last.device).expand(len(last), -1)
    chosen = choose_slots(batch.law(all_places + 2) >= 0, depths)
    for depth in range(1, min(depths.depth, heads.settings.heads) + 1):
        slots = all_places if depth == 1 else chosen
        laws = batch.law(slots + depth + 1)
        states = last.gather(1, slots[..., None].expand(-1, -1, last.shape[-1]))[laws >= 0]
        yield DraftLogits(depth, heads[depth - 1](states), laws[laws >= 0])


def drafts_at(
    head: Any, states: Float[Tensor, "rows some hidden"], laws: Int[Tensor, "rows some"], depth: int
) -> DraftLogits:
    """The logits of states, for the places whose laws are known."""
    return DraftLogits(depth, head.logits(states[laws >= 0]), laws[laws >= 0])


def choose_slots(fit: Bool[Tensor, "rows slots"], depths: Depths) -> Int[Tensor, "rows some"]:
    """Some slots of each row, in order, those first that are fit for it."""
    numbers = torch.rand(fit.shape, generator=depths.generator).to(fit.device) + fit
    count = max(int(depths.share * int(fit.sum(1).max())), 1)
    return numbers.topk(count, 1).indices.sort(1).values
