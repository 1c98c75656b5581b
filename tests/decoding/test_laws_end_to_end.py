"""Lossless end to end: every way that a step can go sums to the target's law, and samples of runs agree."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from multidraft_research.audits.mutants import MUTANTS
from mutants import rule_of
from scipy.stats import chi2
from steps import Way, law_of_steps
from torch import Tensor

import multidraft as md
from multidraft.auditing.enumeration import (
    SequenceLaw,
    StepLaw,
    first_state,
    first_tokens,
    largest_difference,
    step_law,
    target_law,
)
from multidraft.decoding.policy import StaticTree
from multidraft.decoding.state import DecodeConfig, Randomness, RunningRow
from multidraft.decoding.targets import Targets
from multidraft.decoding.tree import TokenTree, Tree
from multidraft.decoding.walks import WALKS, Child, Residual, Verdict, WalkResult, commit
from multidraft.models.prefix_models import TableModel, random_table
from multidraft.sampling.from_logits import target_distributions
from multidraft.sampling.settings import Sampling

Table = Callable[[tuple[int, ...]], Tensor]
EXACT = 1e-12
BIASED = 1e-3  # a mutant must be off by more
PROMPT = [0]

EVERY = {scheme["name"]: md.scheme(scheme["name"]) for scheme in md.schemes() if not scheme["small"]}
for name in ("iid:lorenz", "anchored:lorenz", "without_replacement:recursive_rejection"):
    EVERY[f"{name}, sometimes nothing"] = md.scheme(name, draft_probability=0.7)
NAMES = [name for name in EVERY if not name.startswith("distinct:")]  # a tree's node has one draft distribution
IRREGULAR, UNEVEN = "[[0],[1],[0,0],[0,1],[0,0,0]]", "[[0],[1],[0,0],[0,1],[1,0]]"
TREES = [("1x1x1", 3), ("2", 4), ("2x1", 3), ("2x2", 3), ("3x1x1", 2), ("2 paths of 2", 3), (IRREGULAR, 3), (UNEVEN, 2)]
LARGE = {"3x1x1", "2x2"}  # which take i.i.d. drafts seconds
SETTINGS = {
    "peaked": ("peaked", Sampling()),
    "flat, cooler": ("flat", Sampling(temperature=0.6)),
    "flat, top 2": ("flat", Sampling(top_k=2)),
    "zeros, warmer": ("zeros", Sampling(temperature=1.7)),
}


def fits(name: str, tree: str) -> bool:
    """Whether the scheme's law can draw at every node of the tree."""
    try:
        StaticTree(Tree.parse(tree)).limits.check(EVERY[name])
    except md.AdviceError:
        return False
    return True


def pairs_of(names: list[str], trees: list[tuple[str, int]]) -> list[tuple[str, str, int]]:
    """Schemes with the trees that they fit; the number is the vocabulary's size, or of steps."""
    return [(name, tree, number) for name in names for tree, number in trees if fits(name, tree)]


def one_step_cases() -> list:
    """Every scheme at every tree under every setting; at one of the settings the large trees are quick enough."""
    larger = [(*case, "flat, cooler") for case in pairs_of(NAMES, [("3x1x1", 3)])]
    return [pytest.param(*case, marks=pytest.mark.slow) for case in larger] + [
        pytest.param(*case, setting, marks=[pytest.mark.slow] if setting in later else [])
        for case in pairs_of(NAMES, TREES)
        for later in [[*SETTINGS][:3] if case[1] in LARGE and case[0].startswith("iid") else ["flat, cooler"]]
        for setting in SETTINGS
    ]


def table(kind: str, vocabulary: int, seed: int) -> Table:
    """Next-token probabilities that depend on the last three tokens; "zeros" lacks one token in each row."""
    row = random_table(vocabulary, 3, seed, {"peaked": 0.2, "flat": 5.0, "zeros": 1.0}[kind])
    if kind != "zeros":
        return row

    def holed(prefix: tuple[int, ...]) -> Tensor:
        kept = row(prefix).clone()
        kept[(sum(prefix) + seed) % vocabulary] = 0
        return kept / kept.sum()

    return holed


def pair(kind: str, vocabulary: int) -> tuple[Table, Table]:
    return table(kind, vocabulary, seed=1), table(kind, vocabulary, seed=2)


def plan_of(name: str, tree: str, walk: str) -> Way:
    return DecodeConfig(EVERY[name], walk), StaticTree(Tree.parse(tree))


