"""What the draft model has said at the nodes of a level, as far as predictions look at it."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from multidraft.decoding.drafted_tree import DraftTree
from multidraft.numerics.loops import paired
from multidraft.planning.predictions import COUNTS, Predictions, class_of, log_odds, logistic

Node = tuple[int, int]  # a row and a slot


@paired("multidraft.planning.growing_loops")
def two_largest(likely: Float[Tensor, "nodes vocabulary"]) -> Float[Tensor, "nodes 2"]:
    """The largest probability at every node, and the one after it."""
    return likely.topk(2, -1).values


class Sight:
    """The nodes that the draft model has read on a level: their classes, and what it thinks of each of their drafts."""

    def __init__(self, drafts: DraftTree, depth: int):
        self.likely, width = drafts.logits[depth].float().softmax(-1), drafts.logits[depth].shape[1]
        first = sum(level.shape[1] for level in drafts.logits[:depth])
        self.place = {
            (row, slot): row * width + place
            for row, read in enumerate(drafts.read)
            for place, slot in enumerate(read[first : first + width])
            if slot >= 0
        }
        looked = two_largest(self.likely.flatten(0, 1)).tolist()
        self.classes = [class_of(*looked[place]) for place in self.place.values()]

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
        claims, likely = [], self.of_tokens(drafts, children, parents)
        for (row, slot), (_, parent), own in zip(children, parents, likely, strict=True):
            tree = drafts.trees[row]
            curve = predictions.confidence.claimed[COUNTS.index(tree.drafts[parent])]
            claims.append(logistic(curve, log_odds(own), math.log(1 + slot - tree.first_child[parent])))
        return claims

    def of_tokens(self, drafts: DraftTree, children: list[Node], parents: list[Node]) -> list[float]:
        """The draft probability of every child's token."""
        tokens, vocabulary = drafts.tokens.tolist(), self.likely.shape[-1]
        pairs = zip(children, parents, strict=True)
        index = [self.place[parent] * vocabulary + tokens[row][slot] for (row, slot), parent in pairs]
        return self.likely.take(torch.tensor(index, device=self.likely.device)).tolist()
