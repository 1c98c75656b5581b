"""The client that OpenAI publishes: whole and streamed, together, impatient, and refused."""

import asyncio

import openai
import pytest
from conftest import MESSAGES, NAME


def test_chats(client):
    settings = dict(model=NAME, messages=MESSAGES, max_completion_tokens=20, seed=1, temperature=0.7)
    whole = client.chat.completions.create(**settings)
    stream = client.chat.completions.create(**settings, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    assert whole.choices[0].finish_reason in ("stop", "length")


def test_completions_with_log_probabilities(client):
    answer = client.completions.create(model=NAME, prompt=["The", "A"], n=2, max_tokens=5, logprobs=3, echo=True)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [choice.text[: len(prompt)] for choice, prompt in zip(answer.choices, ["The", "The", "A", "A"], strict=True)]
    assert answer.choices[0].logprobs.token_logprobs[0] is None
    chat = client.chat.completions.create(model=NAME, messages=MESSAGES, max_tokens=3, logprobs=True, top_logprobs=2)
    assert len(chat.choices[0].logprobs.content[0].top_logprobs) == 2


def test_many_at_once(url):
    """Each gets what its seed gives alone."""

    async def ask(client: openai.AsyncOpenAI, seed: int) -> str:
        answer = await client.completions.create(model=NAME, prompt="The old", max_tokens=12, seed=seed)
        return answer.choices[0].text

    async def all_of_them() -> tuple[list[str], list[str]]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=120) as client:
            together = await asyncio.gather(*(ask(client, seed) for seed in range(8)))
            return together, [await ask(client, seed) for seed in range(8)]

    together, alone = asyncio.run(all_of_them())
    assert len(set(alone)) > 4
    assert together == alone


def test_an_impatient_client(client):
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.05).completions.create(
            model=NAME, prompt="The", max_tokens=900, extra_body={"ignore_eos": True}
        )
    stream = client.completions.create(model=NAME, prompt="The", max_tokens=900, stream=True)
    next(iter(stream))
    stream.close()
    assert client.completions.create(model=NAME, prompt="The", max_tokens=2).usage.prompt_tokens == 1


def test_refusals_are_the_clients_own_errors(client):
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.completions.create(model="other", prompt="The")
    with pytest.raises(openai.BadRequestError, match="response_format"):
        client.chat.completions.create(model=NAME, messages=MESSAGES, response_format={"type": "xml"})
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.completions.create(model=NAME, prompt="The", temperature=-1)
