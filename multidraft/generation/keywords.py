"""The keywords of `generate` that are not sampling settings, and its signature, which has all keywords."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from inspect import Parameter, Signature
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from transformers import LogitsProcessor, PreTrainedTokenizerBase, StoppingCriteria

from multidraft.autotune.auto_policy import TreeLimits
from multidraft.decoding.policy import TreePolicy
from multidraft.decoding.state import DecodeConfig
from multidraft.decoding.trace import OnTraceRecord
from multidraft.decoding.tree import Tree
from multidraft.decoding.walks import Walker
from multidraft.errors import AdviceError, quote
from multidraft.generation import DEFAULT_SCHEME, DEFAULT_TREE, TUNE_BUDGET_SECONDS
from multidraft.generation.inputs import number_or_default, resolve_config
from multidraft.generation.streaming import Stream, Streamer
from multidraft.sampling.generation_config import OWN_SETTINGS
from multidraft.sampling.params import SamplingParams, check
from multidraft.verification.scheme import Scheme


@dataclass(frozen=True, kw_only=True)
class Options:
    """How rows are decoded and what comes out; docs/generate.md explains every keyword."""

    drafters: int  # the number of draft models, and no keyword
    scheme: str | Scheme = DEFAULT_SCHEME
    tree: str | Tree | TreePolicy = DEFAULT_TREE
    walk: str | Walker = "deferred"
    plan: str | PathLike | None = None
    tune_budget: float | int = TUNE_BUDGET_SECONDS
    stop_tokenizer: Any = None
    logprobs: bool | int = False
    generator: torch.Generator | list[torch.Generator] | None = None
    stream: Stream | Streamer | None = None
    trace: OnTraceRecord | None = None
    measure: bool | int = True
    synchronise: bool = False
    compile: bool = False
    max_num_seqs: int | None = None
    logits_processor: Sequence[LogitsProcessor] | None = None
    stopping_criteria: Sequence[StoppingCriteria] | None = None

    @classmethod
    def take_from(cls, keywords: dict[str, Any], drafters: int) -> "Options":
        """Remove the options from the keywords."""
        return cls(drafters=drafters, **{name: keywords.pop(name) for name in OPTIONS if name in keywords})

    def __post_init__(self) -> None:
        _ = self.configuration  # raises AdviceError on a scheme, tree, walk or plan that cannot be used
        _ = self.num_logprobs
        check("tune_budget", self.tune_budget)
        check("compile", self.compile)
        if self.max_num_seqs is not None:
            check("max_num_seqs", self.max_num_seqs)
        if self.stop_tokenizer is not None and not isinstance(self.stop_tokenizer, PreTrainedTokenizerBase):
            raise AdviceError(f"stop_tokenizer is {quote(self.stop_tokenizer)}; pass the target's tokenizer")
        if self.synchronise and not torch.cuda.is_available():
            raise AdviceError("synchronise=True waits for a GPU, and there is none here; leave it out")
        if self.stream is not None and not callable(self.stream) and not isinstance(self.stream, Streamer):
            raise AdviceError(f"stream is {quote(self.stream)}; pass a streamer, or a function stream(row, emitted)")
        if self.trace is not None and not callable(self.trace):
            raise AdviceError(f"trace is {quote(self.trace)}; pass a function trace(record)")
        for name in ("logits_processor", "stopping_criteria"):
            functions = getattr(self, name)
            if functions and not (isinstance(functions, Sequence) and all(map(callable, functions))):
                raise AdviceError(f"{name} is {quote(functions)}; pass a list of functions of (input_ids, scores)")

    def rows_at_a_time(self, count: int) -> int:
        """How many of so many prompts decode side by side."""
        return min(count, self.max_num_seqs or count)

    @cached_property
    def configuration(self) -> tuple[DecodeConfig, TreePolicy, TreeLimits | None, Path | None]:
        """Configuration and policy; where trees are chosen while decoding, also their limits and the plan's file."""
        flags = dict(synchronise=self.synchronise)
        return resolve_config(self.scheme, self.tree, self.walk, self.plan, self.drafters, self.measure, **flags)

    @property
    def num_logprobs(self) -> int | None:
        """The number of most likely tokens to list beside each token's log-probability; None without these."""
        return number_or_default(self.logprobs, 0, None, "logprobs", "True, or the number of alternatives")

    @property
    def config(self) -> DecodeConfig:
        """The configuration of steps."""
        return self.configuration[0]

    @property
    def policy(self) -> TreePolicy:
        """The policy of the tree that is given, or that stands in until trees are chosen while decoding."""
        return self.configuration[1]

    @property
    def limits(self) -> TreeLimits | None:
        """The limits of trees that are chosen while decoding; None for a fixed tree."""
        return self.configuration[2]

    @property
    def plan_file(self) -> Path | None:
        """The file with what trees are chosen by; None for what is kept of the pair, or is measured now."""
        return self.configuration[3]


OPTIONS = [option.name for option in fields(Options) if option.name != "drafters"]


def signature_with_keywords(signature: Signature) -> Signature:
    """A signature whose last parameter takes any keywords, with these by name.

    transformers passes a custom `generate` only the keywords that its signature has.
    """
    *parameters, others = signature.parameters.values()
    keywords = [field for field in fields(Options) if field.name in OPTIONS]
    keywords += [field for field in fields(SamplingParams) if field.name in OWN_SETTINGS]
    named = [Parameter(f.name, Parameter.KEYWORD_ONLY, default=f.default, annotation=f.type) for f in keywords]
    return signature.replace(parameters=[*parameters, *named, others])
