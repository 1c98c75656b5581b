"""`/v1/responses` in its plain form: text in, text out, whole or as a stream of typed events.

A request becomes that of a chat, and is answered like one. Nothing is stored.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from multidraft.decoding.request import Request as EngineRequest
from multidraft.errors import AdviceError, quote
from multidraft.server.answers import Chat, Choice, Json, Piece, encode_json, text_of
from multidraft.server.process import error_as_json
from multidraft.server.request_bodies import FAIL_FAST, ChatBody, LongText, OpenBody, PositiveCount
from multidraft.server.request_fields import FIELDS, ignored_fields
from multidraft.server.service import Service

TEXT_PARTS = ("input_text", "output_text", "text")
SHARED_FIELDS = [  # with a chat
    name
    for name, field in FIELDS.items()
    if field.fate in ("honoured", "renamed") and {"chat", "responses"} <= {*field.routes}
]


class ResponsesBody(OpenBody):
    """Instructions and a conversation to answer."""

    model: str
    input: LongText | Annotated[list[dict[str, Any]], FAIL_FAST]
    instructions: LongText | None = None
    max_output_tokens: PositiveCount | None = None
    temperature: float | None = None
    top_p: float | None = None
    text: dict[str, Any] | None = None
    stream: bool | None = None
    store: bool | None = Field(None, description="Has no effect: nothing is stored.")
    metadata: dict[str, Any] | None = None

    def as_chat(self) -> ChatBody:
        """The same as the request of a chat; raises AdviceError on what is not supported."""
        sent = self.sent_fields
        ignored_fields(sent, "responses")  # raises on one that is refused
        system = [] if self.instructions is None else [{"role": "system", "content": self.instructions}]
        items = [{"role": "user", "content": self.input}] if isinstance(self.input, str) else self.input
        if not items:
            raise AdviceError("input is empty; give it a text, or a message")
        shared = {name: value for name, value in sent.items() if name in SHARED_FIELDS}
        shared |= {"max_completion_tokens": self.max_output_tokens, "response_format": response_format(self.text)}
        return ChatBody.model_validate(shared | {"messages": [*system, *map(message_of, items)]})

    def ignored_names(self, template: str) -> list[str]:
        """The names of fields that have no effect."""
        return ignored_fields(self.sent_fields, "responses")

    def settings(self, defaults: Mapping[str, Any]) -> Json:
        """The settings as a response repeats them, with defaults."""
        names = ("instructions", "max_output_tokens")
        values = {name: self.sent_fields.get(name) for name in ("temperature", "top_p")}
        numbers = {name: defaults.get(name, 1.0) if value is None else value for name, value in values.items()}
        form = {"format": (self.text or {}).get("format") or {"type": "text"}}
        fixed = {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "previous_response_id": None}
        return (
            {name: getattr(self, name) for name in names}
            | {"text": form, "metadata": self.metadata or {}, "store": False, "truncation": "disabled"}
            | numbers
            | fixed
        )


def message_of(item: Json) -> Json:
    """A message of a chat; raises AdviceError on an item that is none, or has parts other than text."""
    role, content = item.get("role"), item.get("content")
    if item.get("type", "message") != "message" or role not in ("user", "assistant", "system", "developer"):
        raise AdviceError(f'input has {quote(item)}; use messages such as {{"role": "user", "content": "Hello"}}')
    if not isinstance(content, str | list):
        raise AdviceError(f"input has a message with the content {quote(content)}; use a text, or a list of texts")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    kept = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") in TEXT_PARTS]
    texts = [text for text in kept if isinstance(text, str)]
    if len(texts) < len(parts):
        raise AdviceError("input has a part that is not text; send text only")
    return {"role": role, "content": "".join(texts)}


def response_format(text: Json | None) -> Json | None:
    """The form of the answer as a chat has it: there the schema is in a field of its own."""
    text = text or {}
    form = text.get("format")
    if unknown := [name for name, value in text.items() if name != "format" and value is not None]:
        raise AdviceError(f"text has {quote(unknown[0])}, which is not supported; leave it out, or use format")
    if not isinstance(form, dict | None):
        raise AdviceError(f'text has the format {quote(form)}; use {{"type": "text"}}, json_object or json_schema')
    return form and {"type": form.get("type"), "json_schema": form}


class Responses(Chat):
    """An answer in the form of OpenAI's responses."""

    def __init__(
        self, service: Service, body: ChatBody, requests: list[EngineRequest], request_id: str, asked: ResponsesBody
    ):
        super().__init__(service, body, requests, request_id)
        self.asked, self.number = asked, -1  # the number is that of the last event

    @property
    def is_cut(self) -> bool:
        """Whether the answer ended at its number of tokens."""
        return self.choices[0].finish_reason == "length"

    def part(self, text: str) -> Json:
        """The content of the message."""
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def item(self, status: str, *parts: Json) -> Json:
        """The message."""
        return {"id": f"msg_{self.id}", "type": "message", "role": "assistant", "status": status, "content": [*parts]}

    def response(self, status: str, *items: Json) -> Json:
        """The object around the message, with the request's settings."""
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        facts = {"id": f"resp_{self.id}", "object": "response", "created_at": self.created, "status": status}
        facts |= {"model": self.service.names[0], "error": None, "incomplete_details": reason, "output": [*items]}
        return facts | self.asked.settings(self.service.defaults) | {"usage": self.token_usage() if items else None}

    def token_usage(self) -> Json:
        """Token counts under the names of this API."""
        usage = self.usage()
        details: Json = {"input_tokens_details": usage["prompt_tokens_details"] | {"cache_write_tokens": 0}}
        details |= {"output_tokens_details": {"reasoning_tokens": 0}}
        counts = {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"]}
        return counts | details | {"total_tokens": usage["total_tokens"]}

    def final_objects(self, text: str) -> tuple[Json, Json]:
        """The message and the response at the end."""
        status = "incomplete" if self.is_cut else "completed"
        item = self.item(status, self.part(text))
        return item, self.response(status, item) | {"metrics": self.usage_and_metrics()["metrics"]}

    async def full_response(self) -> Json:
        text = "".join([self.answer_text(choice, pieces) async for choice, pieces, _ in self.updates()])
        return self.final_objects(text)[1]

    def answer_text(self, choice: Choice, pieces: list[Piece]) -> str:
        """The text of pieces, without what was thought before an answer of a form."""
        return self.split(choice, text_of(pieces))[1]

    def event(self, kind: str, **fields: Any) -> str:
        """One server-sent event, with its type and number."""
        self.number += 1
        value = {"type": kind, "sequence_number": self.number} | fields
        return f"event: {kind}\ndata: {encode_json(value)}\n\n"

    async def stream(self) -> AsyncIterator[str]:
        """Events from `response.created` to `response.completed` or `response.incomplete`; an error is the last one."""
        place, item_id = {"output_index": 0}, {"item_id": f"msg_{self.id}"}
        within, text = item_id | place | {"content_index": 0}, ""
        try:
            yield self.event("response.created", response=self.response("in_progress"))
            yield self.event("response.in_progress", response=self.response("in_progress"))
            yield self.event("response.output_item.added", item=self.item("in_progress"), **place)
            yield self.event("response.content_part.added", part=self.part(""), **within)
            async for choice, pieces, _ in self.updates():
                if delta := self.answer_text(choice, pieces):
                    text += delta
                    yield self.event("response.output_text.delta", delta=delta, logprobs=[], **within)
            item, response = self.final_objects(text)
            yield self.event("response.output_text.done", text=text, logprobs=[], **within)
            yield self.event("response.content_part.done", part=self.part(text), **within)
            yield self.event("response.output_item.done", item=item, **place)
            yield self.event(f"response.{response['status']}", response=response)
        except Exception as error:
            fields = error_as_json(error, self.request_id)["error"]
            shared = {name: fields[name] for name in ("message", "param")}
            yield self.event("error", **shared, code=str(fields["code"]), error=fields)  # clients read either
