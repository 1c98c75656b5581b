"""The way in through transformers: `generate(..., custom_generate=md.generate)` returns what plain generate would."""

import copy
import functools
import importlib.util
import inspect
import runpy
import sys
from pathlib import Path

import pytest
import torch
from tiny import tiny_model
from tokenizers import Tokenizer, decoders, models
from torch import Tensor
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    PreTrainedTokenizerFast,
    StoppingCriteria,
    TextIteratorStreamer,
    TextStreamer,
    WatermarkingConfig,
)
from transformers.generation import GenerationMixin, MaxLengthCriteria, StoppingCriteriaList

import multidraft as md
from multidraft.models.huggingface import compat
from multidraft.sampling import generation_config

pytestmark = pytest.mark.usefixtures("unchecked")
FOLDER = Path(__file__).parents[2] / "examples" / "hub"
PROMPTS = torch.tensor([[0, 0, 5, 9], [8, 7, 6, 5]])
MASK = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
OURS = dict(custom_generate=md.generate, tree="2x2x1")


class Zigzag(LogitsProcessor):
    """A user's own: tokens whose parity is that of the whole sequence's sum become likelier."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        same = (input_ids.sum(-1, keepdim=True) + torch.arange(scores.shape[-1])) % 2 == 0
        return scores + 3.0 * same


class LastIsSmall(StoppingCriteria):
    """A user's own."""

    def __call__(self, input_ids: Tensor, scores: Tensor | None, **kwargs) -> Tensor:
        return input_ids[:, -1] < 9


