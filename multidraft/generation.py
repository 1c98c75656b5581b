"""The public way in: continue prompts with a pair of models, a scheme and a tree."""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedModel, StoppingCriteria
from transformers.modeling_outputs import ModelOutput

from multidraft import adapters, settings
from multidraft.catalogue import Scheme
from multidraft.catalogue import scheme as scheme_named
from multidraft.decoding import Emitted, Plan, State, claim, padded, step
from multidraft.errors import AdviceError
from multidraft.metrics import Info, Stopwatch
from multidraft.models import LanguageModel
from multidraft.models.causal_lm import CausalLM, home
from multidraft.models.compiled import CompiledCausalLM
from multidraft.models.resized import check_sizes, fitted
from multidraft.models.several import Several
from multidraft.options import Options
from multidraft.processors import check_known, check_pure, for_row, is_bound, sampling_from
from multidraft.randomness import for_rows
from multidraft.sampling import Prefix, Sampling
from multidraft.stopping import Stopping, stop_strings
from multidraft.streams import Stream, Streamer, as_stream
from multidraft.tracing import Tell, Trace
from multidraft.tree import Tree
from multidraft.walk import WALKS, Walker

Model = PreTrainedModel | LanguageModel
Prompts = Tensor | Mapping[str, Tensor] | Sequence[Sequence[int]]
CHUNK = 512  # prompt tokens a forward pass: bounds the memory of the attention mask
NO_DRAFTS = Tree.paths([])


@overload
def generate(
    target_model: Model, draft_model: Model | Sequence[Model] | None, inputs: Prompts, /, **settings: Any
) -> tuple[list[Int[Tensor, " new"]], Info]: ...


@overload
def generate(
    model: PreTrainedModel, input_ids: Int[Tensor, "batch length"], /, **settings: Any
) -> Int[Tensor, "batch longer"] | ModelOutput: ...


def generate(
    target_model: Model,
    draft_or_prompts: Any,
    inputs: Prompts | None = None,
    /,
    *,
    draft_model: Model | Sequence[Model] | None = None,
    scheme: str | Scheme = "anchored:lorenz",
    tree: str | Tree = "4x2x2x1",
    walk: str | Walker = "deferred",
    draft_temperature: float | int | None = None,
    draft_top_k: int | None = None,
    draft_top_p: float | int | None = None,
    presence_penalty: float | int = 0,
    frequency_penalty: float | int = 0,
    logit_bias: Mapping[int, float | int] | None = None,
    stop: str | Sequence[str] | None = None,
    stop_tokenizer: Any = None,
    logprobs: bool | int = False,
    generator: torch.Generator | list[torch.Generator] | None = None,
    stream: Stream | Streamer | None = None,
    trace: Tell | None = None,
    measure: bool = True,
    synchronise: bool = False,
    compile_draft: bool = False,
    generation_config: GenerationConfig | None = None,
    logits_processor: Sequence[LogitsProcessor] = (),
    stopping_criteria: Sequence[StoppingCriteria] = (),
    **others: Any,
) -> Any:
    """Continue prompts by multi-draft speculative decoding; the output has exactly the target's distribution.

    Two ways to call it (docs/generate.md explains every setting):

        tokens, info = generate(target, draft, inputs, temperature=0.7, max_new_tokens=64)
        sequences = model.generate(**inputs, custom_generate=generate, draft_model=draft, max_new_tokens=64)

    The first returns the new tokens of every row and an `Info` on how it went. `inputs` are token ids: a tensor (batch,
    length), a tokenizer's output (padding is read off its attention mask), or a list of lists. Several draft models in
    a list need a scheme of the law `distinct`: a node's children come from them by turns. Without a draft model (None)
    the same loop decodes plainly. The second returns what `model.generate` returns.

    Settings by name are those of transformers' `GenerationConfig` (`temperature=1.0`, `top_k`, `min_p`,
    `repetition_penalty`, `max_new_tokens=128`, `eos_token_id`, ...), over `generation_config` if there is one; those
    that cannot be honoured are refused by name. `temperature=0` decodes greedily. `eos_token_id` defaults to the
    target's own; pass an empty list to go on beyond it. The draft model is sampled with the target's settings unless
    `draft_temperature`, `draft_top_k` or `draft_top_p` say otherwise.

    With one `generator` a run repeats itself; with a list of them, one for each row, a row does not depend on its
    neighbours. `stream` is a Hugging Face streamer, or is called as `stream(row, emitted)` after every step. With
    `logprobs=True` (or the number of alternatives) every emitted token comes with its log-probability, as
    `info.logprobs`. `trace(record)` is told all that is drawn and decided (docs/metrics.md). `measure=False` leaves the
    optimal acceptance rate out of the report. `compile_draft` compiles the draft model's steps: some seconds for each
    size of step that comes up, once for a model; it pays in long runs.

    Raises `AdviceError` on bad input.
    """
    draft = draft_model if inputs is None else draft_or_prompts
    draft = Several(draft) if isinstance(draft, Sequence) else draft
    plan = make_plan(scheme, tree if draft is not None else NO_DRAFTS, walk, Sampling(), measure, top_count(logprobs))
    if draft is not None:
        check_drafters(plan.scheme, isinstance(draft, Several))
    if compile_draft:
        check_compiles(draft)
    options = Options(
        replace(plan, compile_draft=compile_draft, trace=Trace(trace) if trace is not None else None),
        *(draft_temperature, draft_top_k, draft_top_p, presence_penalty, frequency_penalty, dict(logit_bias or {})),
        *(stop, stop_tokenizer, generator, stream, synchronise),
    )
    prepared = generation_config, list(logits_processor or ()), list(stopping_criteria or ())
    if inputs is None:
        from multidraft.hugging_face import generate_sequences

        return generate_sequences(target_model, draft, draft_or_prompts, options, *prepared, others)
    if draft_model is not None:
        raise AdviceError("the draft model comes second: generate(target, draft, inputs)")
    return generate_rows(target_model, draft, inputs, options, *prepared, others)


