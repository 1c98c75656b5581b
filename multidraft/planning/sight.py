"""What the draft model has said at the nodes of a level, as far as predictions look at it."""

import math

import torch

from multidraft.decoding.drafted_tree import DraftTree
from multidraft.planning.predictions import COUNTS, Predictions, class_of, log_odds, logistic

Node = tuple[int, int]  # a row and a slot


class Sight:
    """The nodes that the draft model has read on a level: their classes, and what it thinks of each of their drafts."""

    def __init__(self, drafts: DraftTree, depth: int):
        self.logits = drafts.logits[depth].float()
        first = sum(level.shape[1] for level in drafts.logits[:depth])
        last = first + self.logits.shape[1]
        self.place = {
            (row, slot): place
            for row, read in enumerate(drafts.read)
            for place, slot in enumerate(read[first:last])
            if slot >= 0
        }
        looked = torch.cat([self.logits.topk(2, -1).values, self.logits.logsumexp(-1, keepdim=True)], -1).tolist()
        self.total = {node: looked[node[0]][place][2] for node, place in self.place.items()}
        self.classes = [self.kind(*looked[row][place]) for (row, _), place in self.place.items()]

    @staticmethod
    def kind(first: float, second: float, total: float) -> int:
        """The class of a node, by its two largest logits."""
        return class_of(math.exp(first - total), math.exp(second - total))

    def shares(self, predictions: Predictions, drafts: DraftTree, children: list[Node]) -> list[float]:
        """What each child has of what its parent's drafts claim, beside its siblings."""
        parents = [(row, drafts.trees[row].parents[slot]) for row, slot in children]
        claims, whole = self.claims(predictions, drafts, children, parents), dict.fromkeys(parents, 0.0)
        for parent, claim in zip(parents, claims, strict=True):
            whole[parent] += claim
        return [claim / whole[parent] for parent, claim in zip(parents, claims, strict=True)]

    def claims(
        self, predictions: Predictions, drafts: DraftTree, children: list[Node], parents: list[Node]
    ) -> list[float]:
        """What each child may claim, by its draft probability and its place among the draws."""
        claims = []
        for (row, slot), parent, own in zip(children, parents, self.likely(drafts, children, parents), strict=True):
            tree = drafts.trees[row]
            curve = predictions.confidence.claimed[COUNTS.index(tree.drafts[parent[1]])]
            claims.append(logistic(curve, log_odds(own), math.log(1 + slot - tree.first_child[parent[1]])))
        return claims

    def likely(self, drafts: DraftTree, children: list[Node], parents: list[Node]) -> list[float]:
        """The draft probability of every child's token."""
        rows, slots = map(list, zip(*children, strict=True))
        said = self.logits[rows, [self.place[parent] for parent in parents], drafts.tokens[rows, slots]].tolist()
        return [math.exp(own - self.total[parent]) for own, parent in zip(said, parents, strict=True)]
