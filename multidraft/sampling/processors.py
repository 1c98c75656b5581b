"""Hugging Face logits processors on a tree: every node is processed with the sequence that leads to it."""

import copy
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from multidraft.errors import AdviceError, shown_error
from multidraft.sampling.grammar import Grammar, PathMasks
from multidraft.sampling.row_faults import Faults, Lines, RowFault, distribution_error, shape_error, upcast
from multidraft.transfer import upload

Prefix = Int[Tensor, " _"]  # the whole sequence that ends at a node
Prefixes = Sequence[Prefix | None]  # None for lines whose settings do not look back
RowTokens = Int[Tensor, "rows length"]
RowScores = Float[Tensor, "rows vocabulary"]

# By name, because versions of transformers differ in what they have.
FILTERS = {"TopHLogitsWarper", "MinPLogitsWarper", "TypicalLogitsWarper", "EpsilonLogitsWarper", "EtaLogitsWarper"}
WARPERS = FILTERS | {"TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper"}
SHIFT_SAFE_PROCESSORS = WARPERS | {
    "WatermarkLogitsProcessor",
    "LogitNormalization",
}  # adding a constant to all logits changes nothing
TEXT_BLIND_PROCESSORS = WARPERS | {"LogitNormalization", "InfNanRemoveLogitsProcessor", "SuppressTokensLogitsProcessor"}
TEXT_READING_PROCESSORS = {
    f"{name}LogitsProcessor"
    for name in (
        "MinLength MinNewTokensLength RepetitionPenalty EncoderRepetitionPenalty NoRepeatNGram EncoderNoRepeatNGram "
        "SequenceBias NoBadWords PrefixConstrained ForcedBOSToken ForcedEOSToken SuppressTokensAtBegin Watermark"
    ).split()
} | {"ExponentialDecayLengthPenalty"}


class BlindProcessor(LogitsProcessor):
    """A processor that does not look at the sequence, which is None where no other processor does."""


class LogitBias(BlindProcessor):
    """Adds a number to the logits of some tokens."""

    def __init__(self, bias: dict[int, float | int]):
        self.tokens, self.values = list(bias), list(bias.values())

    def __call__(self, input_ids: RowTokens | None, scores: RowScores) -> RowScores:
        scores = scores.clone()
        scores[:, self.tokens] += torch.tensor(self.values, dtype=scores.dtype, device=scores.device)
        return scores


class TopNSigma(BlindProcessor):
    """Keeps the tokens whose logit is at most n standard deviations below the largest, as llama.cpp's `top-n-sigma`.

    The standard deviation is that of the finite logits. Temperature scales it and the distances alike, so that the same
    tokens are kept at every temperature. https://arxiv.org/abs/2411.07641
    """

    def __init__(self, n: float | int):
        self.n = n

    def __call__(self, input_ids: RowTokens | None, scores: RowScores) -> RowScores:
        is_finite = scores.isfinite()
        count = is_finite.sum(-1, keepdim=True)
        mean = scores.where(is_finite, 0.0).sum(-1, keepdim=True) / count
        variance = (scores - mean).where(is_finite, 0.0).square().sum(-1, keepdim=True) / count
        return scores.masked_fill(scores < scores.amax(-1, keepdim=True) - self.n * variance.sqrt(), -torch.inf)


class CountPenalty(LogitsProcessor):
    """Presence and frequency penalty: a generated token's logit falls by `presence`, and by `frequency` each time."""

    def __init__(self, presence: float | int, frequency: float | int, prompt_length: int):
        self.presence, self.frequency, self.prompt_length = presence, frequency, prompt_length

    def __call__(self, input_ids: RowTokens, scores: RowScores) -> RowScores:
        new = input_ids[:, self.prompt_length :]
        count = torch.zeros_like(scores).scatter_add_(1, new, torch.ones_like(new, dtype=scores.dtype))
        return scores - self.presence * (count > 0) - self.frequency * count


