"""Grammars: what an answer must look like, as the tokens that may follow a path of tokens. Without torch.

llguidance parses the text behind the tokens. A mask depends on the path alone, so it is a part of the target's
distribution like any other setting, and every node of a tree has the mask of its own path.
"""

import json
from collections import OrderedDict
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool

from multidraft.errors import AdviceError, optional, quote
from multidraft.sampling.thinking import Thinking, TokenPath

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

EXTRA = "grammar"
MAX_GRAMMAR_CHARACTERS = 1 << 16
MAX_PROPERTIES = 4000  # of a JSON object: each takes four items of the parser, and time at every token
MAX_ITEMS = 5 * MAX_PROPERTIES
MAX_ERROR_CHARACTERS = 200
MAX_KEPT_MASKS = 64  # of a row: a step asks twice for each node, for the draft and for the target
WHITESPACE = r"\x20|\x0A[\x20\x09]{0,20}"  # between two parts of a JSON text: small models would never end any more
Mask = Bool[np.ndarray, " vocabulary"]


class Grammar:
    """What a text must look like: by a JSON schema, a regular expression, or a grammar in llguidance's form of Lark.

    `tokenizer` is the target's. A row ends with an end-of-text token, which is allowed exactly where the text is
    complete. `thinking` leaves the text up to `</think>` free: True where the prompt has begun to think, False where
    the answer may begin with `<think>`. Raises AdviceError on a grammar that is wrong, too large or not supported.

    >>> from multidraft.zoo import load_pair
    >>> tokenizer = load_pair().tokenizer
    >>> masks = PathMasks(Grammar(tokenizer, regex="yes|no"), ends=[0], vocabulary=4096)
    >>> [tokenizer.decode(int(token)) for token in np.flatnonzero(~masks.forbidden(()))]
    ['n', 'y', 'ye', 'no']
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        json_schema: Mapping[str, Any] | str | None = None,
        *,
        regex: str | None = None,
        lark: str | None = None,
        thinking: bool | None = None,
    ):
        self.text = grammar_text(json_schema, regex, lark)
        self.thinking = None if thinking is None else Thinking(tokenizer, thinking)
        self.tokenizer, self.source = matcher_tokenizer(tokenizer), tokenizer  # whose library the first may call
        limits = library().LLParserLimits(max_items_in_row=MAX_ITEMS, step_max_items=10 * MAX_ITEMS)
        self.matcher = library().LLMatcher(self.tokenizer, self.text, log_level=0, limits=limits)
        self.check()

    def __repr__(self) -> str:
        return f"Grammar({quote(self.text)})"

    def check(self) -> None:
        """Raise unless the grammar is right, and allows a text."""
        if self.matcher.is_error():
            raise grammar_error(self.matcher.get_error())
        if not self.matcher.is_accepting() and self.is_dead_end():
            raise grammar_error("no text of this tokenizer has this form")

    def is_dead_end(self) -> bool:
        """Whether no token but an end of text may come first."""
        allowed = allowed_tokens(self.matcher)
        allowed[list(self.tokenizer.eos_tokens)] = False
        return not allowed.any()


class PathMasks:
    """The tokens that a grammar forbids after any path of new tokens; `ends` are the tokens that end a row.

    One matcher walks from path to path: back to where they part, then forward.
    """

    def __init__(self, grammar: Grammar, ends: Collection[int], vocabulary: int):
        self.grammar, self.vocabulary, self.ends = grammar, vocabulary, frozenset(ends)
        special = grammar.tokenizer.is_special_token
        self.text_ends = [token for token in ends if not special(token)]  # which may be a part of the text, too
        self.special_ends = [*self.ends.difference(self.text_ends)]
        self.not_ends = [token for token in grammar.tokenizer.eos_tokens if token not in self.ends]
        self.kept: OrderedDict[TokenPath, np.ndarray] = OrderedDict()  # packed, by path
        self.matcher: Any = None
        self.path: TokenPath = ()  # of the matcher
        self.restart()

    def restart(self) -> None:
        """A new matcher, at the beginning."""
        self.matcher, self.path = self.grammar.matcher.deep_copy(), ()

    def forbidden(self, path: TokenPath) -> Mask:
        """The tokens that may not follow; raises AdviceError where the grammar becomes too complex.

        All may follow an end of text, or a path that the grammar does not allow: no row ever comes to draw there.
        """
        if path not in self.kept:
            self.kept[path] = np.packbits(self.compute_mask(path))
            if len(self.kept) > MAX_KEPT_MASKS:
                self.kept.popitem(last=False)
        self.kept.move_to_end(path)
        return np.unpackbits(self.kept[path], count=self.vocabulary).view(bool)

    def compute_mask(self, path: TokenPath) -> Mask:
        """The mask after a path: of its answer, and where that may begin with thinking of this, too."""
        thinking = self.grammar.thinking
        answer = path if thinking is None else thinking.answer_in(path)
        tag = None if thinking is None else thinking.next_of_tag(path)
        if answer is None or not self.ends.isdisjoint(path):
            return np.zeros(self.vocabulary, bool)
        is_answer = self.walk_to(answer)
        forbidden = self.mask_here() if is_answer else np.full(self.vocabulary, tag is not None)
        if tag is not None:
            forbidden[tag] = False
        return forbidden

    def mask_here(self) -> Mask:
        """The mask where the matcher is."""
        forbidden = np.zeros(self.vocabulary, bool)
        allowed, is_complete = allowed_tokens(self.matcher)[: self.vocabulary], self.matcher.is_accepting()
        if self.matcher.is_error():
            raise self.matcher_error()
        forbidden[:] = True  # also tokens that have no text
        forbidden[: len(allowed)] = ~allowed
        forbidden[[token for token in self.not_ends if token < self.vocabulary]] = True
        forbidden[self.special_ends] = not is_complete
        if is_complete and not self.special_ends:
            forbidden[self.text_ends] = False  # else they would stand behind the text
        return forbidden

    def walk_to(self, path: TokenPath) -> bool:
        """Move the matcher to the end of a path; returns whether the grammar allows the path."""
        shared = next(
            (place for place, pair in enumerate(zip(self.path, path, strict=False)) if pair[0] != pair[1]),
            min(len(self.path), len(path)),
        )
        if len(self.path) > shared and not self.matcher.rollback(len(self.path) - shared):
            self.restart()
            shared = 0
        count = self.matcher.try_consume_tokens(list(path[shared:]))
        self.path = path[: shared + count]
        if self.matcher.is_error():
            raise self.matcher_error()
        return len(self.path) == len(path)

    def matcher_error(self) -> AdviceError:
        """The matcher's error, which it would keep for ever: the next path begins with a new one."""
        error = grammar_error(self.matcher.get_error())
        self.restart()
        return error


