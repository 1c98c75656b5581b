"""One step's tree, filled in: the tokens that were drawn, from which distributions, and which of them coincide."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from multidraft.decoding.tree import Tree, span
from multidraft.machine.device import index, placed, waits
from multidraft.sampling.prefixes import Prefixes
from multidraft.verification.distributions import tempered
from multidraft.verification.law import Law
from multidraft.verification.levels import by_turns, draw_level, note
from multidraft.verification.loops import paired
from multidraft.verification.places import Drawing

Slots = list[list[int]]  # for every row; one and the same list where all rows have the same


@dataclass
class DraftTree:
    """Tokens and draft distributions by row and slot.

    The slots of a level stand in the same columns in every row; where the rows' trees differ, a row with a narrower
    level has empty slots at its end. Two slots with the same parent and token are one node: `alias` names the first of
    them (a slot of its own names itself). They count as drawn twice: the node's tuple holds the draws of all its slots.
    """

    trees: list[Tree]  # of every row, as far as it has been decided; one and the same object where all rows have it
    repeats: bool  # whether the law may draw a token twice at a node; otherwise every slot is a node of its own
    tokens: Int[Tensor, "batch slots"]  # -1 where a slot is empty
    alias: Int[Tensor, "batch slots"]
    sees: Bool[Tensor, "batch slots slots"]  # a slot sees its ancestors' nodes and its own
    drafted: Int[Tensor, "batch slots width"]
    read: Slots  # the slots that the draft model has read in this step, in its order; -1 where a row had none
    logits: list[Float[Tensor, "batch _ *drafters vocabulary"]] = field(default_factory=list)  # what it said there
    levels: list[Float[Tensor, "batch _ *drafters vocabulary"]] = field(default_factory=list)  # what is drawn from
    roots: Prefixes | None = None  # the sequences up to the roots, where a processor looks at them

    @classmethod
    def at_root(cls, root: Int[Tensor, " batch"], tree: Tree, law: Law, roots: Prefixes | None = None) -> "DraftTree":
        """A tree in which only the root's token is known; `law` is that of the node with most drafts."""
        batch, size, device = len(root), len(tree), root.device
        repeats = law.repeats and law.drafts > 1
        tokens = torch.full((batch, size), -1, device=device)
        tokens[:, 0] = root
        alias = torch.arange(size, device=device).expand(batch, -1)
        sees = placed(tree.sees, device).expand(batch, -1, -1)
        drafted = torch.full((batch, size, law.width), -1, device=device)
        if repeats:
            alias, sees = alias.clone(), sees.clone()
        return cls([tree] * batch, repeats, tokens, alias, sees, drafted, [[]] * batch, roots=roots)

    @property
    def alike(self) -> bool:
        """Whether all rows have one and the same tree."""
        return all(tree is self.trees[0] for tree in self.trees)

    @property
    def read_whole(self) -> bool:
        """Whether the target reads every slot, so that nobody has to wait for what was drawn before it can."""
        return waits(self.tokens) and not self.repeats and self.alike

    def level(self, depth: int) -> list[dict[int, int]]:
        """Every row's nodes at a depth, with their tokens."""
        tokens, alias = self.tokens.tolist(), self.alias.tolist() if self.repeats else None
        slots = [tree.slots_at(depth) for tree in self.trees]
        level = [{slot: row[slot] for slot in own if row[slot] >= 0} for row, own in zip(tokens, slots, strict=True)]
        if alias is None:
            return level
        pairs = zip(level, alias, strict=True)
        return [{slot: token for slot, token in own.items() if row[slot] == slot} for own, row in pairs]

    def nodes_at(self, row: int, depth: int) -> list[int]:
        """A row's nodes at a depth."""
        return list(self.level(depth)[row])

    def prefixes(self, places: Iterable[tuple[int, int]]) -> Prefixes | None:
        """The sequences that lead to nodes, each a row and a slot, if anybody looks at them."""
        if self.roots is None:
            return None
        paths = ((row, self.trees[row].path(slot)) for row, slot in places)
        return [(root := self.roots[row]) and root.then(self.tokens[row, path]) for row, path in paths]

    def extend(self, trees: list[Tree]) -> None:
        """Make room for the drafts that have been decided on a level."""
        old, new = self.tokens.shape[1], len(trees[0])
        self.trees = trees
        if new == old:
            return
        parents = [tree.parents[old:] for tree in trees]
        parts = self.tokens, self.alias, self.sees, self.drafted
        self.tokens, self.alias, self.sees, self.drafted = widened(*parts, parents)

    @property
    def depths(self) -> Int[Tensor, " slots"]:
        """The depth of every slot."""
        if self.alike:
            return placed(self.trees[0].depth_of_slots, self.tokens.device)
        columns = zip(*(tree.depths for tree in self.trees), strict=True)
        return placed([max(depths) for depths in columns], self.tokens.device)

    def draws_at(self, depth: int) -> Iterator[tuple[slice, Drawing]]:
        """Where something is drawn at a depth, and in which rows, which have one tree."""
        parties = [slice(0, len(self.trees))] if self.alike else [slice(row, row + 1) for row in range(len(self.trees))]
        for rows in parties:
            draws = self.trees[rows.start].draws
            if depth < len(draws):
                yield rows, draws[depth]

    def learn(
        self,
        slots: Slots,
        draft: Float[Tensor, "batch group *drafters vocabulary"],
        logits: Float[Tensor, "batch group *drafters vocabulary"],
    ) -> None:
        """Note the draft distributions at `slots`. Slots of one node get the very same numbers, free of rounding."""
        self.logits.append(logits)
        if self.repeats:
            alias = self.take(self.alias, slots)
            first = (alias[:, :, None] == alias[:, None, :]).to(torch.uint8).argmax(-1)
            draft = draft[torch.arange(len(alias), device=alias.device)[:, None], first]
        self.levels.append(draft)

    def take(self, values: Shaped[Tensor, "batch slots *more"], slots: Slots) -> Shaped[Tensor, "batch group *more"]:
        """What there is at `slots`; where a row has fewer of them than others, anything."""
        if same(slots):
            return values[:, span(slots[0])]
        index = torch.tensor(slots, device=values.device).clamp(min=0)
        return values[torch.arange(len(index), device=values.device)[:, None], index]

    def distribution(self, row: int, slot: int) -> Float[Tensor, "*drafts vocabulary"]:
        """The draft distribution at a slot; where there are several drafters, a slot's drafts come from them by turns.

        It is a distribution a draft then, as the law `distinct` has it.
        """
        level, place = self.place_of(row, slot)
        return by_turns(self.levels[level][row, place], self.trees[row].drafts[slot], 0)

    def distributions(self, rows: slice, slots: list[int]) -> Float[Tensor, "rows group *drafters vocabulary"]:
        """What is drawn from at slots of one level, in rows of one tree."""
        level, places = self.level_of(rows.start, slots)
        return self.levels[level][rows, places]

    def logits_at(self, row: int, slot: int) -> Float[Tensor, "*drafters vocabulary"]:
        """What the draft model said at a slot."""
        level, place = self.place_of(row, slot)
        return self.logits[level][row, place]

    def level_of(self, row: int, slots: list[int]) -> tuple[int, slice | Tensor]:
        """On which level the draft model has read slots, and in which places there."""
        level, places = zip(*(self.place_of(row, slot) for slot in slots), strict=True)
        return level[0], index(places, self.tokens.device)

    def place_of(self, row: int, slot: int) -> tuple[int, int]:
        """On which level the draft model has read a slot, and in which place there."""
        place = self.read[row].index(slot)
        for number, level in enumerate(self.levels):
            if place < level.shape[1]:
                return number, place
            place -= level.shape[1]
        raise IndexError(f"nothing was drawn at slot {slot}")

    def temper(self, rows: slice, slots: list[int], temper: float) -> None:
        """Draw at slots of a level from what is at their temperature times `temper`, which the rule will be told."""
        if temper != 1:
            level, places = self.level_of(rows.start, slots)
            self.levels[level][rows, places] = tempered(self.levels[level][rows, places], temper)

    def draw(self, law: Law, rows: slice, drawing: Drawing, uniform: Float[Tensor, "rows numbers"]) -> None:
        """Draw in these rows, at every slot by the law with its number of drafts."""
        draft = self.distributions(rows, drawing.slots)
        draw_level(drawing, law, draft, uniform, self.tokens[rows], self.drafted[rows])
        self.merge(rows, drawing)

    def fill(self, law: Law, rows: slice, drawing: Drawing, drafted: Int[Tensor, "rows group width"]) -> None:
        """The same with tuples that have been drawn."""
        note(drawing, law, drafted, self.tokens[rows], self.drafted[rows])
        self.merge(rows, drawing)

    def merge(self, rows: slice, drawing: Drawing) -> None:
        """Let every new slot with the parent node and the token of an earlier one be the same node."""
        if not self.repeats:
            return
        children, device = drawing.children, self.tokens.device
        each = torch.tensor(drawing.counts, device=device)
        parents = self.alias[rows, drawing.slots].repeat_interleave(each, 1)
        tokens, slots = self.tokens[rows, children], torch.tensor(children, device=device)
        equal = (tokens[:, :, None] == tokens[:, None, :]) & (parents[:, :, None] == parents[:, None, :])
        alias = slots[equal.to(torch.uint8).argmax(-1)]
        row = torch.arange(rows.start, rows.stop, device=parents.device)[:, None]
        self.alias[rows, children] = alias
        self.sees[rows, children] = self.sees[row, parents]
        self.sees[row, slots, alias] = True

    def select(self, rows: Int[Tensor, " rows"]) -> "DraftTree":
        """The trees of these rows, which may repeat."""
        chosen = rows.tolist()
        return DraftTree(
            [self.trees[row] for row in chosen],
            self.repeats,
            self.tokens[rows],
            self.alias[rows],
            self.sees[rows],
            self.drafted[rows],
            [self.read[row] for row in chosen],
            [level[rows] for level in self.logits],
            [level[rows] for level in self.levels],
            None if self.roots is None else [self.roots[row] for row in chosen],
        )


