"""Every field of transformers' GenerationConfig: honoured, without meaning for sampling and greedy search, or refused.

A field that is in none of the lists, because transformers is newer than this file, is refused as soon as it is set.
What transformers makes of the fields, lists of processors, is taken apart into the sampling that they amount to.
"""

import copy
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedTokenizerBase

from multidraft.errors import AdviceError, shown
from multidraft.sampling.processors import AFTER, WARPERS, Processors, name_of
from multidraft.sampling.settings import BIAS, FACTOR, Sampling, check_all, check_stops, check_tokens, require

HONOURED = set(
    "max_length max_new_tokens min_length min_new_tokens max_time stop_strings do_sample temperature top_k top_p min_p "
    "top_h typical_p epsilon_cutoff eta_cutoff repetition_penalty encoder_repetition_penalty no_repeat_ngram_size "
    "encoder_no_repeat_ngram_size bad_words_ids sequence_bias renormalize_logits forced_bos_token_id "
    "forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens "
    "watermarking_config num_return_sequences return_dict_in_generate eos_token_id pad_token_id".split()
)
MEANINGLESS = set(  # what only beams, encoders, assistants or other caches read; and notes of where a file came from
    "early_stopping length_penalty decoder_start_token_id bos_token_id num_assistant_tokens "
    "num_assistant_tokens_schedule assistant_confidence_threshold max_matching_ngram_size assistant_lookbehind "
    "target_lookbehind cache_config max_cache_len prefill_chunk_size compile_config disable_compile "
    "return_legacy_cache transformers_version".split()
)
REFUSED = {  # with the values that may be set all the same, because they are the default or change nothing
    name: allowed
    for names, allowed in {
        "low_memory token_healing output_attentions output_hidden_states output_scores output_logits use_mtp "
        "is_assistant": (False,),
        "num_beams num_beam_groups guidance_scale": (1,),
        "diversity_penalty penalty_alpha": (0.0,),
        "use_cache": (True,),
        "cache_implementation": ("dynamic", "hybrid"),
        "constraints force_words_ids dola_layers prompt_lookup_num_tokens assistant_early_exit "
        "assistant_ensemble_weight speculation_type continuous_batching_config": (),
    }.items()
    for name in names.split()
}
INSTEAD = {
    **dict.fromkeys(("output_scores", "output_logits"), "ask for logprobs=True"),
    **dict.fromkeys(("cache_implementation", "use_cache"), "trees have a cache of their own; leave it out"),
    "prompt_lookup_num_tokens": "pass a draft model",
    "assistant_ensemble_weight": "it biases the output; leave it out",
}
TOKENS = "eos_token_id forced_bos_token_id forced_eos_token_id suppress_tokens begin_suppress_tokens".split()
OURS = {"assistant_model": "draft_model", "streamer": "stream", "tokenizer": "stop_tokenizer"}  # by their names there
KNOWN = HONOURED | MEANINGLESS | set(REFUSED)


def fields() -> dict[str, Any]:
    """All fields of the installed version, with their defaults."""
    return {name: value for name, value in vars(GenerationConfig()).items() if not name.startswith("_")}


def check_values(config: GenerationConfig, vocabulary: int | None = None) -> None:
    """Raise AdviceError on the first field that holds what it cannot, or names a token beyond the vocabulary."""
    given = {name: value for name in HONOURED if (value := getattr(config, name, None)) is not None}
    check_all({name: value for name, value in given.items() if (name, value) != ("top_k", 0)})  # which is none there
    for name in TOKENS:
        if name in given:
            check_tokens(name, given[name], vocabulary)
    if "stop_strings" in given:
        check_stops("stop_strings", given["stop_strings"])
    if isinstance(decay := given.get("exponential_decay_length_penalty"), list | tuple) and len(decay) == 2:
        require(FACTOR, decay[1], "the factor of exponential_decay_length_penalty")


def check_sequences(config: GenerationConfig, vocabulary: int) -> None:
    """Raise AdviceError on forbidden or biased sequences that are empty, go beyond the vocabulary, or have no number.

    Their kinds are what transformers checks as it makes processors of them.
    """
    bias = config.sequence_bias or {}
    pairs = list(bias.items()) if isinstance(bias, Mapping) else [(tuple(tokens), value) for tokens, value in bias]
    for sequence, value in pairs:
        require(BIAS, value, f"the sequence_bias of {list(sequence)}")
    named = {"bad_words_ids": config.bad_words_ids or [], "sequence_bias": [sequence for sequence, _ in pairs]}
    for name, sequences in named.items():
        for sequence in sequences:
            if not sequence:
                raise AdviceError(f"{name} has an empty sequence; leave it out")
            check_tokens(name, list(sequence), vocabulary)


