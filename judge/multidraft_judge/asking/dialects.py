"""How servers write log-probabilities: two forms of `logprobs`, and what each server lists and takes."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from multidraft_judge.errors import AdviceError
from multidraft_judge.evidence.laws import Reported
from multidraft_judge.evidence.observation import BROKEN_CHARACTER, ID_PREFIX, Token
from multidraft_judge.fields import Items, Maybe, Number, Object, TableField, Text, Whole

COMPLETE_MASS = 0.999  # a list whose probabilities sum to as much leaves out no token that matters
LISTED_PER_JUDGED = 2  # other tokens take some places: tokens of equal texts, and the one that came
CERTAINTY_TOLERANCE = 1e-3  # a token whose log-probability is nearer to 0 may be the only one


@dataclass(frozen=True)
class Dialect:
    """A server by the name that its `/v1/models` gives as owner."""

    name: str
    reported: Reported  # whose logarithms it lists, as it is started by default
    fields: dict[str, Any] = field(default_factory=dict)  # of a request, in place of what it would take by default
    scores_by: Literal["echo", "prompt_logprobs"] | None = "echo"  # how it scores a text; None if it cannot


UNCUT_SAMPLING = {"top_p": 1.0, "top_k": 0, "min_p": 0.0}  # some servers cut by default, or as the model's config says
GO_ON_FIELDS = {"ignore_eos": True}  # a text that goes on shows its last token, too
TOKEN_IDS = {"return_token_ids": True}  # texts of tokens are not unique
LLAMACPP_OFFS = {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "dry_multiplier": 0.0}
LLAMACPP_OFFS |= {"xtc_probability": 0.0, "typical_p": 1.0, "top_n_sigma": -1.0}  # what it may be started with
DIALECTS = {
    dialect.name: dialect
    for dialect in (
        Dialect("multidraft", "sampled", UNCUT_SAMPLING | {"repetition_penalty": 1.0} | GO_ON_FIELDS | TOKEN_IDS),
        Dialect(
            "vllm",
            "raw",
            UNCUT_SAMPLING | {"repetition_penalty": 1.0, "return_tokens_as_token_ids": True} | GO_ON_FIELDS | TOKEN_IDS,
            "prompt_logprobs",
        ),
        Dialect("sglang", "temperature", UNCUT_SAMPLING | {"top_k": -1, "repetition_penalty": 1.0} | GO_ON_FIELDS),
        # llama.cpp's ignore_eos would change the law, and not what is listed.
        Dialect("llamacpp", "raw", UNCUT_SAMPLING | LLAMACPP_OFFS, None),
        Dialect("llama-cpp-python", "raw", UNCUT_SAMPLING | {"repeat_penalty": 1.0}, None),
        Dialect("openai", "raw", {"top_p": 1.0}),
    )
}

OWNERS = {"me": "llama-cpp-python"}  # what its server calls itself


def dialect_of(models: Any) -> Dialect:
    """The dialect of the server that answered with this list of models; OpenAI's where its owner is not known."""
    owner = str(next((entry.get("owned_by", "") for entry in entries_in(models)), ""))
    return DIALECTS.get(OWNERS.get(owner, owner.replace(".", "").lower()), DIALECTS["openai"])


def only_name(models: Any, url: str) -> str:
    """The one name in the server's list of models; raises AdviceError where there are others, or none.

    >>> only_name({"data": [{"id": "smollm2"}]}, "http://127.0.0.1:8000")
    'smollm2'
    """
    names = list(dict.fromkeys(name for entry in entries_in(models) if isinstance(name := entry.get("id"), str)))
    if len(names) != 1:
        listed = f"lists the models {', '.join(names[:9])}" if names else "lists no model"
        raise AdviceError(f"{url} {listed}; give the name in requests as --model (from Python: model=)")
    return names[0]


def entries_in(models: Any) -> list[dict[str, Any]]:
    """What a list of models has of each; nothing where it is no such list."""
    entries = models.get("data") if isinstance(models, dict) else None
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


