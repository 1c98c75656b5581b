"""Any decoder-only Hugging Face model, as a target or as a drafter: trees as masks, over gated delta nets too."""

import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import Any
from weakref import WeakSet

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from multidraft.errors import AdviceError
from multidraft.models.huggingface import compat
from multidraft.models.huggingface.fixed_steps import FixedSteps, can_compile, steps_of, why_not_fixed
from multidraft.models.huggingface.gated_delta import nets_of, with_tree_nets
from multidraft.models.huggingface.kv_cache import TreeCache
from multidraft.models.huggingface.model_reader import HuggingFaceReader
from multidraft.models.huggingface.packed_view import view_of
from multidraft.models.huggingface.weight_marks import PlaceWatch
from multidraft.models.reader import HiddenStates, Lists, Scored
from multidraft.transfer import take, upload

# Of a step's pass that asks for the last scores alone, as a draft model's first one does: all are scored all the same.
MAX_SCORED_TOKENS = 4
PROMPT_MULTIPLE = 64  # of tokens in a prompt's pass on a GPU, so that there are few shapes
MAX_PROMPT_SLOTS = 1024  # of the buffers that prompts are read into before they move
RECORDING_MODELS: WeakSet[PreTrainedModel] = WeakSet()


class CausalLM(HuggingFaceReader):
    """A Hugging Face model that reads trees; it keeps a key-value buffer of its own and leaves `model` as it was.

    `capacity` is the number of slots to begin with: the longest sequence plus one tree. Steps may have `fixed_shapes`,
    as they have on a GPU unless somebody says otherwise, and may be `compiled`: prompts are read as ever, and then the
    batch moves to buffers that stay. Logits come in the model's dtype, as inference tensors: do not change them in
    place. Where commits return the states of `hidden_layers`, steps are not compiled.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        capacity: int = 256,
        compiled: bool = False,
        hidden_layers: Sequence[int] = (),
        fixed_shapes: bool | None = None,
    ):
        super().__init__(model)
        config = compat.text_config(model)
        self.windows, self.width, self.nets = compat.windows(config), config.hidden_size, nets_of(model)
        self.output_layers = tuple(hidden_layers)
        self.pending_states: list[Float[Tensor, "rows new layers width"]] = []  # of pending tokens, pass by pass
        self.capacity, self.compiled = capacity, compiled and not hidden_layers and can_compile(model)
        self.fixed_shapes = fixed_shapes
        asks = self.device.type == "cuda" if fixed_shapes is None else fixed_shapes
        self.is_recorded = asks and not why_not_fixed(model)
        self.is_fixed = self.compiled or self.is_recorded
        prompt_capacity = min(capacity, MAX_PROMPT_SLOTS) if self.is_fixed else capacity
        self.cache = TreeCache(config.num_hidden_layers, prompt_capacity, self.nets)
        self.last_logits = {"logits_to_keep": 1} if "logits_to_keep" in compat.forward_arguments(model) else {}

    def new(self, capacity: int) -> "CausalLM":
        return CausalLM(self.model, capacity, self.compiled, self.output_layers, self.fixed_shapes)

    def with_hidden_states(self, layers: Sequence[int]) -> "CausalLM":
        return CausalLM(self.model, self.capacity, self.compiled, layers, self.fixed_shapes)

    @property
    def fingerprint(self) -> dict[str, Any]:
        steps = {"steps": "compiled" if self.compiled else "recorded"} if self.is_fixed else {}
        return super().fingerprint | steps

    def new_view(self) -> nn.Module:
        if self.output_layers:
            let_record(self.model)
        return with_tree_nets(view_of(self.model)) if self.nets else view_of(self.model)

    @cached_property
    def steps(self) -> FixedSteps | None:
        """Its steps in fixed shapes, made when they are first asked for."""
        if self.is_fixed and self.output_layers:
            let_record(self.model)
        return steps_of(self.model, self.compiled, self.output_layers) if self.is_fixed else None

    @property
    def recorded_sizes(self) -> int:  # type: ignore[override]
        """Those of all readers of the model; none before steps were made, which a model that rests may never need."""
        steps = vars(self).get("steps")
        return steps.recorded_sizes if steps else 0

    @cached_property
    def watch(self) -> PlaceWatch:
        """What tells during a call whether the model is where its steps were made."""
        return PlaceWatch(self.model)

    def _begin(self, rows: int) -> Sequence[Any]:
        self.cache.begin(rows)
        return super()._begin(rows)

    @torch.inference_mode()
    def _read(self, tokens: Lists, parents: Lists, scored: Scored) -> Float[Tensor, "rows new columns"]:
        width = max(map(len, tokens), default=0)
        if not width:
            return torch.empty(len(tokens), 0, self.tokens.columns, dtype=self.dtype, device=self.device)
        is_of_step = scored == "all" or width <= MAX_SCORED_TOKENS
        if scored == "all" or (is_of_step and self.is_recorded):
            self.use_fixed_buffers()
        elif self.is_recorded:
            width = -(-width // PROMPT_MULTIPLE) * PROMPT_MULTIPLE
        positions = self.cache.append(parents, scored == "last", width)
        if self.context is not None:
            positions = positions.clamp(max=self.context - 1)
        inputs = torch.stack([self.pad_tokens(tokens, width, scored == "last"), positions])
        inputs = upload(inputs, self.device)
        scores = self.read(inputs[0], inputs[1], is_of_step)
        if self.ids is not None:
            scores = scores[..., : self.tokens.columns]
        return scores if scored == "all" else scores[:, -1:] if scored == "last" else scores[:, :0]

    def pad_tokens(self, tokens: Lists, width: int, at_end: bool) -> Int[Tensor, "rows new"]:
        """The tokens in rows of this width."""
        fills = [[0] * (width - len(row)) for row in tokens]
        pairs = zip(fills, tokens, strict=True) if at_end else zip(tokens, fills, strict=True)
        return torch.tensor([first + second for first, second in pairs])

    def read(
        self, tokens: Int[Tensor, "rows new"], positions: Int[Tensor, "rows new"], everything: bool
    ) -> Float[Tensor, "rows scored vocabulary"]:
        """The model's forward pass over tokens that the cache has made room for; hidden states are noted."""
        masks = self.cache.masks(self.windows, self.dtype, self.device)
        if self.steps is not None and everything:
            results = self.steps.run(self.watch, self.cache, tokens, positions, masks)
            if results is not None:
                self.pending_states += results[1:]
                return results[0]
        seen = {kind: None if kind == "linear_attention" else mask for kind, mask in masks.items()}
        output = self.view(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=seen if len(seen) > 1 else next(iter(seen.values())),  # one where all layers are alike
            use_cache=True,
            **{self.memory_name: self.cache.cache},
            **({} if everything else self.last_logits),
            **({"output_hidden_states": compat.recorded_layers(self.output_layers)} if self.output_layers else {}),
        )
        if self.output_layers:
            self.check_states(len(output.hidden_states))
            self.pending_states.append(torch.stack([output.hidden_states[layer] for layer in self.output_layers], 2))
        return output.logits

    def check_states(self, count: int) -> None:
        """Raise where a layer has no hook of transformers' that records its states."""
        expected = compat.text_config(self.model).num_hidden_layers + 1
        if count != expected:
            raise AdviceError(
                f"the model gives {count} hidden states in place of {expected}: a layer was put in after they were "
                "first asked for, and transformers records what was there; load the model anew with that layer"
            )

    def use_fixed_buffers(self) -> None:
        """Move into buffers that stay, if steps have fixed shapes and there is memory for them."""
        if self.steps is None:
            return
        try:
            self.steps.move_to_pool(self.cache, self.capacity)
        except (AdviceError, torch.OutOfMemoryError) as error:
            self.steps = None
            warnings.warn(f"decoding goes on without fixed shapes: {str(error).splitlines()[0]}", stacklevel=2)

    @torch.inference_mode()
    def prepare(self, rows: int, new: tuple[int, int], lengths: tuple[int, int]) -> None:
        if not self.compiled:
            return
        reader = self.new(lengths[1])
        reader.forward([[0]] * rows, [[-1]] * rows, "none")
        reader.commit([[0]] * rows)
        reader.use_fixed_buffers()
        if reader.steps is not None:
            reader.steps.prepare(self.model, reader.cache, self.windows, new, lengths[0])

    @torch.inference_mode()
    def _commit(self, paths: Lists) -> HiddenStates | None:
        all_slots = self.cache.slots
        self.cache.commit(paths)
        if not self.output_layers:
            return None
        shape = len(paths), 0, len(self.output_layers), self.width
        pending = self.pending_states or [torch.empty(shape, dtype=self.dtype, device=self.device)]
        states, self.pending_states = pending[0] if len(pending) == 1 else torch.cat(pending, 1), []
        slots = [[row[node] for node in path] for row, path in zip(all_slots, paths, strict=True)]
        in_order = all(row == [*range(len(row))] for row in slots)  # as where nothing was drafted
        width, pairs = states.shape[1], zip(states, slots, strict=True)
        return [
            lines if len(row) == width else lines[: len(row)] if in_order else take(lines, row) for lines, row in pairs
        ]

    @torch.inference_mode()
    def reserve(self, rows: int, capacity: int) -> None:
        self.cache.storage.reserve(rows, min(capacity, MAX_PROMPT_SLOTS) if self.is_fixed else capacity)

    @torch.inference_mode()
    def _gather(self, rows: list[int]) -> None:
        self.cache.gather(rows)
        self.pending_states = [states[rows] for states in self.pending_states]

    @torch.inference_mode()
    def _extend(self, other: "CausalLM") -> None:
        self.cache.extend(other.cache, 0, other.cache.lengths)

    @torch.inference_mode()
    def _fork(self, fork: "CausalLM", row: int, length: int) -> None:
        self.share_view(fork)
        if self.cache.nets.layers and length < self.cache.lengths[row]:  # the state there is gone
            fork.read_again()
        else:
            fork.cache.extend(self.cache, row, [length])


@torch.inference_mode()
def let_record(model: PreTrainedModel) -> None:
    """Let transformers put its recording hooks into a model, as it does when it is first asked for hidden states.

    Views share their model's hooks: a view that asked first would put them in once more.
    """
    if model not in RECORDING_MODELS:
        model(input_ids=torch.zeros(1, 1, dtype=torch.int64, device=compat.home(model)), output_hidden_states=True)
        RECORDING_MODELS.add(model)
