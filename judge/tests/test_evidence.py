"""Bets have a mean of one under the null, by enumeration; strata that may be bet on, and one that may not; power."""

import itertools
import math
import random
from collections.abc import Iterator

import numpy as np
import pytest
from multidraft_judge.asking import dialects
from multidraft_judge.asking.answers import completion_of
from multidraft_judge.asking.dialects import Entry
from multidraft_judge.evidence.bets import EVERY, FIRST, LATER, Bets, Evidence
from multidraft_judge.evidence.laws import Settings, law_of
from multidraft_judge.evidence.observation import Ask, Completion, Context, Token, observe
from multidraft_judge.evidence.scores import FIXED_NAMES, Seen, fixed_scores
from sampled import DRAFT, LETTERS, completion, mixed, outcomes, plain, speculative, target, texts, typical, write

LAST = "last of its chunk"
LAWS = [np.array(law) for law in ([0.6, 0.3, 0.1], [0.5, 0.5, 0.0], [0.97, 0.01, 0.02], [1.0, 0.0], [0.2, 0.1, 0.7])]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("copied", [None, 0, 1])
def test_every_bet_has_a_mean_of_one(law, copied):
    if copied is not None and copied >= len(law) - 1:
        copied = None
    bets = Bets.on(law, fixed_scores(Seen(law, 0, copied)), 0.0)
    assert np.abs(bets.factors() @ law - 1).max() < 1e-12
    assert bets.factors().min() >= 0.5 - 1e-12


@pytest.mark.parametrize("law", LAWS)
def test_with_rounding_the_mean_is_one_at_most_whatever_rounding_does(law):
    scores = fixed_scores(Seen(law, 0, 0))
    factors = Bets.on(law, scores, 0.01).factors()
    for signs in np.ndindex(*[3] * len(law)):
        moved = law * 0.01 * (np.array(signs) - 1)
        if abs(moved.sum()) < 1e-15 and moved.any():  # it is a law still
            assert (factors @ (law + moved)).max() <= 1 + 1e-12
            assert (Bets.on(law, scores, 0.0).factors() @ (law + moved)).max() > 1 + 1e-6  # the twin without allowance
    for one, other in np.ndindex(len(law), len(law)):
        moved = (np.eye(len(law))[one] - np.eye(len(law))[other]) * 0.01 * min(law[one], law[other])
        assert (factors @ (law + moved)).max() <= 1 + 1e-12


def test_the_toy_is_lossless():
    for letter, p in zip(LETTERS, target("a"), strict=True):
        assert math.isclose(sum(q for piece, q in outcomes("a") if piece[0] == letter), p)
    assert max(abs(p - q) for p, q in zip(target("a"), DRAFT, strict=True)) > 0.3


def seen_in(chunks: list[str]) -> Iterator[Seen]:
    """What is observed of a text, with the forbidden stratum, too."""
    answer = completion(Ask(0, "a", 3), chunks, top=2)
    ends = [place == len(chunk) - 1 for chunk in chunks for place in range(len(chunk))]
    for seen, is_last in zip(observe(answer, Settings()), ends, strict=True):
        yield seen._replace(strata=set(seen.strata) | ({LAST} if is_last else set()))


def test_capital_has_a_mean_of_one_in_the_strata_that_may_be_bet_on():
    """Over all texts of three tokens; the twin is the last token of a chunk, which itself decides that it is."""
    mean, total = 0.0, 0.0
    for chunks, p in texts("a", 3):
        evidence = Evidence(0.0, (EVERY, FIRST, LATER, LAST))
        for seen in seen_in(chunks):
            evidence.add(seen)
        mean, total = mean + p * np.exp(evidence.log_capital), total + p
    assert math.isclose(total, 1, abs_tol=1e-12)
    assert np.abs(mean[:3] - 1).max() < 1e-12
    assert mean[3].max() > 1.01


