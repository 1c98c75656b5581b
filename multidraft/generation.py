"""The public way in: continue prompts with a pair of models, a scheme and a tree."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedModel

from multidraft.catalogue import Scheme
from multidraft.catalogue import scheme as scheme_named
from multidraft.decoding import Emitted, Plan, State, padded, step
from multidraft.errors import AdviceError
from multidraft.metrics import Info, Stopwatch
from multidraft.models import LanguageModel
from multidraft.models.causal_lm import CausalLM
from multidraft.models.compiled import CompiledCausalLM
from multidraft.models.resized import check_sizes, fitted
from multidraft.models.several import Several
from multidraft.randomness import for_rows
from multidraft.sampling import Sampling
from multidraft.tree import Tree
from multidraft.walk import WALKS, Walker

Model = PreTrainedModel | LanguageModel
Stream = Callable[[int, Emitted], None]
CHUNK = 512  # prompt tokens a forward pass: bounds the memory of the attention mask
NO_DRAFTS = Tree.paths([])


def generate(
    target_model: Model,
    draft_model: Model | Sequence[Model] | None,
    inputs: Tensor | Mapping[str, Tensor] | Sequence[Sequence[int]],
    *,
    scheme: str | Scheme = "anchored:lorenz",
    tree: str | Tree = "4x2x2x1",
    walk: str | Walker = "deferred",
    temperature: float | int = 1.0,
    top_k: int | None = None,
    top_p: float | int | None = None,
    max_new_tokens: int = 128,
    eos_token_id: int | Sequence[int] | None = None,
    generator: torch.Generator | list[torch.Generator] | None = None,
    stream: Stream | None = None,
    measure: bool = True,
    synchronise: bool = False,
    compile_draft: bool = False,
) -> tuple[list[Int[Tensor, " new"]], Info]:
    """Continue prompts by multi-draft speculative decoding; the output has exactly the target's distribution.

    `inputs` are token ids: a tensor (batch, length), a tokenizer's output (padding is read off its attention mask), or
    a list of lists. Several draft models in a list need a scheme of the law `distinct`: a node's children come from
    them by turns. Without a draft model the same loop decodes plainly. `temperature=0` decodes greedily. With one
    `generator` a run repeats itself; with a list of them, one for each row, a row does not depend on its neighbours.
    `eos_token_id` defaults to the target's own; pass an empty list to go on beyond it. `stream(row, emitted)` is called
    after every step. `measure=False` leaves the optimal acceptance rate out of the report. `compile_draft` compiles the
    draft model's steps: some seconds for each size of step that comes up, once for a model; it pays in long runs.

    Returns the new tokens of every row, and an `Info` on how it went. Raises `AdviceError` on bad input.
    """
    prompts = as_lists(inputs)
    draft_model = Several(draft_model) if isinstance(draft_model, Sequence) else draft_model
    plan = make_plan(
        scheme, tree if draft_model is not None else NO_DRAFTS, walk, Sampling(temperature, top_k, top_p), measure
    )
    if compile_draft:
        check_compiles(draft_model)
        plan = replace(plan, compile_draft=True)
    if draft_model is not None:
        check_drafters(plan.scheme, isinstance(draft_model, Several))
    limits = lengths(prompts, target_model, draft_model, max_new_tokens)
    ends = (
        ends_of(target_model)
        if eos_token_id is None
        else set([eos_token_id] if isinstance(eos_token_id, int) else eos_token_id)
    )
    info = Info(watch=Stopwatch(synchronise=synchronise))
    with torch.inference_mode(), info.watch.whole():
        state = start(prompts, target_model, draft_model, plan, max(limits), generator, info)
        tokens = loop(
            state, plan, [limit - len(p) for limit, p in zip(limits, prompts, strict=True)], ends, stream, info
        )
    return [torch.tensor(row, dtype=torch.int64) for row in tokens], info


def loop(
    state: State, plan: Plan, budgets: list[int], ends: set[int], stream: Stream | None, info: Info
) -> list[list[int]]:
    """Step until every row has met its budget or an end-of-text token; rows that have leave the batch."""
    done: list[list[int]] = [[] for _ in budgets]
    running = [row for row, budget in enumerate(budgets) if budget > 0]
    if len(running) < len(budgets):
        state = select(state, running)
    while running:
        state, emitted = step(state, plan, info)
        info.count(emitted)
        for row, new in zip(running, emitted, strict=True):
            new = cut(new, budgets[row] - len(done[row]), ends)
            done[row] += new.tokens
            info.tokens += len(new.tokens)
            if stream is not None:
                stream(row, new)
        going = [i for i, row in enumerate(running) if len(done[row]) < budgets[row] and done[row][-1] not in ends]
        if len(going) < len(running):
            running = [running[i] for i in going]
            state = select(state, going)
    return done


def cut(new: Emitted, budget: int, ends: set[int]) -> Emitted:
    """At most `budget` tokens, none after an end of text."""
    stop = next((i + 1 for i, token in enumerate(new.tokens) if token in ends), len(new.tokens))
    stop = min(stop, budget)
    return Emitted(new.tokens[:stop], new.kinds[:stop])


def select(state: State, going: list[int]) -> State:
    """The state of the rows that go on."""
    rows = torch.tensor(going, dtype=torch.int64, device=state.root.device)
    for model in (state.target, state.draft):
        if model is not None and going:
            model.select(rows)
    keep = [state.random[i] for i in going], [state.missing[i] for i in going]
    return State(state.target, state.draft, keep[0], state.root[rows], state.position[rows], keep[1])


def start(
    prompts: list[list[int]],
    target_model: Model,
    draft_model: Model | None,
    plan: Plan,
    longest: int,
    generator: torch.Generator | list[torch.Generator] | None,
    info: Info,
) -> State:
    """Both models read all of each prompt but its last token, which is the root of the first tree."""
    capacity = longest + 2 * len(plan.tree) + 2
    with info.watch.part("target"):
        target = reading(target_model, prompts, capacity)
    with info.watch.part("draft"):
        kind = CompiledCausalLM if plan.compile_draft else CausalLM
        draft = reading(draft_model, prompts, capacity, target.vocabulary, kind) if draft_model is not None else None
    root = torch.tensor([p[-1] for p in prompts], device=target.device)
    position = torch.tensor([len(p) - 1 for p in prompts], device=target.device)
    return State(target, draft, for_rows(generator, len(prompts)), root, position, [-1] * len(prompts))


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
    tokens = padded([prompt[:-1] for prompt in prompts], reader.device)
    for first in range(0, tokens.shape[1], CHUNK):
        chunk = tokens[:, first : first + CHUNK]
        position = torch.arange(first, first + chunk.shape[1], device=reader.device)
        causal = torch.ones((chunk.shape[1],) * 2, dtype=torch.bool, device=reader.device).tril()
        reader.forward(chunk.clamp(min=0), position.expand_as(chunk), causal.expand(len(chunk), -1, -1), logits=False)
        reader.keep(torch.where(chunk >= 0, position - first, -1))
    return reader


def make_plan(scheme: str | Scheme, tree: str | Tree, walk: str | Walker, sampling: Sampling, measure: bool) -> Plan:
    """Names made into objects."""
    if isinstance(walk, str) and walk not in WALKS:
        raise AdviceError(f"unknown walk {walk!r}; walks are {', '.join(WALKS)}")
    scheme = scheme_named(scheme) if isinstance(scheme, str) else scheme
    tree = Tree.parse(tree) if isinstance(tree, str) else tree
    check_fits(scheme, tree)
    return Plan(scheme, tree, walk, sampling, measure)


def check_compiles(draft_model: Model | None) -> None:
    """Raise unless there is something to compile."""
    if not isinstance(draft_model, PreTrainedModel):
        raise AdviceError("compile_draft compiles a Hugging Face draft model, and there is none; leave it out")


def check_fits(scheme: Scheme, tree: Tree) -> None:
    """Raise unless the scheme's law can draw at every node of the tree."""
    for count in set(tree.drafts) - {0}:
        scheme.at(count)  # raises where the law takes only certain numbers of drafts
    branches = any(tree.drafts[tree.parents[slot]] > 1 for slot in range(1, len(tree)) if tree.drafts[slot])
    if scheme.law.draft_probability < 1 and not scheme.law.distinct and branches:
        raise AdviceError(
            f"equal drafts of {scheme.name} become one node of a random number of draws with draft_probability < 1; "
            "use a chain, or a law without duplicates such as anchored"
        )


