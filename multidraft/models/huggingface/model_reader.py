"""What readers of Hugging Face models have in common."""

import json
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel

from multidraft.models.huggingface import compat
from multidraft.models.huggingface.packed_view import view_of
from multidraft.models.reader import Reader, digest
from multidraft.models.vocabularies import Vocabulary

VOLATILE_FIELDS = ("_name_or_path", "transformers_version", "dtype", "torch_dtype")  # of a configuration
SAMPLED_PARAMETERS = 8  # parameters whose first numbers tell one checkpoint from another


class HuggingFaceReader(Reader):
    """A Hugging Face model, which it leaves as it was: as it is when the reader begins, and until then as it is now.

    A fork goes on with the model as it is here.
    """

    def __init__(self, model: PreTrainedModel):
        self.model = self.source = model
        self.device, self.dtype = compat.home(model), model.dtype  # for which a model looks through its weights
        self.context = compat.context(compat.text_config(model))
        self.memory_name = compat.memory_name(model)
        self.settled_tokens: Vocabulary | None = None

    @cached_property
    def view(self) -> nn.Module:
        """The model's view, made when it is first read through."""
        compat.check_supported(self.model)
        return self.new_view()

    def new_view(self) -> nn.Module:
        """A view of the model as it is now."""
        return view_of(self.model)

    def share_view(self, fork: "HuggingFaceReader") -> None:
        """Let a fork read through the same view: to look through all weights takes as long as to read some tokens."""
        if "view" in vars(self):
            fork.view = self.view

    @property
    def tokens(self) -> Vocabulary:
        """Its tokens; it may be resized until it is read."""
        if self.rows and self.settled_tokens is None:
            self.settled_tokens = compat.vocabulary_of(self.model)
        return self.settled_tokens or compat.vocabulary_of(self.model)

    @property
    def vocabulary(self) -> int:  # type: ignore[override]
        """The number of tokens that ids go up to."""
        return self.tokens.size

    @property
    def ids(self) -> Int[Tensor, " columns"] | None:  # type: ignore[override]
        """The target's token of each column."""
        return self.tokens.ids

    @property
    def undrafted_columns(self) -> Int[Tensor, " tokens"] | None:  # type: ignore[override]
        """Columns that are never drafted."""
        return self.tokens.undrafted_columns

    @property
    def generation_config(self) -> GenerationConfig | None:  # type: ignore[override]
        """The model's own."""
        return getattr(self.model, "generation_config", None)

    @property
    def fingerprint(self) -> dict[str, Any]:
        """The model's kind, digest of its configuration and of some weights, dtype and device."""
        fields = {name: value for name, value in self.model.config.to_dict().items() if name not in VOLATILE_FIELDS}
        parameters = list(self.model.parameters())
        sampled = parameters[:: max(len(parameters) // SAMPLED_PARAMETERS, 1)]
        weights = [str(p.detach().reshape(-1)[:4].float().tolist()) for p in sampled if p.device.type != "meta"]
        text, device = json.dumps(fields, sort_keys=True, default=str) + "".join(weights), self.device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        kind, dtype = type(self.model).__name__, str(self.model.dtype)
        return {"kind": kind, "digest": digest(text), "dtype": dtype, "device": name}

    def encode(self, tokens: list[int]) -> list[int]:
        return self.tokens.encode(tokens)
