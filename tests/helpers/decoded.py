"""Steps of a pair under a policy, without the ways in that a user takes."""

from collections.abc import Callable, Iterator

import torch
from tiny import tiny_model
from torch import Tensor
from transformers import PreTrainedModel

import multidraft as md
from multidraft.decoding.policy import TreePolicy
from multidraft.decoding.prefill import read_whole
from multidraft.decoding.record import StepRecord
from multidraft.decoding.request import Request
from multidraft.decoding.state import DecodeConfig, Randomness, RunningRow, State, generators_for
from multidraft.decoding.step import step
from multidraft.decoding.targets import Targets
from multidraft.decoding.tree import TokenTree
from multidraft.models.prefix_models import TableModel, random_table
from multidraft.models.reader import Reader
from multidraft.models.user_models import Model, as_reader
from multidraft.sampling.settings import Sampling

Way = tuple[DecodeConfig, TreePolicy]
CERTAIN_TOKEN = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)


def constant_model(distribution: Callable[[int], torch.Tensor]) -> TableModel:
    """A model of three tokens whose law depends on the number of tokens before."""
    return TableModel(lambda prefix: distribution(len(prefix)), 3)


def tables(vocabulary: int = 5, order: int = 3, concentration: float = 1.0) -> tuple[TableModel, TableModel]:
    """A target and a draft model whose laws are random."""
    target, draft = (TableModel(random_table(vocabulary, order, seed, concentration), vocabulary) for seed in (1, 2))
    return target, draft


def tiny() -> tuple[PreTrainedModel, PreTrainedModel]:
    """The same of transformers."""
    return tiny_model("llama"), tiny_model("gpt2")


def readers(*models: Model | None) -> list[Reader | None]:
    """Models as the loop takes them."""
    return [None if model is None else as_reader(model) for model in models]


def roots(
    logits: Tensor, settings: list[Sampling], kind: type[Targets] = Targets, prefixes: list[Tensor] | None = None
) -> Targets:
    """The targets at the roots of rows with these settings, a line of logits each, at position 2."""
    pairs = zip(settings, prefixes or [None] * len(settings), strict=True)
    rows = [RunningRow(sampling, Randomness(torch.Generator()), 0, 2, prefix=prefix) for sampling, prefix in pairs]
    return kind(rows, [TokenTree([0]) for _ in rows], logits[:, None])


def start(
    prompts: list[list[int]],
    target: Model,
    draft: Model | None,
    way: Way,
    sampling: list[Sampling],
    longest: int,
    generator: torch.Generator | list[torch.Generator] | None = None,
    whole: bool = False,
    num_logprobs: int | None = None,
) -> State:
    """The state after these prompts, with room for sequences of `longest` tokens; the target may read them whole."""
    generators = generators_for(generator, len(prompts))
    requests = [
        Request(
            prompt,
            longest - len(prompt),
            sampling[row],
            generator=generators[row],
            num_logprobs=num_logprobs,
            index=row,
        )
        for row, prompt in enumerate(prompts)
    ]
    return read_whole(requests, *readers(target, draft), *way, whole)


@torch.inference_mode()
def records(
    policy: TreePolicy,
    target: TableModel,
    draft: Reader,
    steps: int,
    rows: int = 1,
    temperature: float = 1.0,
    seed: int = 0,
    prompts: list[list[int]] | None = None,
    walk: str = "deferred",
) -> Iterator[StepRecord]:
    """What came of every step of some equal rows, or of these."""
    way, prompts = (DecodeConfig(md.scheme("anchored:lorenz"), walk, measure=0), policy), prompts or [[0]] * rows
    sampling, generator = [Sampling(temperature=temperature)] * len(prompts), torch.Generator().manual_seed(seed)
    state = start(prompts, target, draft, way, sampling, 9999, generator)
    for _ in range(steps):
        state, record = step(state, *way)
        yield record


def num_steps_with_drafts(step_records: list[StepRecord]) -> int:
    """In how many steps anything was drafted."""
    return sum(any(len(tree) > 1 for tree in record.trees) for record in step_records)


def num_accepted(step_records: list[StepRecord]) -> int:
    """How many drafted tokens were accepted."""
    return sum(emitted.kinds.count("accepted") for record in step_records for emitted in record.emitted)
