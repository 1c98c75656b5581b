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

from multidraft.server.answering import Answering, Delta, Piece, joined
from multidraft.server.doors import as_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LOG = logging.getLogger(__name__)
AS_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
LOWEST = -9999.0  # in place of minus infinity, for which JSON has no number
Json = dict[str, Any]


class Completion:
    """Texts that go on: an envelope, choices in it, and what is said of their tokens."""

    prefix, whole_object, chunk_object = "cmpl", "text_completion", "text_completion"

    def __init__(self, answering: Answering):
        self.answering, self.body = answering, answering.body
        self.lengths = defaultdict[int, int](int)  # of the texts so far
        self.tokenizer: PreTrainedTokenizerBase = answering.service.tokenizer
        self.id, self.created = f"{self.prefix}-{uuid.uuid4().hex}", int(time.time())

    def envelope(self, kind: str, choices: list[Json]) -> Json:
        """What is around choices."""
        model = self.answering.service.name
        return {"id": self.id, "object": kind, "created": self.created, "model": model, "choices": choices}

    def chunk(self, delta: Delta) -> Json:
        """One event of a stream."""
        choice = {"index": delta.index, **self.part(delta), "finish_reason": delta.finish}
        if self.body.multidraft:
            choice["multidraft"] = self.origin(delta)
        chunk = self.envelope(self.chunk_object, [choice])
        if self.body.streams("include_usage"):
            chunk["usage"] = self.answering.usage() if self.body.streams("continuous_usage_stats") else None
        return chunk

    def numbers(self) -> Json:
        """How many tokens there were, and how the drafts fared, in vLLM's words."""
        drafting = {"speculative_decoding": self.answering.info.as_vllm()}
        return {"usage": self.answering.usage(), "metrics": drafting}

    async def whole(self) -> Json:
        """The response that is no stream."""
        pieces, finish = defaultdict[int, list[Piece]](list), dict[int, str | None]()
        async for delta in self.answering.deltas():
            pieces[delta.index] += delta.pieces
            finish[delta.index] = delta.finish
        choices = [{"index": i, **self.answer(i, pieces[i]), "finish_reason": finish[i]} for i in sorted(finish)]
        return self.envelope(self.whole_object, choices) | self.numbers()

    async def events(self) -> AsyncIterator[str]:
        """One event a step, then the numbers where they are asked for, and the end; an error is an event, too."""
        try:
            async for delta in self.answering.deltas():
                yield event(self.chunk(delta))
            if self.body.streams("include_usage"):
                yield event(self.envelope(self.chunk_object, []) | self.numbers())
        except Exception as error:
            yield event(as_json(error))
        yield "data: [DONE]\n\n"

    def part(self, delta: Delta) -> Json:
        """A choice's part in an event."""
        return self.answer(delta.index, delta.pieces)

    def answer(self, index: int, pieces: list[Piece]) -> Json:
        """A choice as a whole."""
        return {"text": joined(pieces), "logprobs": None if self.body.tops is None else self.logprobs(index, pieces)}

    def word(self, token: int) -> str:
        """A token's own text."""
        return str(self.tokenizer.decode([token], clean_up_tokenization_spaces=False))

    def best(self, piece: Piece) -> list[tuple[str, float]]:
        """The most likely tokens in a piece's place, as many as were asked for."""
        top = piece.logprob.top[: self.body.tops] if piece.logprob else ()
        return [(self.word(token), max(logprob, LOWEST)) for token, logprob in top]

    def own(self, piece: Piece) -> tuple[str, float]:
        """A piece's own token, which has a number."""
        assert piece.logprob is not None
        return self.word(piece.token), max(piece.logprob.logprob, LOWEST)

    def logprobs(self, index: int, pieces: list[Piece]) -> Json:
        """Four lists with a place for each token; of the most likely ones with the same text the likeliest is told."""
        offsets = []
        for piece in pieces:
            offsets.append(self.lengths[index])
            self.lengths[index] += len(piece.text)
        known = [(piece, offset) for piece, offset in zip(pieces, offsets, strict=True) if piece.token >= 0]
        return {
            "tokens": [self.word(piece.token) for piece, _ in known],
            "token_logprobs": [self.own(piece)[1] if piece.logprob else None for piece, _ in known],
            "top_logprobs": [
                dict(reversed([*self.best(piece), self.own(piece)])) if piece.logprob else None for piece, _ in known
            ],
            "text_offset": [offset for _, offset in known],
        }

    def origin(self, delta: Delta) -> Json:
        """How the tokens came to be, and the tree that was drafted: nodes by their parents' places."""
        pieces, step = [{"text": piece.text, "kind": piece.kind} for piece in delta.pieces], delta.step
        nodes = list(zip(step.tokens, step.parents, strict=True)) if step else []
        path = {0, *step.path} if step else set()
        tree = [
            {"text": self.word(token), "parent": parent if node else None, "accepted": node in path}
            for node, (token, parent) in enumerate(nodes)
        ]
        return {"pieces": pieces, "tree": tree}


class Chat(Completion):
    """Messages of an assistant."""

    prefix, whole_object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def part(self, delta: Delta) -> Json:
        role = {} if delta.index in self.lengths else {"role": "assistant"}
        said = super().answer(delta.index, delta.pieces)
        self.lengths[delta.index] += len(said["text"])
        return {"delta": role | {"content": said["text"]}, "logprobs": said["logprobs"]}

    def answer(self, index: int, pieces: list[Piece]) -> Json:
        said = super().answer(index, pieces)
        message = {"role": "assistant", "content": said["text"], "refusal": None}  # without which it is not valid
        return {"message": message, "logprobs": said["logprobs"]}

    def logprobs(self, index: int, pieces: list[Piece]) -> Json:
        """A list with an entry for each token, with the most likely ones in its place."""
        known = [piece for piece in pieces if piece.logprob is not None]
        tops = ({"top_logprobs": [named(*pair) for pair in self.best(piece)]} for piece in known)
        return {"content": [named(*self.own(piece)) | top for piece, top in zip(known, tops, strict=True)]}


def named(word: str, logprob: float) -> Json:
    """A token with its bytes, which are not known where it is a part of a character."""
    return {"token": word, "logprob": logprob, "bytes": None if "\ufffd" in word else list(word.encode())}


def event(value: Json) -> str:
    """One server-sent event."""
    return f"data: {AS_JSON(value)}\n\n"


class Stream(StreamingResponse):
    """Events as they come; however it ends, the engine does not go on for nobody.

    A client that leaves them unread for too long is one, too: what it does not take would be kept for it.
    """

    def __init__(self, form: Completion):
        super().__init__(form.events(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
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


async def reply(request: Request, form: Completion) -> Response:
    """The response, as it was asked for."""
    if form.body.stream:
        return Stream(form)
    work, gone = asyncio.ensure_future(form.whole()), asyncio.ensure_future(vanished(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        return JSONResponse(await work) if work.done() else Response(status_code=499)  # which nobody reads
    finally:
        form.answering.cancel()
        work.cancel()
        gone.cancel()


async def vanished(request: Request) -> None:
    """Wait until the client has gone; its request has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
