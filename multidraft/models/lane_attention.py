"""A model's own attention function, called once for each lane of a batch while all other layers see the whole batch.

transformers looks the function up by a name in the configuration. For one pass it finds ours there, which takes apart
what the caches and masks of the lanes have put together.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel

from multidraft.models.versions import ATTENTION

SUFFIX = "_by_lanes"  # for the length of a pass; another thread may see it
OWN = AttentionInterface()
CONFIGURATIONS: WeakKeyDictionary[PreTrainedModel, list[PretrainedConfig]] = WeakKeyDictionary()
SWITCHING = RLock()  # a model may be shared by threads


def in_parts(whole: Tensor, parts: Sequence[Tensor]) -> Tensor:
    """The tensor, with those of the lanes beside it."""
    noted: Any = whole
    noted.lanes = parts
    return whole


def together(masks: list[Float[Tensor, "_ 1 new _"]]) -> Float[Tensor, "batch 1 new widest"]:
    """What stands for the lanes' masks; whoever would use it as a mask gets no numbers."""
    if len(masks) == 1:
        return masks[0]
    rows, widest = sum(map(len, masks)), max(mask.shape[3] for mask in masks)
    nothing = masks[0].new_full((1, 1, 1, 1), torch.nan)
    return in_parts(nothing.expand(rows, 1, masks[0].shape[2], widest), masks)


def attend(
    own: str, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **settings: Any
) -> tuple[Tensor, Tensor | None]:
    """Attention as the model has it, lane by lane; as ever where there are no lanes."""
    function = OWN.get(own) or vars(sys.modules[type(module).__module__])[f"{own}_attention_forward"]
    if not hasattr(key, "lanes"):
        return function(module, query, key, value, attention_mask, **settings)
    keys, values, masks = (parted.lanes for parted in (key, value, attention_mask))
    lanes = zip(query.split([len(each) for each in keys]), keys, values, masks, strict=True)
    return torch.cat([function(module, *lane, **settings)[0] for lane in lanes]), None


for name in ("sdpa", "eager"):
    AttentionInterface.register(name + SUFFIX, partial(attend, name))


@contextmanager
def by_lanes(model: PreTrainedModel) -> Iterator[None]:
    """In here the model's attention understands lanes; then its configuration is as it was."""
    with SWITCHING:
        fields = [vars(config) for config in configurations(model)]
        before = [(config, config[ATTENTION].removesuffix(SUFFIX)) for config in fields]
        try:
            for config, name in before:
                config[ATTENTION] = name + SUFFIX
            yield
        finally:
            for config, name in before:
                config[ATTENTION] = name


def configurations(model: PreTrainedModel) -> list[PretrainedConfig]:
    """Those in which the model's layers look their attention up; layers may be another model's."""
    if model not in CONFIGURATIONS:
        found = (getattr(module, "config", None) for module in model.modules())
        CONFIGURATIONS[model] = list({id(each): each for each in found if isinstance(each, PretrainedConfig)}.values())
    return CONFIGURATIONS[model]
