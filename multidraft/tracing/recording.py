"""A record of everything that a generation draws and decides, with the random numbers that it used.

Records are plain dictionaries, for JSON. A "generation" says how its rows are decoded and gives their prompts; then
comes one "step" for every row and target pass; the "end" gives the tokens that were returned (docs/metrics.md).
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from multidraft.decoding.last_tokens import last_weights
from multidraft.decoding.randomness import BLOCK, Randomness
from multidraft.decoding.rows import Row
from multidraft.decoding.scored_tree import ScoredTree
from multidraft.decoding.shapes import Shape
from multidraft.decoding.state import Decision, Plan, State
from multidraft.decoding.step import decide
from multidraft.decoding.tree import Tree
from multidraft.decoding.walks import Ending, Verdict
from multidraft.sampling.settings import Sampling
from multidraft.verification.scheme import Scheme

Tell = Callable[[dict[str, Any]], None]


class Listener(Randomness):
    """One row's random numbers as they would be without it, noted down with what they decide."""

    def __init__(self, generator: torch.Generator, row: int):
        super().__init__(generator)
        self.row, self.step = row, 0
        self.drawn: list[Tensor] = []  # numbers that this step's tuples were drawn with
        self.events: list[dict[str, Any]] = []  # of this step's walk: verdicts and coins
        self.latest = 0.0

    def uniform(self, *shape: int) -> Float[Tensor, "..."]:
        """The numbers that tuples are drawn with."""
        self.drawn.append(super().uniform(*shape))
        return self.drawn[-1]

    def number(self) -> float:
        if not self.block:  # not by `uniform`, which hears of drawn tuples alone
            self.block = super().uniform(BLOCK).tolist()
        self.latest = super().number()
        return self.latest

    def coin(self, probability: float) -> bool:
        yes = super().coin(probability)
        self.events.append({"coin": float(probability), "number": self.latest, "yes": yes})
        return yes

    def hear(self, node: int, weight: float, verdict: Verdict) -> None:
        """Note a verdict that the walk asked for."""
        claims = [list(child) for child in verdict.children]
        self.events.append({"node": node, "weight": float(weight), "claims": claims, "rest": verdict.residual_mass})

    def next_step(self) -> None:
        """Forget what has been told."""
        self.step, self.drawn = self.step + 1, []


class Trace:
    """Tells somebody what happens; its own time is kept apart."""

    looks = True

    def __init__(self, tell: Tell):
        self.tell, self.seconds = tell, 0.0

    def begin(self, state: State, plan: Plan, prompts: list[list[int]]) -> State:
        """Say what is going to happen; from this state on, random numbers are noted down."""
        self.tell({"record": "generation", "first_row": 0} | describe_plan(plan) | {"prompts": prompts})
        return replace(state, random=[Listener(random.generator, row) for row, random in enumerate(state.random)])

    def decide(self, state: State, plan: Plan, tree: ScoredTree) -> Decision:
        """As without a trace, and tell of every row."""
        listeners = [random for random in state.random if isinstance(random, Listener)]
        for listener in listeners:
            listener.events = []  # of a step that was interrupted

        def hear(row: int, node: int, weight: float, verdict: Verdict) -> None:
            listeners[row].hear(node, weight, verdict)

        decision = decide(state, plan, tree, hear)
        start = time.perf_counter()
        for row, listener in enumerate(listeners):
            self.tell(describe_step(tree, row, listener, decision, plan.scheme))
            listener.next_step()
        self.seconds += time.perf_counter() - start
        return decision

    def end(self, tokens: list[list[int]]) -> None:
        """Say what is returned: what the last step had to cut is missing from it."""
        self.tell({"record": "end", "tokens": tokens})


def describe_plan(plan: Plan) -> dict[str, Any]:
    """How rows are decoded."""
    law = plan.scheme.law
    settings = {name: getattr(law, name) for name in law.settings()} | dict(plan.scheme.settings)
    return {
        "scheme": plan.scheme.name,
        "settings": {name: plain(value) for name, value in settings.items()},
        "tree": describe_shape(plan.tree),
        "walk": plain(plan.walk),
        "sampling": describe_sampling(plan.sampling),
        "draft_sampling": describe_sampling(plan.sampling.for_draft or plan.sampling),
    }