def evidence_of(step, tokens: int, strata=(EVERY, FIRST, LATER), seed: int = 0) -> Evidence:
    """The evidence against a sampler in so many tokens."""
    evidence, rng = Evidence(1e-3, strata), random.Random(seed)
    while evidence.tokens < tokens:
        for seen in seen_in(write(step, Ask(0, "a", 40), rng)):
            evidence.add(seen)
    return evidence


def test_only_the_forbidden_stratum_convicts_the_innocent():
    """False alarm with odds of 1e-6 at most in the first line."""
    assert evidence_of(speculative, 4000).tokens_until(1e-6) is None
    assert evidence_of(speculative, 1000, (LAST,)).tokens_until(1e-6) is not None


@pytest.mark.parametrize(("step", "tokens"), [(typical, 4000), (mixed(0.2), 2000), (mixed(0.1), 6000)])
def test_biased_samplers_are_caught_within_so_many_tokens(step, tokens):
    assert evidence_of(step, tokens).tokens_until(1e-6) is not None


@pytest.mark.slow
def test_the_innocent_are_convicted_as_seldom_as_alpha_says():
    """Of 200 audits at alpha = 0.1 at most 20 are expected; more than 36 have odds below 3e-4."""
    token_counts = [evidence_of(speculative, 300, seed=seed).tokens_until(0.1) for seed in range(200)]
    assert sum(tokens is not None for tokens in token_counts) <= 36


@pytest.mark.slow
def test_the_bias_that_is_stated_is_found_as_often_as_stated():
    """A bias of the size in the report is found in 95 % of audits; fewer than 32 of 40 have odds below 1e-3."""
    d = evidence_of(plain, 3000).smallest_bias(1e-6)["the likeliest"]

    def step(context: str, rng: random.Random) -> str:
        law = target(context)
        best = max(range(4), key=lambda i: law[i])
        shifted = [p - d * p / (1 - law[best]) for p in law]
        shifted[best] = law[best] + d
        return rng.choices(LETTERS, shifted)[0]

    token_counts = [evidence_of(step, 3000, seed=seed).tokens_until(1e-6) for seed in range(40)]
    assert 32 <= sum(tokens is not None for tokens in token_counts)
    assert d < 0.1


def seen_tokens(open_tokens: int, certain_tokens: int) -> Evidence:
    """The evidence of tosses of a coin, and of tokens that say nothing; no odds, as no verdict is asked for."""
    evidence, rng = Evidence(1e-4), random.Random(0)
    for _ in range(open_tokens):
        evidence.add(Seen(np.array([0.5, 0.5, 0.0]), rng.randrange(2), None))
    for _ in range(certain_tokens):
        evidence.add(Seen(np.array([1.0, 0.0]), 0, None))
    return evidence


def test_tokens_that_say_nothing_acquit_nobody():
    """The smallest bias is that of the open places alone, and copies that nothing proposed count for none."""
    assert seen_tokens(320, 0).can_acquit(1e-6)
    assert not seen_tokens(250, 0).can_acquit(1e-6)
    assert not seen_tokens(100, 1500).can_acquit(1e-6)
    alone, among = (seen_tokens(1000, count).smallest_bias(1e-6) for count in (0, 2000))
    assert 1 <= among["the likeliest"] / alone["the likeliest"] < 1.1
    assert alone["copied from the text"] is None
    mostly_certain = seen_tokens(100, 1500)
    assert mostly_certain.open_tokens == 100
    assert math.isclose(mostly_certain.entropy, 100 * math.log(2))


def test_no_bias_is_stated_where_nothing_was_seen():
    assert Evidence(1e-3).smallest_bias(1e-6) == dict.fromkeys(FIXED_NAMES)


def test_what_copying_proposes_follows_the_longest_match():
    context = Context("xabc yab")
    for piece in ("q", "a", "b"):
        context.add(piece)
    assert context.copied(["z", "c", "q"]) == 2  # "ab" was last followed by "q"
    assert Context("ab").copied(["a"]) is None


