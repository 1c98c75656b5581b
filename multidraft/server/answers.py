"""One request's answers: engine updates become pieces of text, and pieces become OpenAI API responses.

A response is sent whole, or step by step as server-sent events.
"""

import asyncio
import json
import logging
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import NamedTuple

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from multidraft.decoding.metrics import Info, tally
from multidraft.decoding.record import Logprob
from multidraft.decoding.request import Request as EngineRequest
from multidraft.decoding.request import Step, Update
from multidraft.generation.stopping import TextReader
from multidraft.generation.text import REPLACEMENT, IncrementalDetokenizer, token_bytes, token_text
from multidraft.machine import is_busy
from multidraft.server import TIMEOUT_ERROR, Refused
from multidraft.server.calls import CallDelta, CallReader, ThoughtReader, calls_of
from multidraft.server.process import error_as_json
from multidraft.server.request_bodies import ChatBody, GenerationBody
from multidraft.server.service import Service
from multidraft.server.structured import has_form
from multidraft.server.tools import Json

LOG = logging.getLogger(__name__)
encode_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
MIN_LOGPROB = -9999.0  # in place of minus infinity, for which JSON has no number


class Origin(NamedTuple):
    """The token of a piece of text, and its kind: accepted, recovered, bonus or prompt; -1 for the end of a text."""

    token: int
    kind: str
    logprob: Logprob | None = None


@dataclass(frozen=True)
class Piece:
    """A token and the text that it adds."""

    text: str
    token: int
    kind: str
    logprob: Logprob | None = None


def text_of(pieces: Iterable[Piece]) -> str:
    """The joined text of the pieces."""
    return "".join(piece.text for piece in pieces)


def token_names(texts: Mapping[int, str], tops: Collection[int]) -> dict[int, str]:
    """Tokens' names: their texts, or as in vLLM numbers, of parts of characters and where a likely one has the text.

    Those of the likeliest do not depend on the token that came: who names them by it tells whether it came twice.
    """
    counts = Counter(texts[token] for token in tops)
    return {
        token: f"token_id:{token}" if REPLACEMENT in text or counts[text] > (token in tops) else text
        for token, text in texts.items()
    }