@paired("multidraft.decoding.widening_loops")
def widened(
    tokens: Int[Tensor, "batch slots"],
    alias: Int[Tensor, "batch slots"],
    sees: Bool[Tensor, "batch slots slots"],
    drafted: Int[Tensor, "batch slots width"],
    parents: Sequence[Sequence[int]],
) -> tuple[
    Int[Tensor, "batch more"], Int[Tensor, "batch more"], Bool[Tensor, "batch more more"], Int[Tensor, "batch more _"]
]:
    """Tokens, nodes, what is seen, and tuples, with new empty slots below these parents; -1 where a row has fewer."""
    batch, old, more = *tokens.shape, len(parents[0])
    above, pad = placed([list(row) for row in parents], tokens.device), torch.nn.functional.pad
    row = torch.arange(batch, device=tokens.device)[:, None]
    slots = torch.arange(old, old + more, device=tokens.device).expand(batch, -1)
    own = torch.eye(more, dtype=torch.bool, device=tokens.device).expand(batch, -1, -1)
    below = torch.cat([sees[row, above.clamp(min=0)] & (above >= 0)[..., None], own], 2)
    sees = torch.cat([pad(sees, (0, more)), below], 1)
    empty, undrawn = pad(tokens, (0, more), value=-1), pad(drafted, (0, 0, 0, more), value=-1)
    return empty, torch.cat([alias, slots], 1), sees, undrawn


def same(lists: Slots) -> bool:
    """Whether all rows have the same slots."""
    return all(slots is lists[0] or slots == lists[0] for slots in lists)
