"""Grammars: the exact law of steps that draft trees under a mask, its twins, masks of paths, and what is refused."""

import json
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from serving import letters
from steps import config_of, law_error, law_of_steps
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

import multidraft as md
from multidraft.auditing.enumeration import first_state
from multidraft.models.prefix_models import TableModel, random_table
from multidraft.sampling import grammar as grammars
from multidraft.sampling.drafting import draft_distributions
from multidraft.sampling.from_logits import target_distributions
from multidraft.sampling.grammar import MAX_GRAMMAR_CHARACTERS, Grammar, PathMasks
from multidraft.sampling.params import SamplingParams
from multidraft.sampling.processors import GrammarMask
from multidraft.sampling.row_faults import RowFault
from multidraft.zoo import load_pair

EXACT, BIASED = 1e-12, 1e-3
PIECES, END = ("a", "b", "ab", "</s>"), 3
LANGUAGE = {"ab", "aab", "b", "abba"}
PROMPT = [1, 0]
TARGET, DRAFT = (random_table(len(PIECES), 2, seed, 2.0) for seed in (1, 2))
WAYS = [("anchored:lorenz", "2x1", "deferred"), ("iid:lorenz", "2x1", "commit")]
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"enum": ["yes", 7]}},
    "required": ["answer"],
    "additionalProperties": False,
}


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """A token of two letters, so that a text has several paths, and an end of text."""
    word_level = Tokenizer(models.WordLevel({piece: token for token, piece in enumerate(PIECES)}, unk_token="a"))
    word_level.pre_tokenizer, word_level.decoder = pre_tokenizers.Split(Regex("."), "isolated"), decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=word_level, eos_token="</s>")


@cache
def grammar() -> Grammar:
    return Grammar(tokenizer(), regex="|".join(sorted(LANGUAGE)))


def compiled(**settings: Any) -> Any:
    params = SamplingParams(grammar=grammar(), eos_token_id=[END], **settings)
    return params.compile(PROMPT, len(PIECES), torch.device("cpu"))


def allowed(path: tuple[int, ...]) -> list[bool]:
    """By definition: a token may come if a text of the language begins with all of it; the end after such a text."""
    text = "".join(PIECES[token] for token in path)
    return [any(word.startswith(text + piece) for word in LANGUAGE) for piece in PIECES[:END]] + [text in LANGUAGE]


def masked_law(path: tuple[int, ...]) -> Tensor:
    """The target's law under the language; after the end of a text there is none, and nothing is asked for."""
    law = TARGET((*PROMPT, *path))
    if END in path:
        return law
    law = law * torch.tensor(allowed(path))
    return law / law.sum()


def error(
    way: tuple[str, str, str],
    steps: int = 1,
    conditional: Callable[..., Tensor] = masked_law,
    masks: type[PathMasks] = PathMasks,
) -> float:
    models = (TableModel(table, len(PIECES)) for table in (TARGET, DRAFT))
    sampling = compiled()
    for processor in sampling.before.listed:
        if isinstance(processor, GrammarMask):
            processor.masks = masks(grammar(), [END], len(PIECES))
    return law_error(*models, PROMPT, config_of(*way), conditional, steps, sampling)


@pytest.mark.parametrize(("way", "steps"), [(("iid:lorenz", "1", "deferred"), 2), *((way, 1) for way in WAYS)])
def test_steps_have_the_law_of_the_target_under_the_grammar(way, steps):
    assert error(way, steps) <= EXACT


class WithoutLast(PathMasks):
    """Wrong: the mask forgets the path's last token."""

    def forbidden(self, path: tuple[int, ...]) -> Any:
        return super().forbidden(path[:-1])


class AtTheRoot(PathMasks):
    """Wrong: the mask forgets all of the path's tokens."""

    def forbidden(self, path: tuple[int, ...]) -> Any:
        return super().forbidden(())


class WithEnd(PathMasks):
    """Wrong: the end of text is allowed at any time."""

    def compute_mask(self, path: tuple[int, ...]) -> Any:
        forbidden = super().compute_mask(path)
        forbidden[END] = False
        return forbidden


@pytest.mark.parametrize("biased", [WithoutLast, AtTheRoot])
@pytest.mark.parametrize("way", WAYS)
def test_a_mask_of_another_path_is_caught(way, biased):
    assert error(way, masks=biased) > BIASED


def test_an_end_where_the_text_is_not_complete_is_caught():
    assert error(WAYS[0], masks=WithEnd) > BIASED


