"""What a head drafts along texts whose tokens are known, by depth: what it is taught by, and what it is measured by.

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

from multidraft.models.heads import DFlash, Eagle3, Head, Medusa
from multidraft_research.training.heads.states import Seen
from multidraft_research.training.small_draft import Vocabulary, Wanted


@dataclass(frozen=True)
class Batch:
    """Texts of about one length: tokens, the target's states, and where the law of a token's place is, or -1."""

    tokens: Int[Tensor, "rows length"]
    states: Float[Tensor, "rows length layers width"]
    laws: Int[Tensor, "rows length"]
    wanted: Wanted
    answers: Bool[Tensor, " laws"]  # whether the place is one of the answer
    heats: Float[Tensor, " laws"]  # the temperature that its text was written at

    @classmethod
    def of(cls, seen: Sequence[Seen], vocabulary: Vocabulary, device: torch.device | str = "cpu") -> "Batch":
        """These texts, filled up at their ends, which none of their tokens sees."""
        longest, texts = max(len(seen_text.text.tokens) for seen_text in seen), [seen_text.text for seen_text in seen]
        tokens, laws = torch.zeros(2, len(seen), longest, dtype=torch.long)
        states = torch.zeros(len(seen), longest, *seen[0].states.shape[1:])
        count, laws = 0, laws - 1
        for row, seen_text in enumerate(seen):
            length, places = len(seen_text.text.tokens), torch.from_numpy(seen_text.text.places.astype(np.int64))
            tokens[row, :length] = torch.from_numpy(seen_text.text.tokens.astype(np.int64))
            states[row, :length] = seen_text.states
            laws[row, places] = torch.arange(count, count + len(places))
            count += len(places)
        answers = np.concatenate([text.places >= text.about["answer"] for text in texts])
        heats = np.repeat([float(text.about["temperature"]) for text in texts], [len(text.places) for text in texts])
        known = Wanted.of(texts, vocabulary)
        wanted = Wanted(known.ids.to(device), known.known.to(device), known.probability.to(device))
        answers_and_heats = torch.from_numpy(answers).to(device), torch.from_numpy(heats).float().to(device)
        return cls(tokens.to(device), states.to(device), laws.to(device), wanted, *answers_and_heats)

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


class Drafted(NamedTuple):
    """What a head says at one depth, of places whose laws are known."""

    depth: int
    logits: Float[Tensor, "places drafted"]
    laws: Int[Tensor, " places"]


class Look(NamedTuple):
    """How deep, and at which share of the places where it costs a pass of its own."""

    depth: int
    share: float
    generator: torch.Generator


def drafted(head: Head, batch: Batch, look: Look) -> Iterator[Drafted]:
    """What a head says along texts, depth by depth."""
    if isinstance(head, Medusa):
        return by_medusa(head, batch, look)
    return by_eagle3(head, batch, look) if isinstance(head, Eagle3) else by_dflash(head, batch, look)


def by_eagle3(head: Eagle3, batch: Batch, look: Look) -> Iterator[Drafted]:
    """At slot i the head reads token i + 1 beside the target's state i; a step deeper, token i + 2 beside its own."""
    slots, cache = batch.tokens.shape[1] - 1, DynamicCache()
    all_slots = torch.arange(slots, device=batch.tokens.device).expand(len(batch.tokens), -1)
    before = all_slots[:, None, :] <= all_slots[:, :, None]
    states = head(batch.tokens[:, 1:], head.fuse(batch.features[:, :-1]), all_slots, before[:, None], cache)
    yield said(head, states, batch.law(all_slots + 2), 1)
    if look.depth == 1:
        return
    chosen = choose(batch.law(all_slots + 2) >= 0, look)
    states = states.gather(1, chosen[..., None].expand(-1, -1, states.shape[-1]))
    diagonal = torch.eye(chosen.shape[1], dtype=torch.bool, device=chosen.device).expand(len(chosen), -1, -1)
    mask = before.gather(1, chosen[..., None].expand(-1, -1, slots))
    for step in range(1, look.depth):
        mask = torch.cat([mask, diagonal], 2)
        states = head(batch.token(chosen + step + 1), states, chosen + step, mask[:, None], cache)
        yield said(head, states, batch.law(chosen + step + 2), step + 1)


def by_dflash(head: DFlash, batch: Batch, look: Look) -> Iterator[Drafted]:
    """Blocks that begin at some of the tokens, each of which sees the target's states before it."""
    size, length, cache = head.settings.block, batch.tokens.shape[1], DynamicCache()
    all_places = torch.arange(length, device=batch.tokens.device).expand(len(batch.tokens), -1)
    head.remember(head.fuse(batch.features), all_places, cache)
    first = choose(batch.law(all_places + 1) >= 0, look)
    places = (first[..., None] + torch.arange(size, device=first.device)).flatten(1)
    tokens = torch.full_like(places, head.settings.mask_token)
    tokens[:, ::size] = batch.token(first)
    block = torch.arange(first.shape[1], device=first.device).repeat_interleave(size)
    same = (block[:, None] == block).expand(len(first), -1, -1)
    seen = all_places[:, None, :] < first.repeat_interleave(size, 1)[..., None]
    states = head(tokens, places, torch.cat([seen, same], 2)[:, None], cache).unflatten(1, (-1, size))
    offset = 0 if head.settings.from_anchor else 1  # the place in a block that says what follows the known token
    for depth in range(1, min(look.depth, size - offset) + 1):
        yield said(head, states[:, :, depth - 1 + offset], batch.law(first + depth), depth)


def by_medusa(heads: Medusa, batch: Batch, look: Look) -> Iterator[Drafted]:
    """Each head from the last state of every token, and those beyond the first from some."""
    last = batch.states[:, :-1, -1]
    all_places = torch.arange(last.shape[1], device=last.device).expand(len(last), -1)
    chosen = choose(batch.law(all_places + 2) >= 0, look)
    for depth in range(1, min(look.depth, heads.settings.heads) + 1):
        slots = all_places if depth == 1 else chosen
        laws = batch.law(slots + depth + 1)
        states = last.gather(1, slots[..., None].expand(-1, -1, last.shape[-1]))[laws >= 0]
        yield Drafted(depth, heads[depth - 1](states), laws[laws >= 0])


def said(head: Any, states: Float[Tensor, "rows some hidden"], laws: Int[Tensor, "rows some"], depth: int) -> Drafted:
    """What states say of the places whose laws are known."""
    return Drafted(depth, head.logits(states[laws >= 0]), laws[laws >= 0])


def choose(fit: Bool[Tensor, "rows slots"], look: Look) -> Int[Tensor, "rows some"]:
    """Some slots of each row, in order, those first that are fit for it."""
    numbers = torch.rand(fit.shape, generator=look.generator).to(fit.device) + fit
    count = max(int(look.share * int(fit.sum(1).max())), 1)
    return numbers.topk(count, 1).indices.sort(1).values