def continued(ids: Tensor = PROMPTS, mask: Tensor | None = MASK, plain: bool = False, **changes) -> Tensor:
    """What `generate` returns, plainly or with drafts."""
    settings = dict(max_new_tokens=12, do_sample=False, pad_token_id=0, attention_mask=mask) | changes
    ours = {} if plain else dict(OURS, draft_model=tiny_model("qwen2"))
    return tiny_model("llama").generate(ids, **(settings | ours))


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Letters in pairs and alone, so that a stop string may begin or end within a token."""
    pairs = [(a, b) for a in "abcdef" for b in "abcdef"]
    words = ["[UNK]", *"abcdef", *[a + b for a, b in pairs]]
    plain = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, pairs, unk_token="[UNK]"))
    plain.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="[UNK]", clean_up_tokenization_spaces=False)


GREEDY = {
    "nothing": {},
    "repetition": dict(repetition_penalty=1.5),
    "no repeated n-grams": dict(no_repeat_ngram_size=2),
    "bad words": dict(bad_words_ids=[[34], [35, 52]]),
    "sequence bias": dict(sequence_bias={(4,): 9.0, (4, 5): 40.0}),
    "several ends": dict(eos_token_id=[34, 30, 10]),
    "minimum": dict(min_length=11, eos_token_id=list(range(30))),
    "forced end": dict(forced_eos_token_id=5),
    "growing end": dict(exponential_decay_length_penalty=(3, 1.3), eos_token_id=7),
    "suppressed": dict(suppress_tokens=list(range(20, 40))),
    "suppressed at first": dict(begin_suppress_tokens=list(range(30))),
    "no n-grams of the prompt": dict(encoder_no_repeat_ngram_size=1),
    "watermark": dict(watermarking_config=WatermarkingConfig(bias=6.0)),
    "allowed by row": dict(prefix_allowed_tokens_fn=lambda row, ids: [t for t in range(60) if t % 2 == row]),
    "maximum": dict(max_length=9, max_new_tokens=None),
    "a user's own": dict(logits_processor=[Zigzag()]),
    "a user's own end": dict(stopping_criteria=[LastIsSmall()], eos_token_id=60),
}


@pytest.fixture(scope="module")
def free() -> Tensor:
    """What plain `generate` returns where nothing is asked for."""
    return continued(plain=True)


@pytest.mark.parametrize("name", GREEDY)
def test_greedy_output_is_that_of_plain_generate(name, free):
    """Both rows end when they would have ended, with the same padding; nearly every setting changes the output."""
    plain = continued(plain=True, **GREEDY[name])
    assert torch.equal(continued(**GREEDY[name]), plain)
    assert (name in ("nothing", "maximum")) or not torch.equal(plain, free)


def test_right_after_an_unpadded_batch_and_a_single_row():
    assert torch.equal(continued(mask=None), continued(mask=None, plain=True))
    assert torch.equal(continued(PROMPTS[1:], None), continued(PROMPTS[1:], None, plain=True))


SAMPLED = {
    "default": {},  # top-k 50, which transformers sets for everybody
    "penalties": dict(repetition_penalty=1.4, temperature=0.8, top_k=0, top_p=0.9),
    "min-p": dict(min_p=0.1, temperature=1.5, logits_processor=[Zigzag()]),
    "typical": dict(typical_p=0.8, eta_cutoff=1e-3, epsilon_cutoff=1e-3),
}


@pytest.mark.parametrize("name", SAMPLED)
def test_sampled_tokens_come_from_the_processed_distribution(name):
    """The log-probability of every token is that of transformers' own processors on the model's logits."""
    caught = {}

    def catch(model, input_ids, logits_processor, **keywords):
        return caught.setdefault("processors", logits_processor) and input_ids

    changes = dict(SAMPLED[name], do_sample=True, return_dict_in_generate=True, eos_token_id=3)
    tiny_model("llama").generate(PROMPTS, attention_mask=MASK, custom_generate=catch, max_new_tokens=12, **changes)
    output = continued(logprobs=3, generator=torch.Generator().manual_seed(1), **changes)
    lengths = [len(entries) for entries in output.logprobs]
    for position in range(PROMPTS.shape[1], output.sequences.shape[1]):
        before = output.sequences[:, :position]
        mask = torch.cat([MASK, torch.ones(2, position - 4, dtype=torch.int64)], 1)
        ids = (mask.cumsum(-1) - 1).clamp(min=0)
        with torch.inference_mode():
            logits = tiny_model("llama")(before, attention_mask=mask, position_ids=ids).logits[:, -1]
        logs = caught["processors"](before, logits.float()).log_softmax(-1)
        for row in range(2):
            if position - 4 < lengths[row]:
                entry = output.logprobs[row][position - 4]
                assert entry.logprob == pytest.approx(float(logs[row, output.sequences[row, position]]), abs=2e-3)
                assert entry.top[0][0] == int(logs[row].argmax())
    assert output.info.tokens == sum(lengths)


def test_greedy_log_probabilities_are_those_of_transformers():
    changes = dict(return_dict_in_generate=True, repetition_penalty=1.5)
    plain = continued(plain=True, output_scores=True, **changes)
    scores = tiny_model("llama").compute_transition_scores(plain.sequences, plain.scores, normalize_logits=True)
    ours = [[entry.logprob for entry in row] for row in continued(logprobs=True, **changes).logprobs]
    assert torch.allclose(torch.tensor(ours), scores, atol=2e-3)


def test_sampling_repeats_itself_with_torch_s_seed_and_expands_rows():
    def once(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return continued(do_sample=True, num_return_sequences=3, return_dict_in_generate=True)

    assert torch.equal(once(1).sequences, once(1)["sequences"])
    assert not torch.equal(once(1).sequences, once(2).sequences)
    assert once(1).sequences.shape == (6, 16)
    assert (once(1).info.tokens, once(1).logprobs) == (72, None)


def test_without_any_time_there_is_one_token_or_one_pass():
    plain = continued(max_time=0.0, plain=True).shape[1] - PROMPTS.shape[1]
    ours = continued(max_time=0.0, return_dict_in_generate=True)
    assert plain == 1
    assert 1 <= ours.sequences.shape[1] - PROMPTS.shape[1] <= 4
    assert ours.info.finish_reasons == [None] * len(PROMPTS)


def test_a_user_s_own_length_takes_the_place_of_the_configuration_s():
    """Plain `generate` has no other: it goes on to the user's."""
    criteria = [MaxLengthCriteria(PROMPTS.shape[1] + 20)]
    plain = continued(plain=True, stopping_criteria=StoppingCriteriaList(criteria))
    assert plain.shape[1] == PROMPTS.shape[1] + 20
    assert torch.equal(continued(stopping_criteria=StoppingCriteriaList(criteria)), plain)


