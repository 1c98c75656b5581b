"""Checks that share no code with the audit: laws enumerated by plain loops, and tokens of whole runs counted.

The first part computes the probability of every tuple from its drafting law's definition, and adds up what the rule
emits. The second compares the first tokens of `md.generate` with what the target says of them, read plainly.
"""

import copy
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from heads import head_of
from hybrids import HYBRIDS, hybrid
from plans import costs, profile, rates
from scipy.stats import chi2
from tiny import VOCABULARY, tiny_model
from torch import Tensor

import multidraft as md
from multidraft.autotune.auto_policy import Auto, TreeLimits
from multidraft.decoding.policy import PromptReads
from multidraft.verification.scheme import Scheme

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unchecked")]

EXACT, BIASED = 1e-12, 1e-3
Numbers = list[float]
Tuples = dict[tuple[int, ...], float]

# Every law by its definition. `q` is the draft distribution, and a position is empty where nothing can be drawn.


def without(q: Numbers, tokens: list[int]) -> Numbers:
    """What is left of it, renormalised; nothing where all of it is gone."""
    left = [0.0 if token in tokens else mass for token, mass in enumerate(q)]
    total = sum(left)
    return [mass / total for mass in left] if total > 0 else left


def likeliest(q: Numbers, count: int) -> list[int]:
    """The likeliest tokens that can be drawn at all, of equal ones the lower id first."""
    order = sorted((token for token, mass in enumerate(q) if mass > 0), key=lambda token: -q[token])
    return order[:count]


def surely(q: Numbers, tokens: list[int], place: int) -> Numbers:
    """One of a list for sure, or nothing behind its end."""
    return [float(place < len(tokens) and tokens[place] == token) for token in range(len(q))]


def anchors_of(q: Numbers, count: int) -> list[int]:
    """The likeliest tokens, while each has at least its equal share of what is left for the drafts that are left."""
    anchors: list[int] = []
    for token in likeliest(q, count) if count > 1 else []:
        left = sum(mass for other, mass in enumerate(q) if other not in anchors)
        if q[token] * (count - len(anchors)) < left * (1 - 1e-9):
            break
        anchors.append(token)
    return anchors


def next_in_anchored(q: Numbers, drafted: list[int], count: int) -> Numbers:
    """`count` places for anchors, as many for draws, and one for a top-up of every duplicate among the draws."""
    anchors, place = anchors_of(q, count), len(drafted)
    draws = [token for token in drafted[count : 2 * count] if token >= 0]
    if place < count:
        return surely(q, anchors, place)
    if place < 2 * count:
        return without(q, anchors) if place - count < count - len(anchors) else [0.0] * len(q)
    return without(q, drafted) if place - 2 * count < len(draws) - len(set(draws)) else [0.0] * len(q)


def next_in_spechub(q: Numbers, drafted: list[int], count: int) -> Numbers:
    """A draw, and the likeliest token; where the draw was that, a draw among the others."""
    best = likeliest(q, 1)
    if not drafted:
        return q
    return without(q, best) if drafted == best else surely(q, best, 0)


def next_in_greedy(q: Numbers, drafted: list[int], count: int) -> Numbers:
    """The likeliest tokens, and last a draw among the others."""
    best = likeliest(q, count - 1)
    return surely(q, best, len(drafted)) if len(drafted) < count - 1 else without(q, best)


NEXT: dict[str, Callable[[Any, list[int], int], Numbers]] = {
    "iid": lambda q, drafted, count: q,
    "without_replacement": lambda q, drafted, count: without(q, drafted),
    "greedy": next_in_greedy,
    "spechub": next_in_spechub,
    "top": lambda q, drafted, count: surely(q, likeliest(q, count), len(drafted)),
    "anchored": next_in_anchored,
    "distinct": lambda several, drafted, count: several[len(drafted)],
}


def every_tuple(law: str, q: Any, count: int) -> Tuples:
    """All tuples of a law with their probabilities."""
    width, tuples = 3 * count - 1 if law == "anchored" else count, {(): 1.0}
    for _ in range(width):
        longer: Tuples = {}
        for drafted, probability in tuples.items():
            following = NEXT[law](q, list(drafted), count)
            if sum(following) == 0:
                longer[*drafted, -1] = probability
            for token, mass in enumerate(following):
                if mass > 0:
                    longer[*drafted, token] = probability * mass
        tuples = longer
    return tuples