def generate_rows(
    target: Model,
    draft: Model | None,
    inputs: Prompts,
    options: Options,
    config: GenerationConfig | None,
    processors: list[LogitsProcessor],
    criteria: list[StoppingCriteria],
    changes: dict[str, Any],
) -> tuple[list[Int[Tensor, " new"]], Info]:
    """Every row as though it were alone: its processors know nothing of padding or of other prompts' lengths."""
    ends = settings.ends_of(getattr(target, "generation_config", None), set())
    config = settings.configuration(config, changes, ends)
    prompts = [prompt for prompt in as_lists(inputs) for _ in range(config.num_return_sequences or 1)]
    limits = lengths(prompts, target, draft, [settings.new_tokens(config, len(prompt)) for prompt in prompts])
    device = home(target) if isinstance(target, PreTrainedModel) else target.device
    lists = row_processors(config, prompts, limits, vocabulary_of(target), options, processors, device)
    check_pure(lists[0], torch.tensor(prompts[0], device=device), vocabulary_of(target))
    plan = options.plan_with(sampling_from(lists, not config.do_sample))
    stopping = Stopping(
        [limit - len(prompt) for limit, prompt in zip(limits, prompts, strict=True)],
        set(config.eos_token_id or ()),
        [*criteria, *stop_strings(options.stop or config.stop_strings, options.stop_tokenizer)],
        prompts,
        time.time() + config.max_time if config.max_time else float("inf"),
        device,
    )
    return run(target, draft, prompts, prompts, plan, options, stopping)


def row_processors(
    config: GenerationConfig,
    prompts: list[list[int]],
    limits: list[int],
    vocabulary: int,
    options: Options,
    extra: list[LogitsProcessor],
    device: torch.device,
) -> list[LogitsProcessorList]:
    """The processors of each prompt; prompts for which they are the same share them."""
    made: dict[tuple, LogitsProcessorList] = {}
    by_prompt = {config.encoder_repetition_penalty, config.encoder_no_repeat_ngram_size} - {None, 0, 1.0}
    differ, result = bool(by_prompt) or any(map(is_bound, extra)), []
    for row, (prompt, limit) in enumerate(zip(prompts, limits, strict=True)):
        key = (len(prompt), limit, row if differ else None)
        if key not in made:
            own = copy.copy(config)
            own.max_length = limit
            mine = [*for_row(extra, row), *options.processors(len(prompt))]
            built = adapters.logits_processors(own, prompt, vocabulary, mine, device)
            check_known(built)
            made[key] = for_row(built, 0)
        result.append(made[key])
    return result