@pytest.mark.parametrize("stop", ["ab", ["ff", "cda"]])
def test_stop_strings_cut_where_plain_generate_cuts(tokenizer, stop):
    settings = dict(max_new_tokens=30, repetition_penalty=1.9)
    ends = dict(eos_token_id=60)
    plain = continued(plain=True, stop_strings=stop, tokenizer=tokenizer, **settings, **ends)
    assert torch.equal(continued(stop=stop, stop_tokenizer=tokenizer, **settings, **ends), plain)
    assert stop == "ab" or plain.shape[1] < continued(plain=True, **settings, **ends).shape[1], "none was met"
    stops = dict(stop_strings=stop, stop_tokenizer=tokenizer)
    new_tokens, _ = md.generate(
        tiny_model("llama"), tiny_model("qwen2"), PROMPTS[-1:], temperature=0, **stops, **settings
    )
    text = tokenizer.decode(new_tokens[0]).replace(" ", "")
    assert all(string not in text[: len(text) - 2] for string in ([stop] if isinstance(stop, str) else stop))


class Recorder:
    """A streamer, as far as transformers knows it."""

    def __init__(self):
        self.values, self.ends = [], 0

    def put(self, value: Tensor) -> None:
        self.values.append(value.tolist())

    def end(self) -> None:
        self.ends += 1


def test_streamers_get_the_prompt_and_then_every_token(tokenizer, capsys):
    ours, plain = Recorder(), Recorder()
    sequence = continued(PROMPTS[1:], None, stream=ours)
    continued(PROMPTS[1:], None, plain=True, streamer=plain)
    assert (ours.values, ours.ends) == (plain.values, plain.ends)
    assert plain.ends == 1
    continued(PROMPTS[1:], None, stream=TextStreamer(tokenizer))
    assert capsys.readouterr().out.split() == tokenizer.decode(sequence[0]).split()
    reader = TextIteratorStreamer(tokenizer, skip_prompt=True)
    continued(PROMPTS[1:], None, stream=reader)
    assert "".join(reader).split() == tokenizer.decode(sequence[0, 4:]).split()


def test_a_streamer_is_told_of_the_end_even_when_decoding_fails(monkeypatch):
    broken = Recorder()
    monkeypatch.setattr(broken, "put", lambda value: broken.values.append(1 // (3 - len(broken.values))))
    with pytest.raises(ZeroDivisionError):
        continued(PROMPTS[1:], None, stream=broken)
    assert broken.ends == 1


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        (dict(output_scores=True), "output_scores=True is not supported by multi-draft decoding; ask for logprobs"),
        (dict(guidance_scale=2.0), "guidance_scale=2.0 is not supported"),
        (dict(use_cache=False), "use_cache=False is not supported"),
        (dict(prompt_lookup_num_tokens=2), "prompt_lookup_num_tokens=2 is not supported"),
        (dict(inputs_embeds=torch.zeros(2, 4, 32)), "inputs_embeds is not supported|input_ids"),
        (dict(position_ids=torch.tensor([[0, 1, 2, 9]] * 2)), "position_ids is not supported"),
        (dict(logprobs=True), "logprobs come with return_dict_in_generate=True"),
        (dict(stream=Recorder()), "a streamer follows one prompt, and there are 2"),
        (dict(pad_token_id=None, stopping_criteria=[LastIsSmall()]), "pass pad_token_id"),
        (dict(temperature=1e-4, do_sample=True), "temperature is 0.0001; use a number from 0.001 to 100"),
    ],
)
def test_advice(changes, advice):
    with pytest.raises(md.AdviceError, match=advice):
        continued(**changes)


def test_mistakes_in_the_call():
    with pytest.raises(ValueError, match="draft_modell"):  # told by transformers
        continued(draft_modell=1)
    with pytest.raises(md.AdviceError, match=r"call generate\(target, draft, inputs\)"):
        md.generate(tiny_model("llama"), PROMPTS)
    cache, name = DynamicCache(), compat.memory_name(tiny_model("llama"))
    with torch.inference_mode():  # another test may have left the model with tensors for inference only
        tiny_model("llama")(PROMPTS[1:, :2], use_cache=True, **{name: cache})
    with pytest.raises(md.AdviceError, match=f"{name} hold a beginning"):
        continued(PROMPTS[1:], None, **{name: cache})