def emitted(scheme: Scheme, tuples: Tuples, target: Numbers, q: Any) -> Numbers:
    """The law of the token that comes, summed over the tuples."""
    drafted = torch.tensor(list(tuples))
    rows = len(drafted)
    p, draft = torch.tensor(target, dtype=torch.float64), torch.tensor(q, dtype=torch.float64)
    outcome = scheme.outcome(p.expand(rows, -1), draft.expand(rows, *draft.shape), drafted)
    accepted, residual = outcome.accept.tolist(), outcome.residual.tolist()
    total = [0.0] * len(target)
    for row, (tokens, probability) in enumerate(tuples.items()):
        for token, share in zip(tokens, accepted[row], strict=True):
            if token >= 0:
                total[token] += probability * share
            else:
                assert share == 0
        for token, share in enumerate(residual[row]):
            total[token] += probability * share
    return total


def error_of(scheme: Scheme, law: str, target: Numbers, q: Any) -> float:
    """How far it is from the target."""
    emissions = emitted(scheme, every_tuple(law, q, scheme.drafts), target, q)
    return max(abs(mine - probability) for mine, probability in zip(emissions, target, strict=True))


CORNERS: list[tuple[Numbers, Numbers]] = [
    ([0.5, 0.0, 0.3, 0.2], [0.0, 0.4, 0.6, 0.0]),
    ([0.25, 0.25, 0.25, 0.25], [0.4, 0.4, 0.1, 0.1]),
    ([0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.3, 0.4]),
    ([1.0, 0.0, 0.0], [0.0, 0.5, 0.5]),
    ([0.0, 1.0, 0.0], [1.0, 0.0, 0.0]),
    ([0.0, 1.0, 0.0], [0.0, 1.0, 0.0]),
    ([0.2, 0.3, 0.5], [1 - 2e-12, 1e-12, 1e-12]),
    ([1 - 2e-15, 1e-15, 1e-15], [1e-9, 0.5, 0.5 - 1e-9]),
    ([0.5, 0.5 - 1e-17, 1e-17], [0.2, 0.2, 0.6]),
    ([0.1 + 1e-13, 0.2 - 1e-13, 0.7], [0.1, 0.2, 0.7]),
    ([0.7, 0.3], [0.5, 0.5]),
]


def random_pairs(seed: int, pairs: int, sizes: tuple[int, ...]) -> Iterator[tuple[Numbers, Numbers]]:
    """From flat to peaked, every third with zeros."""
    chance = np.random.default_rng(seed)
    for number in range(pairs):
        size, pair = sizes[number % len(sizes)], []
        for _ in range(2):
            law = chance.dirichlet(np.full(size, (0.2, 1.0, 5.0)[number % 3]))
            if number % 3 == 2:
                law[chance.integers(size)] = 0.0
            pair.append((law / law.sum()).tolist())
        yield pair[0], pair[1]


def cases(scheme: dict[str, Any]) -> list[tuple[int, Numbers, Any]]:
    """Numbers of drafts, targets that may sum to less than one, and what is drafted from."""
    law, small = scheme["law"], scheme["small"]
    counts = (2,) if law == "spechub" else (1, 2) if small else (1, 2, 3)
    pairs = [*CORNERS, *random_pairs(1, 6 if small else 60, (2, 3) if small else (2, 3, 4, 5))]
    all_cases = list[tuple[int, Numbers, Any]]()
    for count, (target, q), total in itertools.product(counts, pairs, (1.0, 0.4)):
        several = [without([mass**power for mass in q], []) for power in (1, 0.5, 2)[:count]]
        all_cases.append((count, [total * mass for mass in target], several if law == "distinct" else q))
    return all_cases


SCHEMES = [scheme for scheme in md.schemes() if scheme["exact"]]


@pytest.mark.parametrize("scheme", SCHEMES, ids=[scheme["name"] for scheme in SCHEMES])
def test_every_exact_scheme_emits_the_target(scheme: dict[str, Any]) -> None:
    """By sums that a reader can check, over tuples whose probabilities are computed from the law's definition."""
    for count, target, q in cases(scheme):
        scheme_of_count = md.scheme(scheme["name"], drafts=count)
        if sum(target) > 0.9 or scheme_of_count.entry.sub_probability:
            assert error_of(scheme_of_count, scheme["law"], target, q) < EXACT, (count, target, q)


