"""Any decoder-only Hugging Face model whose cache can be rolled back, as a target or as a drafter."""

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from multidraft.errors import AdviceError
from multidraft.models import LanguageModel, Scored
from multidraft.models.gguf.model import GGUF
from multidraft.models.kv_cache import TreeCache
from multidraft.models.lane_attention import by_lanes, together
from multidraft.models.lanes import Lanes
from multidraft.models.prefix import PrefixModel
from multidraft.models.support import check_supported

Model = PreTrainedModel | LanguageModel
TRIED: WeakKeyDictionary[PreTrainedModel, bool] = WeakKeyDictionary()


def readable(model: "PreTrainedModel | LanguageModel") -> LanguageModel:
    """The model as the decoding loop needs it."""
    return CausalLM(model) if isinstance(model, PreTrainedModel) else model


class CausalLM:
    """A Hugging Face model that reads trees; it keeps a key-value buffer of its own and leaves `model` as it was.

    `capacity` is the number of slots to begin with: the longest sequence plus one tree. Logits come in the model's
    dtype, as inference tensors: do not change them in place.
    """

    def __init__(self, model: PreTrainedModel, capacity: int = 256, may_split: Callable[[], bool] | None = None):
        check_supported(model)
        config = model.config.get_text_config(decoder=True)
        self.model = model
        self.device = home(model)
        self.vocabulary: int = config.vocab_size
        self.context = context(config)
        self.windows = windows(config)
        self.lanes = Lanes(config.num_hidden_layers, capacity, may_split or partial(takes_lanes, model))
        parameters = inspect.signature(model.forward).parameters
        self.without_logits = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}

    def fresh(self, capacity: int) -> "CausalLM":
        return type(self)(self.model, capacity)

    @property
    def cache(self) -> TreeCache:
        """That of the first lane, which is the only one where there is a single row."""
        return self.lanes.caches[0]

    @torch.inference_mode()
    def forward(
        self,
        tokens: Int[Tensor, "batch new"],
        positions: Int[Tensor, "batch new"],
        visible: Bool[Tensor, "batch new pending"],
        logits: Scored = True,
    ) -> Float[Tensor, "batch scored vocabulary"]:
        asked_from = tokens.device  # the other model may be somewhere else, and this one on several devices
        if asked_from != self.device:
            tokens, positions, visible = (tensor.to(self.device) for tensor in (tokens, positions, visible))
        self.lanes.append(positions)
        if not tokens.shape[1]:
            return torch.empty(len(tokens), 0, self.vocabulary, dtype=self.model.dtype, device=asked_from)
        if self.context is not None:
            positions = positions.clamp(max=self.context - 1)
        tokens, positions, visible = (self.lanes.arranged(rows) for rows in (tokens, positions, visible))
        scores = self.read(tokens, positions, visible, {} if logits is True else self.without_logits)
        scores = self.lanes.restored(scores if logits is True else scores[:, -1:]) if logits else scores[:, :0]
        return scores if scores.device == asked_from else scores.to(asked_from)

    def read(
        self,
        tokens: Int[Tensor, "batch new"],
        positions: Int[Tensor, "batch new"],
        visible: Bool[Tensor, "batch new pending"],
        settings: dict[str, int],
    ) -> Float[Tensor, "batch scored vocabulary"]:
        """The model's forward pass over tokens that the cache has made room for."""
        with by_lanes(self.model) if len(self.lanes.caches) > 1 else nullcontext():
            output = self.model(
                input_ids=tokens,
                position_ids=positions,
                attention_mask=self.mask(visible),
                past_key_values=self.lanes.cache,
                use_cache=True,
                **settings,
            )
        return output.logits

    def mask(self, visible: Bool[Tensor, "batch new pending"]) -> Tensor | dict[str, Tensor]:
        """One mask where all layers are alike, which every model takes; else one for each type of layer."""
        parts = zip(self.lanes.caches, visible.split(self.lanes.sizes), strict=True)
        lanes = [self.masks_of(cache, sees) for cache, sees in parts]
        masks = {kind: together([lane[kind] for lane in lanes]) for kind in self.windows}
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def masks_of(self, cache: TreeCache, visible: Bool[Tensor, "rows new pending"]) -> dict[str, Tensor]:
        """The masks of a lane by type of layer."""
        full = cache.mask(visible, self.model.dtype)
        return {kind: cache.windowed(full, window) if window else full for kind, window in self.windows.items()}

    @torch.inference_mode()
    def keep(self, chosen: Int[Tensor, "batch kept"]) -> None:
        self.lanes.keep(chosen)

    @torch.inference_mode()
    def select(self, rows: Int[Tensor, " rows"]) -> None:
        self.lanes.select(rows.to(self.device))

    @torch.inference_mode()
    def join(self, other: "CausalLM") -> None:
        if other.model is not self.model:
            raise AdviceError("rows of two different models cannot share a batch; start both with the same model")
        self.lanes.join(other.lanes)

    @torch.inference_mode()
    def part(self, row: int, length: int, capacity: int) -> "CausalLM":
        part = self.fresh(capacity)
        part.lanes.take(self.lanes, row, length)
        return part


def takes_lanes(model: PreTrainedModel) -> bool:
    """Whether the model reads rows in lanes as it reads them padded; tried on a few tokens when it is first asked."""
    if model not in TRIED:
        try:
            padded, apart = (tried(model, may_split) for may_split in (False, True))
            error, largest = (apart - padded).abs().max(), padded.abs().max()
            TRIED[model] = bool(error <= torch.finfo(padded.dtype).eps ** 0.5 * largest)
        except Exception:  # whatever attention of its own makes of a mask that is none
            TRIED[model] = False
    return TRIED[model]


def is_ragged(model: Model) -> bool:
    """Whether a batch takes memory by the sum of its lengths, and not by rows times the longest."""
    return takes_lanes(model) if isinstance(model, PreTrainedModel) else isinstance(model, PrefixModel | GGUF)


def answers_prompts(model: Model) -> bool:
    """Whether reading prompts to their ends saves a pass; one of a model without weights is free: trees come first."""
    return not isinstance(model, PrefixModel)


def tried(model: PreTrainedModel, may_split: bool) -> Float[Tensor, "2 1 vocabulary"]:
    """The logits of a second token in two rows, of which one came later."""
    first, second = (CausalLM(model, 2, lambda: may_split) for _ in range(2))
    tokens = torch.arange(4, device=first.device).view(2, 2, 1) % first.vocabulary
    seen = torch.ones(2, 1, 1, dtype=torch.bool, device=first.device)
    for row, reader in enumerate((first, second)):
        reader.forward(tokens[0, row : row + 1], tokens[0, :1], seen[:1])
        reader.keep(torch.zeros(1, 1, dtype=torch.int64))
    first.join(second)
    return first.forward(tokens[1], torch.ones_like(tokens[1]), seen)


def place_of(model: Model) -> torch.device:
    """Where tokens go in."""
    return home(model) if isinstance(model, PreTrainedModel) else model.device


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
