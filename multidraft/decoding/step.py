"""The step: draft a tree, score it in one target pass, verify it, keep the accepted path."""

import torch

from multidraft.decoding.device_targets import targets_of
from multidraft.decoding.draft import Drafted, draft_tree
from multidraft.decoding.policy import TreePolicy
from multidraft.decoding.record import Clock, Decision, Emitted, StepRecord
from multidraft.decoding.state import DecodeConfig, RunningRow, State
from multidraft.decoding.targets import Targets
from multidraft.decoding.tree import TokenTree
from multidraft.decoding.verify import verify
from multidraft.models.reader import recorded_sizes
from multidraft.models.scores import check_whole
from multidraft.transfer import upload


def step(state: State, config: DecodeConfig, policy: TreePolicy) -> tuple[State, StepRecord]:
    """Draft a tree, score it in one target pass, verify it, keep the accepted path: one token at least for every row.

    Go on from the state that it returns. A failure leaves the old one as good as before, or says that it is not: an
    interruption while the caches are written leaves them inconsistent.
    """
    clock, num_sizes = Clock(config.synchronise), recorded_sizes(state.target) + recorded_sizes(state.draft)
    with state.transaction():
        with clock.part("draft"):
            drafted = draft_tree(state, config, policy)
        with clock.part("target"):
            targets = score(state, drafted)
        with clock.part("rule"):
            numbers = [row.random.number() for row in state.rows]  # that draw the rows' last tokens
            targets.fetch(numbers)
            decision = verify(config.scheme, config.walk, targets, numbers)
            emitted = emit(targets, decision)
    with clock.part("cache"):
        following = commit(state, targets, decision)
    record = StepRecord(
        targets=targets,
        events=decision.events,
        walk_results=decision.walk_results,
        emitted=emitted,
        numbers=decision.numbers,
        scored=[row.root_logits is None for row in state.rows],
        draft_passes=drafted.passes,
        seconds=clock.seconds,
        is_first_of_size=recorded_sizes(state.target) + recorded_sizes(state.draft) > num_sizes,
    )
    record.forecast = policy.observe(record)
    return following, record


def score(state: State, drafted: Drafted) -> Targets:
    """The target's logits at every node of all trees, in one pass; rows whose prompts brought them take no part."""
    trees = [tree if row.root_logits is None else None for tree, row in zip(drafted.trees, state.rows, strict=True)]
    logits = None
    if any(trees):
        scores = state.target.forward([t.tokens if t else [] for t in trees], [t.parents if t else [] for t in trees])
        check_whole(scores, state.target.vocabulary, state.target)
        logits = scores.logits
    return targets_of(state.rows, drafted.trees, logits, drafted.faults)


def emit(targets: Targets, decision: Decision) -> list[Emitted]:
    """The accepted tokens and the last one of every row, each with its kind."""
    emitted = [Emitted([], [])] * len(targets.rows)
    for row, (walk_result, last) in enumerate(zip(decision.walk_results, decision.last, strict=True)):
        if row not in targets.faults:
            path = walk_result.path
            kinds = ["accepted"] * len(path) + ["bonus" if walk_result.residual is None else "recovered"]
            emitted[row] = Emitted([*(targets.trees[row].tokens[node] for node in path), last], kinds)
    return emitted


def commit(state: State, targets: Targets, decision: Decision) -> State:
    """Both caches keep the root and the accepted path; what was emitted last is the next root."""
    paths = [[0, *walk_result.path] for walk_result in decision.walk_results]
    if targets.logits is not None:
        states = state.target.commit(
            [path if row.root_logits is None else [] for path, row in zip(paths, state.rows, strict=True)]
        )
        if states is not None and state.draft is not None and state.draft.hidden_layers:
            state.draft.observe(states)
    unread = [list[int]() for _ in paths]
    if state.draft is not None:
        pairs = zip(state.rows, targets.trees, paths, strict=True)
        kept, unread = map(list, zip(*(committed_places(row, tree, path) for row, tree, path in pairs), strict=True))
        if any(kept):
            state.draft.commit(kept)
    rows = [next_row(*parts) for parts in zip(state.rows, targets.trees, paths, decision.last, unread, strict=True)]
    return State(state.target, state.draft, rows, state.steps + (targets.logits is not None))


def committed_places(row: RunningRow, tree: TokenTree, path: list[int]) -> tuple[list[int], list[int]]:
    """The pending places that the draft model keeps, and the tokens that it has not read.

    `path` leads from the root to the last accepted node. The backlog stands before the tree, and is kept.
    """
    kept = [*range(tree.backlog), *(tree.read[node] for node in path if node in tree.read)]
    return kept, row.unread[tree.backlog :] + [tree.tokens[node] for node in path if node not in tree.read]


def next_row(row: RunningRow, tree: TokenTree, path: list[int], last: int, unread: list[int]) -> RunningRow:
    """The row after a step."""
    prefix = row.prefix
    if prefix is not None:
        emitted = [*(tree.tokens[node] for node in path[1:]), last]
        prefix = torch.cat([prefix, upload(emitted, prefix.device, prefix.dtype)])
    place = last, row.position + len(path)
    return RunningRow(row.sampling, row.random, *place, unread, prefix, None, row.num_logprobs, row.longest)
