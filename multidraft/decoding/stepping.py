"""The step: draft a tree, score it in one target pass, walk it, keep what was accepted."""

import torch
from jaxtyping import Float
from torch import Tensor

from multidraft.decoding.drafted_tree import Drafts
from multidraft.decoding.logprobs import look_up
from multidraft.decoding.metrics import Info
from multidraft.decoding.nodes import Nodes, Row, rows_of
from multidraft.decoding.randomness import Randomness
from multidraft.decoding.state import Emitted, Plan, State, claim, padded, release
from multidraft.decoding.tree import span
from multidraft.decoding.walks import Ending, Verdicts, drive, walker
from multidraft.numerics.distributions import pick
from multidraft.sampling.settings import together


def step(state: State, plan: Plan, info: Info) -> tuple[State, list[Emitted]]:
    """Draft, score, walk, keep: one target pass, and at least one new token for every row.

    Go on from the state that it returns. If it is interrupted, the old state is as good as before, or says that it is
    not: an interruption while the caches are written leaves them of two minds.
    """
    claim(state)
    try:
        nodes, forwarded, endings, last = find(state, plan, info)
    except BaseException:
        release(state)
        raise
    with info.watch.part("cache"):
        state = keep(state, nodes, forwarded, endings, last)
    info.count(nodes, endings)
    if plan.measure:
        with info.watch.part("measuring"):
            info.measure(plan.scheme, nodes)
    emitted = [emit(nodes.rows[row].token, ending, last[row]) for row, ending in enumerate(endings)]
    if plan.logprobs is not None:
        for row, (new, ending) in enumerate(zip(emitted, endings, strict=True)):
            new.logprobs.extend(look_up(nodes, row, ending, last[row], plan.logprobs))
    return state, emitted


def find(state: State, plan: Plan, info: Info) -> tuple[Nodes, list[int], list[Ending], list[int]]:
    """The scored tree, the slots that the draft model has read, where each row's walk ends, and its last token."""
    with info.watch.part("draft"):
        drafts, forwarded = grow(state, plan)
    with info.watch.part("target"):
        rows = rows_of(drafts)
        logits = score(state, drafts, rows)
    with info.watch.part("rule"):
        nodes = Nodes(plan.scheme, together(state.sampling), drafts, rows, logits)
        endings, last = decide(state, plan, nodes) if plan.trace is None else plan.trace.decide(state, plan, nodes)
    return nodes, forwarded, endings, last


def grow(state: State, plan: Plan) -> tuple[Drafts, list[int]]:
    """Draft the tree level by level, each level in one forward pass of the draft model; also the slots it has read."""
    drafts, forwarded = bare_root(state, plan), list[int]()
    for depth, groups in plan.tree.drawing:
        learn_level(state, plan, drafts, forwarded, depth)
        for count, group in groups:
            scheme = plan.scheme.with_drafts(count)
            uniform = torch.stack([random.uniform(len(group), scheme.law.numbers) for random in state.random])
            drafts.draw(scheme, list(group), uniform.to(state.root.device))
    return drafts, forwarded


def bare_root(state: State, plan: Plan) -> Drafts:
    """The tree before anything is drawn."""
    widest = max(plan.tree.drafts)
    law = plan.scheme.with_drafts(widest).law if widest else plan.scheme.law
    return Drafts.at_root(state.root, plan.tree, law, state.prefixes)


def learn_level(state: State, plan: Plan, drafts: Drafts, forwarded: list[int], depth: int) -> None:
    """Let the draft model read one level's drawing slots (they are added to `forwarded`), and note what it says."""
    slots = [slot for _, group in plan.tree.drawing[depth][1] for slot in group]
    forwarded += slots
    logits = forward_draft(state, drafts, slots, forwarded, depth)
    prefixes = drafts.prefixes((row, slot) for row in range(len(state.root)) for slot in slots)
    drafts.learn(slots, together(state.sampling).draft(logits, max(plan.tree.drafts), prefixes))


