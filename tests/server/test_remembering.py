"""What look-ups of the server may draft from: earlier texts of the same API key, and of nobody else."""

from typing import Any

import httpx2
import pytest
from serving import check_refused, events, letters, served, service

from multidraft.models.ngram import Lookup
from multidraft.models.prefix_models import TableModel, random_table
from multidraft.server.request_bodies import CompletionBody
from multidraft.server.service import TextMemory

SECRET, SIZE = "qwertyuiopasdfghjklzxcvbnm", 26
KNOWN, DRAFTED = SECRET[:8], SECRET[8:11]
COMPLETIONS = "/v1/completions"


def remembering(*keys: str, **limits: Any) -> Any:
    target = TableModel(random_table(SIZE, 2, 1), SIZE)
    return service(target, Lookup(SIZE), letters(SIZE), "1x1x1", api_keys=keys, **{"remember": 99} | limits)


def ask(client: httpx2.Client, key: str, prompt: str, **more: Any) -> str:
    """What is drafted in the first step of an answer."""
    body = {"model": "toy", "prompt": prompt, "max_tokens": 3, "multidraft": True} | more
    client.headers["Authorization"] = f"Bearer {key or 'none'}"
    steps = [event["choices"][0]["multidraft"]["tree"] for event in events(client, COMPLETIONS, body)]
    return "".join(node["text"] for node in next(filter(None, steps))[1:])


def check_secret_is_kept() -> None:
    """Also behind a prompt whose caches another key's row has left."""
    with served(remembering("ours", "theirs")) as client:
        ask(client, "ours", SECRET)
        assert ask(client, "theirs", KNOWN) != DRAFTED
        assert ask(client, "ours", KNOWN) == DRAFTED
        assert ask(client, "theirs", KNOWN) != DRAFTED
        assert ask(client, "ours", KNOWN, seed=1) != DRAFTED  # the same answer on every server
        client.headers["Authorization"] = "Bearer nobody's"
        check_refused(client.post(COMPLETIONS, json={"model": "toy", "prompt": KNOWN}), 401)


def test_no_key_s_texts_are_drafted_for_another():
    check_secret_is_kept()


def test_a_memory_that_all_keys_share_is_caught(monkeypatch):
    add, corpus = TextMemory.add, TextMemory.corpus
    monkeypatch.setattr(TextMemory, "add", lambda self, key, text: add(self, "", text))
    monkeypatch.setattr(TextMemory, "corpus", lambda self, key: corpus(self, ""))
    with pytest.raises(AssertionError):
        check_secret_is_kept()


def test_without_keys_all_share_one_memory_and_nothing_is_remembered_unless_asked_for():
    for limits, expected in (({}, True), ({"remember": 0}, False)):
        with served(remembering(**limits)) as client:
            ask(client, "", SECRET)
            assert (ask(client, "", KNOWN) == DRAFTED) is expected


def test_a_memory_has_an_end_and_holds_no_beginning_of_what_it_holds():
    memory = TextMemory(5)
    for text, texts in (([1, 2], [[1, 2]]), ([1, 2, 3], [[1, 2, 3]]), ([4, 5], [[1, 2, 3], [4, 5]])):
        memory.add("key", text)
        assert memory.texts == {"key": texts}
    assert memory.corpus("key") is memory.corpus("key") is not None
    for text, texts in (([6], [[4, 5], [6]]), ([*range(9)], [[4, 5, 6, 7, 8]])):
        before = memory.corpus("key")
        memory.add("key", text)
        assert memory.texts == {"key": texts}
        assert memory.corpus("key") is not before
    assert memory.corpus("other") is None


def test_each_of_several_answers_may_be_drafted_from():
    ready = remembering()
    ready.memory.add("", [1, 2, 3])
    requests = ready.make_requests(CompletionBody(model="toy", prompt=["a", "b"], n=2))
    assert [request.corpus for request in requests] == [ready.memory.corpus("")] * 4