def check_drafters(scheme: Scheme, several: bool) -> None:
    """Raise unless there are several drafters for the law `distinct`, and one for any other."""
    if several and scheme.law.name != "distinct":
        raise AdviceError(
            f"{scheme.name} draws from one draft model; use distinct:recursive_rejection for several, or a Mixture"
        )
    if not several and scheme.law.name == "distinct":
        raise AdviceError("distinct drafts need several draft models; pass a list of them, or use iid, for example")


def as_lists(inputs: Tensor | Mapping[str, Tensor] | Sequence[Sequence[int]]) -> list[list[int]]:
    """Prompts as lists of token ids, without padding."""
    if isinstance(inputs, Mapping):
        ids, mask = inputs["input_ids"], inputs.get("attention_mask")
        mask = torch.ones_like(ids) if mask is None else mask
        return as_lists([row[kept.bool()].tolist() for row, kept in zip(ids, mask, strict=True)])
    if isinstance(inputs, Tensor):
        inputs = inputs.tolist() if inputs.ndim == 2 else [inputs.tolist()]
    prompts = [[int(token) for token in prompt] for prompt in inputs]
    if not prompts:
        raise AdviceError("there are no prompts; pass at least one")
    if not all(prompts):
        raise AdviceError(f"prompt {prompts.index([])} is empty; give it at least one token, such as the start of text")
    return prompts


