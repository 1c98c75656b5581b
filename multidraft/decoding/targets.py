"""The target's distribution at every node of a step's trees: how a rule sees it, and how the last token is drawn.

A rule treats all tokens alike that the drafts' law cannot draw: given the tuple, what it leaves of them is proportional
to the target. So it sees a target as its probabilities on the law's ids, and the mass of all other tokens. What is left
is expanded to the vocabulary only where a walk ends.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite
from typing import cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.decoding.state import NodeGroup, RowNode, RunningRow, groups_by_settings
from multidraft.decoding.tree import TokenTree
from multidraft.decoding.walks import Residual, WalkResult
from multidraft.sampling.from_logits import is_greedy, most_likely_tokens, target_distributions
from multidraft.sampling.row_faults import RowFault, upcast
from multidraft.transfer import take, upload
from multidraft.verification.distributions import pick_each

PlaceValues = Float[np.ndarray, " places"]  # numbers at the ids of a draft law, and in the last place of all others
Ids = Int[np.ndarray, " support"]
NO_IDS = np.empty(0, np.int64)  # of a node at which nothing is drafted


class NodeTarget:
    """The target's distribution at a node: the probabilities of all tokens, of which the CPU reads what it needs."""

    def __init__(self, line: Float[Tensor, " vocabulary"], ids: Ids = NO_IDS):
        self.line, self.ids = line, ids  # the ids are the tokens that the draft law can draw there

    @property
    def probabilities(self) -> Float[Tensor, " vocabulary"]:
        """The probability of every token, where the logits are."""
        return self.line

    @cached_property
    def on_cpu(self) -> Float[np.ndarray, " vocabulary"]:
        """The probabilities for NumPy: no copy on a CPU."""
        return self.probabilities.cpu().numpy()

    @cached_property
    def values(self) -> Float[np.ndarray, " support"]:
        """The probabilities of the ids, in float64."""
        return self.on_cpu[self.ids].astype(np.float64)

    @cached_property
    def others(self) -> float:
        """The probability of all other tokens together, summed up when it is first asked for."""
        return max(float(self.on_cpu.sum(dtype=np.float64) - self.values.sum()), 0.0)

    def token(self, residual: Residual | None, number: float) -> int:
        """The token that a number draws of what is left, or of all; -1 where that takes the weights of all tokens."""
        return -1


class LikeliestToken(NodeTarget):
    """The target at temperature 0: whatever is left of it, it is this token. No distribution is made."""

    def __init__(self, likeliest: int, logits: Float[Tensor, " vocabulary"], ids: Ids = NO_IDS):
        super().__init__(logits, ids)
        self.likeliest = likeliest
        self.values = (ids == likeliest).astype(np.float64)
        self.others = 1.0 - float(self.values.sum())

    @property
    def probabilities(self) -> Float[Tensor, " vocabulary"]:
        """One at the token, and zeros."""
        probs = torch.zeros_like(self.line)
        probs[self.likeliest] = 1.0
        return probs

    def token(self, residual: Residual | None, number: float) -> int:
        """The token, whatever the number."""
        return self.likeliest


@dataclass(eq=False)
class NodeResidual(Residual):
    """What a rule leaves of the target at a node: a weight for each of the ids, and a share of all other tokens."""

    target: NodeTarget
    left: Callable[[], PlaceValues]  # weights of the ids, then padding, and in the last place the weight of all others
    total: float | None = None  # their sum, if it is known

    @cached_property
    def places(self) -> PlaceValues:
        """The weights, computed when they are first asked for."""
        return self.left()

    @property
    def mass(self) -> float:
        """Its sum."""
        return float(self.places.sum()) if self.total is None else self.total

    @property
    def on_ids(self) -> Float[np.ndarray, " support"]:
        """The weights at the ids."""
        return self.places[: len(self.target.ids)]

    @property
    def share(self) -> float:
        """What is left of the target at all other tokens, as a part of it."""
        return float(self.places[-1]) / self.target.others if self.target.others > 0 else 0.0

    def token_weights(self) -> Float[Tensor, " vocabulary"]:
        """The weight of every token: the others have their share of the target."""
        line = self.target.probabilities
        ids, on_ids = upload(self.target.ids, line.device), upload(self.on_ids, line.device, torch.float64)
        return line.to(torch.float64, copy=True).mul_(self.share).index_copy_(0, ids, on_ids)