class Choice:
    """One answer so far: it takes tokens, and releases pieces once no stop string can begin in them."""

    def __init__(self, index: int, request: EngineRequest, service: Service, body: GenerationBody):
        self.index, self.request = index, request
        self.calls, self.has_form = call_reader(body), has_form(body)
        mode = service.thinking(body, request.prompt)
        separates = self.calls is not None or (self.has_form and mode is not None)
        self.thoughts = ThoughtReader(mode is True, keeps_tags=not self.has_form) if separates else None
        chat_stops = service.chat_stops if isinstance(body, ChatBody) and not body.ignore_eos else []
        stopping = [*body.stops, *chat_stops], body.min_tokens or 0, bool(body.include_stop_str_in_output)
        self.text = TextReader[Origin](service.tokenizer, request.prompt, *stopping)
        self.num_tokens = 0
        self.finish_reason: str | None = None
        self.last_time = time.monotonic()  # of the last step
        self.has_sent, self.text_length = False, 0  # of what was sent
        self.prompt_tokens_read = self.cached_tokens = 0

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string has ended the answer."""
        return self.text.stopped

    def add(self, token: int, kind: str, logprob: Logprob | None) -> list[Piece]:
        """Take one token; return the pieces that can be sent now."""
        self.num_tokens += 1
        return [Piece(text, *origin) for origin, text in self.text.add(token, Origin(token, kind, logprob))]

    def close(self) -> list[Piece]:
        """Return the held pieces, unless a stop string ended the answer."""
        return [Piece(text, *(origin or Origin(-1, "recovered"))) for origin, text in self.text.close()]


def call_reader(body: GenerationBody) -> CallReader | None:
    """What finds calls in an answer; None if the request offers no functions."""
    names = body.functions if body.tool_choice != "none" else ()
    return CallReader(names, body.is_single_call) if names else None


class Answers:
    """All answers to one request, as they grow. Call `cancel` when done, or the engine goes on decoding."""

    def __init__(self, service: Service, body: GenerationBody, requests: list[EngineRequest], request_id: str = ""):
        self.service, self.body, self.info, self.request_id = service, body, Info(), request_id
        self.start_time, self.created, self.id = time.monotonic(), int(time.time()), uuid.uuid4().hex
        self.queue: asyncio.Queue[tuple[int, Update]] = asyncio.Queue()
        self.choices = [Choice(index, request, service, body) for index, request in enumerate(requests)]
        for index, request in enumerate(requests):
            request.on_update = partial(self.put_update, index)
        service.engine.submit(requests)
        service.update_queues.add(self.queue)

    def put_update(self, index: int, update: Update) -> None:
        """Queue an update; called in the event loop's thread."""
        self.queue.put_nowait((index, update))

    async def updates(self) -> AsyncIterator[tuple[Choice, list[Piece], Step | None]]:
        """Yield what each update adds to its answer until all have ended; raises the engine's error for any."""
        try:
            while any(choice.finish_reason is None for choice in self.choices):
                async with asyncio.timeout(self.service.limits.request + self.start_time - time.monotonic()):
                    index, update = await self.queue.get()
                if update.error is not None:
                    raise update.error
                choice = self.choices[index]
                choice.cached_tokens += update.cached_tokens or 0
                if update.prompt_tokens_read is not None:
                    choice.prompt_tokens_read = update.prompt_tokens_read
                    if self.body.multidraft:
                        yield choice, [], None
                elif choice.finish_reason is None and (
                    (pieces := self.pieces_of(choice, update)) or choice.finish_reason
                ):
                    yield choice, pieces, update.step
        except TimeoutError:
            raise Refused(*TIMEOUT_ERROR) from None
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Stop listening, and let the engine drop the rows."""
        self.service.update_queues.discard(self.queue)
        for choice in self.choices:
            choice.request.cancelled = True

    def pieces_of(self, choice: Choice, update: Update) -> list[Piece]:
        """The pieces that an update adds; an echoed prompt's first token has no log-probability."""
        shown = list[Piece]()
        if update.prompt_logprobs is not None and getattr(self.body, "echo", False):
            reader = IncrementalDetokenizer(self.service.tokenizer, [])
            pairs = zip_longest(choice.request.prompt, [None, *update.prompt_logprobs])
            shown += [Piece(reader.add(token), token, "prompt", logprob) for token, logprob in pairs]
        if update.step is not None:
            self.count_step(choice, update.step)
            emitted = update.step.emitted
            for token, kind, logprob in zip_longest(emitted.tokens, emitted.kinds, emitted.logprobs):
                if not choice.is_stopped:
                    shown += choice.add(token, kind, logprob)
        if choice.is_stopped or update.end is not None:
            shown += choice.close()
            choice.finish_reason, choice.request.cancelled = "stop" if choice.is_stopped else update.end, True
            self.service.memory.add(choice.request.owner, choice.request.text)
            self.service.metrics.count_end(str(choice.finish_reason), time.monotonic() - self.start_time)
        return shown

    def count_step(self, choice: Choice, step: Step) -> None:
        """Count a step's tokens, and observe its latency."""
        self.info.accepted += len(step.path)
        self.info.row_passes += 1
        if len(step.tokens) > 1:
            self.info.draft_steps, self.info.nodes = self.info.draft_steps + 1, self.info.nodes + len(step.tokens) - 1
            tally(self.info.lengths, len(step.path), step.depth)
        now, histograms = time.monotonic(), self.service.metrics.histograms
        if not choice.num_tokens:
            histograms["time_to_first_token_seconds"].observe(now - self.start_time)
        else:
            histograms["inter_token_latency_seconds"].observe(
                (now - choice.last_time) / max(len(step.emitted.tokens), 1)
            )
        choice.last_time = now

    def usage(self) -> Json:
        """The numbers of prompt tokens, of those among them that were read before, and of emitted tokens so far."""
        firsts = self.choices[:: self.body.choices]  # of each prompt
        prompt, new = sum(len(c.request.prompt) for c in firsts), sum(choice.num_tokens for choice in self.choices)
        counts = {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}
        return counts | {"prompt_tokens_details": {"cached_tokens": sum(choice.cached_tokens for choice in firsts)}}


