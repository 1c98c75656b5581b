"""What tells whether a model's weights are still those from which something was made that outlives a call.

Weights can be written in ways that leave no trace in PyTorch's version counters (`weight.data`, a NumPy view). So a
mark also holds a number of each row and of each column, at fixed random places: whoever writes a row, a column, or all
of a weight is noticed. What changes a few scattered numbers that way may not be; `weights_changed` says so by hand.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from jaxtyping import Int, UInt8
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from multidraft.models.reader import Reader

GLOBAL_HOOKS = _global_forward_hooks, _global_forward_pre_hooks
OWN_ATTRIBUTES = vars(nn.Module()).keys()  # PyTorch's, with parameters, hooks and what is within
CHANGES: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()  # by module, how often it was said to have changed


class WeightMark:
    """A weight's identity and version, and some of its numbers."""

    def __init__(self, weight: Tensor):
        self.weight, self.version, self.sample = ref(weight), version_of(weight), sample_of(weight)

    def is_unwritten(self, weight: Tensor | None) -> bool:
        """Whether this is the weight, and PyTorch knows of no change; fast enough for every pass."""
        return weight is not None and self.weight() is weight and self.version == version_of(weight)

    def agrees(self, weight: Tensor | None) -> bool:
        """Whether this is the weight, as it was."""
        return self.is_unwritten(weight) and weight is not None and torch.equal(self.sample, sample_of(weight))


class ModelMark:
    """The marks of all weights of some models, and how these compute: their modules, settings, and what was added."""

    def __init__(self, models: Iterable[nn.Module]):
        self.models = [ref(model) for model in models]
        self.places, self.marks = list[Any](), list[WeightMark]()
        for model in self.alive():
            self.places.append(structure_of(model))
            self.marks += map(WeightMark, weights_of(model))

    def alive(self) -> list[nn.Module]:
        """The models that are still there."""
        return [model for model in (reference() for reference in self.models) if model is not None]

    def agrees(self) -> bool:
        """Whether the models compute what they did, as far as can be known: hooks and forwards may hold anything."""
        models = self.alive()
        weights = [weight for model in models for weight in weights_of(model)]
        return (
            len(models) == len(self.models)
            and not any(GLOBAL_HOOKS)
            and not any(has_additions(part) for model in models for part in model.modules())
            and self.places == [structure_of(model) for model in models]
            and len(weights) == len(self.marks)
            and all(mark.agrees(weight) for mark, weight in zip(self.marks, weights, strict=True))
        )


class PlaceWatch:
    """A model's parts, of which it tells in a quarter of a millisecond where they are. It keeps the model alive."""

    def __init__(self, model: Any):
        self.model, self.parts = model, [*model.modules()]
        self.attributes = [vars(part) for part in self.parts]
        within = "_modules", "_parameters", "_buffers"
        self.contents = [known[name].values() for known in self.attributes for name in within]
        self.hooks = [known[name] for known in self.attributes for name in ("_forward_pre_hooks", "_forward_hooks")]
        self.weights = [weight for weight in weights_of(model) if has_numbers(weight)]

    def places(self) -> list[Any]:
        """Where parts, weights and hooks are, how each part computes, and what PyTorch does to all of them."""
        precision = torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()
        around = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda"), list(map(len, GLOBAL_HOOKS))
        kinds: list[Any] = [*map(type, self.parts)]
        flags = [(known["training"], "forward" in known, "_compiled_call_impl" in known) for known in self.attributes]
        forwards = {kind: kind.forward for kind in set(kinds)}
        added = [hook for hooks in self.hooks if hooks for hook in hooks.values() if library_of(hook) != "transformers"]
        insides = [*map(id, chain(self.parts, chain.from_iterable(self.contents), added))]
        return [precision, around, kinds, flags, forwards, insides, [weight.data_ptr() for weight in self.weights]]


class PlaceMark:
    """Where a model's weights are, and how it computes: what a recorded step depends on, which reads numbers anew.

    It keeps the weights' memory, so that what was recorded never reads memory that is gone.
    """

    def __init__(self, model: nn.Module):
        self.model, self.memory = ref(model), [weight.detach() for weight in weights_of(model)]
        self.places, self.structure = PlaceWatch(model).places(), structure_of(model)

    def is_unmoved(self, watch: PlaceWatch) -> bool:
        """Whether weights, modules and hooks are where they were; fast enough for every pass."""
        return self.places == watch.places()

    def agrees(self) -> bool:
        """Whether the model computes what it did, from the same places."""
        model = self.model()
        return model is not None and self.is_unmoved(PlaceWatch(model)) and self.structure == structure_of(model)


