"""One request's answers: events of the engine's thread become pieces of text, and these what OpenAI's API sends.

Answers go out whole, or step by step as server-sent events.
"""

import asyncio
import json
import logging
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from multidraft.decoding.metrics import Info, tally
from multidraft.decoding.record import Logprob
from multidraft.generation.text import IncrementalDetokenizer
from multidraft.server import LATE, Refused
from multidraft.server.bodies import Sampled
from multidraft.server.process import as_json
from multidraft.server.rows import Event, Job, Step
from multidraft.server.service import Service

LOG = logging.getLogger(__name__)
AS_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
LOWEST = -9999.0  # in place of minus infinity, for which JSON has no number
Json = dict[str, Any]


@dataclass(frozen=True)
class Piece:
    """A token: what it adds to the text, and how it came to be."""

    token: int
    text: str
    kind: str
    logprob: Logprob | None = None


def joined(pieces: Iterable[Piece]) -> str:
    """The text of all pieces."""
    return "".join(piece.text for piece in pieces)


class Choice:
    """One answer so far: tokens come in, and pieces go out as soon as no stop string can begin in them."""

    def __init__(self, index: int, job: Job, service: Service, body: Sampled):
        self.index, self.job = index, job
        self.stops, self.least = body.stops, body.min_tokens or 0  # tokens before which no stop string ends it
        self.reader = IncrementalDetokenizer(service.tokenizer, job.prompt)
        self.held, self.tokens, self.stopped = list[Piece](), 0, False
        self.finish: str | None = None
        self.last = time.monotonic()  # when tokens came
        self.begun, self.length = False, 0  # whether anything has been sent, and how much text

    def add(self, token: int, kind: str, logprob: Logprob | None) -> list[Piece]:
        """One more token; what can be shown now that it is known."""
        self.held.append(Piece(token, self.reader.add(token), kind, logprob))
        self.tokens += 1
        text, stops = joined(self.held), self.stops if self.tokens > self.least else ()
        ends = [place for stop in stops if (place := text.find(stop)) >= 0]
        self.stopped = bool(ends)
        return self.let_go(min(ends) if ends else len(text) - max((overlap(text, stop) for stop in stops), default=0))

    def let_go(self, count: int) -> list[Piece]:
        """The pieces within the first characters; the one that reaches beyond stays, or is cut at a stop string."""
        free: list[Piece] = []
        while self.held and len(self.held[0].text) <= count:
            count -= len(self.held[0].text)
            free.append(self.held.pop(0))
        return [*free, replace(self.held[0], text=self.held[0].text[:count])] if self.stopped and count else free

    def close(self) -> list[Piece]:
        """What was held back, unless a stop string is in it."""
        last = self.reader.close()
        return [] if self.stopped else [*self.held, *([Piece(-1, last, "corrected")] if last else [])]


def overlap(text: str, stop: str) -> int:
    """The length of the longest end of a text that a stop string begins with, but for all of it.

    >>> overlap("to be", "begin")
    2
    """
    lengths = range(min(len(text), len(stop) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(stop[:length])), 0)


