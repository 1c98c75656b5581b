"""Answers in the two forms of OpenAI's API, sent whole, or step by step as server-sent events."""

import asyncio
import json
import logging
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from multidraft.server.answering import Answering, Delta, Piece
from multidraft.server.doors import as_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LOWEST = -9999.0  # in place of minus infinity, for which JSON has no number
Json = dict[str, Any]


class Format:
    """What both forms have in common: an envelope, choices in it, and what is said of their tokens."""

    prefix, whole_object, chunk_object = "", "", ""

    def __init__(self, answering: Answering):
        self.answering, self.top = answering, answering.body.tops
        self.tokenizer: PreTrainedTokenizerBase = answering.service.tokenizer
        self.id, self.created = f"{self.prefix}-{uuid.uuid4().hex}", int(time.time())

    def envelope(self, kind: str, choices: list[Json]) -> Json:
        """What is around choices."""
        model = self.answering.service.name
        return {"id": self.id, "object": kind, "created": self.created, "model": model, "choices": choices}

    def chunk(self, delta: Delta) -> Json:
        """One event of a stream."""
        choice = {"index": delta.index, **self.part(delta), "finish_reason": delta.finish}
        if self.answering.body.multidraft:
            choice["multidraft"] = self.origin(delta)
        chunk, body = self.envelope(self.chunk_object, [choice]), self.answering.body
        if body.streams("include_usage"):
            chunk["usage"] = self.answering.usage() if body.streams("continuous_usage_stats") else None
        return chunk

    def last(self) -> Json:
        """The event that a stream ends with, if it was asked for."""
        return self.envelope(self.chunk_object, []) | self.numbers()

    def numbers(self) -> Json:
        """How many tokens there were, and how the drafts fared."""
        return {"usage": self.answering.usage(), "metrics": self.answering.drafting()}

    def whole(self, deltas: list[Delta]) -> Json:
        """The response that is no stream."""
        pieces, finish = defaultdict[int, list[Piece]](list), dict[int, str | None]()
        for delta in deltas:
            pieces[delta.index] += delta.pieces
            finish[delta.index] = delta.finish
        choices = [
            {"index": index, **self.answer(index, pieces[index]), "finish_reason": finish[index]}
            for index in sorted(finish)
        ]
        return self.envelope(self.whole_object, choices) | self.numbers()

    def part(self, delta: Delta) -> Json:
        """A choice's part in an event."""
        raise NotImplementedError

    def answer(self, index: int, pieces: list[Piece]) -> Json:
        """A choice as a whole."""
        raise NotImplementedError

    def word(self, token: int) -> str:
        """A token's own text."""
        return str(self.tokenizer.decode([token], clean_up_tokenization_spaces=False))

    def best(self, piece: Piece) -> list[tuple[str, float]]:
        """The most likely tokens in a piece's place, as many as were asked for."""
        top = piece.logprob.top[: self.top] if piece.logprob else ()
        return [(self.word(token), max(logprob, LOWEST)) for token, logprob in top]

    def origin(self, delta: Delta) -> Json:
        """How the tokens came to be, and the tree that was drafted: nodes by their parents' places."""
        pieces = [{"text": piece.text, "kind": piece.kind} for piece in delta.pieces]
        if delta.step is None:
            return {"pieces": pieces, "tree": []}
        tokens, parents, path = delta.step.tokens, delta.step.parents, {0, *delta.step.path}
        tree = [
            {"text": self.word(token), "parent": parent if node else None, "accepted": node in path}
            for node, (token, parent) in enumerate(zip(tokens, parents, strict=True))
        ]
        return {"pieces": pieces, "tree": tree}


