"""One step's tree, filled in: the tokens that were drawn, from which distributions, and which of them coincide."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from multidraft.catalogue import Scheme
from multidraft.decoding.tree import Tree, span
from multidraft.drafting import Law
from multidraft.sampling.prefixes import Prefixes


@dataclass
class Drafts:
    """Tokens and draft distributions by row and slot.

    Two slots with the same parent and token are one node: `alias` names the first of them (a slot of its own names
    itself). They count as drawn twice: the node's tuple holds the draws of all its slots.
    """

    tree: Tree
    repeats: bool  # whether the law may draw a token twice at a node; otherwise every slot is a node of its own
    tokens: Int[Tensor, "batch slots"]  # -1 where a slot is empty
    alias: Int[Tensor, "batch slots"]
    sees: Bool[Tensor, "batch slots slots"]  # a slot sees its ancestors' nodes and its own
    drafted: Int[Tensor, "batch slots width"]
    draft: dict[int, Float[Tensor, "batch *drafts vocabulary"]] = field(default_factory=dict)  # by drawing slot
    likelihoods: list[tuple[list[int], Float[Tensor, "batch _"]]] = field(default_factory=list)
    latest: tuple[list[int], Tensor] = ([], torch.empty(0))  # what was learnt last: slots, and their distributions
    roots: Prefixes | None = None  # the sequences up to the roots, where a processor looks at them

    @classmethod
    def at_root(cls, root: Int[Tensor, " batch"], tree: Tree, law: Law, roots: Prefixes | None = None) -> "Drafts":
        """A tree in which only the root's token is known."""
        batch, size, device = len(root), len(tree), root.device
        repeats = law.repeats and max(tree.drafts) > 1
        tokens = torch.full((batch, size), -1, device=device)
        tokens[:, 0] = root
        alias = torch.arange(size, device=device).expand(batch, -1)
        sees = tree.sees.to(device).expand(batch, -1, -1)
        drafted = torch.full((batch, size, law.width), -1, device=device)
        if repeats:
            alias, sees = alias.clone(), sees.clone()
        return cls(tree, repeats, tokens, alias, sees, drafted, roots=roots)

    def prefixes(self, places: Iterable[tuple[int, int]]) -> Prefixes | None:
        """The sequences that lead to nodes, each a row and a slot, if anybody looks at them."""
        if self.roots is None:
            return None
        path = self.tree.path
        return [(root := self.roots[row]) and root.then(self.tokens[row, path(slot)]) for row, slot in places]

    def learn(self, slots: list[int], draft: Float[Tensor, "batch group *drafters vocabulary"]) -> None:
        """Note the draft distributions at `slots`. Slots of one node get the very same numbers, free of rounding.

        Where there are several drafters, a slot's children come from them by turns.
        """
        if self.repeats:
            alias = self.alias[:, span(slots)]
            first = (alias[:, :, None] == alias[:, None, :]).to(torch.uint8).argmax(-1)
            draft = draft[torch.arange(len(alias), device=alias.device)[:, None], first]
        several = draft.ndim == 4
        for slot, distribution in zip(slots, draft.unbind(1), strict=True):
            turns = [j % distribution.shape[1] for j in range(self.tree.drafts[slot] * several)]
            self.draft[slot] = distribution[:, turns] if several else distribution
        self.latest = (slots, draft) if not several else ([], draft)

    def draw(self, scheme: Scheme, slots: list[int], uniform: Float[Tensor, "batch group numbers"]) -> None:
        """Draw at `slots`, which all have as many children as the scheme has drafts."""
        draft = self.distributions(slots)
        self.fill(scheme, slots, draft, scheme.law.draw(draft, uniform))

    def distributions(self, slots: list[int]) -> Float[Tensor, "batch group *drafters vocabulary"]:
        """The draft distributions at `slots`."""
        if slots == self.latest[0]:
            return self.latest[1]
        return torch.stack([self.draft[slot] for slot in slots], 1)

    def fill(self, scheme: Scheme, slots: list[int], draft: Tensor, drafted: Int[Tensor, "batch group width"]) -> None:
        """Note the tuples drawn at `slots`, and make children of them; nothing is drawn at an empty slot."""
        law, here, children = scheme.law, span(slots), self.tree.children(slots)
        if slots != [0]:
            drafted = drafted.masked_fill(self.tokens[:, here, None] < 0, -1)
        self.drafted[:, here, : law.width] = drafted
        tokens, below = law.children(drafted), span(children)
        self.tokens[:, below] = tokens.flatten(1)
        self.likelihoods.append((children, law.overall(draft).gather(-1, tokens.clamp(min=0)).flatten(1)))
        if self.repeats:
            self.merge(self.alias[:, here].repeat_interleave(law.drafts, 1), children)

    def merge(self, parents: Int[Tensor, "batch children"], children: list[int]) -> None:
        """Let every new slot with the parent node and the token of an earlier one be the same node."""
        tokens, slots = self.tokens[:, children], torch.tensor(children, device=parents.device)
        same = (tokens[:, :, None] == tokens[:, None, :]) & (parents[:, :, None] == parents[:, None, :])
        self.alias[:, children] = slots[same.to(torch.uint8).argmax(-1)]
        row = torch.arange(len(parents), device=parents.device)[:, None]
        self.sees[:, children] = self.sees[row, parents]
        self.sees[row, slots, self.alias[:, children]] = True

    def select(self, rows: Int[Tensor, " rows"]) -> "Drafts":
        """The trees of these rows, which may repeat."""
        draft = {slot: distribution[rows] for slot, distribution in self.draft.items()}
        roots = None if self.roots is None else [self.roots[row] for row in rows.tolist()]
        likelihoods = [(slots, likelihood[rows]) for slots, likelihood in self.likelihoods]
        tokens, alias, sees, drafted = self.tokens[rows], self.alias[rows], self.sees[rows], self.drafted[rows]
        return Drafts(self.tree, self.repeats, tokens, alias, sees, drafted, draft, likelihoods, roots=roots)

    def likelihood(self) -> list[dict[int, float]]:
        """For every row the probability of each slot's token under the draft distribution above it."""
        slots = [slot for group, _ in self.likelihoods for slot in group]
        rows = torch.cat([likelihood for _, likelihood in self.likelihoods], 1).tolist()
        return [dict(zip(slots, row, strict=True)) for row in rows]
