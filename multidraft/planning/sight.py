"""What the draft model has said at the nodes of a level, as far as predictions look at it."""

import math

import numpy as np

from multidraft.decoding.drafted_tree import DraftTree
from multidraft.planning.predictions import COUNTS, Predictions, class_of, log_odds, logistic

Node = tuple[int, int]  # a row and a slot


class Sight:
    """The nodes that the draft model has read on a level: their classes, and what it thinks of each of their drafts."""

    def __init__(self, predictions: Predictions, drafts: DraftTree, depth: int):
        self.predictions, self.logits = predictions, drafts.logits[depth].float()
        self.total = self.logits.logsumexp(-1)
        first = sum(level.shape[1] for level in drafts.logits[:depth])
        last = first + self.logits.shape[1]
        read = [
            ((row, slot), place) for row, all in enumerate(drafts.read) for place, slot in enumerate(all[first:last])
        ]
        self.place = {node: place for node, place in read if node[1] >= 0}
        self.nodes = list(self.place)
        top = (self.logits.topk(2, -1).values - self.total[..., None]).exp().tolist()
        self.classes = np.array([class_of(*top[row][place]) for (row, _), place in self.place.items()])

    def shared_out(self, drafts: DraftTree, children: list[Node], passing: dict[Node, float]) -> dict[Node, float]:
        """What passes the nodes of the level goes to their children, as each may claim it beside its siblings."""
        parents = [(row, drafts.trees[row].parents[slot]) for row, slot in children]
        claims = self.claims(drafts, children, parents)
        whole = dict.fromkeys(parents, 0.0)
        for parent, claim in zip(parents, claims, strict=True):
            whole[parent] += claim
        lines = zip(children, parents, claims, strict=True)
        return {child: passing[parent] * claim / whole[parent] for child, parent, claim in lines}

    def claims(self, drafts: DraftTree, children: list[Node], parents: list[Node]) -> list[float]:
        """What each child may claim, by its draft probability and its place among the draws."""
        claims = []
        for child, parent, own in zip(children, parents, self.probabilities(drafts, children, parents), strict=True):
            tree = drafts.trees[child[0]]
            curve = self.predictions.claimed[COUNTS.index(tree.drafts[parent[1]])]
            place = 1 + child[1] - tree.first_child[parent[1]]
            claims.append(logistic(curve, log_odds(own), math.log(place)))
        return claims

    def probabilities(self, drafts: DraftTree, children: list[Node], parents: list[Node]) -> list[float]:
        """The draft probability of every child's token."""
        rows, slots = map(list, zip(*children, strict=True))
        places = [self.place[parent] for parent in parents]
        said = self.logits[rows, places, drafts.tokens[rows, slots]] - self.total[rows, places]
        return said.exp().tolist()
