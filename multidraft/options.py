"""What `generate` takes beyond transformers' GenerationConfig, however it is called."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from transformers import LogitsProcessor

from multidraft.decoding import Plan
from multidraft.processors import CountPenalty, LogitBias
from multidraft.sampling import Sampling
from multidraft.streams import Stream, Streamer


@dataclass(frozen=True)
class Options:
    """A plan that lacks only its sampling, and the rest."""

    plan: Plan
    draft_temperature: float | int | None = None
    draft_top_k: int | None = None
    draft_top_p: float | int | None = None
    presence_penalty: float | int = 0
    frequency_penalty: float | int = 0
    logit_bias: dict[int, float | int] = field(default_factory=dict)
    stop: str | Sequence[str] | None = None
    stop_tokenizer: Any = None
    generator: torch.Generator | list[torch.Generator] | None = None
    stream: Stream | Streamer | None = None
    synchronise: bool = False

    def processors(self, prompt_length: int) -> list[LogitsProcessor]:
        """Biases and penalties that transformers does not have."""
        result: list[LogitsProcessor] = []
        if self.logit_bias:
            result.append(LogitBias(self.logit_bias))
        if self.presence_penalty or self.frequency_penalty:
            result.append(CountPenalty(self.presence_penalty, self.frequency_penalty, prompt_length))
        return result

    def plan_with(self, sampling: Sampling) -> Plan:
        """The whole plan; the draft model samples as the target does but for its own settings."""
        own = {"temperature": self.draft_temperature, "top_k": self.draft_top_k, "top_p": self.draft_top_p}
        given: dict[str, Any] = {name: value for name, value in own.items() if value is not None}
        if given:
            sampling = replace(sampling, for_draft=replace(sampling, **given))
        return replace(self.plan, sampling=sampling)
