"""The weights of heads: headers are held against what the configuration asks for before any number is read."""

from collections.abc import Iterable, KeysView
from dataclasses import replace
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from multidraft.errors import AdviceError
from multidraft.io.tensors import FLOATS, INTEGERS, Stored, of_tensor, stored_tensors
from multidraft.models.heads.configuration import FOLDER_ADVICE, GET_FILES_AGAIN, MAX_MEDUSA, read_settings
from multidraft.models.heads.networks import MEDUSA, MODULES, AnyHead, Body, Settings
from multidraft.models.heads.target import Target, target_of
from multidraft.models.huggingface.loading import reason
from multidraft.models.user_models import Model

StoredWeights = dict[str, Stored]
WEIGHT_FILES = "*.safetensors", "pytorch_model*.bin", "medusa_lm_head.pt"  # the first pattern that has any
DROPPED_WEIGHTS = ("t2d", "verifier_norm.weight", "verifier_lm_head.weight")  # weights that inference does not need
EMBEDDING, OUTPUT, OFFSETS, TOKENS = "embed_tokens.weight", "lm_head.weight", "d2t", "token_map"


def load_head(folder: Path, model: Model | Target) -> AnyHead:
    """The head of a folder for a target, on its device, in evaluation mode.

    What it has no weights of is the target's: the embedding, and the rows of its head for the tokens that it drafts.
    Raises AdviceError where the files are of no head, not whole, or of a head for another target.
    """
    name, target = f"the head {str(folder)!r}", target_of(model)
    settings, weights = read_settings(folder, target.config), read_weights(folder)
    if settings.kind == MEDUSA:
        settings = replace(settings, heads=max(settings.heads, count_heads(weights)))
    if (ids := drafted_tokens(weights, target.config.vocab_size, name)) is not None:
        settings = replace(settings, drafted=len(ids))
        if settings.is_reduced:
            weights[OFFSETS] = of_tensor(ids - torch.arange(len(ids)))
    head = empty(settings, name)
    all_weights = of_target(target, weights, ids) | weights
    check_weights(head, all_weights, weights.keys(), name)
    fill(head, all_weights, target, name)
    return head.eval()


def count_heads(names: Iterable[str]) -> int:
    """How many Medusa heads there are weights of: the first published ones have five, and their config.json says two.

    >>> count_heads(["0.0.linear.weight", "0.1.weight", "1.1.weight"])
    2
    """
    numbers = [name.split(".")[0] for name in names]
    count = 1 + max((int(number) for number in numbers if number.isdecimal()), default=-1)
    if count > MAX_MEDUSA:
        raise AdviceError(
            f"there are weights of {count} Medusa heads, and {MAX_MEDUSA} are the most; {GET_FILES_AGAIN}"
        )
    return count


def empty(settings: Settings, name: str) -> AnyHead:
    """The module without memory for its weights."""
    try:
        with torch.device("meta"):
            return MODULES[settings.kind](settings)
    except Exception as error:  # whatever a configuration that makes no sense may lead to
        raise AdviceError(f"{name} cannot be made: {reason(error)}; {GET_FILES_AGAIN}") from None


def read_weights(folder: Path) -> StoredWeights:
    """All tensors of a folder by the modules' names, from their headers; raises AdviceError where there are none."""
    paths = next(filter(None, (sorted(folder.glob(pattern)) for pattern in WEIGHT_FILES)), [])
    weights: StoredWeights = {}
    for path in paths:
        weights |= stored_tensors(path, "the weights", GET_FILES_AGAIN)
    if not weights:
        raise AdviceError(f"folder {str(folder)!r} has no weights; {FOLDER_ADVICE}")
    return {
        unnest(name): value for name, value in weights.items() if "rotary" not in name and name not in DROPPED_WEIGHTS
    }


def unnest(name: str) -> str:
    """The module's name of a weight, whichever way it is nested.

    >>> unnest("midlayer.self_attn.q_proj.weight"), unnest("medusa_heads.0.0.linear.weight")
    ('layers.0.self_attn.q_proj.weight', '0.0.linear.weight')
    """
    for prefix in ("model.", "medusa_heads.", "medusa_head."):
        name = name.removeprefix(prefix)
    return name.replace("midlayer.", "layers.0.", 1)