def library() -> Any:
    """The module llguidance; raises AdviceError with the line that installs it."""
    return optional("llguidance", "llguidance, which reads grammars", EXTRA)


def grammar_text(json_schema: Mapping[str, Any] | str | None, regex: str | None, lark: str | None) -> str:
    """The grammar in llguidance's own form; raises AdviceError on one that is too large or none."""
    if [json_schema, regex, lark].count(None) != 2:
        raise AdviceError("a grammar needs one of json_schema, regex and lark; give exactly one")
    matcher = library().LLMatcher
    if json_schema is not None:
        schema = schema_text(json_schema)
        try:
            return matcher.grammar_from_json_schema(schema, None, json_options())
        except ValueError as error:  # where it is nested too deep
            raise grammar_error(str(error)) from None
    for name, text in (("regex", regex), ("lark", lark)):
        if text is not None and (not isinstance(text, str) or not text):
            raise AdviceError(f"{name} is {quote(text)}; use a text that is not empty")
    return checked_size(matcher.grammar_from_regex(regex) if lark is None else lark)


def lark_of(text: str) -> str:
    """A grammar in llguidance's form of Lark; one in llama.cpp's form (GBNF) is translated.

    >>> lark_of('root ::= "yes" | "no"').split()
    ['%llguidance', '{}', 'start:', '"yes"', '|', '"no"']
    """
    library()
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return str(any_to_lark(checked_size(text)))
    except AdviceError:
        raise
    except Exception as error:  # it raises plain Exception for a rule that is missing
        raise grammar_error(str(error)) from None