class Completion(Format):
    """Texts that go on."""

    prefix, whole_object, chunk_object = "cmpl", "text_completion", "text_completion"

    def __init__(self, answering: Answering):
        super().__init__(answering)
        self.lengths = defaultdict[int, int](int)  # of the texts so far

    def part(self, delta: Delta) -> Json:
        return self.answer(delta.index, delta.pieces)

    def answer(self, index: int, pieces: list[Piece]) -> Json:
        logprobs = self.logprobs(index, pieces) if self.top is not None else None
        return {"text": "".join(piece.text for piece in pieces), "logprobs": logprobs}

    def logprobs(self, index: int, pieces: list[Piece]) -> Json:
        """Four lists with a place for each token."""
        offsets = []
        for piece in pieces:
            offsets.append(self.lengths[index])
            self.lengths[index] += len(piece.text)
        known = [(piece, offset) for piece, offset in zip(pieces, offsets, strict=True) if piece.token >= 0]
        return {
            "tokens": [self.word(piece.token) for piece, _ in known],
            "token_logprobs": [piece.logprob and max(piece.logprob.logprob, LOWEST) for piece, _ in known],
            "top_logprobs": [self.by_word(piece) for piece, _ in known],
            "text_offset": [offset for _, offset in known],
        }

    def by_word(self, piece: Piece) -> dict[str, float] | None:
        """The most likely tokens and the one that came; of those with the same text the most likely."""
        if piece.logprob is None:
            return None
        own = (self.word(piece.token), max(piece.logprob.logprob, LOWEST))
        return dict(reversed([*self.best(piece), own]))


class Chat(Format):
    """Messages of an assistant."""

    prefix, whole_object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, answering: Answering):
        super().__init__(answering)
        self.begun = set[int]()

    def part(self, delta: Delta) -> Json:
        role = {} if delta.index in self.begun else {"role": "assistant"}
        self.begun.add(delta.index)
        return {"delta": role | {"content": delta.text}, "logprobs": self.logprobs(delta.pieces)}

    def answer(self, index: int, pieces: list[Piece]) -> Json:
        text = "".join(piece.text for piece in pieces)
        message = {"role": "assistant", "content": text, "refusal": None}  # without which a message is not valid
        return {"message": message, "logprobs": self.logprobs(pieces)}

    def logprobs(self, pieces: list[Piece]) -> Json | None:
        """A list with an entry for each token."""
        if self.top is None:
            return None
        return {"content": [self.entry(piece) for piece in pieces if piece.logprob is not None]}

    def entry(self, piece: Piece) -> Json:
        """One token's, with the most likely ones."""
        assert piece.logprob is not None
        tops = [named(*pair) for pair in self.best(piece)]
        return named(self.word(piece.token), max(piece.logprob.logprob, LOWEST)) | {"top_logprobs": tops}


def named(word: str, logprob: float) -> Json:
    """A token with its bytes, which are not known where it is a part of a character."""
    return {"token": word, "logprob": logprob, "bytes": None if "\ufffd" in word else list(word.encode())}


LOG = logging.getLogger(__name__)
AS_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Stream(StreamingResponse):
    """Events as they come; however it ends, the engine does not go on for nobody.

    A client that leaves them unread for too long is one, too: what it does not take would be kept for it.
    """

    def __init__(self, form: Format):
        super().__init__(events(form), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self.answering = form.answering

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            await asyncio.wait_for(send(message), self.answering.service.limits.unread)

        try:
            await super().__call__(scope, receive, sent)
        except TimeoutError:
            LOG.info("a client has left its stream unread")
        except asyncio.CancelledError:
            if not self.answering.service.engine.closing:
                raise
            LOG.info("a client has not read its stream to the end before the server was stopped")
        finally:
            self.answering.cancel()


async def events(form: Format) -> AsyncIterator[str]:
    """One event a step, then the numbers where they are asked for, and the end; an error is an event, too."""
    try:
        async for delta in form.answering.deltas():
            yield event(form.chunk(delta))
        if form.answering.body.streams("include_usage"):
            yield event(form.last())
    except Exception as error:
        yield event(as_json(error))
    yield "data: [DONE]\n\n"


def event(value: dict[str, Any]) -> str:
    """One server-sent event."""
    return f"data: {AS_JSON(value)}\n\n"


async def reply(request: Request, form: Format) -> Response:
    """The response, as it was asked for."""
    if form.answering.body.stream:
        return Stream(form)
    work, gone = asyncio.ensure_future(collected(form)), asyncio.ensure_future(vanished(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        return JSONResponse(await work) if work.done() else Response(status_code=499)  # which nobody reads
    finally:
        form.answering.cancel()
        for task in (work, gone):
            task.cancel()


async def collected(form: Format) -> dict[str, Any]:
    """All of the answers."""
    return form.whole([delta async for delta in form.answering.deltas()])


async def vanished(request: Request) -> None:
    """Wait until the client has gone; its request has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
