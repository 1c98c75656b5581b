"""Conversations of several turns in tokens: every answer is trained on, with the token that ends it."""

from typing import Any

from multidraft.errors import AdviceError, quote
from multidraft_research.training.conversations import MAX_TOKENS, TokenizedChat, common_prefix

ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant", "model": "assistant"}


def turns_of(messages: Any, where: str) -> list[dict[str, str]]:
    """Messages with `role` and `content`, or with `from` and `value`, in the form that chat templates take.

    >>> turns_of([{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}], "here")
    [{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': 'Hello'}]
    """
    turns = [turn_of(message, where) for message in messages] if isinstance(messages, list) else []
    while turns and turns[-1]["role"] != "assistant":  # behind the last answer nothing is trained on
        turns.pop()
    if not turns:
        raise AdviceError(f"{where} has no turn of an assistant; leave it out, or add one")
    return turns


def turn_of(message: Any, where: str) -> dict[str, str]:
    """One message, whose content may be a list of texts; raises AdviceError on what is none."""
    fields = message if isinstance(message, dict) else {}
    role, content = fields.get("role", fields.get("from")), fields.get("content", fields.get("value"))
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in content]
        texts = [part for part in parts if isinstance(part, str)]
        content = "".join(texts) if len(texts) == len(parts) else None
    if not isinstance(role, str) or not isinstance(content, str):
        raise AdviceError(f"{where} holds {quote(message)}; give every turn a role and a content that is text")
    return {"role": ROLES.get(role, role), "content": content}


def conversation_of_turns(record: dict[str, Any], number: int, tokenizer: Any) -> TokenizedChat:
    """A conversation in tokens, in the tokenizer's chat template; the assistant's turns are trained on."""
    tokens, places, ends = list[int](), list[int](), special_ids(tokenizer)
    pieces = pieces_of(tokenizer, record["messages"])
    for index, (text, is_answer) in enumerate(pieces):
        is_last = index == len(pieces) - 1
        has_begin = not index and not tokenizer.chat_template  # which a template writes itself
        new = list(tokenizer(text, add_special_tokens=has_begin)["input_ids"])
        is_end = bool(index) and not is_answer and not ends.isdisjoint(new[:1])
        closes = is_end and (not is_last or record.get("ended", True))
        new = new[:closes] if is_last else new  # nothing is behind the last answer but its end
        places += range(len(tokens), len(tokens) + (len(new) if is_answer else closes))
        tokens += new
    places = [place for place in places if place < MAX_TOKENS]
    first = places[0] if places else len(tokens)
    about = {"id": str(record.get("id", number)), "temperature": record.get("temperature", 1.0), "answer": first}
    return TokenizedChat(tokens[:MAX_TOKENS], first - 1, first, about, places)


def special_ids(tokenizer: Any) -> set[int]:
    """The tokens that may end a turn: special ones, and those that were added to the vocabulary."""
    return {*tokenizer.all_special_ids, *getattr(tokenizer, "added_tokens_decoder", {})}


def pieces_of(tokenizer: Any, turns: list[dict[str, str]]) -> list[tuple[str, bool]]:
    """A conversation as its template writes it, cut where answers begin and end, and whether each piece is an answer.

    An answer that the template leaves out, as some do with all but the last, is not there.
    """
    if not tokenizer.chat_template:
        end = str(tokenizer.eos_token or "")
        rows = [[(turn["content"], True), (end, False)] if turn["role"] == "assistant" else [(turn["content"], False)]
                for turn in turns]  # fmt: skip
        return [piece for row in rows for piece in row]
    whole, pieces, done = tokenizer.apply_chat_template(turns, tokenize=False), list[tuple[str, bool]](), 0
    for index, turn in enumerate(turns):
        answer = turn["content"].strip()
        if turn["role"] == "assistant" and answer:
            before = tokenizer.apply_chat_template(turns[:index], add_generation_prompt=True, tokenize=False)
            start = whole.find(answer, max(done, common_prefix(before, whole)))
            if start >= 0:
                pieces += [(whole[done:start], False), (answer, True)]
                done = start + len(answer)
    return [*pieces, (whole[done:], False)]
