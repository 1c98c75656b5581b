"""Sampling settings as fields of one dataclass: the ways in that are derived from them, with one table of ranges."""

import inspect
from dataclasses import fields, replace

import pytest
import torch
from transformers import GenerationConfig, TypicalLogitsWarper, WatermarkingConfig

import multidraft as md
from multidraft.cli.generate import SamplingOptions
from multidraft.sampling.generation_config import OWN_SETTINGS, params_from
from multidraft.sampling.params import CHECKS, SETTINGS, SamplingParams, check, check_all
from multidraft.sampling.processors import CountPenalty, LogitBias, TopNSigma
from multidraft.sampling.ranges import Range
from multidraft.server import Limits, request_bodies

CPU = torch.device("cpu")
BEYOND = {
    name: 1e12 for name, known in SETTINGS.items() if isinstance(known.check, Range) and known.check.kind is float
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", BEYOND)
def test_one_table_of_ranges_serves_python_the_command_line_and_the_server(name):
    problem = f" is {BEYOND[name]!r}; use {CHECKS[name]}"
    with pytest.raises(md.AdviceError, match="^" + name) as by_name:
        SamplingParams(**{name: BEYOND[name]})
    assert str(by_name.value) == name + problem
    option = "--" + name.replace("_", "-")
    with pytest.raises(md.AdviceError, match="^" + option) as on_the_command_line:
        check_all({name: BEYOND[name]}, called=lambda _: option)
    assert str(on_the_command_line.value) == option + problem
    if served := SETTINGS[name].served:
        body = request_bodies.CompletionBody(model="toy", prompt="a", **{served: BEYOND[name]})
        with pytest.raises(md.AdviceError, match="^" + served) as in_a_request:
            request_bodies.check(body, Limits(), 5)
        assert str(in_a_request.value) == served + problem


def test_every_way_in_has_the_settings_that_it_should():
    assert OWN_SETTINGS <= set(inspect.signature(md.generate).parameters)
    assert {f.name for f in fields(SamplingOptions)} == {name for name, known in SETTINGS.items() if known.option}
    assert set(request_bodies.SETTINGS_BY_FIELD) <= set(request_bodies.CompletionBody.model_fields) & set(
        request_bodies.ChatBody.model_fields
    )
    for name in ("temperature", "top_k", "top_p", "min_p", "top_n_sigma", "repetition_penalty"):
        assert SETTINGS[name].option
        assert SETTINGS[name].served == name
        assert SETTINGS[name].help


def test_a_request_and_a_call_compile_to_the_same_processors_in_the_same_order():
    body = request_bodies.CompletionBody(
        model="toy", prompt="a", temperature=0.5, top_k=-1, min_p=0.1, min_tokens=2, top_n_sigma=2, presence_penalty=1,
        frequency_penalty=0.5, repetition_penalty=1.2, logit_bias={3: 1.0}, top_p=1, typical_p=0.9,
    )  # fmt: skip
    request = request_bodies.sampling_of(body, [0, 1], 5, {4}, CPU)
    params = SamplingParams(
        temperature=0.5, min_p=0.1, min_new_tokens=2, top_n_sigma=2, presence_penalty=1, frequency_penalty=0.5,
        repetition_penalty=1.2, logit_bias={3: 1.0}, eos_token_id=[4], typical_p=0.9,
    )  # fmt: skip
    call = params.compile([0, 1], 5, CPU)
    for sampling in (request, call):
        assert sampling.numbers == (0.5, None, None, 0.1)
        kinds = [type(processor) for processor in sampling.before.listed]
        assert kinds[-3:] == [LogitBias, CountPenalty, TopNSigma]
        assert [kind.__name__ for kind in kinds[:-3]] == [
            "RepetitionPenaltyLogitsProcessor",
            "MinNewTokensLengthLogitsProcessor",
        ]
        assert [type(processor) for processor in sampling.after.listed] == [TypicalLogitsWarper]
    plain = request_bodies.CompletionBody(model="toy", prompt="a", temperature=0.5, top_k=0, top_p=1, top_n_sigma=0)
    assert request_bodies.sampling_of(plain, [0, 1], 5, {4}, CPU) == SamplingParams(temperature=0.5).compile(
        [0], 5, CPU
    )


def test_settings_of_a_configuration_are_taken_over_and_changed_by_name():
    config = GenerationConfig(do_sample=True, temperature=0.5, top_k=0, stop_strings=["a"], eos_token_id=3, num_beams=1)
    expected = SamplingParams(temperature=0.5, stop=["a"], eos_token_id=[3])
    assert params_from(config, {}, {1}) == expected
    assert params_from(config, {"temperature": None, "stop": "b"}, {1}) == replace(expected, temperature=1.0, stop="b")
    assert params_from(config, {"do_sample": False}, {1}).temperature == 0
    assert params_from(None, {}, {1}) == SamplingParams(eos_token_id=[1])
    assert params_from(expected, {"top_n_sigma": 1}, {1}) == replace(expected, top_n_sigma=1)


def test_a_watermark_is_a_dictionary_or_the_object_of_transformers():
    for config in dict(bias=1.5), WatermarkingConfig(bias=1.5):
        processor = SamplingParams(watermarking_config=config).compile([1], 5, CPU).before.listed[0]
        assert (type(processor).__name__, processor.bias) == ("WatermarkLogitsProcessor", 1.5)


def test_tokens_are_checked_when_the_vocabulary_is_known():
    params = SamplingParams(suppress_tokens=[7], bad_words_ids=[[8]], logit_bias={9: 1.0})
    params.check(10)
    for size, name in ((7, "bad_words_ids"), (9, "logit_bias")):
        with pytest.raises(md.AdviceError, match=f"{name} names token .*, but the vocabulary is 0 to {size - 1}"):
            params.check(size)
    with pytest.raises(md.AdviceError, match="stop has 70 strings of up to 1 characters; use at most 64 strings"):
        check("stop", ["a"] * 70)
