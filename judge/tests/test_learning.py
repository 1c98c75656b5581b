"""Learnt bets have a mean of one under the null, by enumeration, and find biases that average out over contexts."""

import copy
import math
import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from multidraft_judge.evidence.bets import EVERY, SCORES, Evidence
from multidraft_judge.evidence.laws import Settings
from multidraft_judge.evidence.learning import LEARNED_CELLS, Learner, cells_of
from multidraft_judge.evidence.observation import Ask, observe
from multidraft_judge.evidence.scores import FIXED_NAMES, Seen
from sampled import completion, draw, speculative, target, texts, typical, write

PLACE = LEARNED_CELLS.index("learned: rank by place in its chunk")
NUM_CLIENTS = 2


def seen_in(chunks: list[str], from_the_end: bool = False, client: int = 0) -> Iterator[Seen]:
    """What is observed of a text; the place in a chunk is counted from its start, or as is forbidden."""
    answer = completion(Ask(0, "a", 3, beside=NUM_CLIENTS, client=client), chunks, top=2)
    distances = [len(chunk) - place for chunk in chunks for place in range(len(chunk))]
    for seen, distance in zip(observe(answer, Settings()), distances, strict=True):
        yield seen._replace(place=distance) if from_the_end else seen


def trained(step: Callable[[str, random.Random], str], from_the_end: bool = False) -> Learner:
    """A learner that has seen 2,000 tokens."""
    learner, rng = Learner(), random.Random(0)
    for _ in range(50):
        for seen in seen_in(write(step, Ask(0, "a", 40), rng), from_the_end):
            learner.learn(seen, cells_of(seen))
    return learner


def mean_capital(learner: Learner, from_the_end: bool = False) -> np.ndarray:
    """The mean of every bet's capital over all texts of three tokens of innocent steps, after what was learnt."""
    mean, total = np.zeros(()), 0.0
    for chunks, p in texts("a", 3):
        evidence = Evidence(0.0, (EVERY,))
        evidence.learner = copy.deepcopy(learner)
        for seen in seen_in(chunks, from_the_end):
            evidence.add(seen)
        mean, total = mean + p * np.exp(evidence.log_capital[0]), total + p
    assert math.isclose(total, 1, abs_tol=1e-12)
    return mean


def test_capital_of_learnt_bets_has_a_mean_of_one():
    """Whatever was learnt; the twin counts places from the end of a chunk, which the token itself decides."""
    mean = mean_capital(trained(typical))
    assert mean.shape[0] == len(SCORES) == len(FIXED_NAMES) + len(LEARNED_CELLS)
    assert np.abs(mean - 1).max() < 1e-12
    assert (
        mean_capital(trained(speculative, from_the_end=True), from_the_end=True)[len(FIXED_NAMES) + PLACE].max() > 1.1
    )


def test_scores_hang_on_earlier_tokens_only():
    learner, seen = trained(typical), next(seen_in(["a"]))
    scores = [learner.scores(cells_of(seen._replace(bin=place))) for place in range(3)]
    assert np.array_equal(scores[0], scores[1])
    assert np.array_equal(scores[0], scores[2])
    assert np.abs(scores[0]).max() > 0
    learner.learn(seen, cells_of(seen))
    assert not np.array_equal(scores[0], learner.scores(cells_of(seen)))


def tilted(context: str, shift: float) -> tuple[float, ...]:
    """The target with so much more for the likeliest letter, in place of the second likeliest."""
    law = list(target(context))
    first, second = sorted(range(4), key=lambda i: -law[i])[:2]
    law[first], law[second] = law[first] + shift, law[second] - shift
    return tuple(law)


Shift = Callable[[int, int], float]  # by place in the chunk, and client


def evidence_of(shift: Shift, tokens: int, seed: int = 0) -> Evidence:
    """The evidence against clients in turn whose chunks have three tokens, whatever these are."""
    evidence, rng = Evidence(1e-3), random.Random(seed)
    while evidence.tokens < tokens:
        for client in range(NUM_CLIENTS):
            chunks, context = [], "a"
            for place in range(39):
                letter = draw(tilted(context, shift(place % 3, client)), rng)
                chunks = [*chunks, letter] if place % 3 == 0 else [*chunks[:-1], chunks[-1] + letter]
                context += letter
            for seen in seen_in(chunks, client=client):
                evidence.add(seen)
    return evidence


def best(evidence: Evidence, names: tuple[str, ...]) -> float:
    """The largest evidence of any bet on these scores, in powers of ten."""
    return max(value for (_, score), value in evidence.by_bet().items() if score in names) / math.log(10)


BIASES: dict[str, Shift] = {  # each is zero on average over the tokens of a stratum
    "learned: rank by client": lambda place, client: 0.08 if client else -0.08,
    "learned: rank by place in its chunk": lambda place, client: (0.0, 0.1, -0.1)[place],
}


@pytest.mark.parametrize("score", BIASES)
def test_biases_that_average_out_are_found_by_learnt_bets_alone(score):
    evidence = evidence_of(BIASES[score], 4000)
    assert evidence.tokens_until(1e-6) is not None
    assert best(evidence, (score,)) > 6
    assert best(evidence, FIXED_NAMES) < 1


def test_the_innocent_are_not_convicted():
    """False alarm with odds of 1e-6 at most."""
    evidence = evidence_of(lambda place, client: 0.0, 4000)
    assert evidence.tokens_until(1e-6) is None