def test_two_tokens_of_one_text_are_told_apart_by_their_log_probability():
    top = (("x", -0.1), ("y", -3.0))
    assert [Token("x", -0.1, top).bin, Token("x", -5.0, top).bin, Token("y", -3.0, top).bin] == [0, 2, 1]


RAW = np.log([0.5, 0.25, 0.125, 0.0625])


@pytest.mark.parametrize(
    ("settings", "law"),
    [
        (Settings(reported="raw"), [0.5, 0.25, 0.125, 0.0625, 0.0625]),
        (Settings(top_k=2, reported="raw"), [2 / 3, 1 / 3, 0, 0, 0]),
        (Settings(top_p=0.7, reported="temperature"), [2 / 3, 1 / 3, 0, 0, 0]),
        (Settings(top_p=0.75, reported="raw"), None),  # rounding decides
        (Settings(top_p=0.97, reported="raw"), None),  # others than the listed ones are kept
        (Settings(top_k=9, reported="raw"), None),
        (Settings(0.5, reported="raw"), [64 / 85, 16 / 85, 4 / 85, 1 / 85, 0]),
        (Settings(0.5, top_p=0.5), [0.5, 0.25, 0.125, 0.0625, 0.0625]),
    ],
)
def test_the_law_that_is_sampled_from_follows_from_the_listed_one(settings, law):
    computed = law_of(RAW, settings)
    assert (computed is None) == (law is None)
    if law is not None:
        assert np.allclose(computed, law)


PART = "\ufffd"  # the text of every token that is a part of a character
LAW = (0.3, 0.25, 0.2, 0.15, 0.06, 0.04)


def largest_bias(is_text: bool) -> float:
    """Of any bin, over all ways in which six tokens are letters or parts: expected hits less the law, exactly.

    The four likeliest and the one that came are listed, by texts or by what is unique.
    """
    largest = 0.0
    for is_part in itertools.product((False, True), repeat=len(LAW)):
        letter_or_part = [PART if part else "abcdef"[place] for place, part in enumerate(is_part)]
        names = letter_or_part if is_text else [f"{name}{place}" for place, name in enumerate("abcdef")]
        bias = np.zeros(3)
        for drawn, p in enumerate(LAW):
            listed = {names[place]: math.log(LAW[place]) for place in (0, 1, 2, 3, drawn)}
            answer = Completion(Ask(0, "", 1), [Entry(names[drawn], math.log(p), listed).token(4)])
            for seen in observe(answer, Settings()):
                bias[: len(seen.law)] -= p * seen.law
                bias[seen.bin] += p
        largest = max(largest, np.abs(bias).max())
    return largest


def test_parts_of_characters_bias_no_bet(monkeypatch):
    """Whether a place is judged hangs on what is listed alone; judging by the two likeliest names was a selection."""
    assert largest_bias(True) < 1e-12
    monkeypatch.setattr(dialects, "BROKEN_CHARACTER", "no part")
    assert largest_bias(False) < 1e-12
    assert largest_bias(True) > 0.01


@pytest.mark.parametrize("says_bytes", [True, False])
def test_places_where_llama_cpp_lists_parts_of_characters_are_left_out(says_bytes):
    """It leaves their texts empty, and gives the whole character to the last part: that was taken for another token."""
    parts = [{"token": "", "bytes": [240, 159], "logprob": -0.1}, {"token": "a", "bytes": [97], "logprob": -2.4}]
    listed = parts if says_bytes else [{name: part[name] for name in ("token", "logprob")} for part in parts]
    content = [{"token": "\N{GRINNING FACE}", "logprob": -0.1, "top_logprobs": listed}]
    answer = dialects.ANSWER.read({"choices": [{"text": "x", "logprobs": {"content": content}}]}, "")
    completion = completion_of(Ask(0, "x", 1), [answer], 2, "http://fake")
    assert len(list(observe(completion, Settings()))) == (not says_bytes)
