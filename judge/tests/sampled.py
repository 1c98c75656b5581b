"""Samplers of known laws over a few letters, innocent and biased, with drafts and without; and a server over one."""

import json
import math
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
from multidraft_judge.evidence.observation import Ask, Completion, Token

LETTERS = "abcd"
DRAFT = (0.1, 0.2, 0.3, 0.4)
Law = tuple[float, ...]


def target(context: str) -> Law:
    """The law of the next letter, which hangs on the last one."""
    laws = {"a": (0.6, 0.25, 0.1, 0.05), "b": (0.2, 0.5, 0.2, 0.1), "c": (0.3, 0.1, 0.55, 0.05)}
    return laws.get(context[-1:], (0.4, 0.3, 0.2, 0.1))


def draw(law: Law, rng: random.Random) -> str:
    """A letter."""
    return rng.choices(LETTERS, law)[0]


def plain(context: str, rng: random.Random) -> str:
    """A step without drafts."""
    return draw(target(context), rng)


def outcomes(context: str) -> Iterator[tuple[str, float]]:
    """What a lossless step with one draft emits, with its probability: an accepted letter and a bonus, or another."""
    law = target(context)
    accepted = [min(p, q) for p, q in zip(law, DRAFT, strict=True)]
    for letter, p, both in zip(LETTERS, law, accepted, strict=True):
        yield letter, p - both  # recovered, from what drafts leave of the target
        for bonus, share in zip(LETTERS, target(context + letter), strict=True):
            yield letter + bonus, both * share


def texts(context: str, length: int) -> Iterator[tuple[list[str], float]]:
    """Every way in which lossless steps write a text, chunk by chunk, with its probability."""
    if length <= 0:
        yield [], 1.0
        return
    for piece, p in outcomes(context):
        for following, q in texts(context + piece, length - len(piece)):
            yield [piece[:length], *following], p * q


def speculative(context: str, rng: random.Random) -> str:
    """A lossless step with a draft."""
    pieces, weights = zip(*outcomes(context), strict=True)
    return rng.choices(pieces, weights)[0]


def mixed(share: float) -> Callable[[str, random.Random], str]:
    """A step that draws a part of the letters from the draft."""
    return lambda context, rng: draw(DRAFT if rng.random() < share else target(context), rng)


def typical(context: str, rng: random.Random) -> str:
    """Typical acceptance: a draft is accepted if the target likes it enough; else the target's letter."""
    letter = draw(DRAFT, rng)
    return letter if target(context)[LETTERS.index(letter)] > 0.3 else draw(target(context), rng)


def listed(context: str) -> dict[str, float]:
    """The logarithms that are reported."""
    return {letter: math.log(p) for letter, p in zip(LETTERS, target(context), strict=True)}


def completion(ask: Ask, chunks: list[str], top: int = 3) -> Completion:
    """An answer that came in these chunks, with the likeliest letters at every place."""
    tokens, context = [], ask.prompt
    for number, chunk in enumerate(chunks):
        for letter in chunk:
            values = listed(context)
            likeliest = sorted(values.items(), key=lambda pair: -pair[1])[:top]
            tokens.append(Token(letter, values[letter], tuple(likeliest), number))
            context += letter
    return Completion(ask, tokens)


def write(step: Callable[[str, random.Random], str], ask: Ask, rng: random.Random) -> list[str]:
    """The chunks of an answer."""
    chunks, context = list[str](), ask.prompt
    while (room := ask.max_tokens - sum(map(len, chunks))) > 0:
        chunks.append(step(context, rng)[:room])
        context += chunks[-1]
    return chunks


class RecordedServer:
    """What stands for the network in place of a server that `answer` makes, and the bodies that it was sent."""

    def __init__(self) -> None:
        self.bodies = list[dict[str, Any]]()

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        """The answer to a request."""
        raise NotImplementedError

    @property
    def transport(self) -> httpx2.MockTransport:
        """In place of the network."""
        return httpx2.MockTransport(self.answer)

    @property
    def prompts(self) -> Counter[str]:
        """How often each prompt was asked."""
        return Counter(body["prompt"] for body in self.bodies)


class FakeServer(RecordedServer):
    """A server in the form of OpenAI's, as a transport: it counts requests, and can be made to misbehave."""

    def __init__(self, step: Callable[[str, random.Random], str] = speculative, owner: str = "multidraft"):
        super().__init__()
        self.step, self.owner, self.lock = step, owner, threading.Lock()
        self.says_ids = False  # of tokens
        self.busy = 0  # so many requests are answered with 429
        self.change: Callable[[dict[str, Any]], Any] = lambda choice: choice  # of every choice

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        """The answer to a request."""
        if request.url.path == "/v1/models":
            return httpx2.Response(200, json={"data": [{"id": "toy", "owned_by": self.owner}]})
        body = json.loads(request.content)
        with self.lock:
            if self.busy:
                self.busy -= 1
                return httpx2.Response(429, json={"error": {"message": "busy"}}, headers={"Retry-After": "0"})
            self.bodies.append(body)
            count = sum(other == body for other in self.bodies)
        if body.get("echo"):
            prompt = body["prompt"]
            text = prompt if isinstance(prompt, str) else "".join(map(chr, prompt))
            return httpx2.Response(200, json={"choices": [self.change(self.scored(text))]})
        rng = random.Random(f"{body} {0 if 'seed' in body else count}")
        step = self.step if body["temperature"] else lambda context, _: max(listed(context), key=listed(context).get)
        ask = Ask(0, body["prompt"], body["max_tokens"], body["temperature"])
        parts = [self.change(choice) for choice in self.choices(ask, write(step, ask, rng))]
        if not body.get("stream"):
            lists = [part["logprobs"] for part in parts if part.get("logprobs")]
            whole = {name: [value for block in lists for value in block[name]] for name in (lists[0] if lists else {})}
            choice = parts[-1] | {"text": "".join(part["text"] for part in parts), "logprobs": whole or None}
            choice |= {"token_ids": [number for part in parts for number in part["token_ids"]]} if self.says_ids else {}
            return httpx2.Response(200, json={"choices": [choice]})
        lines = [f"data: {json.dumps({'choices': [part]})}\n\n" for part in parts]
        return httpx2.Response(200, text="".join([*lines, "data: [DONE]\n\n"]))

    def choices(self, ask: Ask, chunks: list[str]) -> Iterator[dict[str, Any]]:
        """One choice a chunk."""
        context = ask.prompt
        for chunk in chunks:
            ids = (
                {"token_ids": [*map(ord, chunk)], "prompt_token_ids": [*map(ord, ask.prompt)]} if self.says_ids else {}
            )
            yield {"index": 0, "text": chunk, "finish_reason": None, "logprobs": self.logprobs(context, chunk)} | ids
            context += chunk

    def scored(self, text: str) -> dict[str, Any]:
        """A text with the log-probabilities of its letters, and one letter more."""
        return {"index": 0, "text": text + "a", "finish_reason": "length", "logprobs": self.logprobs("", text + "a")}

    def logprobs(self, context: str, chunk: str) -> dict[str, Any]:
        """The lists of a chunk."""
        contexts = [context + chunk[:place] for place in range(len(chunk))]
        pairs = list(zip(chunk, map(listed, contexts), strict=True))
        return {
            "tokens": [letter if letter in LETTERS else "?" for letter, _ in pairs],
            "token_logprobs": [values.get(letter, 0.0) for letter, values in pairs],
            "top_logprobs": [values for _, values in pairs],
        }
