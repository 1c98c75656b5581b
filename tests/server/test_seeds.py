"""Seeds: an answer with one comes again, whatever the policy has timed or learnt, and whoever else is served."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from plans import costs, profile, rates
from serving import NUM_LETTERS, letters, served, until

import multidraft as md
from multidraft.autotune.auto_policy import Auto
from multidraft.autotune.plans import Profile
from multidraft.decoding.policy import Plan
from multidraft.decoding.state import DecodeConfig
from multidraft.decoding.tree import TokenTree
from multidraft.models.ensemble import LookupThenModel
from multidraft.models.ngram import Lookup
from multidraft.models.prefix_models import TableModel, random_table
from multidraft.server import Limits
from multidraft.server.engine import Engine
from multidraft.server.service import Service

COMPLETIONS, CHATS, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
MESSAGES = [{"role": "user", "content": "abcabc"}]
TOKENS = 24


def model(seed: int) -> TableModel:
    return TableModel(random_table(NUM_LETTERS, 2, seed), NUM_LETTERS)


DRAFTERS: dict[str, Callable[[], Any]] = {
    "a model": lambda: model(2),
    "look-ups": lambda: Lookup(NUM_LETTERS),
    "look-ups, then a model": lambda: LookupThenModel([Lookup(NUM_LETTERS), model(2)]),
}
PROFILES: dict[str, Callable[[], tuple[Profile, float]]] = {
    "a new pair": lambda: (Profile({}), 1e9),
    "drafts pay": lambda: (profile(by_rows={1: costs(level=0.1)}, true_rates=rates(0.9)), 0.0),
    "drafts do not pay": lambda: (profile(by_rows={1: costs(1.0, 5.0, 3.0)}, true_rates=rates(0.1)), 0.0),
}


def auto_service(drafter: str = "a model", known: str = "a new pair", kind: type[Auto] = Auto) -> Service:
    draft = DRAFTERS[drafter]()
    known_profile, budget = PROFILES[known]()
    way = DecodeConfig(md.scheme("anchored:lorenz")), kind(known_profile, 1.0, budget=budget, kind=draft.cost)
    return Service(Engine(model(1), draft, *way, Limits(prefill=4)), letters(NUM_LETTERS), ["toy"])


def answer(client: httpx2.Client, **body: Any) -> str:
    response = client.post(COMPLETIONS, json={"model": "toy", "prompt": "abcabc", "max_tokens": TOKENS} | body)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["text"]


@pytest.mark.parametrize(
    "drafter", ["a model", *(pytest.param(drafter, marks=pytest.mark.slow) for drafter in [*DRAFTERS][1:])]
)
def test_a_seed_gives_one_answer_on_every_server_beside_others_and_after_any_number_of_steps(drafter):
    """Two texts of 24 letters that are drawn apart are equal once in some 10^9 cases."""
    texts = set()
    for known in PROFILES:
        with served(auto_service(drafter, known)) as client:
            texts |= {answer(client, seed=5) for _ in range(3)}
            others = [threading.Thread(target=answer, args=[client], kwargs={"max_tokens": 80}) for _ in range(3)]
            for thread in others:
                thread.start()
            texts |= {answer(client, seed=5) for _ in range(3)}
            for thread in others:
                thread.join()
    assert len(texts) == 1


class Forgetful(Auto):
    """Wrong: it forgets that a row has a seed."""

    def plan(self, trees: list[TokenTree], depth: int) -> Plan:
        for tree in trees:
            tree.is_seeded = False
        return super().plan(trees, depth)


def test_a_tree_that_follows_what_was_learnt_is_caught():
    texts = set()
    for known in PROFILES:
        with served(auto_service(known=known, kind=Forgetful)) as client:
            texts |= {answer(client, seed=5) for _ in range(3)}
    assert len(texts) > 1


@pytest.fixture(scope="module")
def client() -> Iterator[httpx2.Client]:
    with served(auto_service()) as client:
        yield client


@pytest.mark.parametrize(
    ("address", "body"),
    [
        (COMPLETIONS, {"prompt": "ab", "max_tokens": TOKENS}),
        (CHATS, {"messages": MESSAGES, "max_tokens": TOKENS}),
        (RESPONSES, {"input": "ab", "max_output_tokens": TOKENS}),
    ],
)
def test_the_seed_minus_one_is_a_new_one_each_time(client, address, body):
    def texts(seed: int | None) -> set[str]:
        answers = [client.post(address, json={"model": "toy", "seed": seed} | body).json() for _ in range(3)]
        return {str(answer.get("choices") or answer["output"][0]["content"]) for answer in answers}

    assert [len(texts(seed)) for seed in (-1, None, 7, -2)] == [3, 3, 1, 1]


def test_what_is_accepted_is_booked_under_each_rows_own_temperature():
    """Greedy rows beside others; before, a server booked them all at 1."""
    service = auto_service()
    policy = service.engine.policy
    policy.timing.profile = profile(by_rows={1: costs(level=0.1)}, temperatures=())  # at which drafts pay
    with served(service) as client:
        for temperature in 0, 0.7:
            answer(client, temperature=temperature)
        until(lambda: not service.engine.batch.requests)
    assert {temperature for temperature, tracker in policy.profile.acceptance.items() if tracker.nodes} == {0.0, 0.7}
    assert policy.temperature == 0.7
