"""From the parts of a server's answer to a completion; answers that cannot be judged are refused in one line."""

import math
from typing import Any

from multidraft_judge.asking.dialects import COMPLETE_MASS, Entry, entries_of
from multidraft_judge.errors import AdviceError
from multidraft_judge.evidence.observation import Ask, Completion


def completion_of(ask: Ask, parts: list[Any], num_logprobs: int, url: str) -> Completion:
    """The completion that the parts of an answer make; a whole answer is one part."""
    choices = [choice for part in parts for choice in (part.get("choices") or [])[:1]]
    chunks = entries_by_chunk(choices)
    entries = [entry for chunk in chunks for entry in chunk]
    has_text = any(choice.get("text") for choice in choices)
    if len(entries) > ask.max_tokens:
        raise AdviceError(
            f"{url} gives {len(entries)} tokens where {ask.max_tokens} were asked for; judge another server"
        )
    if entries or has_text:
        check_listed(entries, num_logprobs, url)
    is_stopped = any(choice.get("finish_reason") == "stop" for choice in choices)
    if is_stopped and not ask.formed:  # no law is asked of a form
        check_end(len(entries), parts, url)
    tokens = [entry.token(num_logprobs, place) for place, chunk in enumerate(chunks) for entry in chunk]
    prompt_ids = next((choice["prompt_token_ids"] for choice in choices if choice.get("prompt_token_ids")), None)
    form = ("".join(choice.get("text") or "" for choice in choices), is_stopped) if ask.formed else ()
    return Completion(ask, tokens, prompt_ids, sum(not entry.is_listed for entry in entries), *form)


def entries_by_chunk(choices: list[dict[str, Any]]) -> list[list[Entry]]:
    """The tokens of each chunk. A chunk of llama.cpp with text alone is an accepted draft, about which it says nothing.

    Other servers may send text alone that they held back, so that this is for llama.cpp's form of lists.
    """
    chunks = [list(entries_of(choice)) for choice in choices]
    if not any(isinstance((choice.get("logprobs") or {}).get("content"), list) for choice in choices):
        return chunks
    texts = [choice.get("text") or "" for choice in choices]
    return [chunk or [Entry(text, None, {})] * bool(text) for chunk, text in zip(chunks, texts, strict=True)]


def check_listed(entries: list[Entry], num_logprobs: int, url: str) -> None:
    """Raise if there are no log-probabilities, or fewer likeliest tokens than asked for."""
    if all(entry.logprob is None for entry in entries):
        raise AdviceError(f"{url} gives no log-probabilities; start it with them, or judge another server")
    listed = [entry.listed for entry in entries if entry.is_listed]
    longest = max(map(len, listed), default=num_logprobs)
    complete = any(sum(map(math.exp, top.values())) > COMPLETE_MASS for top in listed if len(top) == longest)
    if longest < num_logprobs and not complete:
        advice = f"pass --logprobs {longest}"
        raise AdviceError(f"{url} lists {longest} likeliest tokens where {num_logprobs} were asked for; {advice}")


def check_end(num_entries: int, parts: list[Any], url: str) -> None:
    """Raise if a text ended on a token that is not listed: that would hide a part of the law."""
    usages = [part.get("usage") or {} for part in parts]
    counts = [usage["completion_tokens"] for usage in usages if usage.get("completion_tokens") is not None]
    if not counts or counts[-1] > num_entries:
        raise AdviceError(
            f"{url} ends a text and does not list the token that ends it, so a part of the law is hidden; "
            "judge it with prompts whose answers are long, and a small --max-tokens"
        )