MAX_ITEMS, MAX_TOKEN_ID = 10**6, 2**31  # of a list in an answer, which is bounded as a whole; numbers of tokens
MAX_DIGITS, MAX_BYTES = 9, 10**4  # of such a number in a name; of a token
LOGPROB = Number(-math.inf, 1e-3)  # rounding may leave it a little above 0; a NaN is none
IDS, LISTED = (
    Items(Whole(0, MAX_TOKEN_ID), MAX_ITEMS),
    Items(Object({"token": Text(), "logprob": LOGPROB, "bytes": Maybe(Items(Whole(0, 255), MAX_BYTES))}), MAX_ITEMS),
)
LOGPROBS = Object(
    {
        "content": Items(
            Object(
                {"token": Text(default=""), "logprob": LOGPROB, "id": Whole(0, MAX_TOKEN_ID)}
                | {"top_logprobs": LISTED, "top_probs": LISTED}
            ),
            MAX_ITEMS,
        ),
        "tokens": Items(Text(), MAX_ITEMS),
        "token_logprobs": Items(Maybe(LOGPROB), MAX_ITEMS),
        "top_logprobs": Items(Maybe(TableField("(?s).*", LOGPROB, MAX_ITEMS)), MAX_ITEMS),
    }
)
SCORED = Maybe(TableField(r"\d+", Object({"logprob": Number(-math.inf, 1e-3, required=True)}), MAX_ITEMS))  # vLLM's
CHOICE = Object(
    {"text": Text(most=2**26), "finish_reason": Text(), "logprobs": LOGPROBS, "token_ids": IDS, "prompt_token_ids": IDS}
    | {"prompt_logprobs": Items(SCORED, MAX_ITEMS)}
)
TIMINGS = Object({"predicted_n": Whole(0, 2**40), "predicted_ms": Number(0, math.inf)})  # llama.cpp's
ANSWER = Object(
    {"choices": Items(CHOICE, 128), "usage": Object({"completion_tokens": Whole(0, 2**40)}), "timings": TIMINGS}
)


@dataclass(frozen=True)
class Entry:
    """A token as a server writes it, with all listed tokens, the one that came perhaps among them."""

    text: str
    logprob: float | None
    listed: dict[str, float]
    id: int | None = None

    @property
    def is_listed(self) -> bool:
        """Whether likeliest tokens came with it; some servers list none for accepted drafts.

        Where all that are likely are parts of characters, a mapping from texts holds them as one.
        """
        if self.logprob is None or not self.listed:
            return False
        is_one_text_for_many = any(BROKEN_CHARACTER in text for text in self.listed)
        return len(self.listed) > 1 or self.logprob > -CERTAINTY_TOLERANCE or is_one_text_for_many

    def token(self, num_logprobs: int, chunk: int = 0) -> Token:
        """The token with the likeliest of so many, and any part of a character among all of them.

        Which of the parts a mapping from texts shows hangs on what came, and so must not whether the place is judged.
        """
        likeliest = sorted(self.listed.items(), key=lambda pair: (-pair[1], pair[0]))  # ties: not by what came
        top = judged_logprobs(num_logprobs)
        parts = [pair for pair in likeliest[top:num_logprobs] if BROKEN_CHARACTER in pair[0]]
        logprob = float("-inf") if self.logprob is None else self.logprob
        return Token(self.text, logprob, (*likeliest[:top], *parts), chunk, self.id)


def judged_logprobs(num_logprobs: int) -> int:
    """How many of the listed tokens are bins of their own."""
    return max(num_logprobs // LISTED_PER_JUDGED, 1)


def entries_of(choice: dict[str, Any]) -> Iterator[Entry]:
    """The tokens of a choice, or of its part in a stream, in either form of `logprobs`."""
    block = choice.get("logprobs") or {}
    ids = choice.get("token_ids") or []
    if isinstance(block.get("content"), list):  # as in chats; llama.cpp has it for completions, too
        for item in block["content"]:
            listed = item.get("top_logprobs") or item.get("top_probs") or []
            yield Entry(
                str(item.get("token", "")),
                item.get("logprob"),
                {text_of(other): other["logprob"] for other in listed if other["logprob"] is not None},
                item.get("id"),
            )
        return
    texts, logprobs = block.get("tokens") or [], block.get("token_logprobs") or []
    tops = block.get("top_logprobs") or [None] * len(texts)
    if not len(texts) == len(logprobs or texts) == len(tops):
        raise AdviceError(
            f"an answer has {len(texts)} tokens, {len(logprobs)} log-probabilities and {len(tops)} lists of likeliest "
            "tokens; judge a server that gives each of its tokens these"
        )
    for place, (text, logprob, top) in enumerate(zip(texts, logprobs, tops, strict=False)):
        yield Entry(str(text), logprob, top or {}, ids[place] if len(ids) == len(texts) else number_in(text))


def text_of(listed: dict[str, Any]) -> str:
    """A listed token's text; of a part of a character, whose text llama.cpp leaves empty, the sign for one.

    >>> text_of({"token": "a", "bytes": [97]}), text_of({"token": "", "bytes": [240, 159]})
    ('a', '\ufffd')
    """
    try:
        bytes(listed.get("bytes") or ()).decode()
    except UnicodeDecodeError:
        return BROKEN_CHARACTER
    return str(listed["token"])


def number_in(name: str) -> int | None:
    """The number that a token is named by, if it is named by one.

    >>> number_in("token_id:7"), number_in("7"), number_in("token_id:x")
    (7, None, None)
    """
    number = name.removeprefix(ID_PREFIX)
    return int(number) if number != name and number.isdecimal() and len(number) <= MAX_DIGITS else None