class Completion(Answers):
    """Continued texts, in the form of OpenAI's completions."""

    prefix, whole_object, chunk_object = "cmpl", "text_completion", "text_completion"

    def envelope(self, kind: str, choices: list[Json]) -> Json:
        """The object around the choices."""
        envelope = {"id": f"{self.prefix}-{self.id}", "object": kind, "created": self.created}
        return envelope | {"model": self.service.names[0], "choices": choices}

    def chunk(self, choice: Choice, pieces: list[Piece], step: Step | None) -> Json:
        """One step's object in a stream."""
        fields: Json = {"index": choice.index} | self.choice_fields(choice, pieces, True)
        fields["finish_reason"] = choice.finish_reason
        if self.body.multidraft:
            fields["multidraft"] = self.draft_tree(pieces, step) | {
                "prompt_tokens_read": choice.prompt_tokens_read,
                "plain_seconds": self.service.engine.outlook.plain_seconds,
                "busy": is_busy(),
            }
        chunk = self.envelope(self.chunk_object, [fields])
        if self.body.has_stream_option("include_usage"):
            chunk["usage"] = self.usage() if self.body.has_stream_option("continuous_usage_stats") else None
        choice.has_sent = True
        return chunk

    def usage_and_metrics(self) -> Json:
        """Token counts, and the drafts' acceptance under vLLM's names."""
        return {"usage": self.usage(), "metrics": {"speculative_decoding": self.info.as_vllm()}}

    async def full_response(self) -> Json:
        """The response to a request without `stream`."""
        shown = defaultdict[int, list[Piece]](list)
        async for choice, pieces, _ in self.updates():
            shown[choice.index] += pieces
        choices = [
            {"index": choice.index}
            | self.choice_fields(choice, shown[choice.index])
            | {"finish_reason": choice.finish_reason}
            for choice in self.choices
        ]
        return self.envelope(self.whole_object, choices) | self.usage_and_metrics()

    async def stream(self) -> AsyncIterator[str]:
        """One event a step, then the usage if it was asked for, then [DONE]; an error is sent as an event."""
        try:
            if self.body.multidraft:  # at once, so that a reader knows how long the prompt is
                yield sse(self.chunk(self.choices[0], [], None))
            async for update in self.updates():
                yield sse(self.chunk(*update))
            if self.body.has_stream_option("include_usage"):
                yield sse(self.envelope(self.chunk_object, []) | self.usage_and_metrics())
        except Exception as error:
            yield sse(error_as_json(error, self.request_id))
        yield "data: [DONE]\n\n"

    def choice_fields(self, choice: Choice, pieces: list[Piece], streamed: bool = False) -> Json:
        """A choice's text and log-probabilities: of the whole answer, or of a streamed part."""
        logprobs = None if self.body.num_logprobs is None else self.logprobs(choice, pieces)
        return {"text": text_of(pieces), "logprobs": logprobs} | self.token_ids(choice, pieces)

    def token_ids(self, choice: Choice, pieces: list[Piece]) -> Json:
        """The ids of the tokens, in a stream's first part also of the prompt's, if they were asked for."""
        if not self.body.says_token_ids:
            return {}
        prompt = {} if choice.has_sent else {"prompt_token_ids": choice.request.prompt}
        return prompt | {"token_ids": [piece.token for piece in pieces if piece.token >= 0]}

    def token_text(self, token: int) -> str:
        """The text of a token behind others."""
        return token_text(self.service.tokenizer, token)

    def token_logprobs(self, logprob: Logprob) -> tuple[float, list[tuple[int, float]]]:
        """A token's log-probability, and the requested number of most likely tokens with theirs."""
        tops = [(token, max(value, MIN_LOGPROB)) for token, value in logprob.top[: self.body.num_logprobs]]
        return max(logprob.logprob, MIN_LOGPROB), tops

    def logprobs(self, choice: Choice, pieces: list[Piece]) -> Json:
        """Four lists with an entry per token; the likeliest are a dictionary by text, or by number."""
        lists: dict[str, list] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for piece in pieces:
            if piece.token >= 0:
                value, listed = (None, []) if piece.logprob is None else self.token_logprobs(piece.logprob)
                tops = dict(listed)
                texts = {token: self.token_text(token) for token in (piece.token, *tops)}
                names = token_names(texts, tops)
                likeliest = {names[token]: number for token, number in ({piece.token: value} | tops).items()}
                entry = names[piece.token], value, None if value is None else likeliest, choice.text_length
                for values, part in zip(lists.values(), entry, strict=True):
                    values.append(part)
            choice.text_length += len(piece.text)
        return lists

    def draft_tree(self, pieces: list[Piece], step: Step | None) -> Json:
        """The kind of each piece, and the drafted tree: each node with its parent's index."""
        nodes = enumerate(zip(step.tokens, step.parents, strict=True)) if step else ()
        path = {0, *step.path} if step else set()
        tree = [
            {"text": self.token_text(token), "parent": parent if node else None, "accepted": node in path}
            for node, (token, parent) in nodes
        ]
        return {"pieces": [{"text": piece.text, "kind": piece.kind} for piece in pieces], "tree": tree}