def test_no_parameter_takes_a_setting_away_from_transformers():
    """Parameters named like a setting would be filled in before the configuration is made, and lost to it."""
    parameters_of_ours = set(inspect.signature(md.generate).parameters) - set(
        inspect.signature(GenerationMixin._sample).parameters
    )
    assert not parameters_of_ours & set(generation_config.fields())
    assert not parameters_of_ours & {
        "tokenizer",
        "assistant_tokenizer",
        "assistant_model",
        "streamer",
    }  # these would not arrive
    assert {
        "draft_model",
        "scheme",
        "tree",
        "stream",
        "stop",
        "stop_tokenizer",
        "draft_temperature",
    } <= parameters_of_ours


def test_the_documentation_names_every_setting():
    text = (Path(__file__).parents[2] / "docs" / "generate.md").read_text()
    documented = set(inspect.signature(md.generate).parameters) - {
        "target_model",
        "draft_or_prompts",
        "inputs",
        "keywords",
    }
    assert [name for name in sorted(documented | generation_config.KNOWN_SETTINGS) if f"`{name}" not in text] == []


def test_the_model_s_own_configuration_counts(monkeypatch):
    model = tiny_model("llama")
    monkeypatch.setattr(model, "generation_config", GenerationConfig(repetition_penalty=1.5, max_new_tokens=7))
    plain = model.generate(PROMPTS, attention_mask=MASK, pad_token_id=0)
    ours = model.generate(PROMPTS, attention_mask=MASK, pad_token_id=0, **OURS, draft_model=tiny_model("qwen2"))
    assert torch.equal(ours, plain)
    assert ours.shape == (2, 11)


@pytest.mark.parametrize("names", [("draft_model", "stream"), ("assistant_model", "streamer")])
def test_the_folder_for_the_hub(names, tmp_path, monkeypatch, tokenizer):
    """There transformers passes on what it drops otherwise, and both ways of naming things work."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    recorder = Recorder()
    loaders = {names[0]: tiny_model("qwen2"), names[1]: recorder}
    loaders |= dict(
        max_new_tokens=12, stop_strings="ab", tokenizer=tokenizer, tree="2x1", eos_token_id=60, pad_token_id=0
    )
    output = tiny_model("llama").generate(
        PROMPTS[1:], custom_generate=str(FOLDER), trust_remote_code=True, logits_processor=[Zigzag()], **loaders
    )
    plain = continued(PROMPTS[1:], None, plain=True, stop_strings="ab", tokenizer=tokenizer, eos_token_id=60,
                      logits_processor=[Zigzag()])  # fmt: skip
    assert torch.equal(output, plain)
    assert [token for value in recorder.values[1:] for token in value] == output[0, 4:].tolist()


def test_the_folder_for_the_hub_names_no_package_that_an_index_lacks(monkeypatch):
    """transformers tells readers of a requirements.txt to install what it names, which would be something else."""
    assert [path.name for path in FOLDER.rglob("*") if path.is_file() and path.suffix == ".txt"] == []
    monkeypatch.setitem(sys.modules, "multidraft", None)
    with pytest.raises(ImportError, match="on no package index: in its checkout, pip install"):
        runpy.run_path(str(FOLDER / "custom_generate" / "generate.py"))


def test_a_model_folder_with_that_file_does_not_call_itself():
    """As from_pretrained with trust_remote_code leaves it: `model.generate` is the folder's function."""
    path = FOLDER / "custom_generate" / "generate.py"
    spec = importlib.util.spec_from_file_location("of_the_folder", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = copy.copy(tiny_model("llama"))
    model.generate = functools.partial(module.generate, model=model)
    settings = dict(max_new_tokens=12, do_sample=False, pad_token_id=0, assistant_model=tiny_model("qwen2"), tree="2x1")
    assert torch.equal(model.generate(PROMPTS, attention_mask=MASK, **settings), continued(plain=True))
    assert torch.equal(model.generate(inputs=PROMPTS, attention_mask=MASK, **settings), continued(plain=True))