def law_of(name: str, tree: str, walk: str, vocabulary: int, setting: str) -> tuple[StepLaw, float]:
    """The exact law of a step, and how far the law of the first tokens is from the target's."""
    kind, sampling = SETTINGS[setting]
    target, draft = pair(kind, vocabulary)
    plan = plan_of(name, tree, walk)
    law = step_law(TableModel(target, vocabulary), TableModel(draft, vocabulary), PROMPT, *plan, sampling)
    return law, error_of(law.law, target, Tree.parse(tree).depth, sampling)


def error_of(law: SequenceLaw, target: Table, count: int, sampling: Sampling = Sampling()) -> float:  # noqa: B008
    @cache
    def conditional(tokens: tuple[int, ...]) -> Tensor:
        return target_distributions(target((*PROMPT, *tokens)).log()[None], sampling)[0][0]

    return largest_difference(first_tokens(law, conditional, count), target_law(conditional, count))


@pytest.mark.parametrize(("name", "tree", "vocabulary", "setting"), one_step_cases())
def test_one_step_has_the_target_law(name, tree, vocabulary, setting):
    """With the Lorenz rule, deferring accepts at least as many tokens as committing does."""
    laws = {walk: law_of(name, tree, walk, vocabulary, setting) for walk in WALKS}
    for walk, (law, error) in laws.items():
        assert error <= EXACT, walk
        assert sum(law.law.values()) == pytest.approx(1, abs=EXACT), walk
    if ":lorenz" in name:
        assert laws["deferred"][0].accepted >= laws["commit"][0].accepted - EXACT


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize(("name", "tree", "steps"), pairs_of(NAMES, [("1", 3), ("1x1", 2), ("2", 2), ("2x1", 2)]))
def test_several_steps_have_the_target_law(name, tree, steps, walk):
    """Rows of the second step differ in length and in whether the draft model has seen the token before the root."""
    target, draft = pair("flat", 2)
    plan = plan_of(name, tree, walk)
    state = first_state(TableModel(target, 2), TableModel(draft, 2), PROMPT, *plan)
    law = law_of_steps(state, plan, steps)
    assert error_of(law, target, steps * (Tree.parse(tree).depth + 1)) <= EXACT


def law_after_a_whole_prompt(kind: type[TableModel] = TableModel) -> float:
    """How far two steps are off, of which the first draws from what the target said with the prompt."""
    target, draft = pair("flat", 3)
    plan = plan_of("anchored:lorenz", "2x1", "deferred")
    state = first_state(kind(target, 3), TableModel(draft, 3), [0, 2, 1], *plan, whole=True)
    law = law_of_steps(state, plan, 2)
    assert len({tokens[0] for tokens in law}) == 3
    expected = target_law(lambda new_tokens: target((0, 2, 1, *new_tokens)), 2)
    return largest_difference(first_tokens(law, lambda new_tokens: target((0, 2, 1, *new_tokens)), 2), expected)


def test_the_first_token_comes_from_the_pass_over_the_prompt():
    assert law_after_a_whole_prompt() <= EXACT


class Earlier(TableModel):
    """Wrong: it says what follows the token before the prompt's last."""

    def new(self, capacity: int) -> TableModel:
        return Earlier(self.conditional, self.vocabulary)

    def _read(self, tokens, parents, scored):
        logits = super()._read(tokens, parents, scored if scored == "none" else "all")
        return logits[:, -2:-1] if scored == "last" and logits.shape[1] > 1 else logits


def test_what_was_said_of_another_token_is_caught():
    assert law_after_a_whole_prompt(Earlier) > BIASED


class Nothing(Residual):
    """What is left where nothing is."""

    mass = 0.0

    def token_weights(self) -> Tensor:
        return torch.zeros(2)


def test_the_likeliest_token_is_emitted_where_nothing_but_rounding_is_left():
    row = RunningRow(Sampling(), Randomness(torch.Generator()), 0, 0)
    targets = Targets([row], [TokenTree([0])], torch.tensor([[[0.0, 1.0]]]))
    assert targets.draw([WalkResult([], Nothing())], [0.5]) == [1]


def test_commit_draws_from_the_target_where_rounding_leaves_nothing():
    """A rule's claims may add up to one but for rounding, with an empty residual that no token can be drawn from."""
    walk = commit(0, 1.0, lambda slot: slot == 0, lambda probability: False)
    next(walk)
    with pytest.raises(StopIteration) as stop:
        walk.send(Verdict((Child(1, 1 - 1e-7),), Nothing()))
    assert stop.value.value == WalkResult([], None)


# Statistics: what enumeration cannot reach, through the whole loop with rows of different lengths


SIZE, FALSE_ALARM = 4, 1e-9
PROMPTS = [[0, 1], [2, 3, 1, 0], [1, 1, 3]]