def run(
    target: Model,
    draft: Model | None,
    prompts: list[list[int]],
    seen: list[list[int]],
    plan: Plan,
    options: Options,
    stopping: Stopping,
) -> tuple[list[Int[Tensor, " new"]], Info]:
    """Decode; processors see `seen` in place of the prompts, which is the same but for padding."""
    info = Info(watch=Stopwatch(synchronise=options.synchronise))
    longest = max(len(prompt) + budget for prompt, budget in zip(prompts, stopping.budgets, strict=True))
    with torch.inference_mode(), info.watch.whole(), as_stream(options.stream, seen) as stream:
        state = start(prompts, target, draft, plan, longest, options.generator, info, seen)
        if plan.trace is not None:
            state = plan.trace.begin(state, plan, prompts)
        tokens = loop(state, plan, stopping, stream, info)
    if plan.trace is not None:
        plan.trace.end(tokens)
        info.watch.move(plan.trace.seconds, "rule", "measuring")
    return [torch.tensor(row, dtype=torch.int64) for row in tokens], info


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
    prefixes = None if state.prefixes is None else [state.prefixes[i] for i in going]
    return State(state.target, state.draft, random, state.root[rows], state.position[rows], missing, prefixes)


def start(
    prompts: list[list[int]],
    target_model: Model,
    draft_model: Model | None,
    plan: Plan,
    longest: int,
    generator: torch.Generator | list[torch.Generator] | None,
    info: Info,
    seen: list[list[int]] | None = None,
) -> State:
    """Both models read all of each prompt but its last token, which is the root of the first tree.

    Processors, where they look back, see `seen` in place of the prompts.
    """
    capacity = longest + 2 * len(plan.tree) + 2
    with info.watch.part("target"):
        target = reading(target_model, prompts, capacity)
    with info.watch.part("draft"):
        kind = CompiledCausalLM if plan.compile_draft else CausalLM
        draft = reading(draft_model, prompts, capacity, target.vocabulary, kind) if draft_model is not None else None
    root = torch.tensor([p[-1] for p in prompts], device=target.device)
    position = torch.tensor([len(p) - 1 for p in prompts], device=target.device)
    prefixes = None
    if plan.sampling.looks_back:
        prefixes = [Prefix(row, torch.tensor(p, device=root.device)) for row, p in enumerate(seen or prompts)]
    return State(target, draft, for_rows(generator, len(prompts)), root, position, [-1] * len(prompts), prefixes)


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
    for first in range(0, max(tokens.shape[1], 1), CHUNK):  # once at least, which settles the number of rows
        chunk = tokens[:, first : first + CHUNK]
        position = torch.arange(first, first + chunk.shape[1], device=reader.device)
        causal = torch.ones((chunk.shape[1],) * 2, dtype=torch.bool, device=reader.device).tril()
        reader.forward(chunk.clamp(min=0), position.expand_as(chunk), causal.expand(len(chunk), -1, -1), logits=False)
        reader.keep(torch.where(chunk >= 0, position - first, -1))
    return reader


def make_plan(
    scheme: str | Scheme,
    tree: str | Tree,
    walk: str | Walker,
    sampling: Sampling,
    measure: bool,
    logprobs: int | None = None,
) -> Plan:
    """Names made into objects."""
    if isinstance(walk, str) and walk not in WALKS:
        raise AdviceError(f"unknown walk {walk!r}; walks are {', '.join(WALKS)}")
    scheme = scheme_named(scheme) if isinstance(scheme, str) else scheme
    tree = Tree.parse(tree) if isinstance(tree, str) else tree
    check_fits(scheme, tree)
    return Plan(scheme, tree, walk, sampling, measure, logprobs=logprobs)


def top_count(logprobs: bool | int) -> int | None:
    """None: no log-probabilities; otherwise the number of alternatives beside the emitted token."""
    if isinstance(logprobs, bool):
        return 0 if logprobs else None
    if logprobs < 0:
        raise AdviceError(f"logprobs is {logprobs}; use True, or the number of alternatives")
    return logprobs


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


def lengths(
    prompts: list[list[int]], target_model: Model, draft_model: Model | None, new_tokens: list[int]
) -> list[int]:
    """How long each sequence may become: the prompt and its new tokens, but not beyond the models' context."""
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
    wanted = [len(prompt) + new for prompt, new in zip(prompts, new_tokens, strict=True)]
    return [min(length, context or length) for length in wanted]


def context_of(model: Model) -> int | None:
    """The largest number of tokens in a sequence."""
    from multidraft.models.causal_lm import context

    return context(model.config) if isinstance(model, PreTrainedModel) else model.context


def vocabulary_of(model: Model) -> int:
    """The number of tokens that the model gives logits for."""
    return model.config.get_text_config().vocab_size if isinstance(model, PreTrainedModel) else model.vocabulary
