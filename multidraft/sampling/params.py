"""The sampling settings. A setting is one field: its range, its help, its names elsewhere, and its processor.

The keywords of `multidraft.generate`, the options of `multidraft generate`, the fields of a request's body and what is
taken from a `GenerationConfig` are derived from the fields. This module does not import torch, because the help of the
command line needs it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from multidraft.errors import AdviceError
from multidraft.sampling import fields as make
from multidraft.sampling.fields import SAME, PromptContext, Setting, new, new_on_device, setting
from multidraft.sampling.ranges import (
    CUTOFF,
    FACTOR,
    FLAG,
    MAX_TOKENS,
    PENALTY,
    POSITIVE_PROBABILITY,
    PROBABILITY,
    TEMPERATURE,
    TOKEN_COUNT,
    TOP_K,
    Range,
    check_anything,
    check_biases,
    check_decay,
    check_sequence_biases,
    check_sequences,
    check_stop_strings,
    check_tokens,
)
from multidraft.sampling.settings import Sampling

if TYPE_CHECKING:
    import torch
    from transformers import LogitsProcessor

DEFAULT_NEW_TOKENS = 128
MAX_LENGTH = Range(int, 1, MAX_TOKENS)
Number = float | int | None
Count = int | None
warper = partial(setting, only_sampling=True)


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """What tokens are sampled with, and when a row ends. None leaves a setting out.

    Processors run in the order of the fields. The processors of a user come after `begin_suppress_tokens`, and before
    those that transformers lacks. Raises AdviceError on a value out of range.

    >>> params = SamplingParams(temperature=0.7, top_k=2, draft_temperature=0.9)
    >>> sampling = params.compile([1, 2, 3], vocabulary=5, device="cpu")
    >>> sampling.temperature, sampling.top_k, sampling.for_draft.temperature
    (0.7, 2, 0.9)
    >>> SamplingParams(min_p=2)
    Traceback (most recent call last):
    ...
    multidraft.errors.AdviceError: min_p is 2; use a number from 0 to 1
    """

    # When a row ends. Without max_new_tokens and max_length, after DEFAULT_NEW_TOKENS.
    max_new_tokens: Count = setting(None, MAX_LENGTH, "New tokens for each prompt.", option=int)
    max_length: Count = setting(None, MAX_LENGTH, "Tokens of a sequence, with its prompt.")
    max_time: Number = setting(None, Range(float, 0, 1e9), "Seconds after which no step begins.")
    stop: str | Sequence[str] | None = setting(
        None,
        check_stop_strings,
        "Text that ends a row; may be repeated.",
        transformers="stop_strings",
        option=list[str],
    )
    eos_token_id: Any = setting(None, check_tokens, "Tokens that end a row. Default: the target's.")
    num_return_sequences: Count = setting(1, Range(int, 1, 4096), "Rows for each prompt.", served="n")

    # Penalties and constraints
    sequence_bias: Any = setting(
        None, check_sequence_biases, "Added to the logit of a sequence's last token.", "SequenceBiasLogitsProcessor"
    )
    encoder_repetition_penalty: Number = setting(
        None,
        FACTOR,
        "Above 1, tokens of the prompt become likelier.",
        lambda factor, context: new("EncoderRepetitionPenaltyLogitsProcessor", factor, context.tokens),
        off=(1,),
        reads_prompt=True,
    )
    repetition_penalty: Number = setting(
        None,
        FACTOR,
        "Above 1, tokens seen before become less likely.",
        "RepetitionPenaltyLogitsProcessor",
        off=(1,),
        option=float,
        served=SAME,
    )
    no_repeat_ngram_size: Count = setting(
        None, TOKEN_COUNT, "No n-gram of this size occurs twice.", "NoRepeatNGramLogitsProcessor", off=(0,)
    )
    encoder_no_repeat_ngram_size: Count = setting(
        None,
        TOKEN_COUNT,
        "No n-gram of this size of the prompt occurs again.",
        lambda size, context: new("EncoderNoRepeatNGramLogitsProcessor", size, context.tokens),
        off=(0,),
        reads_prompt=True,
    )
    bad_words_ids: Any = setting(
        None,
        check_sequences,
        "Sequences that never occur.",
        lambda sequences, context: new("NoBadWordsLogitsProcessor", sequences, context.ends),
    )
    min_length: Count = setting(
        None, TOKEN_COUNT, "Tokens of a sequence, with its prompt, before it may end.", make.min_length, off=(0,)
    )
    min_new_tokens: Count = setting(
        None, TOKEN_COUNT, "New tokens before a row may end.", make.min_new_tokens, off=(0,), served="min_tokens"
    )
    forced_bos_token_id: Any = setting(
        None, check_tokens, "The token after a prompt of one token.", "ForcedBOSTokenLogitsProcessor"
    )
    forced_eos_token_id: Any = setting(None, check_tokens, "The last token of a row of full length.", make.forced_end)
    remove_invalid_values: bool | None = setting(
        None, FLAG, "Replace NaN and infinite logits.", lambda *_: new("InfNanRemoveLogitsProcessor"), off=(False,)
    )
    exponential_decay_length_penalty: Any = setting(
        None,
        check_decay,
        "End-of-text tokens become likelier from some length on.",
        lambda decay, context: new("ExponentialDecayLengthPenalty", decay, context.ends, context.length),
    )
    suppress_tokens: Any = setting(
        None, check_tokens, "Tokens that never occur.", partial(new_on_device, "SuppressTokensLogitsProcessor")
    )
    begin_suppress_tokens: Any = setting(
        None, check_tokens, "Tokens that are not the first.", make.suppressed_first_tokens
    )

    # What transformers lacks
    logit_bias: Mapping[int, float | int] | None = setting(
        None, check_biases, "Added to the logits of tokens.", "LogitBias", off=({},), transformers=None
    )
    presence_penalty: Number = setting(
        None,
        PENALTY,
        "Lowers the logit of every token that was generated.",
        make.count_penalty,
        off=(0,),
        transformers=None,
        served=SAME,
    )
    frequency_penalty: Number = setting(
        None,
        PENALTY,
        "Lowers the logit of a token each time that it is generated.",
        make.count_penalty,
        off=(0,),
        transformers=None,
        served=SAME,
    )
    top_n_sigma: Number = warper(
        None,
        Range(float, 0, 100, also={-1: "off"}),
        "Sample from tokens within n standard deviations of the largest logit.",
        "TopNSigma",
        off=(0, -1),
        transformers=None,
        option=float,
        served=SAME,
    )

    # Temperature and filters
    temperature: Number = warper(
        1.0, TEMPERATURE, "0 decodes greedily.", "TemperatureLogitsWarper", off=(1,), option=float, served=SAME
    )
    top_h: Number = warper(
        None, POSITIVE_PROBABILITY, "Sample from the tokens that hold this part of the entropy.", "TopHLogitsWarper"
    )
    top_k: Count = warper(
        None,
        TOP_K,
        "Sample from the k most likely tokens.",
        "TopKLogitsWarper",
        option=int,
        served=SAME,
        served_off=(0, -1),
    )
    top_p: Number = warper(
        None,
        POSITIVE_PROBABILITY,
        "Sample from the smallest set that holds p.",
        "TopPLogitsWarper",
        off=(1,),
        option=float,
        served=SAME,
    )
    min_p: Number = warper(
        None,
        PROBABILITY,
        "Sample from tokens at least p times as likely as the best.",
        "MinPLogitsWarper",
        off=(0,),
        option=float,
        served=SAME,
    )
    typical_p: Number = warper(
        None, POSITIVE_PROBABILITY, "Sample from the most typical tokens that hold p.", "TypicalLogitsWarper", off=(1,)
    )
    epsilon_cutoff: Number = warper(
        None, CUTOFF, "Sample from tokens that are at least as likely.", "EpsilonLogitsWarper", off=(0,)
    )
    eta_cutoff: Number = warper(
        None,
        CUTOFF,
        "As epsilon_cutoff, but lower where the entropy is high.",
        partial(new_on_device, "EtaLogitsWarper"),
        off=(0,),
    )
    watermarking_config: Any = setting(
        None,
        check_anything,
        "Favours the tokens of a green list.",
        lambda config, context: config.construct_processor(context.vocabulary, context.device),
    )
    renormalize_logits: bool | None = setting(None, FLAG, "Has no effect: distributions are always normalised.")

    # Of the draft model alone
    draft_temperature: Number = setting(
        None, TEMPERATURE, "Of the draft. Default: the temperature.", transformers=None, option=float
    )
    draft_top_k: Count = setting(None, TOP_K, "Of the draft. Default: top_k.", transformers=None)
    draft_top_p: Number = setting(None, POSITIVE_PROBABILITY, "Of the draft. Default: top_p.", transformers=None)

    def __post_init__(self) -> None:
        self.check()

    def check(self, vocabulary: int | None = None) -> None:
        """Raise AdviceError on the first value out of range, or that names a token beyond the vocabulary."""
        for name, known in SETTINGS.items():
            if (value := getattr(self, name)) is not None:
                known.check(name, value, vocabulary)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken."""
        return self.temperature == 0

    @property
    def end_tokens(self) -> list[int]:
        """The end-of-text tokens that are set."""
        ends = self.eos_token_id
        return [] if ends is None else sorted(ends) if isinstance(ends, list | tuple | set) else [ends]

    @property
    def reads_prompt(self) -> bool:
        """Whether a processor depends on the tokens of the prompt."""
        return any(known.reads_prompt and self.has_processor(name) for name, known in SETTINGS.items())

    def has_processor(self, name: str) -> bool:
        """Whether the setting makes a processor."""
        return SETTINGS[name].has_processor(getattr(self, name), self.greedy)

    def new_tokens(self, prompt_length: int) -> int:
        """The number of new tokens after a prompt of this length; raises AdviceError if max_length leaves none."""
        if self.max_new_tokens is not None:
            return self.max_new_tokens
        if self.max_length is None:
            return DEFAULT_NEW_TOKENS
        if self.max_length <= prompt_length:
            raise AdviceError(
                f"max_length {self.max_length} leaves nothing after a prompt of {prompt_length}; raise it"
            )
        return self.max_length - prompt_length

    def processors(self, context: PromptContext, in_transformers: bool) -> "list[LogitsProcessor]":
        """The processors of the settings that transformers has, or of those that it lacks, in order."""
        names: dict[Any, str] = {}  # settings with the same function share a processor
        for name, known in SETTINGS.items():
            if self.has_processor(name) and (known.transformers is not None) == in_transformers:
                names.setdefault(known.processor, name)
        made = (SETTINGS[name].make_processor(name, getattr(self, name), context) for name in names.values())
        return [processor for processor in made if processor is not None]

    def compile(
        self,
        prompt: Sequence[int],
        vocabulary: int,
        device: "torch.device | str",
        extra: "Sequence[LogitsProcessor]" = (),
    ) -> Sampling:
        """The sampling after one prompt; `extra` are a user's processors."""
        import torch

        from multidraft.sampling.from_processors import before_warpers

        context = PromptContext(self, prompt, vocabulary, torch.device(device))
        extra = [*extra, *self.processors(context, in_transformers=False)]
        return self.sampling(before_warpers(self.processors(context, in_transformers=True), extra))

    def sampling(self, processors: "Sequence[LogitsProcessor]", row: int = 0) -> Sampling:
        """The sampling by processors that are complete; of those that hold something for every row, that of `row`."""
        from multidraft.sampling.from_processors import sampling_from

        result = sampling_from(processors, self.greedy, row)
        draft = {name: getattr(self, f"draft_{name}") for name in ("temperature", "top_k", "top_p")}
        changes = {name: value for name, value in draft.items() if value is not None}
        return replace(result, for_draft=replace(result, **changes)) if changes else result


