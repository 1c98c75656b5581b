"""The walks' part: the exact law of the first tokens of a decode step, over every tree that it can draw."""

from dataclasses import dataclass

import torch
from torch import Tensor

from multidraft.auditing.enumeration import first_tokens, largest_difference, step_law, target_law
from multidraft.decoding.policy import StaticTree
from multidraft.decoding.state import DecodeConfig
from multidraft.decoding.tree import Tree
from multidraft.decoding.walks import Walker
from multidraft.errors import AdviceError
from multidraft.models.base import LanguageModel
from multidraft.models.ensemble import Several
from multidraft.models.table import TableModel, random_table
from multidraft.verification.scheme import Scheme

TREES = ("1x1x1", "2x1", "2x2")
KINDS = {"peaked": 0.3, "flat": 5.0}  # concentration of the Dirichlet law of the conditionals
MOST_TREES = 5_000
PROMPT = (0,)


@dataclass(frozen=True)
class Walked:
    """A walk over a tree: how far the law of the first tokens is from the target's, and how many are accepted."""

    walk: str
    tree: str
    vocabulary: int
    kind: str
    deviation: float
    total_variation: float
    accepted: float

    @property
    def visits(self) -> int:
        """How often a rule's total variation counts in that of the walk: twice a node that draws.

        Replace the sub-walks by exact ones, one after another: each replacement changes the law of what is emitted, the
        failures included, by at most what the rule there does. The failures can be as far off as the tokens.
        """
        return 2 * sum(count > 0 for count in Tree.parse(self.tree).drafts)


def follow_walk(scheme: Scheme, walk: str | Walker, tree: str, kind: str, seed: int) -> Walked:
    """Sum over every tuple at every node, every answer to every coin, and every last token."""
    shape, vocabulary = Tree.parse(tree), vocabulary_for(tree)
    target, draft, other = (random_table(vocabulary, 3, 3 * seed + model, KINDS[kind]) for model in range(3))
    drafter: LanguageModel = TableModel(draft, vocabulary)
    if scheme.law.several:
        drafter = Several([drafter, TableModel(other, vocabulary)])
    step = step_law(
        TableModel(target, vocabulary), drafter, list(PROMPT), DecodeConfig(scheme, StaticTree(shape), walk)
    )

    def conditional(tokens: tuple[int, ...]) -> Tensor:
        return target((*PROMPT, *tokens))

    depth = max(shape.depths)
    ours, right = first_tokens(step.law, conditional, depth), target_law(conditional, depth)
    distance = sum(abs(ours.get(tokens, 0.0) - right.get(tokens, 0.0)) for tokens in ours | right) / 2
    deviation = largest_difference(ours, right)
    if not torch.tensor([distance, deviation]).isfinite().all():
        distance = deviation = float("inf")
    return Walked(str(getattr(walk, "__name__", walk)), tree, vocabulary, kind, deviation, distance, step.accepted)


def vocabulary_for(tree: str) -> int:
    """3 tokens, or 2 where that makes too many trees."""
    drawn = sum(Tree.parse(tree).drafts)
    for vocabulary in (3, 2):
        if vocabulary**drawn <= MOST_TREES:
            return vocabulary
    raise AdviceError(
        f"tree {tree} can be drawn in up to 2^{drawn} ways, too many to enumerate; audit a smaller one, such as 2x2"
    )


def fits(scheme: Scheme, tree: str) -> bool:
    """Whether the decoder would let the scheme draw this tree."""
    try:
        DecodeConfig(scheme, StaticTree(Tree.parse(tree)))
    except AdviceError:
        return False
    return True