def json_options() -> dict[str, Any]:
    """How a JSON schema is read."""
    return {"whitespace_pattern": WHITESPACE}


def schema_text(schema: Mapping[str, Any] | str, name: str = "the JSON schema") -> str:
    """A schema, or the text of one, as a text of bounded size that holds an object; raises AdviceError on others."""
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema, allow_nan=False)
        checked_size(text, name)
        value = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, AdviceError):
            raise
        reason = " ".join(str(error).split())[:MAX_ERROR_CHARACTERS]
        raise AdviceError(f"{name} is not JSON ({reason}); correct it") from None
    if not isinstance(value, dict):
        raise AdviceError(f'{name} is {quote(value)}; use an object such as {{"type": "object"}}')
    check_properties(value, name)
    return text


def check_properties(schema: Any, name: str) -> None:
    """Raise AdviceError if an object of a schema has more properties than the parser keeps up with."""
    count, parts = 0, [schema]
    while parts:
        part = parts.pop()
        if isinstance(part, dict) and isinstance(properties := part.get("properties"), dict):
            count = max(count, len(properties))
        parts += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    if count > MAX_PROPERTIES:
        raise AdviceError(f"{name} has an object of {count:,} properties; use at most {MAX_PROPERTIES:,}")


def check_text(text: str) -> None:
    """Raise AdviceError on a grammar that is wrong, as far as that can be told without a tokenizer."""
    is_wrong, messages = library().LLMatcher.validate_grammar_with_warnings(text)
    if is_wrong:
        raise grammar_error(messages[0])


def checked_size(text: str, name: str = "the grammar") -> str:
    """The text; raises AdviceError if it is too long."""
    if len(text) > MAX_GRAMMAR_CHARACTERS:
        raise AdviceError(f"{name} has {len(text):,} characters; use at most {MAX_GRAMMAR_CHARACTERS:,}")
    return text


def grammar_error(message: str) -> AdviceError:
    """An error of one line with the library's message."""
    reason = " ".join(message.split())[:MAX_ERROR_CHARACTERS] or "it gives no reason"
    return AdviceError(f"the grammar cannot be used: {reason}; change it")


@lru_cache(2)
def matcher_tokenizer(tokenizer: "PreTrainedTokenizerBase") -> Any:
    """The tokenizer in llguidance's form, which takes up to a second; raises AdviceError on an unknown kind."""
    library()
    try:
        if convert := getattr(tokenizer, "as_llguidance", None):  # of a GGUF file
            return convert()
        from llguidance.hf import from_tokenizer

        return from_tokenizer(tokenizer)  # type: ignore[arg-type]  # it refuses others
    except Exception as error:  # what the library raises is not documented
        reason = " ".join(str(error).split())[:MAX_ERROR_CHARACTERS]
        kind = type(tokenizer).__name__
        raise AdviceError(f"grammars cannot read the tokenizer {kind} ({reason}); use a fast tokenizer") from None


def allowed_tokens(matcher: Any) -> Mask:
    """The tokens that a matcher allows next, with some bits of padding.

    Where the grammar leaves one text, llguidance asks the tokenizer for its tokens. One without them answers with a
    token for unknown text, which the matcher would not take.
    """
    allowed = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little").view(bool)
    if allowed.sum() == 1 and not matcher.validate_tokens([int(allowed.argmax())]):
        allowed[:] = False
    return allowed