def describe_shape(tree: Tree | Shape) -> object:
    """A fixed tree as it is; of another shape, what it looks like."""
    return {"parents": list(tree.parents), "drafts": list(tree.drafts)} if isinstance(tree, Tree) else repr(tree)


def describe_sampling(sampling: Sampling) -> dict[str, Any]:
    """How logits become distributions; processors by their names."""
    lists = [listed for part in (sampling.before, sampling.after) if part is not None for listed in part.lists]
    names = dict.fromkeys(type(processor).__name__ for listed in lists for processor in listed)
    numbers = {name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p")}
    return numbers | {"processors": list(names)}


def plain(value: object) -> object:
    """A value that JSON has; of a function, what it looks like."""
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def describe_step(tree: ScoredTree, row: int, listener: Listener, decision: Decision, scheme: Scheme) -> dict[str, Any]:
    """One row's tree, its walk, and what it emits."""
    return {
        "record": "step",
        "row": listener.row,
        "step": listener.step,
        "nodes": describe_nodes(tree, row, listener.drawn, scheme),
        "walk": listener.events,
        "path": decision.endings[row].path,
        "last": describe_last(tree, row, decision.endings[row], decision.last[row], decision.numbers[row]),
    }


def describe_nodes(tree: ScoredTree, row: int, drawn: list[Tensor], scheme: Scheme) -> list[dict[str, Any]]:
    """Every node: its token, the node above, and what was drafted at it."""
    line = tree.rows[row]
    above = {child: node for node, children in line.children.items() for child in children.values()}
    numbers = numbers_by_slot(line, drawn, scheme)
    described = []
    for node in (0, *sorted(above)):
        drafts = describe_drafts(tree, row, node, numbers, scheme) if line.has_drafts(node) else {}
        described.append({"node": node, "above": above.get(node, -1), "token": line.token[node]} | drafts)
    return described


def numbers_by_slot(row: Row, drawn: list[Tensor], scheme: Scheme) -> dict[int, list[float]]:
    """The numbers that every slot drew with: the latest ones, as an interrupted step may have left others."""
    numbers, by_slot = [number for level in drawn for number in level[0].tolist()], dict[int, list[float]]()
    for slot in reversed([slot for drawing in row.tree.draws for slot in drawing.slots]):
        left = len(numbers) - scheme.with_drafts(row.tree.drafts[slot]).law.numbers
        numbers, by_slot[slot] = numbers[:left], numbers[left:]
    return by_slot


def describe_drafts(
    tree: ScoredTree, row: int, node: int, numbers: dict[int, list[float]], scheme: Scheme
) -> dict[str, Any]:
    """A node's tuple without its empty positions, its probabilities, and the numbers that every slot drew with."""
    line = tree.rows[row]
    tuples = tree.tuples([row], (node,), scheme.with_drafts(line.count(node)).law)[0]
    position = (tuples >= 0).nonzero()[:, 0]
    drafted = tuples[position]
    target, draft = tree.target([row], (node,))[0], tree.draft([row], (node,))[0]
    if draft.ndim == 2:  # several drafters, by turns
        draft = draft[position % len(draft), drafted]
    else:
        draft = draft[drafted]
    return {
        "drafted": drafted.tolist(),
        "draft": draft.tolist(),
        "target": target[drafted].tolist(),
        "numbers": [numbers[slot] for slot in line.drew[node]],
    }


def describe_last(tree: ScoredTree, row: int, ending: Ending, token: int, number: float) -> dict[str, Any]:
    """The last token: whence it came, and its share of the weights, from where to where of their sum."""
    cumulative = last_weights(tree, row, ending).cumsum(-1, dtype=torch.float64)
    start = float(cumulative[token - 1]) if token > 0 else 0.0
    return {
        "token": token,
        "kind": "bonus" if ending.weights is None else "corrected",
        "number": number,
        "from": start,
        "to": float(cumulative[token]),
        "of": float(cumulative[-1]),
    }
