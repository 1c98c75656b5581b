"""Every argument of the Python way in, by wrong kinds of value: each call ends with one line that says what to do."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from tiny import ROTARY, tiny_model
from tokenizers import Tokenizer, models
from transformers import GenerationConfig, PreTrainedTokenizerFast

import multidraft as md
from multidraft.generation.inputs import as_lists
from multidraft.models.gguf.places import llama_cpp_path
from multidraft.models.huggingface import loading
from multidraft.models.user_models import as_reader
from multidraft.sampling.params import CHECKS
from multidraft.sampling.ranges import Range

pytestmark = pytest.mark.usefixtures("unchecked")
INF, NAN = math.inf, math.nan
PROMPTS = [[1, 2, 3]]
THINGS = {"text": "x", "bytes": b"x", "object": object(), "class": int, "dictionary": {"a": 1}, "set": {1.5}}
FLAGS = {**THINGS, "one": 1, "list": [True]}
NUMBERS = {**THINGS, "list": [1], "true": True, "nan": NAN, "inf": INF, "-inf": -INF, "complex": 1j, "huge": 1e300}
COUNTS = {**NUMBERS, "fraction": 1.5, "negative": -1}
TOKENS = {**THINGS, "fraction": 1.5, "words": ["x"], "true": True, "beyond": 61, "negative": -1}
FEW = {**THINGS, "number": 3}
CALLED = {name: thing for name, thing in FEW.items() if name != "class"} | {"list": [print]}
LISTED = {name: thing for name, thing in FEW.items() if name != "bytes"} | {"numbers": [3]}


def tokenizer() -> PreTrainedTokenizerFast:
    """A few pieces."""
    words = {"[UNK]": 0, "a": 1, "b": 2}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, "[UNK]")), unk_token="[UNK]")


def without(values: dict, *names: str) -> dict:
    return {name: value for name, value in values.items() if name not in names}


BIASES = {"words": {"a": 1.0}, "fraction": {1.5: 1.0}, "negative": {-1: 1.0}, "beyond": {61: 1.0}, "word": {1: "x"}}
GENERATORS = {"none at all": [], "too many": [torch.Generator(), torch.Generator()], "no generators": [None]}
BY_KIND = {  # by arguments of md.generate, settings of GenerationConfig among them: values of the wrong kind
    "scheme": {**FEW, "list": ["iid:lorenz"], "empty": "", "none": None, "law alone": "iid"},
    "tree": {**FEW, "list": [2, 1], "tuple": (2, 1), "none": None, "empty": "", "zero": "0x1"},
    "walk": {**without(FEW, "class"), "list": ["commit"], "none": None, "empty": ""},
    "logit_bias": {**without(THINGS, "dictionary"), **BIASES, "list": [1], "inf": {1: INF}, "nan": {1: NAN}},
    "stop stop_strings": {
        **without(THINGS, "text"),
        **{"empty": "", "empties": ["a", ""], "numbers": [1], "many": ["x"] * 3000, "alone": "x", "long": "x" * 10**5},
    },
    "stop_tokenizer watermarking_config": FEW,
    "logprobs measure": without(COUNTS, "true"),
    "generator": {**FEW, **GENERATORS, "numbers": [3], "tuple": (torch.Generator(),)},
    "stream trace": CALLED,
    "synchronise": {"without a GPU": True},
    "generation_config": {**FEW, "list": [1], "bad temperature": GenerationConfig(temperature=INF)},
    "logits_processor stopping_criteria": LISTED,
    "eos_token_id forced_eos_token_id forced_bos_token_id suppress_tokens begin_suppress_tokens": TOKENS,
    "bad_words_ids": {**FEW, "empty": [[]], "flat": [1], "negative": [[-1]], "words": [["x"]], "beyond": [[99]]},
    "sequence_bias": {**FEW, "word": {(1,): "x"}, "beyond": {(99,): 1.0}, "nan": {(1,): NAN}, "inf": {(1,): INF}},
    "exponential_decay_length_penalty": {**FEW, "one": (1,), "inf": (1, INF), "nan": (1, NAN)},
    "num_beams": {"three": 3, "text": "x"},
    "unknown_setting assistant_model": {"one": 1},
    "temperature draft_temperature repetition_penalty encoder_repetition_penalty": {"negative": -1, "tiny": 1e-9},
    "top_k draft_top_k max_new_tokens max_length": {"fraction": 1.5, "negative": -1, "none": 0, "endless": 2**70},
    "num_return_sequences": {"fraction": 1.5, "none": 0, "endless": 2**40},
    "suppress_tokens": {"all": [*range(61)]},
    "min_p epsilon_cutoff eta_cutoff": {"negative": -1, "above one": 1.5},
    "top_p draft_top_p typical_p top_h": {"negative": -1, "above one": 1.5, "zero": 0},
    "min_length min_new_tokens no_repeat_ngram_size encoder_no_repeat_ngram_size": {"fraction": 1.5, "negative": -1},
    "top_n_sigma": {"below": -2, "above": 101},
    "presence_penalty frequency_penalty": {"below": -2.1, "above": 2.1},
}
ARGUMENTS = {  # those that are one number or flag have all wrong kinds as well
    name: FLAGS if setting.kind is bool else NUMBERS
    for name, setting in CHECKS.items()
    if isinstance(setting, Range) and name not in ("seed", "logprobs", "measure", "return_dict_in_generate")
}
for names, values in BY_KIND.items():
    ARGUMENTS |= {name: ARGUMENTS.get(name, {}) | values for name in names.split()}
MODELS = {
    "nothing": lambda: None,
    "text": lambda: "a-folder",
    "tokenizer": tokenizer,
    "module": lambda: torch.nn.Linear(2, 2),
    "compiled": lambda: torch.compile(tiny_model("llama")),
    "headless": lambda: tiny_model("llama").model,
    "classifier": lambda: transformers.LlamaForSequenceClassification(transformers.LlamaConfig(**ROTARY)).eval(),
    "in training mode": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**ROTARY)).train(),
    "without weights": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**ROTARY)).eval().to("meta"),
}
INPUTS = {
    "nothing": {},
    "text": "hello",
    "texts": ["hello", "you"],
    "number": 3,
    "no prompts": [],
    "an empty prompt": [[1], []],
    "fractions": [[1.5, 2.0]],
    "nothing in it": [[None]],
    "beyond": [[1, 61]],
    "too long": [[1] * 64],
    "ragged": [[1], 2],
    "bool tensor": torch.tensor([[True, False]]),
    "no dimensions": torch.tensor(1),
    "empty tensor": torch.empty(0, 2, dtype=torch.int64),
    "on the meta device": torch.ones(1, 2, dtype=torch.int64, device="meta"),
    "sparse": torch.ones(1, 2, dtype=torch.int64).to_sparse(),
    "generator": (row for row in PROMPTS),
    "model": SimpleNamespace(input_ids=[[1]]),
    "no ids": {"attention_mask": [[1]]},
    "mask of other width": {"input_ids": [[1, 2]], "attention_mask": [[1]]},
    "mask tensor of no numbers": {"input_ids": torch.ones(1, 2).long(), "attention_mask": torch.tensor([[NAN, 1.0]])},
    "all masked": {"input_ids": [[1, 2]], "attention_mask": [[0, 0]]},
    "positions": {"input_ids": [[1, 2]], "position_ids": torch.tensor([[0, 9]])},
    "embeddings": {"input_ids": [[1, 2]], "inputs_embeds": torch.ones(1, 2, 16)},
    "images": {"input_ids": [[1, 2]], "pixel_values": torch.ones(1, 3, 2, 2)},
    "token types": {"input_ids": [[1, 2]], "token_type_ids": [[0, 1]]},
}


def table(rows: dict) -> list:
    return [
        pytest.param(name, value, id=f"{name}: {kind}") for name, kinds in rows.items() for kind, value in kinds.items()
    ]


def refused(call) -> str:
    """The advice of a call that must be refused: one line, of decent length, and nothing else raised."""
    with pytest.raises(md.AdviceError) as caught:
        call()
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 800
    assert any(mark in line for mark in (";", "must", ", "))  # what is wrong; what to do
    return line


def generated(*inputs, **settings):
    return md.generate(
        tiny_model("llama"), tiny_model("qwen2"), *inputs or (PROMPTS,), **{"max_new_tokens": 2} | settings
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "value"), table(ARGUMENTS))
def test_arguments_of_generate(name, value):
    changes = {"stop_tokenizer": None} if name != "stop_tokenizer" else {}
    refused(lambda: generated(**changes | {name: value}))


@pytest.mark.parametrize("place", ["target", "draft", "one of several"])
@pytest.mark.parametrize("kind", MODELS)
def test_models(kind, place):
    wrong, right = MODELS[kind](), tiny_model("llama")
    if kind == "nothing" and place == "draft":  # plain decoding
        return
    target, draft = (wrong, right) if place == "target" else (right, wrong if place == "draft" else [right, wrong])
    line = refused(
        lambda: md.generate(target, draft, PROMPTS, scheme="distinct:naive" if place[0] == "o" else "iid:naive")
    )
    assert "target" in line or "draft" in line or "Llama" in line


@pytest.mark.parametrize("kind", INPUTS)
def test_inputs(kind):
    refused(lambda: generated(INPUTS[kind]))


def test_inputs_in_any_honest_form_are_one():
    """Lists, a flat list, tensors, arrays, and a tokenizer's output with and without tensors."""
    expected = [[1, 2], [3]]
    mask = [[1, 1], [0, 1]]
    for form in (
        [(1, 2), (3,)],
        [torch.tensor([1, 2]), torch.tensor([3])],
        {"input_ids": [[1, 2], [9, 3]], "attention_mask": mask},
        {"input_ids": torch.tensor([[1, 2], [9, 3]]), "attention_mask": torch.tensor(mask)},
        {"input_ids": np.array([[1, 2], [9, 3]]), "attention_mask": mask},
        {"input_ids": expected, "token_type_ids": torch.zeros(2, 2), "length": [2, 1], "position_ids": None},
    ):
        assert as_lists(form) == expected
    for form in ([1, 2], torch.tensor([1, 2]), np.array([1, 2]), [np.int64(1), 2], tokenizer()("a")):
        assert len(as_lists(form)) == 1


