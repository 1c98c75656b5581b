"""Any decoder-only Hugging Face model whose cache can be rolled back, as a target or as a drafter."""

import inspect

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from multidraft.errors import AdviceError
from multidraft.models import LanguageModel
from multidraft.models.cache import TreeCache
from multidraft.models.support import check_supported

Model = PreTrainedModel | LanguageModel


def readable(model: "PreTrainedModel | LanguageModel") -> LanguageModel:
    """The model as the decoding loop needs it."""
    return CausalLM(model) if isinstance(model, PreTrainedModel) else model


class CausalLM:
    """A Hugging Face model that reads trees; it keeps a key-value buffer of its own and leaves `model` as it was.

    `capacity` is the number of slots to begin with: the longest sequence plus one tree. Logits come in the model's
    dtype, as inference tensors: do not change them in place.
    """

    def __init__(self, model: PreTrainedModel, capacity: int = 256):
        check_supported(model)
        config = model.config.get_text_config(decoder=True)
        self.model = model
        self.device = home(model)
        self.vocabulary: int = config.vocab_size
        self.context = context(config)
        self.windows = windows(config)
        self.cache = TreeCache(config.num_hidden_layers, capacity)
        parameters = inspect.signature(model.forward).parameters
        self.without_logits = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}

    def fresh(self, capacity: int) -> "CausalLM":
        return type(self)(self.model, capacity)

    @torch.inference_mode()
    def forward(
        self,
        tokens: Int[Tensor, "batch new"],
        positions: Int[Tensor, "batch new"],
        visible: Bool[Tensor, "batch new pending"],
        logits: bool = True,
    ) -> Float[Tensor, "batch scored vocabulary"]:
        asked_from = tokens.device  # the other model may be somewhere else, and this one on several devices
        if asked_from != self.device:
            tokens, positions, visible = (tensor.to(self.device) for tensor in (tokens, positions, visible))
        self.cache.append(positions)
        if not tokens.shape[1]:
            return torch.empty(len(tokens), 0, self.vocabulary, dtype=self.model.dtype, device=asked_from)
        if self.context is not None:
            positions = positions.clamp(max=self.context - 1)
        scores = self.read(tokens, positions, visible, {} if logits else self.without_logits)
        scores = scores if logits else scores[:, :0]
        return scores if scores.device == asked_from else scores.to(asked_from)

    def read(
        self,
        tokens: Int[Tensor, "batch new"],
        positions: Int[Tensor, "batch new"],
        visible: Bool[Tensor, "batch new pending"],
        settings: dict[str, int],
    ) -> Float[Tensor, "batch scored vocabulary"]:
        """The model's forward pass over tokens that the cache has made room for."""
        output = self.model(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=self.mask(visible),
            past_key_values=self.cache.cache,
            use_cache=True,
            **settings,
        )
        return output.logits

    def mask(self, visible: Bool[Tensor, "batch new pending"]) -> Tensor | dict[str, Tensor]:
        """One mask where all layers are alike, which every model takes; else one for each type of layer."""
        full = self.cache.mask(visible, self.model.dtype)
        masks = {kind: self.cache.windowed(full, window) if window else full for kind, window in self.windows.items()}
        return masks if len(masks) > 1 else next(iter(masks.values()))

    @torch.inference_mode()
    def keep(self, chosen: Int[Tensor, "batch kept"]) -> None:
        self.cache.keep(chosen)

    @torch.inference_mode()
    def select(self, rows: Int[Tensor, " rows"]) -> None:
        self.cache.select(rows.to(self.device))

    @torch.inference_mode()
    def join(self, other: "CausalLM") -> None:
        if other.model is not self.model:
            raise AdviceError("rows of two different models cannot share a batch; start both with the same model")
        self.cache.join(other.cache)

    @torch.inference_mode()
    def part(self, row: int, length: int, capacity: int) -> "CausalLM":
        part = self.fresh(capacity)
        part.cache.take(self.cache, row, length)
        return part


def home(model: PreTrainedModel) -> torch.device:
    """Where tokens go in: the device of the first layer, or the one that accelerate runs it on if it is offloaded."""
    if model.device.type != "meta":
        return model.device
    hooks = (getattr(module, "_hf_hook", None) for module in model.modules())
    devices = (getattr(hook, "execution_device", None) for hook in hooks)
    return torch.device(next((device for device in devices if device is not None), "meta"))


def windows(config: PretrainedConfig) -> dict[str, int | None]:
    """The window of each type of layer (None: a token sees all before it); without types, all layers are alike."""
    window = getattr(config, "sliding_window", None)
    layer_types = getattr(config, "layer_types", None)
    if layer_types is None:
        return {"all": window}
    return {kind: window if kind == "sliding_attention" else None for kind in layer_types}


def context(config: PretrainedConfig) -> int | None:
    """The largest number of tokens in a sequence.

    Rotary frequencies of type longrope change for the whole sequence once it outgrows the original context, and keys in
    a cache would no longer match: such a model is used up to there.
    """
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if "longrope" in (rope.get("rope_type"), rope.get("type")):
        return rope.get("original_max_position_embeddings") or config.original_max_position_embeddings
    return getattr(config, "max_position_embeddings", None)