class Chat(Completion):
    """Assistant messages, in the form of OpenAI's chat completions."""

    prefix, whole_object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def choice_fields(self, choice: Choice, pieces: list[Piece], streamed: bool = False) -> Json:
        fields = super().choice_fields(choice, pieces)
        role = {} if choice.has_sent else {"role": "assistant"}
        if streamed:
            return {"delta": role | self.delta(choice, fields["text"]), "logprobs": fields["logprobs"]}
        thought, content, deltas = self.split(choice, fields["text"])
        calls = calls_of(deltas)
        listed: Json = {"tool_calls": [call.as_json() for call in calls]} if calls else {}
        listed |= {"reasoning_content": thought} if thought else {}
        message = role | {"content": None if calls and not content.strip() else content, "refusal": None} | listed
        return {"message": message, "logprobs": fields["logprobs"]}

    def delta(self, choice: Choice, text: str) -> Json:
        """What a piece of text adds to a message: text, calls, and more of a call's arguments."""
        thought, content, deltas = self.split(choice, text)
        listed: Json = {"tool_calls": [delta.as_json() for delta in deltas]} if deltas else {}
        listed |= {"reasoning_content": thought} if thought else {}
        return ({} if listed and not content else {"content": content}) | listed

    def split(self, choice: Choice, text: str) -> tuple[str, str, list[CallDelta]]:
        """What was thought before an answer of a form, a text without the calls in it, and the calls.

        Without a form the thought is a part of the text. An answer with calls that are complete ends with them.
        """
        thought = ""
        if choice.thoughts is not None:
            thought, text = choice.thoughts.add(text, choice.finish_reason is not None)
        content, deltas = self.split_calls(choice, text)
        return (thought, content, deltas) if choice.has_form else ("", thought + content, deltas)

    def split_calls(self, choice: Choice, text: str) -> tuple[str, list[CallDelta]]:
        """A text without the calls in it, and the calls."""
        if choice.calls is None:
            return text, []
        content, deltas = choice.calls.add(text)
        if choice.finish_reason is not None:
            held_text, last_deltas = choice.calls.close()
            content, deltas = content + held_text, deltas + last_deltas
            if choice.calls.count and not choice.calls.is_torn and choice.finish_reason == "stop":
                choice.finish_reason = "tool_calls"
        return content, deltas

    def logprobs(self, choice: Choice, pieces: list[Piece]) -> Json:
        """A list with an entry per token, each with its most likely tokens."""
        entries = []
        for piece in pieces:
            if piece.logprob is not None:
                logprob, tops = self.token_logprobs(piece.logprob)
                listed = [self.token_entry(token, value) for token, value in tops]
                entries.append(self.token_entry(piece.token, logprob, piece.text) | {"top_logprobs": listed})
        return {"content": entries}

    def token_entry(self, token: int, logprob: float, added: str | None = None) -> Json:
        """A token with its bytes; those of an answer's tokens, which `added` text to it, are the answer's bytes."""
        text = self.token_text(token)
        content = text if added is None else added.lstrip(REPLACEMENT)
        is_part = REPLACEMENT in text  # of a character
        known = token_bytes(self.service.tokenizer, token) if is_part else None
        return {"token": text, "logprob": logprob, "bytes": list(content.encode() if known is None else known)}


def sse(value: Json) -> str:
    """One server-sent event."""
    return f"data: {encode_json(value)}\n\n"


class StreamUnread(Exception):
    """A client has not read its stream in time. Not an OSError: Starlette takes that for a lost connection."""


class EventStream(StreamingResponse):
    """Streams events. Cancels the request when the client disconnects, or reads too slowly.

    A slow client is cut off because its unread events would stay in memory.
    """

    def __init__(self, completion: Completion):
        super().__init__(completion.stream(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self.completion = completion

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_timeout(message: Message) -> None:
            try:
                await asyncio.wait_for(send(message), self.completion.service.limits.unread)
            except TimeoutError:
                raise StreamUnread from None

        try:
            await super().__call__(scope, receive, send_with_timeout)
        except ClientDisconnect:
            LOG.info("a client has gone before its stream was read to the end")
        except StreamUnread:
            LOG.info("a client has left its stream unread")
        except asyncio.CancelledError:
            if not self.completion.service.engine.closing:
                raise
            LOG.info("a client has not read its stream to the end before the server was stopped")
        finally:
            self.completion.cancel()


async def reply(request: Request, completion: Completion) -> Response:
    """The response, streamed or whole as the request asks."""
    if completion.body.stream:
        return EventStream(completion)
    response = asyncio.ensure_future(completion.full_response())
    disconnect = asyncio.ensure_future(wait_for_disconnect(request))
    try:
        await asyncio.wait({response, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        return JSONResponse(await response) if response.done() else Response(status_code=499)  # nobody reads it
    finally:
        completion.cancel()
        response.cancel()
        disconnect.cancel()


async def wait_for_disconnect(request: Request) -> None:
    """Wait until the client disconnects; its request must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
