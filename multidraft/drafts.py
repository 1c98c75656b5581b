"""One step's tree, filled in: the tokens that were drawn, from which distributions, and which of them coincide."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from multidraft.scheme import Scheme
from multidraft.tree import Tree


@dataclass
class Drafts:
    """Tokens and draft distributions by row and slot.

    Two slots with the same parent and token are one node: `alias` names the first of them (a slot of its own names
    itself). They count as drawn twice: the node's tuple holds the draws of all its slots.
    """

    tree: Tree
    tokens: Int[Tensor, "batch slots"]  # -1 where a slot is empty
    alias: Int[Tensor, "batch slots"]
    sees: Bool[Tensor, "batch slots slots"]  # a slot sees its ancestors' nodes and its own
    drafted: Int[Tensor, "batch slots width"]
    draft: dict[int, Float[Tensor, "batch vocabulary"]] = field(default_factory=dict)  # by drawing slot

    @classmethod
    def at_root(cls, root: Int[Tensor, " batch"], tree: Tree, width: int) -> "Drafts":
        """A tree in which only the root's token is known."""
        batch, size = len(root), len(tree)
        tokens = torch.full((batch, size), -1, device=root.device)
        tokens[:, 0] = root
        slots = torch.arange(size, device=root.device)
        sees = torch.zeros((batch, size, size), dtype=torch.bool, device=root.device)
        sees[:, 0, 0] = True
        return cls(
            tree,
            tokens,
            slots.expand(batch, -1).clone(),
            sees,
            torch.full((batch, size, width), -1, device=root.device),
        )

    def learn(self, slots: list[int], draft: Float[Tensor, "batch group vocabulary"]) -> None:
        """Note the draft distributions at `slots`. Slots of one node get the very same numbers, free of rounding."""
        alias = self.alias[:, slots]
        first = (alias[:, :, None] == alias[:, None, :]).to(torch.uint8).argmax(-1)
        row = torch.arange(len(alias), device=alias.device)[:, None]
        self.draft |= dict(zip(slots, draft[row, first].unbind(1), strict=True))

    def draw(self, scheme: Scheme, slots: list[int], uniform: Float[Tensor, "batch group numbers"]) -> None:
        """Draw at `slots`, which all have as many children as the scheme has drafts."""
        draft = torch.stack([self.draft[slot] for slot in slots], 1)
        self.fill(scheme, slots, scheme.law.draw(draft, uniform))

    def fill(self, scheme: Scheme, slots: list[int], drafted: Int[Tensor, "batch group width"]) -> None:
        """Note the tuples drawn at `slots`, and make children of them; nothing is drawn at an empty slot."""
        law = scheme.law
        drafted = drafted.masked_fill(self.tokens[:, slots, None] < 0, -1)
        self.drafted[:, slots, : law.width] = drafted
        children = [self.tree.first_child[s] + rank for s in slots for rank in range(law.drafts)]
        self.tokens[:, children] = law.children(drafted).flatten(1)
        parents = self.alias[:, slots].repeat_interleave(law.drafts, 1)
        if not law.distinct:
            self.alias[:, children] = self.first_equal(children, parents)
        row = torch.arange(len(parents), device=parents.device)[:, None]
        self.sees[:, children] = self.sees[row, parents]
        self.sees[row, torch.tensor(children, device=parents.device), self.alias[:, children]] = True

    def first_equal(self, children: list[int], parents: Int[Tensor, "batch children"]) -> Int[Tensor, "batch children"]:
        """For every new slot the first slot with the same parent node and the same token."""
        tokens = self.tokens[:, children]
        same = (tokens[:, :, None] == tokens[:, None, :]) & (parents[:, :, None] == parents[:, None, :])
        return torch.tensor(children, device=tokens.device)[same.to(torch.uint8).argmax(-1)]

    def select(self, rows: Int[Tensor, " rows"]) -> "Drafts":
        """The trees of these rows, which may repeat."""
        draft = {slot: distribution[rows] for slot, distribution in self.draft.items()}
        return Drafts(self.tree, self.tokens[rows], self.alias[rows], self.sees[rows], self.drafted[rows], draft)

    def packed(self) -> Int[Tensor, "batch nodes"]:
        """The slots that are nodes of their own, first in every row; shorter rows are filled up with other slots."""
        is_node = (self.tokens >= 0) & (self.alias == torch.arange(len(self.tree), device=self.alias.device))
        order = is_node.logical_not().to(torch.uint8).argsort(dim=-1, stable=True)
        return order[:, : int(is_node.sum(-1).max())]
