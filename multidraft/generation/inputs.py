"""What a user passes in, checked with advice and made into what the loop works on."""

import warnings
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from multidraft.autotune.auto_policy import TreeLimits, can_choose
from multidraft.decoding.policy import TreePolicy, policy_of
from multidraft.decoding.state import MEASURED_AT_FIRST, MEASURED_EVERY_STEPS, DecodeConfig
from multidraft.decoding.tree import NO_DRAFTS, TREE_FORMS, Tree
from multidraft.decoding.verify import check_walk
from multidraft.decoding.walks import Walker
from multidraft.errors import AdviceError, is_integer, quote
from multidraft.generation import FIXED_TREE
from multidraft.models.ensemble import SideBySide
from multidraft.models.gguf.model import GGUF
from multidraft.models.heads.drafters import HEAD_NAME, head
from multidraft.models.reader import Reader
from multidraft.models.user_models import Model, as_model, context_of, is_reduced, vocabulary_size
from multidraft.models.vocabularies import check_ids, check_sizes, other_tokens, undrafted_note
from multidraft.sampling.params import check_all
from multidraft.verification.registry import scheme as scheme_named
from multidraft.verification.scheme import Scheme

PROMPT_FORMS = (
    'a list of lists, a tensor (batch, length), or what tokenizer(texts, padding=True, return_tensors="pt") returns'
)
UNREAD_INPUT = "{} is not supported by multi-draft decoding; pass input_ids and attention_mask only"
TOKENIZER_NOTES = {"length", "offset_mapping", "overflow_to_sample_mapping", "special_tokens_mask"}  # for people
Prompts = Tensor | Mapping[str, Tensor] | Sequence[Sequence[int]]


def make_config(
    scheme: str | Scheme, tree: str | Tree | TreePolicy, walk: str | Walker, measure: bool | int, **flags: Any
) -> tuple[DecodeConfig, TreePolicy]:
    """Names made into objects; raises AdviceError where the scheme cannot draw what the policy wants."""
    scheme, tree = scheme_named(scheme), Tree.parse(tree) if isinstance(tree, str) else tree
    check_walk(scheme, walk)
    if not isinstance(tree, Tree | TreePolicy):
        raise AdviceError(f"tree is {quote(tree)}; {TREE_FORMS}")
    check_all(flags)
    measured_every = number_or_default(
        measure, MEASURED_EVERY_STEPS, 0, "measure", "True, False, or every how many steps to measure"
    )
    measured_first = MEASURED_AT_FIRST if measure is True else 0
    policy = policy_of(tree)
    policy.limits.check(scheme)
    return DecodeConfig(scheme, walk, measured_every, measure_first=measured_first, **flags), policy


def resolve_config(
    scheme: str | Scheme,
    tree: str | Tree | TreePolicy,
    walk: str | Walker,
    plan: Any,
    drafters: int,
    measure: bool | int = False,
    **flags: Any,
) -> tuple[DecodeConfig, TreePolicy, TreeLimits | None, Path | None]:
    """Configuration and policy for so many drafters; of trees that are to be chosen also limits and the plan's file."""
    limits = TreeLimits.parse(tree) if isinstance(tree, str) and tree.strip().lower().startswith("auto") else None
    chosen_tree = tree if limits is None else FIXED_TREE
    chosen_tree = (
        Tree.parse(chosen_tree) if isinstance(chosen_tree, str) else chosen_tree
    )  # also where nothing is drafted: it may be wrong
    config, policy = make_config(scheme, chosen_tree if drafters else NO_DRAFTS, walk, measure, **flags)
    limits = limits if drafters and can_choose(config.scheme) else None
    plan_path = plan_file(plan, limits)
    if drafters:
        check_drafters(config.scheme, drafters > 1)
    return config, policy, limits, plan_path


def number_or_default(value: bool | int, yes: Any, no: Any, name: str, use: str) -> Any:
    """A number, or what True and False stand for."""
    if isinstance(value, bool):
        return yes if value else no
    if not is_integer(value) or value < 0:
        raise AdviceError(f"{name} is {quote(value)}; use {use}")
    return value


