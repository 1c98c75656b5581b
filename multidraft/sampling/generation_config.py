"""Every field of transformers' GenerationConfig: honoured, without meaning for sampling and greedy search, or refused.

A field that is in none of the lists, because transformers is newer than this file, is refused as soon as it is set.
"""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from transformers import GenerationConfig

from multidraft.errors import AdviceError, quote
from multidraft.sampling.params import RECOMMENDED, SETTINGS, SamplingParams, check_all

HONOURED_SETTINGS = {known.transformers for known in SETTINGS.values() if known.transformers is not None} | {
    "do_sample",
    "return_dict_in_generate",
    "pad_token_id",
}
FIELD_OF = {known.transformers: name for name, known in SETTINGS.items()}
OWN_SETTINGS = {
    name for name, known in SETTINGS.items() if known.transformers != name
}  # settings that transformers lacks
IGNORED_SETTINGS = (
    set(  # what only beams, encoders, assistants or other caches read; and notes of where a file came from
        "early_stopping length_penalty decoder_start_token_id bos_token_id num_assistant_tokens "
        "num_assistant_tokens_schedule assistant_confidence_threshold max_matching_ngram_size assistant_lookbehind "
        "target_lookbehind cache_config max_cache_len prefill_chunk_size compile_config disable_compile "
        "return_legacy_cache transformers_version".split()
    )
)
REFUSED_SETTINGS = {  # with the values that may be set all the same, because they are the default or change nothing
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
REPLACEMENT_ADVICE = {
    **dict.fromkeys(("output_scores", "output_logits"), "ask for logprobs=True"),
    **dict.fromkeys(("cache_implementation", "use_cache"), "trees have a cache of their own; leave it out"),
    "prompt_lookup_num_tokens": "pass a draft model",
    "assistant_ensemble_weight": "it biases the output; leave it out",
}
INSTEAD_OF_KEYWORDS = {
    "assistant_model": "draft_model",
    "streamer": "stream",
    "tokenizer": "stop_tokenizer",
    "max_tokens": "max_new_tokens",
    "seed": "generator=torch.Generator().manual_seed(1)",
}
KNOWN_SETTINGS = HONOURED_SETTINGS | IGNORED_SETTINGS | set(REFUSED_SETTINGS)


def fields() -> dict[str, Any]:
    """All fields of the installed version, with their defaults."""
    return {name: value for name, value in vars(GenerationConfig()).items() if not name.startswith("_")}


def check_supported(values: Mapping[str, Any]) -> None:
    """Raise AdviceError on the first value that cannot be honoured."""
    for name, default in fields().items():
        value = values.get(name)
        allowed = REFUSED_SETTINGS.get(name, (default,))
        if name in HONOURED_SETTINGS | IGNORED_SETTINGS or value is None or any(value == other for other in allowed):
            continue
        advice = REPLACEMENT_ADVICE.get(name, "leave it out, or use plain generate")
        raise AdviceError(f"{name}={value!r} is not supported by multi-draft decoding; {advice}")


def check_names(names: Iterable[str]) -> None:
    """Raise AdviceError on a name that is neither a field of the installed version nor a setting that it lacks."""
    known = [*fields(), *OWN_SETTINGS]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, [*known, *INSTEAD_OF_KEYWORDS.values()], 1)
            near = [INSTEAD_OF_KEYWORDS[name]] if name in INSTEAD_OF_KEYWORDS else near
            advice = f"did you mean {near[0]!r}?" if near else "docs/generate.md lists all"
            raise AdviceError(f"unknown setting {name!r}; {advice}")


def params_from(
    base: GenerationConfig | SamplingParams | None, settings: Mapping[str, Any], ends: set[int]
) -> SamplingParams:
    """Sampling settings by name, on top of others if there are any; `ends` are the end-of-text tokens by default.

    Without others, everything is off: temperature 1, no truncation.
    """
    check_names(settings)
    for name, field in FIELD_OF.items():
        if name and name != field and settings.get(name) is not None and settings.get(field) is not None:
            raise AdviceError(f"{name} and {field} are both given, and mean the same; use one of them")
    values = values_of(base) | dict(settings)
    check_supported(values)
    check_all(values)
    params = {FIELD_OF.get(name, name): value for name, value in values.items() if value is not None}
    if not values.get("do_sample"):
        params["temperature"] = 0
    params = {name: value for name, value in params.items() if name in SETTINGS}
    return SamplingParams(**params | {"eos_token_id": sorted(end_tokens(values.get("eos_token_id"), ends))})


def values_of(base: GenerationConfig | SamplingParams | None) -> dict[str, Any]:
    """The values by name; without a `GenerationConfig`, sampling is on."""
    if isinstance(base, GenerationConfig):
        values = dict(vars(base))
        if values.get("max_length") == fields()["max_length"]:  # of version 4 that is 20, which nobody has asked for
            values["max_length"] = None
        return values | {"top_k": values.get("top_k") or None}  # where 0 is none
    if base is not None and not isinstance(base, SamplingParams):
        raise AdviceError(f"generation_config is {quote(base)}; pass a transformers.GenerationConfig")
    return {"do_sample": True} | ({} if base is None else {name: getattr(base, name) for name in SETTINGS})


def model_defaults(model: Any) -> dict[str, Any]:
    """The sampling settings that a model's `generation_config` recommends; raises AdviceError on one out of range."""
    config = getattr(model, "generation_config", None)
    values = {} if config is None else config.to_diff_dict()
    offs = {name: (None, *SETTINGS[name].off, *SETTINGS[name].served_off) for name in RECOMMENDED}
    defaults = {name: values[name] for name in RECOMMENDED if values.get(name) not in offs[name]}
    check_all(defaults, called=lambda name: f"{name} in the model's generation_config")
    return defaults


def defaults_note(defaults: Mapping[str, Any]) -> str | None:
    """A line on the settings that are taken from a model's configuration."""
    listed = ", ".join(f"{name} {value}" for name, value in defaults.items())
    return f"sampled as the model's generation_config says, unless told otherwise: {listed}" if listed else None


def ends_of(config: GenerationConfig | None, default: set[int]) -> set[int]:
    """The end-of-text tokens that a configuration names, or the default where it leaves them open."""
    return end_tokens(getattr(config, "eos_token_id", None), default)


def end_tokens(ends: Any, default: set[int]) -> set[int]:
    """One end-of-text token or several as a set; the default for None."""
    return default if ends is None else set(ends) if isinstance(ends, list | tuple | set) else {ends}
