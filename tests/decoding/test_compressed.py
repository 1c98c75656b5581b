"""The rule on a draft law's few tokens, expanded, is the rule on the whole vocabulary; a biased expansion is caught."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from steps import Told, config_of, law_error
from torch import Tensor

import multidraft as md
from multidraft.decoding import verify
from multidraft.decoding.targets import NodeTarget
from multidraft.decoding.tree import NodeLaw, TokenTree, Tree, stack_distributions
from multidraft.decoding.walks import WALKS, Verdict
from multidraft.models.prefix_models import TableModel, random_table
from multidraft.sampling.settings import Sampling
from multidraft.verification.scheme import Scheme

EXACT, BIASED = 1e-12, 1e-3
SIZE, SUPPORT = 8, 4
NAMES = [scheme["name"] for scheme in md.schemes()]


def pair(seed: int) -> tuple[Tensor, NodeLaw]:
    """A target over eight tokens, and draft laws over four of them, the likeliest first as they are drawn from."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(3, SIZE, generator=generator, dtype=torch.float64) ** 2
    ids = torch.randperm(SIZE, generator=generator)[:SUPPORT]
    lines = (weights[1:, ids] / weights[1:, ids].sum(-1, keepdim=True)).sort(-1, descending=True).values
    return weights[0] / weights[0].sum(), NodeLaw(ids.numpy(), lines.numpy())


def node(scheme: Scheme, law: NodeLaw, places: list[int]) -> TokenTree:
    """A tree in which this was drawn at the root."""
    tree = TokenTree([0], scheme.law.can_repeat, laws={0: law})
    tree.add(0, scheme.drafts, places, [])
    return tree


def laws_of(
    scheme: Scheme, target: Tensor, law: NodeLaw, weight: float, told: NodeLaw | None = None
) -> list[tuple[Tensor, Tensor]]:
    """For every tuple the whole law of the emitted token: expanded, and of the rule on the whole vocabulary.

    The first one may be `told` another law than that of the drafts.
    """
    drafted, _ = scheme.law.tuples(stack_distributions([law], scheme.drafts)[0])
    dense = np.zeros((*law.probabilities.shape[:-1], SIZE))
    dense[..., law.ids] = law.probabilities
    whole, emissions = stack_distributions([NodeLaw(np.arange(SIZE), dense)], scheme.drafts), []
    for places in drafted.tolist():
        tree = node(scheme, told or law, places)
        query = verify.NodeQuery(tree, 0, weight, NodeTarget(target, (told or law).ids))
        (verdict,) = verify.batched_outcomes(scheme, [query])
        tokens = torch.tensor([tree.tuples[0]])
        outcome = scheme.verify(weight * target[None], whole, tokens)
        emissions.append((emitted(tree, verdict), outcome.law()[0]))
    return emissions


def emitted(tree: TokenTree, verdict: Verdict) -> Tensor:
    """What a verdict gives every token."""
    law = verdict.residual.token_weights().clone()
    for child, accept in verdict.children:
        law[tree.tokens[child]] += accept
    return law


def scheme_of(name: str) -> tuple[Scheme, NodeLaw, Tensor]:
    scheme, (target, law) = md.scheme(name, 2), pair(len(name))
    return (
        scheme,
        law if scheme.law.per_draft_distributions else replace(law, probabilities=law.probabilities[0]),
        target,
    )


@pytest.mark.parametrize("weight", [1.0, 0.4])
@pytest.mark.parametrize("name", NAMES)
def test_the_expanded_outcome_is_that_of_the_whole_problem(name: str, weight: float) -> None:
    """Solvers may find another one of several solutions: theirs is lossless, and accepts as much."""
    scheme, law, target = scheme_of(name)
    pairs, within = laws_of(scheme, target, law, weight), 1e-6 if scheme.entry.small else EXACT
    _, chance = scheme.law.tuples(stack_distributions([law], scheme.drafts)[0])
    if scheme.within or not scheme.entry.small:
        for ours, whole in pairs:
            assert torch.allclose(ours, whole, rtol=0, atol=within)
    else:
        assert torch.allclose(chance @ torch.stack([ours for ours, _ in pairs]), weight * target, rtol=0, atol=within)


def shared(law: NodeLaw, size: int) -> NodeLaw:
    """The mutant: another token is told to have been drafted, too."""
    other = np.setdiff1d(np.arange(size), law.ids)[:1]
    share = np.full((*law.probabilities.shape[:-1], 1), 0.2)  # which leaves the likeliest token the first
    probabilities = np.concatenate([0.8 * law.probabilities, share], -1)
    return replace(law, ids=np.append(law.ids, other), probabilities=probabilities)


LOOKING = [name for name in NAMES if not name.endswith(":naive") and not name.startswith("top:")]  # at the draft law


@pytest.mark.parametrize("name", LOOKING)
def test_other_tokens_with_a_share_of_the_draft_law_are_caught(name: str) -> None:
    scheme, law, target = scheme_of(name)
    _, chance = scheme.law.tuples(stack_distributions([law], scheme.drafts)[0])
    ours = torch.stack([ours for ours, _ in laws_of(scheme, target, law, 1.0, shared(law, SIZE))])
    assert float((chance @ ours - target).abs().max()) > BIASED


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize("name", ["iid:lorenz", "anchored:lorenz", "without_replacement:recursive_rejection"])
def test_a_step_with_a_cut_draft_law_has_the_target_law(name: str, walk: str) -> None:
    """Two tokens of four are drafted."""
    models = [TableModel(random_table(4, 3, seed), 4) for seed in (1, 2)]
    conditional = lambda tokens: models[0].conditional((0, *tokens))  # noqa: E731
    config, policy = config_of(name, "2x1", walk)
    wrong = Told(Tree.parse("2x1"), lambda laws: {node: shared(law, 4) for node, law in laws.items()})
    cut = Sampling(for_draft=Sampling(top_k=2))
    errors = [law_error(*models, [0], (config, trees), conditional, sampling=cut, count=2) for trees in (policy, wrong)]
    assert errors[0] <= EXACT
    assert errors[1] > BIASED