def lengths(prompts: list[list[int]], target_model: Model, draft_model: Model | None, max_new_tokens: int) -> list[int]:
    """How long each sequence may become: the prompt and `max_new_tokens`, but not beyond the models' context."""
    if max_new_tokens < 1:
        raise AdviceError(f"max_new_tokens is {max_new_tokens}; ask for at least 1")
    contexts = [context_of(model) for model in (target_model, draft_model) if model is not None]
    context = min((c for c in contexts if c is not None), default=None)
    sizes = [vocabulary_of(model) for model in (target_model, draft_model) if model is not None]
    check_sizes(sizes[0], sizes[-1])
    for row, prompt in enumerate(prompts):
        if context is not None and len(prompt) >= context:
            raise AdviceError(
                f"prompt {row} has {len(prompt)} tokens and the models' context is {context}; shorten the prompt"
            )
        if strange := [token for token in prompt if not 0 <= token < sizes[0]]:
            raise AdviceError(
                f"prompt {row} has token {strange[0]}, but the vocabulary is 0 to {sizes[0] - 1}; check the tokenizer"
            )
    return [min(len(p) + max_new_tokens, context or len(p) + max_new_tokens) for p in prompts]


def context_of(model: Model) -> int | None:
    """The largest number of tokens in a sequence."""
    from multidraft.models.causal_lm import context

    return context(model.config) if isinstance(model, PreTrainedModel) else model.context


def vocabulary_of(model: Model) -> int:
    """The number of tokens that the model gives logits for."""
    return model.config.get_text_config().vocab_size if isinstance(model, PreTrainedModel) else model.vocabulary


def ends_of(model: Model) -> set[int]:
    """The target's own end-of-text tokens."""
    config = getattr(model, "generation_config", None)
    found = getattr(config, "eos_token_id", None)
    return set() if found is None else {found} if isinstance(found, int) else set(found)