@pytest.mark.parametrize("pad", [5, 1])
@pytest.mark.parametrize("way", ["the model's", "a keyword", "a configuration"])
def test_a_padded_tensor_without_a_mask_is_read_as_transformers_reads_it(pad, way):
    """What is no end of text hides; an end of text may be meant."""
    model, ids = tiny_model("llama"), torch.tensor([[pad] * 3 + [7, 8], [9, 2, 3, 4, 5 + pad]])
    settings = dict(max_new_tokens=6, pad_token_id=pad, eos_token_id=1)
    expected = model.generate(ids, do_sample=False, **settings)[:, 5:]
    config = GenerationConfig(pad_token_id=pad) if way == "a configuration" else None
    if way != "a keyword":
        del settings["pad_token_id"]
    model.generation_config = GenerationConfig(pad_token_id=pad if way == "the model's" else None)
    tokens, _ = md.generate(model, None, ids, temperature=0, generation_config=config, **settings)
    for row, line in zip(tokens, expected.tolist(), strict=True):
        assert row.tolist() == line[: len(row)]


def test_one_setting_by_two_names_is_refused():
    with pytest.raises(md.AdviceError, match="stop_strings and stop are both given, and mean the same"):
        md.generate(tiny_model("llama"), None, [[1]], stop="a", stop_strings="b", stop_tokenizer=tokenizer())


