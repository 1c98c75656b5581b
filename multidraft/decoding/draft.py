"""Drafting: the tree grows level by level, each level in one forward pass of the draft model.

What the draft model has not read yet is a chain above the tree: the root, and above it the tokens before, of steps that
ended on a leaf which only the target had read, or that drafted nothing.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from multidraft.decoding.branches import level, takes_numbers, taking_numbers
from multidraft.decoding.drafted_tree import DraftTree, Slots, same
from multidraft.decoding.rows import Row
from multidraft.decoding.state import Plan, State, padded
from multidraft.machine.device import placed
from multidraft.sampling.settings import settings_of_rows
from multidraft.verification.levels import numbers_of
from multidraft.verification.loops import paired


@paired("multidraft.decoding.draft_loops", takes_numbers)
def grow(state: State, plan: Plan) -> DraftTree:
    """Draft the tree: let the shape decide on each level, then draw there."""
    drafts, depth, law, device = bare_root(state, plan), 0, plan.scheme.law, state.root.device
    while read_level(state, plan, drafts, depth):
        for rows, drawing in drafts.draws_at(depth):
            numbers = numbers_of(law, drawing.counts)
            uniform = [random.uniform(1, numbers) for random in state.random[rows]]
            drafts.draw(law, rows, drawing, placed(torch.cat(uniform) if len(uniform) > 1 else uniform[0], device))
        depth += 1
    return drafts


def bare_root(state: State, plan: Plan) -> DraftTree:
    """The tree before anything is drawn."""
    most = plan.shape.most_drafts
    law = plan.scheme.with_drafts(most).law if most else plan.scheme.law
    return DraftTree.at_root(state.root, plan.shape.seed(len(state.root)), law, state.prefixes)


def read_level(state: State, plan: Plan, drafts: DraftTree, depth: int) -> bool:
    """Let the draft model read what may be drawn at on a level, and the shape decide; False where growth has ended."""
    slots = plan.shape.reads(drafts, depth)
    if not any(slots):
        return False
    slots = filled_up(slots)
    logits = forward(state, drafts, slots, depth)
    places = [(row, max(slot, 0)) for row, group in enumerate(slots) for slot in group]
    distributions = settings_of_rows(state.sampling).draft(logits, plan.shape.most_drafts, drafts.prefixes(places))
    drafts.learn(slots, distributions, logits)
    drafts.extend(plan.shape.extended(drafts, depth))
    for rows, drawing in drafts.draws_at(depth):
        for count in set(drawing.counts):
            drafts.temper(rows, drawing.with_count(count), plan.shape.temper(count))
    return True


def forward(state: State, drafts: DraftTree, slots: Slots, depth: int) -> Float[Tensor, "batch group ..."]:
    """The draft model's logits at slots of a level; on the first one it also reads the chain above the tree."""
    assert state.draft is not None  # a tree that draws comes with a draft model
    if (draft := taking_numbers(state.draft, drafts)) is not None:
        new = level(drafts.trees[0], drafts.tokens[0].tolist(), drafts.read[0], slots[0], state)
        drafts.read = joined(drafts.read, slots)
        return torch.from_numpy(draft.read(new, True if depth else "last"))[None]
    tokens, visible = drafts.take(drafts.tokens, slots).clamp(min=0), sight(drafts, slots)
    position = (state.position + depth)[:, None].expand(-1, tokens.shape[1])
    if not any(state.unread):
        return state.draft.forward(tokens, position, visible)
    chain = placed(padded(state.unread, left=True), tokens.device)
    known, length = chain >= 0, chain.shape[1]
    visible = torch.cat([known[:, None].expand(-1, tokens.shape[1], -1), visible], -1)
    if depth > 0:
        return state.draft.forward(tokens, position, visible)
    above = torch.ones(length, length + tokens.shape[1], dtype=torch.bool, device=tokens.device).tril()
    own = torch.eye(*above.shape, dtype=torch.bool, device=tokens.device)
    known = torch.nn.functional.pad(known, (0, tokens.shape[1]))
    visible = torch.cat([above & known[:, None] | own, visible], 1)
    before = state.position[:, None] - torch.arange(length, 0, -1, device=tokens.device)
    tokens, position = torch.cat([chain, tokens], 1).clamp(min=0), torch.cat([before.clamp(min=0), position], 1)
    return state.draft.forward(tokens, position, visible)[:, length:]


def sight(drafts: DraftTree, slots: Slots) -> Bool[Tensor, "batch group read"]:
    """Which of all slots that have been read the new ones see; they count as read from now on."""
    drafts.read = joined(drafts.read, slots)
    visible = drafts.take(drafts.sees, slots)
    if same(drafts.read):
        return drafts.take(visible.transpose(1, 2), drafts.read).transpose(1, 2)
    index = torch.tensor(drafts.read, device=visible.device)
    visible = visible.gather(-1, index.clamp(min=0)[:, None].expand(-1, visible.shape[1], -1))
    own = torch.eye(visible.shape[1], dtype=torch.bool, device=visible.device)  # an empty place sees itself alone
    visible &= (index >= 0)[:, None]
    visible[..., -len(own) :] |= own
    return visible


def joined(first: Slots, second: Slots) -> Slots:
    """Two lists for each row, one after the other; shared where both are."""
    if same(first) and same(second):
        return [first[0] + second[0]] * len(first)
    return [one + other for one, other in zip(first, second, strict=True)]


def filled_up(slots: Slots) -> Slots:
    """All as long as the longest, with -1."""
    if same(slots):
        return slots
    longest = max(map(len, slots))
    return [group + [-1] * (longest - len(group)) for group in slots]


def kept_of(state: State, drafts: DraftTree, rows: list[Row], paths: Slots) -> tuple[Slots, Slots]:
    """By row, the pending places that the draft model keeps, and the tokens that it has not read.

    `paths` lead from the root to the last accepted slots. The chain above the tree comes first, and is kept.
    """
    length, kept, unread = max(map(len, state.unread)), [], []
    for row, known, read, path in zip(rows, state.unread, drafts.read, paths, strict=True):
        place: dict[int, int] = {}
        for index, slot in enumerate(read, length):
            if slot >= 0:
                place.setdefault(row.node[slot], index)
        chain = list(range(length - len(known), length)) if read else []
        kept.append(chain + [place[slot] for slot in path if slot in place])
        unread.append(known * (not read) + [row.token[slot] for slot in path if slot not in place])
    return kept, unread
