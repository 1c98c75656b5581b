"""The law of answers over HTTP, against the model's own by enumeration; a server that is biased is caught."""

import math
from collections import Counter

import pytest
from multidraft_judge.references.model import ModelReference
from serving import complete, letters, served, service, toy

import multidraft as md
from multidraft.decoding.request import Request
from multidraft.models.prefix_models import TableModel, random_table
from multidraft.sampling.settings import Sampling
from multidraft.server import answers
from multidraft.server.request_bodies import GenerationBody
from multidraft.server.service import Service

SIZE, ANSWERS = 4, 64  # answers of a request
TARGET, DRAFT = random_table(SIZE, 3, 1), random_table(SIZE, 3, 2)
FALSE_ALARM = 1e-6


def law(temperature: float, length: int) -> dict[str, float]:
    """The probability of every text of so many letters after "a"."""
    probabilities = {"": 1.0}
    for _ in range(length):
        laws = {text: TARGET(tuple(ord(letter) - ord("a") for letter in "a" + text)) for text in probabilities}
        shares = {text: (logits.log() / temperature).softmax(-1).tolist() for text, logits in laws.items()}
        probabilities = {
            text + "abcd"[i]: probabilities[text] * share
            for text in probabilities
            for i, share in enumerate(shares[text])
        }
    return probabilities


def distance_bound(cells: int, count: int) -> float:
    """Sampled frequencies are farther from their law than this, in total variation, with odds of FALSE_ALARM.

    The expected distance is at most sqrt(cells / count) / 2, and one answer moves it by 1 / count (McDiarmid).
    """
    return math.sqrt(cells / count) / 2 + math.sqrt(math.log(1 / FALSE_ALARM) / (2 * count))


def distance(temperature: float, length: int, count: int, kind: type[Service] = Service) -> float:
    """Total variation between what a server answers, to seeds of their own, and the law that it was asked for."""
    counts: Counter[str] = Counter()
    models = TableModel(TARGET, SIZE), TableModel(DRAFT, SIZE)
    made = service(*models, letters(SIZE), tree="2x1", rows=ANSWERS)
    with served(kind(made.engine, made.tokenizer, ["toy"])) as client:
        for seed in range(count // ANSWERS):
            answer = complete(client, prompt="a", max_tokens=length, n=ANSWERS, temperature=temperature, seed=seed)
            counts.update(choice["text"] for choice in answer["choices"])
    assert counts.total() == count
    return sum(abs(counts[text] / count - share) for text, share in law(temperature, length).items()) / 2


@pytest.mark.parametrize(("length", "count"), [(2, 192), pytest.param(3, 8192, marks=pytest.mark.slow)])
def test_answers_have_the_law_of_the_model(length, count):
    """False alarm with odds of one in a million at most."""
    assert distance(0.6, length, count) < distance_bound(SIZE**length, count)


class Hotter(Service):
    """Wrong: it samples at another temperature than the one that it is asked for."""

    def make_requests(self, body: GenerationBody, owner: str = "") -> list[Request]:
        requests = super().make_requests(body, owner)
        for request in requests:
            request.sampling = Sampling(1.6)
        return requests


def test_a_biased_server_is_caught():
    assert distance(0.6, 2, 192, Hotter) > distance_bound(SIZE**2, 192)


PARTS = "ab\xe2\xe3\xe4\xe5"  # bytes, of which four are parts of characters


def names_by_what_came(client) -> set[int]:
    """After which tokens the names of the two likeliest are others for another token that comes; all are tried."""
    changing = set()
    for last in range(6):
        prompts = [[last, token] for token in range(6)]
        answer = complete(client, prompt=prompts, echo=True, logprobs=2, max_tokens=1)
        lists = [choice["logprobs"] for choice in answer["choices"]]
        assert all(lists["tokens"][1] in lists["top_logprobs"][1] for lists in lists)
        tops = [sorted(lists["top_logprobs"][1].items(), key=lambda pair: -pair[1])[:2] for lists in lists]
        changing |= {last} if len({tuple(top) for top in tops}) > 1 else set()
    return changing


def test_names_of_the_likeliest_do_not_tell_what_came(monkeypatch):
    """Four of six tokens are parts of characters; where the one that came had the text, the others were renamed."""
    with served(toy(PARTS)) as client:
        assert not names_by_what_came(client)

        def first_come(texts, tops):
            taken = {text: token for token, text in reversed(texts.items())}
            return {token: text if taken[text] == token else f"token_id:{token}" for token, text in texts.items()}

        monkeypatch.setattr(answers, "token_names", first_come)
        assert names_by_what_came(client)


@pytest.mark.parametrize("budget", [400, pytest.param(1500, marks=pytest.mark.slow)])
def test_a_model_is_a_reference_for_parts_of_characters(budget):
    """The server says their numbers, so that no text is skipped, and bets are made on the model's own law."""
    with served(toy(PARTS)) as client:
        reference = ModelReference(TableModel(random_table(6, 2, 1), 6), letters(PARTS), top=2)
        settings = {"prompts": ["ab", "ba"], "budget_tokens": budget, "max_tokens": 12, "num_logprobs": 4}
        verdict = md.judge(str(client.base_url), "toy", reference=reference, **settings)
        penalised = md.judge(str(client.base_url), "toy", reference=reference, presence_penalty=0.5, **settings)
    assert verdict.compared.skipped_texts == 0
    assert (verdict.reasons, verdict.bets[1].tokens) == ([], verdict.bets[0].tokens)
    assert penalised.reasons == []
    assert penalised.bets[1].tokens > 0