@pytest.mark.parametrize("law", ["without_replacement", "top", "greedy"])
def test_a_rule_that_is_told_of_another_law_is_caught(law: str) -> None:
    """Recursive rejection as for independent drafts, of drafts that were not."""
    wrong = md.scheme("iid:recursive_rejection", drafts=2)
    errors = [error_of(wrong, law, *pair) for pair in random_pairs(2, 30, (3, 4))]
    assert sum(error > BIASED for error in errors) > 20


@pytest.mark.parametrize("law", [*NEXT])
def test_the_tuples_are_those_that_the_library_draws(law: str) -> None:
    """Their probabilities by hand against its own."""
    for count in (2,) if law == "spechub" else (1, 2, 3):
        for _, q in [*CORNERS, *random_pairs(3, 12, (2, 3, 4))]:
            drafting: Any = [q] * count if law == "distinct" else q
            tuples = every_tuple(law, drafting, count)
            scheme = md.scheme(f"{law}:naive", drafts=count)
            draft = torch.tensor(drafting, dtype=torch.float64)
            probabilities = scheme.probability(draft.expand(len(tuples), *draft.shape), torch.tensor(list(tuples)))
            assert probabilities.tolist() == pytest.approx(list(tuples.values()), abs=EXACT)
            assert sum(tuples.values()) == pytest.approx(1, abs=EXACT)


# Whole runs


FALSE_ALARM = 1e-6
PROMPTS, TOKENS = [[3, 14, 15], [9, 26], [5, 35, 8, 9]], 3
EACH = 16  # rows of every prompt in a batch
LIKELIEST = 4  # tokens that can come at a place, so that every sequence comes often
SHARPER = 4.0  # logits
RARE = 5.0  # a sequence that is expected less often is counted together with others
Scored = dict[tuple[int, ...], float]


@torch.inference_mode()
def conditionals(target: Any, sequences: list[list[int]], temperature: float) -> Tensor:
    """What the target says after sequences of one length, without a cache or a tree."""
    logits = target(input_ids=torch.tensor(sequences)).logits[:, -1].double() / temperature
    least = logits.topk(LIKELIEST).values[:, -1:]
    return logits.masked_fill(logits < least, -torch.inf).softmax(-1)


def joint_law(target: Any, prompt: list[int], temperature: float) -> Scored:
    """The probabilities of the first tokens."""
    joint: Scored = {(): 1.0}
    for _ in range(TOKENS):
        laws = conditionals(target, [[*prompt, *tokens] for tokens in joint], temperature)
        joint = {
            (*tokens, token): before * share
            for (tokens, before), law in zip(joint.items(), laws.tolist(), strict=True)
            for token, share in enumerate(law)
            if share > 0
        }
    return joint


def chi_square(counts: Counter[tuple[int, ...]], law: Scored, draws: int) -> tuple[float, int]:
    """The statistic of the sequences that are frequent, and of all others together, and its degrees of freedom."""
    often = {tokens: draws * share for tokens, share in law.items() if draws * share >= RARE}
    rare_draws, others = draws - sum(often.values()), draws - sum(counts[tokens] for tokens in often)
    total = sum((counts[tokens] - expected) ** 2 / expected for tokens, expected in often.items())
    if rare_draws >= RARE:
        total += (others - rare_draws) ** 2 / rare_draws
    return total, len(often) - (rare_draws < RARE)