def modules_of(reader: Reader | None) -> list[nn.Module]:
    """The modules whose weights a reader's results come from, with those of all its drafters."""
    if reader is None:
        return []
    modules = [reader.source] if isinstance(reader.source, nn.Module) else []
    return modules + [module for drafter in reader.drafters for module in modules_of(drafter)]


def weights_changed(model: nn.Module) -> None:
    """Say that a model's weights were written in a way that might go unnoticed: what was made from them is made anew.

    Needed only where a few scattered numbers were written through `weight.data` or a NumPy view. All other changes,
    such as `load_state_dict`, PEFT's merges and `weight.data.copy_`, are noticed at the start of the next call.
    """
    for module in model.modules():
        CHANGES[module] = CHANGES.get(module, 0) + 1


def weights_of(model: nn.Module) -> Iterator[Tensor]:
    """Its parameters and buffers."""
    yield from model.parameters()
    yield from model.buffers()


def structure_of(model: nn.Module) -> list[Any]:
    """What a model's modules are, and their settings."""
    parts = list(model.modules())
    configs = {id(config): config for part in parts if (config := vars(part).get("config")) is not None}
    return [
        [(part.training, id(part), type(part), type(part).forward, CHANGES.get(part, 0)) for part in parts],
        [settings_of(part) for part in parts],
        [settings_of(config) for config in configs.values()],
    ]


def settings_of(thing: Any) -> dict[str, str]:
    """The attributes of a module, or of its config, that are numbers, texts, or lists and dictionaries of these.

    Of a tensor that is no parameter and no buffer, where it is, and how often it was written.
    """
    kinds = int | float | str | list | tuple | dict | Tensor | None
    return {
        name: str(version_of(value)) if isinstance(value, Tensor) else repr(value)
        for name, value in vars(thing).items()
        if isinstance(value, kinds) and name not in OWN_ATTRIBUTES and not name.startswith("_output_capturing")
    }


def has_additions(part: nn.Module) -> bool:
    """Whether somebody has put a hook, a forward or a compiled call into a module."""
    return bool(added_hooks(part)) or "forward" in vars(part) or part._compiled_call_impl is not None


def added_hooks(module: nn.Module) -> list[Any]:
    """The hooks that somebody has put into a module; those of transformers only listen."""
    hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
    return [hook for hook in hooks if library_of(hook) != "transformers"]


def library_of(thing: object) -> str:
    """The library in which a class or function was written: of a function that says it is another, its own."""
    scope = getattr(thing, "__globals__", None)
    return str(scope["__name__"] if scope else getattr(thing, "__module__", "")).partition(".")[0]


def version_of(weight: Tensor) -> tuple[int, int]:
    """Where a weight is, and how often PyTorch has seen it written."""
    if not has_numbers(weight):
        return 0, 0
    return weight.data_ptr(), 0 if weight.is_inference() else weight._version


def has_numbers(weight: Tensor) -> bool:
    """Whether it is a plain tensor that holds its numbers; quantised ones and those kept elsewhere are not."""
    is_plain = type(weight) in (Tensor, nn.Parameter, nn.Buffer) and weight.layout == torch.strided
    return is_plain and weight.device.type != "meta" and not weight.is_quantized


@torch.no_grad()
def sample_of(weight: Tensor) -> UInt8[Tensor, " bytes"]:
    """The bytes of a number of each row and of each column."""
    if not has_numbers(weight) or not weight.numel():
        return torch.empty(0, dtype=torch.uint8)
    width = weight.shape[-1] if weight.dim() > 1 else weight.numel()
    numbers = weight.detach().view(torch.uint8) if weight.itemsize == 1 else weight.detach()
    places = sample_places(weight.numel() // width, width)
    return numbers.take(places.to(weight.device)).view(torch.uint8).cpu()


@lru_cache(64)
def sample_places(height: int, width: int) -> Int[Tensor, " count"]:
    """Places in a matrix, row by row: one at random in each row, then all of one row, which is one in each column."""
    columns = torch.randint(width, (height,), generator=torch.Generator().manual_seed(0))
    return torch.cat([torch.arange(height) * width + columns, height // 2 * width + torch.arange(width)])
