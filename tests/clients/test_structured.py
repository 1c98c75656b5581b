"""The client that OpenAI publishes: answers of a form, calls of tools, and responses."""

import json

import openai
import pytest
from conftest import MESSAGES, NAME
from pydantic import BaseModel

SCHEMA = {"type": "object", "properties": {"answer": {"enum": ["yes", "no"]}}, "required": ["answer"]}
SCHEMA |= {"additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "say", "parameters": SCHEMA}}]
SETTINGS = dict(model=NAME, messages=MESSAGES, max_completion_tokens=120, seed=1)


class Answer(BaseModel):
    """What the client makes a schema of."""

    sure: bool
    count: int


def test_an_answer_is_parsed_by_the_client(client):
    answer = client.chat.completions.parse(**SETTINGS, response_format=Answer)
    assert isinstance(answer.choices[0].message.parsed, Answer)
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
    with client.chat.completions.stream(**SETTINGS, response_format=form) as stream:
        whole = stream.get_final_completion().choices[0]
    assert json.loads(whole.message.content)["answer"] in ("yes", "no")
    chosen = client.chat.completions.create(**SETTINGS, extra_body={"guided_choice": ["yes", "no"]})
    assert chosen.choices[0].message.content in ("yes", "no")
    form["json_schema"]["schema"] = {"type": "banana"}
    with pytest.raises(openai.BadRequestError, match="banana"):
        client.chat.completions.create(**SETTINGS, response_format=form)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "say"}}])
def test_a_forced_call_whole_and_streamed_and_its_result(client, choice):
    whole = client.chat.completions.create(**SETTINGS, tools=TOOLS, tool_choice=choice).choices[0]
    (call,) = whole.message.tool_calls
    assert (whole.finish_reason, call.function.name, whole.message.content) == ("tool_calls", "say", None)
    assert json.loads(call.function.arguments)["answer"] in ("yes", "no")
    with client.chat.completions.stream(**SETTINGS, tools=TOOLS, tool_choice=choice) as stream:
        pieces = [event.arguments_delta for event in stream if event.type == "tool_calls.function.arguments.delta"]
        streamed = stream.get_final_completion().choices[0]
    assert len(pieces) > 1
    assert "".join(pieces) == call.function.arguments
    assert streamed.finish_reason == "tool_calls"
    assert streamed.message.tool_calls[0].function.arguments == call.function.arguments
    messages = [*MESSAGES, whole.message, {"role": "tool", "tool_call_id": call.id, "content": "done"}]
    after = client.chat.completions.create(**SETTINGS | {"messages": messages}, tools=TOOLS)
    assert after.choices[0].finish_reason in ("stop", "length")


def test_responses(client):
    settings = dict(model=NAME, input="It was a dark and stormy night", instructions="Go on", max_output_tokens=20)
    settings |= dict(temperature=0.7, extra_body={"seed": 1})
    whole = client.responses.create(**settings)
    assert whole.status in ("completed", "incomplete")
    assert whole.usage.output_tokens == whole.usage.total_tokens - whole.usage.input_tokens > 0
    events = list(client.responses.create(**settings, stream=True))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    assert events[-1].response.usage == whole.usage
    parsed = client.responses.parse(model=NAME, input="Once", max_output_tokens=120, text_format=Answer)
    assert isinstance(parsed.output_parsed, Answer)
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        client.responses.create(model=NAME, input="Once", previous_response_id=whole.id)
