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
from multidraft.sampling import param_fields as make
from multidraft.sampling.param_fields import FIELD_NAME, PromptContext, Setting, setting
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
    check_grammar,
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
RECOMMENDED = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")  # by a model's configuration, as in vLLM
MAX_LENGTH = Range(int, 1, MAX_TOKENS)
OptionalNumber = float | int | None
OptionalCount = int | None
PUBLIC_FIELD: dict[str, Any] = dict(option=True, served=FIELD_NAME)  # on the command line and in requests
SERVED_ONLY: dict[str, Any] = dict(transformers=None, served=FIELD_NAME)
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
    max_new_tokens: OptionalCount = setting(MAX_LENGTH, "New tokens for each prompt.", option=True)
    max_length: OptionalCount = setting(MAX_LENGTH, "Tokens of a sequence, with its prompt.")
    max_time: OptionalNumber = setting(Range(float, 0, 1e9), "Seconds after which no step begins.")
    stop: str | Sequence[str] | None = setting(
        check_stop_strings, "Text that ends a row; may be repeated.", transformers="stop_strings", option=True
    )
    eos_token_id: Any = setting(check_tokens, "Tokens that end a row. Default: the target's.")
    num_return_sequences: OptionalCount = setting(Range(int, 1, 4096), "Rows for each prompt.", default=1, served="n")

    # Penalties and constraints
    sequence_bias: Any = setting(
        check_sequence_biases, "Added to the logit of a sequence's last token.", "SequenceBiasLogitsProcessor"
    )
    encoder_repetition_penalty: OptionalNumber = setting(
        FACTOR, "Above 1, tokens of the prompt become likelier.", make.encoder_repetition, off=(1,), reads_prompt=True
    )
    repetition_penalty: OptionalNumber = setting(
        FACTOR,
        "Above 1, earlier tokens become less likely.",
        "RepetitionPenaltyLogitsProcessor",
        off=(1,),
        **PUBLIC_FIELD,
    )
    no_repeat_ngram_size: OptionalCount = setting(
        TOKEN_COUNT, "No n-gram of this size occurs twice.", "NoRepeatNGramLogitsProcessor", off=(0,)
    )
    encoder_no_repeat_ngram_size: OptionalCount = setting(
        TOKEN_COUNT, "No n-gram of this size of the prompt recurs.", make.encoder_ngrams, off=(0,), reads_prompt=True
    )
    bad_words_ids: Any = setting(check_sequences, "Sequences that never occur.", make.bad_words)
    min_length: OptionalCount = setting(
        TOKEN_COUNT, "Tokens of a sequence, with its prompt, before it may end.", make.min_length, off=(0,)
    )
    min_new_tokens: OptionalCount = setting(
        TOKEN_COUNT, "New tokens before a row may end.", make.min_new_tokens, off=(0,), served="min_tokens"
    )
    forced_bos_token_id: Any = setting(
        check_tokens, "The token after a prompt of one token.", "ForcedBOSTokenLogitsProcessor"
    )
    forced_eos_token_id: Any = setting(check_tokens, "The last token of a row of full length.", make.forced_end)
    remove_invalid_values: bool | None = setting(FLAG, "Replace NaN and infinite logits.", make.no_nan, off=(False,))
    exponential_decay_length_penalty: Any = setting(
        check_decay, "End-of-text tokens become likelier from some length on.", make.growing_end
    )
    suppress_tokens: Any = setting(check_tokens, "Tokens that never occur.", make.suppressed_tokens)
    begin_suppress_tokens: Any = setting(check_tokens, "Tokens that are not the first.", make.suppressed_first_tokens)

    # What transformers lacks
    logit_bias: Mapping[int, float | int] | None = setting(
        check_biases, "Added to the logits of tokens.", "LogitBias", off=({},), transformers=None
    )
    presence_penalty: OptionalNumber = setting(
        PENALTY, "Subtracted from the logit of a token that was generated.", make.count_penalty, off=(0,), **SERVED_ONLY
    )
    frequency_penalty: OptionalNumber = setting(
        PENALTY, "The same for each time that it was generated.", make.count_penalty, off=(0,), **SERVED_ONLY
    )
    grammar: Any = setting(check_grammar, "What the text must look like.", make.grammar_mask, transformers=None)
    top_n_sigma: OptionalNumber = warper(
        Range(float, 0, 100, also={-1: "off"}),
        "Sample from tokens within n standard deviations of the largest logit.",
        "TopNSigma",
        off=(0, -1),
        transformers=None,
        **PUBLIC_FIELD,
    )

    # Temperature and filters
    temperature: OptionalNumber = warper(
        TEMPERATURE, "0 decodes greedily.", "TemperatureLogitsWarper", default=1.0, off=(1,), **PUBLIC_FIELD
    )
    top_h: OptionalNumber = warper(
        POSITIVE_PROBABILITY, "Sample from the tokens that hold this part of the entropy.", "TopHLogitsWarper"
    )
    top_k: OptionalCount = warper(
        TOP_K, "Sample from the k most likely tokens.", "TopKLogitsWarper", served_off=(0, -1), **PUBLIC_FIELD
    )
    top_p: OptionalNumber = warper(
        POSITIVE_PROBABILITY, "Sample from the smallest set that holds p.", "TopPLogitsWarper", off=(1,), **PUBLIC_FIELD
    )
    min_p: OptionalNumber = warper(
        PROBABILITY,
        "Sample from tokens at least p times as likely as the top.",
        "MinPLogitsWarper",
        off=(0,),
        **PUBLIC_FIELD,
    )
    typical_p: OptionalNumber = warper(
        POSITIVE_PROBABILITY,
        "Sample from the most typical tokens that hold p.",
        "TypicalLogitsWarper",
        off=(1,),
        served=FIELD_NAME,
    )
    epsilon_cutoff: OptionalNumber = warper(
        CUTOFF, "Sample from tokens that are at least as likely.", "EpsilonLogitsWarper", off=(0,)
    )
    eta_cutoff: OptionalNumber = warper(
        CUTOFF, "As epsilon_cutoff, but lower where the entropy is high.", make.eta_cutoff, off=(0,)
    )
    watermarking_config: Any = setting(check_anything, "Favours the tokens of a green list.", make.watermark)
    renormalize_logits: bool | None = setting(FLAG, "Has no effect: distributions are always normalised.")

    # Of the draft model alone
    draft_temperature: OptionalNumber = setting(
        TEMPERATURE, "Of the draft. Default: the temperature.", transformers=None, option=True
    )
    draft_top_k: OptionalCount = setting(TOP_K, "Of the draft. Default: top_k.", transformers=None)
    draft_top_p: OptionalNumber = setting(POSITIVE_PROBABILITY, "Of the draft. Default: top_p.", transformers=None)

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
        created = (SETTINGS[name].make_processor(name, getattr(self, name), context) for name in names.values())
        return [processor for processor in created if processor is not None]

    def compile(
        self,
        prompt: Sequence[int],
        vocabulary: int,
        device: "torch.device | str",
        extra: "Sequence[LogitsProcessor]" = (),
    ) -> Sampling:
        """The sampling after one prompt; a user's processors, `extra`, replace those of the same class."""
        import torch

        from multidraft.sampling.from_processors import before_warpers, override

        context = PromptContext(self, prompt, vocabulary, torch.device(device))
        processors, others = override(self.processors(context, in_transformers=True), extra)
        return self.sampling(before_warpers(processors, [*others, *self.processors(context, in_transformers=False)]))

    def sampling(self, processors: "Sequence[LogitsProcessor]", row: int = 0) -> Sampling:
        """The sampling by processors that are complete; of those that hold something for every row, that of `row`."""
        from multidraft.sampling.from_processors import sampling_from

        result = sampling_from(processors, self.greedy, row)
        draft = {name: getattr(self, f"draft_{name}") for name in ("temperature", "top_k", "top_p")}
        changes = {name: value for name, value in draft.items() if value is not None}
        return replace(result, for_draft=replace(result, **changes)) if changes else result


SETTINGS: dict[str, Setting] = {f.name: f.metadata["setting"].of_field(f.name) for f in fields(SamplingParams)}

CHECKS: dict[str, Callable[..., None]] = {  # the last ones are not settings of sampling
    **{known.transformers: known.check for known in SETTINGS.values() if known.transformers is not None},
    **{name: known.check for name, known in SETTINGS.items()},
    "seed": Range(int, -(2**63), 2**63 - 1),
    "logprobs": Range(int, 0, 2**20),
    "measure": TOKEN_COUNT,
    "tune_budget": Range(float, 0, 86_400),
    "max_num_seqs": Range(int, 1, 4096),
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