SETTINGS: dict[str, Setting] = {f.name: f.metadata["setting"].of_field(f.name) for f in fields(SamplingParams)}
CHECKS: dict[str, Callable[..., None]] = {  # of all settings, those that are not of sampling among them
    **{known.transformers: known.check for known in SETTINGS.values() if known.transformers is not None},
    **{name: known.check for name, known in SETTINGS.items()},
    "seed": Range(int, -(2**63), 2**63 - 1),
    "logprobs": Range(int, 0, 2**20),
    "measure": TOKEN_COUNT,
    "tune_budget": Range(float, 0, 86_400),
    **dict.fromkeys("do_sample return_dict_in_generate compile synchronise".split(), FLAG),
}


def check(name: str, value: Any, called: str | None = None, vocabulary: int | None = None) -> None:
    """Raise AdviceError unless the setting may have this value; `called` is its name in the message.

    >>> check("top_p", 0, "--top-p")
    Traceback (most recent call last):
    ...
    multidraft.errors.AdviceError: --top-p is 0; use a number above 0, at most 1
    """
    CHECKS[name](called or name, value, vocabulary)


def check_all(settings: Mapping[str, Any], called: Callable[[str], str] = str) -> None:
    """Check the settings that are known and are not None; `called` gives their names in messages."""
    for name, value in settings.items():
        if value is not None and name in CHECKS:
            check(name, value, called(name))