def plan_file(plan: Any, limits: TreeLimits | None) -> Path | None:
    """The file of a plan; raises AdviceError where it is none, or nobody would read it."""
    if plan is not None and (not isinstance(plan, str | PathLike) or not str(plan)):
        raise AdviceError(f"plan is {quote(plan)}; give the file that `multidraft tune --out` has written")
    if plan is not None and limits is None:
        raise AdviceError("a plan chooses trees, and here the tree is given or cannot be chosen; use tree='auto'")
    return None if plan is None else Path(plan)


def as_drafter(draft: Any, target: Model) -> Model | None:
    """The drafter that was passed, or named as a head, several of them as one; raises AdviceError on what is none."""
    drafters = list(draft) if isinstance(draft, list | tuple) else [draft]
    drafters = [
        head(drafter, target) if isinstance(drafter, str) and HEAD_NAME.fullmatch(drafter) else drafter
        for drafter in drafters
    ]
    if draft is not None:
        drafters = [as_model(drafter, "draft") for drafter in drafters]
    return SideBySide(drafters) if isinstance(draft, list | tuple) else drafters[0]


def check_pieces(target: Reader, draft: Reader | None) -> None:
    """Raise where two GGUF models name many tokens differently: that their sizes are equal proves nothing.

    A few that differ are never drafted.
    """
    for drafter in draft.drafters if draft is not None else ():
        check_pieces(target, drafter)
    if not isinstance(target, GGUF) or not isinstance(draft, GGUF) or not draft.weights.pieces:
        return
    ids, pieces = draft.weights.tokens.target_ids, target.weights.pieces
    pieces = tuple(pieces[token] for token in ids) if ids and pieces else pieces
    if pieces and pieces != draft.weights.pieces:
        sides = pieces, draft.weights.pieces
        ours, theirs = ({token: name for token, name in enumerate(side) if name} for side in sides)
        if (tokens := other_tokens(ours, theirs)) and draft.undrafted_columns is None:
            warnings.warn(undrafted_note(tokens, ours, theirs), stacklevel=3)
        draft.undrafted_columns = torch.tensor(tokens) if tokens else None


def check_compiles(*models: Model | None) -> None:
    """Raise unless there is something to compile, and no draft head reads hidden states of compiled steps."""
    if any(isinstance(model, Reader) and model.hidden_layers for model in models):
        raise AdviceError("compile=True does not go with a draft head yet, whose target's steps tell hidden states")
    if all(model is None or isinstance(model, Reader) for model in models):
        raise AdviceError("compile=True compiles Hugging Face models, and there is none here; leave it out")


def check_drafters(scheme: Scheme, is_list: bool) -> None:
    """Raise unless there are several drafters for the law `distinct`, and one for any other."""
    if is_list and not scheme.law.per_draft_distributions:
        raise AdviceError(
            f"{scheme.name} draws from one draft model; use distinct:recursive_rejection for several, or a Mixture"
        )
    if not is_list and scheme.law.per_draft_distributions:
        raise AdviceError("distinct drafts need several draft models; pass a list of them, or use iid, for example")


def sequence_limits(
    prompts: list[list[int]], target_model: Model, draft_model: Model | None, new_tokens: list[int]
) -> list[int]:
    """How long each sequence may become: the prompt and its new tokens, but not beyond the target's context."""
    context, size = context_of(target_model), vocabulary_size(target_model)
    check_vocabularies(target_model, draft_model)
    for row, prompt in enumerate(prompts):
        if context is not None and len(prompt) >= context:
            raise AdviceError(
                f"prompt {row} has {len(prompt)} tokens and the target's context is {context}; shorten the prompt"
            )
        if strange := [token for token in prompt if not 0 <= token < size]:
            raise AdviceError(
                f"prompt {row} has token {strange[0]}, but the vocabulary is 0 to {size - 1}; check the tokenizer"
            )
    lengths = [len(prompt) + count for prompt, count in zip(prompts, new_tokens, strict=True)]
    return [min(length, context or length) for length in lengths]