class GrammarMask(LogitsProcessor):
    """Forbids the tokens after which the new text no longer has the form of a grammar."""

    def __init__(self, grammar: Grammar, ends: Sequence[int], vocabulary: int, prompt_length: int):
        self.masks, self.prompt_length = PathMasks(grammar, ends, vocabulary), prompt_length

    def __call__(self, input_ids: RowTokens, scores: RowScores) -> RowScores:
        new = input_ids[:, self.prompt_length :].tolist()
        forbidden = torch.from_numpy(np.stack([self.masks.forbidden(tuple(tokens)) for tokens in new]))
        return scores.masked_fill(forbidden.to(scores.device), -torch.inf)


class OneByOne(LogitsProcessor):
    """A processor that belongs to one prompt and takes one row at a time."""

    def __init__(self, processor: LogitsProcessor):
        self.processor = processor

    def __call__(self, input_ids: RowTokens, scores: RowScores) -> RowScores:
        pairs = zip(input_ids.split(1), scores.split(1), strict=True)
        return torch.cat([self.processor(ids, row) for ids, row in pairs])


class Processors:
    """The processors of one row, in order."""

    def __init__(self, listed: Sequence[LogitsProcessor]):
        self.listed: Sequence[Any] = listed  # transformers' type hints know fewer tensors than it takes
        blind = (
            name_of(processor) in TEXT_BLIND_PROCESSORS or isinstance(processor, BlindProcessor) for processor in listed
        )
        self.looks_back = not all(blind)  # an unknown one may

    def run(self, scores: Tensor, sequences: Int[Tensor, "lines length"] | None) -> Tensor:
        """Lines that a processor may write into, processed; raises RowFault."""
        for processor in self.listed:
            scores = answer(processor, sequences, scores)
        return scores

    def sequences(self, prefixes: Prefixes | None, some: list[int]) -> Int[Tensor, "some length"] | None:
        """The sequences of some lines, all of the same length; None where no processor looks at them."""
        if not self.looks_back:
            return None
        assert prefixes is not None  # settings that look back come with them
        return torch.stack([prefix for line in some if (prefix := prefixes[line]) is not None])


def process_lines(processors: Processors | None, logits: Lines, prefixes: Prefixes | None) -> tuple[Lines, Faults]:
    """The processed lines, and the faults of those on which a processor has failed (they stay as they are)."""
    if processors is None:
        return logits, {}
    lines, faults, groups = upcast(logits), Faults(), defaultdict[int, list[int]](list)
    for line in range(len(lines)):  # lines whose sequences have the same length go together
        prefix = prefixes[line] if processors.looks_back and prefixes else None
        groups[0 if prefix is None else len(prefix)].append(line)
    scores = torch.empty_like(lines)
    for together in groups.values():
        places = upload(together, lines.device)
        try:
            processed = processors.run(lines[places], processors.sequences(prefixes, together))
        except RowFault:
            processed = lines[places]
            for place, line in enumerate(together):
                try:
                    processed[place] = processors.run(lines[[line]], processors.sequences(prefixes, [line]))[0]
                except RowFault as fault:
                    faults[line] = fault
        if len(groups) == 1:  # a copy of a large vocabulary takes as long as what is done to it
            return processed, faults
        scores[places] = processed
    return scores, faults


def answer(processor: LogitsProcessor, sequences: Any, scores: Lines) -> Tensor:
    """What a processor makes of scores; raises RowFault where that is none."""
    source = source_of(processor)
    try:
        result = processor(sequences, scores)
    except Exception as error:
        raise RowFault(source, f"fails with {shown_error(error)}") from error
    if problem := shape_error(result, scores):
        raise RowFault(source, problem)
    return result.detach().to(scores.dtype)


def source_of(processor: LogitsProcessor) -> str:
    """A processor's name in an error message."""
    return f"processor {type(getattr(processor, 'processor', processor)).__name__}"