def odds(
    target: Any, draft: Any, temperature: float, batches: int, policy: Callable[[], Any], **settings: Any
) -> float:
    """How likely so large a chi-square of the first tokens is where nothing is wrong; drafts must have come through."""
    generator, counts = torch.Generator().manual_seed(7), [Counter[tuple[int, ...]]() for _ in PROMPTS]
    accepted, rows = 0, [prompt for prompt in PROMPTS for _ in range(EACH)]
    settings |= dict(temperature=temperature, top_k=LIKELIEST, draft_top_k=VOCABULARY)
    settings |= dict(max_new_tokens=TOKENS, eos_token_id=[], measure=0)
    for _ in range(batches):
        new_tokens, info = md.generate(target, draft, rows, tree=policy(), generator=generator, **settings)
        accepted += info.accepted
        for row, tokens in enumerate(new_tokens):
            counts[row // EACH][tuple(tokens.tolist())] += 1
    assert accepted > batches
    draws = batches * EACH
    laws = [joint_law(target, prompt, temperature) for prompt in PROMPTS]
    statistics, freedom = zip(
        *(chi_square(*counts_and_law, draws) for counts_and_law in zip(counts, laws, strict=True)), strict=True
    )
    assert sum(freedom) > 8
    return float(chi2.sf(sum(statistics), sum(freedom)))


def told_a_flatter_target() -> Scheme:
    """The biased twin: it verifies with another target than the models have."""
    right = md.scheme("iid:recursive_rejection", drafts=2)

    def rule(target: Tensor, draft: Tensor, drafted: Tensor, law: Any) -> Any:
        flat = target.sqrt()
        flat *= target.sum(-1, keepdim=True) / flat.sum(-1, keepdim=True)
        return right.entry.rule(flat, draft, drafted, law)

    return replace(right, entry=replace(right.entry, rule=rule))


def fixed() -> str:
    return "2x1"


class Waking(Auto):
    """Drafts do not pay in every other step, the first among them, so that the draft model has to catch up."""

    def advance(self, rows: int) -> None:
        self.timing.profile = RICH if self.steps % 2 else POOR
        self.is_surprised = True  # prices are found anew
        super().advance(rows)
        self.next_look = 0  # in each step


POOR, RICH = profile(by_rows={1: costs(10.0, 99.0)}), profile(by_rows={1: costs(10.0, 0.1)}, true_rates=rates(0.9))


def waking() -> Waking:
    policy = Waking(POOR, 1.0, TreeLimits(4, 2))
    assert policy.begin(EACH * len(PROMPTS), PromptReads(1.0)).model_rests
    return policy


def resized() -> Any:
    """A target that was used, and got six tokens more."""
    target = llama()
    md.generate(target, tiny_model("qwen2"), PROMPTS, tree="2x1", max_new_tokens=2)
    target.resize_token_embeddings(VOCABULARY + 6, mean_resizing=False)
    rows, generator = target.get_input_embeddings().weight, torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in (rows, target.get_output_embeddings().weight):
            weight[VOCABULARY:] = SHARPER * 0.3 * torch.randn(6, weight.shape[1], generator=generator)
    return target


def sharp(target: Any) -> Any:
    """A copy whose distributions are far from flat, or no mistake would show."""
    target = copy.deepcopy(target)
    with torch.no_grad():
        target.get_output_embeddings().weight *= SHARPER
    return target


def llama() -> Any:
    return sharp(tiny_model("llama"))


def near(target: Any) -> Any:
    """A draft model that says nearly what the target does."""
    draft, generator = copy.deepcopy(target), torch.Generator().manual_seed(9)
    with torch.no_grad():
        for weight in draft.parameters():
            weight += 0.03 * torch.randn(weight.shape, generator=generator)
    return draft


HEADS = ["eagle3 reduced, two layers", "dflash", "medusa"]
TARGETS = [name for name in ("qwen3_next", "lfm2") if hasattr(transformers, HYBRIDS[name][0])]
RUNS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], int, Callable[[], Any]]] = {
    **{name: (llama, lambda target, name=name: head_of(name), 40, fixed) for name in HEADS},
    **{name: (lambda name=name: sharp(hybrid(name)), near, 12, fixed) for name in TARGETS},
    "resized": (resized, near, 40, fixed),
    "resting": (llama, near, 40, waking),
}


def odds_of(name: str, temperature: float, **settings: Any) -> float:
    of_target, of_draft, batches, policy = RUNS[name]
    target = of_target()
    return odds(target, of_draft(target), temperature, batches, policy, **settings)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("name", [*RUNS])
def test_the_first_tokens_of_runs_are_the_targets(name: str, temperature: float) -> None:
    """Rows of three prompts side by side; a lossless decoder fails once in a million seeds, and this one is fixed."""
    p_value = odds_of(name, temperature)
    assert p_value > FALSE_ALARM, (
        f"chi-square p = {p_value:.1e}; a lossless decoder gets below {FALSE_ALARM} once in 1e6"
    )


@pytest.mark.parametrize("name", [HEADS[0], *TARGETS[:1], "resized", "resting"])
def test_a_run_that_verifies_with_another_target_is_caught(name: str) -> None:
    """The same statistic and threshold."""
    assert odds_of(name, 1.0, scheme=told_a_flatter_target()) < FALSE_ALARM