class Answers:
    """All answers to one request, as they grow. Leave it with `cancel`, or the engine goes on for nobody."""

    def __init__(self, service: Service, body: Sampled, jobs: list[Job], request_id: str = ""):
        self.service, self.body, self.info, self.request_id = service, body, Info(), request_id
        self.began, self.created, self.id = time.monotonic(), int(time.time()), uuid.uuid4().hex
        self.events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self.choices = [Choice(index, job, service, body) for index, job in enumerate(jobs)]
        for index, job in enumerate(jobs):
            job.hear = partial(self.hear, index)
        service.engine.submit(jobs)
        service.queues.add(self.events)

    def hear(self, index: int, event: Event) -> None:
        """One more event, in the event loop's thread."""
        self.events.put_nowait((index, event))

    async def news(self) -> AsyncIterator[tuple[Choice, list[Piece], Step | None]]:
        """What each event adds to an answer, until all have ended; raises what the engine raised for one of them."""
        try:
            while any(choice.finish is None for choice in self.choices):
                async with asyncio.timeout(self.service.limits.request + self.began - time.monotonic()):
                    index, event = await self.events.get()
                if event.error is not None:
                    raise event.error
                choice = self.choices[index]
                if choice.finish is None and ((pieces := self.pieces(choice, event)) or choice.finish):
                    yield choice, pieces, event.step
        except TimeoutError:
            raise Refused(*LATE) from None
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Nobody listens any more."""
        self.service.queues.discard(self.events)
        for choice in self.choices:
            choice.job.cancelled = True

    def pieces(self, choice: Choice, event: Event) -> list[Piece]:
        """What can be shown now; an echoed prompt's first token has no probability."""
        shown = list[Piece]()
        if event.prompt is not None and getattr(self.body, "echo", False):
            reader = IncrementalDetokenizer(self.service.tokenizer, [])
            pairs = zip_longest(choice.job.prompt, [None, *event.prompt])
            shown += [Piece(token, reader.add(token), "prompt", logprob) for token, logprob in pairs]
        if event.step is not None:
            self.count(choice, event.step)
            new = event.step.new
            for token, kind, logprob in zip_longest(new.tokens, new.kinds, new.logprobs):
                if not choice.stopped:
                    shown += choice.add(token, kind, logprob)
        if choice.stopped or event.end is not None:
            shown += choice.close()
            choice.finish, choice.job.cancelled = "stop" if choice.stopped else event.end, True
            self.service.metrics.ended(str(choice.finish), time.monotonic() - self.began)
        return shown

    def count(self, choice: Choice, step: Step) -> None:
        """Note the numbers and the times of a step."""
        self.info.accepted += len(step.path)
        self.info.row_passes += 1
        if len(step.tokens) > 1:
            self.info.drafts, self.info.nodes = self.info.drafts + 1, self.info.nodes + len(step.tokens) - 1
            tally(self.info.lengths, len(step.path), step.depth)
        now, seconds = time.monotonic(), self.service.metrics.seconds
        if not choice.tokens:
            seconds["time_to_first_token_seconds"].observe(now - self.began)
        else:
            seconds["inter_token_latency_seconds"].observe((now - choice.last) / max(len(step.new.tokens), 1))
        choice.last = now

    def usage(self) -> dict[str, int]:
        """How many tokens were read and emitted so far."""
        prompts = [choice.job.prompt for choice in self.choices[:: self.body.choices]]
        read, new = sum(map(len, prompts)), sum(choice.tokens for choice in self.choices)
        return {"prompt_tokens": read, "completion_tokens": new, "total_tokens": read + new}


class Completion(Answers):
    """Texts that go on: an envelope, choices in it, and what is said of their tokens."""

    prefix, whole_object, chunk_object = "cmpl", "text_completion", "text_completion"

    def envelope(self, kind: str, choices: list[Json]) -> Json:
        """What is around choices."""
        about = {"id": f"{self.prefix}-{self.id}", "object": kind, "created": self.created}
        return about | {"model": self.service.names[0], "choices": choices}

    def chunk(self, choice: Choice, pieces: list[Piece], step: Step | None) -> Json:
        """One event of a stream."""
        said = {"index": choice.index, **self.said(choice, pieces, True), "finish_reason": choice.finish}
        if self.body.multidraft:
            said["multidraft"] = self.origin(pieces, step)
        chunk = self.envelope(self.chunk_object, [said])
        if self.body.streams("include_usage"):
            chunk["usage"] = self.usage() if self.body.streams("continuous_usage_stats") else None
        choice.begun = True
        return chunk

    def numbers(self) -> Json:
        """How many tokens there were, and how the drafts fared, in vLLM's words."""
        return {"usage": self.usage(), "metrics": {"speculative_decoding": self.info.as_vllm()}}

    async def whole(self) -> Json:
        """The response that is no stream."""
        shown = defaultdict[int, list[Piece]](list)
        async for choice, pieces, _ in self.news():
            shown[choice.index] += pieces
        choices = [
            {"index": choice.index, **self.said(choice, shown[choice.index]), "finish_reason": choice.finish}
            for choice in self.choices
        ]
        return self.envelope(self.whole_object, choices) | self.numbers()

    async def stream(self) -> AsyncIterator[str]:
        """One event a step, then the numbers where they are asked for, and the end; an error is an event, too."""
        try:
            async for new in self.news():
                yield sent(self.chunk(*new))
            if self.body.streams("include_usage"):
                yield sent(self.envelope(self.chunk_object, []) | self.numbers())
        except Exception as error:
            yield sent(as_json(error, self.request_id))
        yield "data: [DONE]\n\n"

    def said(self, choice: Choice, pieces: list[Piece], streamed: bool = False) -> Json:
        """A choice's text and what is said of its tokens: all of it, or a part that is streamed."""
        logprobs = None if self.body.tops is None else self.logprobs(choice, pieces)
        return {"text": joined(pieces), "logprobs": logprobs}

    def word(self, token: int) -> str:
        """A token's own text."""
        return str(self.service.tokenizer.decode([token], clean_up_tokenization_spaces=False))

    def told(self, piece: Piece) -> tuple[str, float | None, list[tuple[str, float]]]:
        """A token's own text, its number if it has one, and as many of the most likely ones as were asked for."""
        if piece.logprob is None:
            return self.word(piece.token), None, []
        tops = [(self.word(token), max(value, LOWEST)) for token, value in piece.logprob.top[: self.body.tops]]
        return self.word(piece.token), max(piece.logprob.logprob, LOWEST), tops

    def logprobs(self, choice: Choice, pieces: list[Piece]) -> Json:
        """Four lists with a place for each token; of the most likely ones with the same text the likeliest is told."""
        lists: dict[str, list] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for piece in pieces:
            if piece.token >= 0:
                word, own, tops = self.told(piece)
                best = None if own is None else dict(reversed([*tops, (word, own)]))
                for values, value in zip(lists.values(), (word, own, best, choice.length), strict=True):
                    values.append(value)
            choice.length += len(piece.text)
        return lists

    def origin(self, pieces: list[Piece], step: Step | None) -> Json:
        """How the tokens came to be, and the tree that was drafted: nodes by their parents' places."""
        nodes = enumerate(zip(step.tokens, step.parents, strict=True)) if step else ()
        path = {0, *step.path} if step else set()
        tree = [
            {"text": self.word(token), "parent": parent if node else None, "accepted": node in path}
            for node, (token, parent) in nodes
        ]
        return {"pieces": [{"text": piece.text, "kind": piece.kind} for piece in pieces], "tree": tree}


