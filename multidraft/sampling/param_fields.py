"""What is known about a sampling setting, and the processors that settings make. Without torch until one is made."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from multidraft.errors import AdviceError, quote
from multidraft.sampling.ranges import Range

if TYPE_CHECKING:
    import torch

FIELD_NAME = "the name of the field"


@dataclass(frozen=True)
class Setting:
    """What is known about a setting beside its name and default."""

    check: Callable[..., None]  # called with a name, a value and the size of the vocabulary; a Range for numbers
    help: str
    processor: str | Callable[..., Any] | None = (
        None  # a class that takes the value, or a function of value and context
    )
    _: KW_ONLY
    off: tuple[Any, ...] = ()  # values other than None for which no processor is made
    only_sampling: bool = False  # greedy decoding leaves the processor out
    reads_prompt: bool = False  # the processor depends on the tokens of the prompt, not only on their number
    transformers: str | None = FIELD_NAME  # the name in `GenerationConfig`; None if transformers has no such setting
    option: bool = False  # whether the command line has it
    served: str | None = None  # the name in the body of a request; None if there is none
    served_off: tuple[Any, ...] = ()  # values that clients send for "off"

    def of_field(self, name: str) -> "Setting":
        """The setting of the field with this name: names that are the same are filled in."""
        transformers, served = (name if other == FIELD_NAME else other for other in (self.transformers, self.served))
        return replace(self, transformers=transformers, served=served)

    @property
    def kind(self) -> Any:
        """The type of a value on the command line and in a request."""
        return self.check.kind if isinstance(self.check, Range) else list[str]

    def has_processor(self, value: Any, greedy: bool) -> bool:
        """Whether a processor is made for the value."""
        is_off = value is None or value in self.off
        return self.processor is not None and not is_off and not (greedy and self.only_sampling)

    def make_processor(self, name: str, value: Any, context: "PromptContext") -> Any:
        """The processor for a value; raises AdviceError if its class refuses the value."""
        assert self.processor is not None
        value = self.check.kind(value) if isinstance(self.check, Range) else value
        try:
            return new(self.processor, value) if isinstance(self.processor, str) else self.processor(value, context)
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise AdviceError(f"{name} is {quote(value)} ({reason}); change it, or leave it out") from None


def setting(check: Callable[..., None], text: str, *processor: Any, default: Any = None, **details: Any) -> Any:
    """A field of `SamplingParams` with what is known about it; see `Setting`."""
    return field(default=default, metadata={"setting": Setting(check, text, *processor, **details)})


@dataclass(frozen=True)
class PromptContext:
    """What a processor may depend on beside its setting: the other settings, the prompt, the vocabulary, the device."""

    params: Any  # the `SamplingParams`
    prompt: Sequence[int]
    vocabulary: int
    device: "torch.device"

    @property
    def length(self) -> int:
        """The number of the prompt's tokens."""
        return len(self.prompt)

    @cached_property
    def tokens(self) -> "torch.Tensor":
        """The prompt as a batch of one row."""
        import torch

        return torch.tensor([list(self.prompt)], device=self.device)

    @cached_property
    def ends(self) -> "torch.Tensor | None":
        """The end-of-text tokens; None if there are none."""
        import torch

        ends = self.params.end_tokens
        return torch.tensor(ends, device=self.device) if ends else None


def new(name: str, *arguments: Any, **keywords: Any) -> Any:
    """A processor by the name of its class, in `multidraft.sampling.processors` or in transformers."""
    from transformers.generation import logits_process

    from multidraft.sampling import processors

    return getattr(processors if hasattr(processors, name) else logits_process, name)(*arguments, **keywords)


# Processors that depend on more than the value of their setting


def encoder_repetition(factor: float, context: PromptContext) -> Any:
    """Makes tokens of the prompt likelier."""
    return new("EncoderRepetitionPenaltyLogitsProcessor", factor, context.tokens)


def encoder_ngrams(size: int, context: PromptContext) -> Any:
    """Forbids n-grams of the prompt."""
    return new("EncoderNoRepeatNGramLogitsProcessor", size, context.tokens)


def bad_words(sequences: list[list[int]], context: PromptContext) -> Any:
    """Forbids sequences, other than end-of-text tokens."""
    return new("NoBadWordsLogitsProcessor", sequences, context.ends)


def min_length(count: int, context: PromptContext) -> Any:
    """Forbids end-of-text tokens while the sequence is shorter."""
    return None if context.ends is None else new("MinLengthLogitsProcessor", count, context.ends, str(context.device))


def min_new_tokens(count: int, context: PromptContext) -> Any:
    """Forbids end-of-text tokens while there are fewer new tokens."""
    name, device = "MinNewTokensLengthLogitsProcessor", str(context.device)
    return None if context.ends is None else new(name, context.length, count, context.ends, device)


def forced_end(tokens: Any, context: PromptContext) -> Any:
    """Forces a token at the end of the longest sequence."""
    return new("ForcedEOSTokenLogitsProcessor", context.params.max_length, tokens, device=str(context.device))


def no_nan(_: bool, context: PromptContext) -> Any:
    """Replaces NaN and infinite logits."""
    return new("InfNanRemoveLogitsProcessor")


def growing_end(decay: tuple[int, float], context: PromptContext) -> Any:
    """Makes end-of-text tokens likelier from some length on."""
    return new("ExponentialDecayLengthPenalty", decay, context.ends, context.length)


def suppressed_tokens(tokens: Sequence[int], context: PromptContext) -> Any:
    """Forbids tokens."""
    return new("SuppressTokensLogitsProcessor", tokens, device=str(context.device))


def suppressed_first_tokens(tokens: Sequence[int], context: PromptContext) -> Any:
    """Forbids tokens at the first place, or at the second if the first one is forced."""
    is_forced = context.length == 1 and context.params.forced_bos_token_id is not None
    return new("SuppressTokensAtBeginLogitsProcessor", tokens, context.length + is_forced, device=str(context.device))


def count_penalty(_: Any, context: PromptContext) -> Any:
    """Presence and frequency penalty, which share a processor."""
    params = context.params
    return new("CountPenalty", params.presence_penalty or 0, params.frequency_penalty or 0, context.length)


def grammar_mask(grammar: Any, context: PromptContext) -> Any:
    """Forbids the tokens after which the text no longer has the form of a grammar."""
    if not context.params.end_tokens:
        raise ValueError("it needs an end-of-text token, and eos_token_id names none")
    return new("GrammarMask", grammar, context.params.end_tokens, context.vocabulary, context.length)


def eta_cutoff(cutoff: float, context: PromptContext) -> Any:
    """Forbids tokens that are unlikely, by a bound that falls with the entropy."""
    return new("EtaLogitsWarper", cutoff, device=str(context.device))


def watermark(config: Any, context: PromptContext) -> Any:
    """Favours the tokens of a green list; `config` is a `WatermarkingConfig` of transformers, or its keywords."""
    from transformers import WatermarkingConfig

    config = WatermarkingConfig(**config) if isinstance(config, dict) else config
    config.validate()
    return config.construct_processor(context.vocabulary, context.device)
