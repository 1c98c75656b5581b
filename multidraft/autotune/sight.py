"""What the draft model has said at the nodes of a level, as far as predictions look at it."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from multidraft.autotune.predictions import COUNTS, Predictions, class_of, log_odds, logistic
from multidraft.decoding.drafted_tree import DraftTree
from multidraft.decoding.tree import Tree
from multidraft.machine.device import numbers_at
from multidraft.verification.loops import paired

Node = tuple[int, int]  # a row and a slot


@paired("multidraft.autotune.growing_loops")
def looked_at(logits: Float[Tensor, "nodes vocabulary"]) -> list[list[float]]:
    """At every node the two largest probabilities, and the logarithm of what exponentials of logits sum up to."""
    total = logits.logsumexp(-1, keepdim=True)
    return torch.cat([(logits.topk(2, -1).values - total).exp(), total], -1).tolist()


class Sight:
    """The nodes that the draft model has read on a level: their classes, and what it thinks of each of their drafts."""

    def __init__(self, drafts: DraftTree, depth: int):
        self.logits, width = drafts.logits[depth].float().flatten(0, 1), drafts.logits[depth].shape[1]
        first = sum([level.shape[1] for level in drafts.logits[:depth]])
        self.place = {
            (row, slot): row * width + place
            for row, read in enumerate(drafts.read)
            for place, slot in enumerate(read[first : first + width])
            if slot >= 0
        }
        self.seen = looked_at(self.logits)
        self.classes = [class_of(*self.seen[place][:2]) for place in self.place.values()]

    def shares(self, predictions: Predictions, trees: list[Tree], children: dict[Node, int]) -> list[float]:
        """What each child has of what its parent's drafts claim, beside its siblings; given with its token."""
        parents = [(row, trees[row].parents[slot]) for row, slot in children]
        whole, claims, likely = dict.fromkeys(parents, 0.0), [], self.of_tokens(list(children.values()), parents)
        for (row, slot), parent, own in zip(children, parents, likely, strict=True):
            tree, above = trees[row], parent[1]
            curve = predictions.confidence.claimed[COUNTS.index(tree.drafts[above])]
            claims.append(logistic(curve, log_odds(own), math.log(1 + slot - tree.first_child[above])))
            whole[parent] += claims[-1]
        return [claim / whole[parent] for parent, claim in zip(parents, claims, strict=True)]

    def of_tokens(self, tokens: list[int], parents: list[Node]) -> list[float]:
        """The draft probability of every child's token."""
        places, vocabulary = [self.place[parent] for parent in parents], self.logits.shape[-1]
        logits = numbers_at(
            self.logits, [place * vocabulary + token for place, token in zip(places, tokens, strict=True)]
        )
        return [math.exp(own - self.seen[place][2]) for own, place in zip(logits, places, strict=True)]