OURS = "scheme tree walk draft_temperature draft_top_k draft_top_p presence_penalty frequency_penalty stop".split()
OURS += "top_n_sigma params generator logit_bias stop_tokenizer stream trace measure synchronise compile".split()
CUSTOM = dict(custom_generate=md.generate, draft_model=tiny_model("qwen2"), max_new_tokens=2, pad_token_id=0)


@pytest.mark.parametrize("name", [*OURS, "draft_model"])
def test_arguments_of_custom_generate(name):
    """Which are checked where those of `generate` are: one wrong value each."""
    wrong = next(iter(ARGUMENTS[name].values())) if name in ARGUMENTS else tokenizer()
    refused(lambda: tiny_model("llama").generate(torch.tensor(PROMPTS), **CUSTOM | {name: wrong}))


def test_an_assistant_model_does_not_arrive_and_that_is_said():
    settings = dict(custom_generate=md.generate, assistant_model=tiny_model("qwen2"), max_new_tokens=2)
    line = refused(lambda: tiny_model("llama").generate(torch.tensor(PROMPTS), **settings))
    assert "draft_model" in line


def test_a_device_without_float64_is_refused():
    wrong = as_reader(tiny_model("mistral"))
    wrong.device = torch.device("mps")
    line = refused(lambda: md.generate(tiny_model("llama"), wrong, PROMPTS, max_new_tokens=2))
    assert "the draft model is on MPS" in line
    assert "model.to('cpu')" in line


SCHEME_SETTINGS = {
    "drafts": {**COUNTS, "zero": 0},
    "draft_probability": {**NUMBERS, "negative": -0.5, "zero": 0, "above one": 1.5},
    "anchors": COUNTS,
    "top_up": FLAGS,
    "name": {"number": 3, "none": None, "list": ["iid:lorenz"], "bytes": b"iid:lorenz"},
}