def test_every_text_of_the_law_is_a_beginning_of_the_language_and_drafts_keep_to_it():
    models, way = [TableModel(table, len(PIECES)) for table in (TARGET, DRAFT)], config_of(*WAYS[0])
    law = law_of_steps(first_state(*models, PROMPT, *way, compiled()), way, 1)
    for tokens in law:
        text = "".join(PIECES[token] for token in tokens[: tokens.index(END) if END in tokens else None])
        assert any(word.startswith(text) for word in LANGUAGE)
        assert END not in tokens or text in LANGUAGE
    for path in (), (0,), (0, 0), (2,), (2, 1, 0):
        prefix = torch.tensor([*PROMPT, *path])
        (law_of_drafts,), _ = draft_distributions(torch.zeros(1, 4), compiled(), [prefix], drafts=2, vocabulary=4)
        assert law_of_drafts.ids.tolist() == [token for token, may_come in enumerate(allowed(path)) if may_come]


def test_masks_of_paths_in_any_order_are_those_of_the_language():
    """With more paths than are kept, and with paths that the grammar does not allow, after which all may come."""
    rng, masks = random.Random(1), PathMasks(grammar(), [END], 6)
    paths = [tuple(rng.choices(range(4), k=rng.randrange(5))) for _ in range(400)]
    for path in paths:
        reachable = all(allowed(path[:place])[token] for place, token in enumerate(path)) and END not in path
        expected = [*allowed(path), False, False] if reachable else [True] * 6  # tokens 4 and 5 have no text
        assert [not forbidden for forbidden in masks.forbidden(path).tolist()] == expected, path
    assert len({*paths}) > grammars.MAX_KEPT_MASKS == len(masks.kept)


@pytest.mark.parametrize(
    "settings", [dict(temperature=0), dict(top_k=5, logit_bias={5: 40.0}), pytest.param(dict(), marks=pytest.mark.slow)]
)
def test_generate_gives_json_of_the_schema_on_trees_and_without_drafts(settings):
    """Of a model that has never seen JSON. Greedy decoding gives the same text in both ways."""
    pair, rows = load_pair(), []
    target, draft = pair.target.float(), pair.draft.float()
    for drafter, tree in (draft, "2x1"), (None, "1"):
        generators = [torch.Generator().manual_seed(seed) for seed in range(2)]
        keywords = dict(
            grammar=Grammar(pair.tokenizer, SCHEMA), max_new_tokens=99, tree=tree, measure=False, **settings
        )
        tokens, info = md.generate(target, drafter, [[5, 6], [7]], generator=generators, logprobs=1, **keywords)
        for row, logprobs in zip(tokens, info.logprobs, strict=True):
            assert json.loads(pair.tokenizer.decode(row, skip_special_tokens=True))["answer"] in ("yes", 7)
            assert int(row[-1]) == pair.tokenizer.eos_token_id
            assert all(entry.logprob > -float("inf") for entry in logprobs)
        rows.append([row.tolist() for row in tokens])
    assert settings.get("temperature") != 0 or rows[0] == rows[1]


def test_a_row_that_is_cut_is_the_beginning_of_a_text():
    pair = load_pair()
    (tokens,), _ = md.generate(
        pair.target, pair.draft, [[5]], grammar=Grammar(pair.tokenizer, SCHEMA), max_new_tokens=2
    )
    text = pair.tokenizer.decode(tokens)
    assert len(tokens) == 2
    assert text.startswith("{")
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)


def test_stop_tokens_with_a_text_may_come_within_it_and_other_ends_are_no_ends():
    """As `stop_token_ids` has them: `b` ends a row wherever it comes; the tokenizer's end of text is none here."""
    masks = PathMasks(grammar(), [1], 4)
    assert [token for token in range(4) if not masks.forbidden(())[token]] == [0, 1, 2]
    assert [token for token in range(4) if not masks.forbidden((2,))[token]] == [1]
    assert not masks.forbidden((1,)).any()
    both = PathMasks(grammar(), [1, END], 4)  # nothing stands behind a text that is complete
    assert [token for token in range(4) if not both.forbidden((2,))[token]] == [1, END]  # `abba` goes on by `b`
    assert [token for token in range(4) if not PathMasks(grammar(), [0, END], 4).forbidden((1,))[token]] == [END]


RECURSIVE = {"$ref": "#"}
WRONG = {
    "json_schema": [
        *("{", "[]", "3", "false", {"type": "banana"}, {"x": float("nan")}, {"x": {1}}, RECURSIVE, {"not": {}}),
        *({"allOf": [{"$ref": "http://a.b/c"}]}, {"type": "string", "pattern": "(("}, {"minimum": 3, "maximum": 1}),
        {"enum": ["x" * MAX_GRAMMAR_CHARACTERS]},
    ],
    "regex": ["((", "", "x", "xa"],
    "lark": ["start: @", "", "a" * (MAX_GRAMMAR_CHARACTERS + 1), "start: start"],
}


