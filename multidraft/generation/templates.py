"""Conversations as text: a tokenizer's chat templates, and the form of content that they read."""

from collections.abc import Collection
from contextlib import suppress
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any

from multidraft.errors import AdviceError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = dict[str, Any]
MAX_TEMPLATE_CHARACTERS = 1 << 22  # of a conversation that a template has rendered
WORDS = {"system": "161803398874", "user": "271828182845", "assistant": "314159265358", "tool": "141421356237"}
# a conversation to render, of words that no template has, nor changes, as it may change letters
BEGINS = (), ("system",)  # of such a conversation: a template may demand a system message
PART_ROLES = ((), ("user",), ("user", "assistant"), tuple(WORDS))  # whose content is a list, when a template is tried


def template_of(tokenizer: "PreTrainedTokenizerBase", tools: list[dict[str, Any]] | None = None) -> str | None:
    """The chat template that transformers takes, by name where there are several; None if there is none."""
    if not tokenizer.chat_template:
        return None
    try:
        return str(tokenizer.get_chat_template(tools=tools))
    except ValueError:
        names = ", ".join(sorted(tokenizer.chat_template))
        raise AdviceError(
            f"the tokenizer has no default chat template, only {names}; offer tools for tool_use, or add a default"
        ) from None


def render(tokenizer: "PreTrainedTokenizerBase", messages: list[Message], **settings: Any) -> str:
    """A conversation as text. The role `developer` is `system` for a template that does not know it.

    Content is a text or a list of text parts, and is passed on as the template reads it.
    transformers renders in jinja's sandbox, which protects the machine, but does not limit the time.
    """
    settings = {"add_generation_prompt": True} | settings
    template = settings.get("chat_template") or template_of(tokenizer, settings.get("tools"))
    if "developer" not in str(template):
        messages = [m | {"role": "system"} if m.get("role") == "developer" else m for m in messages]
    if template is not None:
        messages = [with_content(message, forms_shown(tokenizer, template)) for message in messages]
    text = apply(tokenizer, messages, settings | {"chat_template": template})
    if len(text) > MAX_TEMPLATE_CHARACTERS:
        raise AdviceError(
            f"the chat template makes {len(text):,} characters of the conversation; at most "
            f"{MAX_TEMPLATE_CHARACTERS:,} are read: shorten its messages"
        )
    return text


def apply(tokenizer: "PreTrainedTokenizerBase", messages: list[Message], settings: dict[str, Any]) -> str:
    """What a template makes of messages; raises AdviceError if it refuses them."""
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, **settings))
    except Exception as error:  # a template is a program and may raise anything
        reason = str(error) or type(error).__name__
        raise AdviceError(f"the chat template refuses the conversation: {reason}; change its messages") from None


def with_content(message: Message, shown: Collection[tuple[str, bool]]) -> Message:
    """A message with its content as a text or as parts, whichever the template shows; as it is, if it shows both."""
    content = message.get("content")
    role = message.get("role") if any((message.get("role"), form) in shown for form in (False, True)) else "user"
    as_text, as_parts = (role, False) in shown, (role, True) in shown
    if isinstance(content, str) and as_parts and not as_text:
        return message | {"content": [{"type": "text", "text": content}]}
    if isinstance(content, list) and not as_parts and all("text" in part for part in content):
        return message | {"content": "".join(str(part["text"]) for part in content)}
    return message


@lru_cache(8)
def forms_shown(tokenizer: "PreTrainedTokenizerBase", template: str) -> frozenset[tuple[str, bool]]:
    """The roles whose words a template shows where their content is a text (False), or a list of parts (True).

    A template that writes the list itself, with all that is in it, shows no parts.
    """
    shown = set[tuple[str, bool]]()
    turns = ("user", "assistant", "user"), ("user", "assistant", "tool"), ("user",)
    for begin, turn, part_roles in product(BEGINS, turns, PART_ROLES):
        messages = [probe(role, role in part_roles) for role in begin + turn]
        with suppress(AdviceError):
            text = apply(tokenizer, messages, {"chat_template": template, "add_generation_prompt": True})
            words = {role: WORDS[role] for role in begin + turn if WORDS[role][::-1] not in text}
            shown |= {(role, role in part_roles) for role, word in words.items() if word in text}
    return frozenset(shown)


def probe(role: str, as_parts: bool = False) -> Message:
    """A message of a role's word; a part of it has another word beside it, which only its whole text shows."""
    word = WORDS[role]
    return {"role": role, "content": [{"type": "text", "text": word, "beside": word[::-1]}] if as_parts else word}


def texts_around(tokenizer: "PreTrainedTokenizerBase") -> tuple[str, str, str]:
    """What the chat template writes before a conversation's first word, behind a last answer, and up to a question."""
    first, last = around_answer(tokenizer, "user", "assistant")
    other, before_turn = around_answer(tokenizer, "user", "assistant", "user")
    return first or other, last, before_turn


def around_answer(tokenizer: "PreTrainedTokenizerBase", *roles: str) -> tuple[str, str]:
    """What is before the first word and behind the last answer; "" if a template refuses these, or leaves it out."""
    named = tokenizer.chat_template or {}
    for template, begin in product(named.values() if isinstance(named, dict) else [named], BEGINS):
        with suppress(AdviceError):
            messages = [probe(role) for role in begin + roles]
            text = render(tokenizer, messages, chat_template=template, add_generation_prompt=False)
            _, answer, after = text.rpartition(WORDS["assistant"])
            if answer:
                return text.partition(WORDS[(begin + roles)[0]])[0], after.partition(WORDS["user"])[0]
    return "", ""
