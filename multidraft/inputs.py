"""What a user passes in, checked with advice and made into what the loop works on."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from multidraft.catalogue import Scheme
from multidraft.catalogue import scheme as scheme_named
from multidraft.decoding import Plan
from multidraft.errors import AdviceError
from multidraft.models import LanguageModel
from multidraft.models.resized import check_sizes
from multidraft.sampling import Sampling
from multidraft.tree import Tree
from multidraft.walk import WALKS, Walker

Model = PreTrainedModel | LanguageModel
Prompts = Tensor | Mapping[str, Tensor] | Sequence[Sequence[int]]


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