def find_faults(
    processors: Processors | None, source: str, logits: Lines, prefixes: Prefixes | None, bad: Iterable[int]
) -> Faults:
    """Of lines that have become no distribution: who has spoilt them, the `source` of the logits or a processor."""
    return {line: first_fault(processors, source, logits, prefixes, line) for line in bad}


def first_fault(
    processors: Processors | None, source: str, logits: Lines, prefixes: Prefixes | None, line: int
) -> RowFault:
    """The fault of the first whose scores for one line make no distribution."""
    scores = upcast(logits[line : line + 1])
    sequences = processors.sequences(prefixes, [line]) if processors else None
    for processor in processors.listed if processors else []:
        if distribution_error(scores[0]):
            break
        try:
            source, scores = source_of(processor), answer(processor, sequences, scores.clone())
        except RowFault as fault:
            return fault
    return RowFault(source, distribution_error(scores[0]) or "gives other scores each time")


def check_known(processors: Sequence[LogitsProcessor]) -> None:
    """Raise on those of transformers that cannot work on a tree, which visits sequences in any order."""
    for processor in processors:
        name = name_of(processor)
        if name and name not in TEXT_BLIND_PROCESSORS | TEXT_READING_PROCESSORS:
            raise AdviceError(f"{name} keeps a state or needs another forward pass; generate without it")


def check_pure(processors: Sequence[LogitsProcessor], tokens: Int[Tensor, " length"], vocabulary: int) -> None:
    """Raise if a user's processor gives a sequence another answer the next time, or in other company."""
    longer = torch.cat([tokens, tokens[-1:]])
    scores = torch.linspace(-1, 1, vocabulary, device=tokens.device).expand(2, -1)
    for processor in processors:
        if name_of(processor) or type(processor).__module__ == __name__:
            continue
        try:
            first, other, both, again = (
                answer(processor, sequences, scores[: len(sequences)].clone())
                for sequences in (tokens[None], longer[None], torch.stack([longer, longer]), tokens[None])
            )
        except RowFault:
            continue  # it will end the rows on which it fails
        same = torch.allclose(first, again, equal_nan=True)
        if not (same and torch.allclose(torch.cat([other, other]), both, equal_nan=True)):
            raise AdviceError(
                f"{type(processor).__name__} keeps a state between calls or between rows; a tree asks for many "
                "sequences in any order, so let it depend on input_ids alone"
            )


def for_row(processors: Sequence[LogitsProcessor], row: int) -> LogitsProcessorList:
    """The processors as one prompt needs them: those that hold something for every row keep that row's."""
    return LogitsProcessorList([one_row(processor, row) for processor in processors])


def is_bound(processor: LogitsProcessor) -> bool:
    """Whether a processor holds something for every row of a batch."""
    holders = ("encoder_input_ids", "generated_ngrams", "_prefix_allowed_tokens_fn")
    lengths = getattr(processor, "prompt_ignore_length", None)
    return isinstance(lengths, Tensor) or any(hasattr(processor, name) for name in holders)


def one_row(processor: LogitsProcessor, row: int) -> LogitsProcessor:
    """A processor that knows of one row only; itself if it treats all alike."""
    if not name_of(processor) or not is_bound(processor):
        return processor
    mine: Any = copy.copy(processor)
    if hasattr(mine, "prompt_ignore_length"):
        mine.prompt_ignore_length = int(mine.prompt_ignore_length[row])
        return mine
    if hasattr(mine, "encoder_input_ids"):
        mine.encoder_input_ids = mine.encoder_input_ids[row : row + 1]
    elif hasattr(mine, "generated_ngrams"):
        mine.generated_ngrams, mine.batch_size = mine.generated_ngrams[row : row + 1], 1
    else:
        allowed = mine._prefix_allowed_tokens_fn
        mine._prefix_allowed_tokens_fn = lambda _, sequence: allowed(row, sequence)
    return OneByOne(mine)


def name_of(processor: LogitsProcessor) -> str:
    """The name of a processor that transformers brought along, nothing for others."""
    return type(processor).__name__ if type(processor).__module__.startswith("transformers.") else ""
