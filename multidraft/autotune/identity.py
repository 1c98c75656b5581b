"""What is measured: a pair of models with a scheme and a walk, on a machine, and some prompts to begin with."""

import json
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any

import torch
from transformers import PreTrainedModel

from multidraft.decoding.walks import Walker
from multidraft.machine.identity import cpu, versions
from multidraft.models.huggingface import Model, home
from multidraft.verification.scheme import Scheme

PAIR = ("target", "draft", "scheme", "walk")  # of an identity, beside the machine
VOLATILE = ("_name_or_path", "transformers_version", "dtype", "torch_dtype")  # fields of a configuration
LOOKED_AT = 8  # parameters of which a few numbers tell one checkpoint from another


@dataclass(frozen=True)
class Subject:
    """A pair, decoded with a scheme and a walk; prompts only to measure with."""

    target: Model
    draft: Model
    scheme: Scheme
    walk: str | Walker = "deferred"
    prompts: list[list[int]] = field(default_factory=list)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What must be the same for a profile to hold: the pair, and the machine."""
        pair = {"target": model(self.target), "draft": model(self.draft), "scheme": self.scheme.name}
        machine = {"cpu": cpu(), "threads": torch.get_num_threads(), "versions": versions()}
        return pair | {"walk": getattr(self.walk, "__name__", self.walk)} | machine


def model(one: Any) -> dict[str, Any]:
    """A model: its kind, a digest of its configuration and of some weights, its dtype and device."""
    one = getattr(one, "model", one)  # of one that is wrapped to be read
    if not isinstance(one, PreTrainedModel):
        members = [model(member) for member in getattr(one, "drafters", ())]
        own = getattr(one, "identity", None) or {"digest": digest(str([one.vocabulary, getattr(one, "longest", None)]))}
        return (
            {"kind": type(one).__name__, "device": str(one.device)} | own | ({"drafters": members} if members else {})
        )
    fields = {name: value for name, value in one.config.to_dict().items() if name not in VOLATILE}
    text = json.dumps(fields, sort_keys=True, default=str) + "".join(map(str, some_weights(one)))
    device = home(one)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {"kind": type(one).__name__, "digest": digest(text), "dtype": str(one.dtype), "device": name}


def some_weights(one: PreTrainedModel) -> list[list[float]]:
    """A few numbers of a few parameters."""
    parameters = list(one.parameters())
    chosen = parameters[:: max(len(parameters) // LOOKED_AT, 1)]
    return [weight.detach().reshape(-1)[:4].float().tolist() for weight in chosen if weight.device.type != "meta"]


def digest(text: str) -> str:
    """A short one."""
    return sha256(text.encode()).hexdigest()[:16]