@pytest.mark.parametrize(("name", "value"), table(SCHEME_SETTINGS))
def test_settings_of_schemes(name, value):
    refused(lambda: md.scheme(**{"name": "anchored:lorenz"} | {name: value}))


EVEN = torch.tensor([0.5, 0.5])
DISTRIBUTIONS = {
    **{"list": [0.5, 0.5], "text": "x", "integers": torch.tensor([1, 0]), "no dimensions": torch.tensor(1.0)},
    **{"logits": torch.tensor([2.0, -1.0]), "nan": torch.tensor([NAN, 1.0])},
    **{"other size": torch.tensor([0.5, 0.25, 0.25]), "other batch": EVEN.expand(3, 2)},
}


@pytest.mark.parametrize("place", ["target", "draft"])
@pytest.mark.parametrize("kind", DISTRIBUTIONS)
@pytest.mark.parametrize("law", ["iid", "anchored", "top"])
def test_distributions(law, kind, place):
    pair = {"target": EVEN, "draft": EVEN} | {place: DISTRIBUTIONS[kind]}
    scheme = md.scheme(f"{law}:naive", 2)
    refused(lambda: md.optimal_acceptance_rate(pair["target"], pair["draft"], law, drafts=2))
    refused(lambda: scheme.acceptance_rate(pair["target"], pair["draft"]))
    refused(lambda: scheme.optimal_acceptance_rate(pair["target"], pair["draft"]))


OPTIMUM = {
    "drafts": {**COUNTS, "false": False, "fractions": torch.tensor([1.5]), "negatives": torch.tensor([-1])},
    "draft_probability": {**NUMBERS, "negative": -0.5, "above one": 1.5},
    "law": {**without(THINGS, "set", "dictionary"), "number": 3, "none": None, "empty": ""},
    "anchors": without(COUNTS, "list"),
    "top_up": FLAGS,
    "unknown": {"one": 1},
}


@pytest.mark.parametrize(("name", "value"), table(OPTIMUM))
def test_settings_of_the_optimum(name, value):
    settings = dict(law="anchored", drafts=2) | {name: value}
    refused(lambda: md.optimal_acceptance_rate(EVEN, EVEN, **settings))


@pytest.mark.parametrize("name", [n["name"] for n in md.schemes() if n["exact"]])
def test_empty_batches_have_empty_rates(name):
    scheme, target = md.scheme(name, 2), torch.empty(0, 4)
    draft = torch.empty(0, 2, 4) if name.startswith("distinct") else target
    assert scheme.acceptance_rate(target, draft).shape == (0,)
    if scheme.law.optimal is not None:
        assert scheme.optimal_acceptance_rate(target, draft).shape == (0,)
    else:
        refused(lambda: scheme.optimal_acceptance_rate(target, draft))


@pytest.mark.parametrize("drafts", [1, 2])
def test_more_anchors_than_drafts_are_all_of_them(drafts):
    target, draft = torch.tensor([0.5, 0.3, 0.2]).double(), torch.tensor([0.2, 0.3, 0.5]).double()
    twenty_anchors, all_of_them = (md.scheme("anchored:lorenz", drafts, anchors=count) for count in (20, drafts))
    assert twenty_anchors.draw(draft.expand(2, -1)).equal(all_of_them.draw(draft.expand(2, -1)))
    for rate in ("acceptance_rate", "optimal_acceptance_rate"):
        assert getattr(twenty_anchors, rate)(target, draft) == getattr(all_of_them, rate)(target, draft)


def test_missing_weights_are_named_and_tied_ones_are_none():
    nothing = {"missing_keys": set(), "unexpected_keys": {"h.0.attn.bias"}, "mismatched_keys": set()}
    loading.check_whole("model", nothing)
    for kind in nothing:
        with pytest.raises(md.AdviceError, match=r"'model' .*: a\.weight and 1 more; get the whole model"):
            loading.check_whole("model", nothing | {kind: {"a.weight", "b.weight"}})


@pytest.mark.skipif(llama_cpp_path() is not None, reason="there is a llama.cpp")
def test_a_gguf_model_without_its_library():
    with pytest.raises(md.AdviceError, match=r"no llama\.cpp is found; unpack .*pip install .*'.\[llama-cpp\]'"):
        md.GGUF("model.gguf", library="llama.cpp")
