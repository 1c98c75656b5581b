"""A head of a folder, beside the target that it was trained for; and a head written as `speculators` writes it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from multidraft.errors import AdviceError
from multidraft.models.heads import formats
from multidraft.models.heads.dflash import DFlash
from multidraft.models.heads.eagle3 import Eagle3
from multidraft.models.heads.formats import DFLASH, EAGLE3, MEDUSA, Settings, Weights
from multidraft.models.heads.medusa import Medusa
from multidraft.models.huggingface import home

Head = Eagle3 | DFlash | Medusa
MODULES: dict[str, Any] = {EAGLE3: Eagle3, DFLASH: DFlash, MEDUSA: Medusa}
FROM_TARGET = ("embed_tokens.weight", "lm_head.weight")


def load_head(folder: Path, target: PreTrainedModel) -> Head:
    """The head of a folder in the target's dtype, in evaluation mode.

    What it has no weights of is the target's: the embedding, and the rows of its head for the tokens that it drafts.
    Raises AdviceError where the files are of no head, not whole, or of a head for another target.
    """
    config = target.config.get_text_config(decoder=True)
    settings, weights = formats.read_settings(folder, config), formats.read_weights(folder)
    if settings.kind == MEDUSA:
        weights = formats.medusa_names(weights)
    settings = formats.with_target(settings, config, weights)
    with torch.device("meta"):
        head = MODULES[settings.kind](settings)
    fill(head, weights, target, str(folder))
    return head.eval()


def fill(head: Head, weights: Weights, target: PreTrainedModel, name: str) -> None:
    """Put weights into a head without any, and the target's where there are none; raises AdviceError on misfits."""
    wanted = head.state_dict()
    shared = borrowed(head, weights, target)
    found = {name: value for name, value in (shared | weights).items() if name not in formats.DROPPED}
    found = {name: value for name, value in found.items() if name in wanted or not name.endswith("embed_tokens.weight")}
    for key in sorted(wanted.keys() | found.keys()):
        ours, theirs = wanted.get(key), found.get(key)
        if ours is None or theirs is None:
            what = f"lacks {key}" if theirs is None else f"has {key}, for which its config.json has no place"
            raise AdviceError(f"the head {name!r} {what}; get its files again")
        if ours.shape != theirs.shape:
            raise AdviceError(
                f"{key} of the head {name!r} is {tuple(theirs.shape)} and should be {tuple(ours.shape)}; its files "
                "belong to another head or target"
            )
    dtype, device = target.dtype, home(target)
    fitted = {key: value.to(device, dtype if value.is_floating_point() else None) for key, value in found.items()}
    head.load_state_dict(fitted, assign=True)
    head.settle(device)


def borrowed(head: Head, weights: Weights, target: PreTrainedModel) -> Weights:
    """The target's own weights in the places where a head may have none."""
    shared: dict[str, Tensor] = {}
    embedding: Any = target.get_input_embeddings()
    output: Any = target.get_output_embeddings()
    for name in head.state_dict().keys() - weights.keys():
        if name.endswith("embed_tokens.weight"):
            shared[name] = embedding.weight
        elif name.endswith("lm_head.weight") and "d2t" in weights:
            shared[name] = output.weight[torch.arange(len(weights["d2t"])) + weights["d2t"]]
        elif name.endswith("lm_head.weight"):
            shared[name] = output.weight
    return shared


def save_head(
    head: Head, folder: Path, target: str, architectures: Sequence[str] = (), tokens: int = 3, whole: bool = True,
    dtype: torch.dtype | None = None,
) -> None:  # fmt: skip
    """Write a head as `speculators` does (Medusa: as it was first published), so that other engines read it.

    `target` is the name that engines find it by, `tokens` what they draft by default. The embedding is left out, as it
    is the target's; so are its rows of the output where it is not to be `whole`: then only this library reads it.
    """
    settings: Settings = head.settings
    ids = head.ids
    weights = {name: value for name, value in head.state_dict().items() if "embed_tokens" not in name}
    weights = {name: value for name, value in weights.items() if whole or name != "lm_head.weight"}
    weights = {name: value.to(dtype) if value.is_floating_point() else value for name, value in weights.items()}
    if settings.kind == MEDUSA:
        weights |= {} if ids is None else {"token_map": ids}
        weights.pop("d2t", None)
        return formats.write(folder, formats.medusa_configuration(settings, target), weights)
    if ids is not None:
        weights["t2d"] = torch.zeros(settings.layer.vocab_size, dtype=torch.bool).index_fill_(0, ids.cpu(), True)
    formats.write(folder, formats.configuration(settings, target, architectures, tokens), weights)


def parameters(head: nn.Module) -> int:
    """How many numbers a head has besides its target's embedding."""
    return sum(value.numel() for name, value in head.named_parameters() if "embed_tokens" not in name)
