"""What makes passes over few tokens fast on CPUs: modules are computed our way, with weights that are packed once."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from weakref import WeakKeyDictionary

import torch
from torch import nn

from multidraft.machine import available
from multidraft.models.decoder_layers import DecoderLayer
from multidraft.models.products import can_pack
from multidraft.models.replacements import MIN_PACKED_NUMBERS, Layer, Norm, Replacement, is_plain

Kinds = tuple[type[Replacement], ...]
TARGET_KINDS: Kinds = DecoderLayer, Layer, Norm  # what is within one that came before is left
Places = list[tuple[dict[str, nn.Module | None], str]]
REPLACEMENTS_BY_MODULE: WeakKeyDictionary[nn.Module, list[Replacement]] = WeakKeyDictionary()


def places_in(module: nn.Module) -> Places:
    """Where all modules within one are: what their parent holds by name, and the name."""
    return [(parent._modules, name) for parent in module.modules() for name in parent._modules]


def made(kind: type[Replacement], places: Places) -> Iterator[Replacement]:
    """Replacements of one kind for all modules that it fits, each once, and that it gives the results of."""
    for module, place in {place[0][place[1]]: place for place in places}.items():
        if kind.fits(module):
            with suppress(AssertionError, RuntimeError):
                yield kind(module, *place)


def replacements_of(module: nn.Module, kinds: Kinds) -> list[Replacement]:
    """All that can take places in a module; packed weights only if half of the memory that is left holds them."""
    places, free = places_in(module), available(torch.device("cpu"))
    weights = {part.weight for siblings, name in places if is_plain(part := siblings[name], MIN_PACKED_NUMBERS)}
    copied = sum(weight.nbytes for weight in weights if can_pack(weight.dtype))
    if free is not None and copied > free / 2:
        kinds = tuple(kind for kind in kinds if not kind.copies)
    replacements = list[Replacement]()
    for kind in kinds:
        new = list(made(kind, places))
        inside = {part for replacement in new for part in replacement.module.modules()}
        places = [place for place in places if place[0][place[1]] not in inside]
        replacements += new
    return replacements


@contextmanager
def packed(module: nn.Module, kinds: Kinds = TARGET_KINDS) -> Iterator[None]:
    """Let parts of a module be computed our way for a while, made anew where a weight has changed.

    A module's are always of the same kinds.
    """
    layers = [] if torch.is_autocast_enabled("cpu") else REPLACEMENTS_BY_MODULE.get(module)
    if layers is None or not all(layer.is_fresh() for layer in layers):
        layers = REPLACEMENTS_BY_MODULE[module] = replacements_of(module, kinds)
    for layer in layers:
        layer.module.__dict__.setdefault("forward", layer.forward)  # what else has taken a layer over since stays
    try:
        yield
    finally:
        for layer in layers:
            if layer.module.__dict__.get("forward") == layer.forward:
                del layer.module.__dict__["forward"]
