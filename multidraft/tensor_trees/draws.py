"""Trees of drafts drawn where the distributions are, without a wait: for shapes that are known beforehand."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.decoding.shapes import TreeShape
from multidraft.errors import AdviceError
from multidraft.transfer import upload
from multidraft.verification.distributions import pick

Probs = Float[Tensor, "*nodes vocabulary"]
Children = Int[Tensor, "*nodes count"]
Distributions = Callable[[Int[Tensor, "rows drawn"], Sequence[int]], Float[Tensor, "rows nodes vocabulary"]]
LEAST_NOISE = 2.0**-54  # below the least number that is drawn but 0, whose logarithm is infinite


class DrawnTrees(NamedTuple):
    """Trees as `verify_tree` and `verify_batched` take them, and what their nodes were drawn from."""

    candidates: Int[Tensor, "rows nodes"]
    retrieve_index: Int[Tensor, "rows nodes"]
    retrieve_next_token: Int[Tensor, "rows nodes"]
    retrieve_next_sibling: Int[Tensor, "rows nodes"]
    draft_probs: Float[Tensor, "rows inner vocabulary"]


class FixedTree:
    """A shape whose trees are drawn on a device, again and again."""

    def __init__(self, shape: TreeShape, device: torch.device):
        drafting = [slot for slot, count in enumerate(shape.drafts) if count]
        last = {shape.first_child[slot] + shape.drafts[slot] - 1 for slot in drafting}
        siblings = [slot + 1 if slot and slot not in last else -1 for slot in range(len(shape))]
        self.levels = [[slot for slot in drafting if shape.depths[slot] == depth] for depth in range(shape.depth)]
        self.counts = [[shape.drafts[slot] for slot in level] for level in self.levels]
        self.siblings = tuple(map(max, self.counts))  # what `verify_batched` wants to know
        self.first_child = upload([shape.first_child.get(slot, -1) for slot in range(len(shape))], device, torch.int64)
        self.next_sibling = upload(siblings, device, torch.int64)

    def draw(
        self,
        roots: Int[Tensor, " rows"],
        distributions: Distributions,
        law: str,
        generator: torch.Generator | None = None,
    ) -> DrawnTrees:
        """A tree for every row, level by level, by a law of `draw_children`.

        `distributions(tokens, slots)` gives the draft distributions after these slots (of one depth, in their order),
        where `tokens` are those of all slots drawn so far, slot 0 first. A slot that stays empty counts as token 0
        there, and no link leads to it. Nothing is read on the way; the answer keeps the distributions as they were.
        """
        tokens, is_drawn = roots.long()[:, None], torch.ones_like(roots, dtype=torch.bool)[:, None]
        probs_of_slot: dict[int, Tensor] = {}
        for slots, counts in zip(self.levels, self.counts, strict=True):
            probs = distributions(tokens, slots)
            drawn = draw_children(probs, max(counts), law, generator)  # fewer drafts are the first of more
            children = torch.cat([drawn[:, rank, :count] for rank, count in enumerate(counts)], -1)
            probs_of_slot |= zip(slots, probs.unbind(1), strict=True)
            tokens, is_drawn = torch.cat([tokens, children.clamp(min=0)], -1), torch.cat([is_drawn, children >= 0], -1)
        blank = torch.zeros_like(probs_of_slot[0])  # of leaves between the slots that draw
        laws = torch.stack([probs_of_slot.get(slot, blank) for slot in range(1 + max(probs_of_slot))], 1)
        places = torch.arange(tokens.numel(), device=tokens.device).view(tokens.shape)
        first_child, next_sibling = link_table(self.first_child, is_drawn), link_table(self.next_sibling, is_drawn)
        return DrawnTrees(tokens, places, first_child, next_sibling, laws)


def link_table(table: Int[Tensor, " nodes"], is_drawn: Tensor) -> Int[Tensor, "rows nodes"]:
    """A table of links for every row; those to slots that stay empty are -1."""
    return torch.where(is_drawn.index_select(1, table.clamp(min=0)), table, -1)


def draw_children(probs: Probs, count: int, law: str, generator: torch.Generator | None = None) -> Children:
    """`count` tokens for every node, drawn by `law`: without_replacement, iid or top; -1 where none is left.

    Without replacement, the tokens with the largest q_i / e_i come in this order, for independent e_i ~ Exp(1): the
    Gumbel top-k trick, whose law is that of drawing one after another (Kool et al., 2019). `iid` inverts the cumulative
    sum, `top` takes the most likely tokens, equal ones in any order. Raises AdviceError for another law.
    """
    if law == "iid":
        uniform = torch.rand((*probs.shape[:-1], count), dtype=torch.float64, device=probs.device, generator=generator)
        return pick(probs, uniform)
    if law == "without_replacement":
        noise = torch.rand(probs.shape, dtype=torch.float64, device=probs.device, generator=generator)
        exponential = -torch.log1p(-noise.clamp(min=LEAST_NOISE))  # of 0 a token of probability 0 would come first
        return largest(probs.double().log() - exponential.log(), count)
    if law == "top":
        return largest(probs.log(), count)
    raise AdviceError(f"draws by the law {law!r} are not made here; choose without_replacement, iid or top")


def largest(scores: Float[Tensor, "*nodes vocabulary"], count: int) -> Children:
    """The tokens with the largest scores, -1 for minus infinity and where the vocabulary is smaller."""
    values, tokens = scores.topk(min(count, scores.shape[-1]), -1)
    tokens = tokens.masked_fill(values == -torch.inf, -1)
    return torch.nn.functional.pad(tokens, (0, count - tokens.shape[-1]), value=-1)