def forward_draft(state: State, drafts: Drafts, slots: list[int], forwarded: list[int], depth: int) -> Tensor:
    """The draft model's logits at one level. The first level also brings the token that it has not seen yet."""
    tokens, visible = drafts.tokens[:, span(slots)].clamp(min=0), drafts.sees[:, span(slots)][:, :, span(forwarded)]
    position = (state.position + depth)[:, None].expand(-1, len(slots))
    assert state.draft is not None  # a tree that draws comes with a draft model
    if max(state.missing) < 0:
        return state.draft.forward(tokens, position, visible)
    missing = torch.tensor(state.missing, device=tokens.device)[:, None]
    visible = torch.cat([(missing >= 0)[:, None].expand(-1, len(slots), -1), visible], -1)
    if depth > 0:
        return state.draft.forward(tokens, position, visible)
    alone = torch.tensor([True, False], device=tokens.device).expand(len(tokens), 1, 2)
    position = torch.cat([(position - 1).clamp(min=0), position], 1)
    tokens, visible = torch.cat([missing.clamp(min=0), tokens], 1), torch.cat([alone, visible], 1)
    return state.draft.forward(tokens, position, visible)[:, 1:]


def score(state: State, drafts: Drafts, rows: list[Row]) -> Float[Tensor, "batch nodes vocabulary"]:
    """The target's logits at every node of the tree, in one forward pass; slots that are no nodes are left out."""
    tokens, sees, depths = drafts.tokens, drafts.sees, drafts.tree.depth_of_slots.to(state.root.device)
    if any(len(row.slots) < len(drafts.tree) for row in rows):
        widest = max(len(row.slots) for row in rows)
        packed = torch.tensor([(row.slots + row.spare)[:widest] for row in rows], device=tokens.device)
        line = torch.arange(len(rows), device=tokens.device)[:, None]
        tokens, sees, depths = tokens[line, packed].clamp(min=0), sees[line, packed], depths[packed]
        sees = sees.gather(-1, packed[:, None].expand(-1, widest, -1))
    return state.target.forward(tokens, state.position[:, None] + depths, sees)


def decide(state: State, plan: Plan, nodes: Nodes, verdicts: Verdicts | None = None) -> tuple[list[Ending], list[int]]:
    """Where the walk of every row ends, and its one more token; `verdicts` stands in for the rule of `nodes`."""
    start = walker(plan.walk)
    walks = [start(0, 1.0, row.has_drafts, random.coin) for row, random in zip(nodes.rows, state.random, strict=True)]
    endings = drive(walks, verdicts or nodes.verdicts)
    return endings, [draw_last(state.random[row], nodes, row, ending) for row, ending in enumerate(endings)]


def draw_last(random: Randomness, nodes: Nodes, row: int, ending: Ending) -> int:
    """The one more token."""
    weights = last_weights(nodes, row, ending)
    return int(pick(weights, torch.tensor([random.number()], dtype=torch.float64, device=weights.device)))


def last_weights(nodes: Nodes, row: int, ending: Ending) -> Float[Tensor, " vocabulary"]:
    """What it is drawn from: the residual where the walk stopped, or for a bonus the target at the leaf."""
    if ending.weights is not None:
        return ending.weights()
    return nodes.target([row], (ending.leaf,))[0]


def keep(state: State, nodes: Nodes, forwarded: list[int], endings: list[Ending], last: list[int]) -> State:
    """Both caches keep the root and the accepted path; what was emitted last is the next root."""
    device = state.root.device
    paths = zip(nodes.rows, endings, strict=True)
    state.target.keep(padded([[row.place[slot] for slot in (0, *ending.path)] for row, ending in paths]))
    missing = [-1] * len(last)
    if state.draft is not None:
        offset = int(max(state.missing) >= 0)
        pending = {slot: index + offset for index, slot in enumerate(forwarded)}
        chosen = []
        for row, ending in enumerate(endings):
            read = [nodes.rows[row].drawing[slot][0] for slot in (0, *ending.path) if nodes.rows[row].has_drafts(slot)]
            chosen.append([0] * (state.missing[row] >= 0) + [pending[slot] for slot in read])
            if len(read) <= len(ending.path):
                missing[row] = nodes.rows[row].token[ending.path[-1]]
        state.draft.keep(padded(chosen))
    moved = torch.tensor([1 + len(ending.path) for ending in endings], device=device)
    position, root, prefixes = state.position + moved, torch.tensor(last, device=device), None
    if state.prefixes is not None:
        leaves = nodes.drafts.prefixes((row, ending.leaf) for row, ending in enumerate(endings))
        prefixes = [leaf and leaf.then(new[None]) for leaf, new in zip(leaves or [], root, strict=True)]
    return State(state.target, state.draft, state.random, root, position, missing, state.sampling, prefixes)


def emit(token: list[int], ending: Ending, last: int) -> Emitted:
    """The accepted tokens and the last one, each with its kind."""
    kind = "bonus" if ending.weights is None else "corrected"
    return Emitted([token[slot] for slot in ending.path] + [last], ["accepted"] * len(ending.path) + [kind])