class Chat(Completion):
    """Messages of an assistant."""

    prefix, whole_object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def said(self, choice: Choice, pieces: list[Piece], streamed: bool = False) -> Json:
        said = super().said(choice, pieces)
        role, content = {} if choice.begun else {"role": "assistant"}, {"content": said["text"]}
        if streamed:
            return {"delta": role | content, "logprobs": said["logprobs"]}
        return {"message": role | content | {"refusal": None}, "logprobs": said["logprobs"]}  # else it is not valid

    def logprobs(self, choice: Choice, pieces: list[Piece]) -> Json:
        """A list with an entry for each token, with the most likely ones in its place."""
        told = [self.told(piece) for piece in pieces if piece.logprob is not None]
        tops = [{"top_logprobs": [named(*pair) for pair in tops]} for _, _, tops in told]
        return {"content": [named(word, own) | top for (word, own, _), top in zip(told, tops, strict=True)]}


def named(word: str, logprob: float | None) -> Json:
    """A token with its bytes, which are not known where it is a part of a character."""
    return {"token": word, "logprob": logprob, "bytes": None if "\ufffd" in word else list(word.encode())}


def sent(value: Json) -> str:
    """One server-sent event."""
    return f"data: {AS_JSON(value)}\n\n"


class StreamUnread(Exception):
    """A client has not taken a part of its stream in time; no OSError, which Starlette takes for a lost connection."""


class Stream(StreamingResponse):
    """Events as they come; however it ends, the engine does not go on for nobody.

    A client that leaves them unread for too long is one, too: what it does not take would be kept for it.
    """

    def __init__(self, form: Completion):
        super().__init__(form.stream(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self.form = form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def patient(message: Message) -> None:
            try:
                await asyncio.wait_for(send(message), self.form.service.limits.unread)
            except TimeoutError:
                raise StreamUnread from None

        try:
            await super().__call__(scope, receive, patient)
        except ClientDisconnect:
            LOG.info("a client has gone before its stream was read to the end")
        except StreamUnread:
            LOG.info("a client has left its stream unread")
        except asyncio.CancelledError:
            if not self.form.service.engine.closing:
                raise
            LOG.info("a client has not read its stream to the end before the server was stopped")
        finally:
            self.form.cancel()


async def reply(request: Request, form: Completion) -> Response:
    """The response, as it was asked for."""
    if form.body.stream:
        return Stream(form)
    work, gone = asyncio.ensure_future(form.whole()), asyncio.ensure_future(vanished(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        return JSONResponse(await work) if work.done() else Response(status_code=499)  # which nobody reads
    finally:
        form.cancel()
        work.cancel()
        gone.cancel()


async def vanished(request: Request) -> None:
    """Wait until the client has gone; its request has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