class Targets:
    """Every row's tree with the target's logits at its nodes, and its distributions where a walk has asked for them."""

    def __init__(
        self,
        rows: list[RunningRow],
        trees: list[TokenTree],
        logits: Float[Tensor, "rows nodes vocabulary"] | None,
        faults: dict[int, RowFault] | None = None,
    ):
        self.rows, self.trees, self.logits = rows, trees, logits
        self.faults = {**(faults or {})}  # of rows that cannot go on
        self.known: dict[RowNode, NodeTarget] = {}

    def fetch(self, numbers: list[float]) -> None:
        """Copy what the CPU has to know of all nodes; where the logits are on it there is nothing to copy.

        `numbers` are those that each row's last token is drawn with.
        """

    def lines(self, places: list[RowNode]) -> Float[Tensor, "places vocabulary"]:
        """The target's logits at nodes; rows without logits at their roots have taken part in a pass."""
        root_logits, logits = [self.rows[row].root_logits for row, _ in places], self.logits
        if logits is None or any(line is not None for line in root_logits):
            pairs = zip(places, root_logits, strict=True)
            return torch.stack([cast(Tensor, logits)[place] if line is None else line for place, line in pairs])
        rows, nodes = zip(*places, strict=True)
        if logits.shape[1] == 1 and rows == tuple(range(len(logits))):
            return logits[:, 0]  # no copy: where nothing is drafted in a large batch, it takes as long as the rule
        return logits[rows[0], nodes[0]][None] if len(rows) == 1 else take(logits, rows, nodes)

    def at(self, places: list[RowNode]) -> list[NodeTarget]:
        """The distributions that the output must have at nodes; rows with none are noted as faults."""
        new_places = [place for place in places if place not in self.known]
        for group in groups_by_settings(self.rows, self.trees, new_places):
            self.known |= self.group_targets(group, self.lines(group.places))
        return [self.known[place] for place in places]

    def group_targets(self, group: NodeGroup, lines: Float[Tensor, "places vocabulary"]) -> dict[RowNode, NodeTarget]:
        """The targets at nodes of rows with the same settings: likeliest tokens where these and the logits allow it."""
        if is_greedy(group.sampling):
            lines = upcast(lines)
            tokens = most_likely_tokens(lines).tolist()
            if all(isfinite(float(line[token])) for line, token in zip(lines, tokens, strict=True)):
                found = zip(group.places, tokens, lines, strict=True)
                return {place: LikeliestToken(token, line, self.ids_at(place)) for place, token, line in found}
        probs, faults = target_distributions(lines, group.sampling, group.prefixes)
        for line, fault in faults.items():
            row, node = group.places[line]
            self.faults[row] = fault.at(row, self.rows[row].position + self.trees[row].depths[node] + 1)
        return {place: NodeTarget(line, self.ids_at(place)) for place, line in zip(group.places, probs, strict=True)}

    def log_lines(self, places: list[RowNode]) -> Float[Tensor, "places vocabulary"]:
        """The logarithms of the distributions at nodes; at temperature 0 those of temperature 1."""
        if all(self.rows[row].sampling.temperature for row, _ in places):
            return torch.stack([target.probabilities for target in self.at(places)]).log()
        shown = dict[RowNode, Tensor]()
        for group in groups_by_settings(self.rows, self.trees, places):
            warm = replace(group.sampling, temperature=group.sampling.temperature or 1.0)
            lines, _ = target_distributions(self.lines(group.places), warm, group.prefixes)
            shown |= zip(group.places, lines, strict=True)
        return torch.stack([shown[place] for place in places]).log()

    def ids_at(self, place: RowNode) -> Ids:
        """The tokens that the draft law of a node can draw; none where nothing is drafted."""
        row, node = place
        law = self.trees[row].laws.get(node)
        return NO_IDS if law is None else law.ids

    def last_weights(self, row: int, walk_result: WalkResult) -> Float[Tensor, " vocabulary"]:
        """What a row's last token is drawn from: what a rule left, or for a bonus the target at the leaf."""
        if walk_result.residual is not None:
            return walk_result.residual.token_weights()
        return self.at([(row, walk_result.leaf)])[0].probabilities

    def draw(self, walk_results: list[WalkResult], numbers: list[float]) -> list[int]:
        """The last token of every row; -1 for rows with a fault."""
        leaves = {row: (row, result.leaf) for row, result in enumerate(walk_results) if row not in self.faults}
        targets, tokens = dict(zip(leaves, self.at([*leaves.values()]), strict=True)), [-1] * len(walk_results)
        for row, target in targets.items():
            tokens[row] = target.token(walk_results[row].residual, numbers[row])
        rest = [row for row in targets if tokens[row] < 0]
        weights = [self.last_weights(row, walk_results[row]) for row in rest]
        for row, token in zip(rest, self.pick(weights, [numbers[row] for row in rest]), strict=True):
            # Where nothing but rounding is left: the likeliest
            tokens[row] = token if token >= 0 else int(targets[row].probabilities.argmax())
        return tokens

    def pick(self, weights: list[Float[Tensor, " vocabulary"]], numbers: list[float]) -> list[int]:
        """The token that each number draws of its weights: one by one, because lines side by side would be a copy."""
        return [pick_each(line[None], [number])[0] for line, number in zip(weights, numbers, strict=True)]


def stack_targets(targets: Sequence[NodeTarget]) -> Float[Tensor, "nodes places"]:
    """What a rule sees of targets, the mass of all other tokens in the last place; zeros stand between."""
    lines = np.zeros((len(targets), 1 + max(len(target.ids) for target in targets)))
    for line, target in zip(lines, targets, strict=True):
        line[: len(target.ids)], line[-1] = target.values, target.others
    return torch.from_numpy(lines)