def check_vocabularies(target: Model, draft: Model | None) -> None:
    """Raise unless a target has all of its tokens, and a draft's can be its own, as far as sizes tell."""
    if is_reduced(target):
        raise AdviceError(
            "the target has a part of another model's tokens (target_ids); it can only draft for that one"
        )
    if draft is not None:
        check_sizes(vocabulary_size(target), vocabulary_size(draft), is_reduced(draft))
        check_ids(draft, vocabulary_size(target))


def as_lists(inputs: Any, padding: int | None = None) -> list[list[int]]:
    """Prompts as lists of token ids, without what an attention mask hides; raises AdviceError on what is none.

    In a tensor without a mask the token `padding`, if there is one, is hidden.
    """
    ids, mask = inputs, None
    if isinstance(inputs, Mapping):
        ids, mask = inputs.get("input_ids"), inputs.get("attention_mask")
        check_unread(inputs)
        if ids is None:
            raise AdviceError(f"the prompts have no input_ids; pass token ids as {PROMPT_FORMS}")
    prompts = table_rows(ids, "prompts")
    for token in (token for row in prompts for token in row):
        if type(token) is not int and not is_integer(token):
            raise AdviceError(f"a prompt holds {quote(token)}, which is no token id; pass {PROMPT_FORMS}")
    prompts = [[int(token) for token in row] for row in prompts]
    if mask is None and padding is not None and isinstance(ids, Tensor):
        prompts = [[token for token in row if token != padding] or row for row in prompts]
    if mask is not None:
        prompts = without_padding(prompts, table_rows(mask, "attention_mask"))
    if not prompts:
        raise AdviceError("there are no prompts; pass at least one")
    if not all(prompts):
        raise AdviceError(f"prompt {prompts.index([])} is empty; give it at least one token, such as the start of text")
    return prompts


def check_unread(inputs: Mapping[str, Any]) -> None:
    """Raise on what a model would read beside ids and a mask: images, positions, embeddings, a beginning."""
    for name, value in inputs.items():
        is_empty = value is None or (name == "token_type_ids" and not any(map(any, table_rows(value, name))))
        if name not in ("input_ids", "attention_mask") and name not in TOKENIZER_NOTES and not is_empty:
            raise AdviceError(UNREAD_INPUT.format(name))


def without_padding(ids: list[list[int]], mask: list[list]) -> list[list[int]]:
    """The tokens that an attention mask does not hide."""
    if [len(row) for row in mask] != [len(row) for row in ids]:
        raise AdviceError("attention_mask has another shape than input_ids; give it a number for every token")
    if wrong := [number for row in mask for number in row if number not in (0, 1)]:
        raise AdviceError(f"attention_mask holds {quote(wrong[0])}; use 1 for a token that counts and 0 for padding")
    return [[token for token, kept in zip(row, seen, strict=True) if kept] for row, seen in zip(ids, mask, strict=True)]


def table_rows(values: Any, name: str) -> list[list]:
    """The rows of a table of numbers; a single row stands for a table of one."""
    rows = as_plain_lists(values)
    if isinstance(rows, Sequence) and not isinstance(rows, str | bytes):
        rows = [as_plain_lists(row) for row in rows]
        rows = [rows] if rows and not any(isinstance(row, Sequence) for row in rows) else rows
        if all(isinstance(row, list | tuple) for row in rows):
            return [list(row) for row in rows]
    raise AdviceError(f"{name} are {quote(values)}; pass token ids, not text, as {PROMPT_FORMS}")


def as_plain_lists(values: Any) -> Any:
    """A tensor or an array as lists."""
    if isinstance(values, Tensor) and (values.layout != torch.strided or values.device.type == "meta"):
        raise AdviceError(f"the prompts are a {values.layout} tensor on {values.device}; pass a dense one with values")
    return values.tolist() if isinstance(values, Tensor | np.ndarray) else values