def check(config: GenerationConfig) -> None:
    """Raise AdviceError on the first field that is set to what cannot be honoured."""
    for name, default in fields().items():
        value = getattr(config, name, None)
        allowed = REFUSED.get(name, (default,))
        if name in HONOURED | MEANINGLESS or value is None or any(value == other for other in allowed):
            continue
        advice = INSTEAD.get(name, "leave it out, or use plain generate")
        raise AdviceError(f"{name}={value!r} is not supported by multi-draft decoding; {advice}")


def configuration(base: GenerationConfig | None, settings: Mapping[str, Any], ends: set[int]) -> GenerationConfig:
    """A configuration from settings by name, over another one if there is one.

    Without one, everything is off: temperature 1, no truncation; `temperature=0` decodes greedily.
    """
    known = fields()
    for name in settings:
        if name not in known:
            near = difflib.get_close_matches(name, [*known, *OURS.values()], 1)
            near = [OURS[name]] if name in OURS else near
            advice = f"did you mean {near[0]!r}?" if near else "docs/generate.md lists all"
            raise AdviceError(f"unknown setting {name!r}; {advice}")
    if base is not None and not isinstance(base, GenerationConfig):
        raise AdviceError(f"generation_config is {shown(base)}; pass a transformers.GenerationConfig")
    config = copy.deepcopy(base) if base is not None else GenerationConfig(do_sample=True, top_k=None, max_length=None)
    if config.max_length == known["max_length"]:  # of version 4 that is 20, which nobody has asked for
        config.max_length = None
    for name, value in settings.items():
        setattr(config, name, value)
    check_all(settings)
    check_values(config)
    if config.temperature == 0:
        config.do_sample, config.temperature = False, 1.0
    config.eos_token_id = sorted(ends_of(config, ends))
    check(config)
    return config


def ends_of(config: GenerationConfig | None, default: set[int]) -> set[int]:
    """The end-of-text tokens that a configuration names, or the default where it leaves them open."""
    ends = getattr(config, "eos_token_id", None)
    return default if ends is None else set(ends) if isinstance(ends, list | tuple | set) else {ends}


def new_tokens(config: GenerationConfig, prompt: int, default: int = 128) -> int:
    """How many new tokens a configuration asks for after a prompt of this length."""
    if config.max_new_tokens is not None:
        return config.max_new_tokens
    if config.max_length is None:
        return default
    if config.max_length <= prompt:
        raise AdviceError(f"max_length {config.max_length} leaves nothing after a prompt of {prompt}; raise it")
    return config.max_length - prompt


def check_stop(stop: Any, tokenizer: Any) -> None:
    """Raise AdviceError unless the texts that end a row are texts, and have a tokenizer if there is one."""
    if stop is not None:
        check_stops("stop", stop)
    if tokenizer is not None and not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise AdviceError(f"stop_tokenizer is {shown(tokenizer)}; pass the target's tokenizer")


def samplings_from(lists: Sequence[LogitsProcessorList], greedy: bool) -> list[Sampling]:
    """The sampling of each prompt that its list of processors amounts to; prompts that share a list share theirs.

    Temperature, top-k and top-p are taken out, because we have faster code for them; with nothing else, no processor
    is ever called.
    """
    made = {id(listed): sampling_from(listed, greedy) for listed in lists}
    return [made[id(listed)] for listed in lists]


def sampling_from(listed: Sequence[LogitsProcessor], greedy: bool) -> Sampling:
    """The sampling that one list amounts to: what comes before the warpers, their numbers, and what comes after."""
    names = [name_of(processor) for processor in listed]
    first = next((i for i, name in enumerate(names) if name in WARPERS), len(names))
    if greedy or not set(names[first:]) <= AFTER:  # an order that nobody expects: let it run as it stands
        return Sampling(0 if greedy else 1.0, before=Processors(listed) if listed else None)
    rest = list(listed[first:])
    temperature = take(rest, "TemperatureLogitsWarper", "temperature") or 1.0
    top_k, top_p = take(rest, "TopKLogitsWarper", "top_k"), take(rest, "TopPLogitsWarper", "top_p") or None
    if rest and name_of(rest[-1]) == "LogitNormalization":
        rest.pop()
    before, after = (Processors(part) if part else None for part in (listed[:first], rest))
    return Sampling(temperature, top_k, top_p, before, after)


def take(rest: list[LogitsProcessor], name: str, attribute: str) -> Any:
    """Remove the first processor if it is of that kind, and return its number."""
    if not rest or name_of(rest[0]) != name or getattr(rest[0], "filter_value", -torch.inf) != -torch.inf:
        return None
    return getattr(rest.pop(0), attribute)