def drafted_tokens(weights: StoredWeights, size: int, name: str) -> Int[Tensor, " drafted"] | None:
    """The target's token of each column, taken out of the weights; None where the files do not say.

    A token that two columns lead to would have a part of its probability forgotten: the output's law would be another.
    Raises AdviceError unless every column leads to a token of its own, and to its own number where all are drafted.
    """
    offsets, tokens = weights.pop(OFFSETS, None), weights.pop(TOKENS, None)
    stored_ids, key = (tokens, TOKENS) if tokens is not None else (offsets, OFFSETS)
    if stored_ids is None:
        return None
    fault = stored_ids.fault(INTEGERS, (None,))
    if fault is None and not 0 < stored_ids.shape[0] <= size:
        fault = f"has {stored_ids.shape[0]} of {size}"
    if fault is None:
        places, ids = torch.arange(stored_ids.shape[0]), stored_ids.read().long()
        ids = ids if key == TOKENS else ids + places
        fault = fault_of_tokens(ids, size)
    if fault:
        raise AdviceError(f"{key} of {name}, which says what tokens it drafts, {fault}; {GET_FILES_AGAIN}")
    return ids


def fault_of_tokens(ids: Int[Tensor, " drafted"], size: int) -> str | None:
    """Why columns cannot stand for these tokens of a target that has so many."""
    if outside := ids[(ids < 0) | (ids >= size)].tolist():
        return f"leads to token {outside[0]} of a target with {size}"
    counts = torch.bincount(ids, minlength=size)
    if counts.max() > 1:
        return f"leads to token {int(counts.argmax())} more than once"
    if len(ids) == size and not ids.equal(torch.arange(size)):
        return "puts the whole vocabulary into another order"
    return None


def of_target(target: Target, weights: StoredWeights, ids: Int[Tensor, " drafted"] | None) -> StoredWeights:
    """The target's own weights in the places where a head may have none, and these lack them."""
    shared = {} if target.embedding is None or EMBEDDING in weights else {EMBEDDING: of_tensor(target.embedding)}
    if target.output is None or OUTPUT in weights:
        return shared
    rows = target.output if ids is None else target.output[ids.to(target.output.device)]
    return shared | {OUTPUT: of_tensor(rows)}


def check_weights(head: AnyHead, all_weights: StoredWeights, own_keys: KeysView[str], name: str) -> None:
    """Raise unless there is a weight of its shape for every place of a module, and a place for all that are its own."""
    places = head.state_dict()
    for key in sorted(places.keys() | own_keys - {EMBEDDING}):
        if key not in places or key not in all_weights:
            what = f"has {key}, for which its config.json has no place" if key in all_weights else f"lacks {key}"
            raise AdviceError(f"{name} {what}; {GET_FILES_AGAIN}")
        dtypes = FLOATS if places[key].is_floating_point() else INTEGERS
        if fault := all_weights[key].fault(dtypes, tuple(places[key].shape)):
            raise AdviceError(f"{key} of {name} {fault}; its files belong to another head or target")


def fill(head: AnyHead, all_weights: StoredWeights, target: Target, name: str) -> None:
    """Put weights into a head without any, one after the other; raises AdviceError where some are no numbers."""
    device, dtypes = target.device, {EMBEDDING: target.dtype}
    fitted = {
        key: fitting(key, all_weights[key], dtypes.get(key, target.head_dtype), device, name)
        for key in head.state_dict()
    }
    head.load_state_dict(fitted, assign=True)
    if isinstance(head, Body):
        head.rotary = LlamaRotaryEmbedding(head.config).to(device)  # type: ignore[arg-type]  # which no file holds


def fitting(key: str, weight: Stored, dtype: torch.dtype, device: torch.device, name: str) -> Tensor:
    """One weight as the target's are; numbers that are finite in another dtype may be infinite in this one."""
    value = weight.read()
    if weight.dtype not in FLOATS:
        return value.to(device)
    value = value.to(device, dtype)
    if value.device.type != "meta" and not torch.stack(torch.aminmax(value)).isfinite().all():
        raise AdviceError(f"{key} of {name} has weights that are no finite numbers in {dtype}; {GET_FILES_AGAIN}")
    return value
