"""What `generate` takes beyond transformers' GenerationConfig, however it is called."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers import LogitsProcessor

from multidraft.autotune.controller import Limits
from multidraft.decoding.state import DecodeConfig
from multidraft.decoding.streams import Stream, Streamer
from multidraft.decoding.trace import Tell
from multidraft.errors import AdviceError
from multidraft.errors.checks import shown
from multidraft.generation.defaults import TUNE_BUDGET
from multidraft.sampling.generation_config import check_stop
from multidraft.sampling.processors import CountPenalty, LogitBias
from multidraft.sampling.settings import Sampling
from multidraft.sampling.settings_table import check_all, check_biases

CHECKED = ("draft_temperature draft_top_k draft_top_p presence_penalty frequency_penalty tune_budget").split()


@dataclass(frozen=True)
class Options:
    """The configuration of the loop, and the rest."""

    config: DecodeConfig
    limits: Limits | None = None  # of trees that are chosen while decoding, in place of the configuration's
    tune_budget: float | int = TUNE_BUDGET  # seconds that may be spent on timing trees
    trace: Tell | None = None
    plan_file: Path | None = None  # where what they are chosen by was measured; None: what is kept, or is measured now
    draft_temperature: float | int | None = None
    draft_top_k: int | None = None
    draft_top_p: float | int | None = None
    presence_penalty: float | int = 0
    frequency_penalty: float | int = 0
    logit_bias: Mapping[int, float | int] = field(default_factory=dict)
    stop: str | Sequence[str] | None = None
    stop_tokenizer: Any = None
    generator: torch.Generator | list[torch.Generator] | None = None
    stream: Stream | Streamer | None = None

    def __post_init__(self) -> None:
        check_all({name: getattr(self, name) for name in CHECKED})
        check_biases("logit_bias", self.logit_bias)
        check_stop(self.stop, self.stop_tokenizer)
        if self.config.synchronise and not torch.cuda.is_available():
            raise AdviceError("synchronise=True waits for a GPU, and there is none here; leave it out")
        if self.stream is not None and not callable(self.stream) and not isinstance(self.stream, Streamer):
            raise AdviceError(f"stream is {shown(self.stream)}; pass a streamer, or a function stream(row, emitted)")

    def processors(self, prompt_length: int) -> list[LogitsProcessor]:
        """Biases and penalties that transformers does not have."""
        result: list[LogitsProcessor] = []
        if self.logit_bias:
            result.append(LogitBias(dict(self.logit_bias)))
        if self.presence_penalty or self.frequency_penalty:
            result.append(CountPenalty(self.presence_penalty, self.frequency_penalty, prompt_length))
        return result

    def for_drafts(self, sampling: list[Sampling]) -> list[Sampling]:
        """The settings of every row, of which the draft model has its own where they are given."""
        own = {"temperature": self.draft_temperature, "top_k": self.draft_top_k, "top_p": self.draft_top_p}
        given: dict[str, Any] = {name: value for name, value in own.items() if value is not None}
        if not given:
            return sampling
        made = {each: replace(each, for_draft=replace(each, **given)) for each in sampling}
        return [made[each] for each in sampling]


def check_callables(trace: Any, processors: Any, criteria: Any) -> None:
    """Raise unless what is to be called can be."""
    if trace is not None and not callable(trace):
        raise AdviceError(f"trace is {shown(trace)}; pass a function trace(record)")
    for name, listed in (("logits_processor", processors), ("stopping_criteria", criteria)):
        if listed is not None and not (isinstance(listed, Sequence) and all(map(callable, listed))):
            raise AdviceError(f"{name} is {shown(listed)}; pass a list of functions of (input_ids, scores)")