def without_small(seed: int) -> Table:
    """A table over the last two tokens, with no small entries, so that every count suits chi-square."""
    table = random_table(SIZE, 2, seed)

    @cache
    def row(pair: tuple[int, ...]) -> Tensor:
        return 0.7 * table(pair) + 0.3 / SIZE

    return lambda prefix: row(prefix[-2:])


def odds(name: str, tree: str, walk: str, rows: int, tokens: int) -> float:
    """Probability of such large a chi-square statistic for the tokens that follow each pair of tokens, if lossless."""
    target, draft, prompts = without_small(5), without_small(6), PROMPTS * (rows // len(PROMPTS))
    models = [TableModel(conditional, SIZE) for conditional in (target, draft)]
    generator = torch.Generator().manual_seed(11)
    plan = plan_of(name, tree, walk)
    way = dict(scheme=plan[0].scheme, tree=tree, walk=walk)
    settings = way | dict(max_new_tokens=tokens, generator=generator, measure=False)
    counts = torch.zeros(SIZE, SIZE, SIZE, dtype=torch.float64)
    for prompt, new_tokens in zip(prompts, md.generate(*models, prompts, **settings)[0], strict=True):
        sequence = torch.cat([torch.tensor(prompt[-2:]), new_tokens])
        for a, b, c in zip(sequence, sequence[1:], sequence[2:], strict=False):
            counts[a, b, c] += 1
    law = torch.stack([target(pair) for pair in itertools.product(range(SIZE), repeat=2)]).view(SIZE, SIZE, SIZE)
    often = counts.sum(-1) > 50
    expected = counts[often].sum(-1, keepdim=True) * law[often]
    return float(chi2.sf(float(((counts[often] - expected) ** 2 / expected).sum()), int(often.sum()) * (SIZE - 1)))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("name", "tree", "walk", "rows", "tokens"),
    [
        ("iid:recursive_rejection", "2x2x1", "commit", 120, 60),
        pytest.param("anchored:lorenz", "2x2x1", "deferred", 120, 60, marks=pytest.mark.slow),
        *[
            pytest.param(name, tree, walk, 150, 200, marks=pytest.mark.slow)
            for name, tree, _ in pairs_of(NAMES, [("4x2x2x1", 0), ("8 paths of 3", 0)])
            for walk in WALKS
        ],
    ],
)
def test_samples_of_the_loop_agree_with_the_target(name, tree, walk, rows, tokens):
    """Chi-square over rows * tokens; a lossless decoder fails it once in a billion seeds (and this seed is fixed)."""
    p = odds(name, tree, walk, rows, tokens)
    assert p > FALSE_ALARM, f"chi-square p = {p:.1e}; a lossless decoder gets below {FALSE_ALARM} once in 1e9 seeds"


# Mutants: each is a mistake that a decoder could make, and both kinds of checks must see it


SLIGHT = ["accepts 5 % too often", "counts duplicates twice", "the walk forgets what is left"]
SCHEME_OF = {
    "counts duplicates twice": "iid:naive",
    "accepts 5 % too often": "iid:recursive_rejection",
    "takes the top tokens for samples": "top:naive",
    "prunes drawn tokens": "iid:lorenz",
    "the walk forgets what is left": "iid:lorenz",
}


QUICK = "takes the top tokens for samples"


@pytest.fixture(params=SCHEME_OF)
def mutant(request, monkeypatch) -> tuple[str, str]:
    """A scheme and a walk with a mistake put into one of them."""
    name = SCHEME_OF[request.param]
    if MUTANTS[request.param].walk is not None:
        monkeypatch.setitem(WALKS, "deferred", MUTANTS[request.param].walk)
        return name, "deferred"
    entry = replace(EVERY[name].entry, rule=rule_of(request.param))
    monkeypatch.setitem(EVERY, name, replace(EVERY[name], entry=entry))
    return name, "commit"


@pytest.mark.parametrize(("tree", "vocabulary"), [("2x1", 3), ("2x2", 3)])
def test_enumeration_catches_the_mutant(mutant, tree, vocabulary):
    name, walk = mutant
    assert law_of(name, tree, walk, vocabulary, "flat, cooler")[1] > BIASED


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("mutant", "rows", "tokens"),
    [
        pytest.param(name, *((300, 300) if name in SLIGHT else (120, 60)), marks=[pytest.mark.slow] * (name != QUICK))
        for name in SCHEME_OF
    ],
    indirect=["mutant"],
)
def test_samples_catch_the_mutant(mutant, rows, tokens):
    """The same statistic and threshold as for the right ones; a bias of one percent takes 90,000 tokens."""
    name, walk = mutant
    assert odds(name, "2x2x1", walk, rows, tokens) < FALSE_ALARM