@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind, values in WRONG.items() for value in values])
def test_wrong_grammars_are_refused_in_one_line(kind, value):
    with pytest.raises(md.AdviceError) as caught:
        Grammar(tokenizer(), **{kind: value})
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_nested_schemas_end_in_an_answer():
    for depth in 100, 5000:
        text = '{"type": "array", "items": ' * depth + "{}" + "}" * depth
        with pytest.raises(md.AdviceError):  # the letters have no bracket, and so deep nothing is read
            Grammar(letters("ab"), text)


def test_what_a_grammar_needs_is_told():
    pair = load_pair()
    for value, settings, message in (
        (SCHEMA, {}, "multidraft.Grammar"),
        (grammar(), dict(eos_token_id=[]), "end-of-text"),
    ):
        with pytest.raises(md.AdviceError, match=message):
            md.generate(pair.target, pair.draft, [[5]], grammar=value, **settings)
    with pytest.raises(md.AdviceError, match="exactly one"):
        Grammar(tokenizer(), {}, regex="a")
    with pytest.raises(md.AdviceError, match="str"):
        Grammar("no tokenizer", regex="a")  # type: ignore[arg-type]


def test_a_matcher_that_fails_ends_its_row_and_works_again():
    """As where a grammar becomes too complex: the row names the processor, and the next path begins anew."""
    masks = PathMasks(grammar(), [END], 4)

    class Failing:
        def deep_copy(self) -> "Failing":
            return self

        def try_consume_tokens(self, tokens: list[int]) -> int:
            return 0

        def is_error(self) -> bool:
            return True

        def get_error(self) -> str:
            return "ParserTooComplex\nat row 3"

        def rollback(self, count: int) -> bool:
            return False

    masks.matcher = Failing()
    with pytest.raises(md.AdviceError, match="ParserTooComplex at row 3"):
        masks.forbidden((0,))
    assert masks.forbidden((0,)).tolist() == [not may_come for may_come in allowed((0,))]
    pair = load_pair()
    failing = Grammar(pair.tokenizer, SCHEMA)
    failing.matcher = Failing()
    with pytest.raises(RowFault, match="GrammarMask fails"):
        md.generate(pair.target, pair.draft, [[5]], grammar=failing, max_new_tokens=2)


def test_a_missing_package_is_named_with_the_line_that_installs_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with pytest.raises(md.AdviceError, match=r"llguidance.*pip install.*grammar"):
        Grammar(tokenizer(), regex="a")


def test_an_object_of_many_properties_is_allowed_token_by_token():
    """The parser's own limit was five hundred, and showed in the middle of an answer."""
    pair = load_pair()
    properties = {f"k{number}": {"type": "integer"} for number in range(2000)}
    grammar = Grammar(pair.tokenizer, {"type": "object", "properties": properties, "additionalProperties": False})
    masks, path = PathMasks(grammar, [0], 4096), ()
    for token in pair.tokenizer('{"k1999": 7}', add_special_tokens=False)["input_ids"]:
        assert not masks.forbidden(path)[token]
        path = (*path, token)
    assert not masks.forbidden(path)[0]


STRONG: dict[str, Any] = {  # values at which each setting by itself leaves few tokens, or moves them far
    "top_n_sigma": 0.01,
    "temperature": 0.05,
    "top_k": 1,
    "top_p": 0.01,
    "top_h": 0.05,
    "min_p": 0.99,
    "typical_p": 0.01,
    "epsilon_cutoff": 0.9,
    "eta_cutoff": 0.9,
    "logit_bias": {END: 50.0, 0: -50.0},
    "presence_penalty": 2,
    "frequency_penalty": -2,
    "repetition_penalty": 5.0,
    "encoder_repetition_penalty": 5.0,
    "no_repeat_ngram_size": 4,
    "sequence_bias": [([0, 1], -30.0)],
    "bad_words_ids": [[2]],
    "min_new_tokens": 1,
    "exponential_decay_length_penalty": (1, 3.0),
    "suppress_tokens": [2],
    "draft_temperature": 0.1,
}


@pytest.mark.parametrize("first", STRONG)
def test_beside_any_two_settings_the_grammar_leaves_a_token_and_only_its_own(first):
    """The mask comes before every filter: one that measures tokens which the mask forbids might leave none at all."""
    for second in [*STRONG][[*STRONG].index(first) :]:
        sampling = compiled(**{name: STRONG[name] for name in (first, second)})
        for path in (), (0,), (0, 0), (0, 1), (2,), (1,), (0, 1, 1):
            logits = TARGET((*PROMPT, *path)).log().float()[None]
            logits[0, END] += 20 * (1 - allowed(path)[END])  # the likeliest token is one that may not come
            laws, faults = target_distributions(logits, sampling, [torch.tensor([*PROMPT, *path])])
            assert not faults, (second, path, faults)
            chosen = laws[0] > 0
            assert chosen.any(), (second, path)
            assert not chosen[~torch.tensor(allowed(path))].any(), (second, path)
