"""The loop around the step: prompts are read, rows decode side by side, and leave when they are done."""

from collections.abc import Callable

import torch
from transformers import PreTrainedModel

from multidraft.decoding import Emitted, Plan, State, claim, padded, step
from multidraft.errors import AdviceError
from multidraft.inputs import Model
from multidraft.metrics import Info
from multidraft.models import LanguageModel
from multidraft.models.causal_lm import CausalLM
from multidraft.models.compiled import CompiledCausalLM
from multidraft.models.resized import fitted
from multidraft.randomness import for_rows
from multidraft.sampling import Prefix, Prefixes, Sampling
from multidraft.stopping import Stopping

CHUNK = 512  # prompt tokens a forward pass: bounds the memory of the attention mask


def loop(
    state: State, plan: Plan, stopping: Stopping, stream: Callable[[int, Emitted], None], info: Info
) -> list[list[int]]:
    """Step until every row has come to its end; rows that have leave the batch."""
    done: list[list[int]] = [[] for _ in stopping.budgets]
    if plan.logprobs is not None:
        info.logprobs = [[] for _ in stopping.budgets]
    running = [row for row, budget in enumerate(stopping.budgets) if budget > 0]
    if len(running) < len(done):
        state = select(state, running)
    while running and not stopping.time_is_up():
        state, emitted = step(state, plan, info)
        going = []
        for index, (row, new) in enumerate(zip(running, emitted, strict=True)):
            new, goes_on = stopping.cut(row, done[row], new)
            done[row] += new.tokens
            info.tokens += len(new.tokens)
            if plan.logprobs is not None:
                info.logprobs[row] += new.logprobs
            stream(row, new)
            if goes_on:
                going.append(index)
        if len(going) < len(running):
            running = [running[index] for index in going]
            state = select(state, going)
    return done


def select(state: State, going: list[int]) -> State:
    """The state of the rows that go on; the one before cannot be used any more."""
    claim(state)
    rows = torch.tensor(going, dtype=torch.int64, device=state.root.device)
    for model in (state.target, state.draft):
        if model is not None and going:
            model.select(rows)
    random, missing = [state.random[i] for i in going], [state.missing[i] for i in going]
    sampling = [state.sampling[i] for i in going]
    prefixes = None if state.prefixes is None else [state.prefixes[i] for i in going]
    return State(state.target, state.draft, random, state.root[rows], state.position[rows], missing, sampling, prefixes)


def start(
    prompts: list[list[int]],
    target_model: Model,
    draft_model: Model | None,
    plan: Plan,
    longest: int,
    generator: torch.Generator | list[torch.Generator] | None,
    info: Info,
    seen: list[list[int]] | None = None,
    sampling: list[Sampling] | None = None,
) -> State:
    """Both models read all of each prompt but its last token, which is the root of the first tree.

    Processors, where they look back, see `seen` in place of the prompts. `sampling` gives every row settings of its
    own, in place of the plan's.
    """
    sampling = list(sampling or [plan.sampling] * len(prompts))
    if len(sampling) != len(prompts):
        raise AdviceError(f"there are {len(prompts)} prompts and {len(sampling)} settings; give one for each prompt")
    capacity = longest + 2 * len(plan.tree) + 2
    with info.watch.part("target"):
        target = reading(target_model, prompts, capacity)
    with info.watch.part("draft"):
        kind = CompiledCausalLM if plan.compile_draft else CausalLM
        draft = reading(draft_model, prompts, capacity, target.vocabulary, kind) if draft_model is not None else None
    root = torch.tensor([p[-1] for p in prompts], device=target.device)
    position = torch.tensor([len(p) - 1 for p in prompts], device=target.device)
    random, missing = for_rows(generator, len(prompts)), [-1] * len(prompts)
    prefixes = begun(seen or prompts, sampling, root.device)
    return State(target, draft, random, root, position, missing, sampling, prefixes)


def begun(sequences: list[list[int]], sampling: list[Sampling], device: torch.device) -> Prefixes | None:
    """The sequences of the rows whose settings look back, if there are any."""
    looking = [own.looks_back for own in sampling]
    if not any(looking):
        return None
    rows = enumerate(zip(sequences, looking, strict=True))
    return [Prefix(row, torch.tensor(tokens, device=device)) if looks else None for row, (tokens, looks) in rows]


def reading(
    model: Model,
    prompts: list[list[int]],
    capacity: int,
    vocabulary: int | None = None,
    kind: type[CausalLM] = CausalLM,
) -> LanguageModel:
    """The model as the loop needs it, over the target's vocabulary, with the prompts kept in its cache."""
    reader = kind(model, capacity) if isinstance(model, PreTrainedModel) else model.fresh(capacity)
    reader = fitted(reader, vocabulary or reader.vocabulary)
    tokens = padded([prompt[:-1] for prompt in prompts]).to(reader.device)
    for first in range(0, max(tokens.shape[1], 1), CHUNK):  # once at least, which settles the number of rows
        chunk = tokens[:, first : first + CHUNK]
        position = torch.arange(first, first + chunk.shape[1], device=reader.device)
        causal = torch.ones((chunk.shape[1],) * 2, dtype=torch.bool, device=reader.device).tril()
        reader.forward(chunk.clamp(min=0), position.expand_as(chunk), causal.expand(len(chunk), -1, -1), logits=False)
        reader.keep(torch.where(chunk >= 0, position - first, -1).cpu())
    return reader
