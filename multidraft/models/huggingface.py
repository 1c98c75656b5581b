"""Any decoder-only Hugging Face model, as a target or as a drafter: trees as masks, over gated delta nets too."""

import warnings
from collections.abc import Sequence
from typing import Any
from weakref import WeakSet

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from multidraft.errors import AdviceError
from multidraft.models import compat
from multidraft.models.compiled import steps_of
from multidraft.models.gated_delta import nets_of, with_tree_nets
from multidraft.models.kv_cache import TreeCache
from multidraft.models.packing import view_of
from multidraft.models.reader import NO_HIDDEN_STATES, Lists, Reader, Scored
from multidraft.models.recurrent import Paths
from multidraft.models.table import PrefixModel
from multidraft.models.weights import has_additions
from multidraft.transfer import take, upload

Model = PreTrainedModel | Reader
# Of a pass whose tokens are all scored, although only the last one is asked for: a compiled step scores all.
MAX_SCORED_TOKENS = 4
MAX_PROMPT_SLOTS = 1024  # of the buffers that prompts are read into before they move
RECORDING_MODELS: WeakSet[PreTrainedModel] = WeakSet()


def reader(model: Model, capacity: int, compiled: bool = False, hidden_layers: Sequence[int] = ()) -> Reader:
    """A reader of the model that has read nothing, for sequences of up to `capacity` tokens with their trees.

    A target also returns the hidden states of `hidden_layers`; raises AdviceError where it cannot.
    """
    model = model.model if hidden_layers and isinstance(model, CausalLM) else model
    if not isinstance(model, PreTrainedModel):
        return (model.with_hidden_states(hidden_layers) if hidden_layers else model).new(capacity)
    by_masks = not compat.needs_paths(model)
    if compiled and (reason := reason_against_compiling(model, by_masks)):
        warnings.warn(f"decoding goes on without compiled steps: {reason}", stacklevel=2)
        compiled = False
    if by_masks or nets_of(model):
        return CausalLM(model, capacity, compiled, hidden_layers)
    if hidden_layers:
        raise AdviceError(NO_HIDDEN_STATES.format("that is read as paths"))
    return Paths(model)


def reason_against_compiling(model: PreTrainedModel, by_masks: bool) -> str | None:
    """Why its steps cannot be compiled, if they cannot."""
    if not by_masks:
        return f"{model.config.model_type} is not read by masks alone"
    if any(map(has_additions, model.modules())):
        return "the model has hooks or forwards of its own, which compiled code might leave out"
    return None


class CausalLM(Reader):
    """A Hugging Face model that reads trees; it keeps a key-value buffer of its own and leaves `model` as it was.

    `capacity` is the number of slots to begin with: the longest sequence plus one tree. Steps may be `compiled`:
    prompts are read as ever, and then the batch moves to buffers that stay. Logits come in the model's dtype, as
    inference tensors: do not change them in place. After `commit`, `hidden_states` holds those of `hidden_layers`
    for each row's committed tokens; steps are not compiled then.
    """

    def __init__(
        self, model: PreTrainedModel, capacity: int = 256, compiled: bool = False, hidden_layers: Sequence[int] = ()
    ):
        compat.check_supported(model)
        config = compat.text_config(model)
        self.model = self.source = model
        self.device, self.dtype = compat.home(model), model.dtype  # for which a model looks through its weights
        self.tokens = compat.vocabulary_of(model)
        self.vocabulary, self.ids, self.undrafted = self.tokens.size, self.tokens.ids, self.tokens.undrafted
        self.context = compat.context(config)
        self.windows = compat.windows(config)
        self.output_layers, self.width = tuple(hidden_layers), config.hidden_size
        self.pending_states: list[Float[Tensor, "rows new layers width"]] = []  # of pending tokens, pass by pass
        nets = nets_of(model)
        if hidden_layers:
            let_record(model)
        self.reading = with_tree_nets(view_of(model)) if nets else view_of(model)
        self.capacity, self.steps = capacity, steps_of(model) if compiled and not hidden_layers else None
        self.cache = TreeCache(
            config.num_hidden_layers, min(capacity, MAX_PROMPT_SLOTS) if self.steps else capacity, nets
        )
        self.memory_name = compat.memory_name(model)
        self.last_logits = {"logits_to_keep": 1} if "logits_to_keep" in compat.called(model) else {}

    def new(self, capacity: int) -> "CausalLM":
        return CausalLM(self.model, capacity, self.steps is not None, self.output_layers)

    def encode(self, tokens: list[int]) -> list[int]:
        return self.tokens.encode(tokens)

    def _begin(self, rows: int) -> Sequence[Any]:
        self.cache.begin(rows)
        return super()._begin(rows)

    @torch.inference_mode()
    def _read(self, tokens: Lists, parents: Lists, scored: Scored) -> Float[Tensor, "rows new columns"]:
        width = max(map(len, tokens), default=0)
        if not width:
            return torch.empty(len(tokens), 0, self.tokens.columns, dtype=self.dtype, device=self.device)
        if scored == "all":
            self.use_fixed_buffers()
        positions = self.cache.append(parents, scored == "last")
        if self.context is not None:
            positions = positions.clamp(max=self.context - 1)
        inputs = torch.stack([self.filled_up(tokens, width, scored == "last"), positions])
        inputs = upload(inputs, self.device)
        scores = self.read(inputs[0], inputs[1], scored == "all" or width <= MAX_SCORED_TOKENS)
        if self.ids is not None:
            scores = scores[..., : self.tokens.columns]
        return scores if scored == "all" else scores[:, -1:] if scored == "last" else scores[:, :0]

    def filled_up(self, tokens: Lists, width: int, at_end: bool) -> Int[Tensor, "rows new"]:
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
            logits = self.steps.run(self.model, self.cache, tokens, positions, masks)
            if logits is not None:
                return logits
        seen = {kind: None if kind == "linear_attention" else mask for kind, mask in masks.items()}
        output = self.reading(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=seen if len(seen) > 1 else next(iter(seen.values())),  # one where all layers are alike
            use_cache=True,
            **{self.memory_name: self.cache.cache},
            **({} if everything else self.last_logits),
            # Layers that are not listed are None, or there too.
            **({"output_hidden_states": list(self.output_layers)} if self.output_layers else {}),
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
        """Move into buffers that stay, if steps are compiled and there is memory for them."""
        if self.steps is None:
            return
        try:
            self.steps.move_to_pool(self.cache, self.capacity)
        except (AdviceError, torch.OutOfMemoryError) as error:
            self.steps = None
            warnings.warn(f"decoding goes on without compiled steps: {str(error).splitlines()[0]}", stacklevel=2)

    @torch.inference_mode()
    def _commit(self, paths: Lists) -> None:
        pending = self.cache.pending
        self.cache.commit(paths)
        if self.output_layers:
            shape = len(paths), 0, len(self.output_layers), self.width
            empty = torch.empty(shape, dtype=self.dtype, device=self.device)
            states = torch.cat(self.pending_states, 1) if self.pending_states else empty
            slots = [[row.slots[node] for node in path] for row, path in zip(pending, paths, strict=True)]
            self.hidden_states = [take(*row) for row in zip(states, slots, strict=True)]
            self.pending_states = []

    @torch.inference_mode()
    def _gather(self, rows: list[int]) -> None:
        self.cache.gather(rows)
        self.pending_states = [states[rows] for states in self.pending_states]

    @torch.inference_mode()
    def _extend(self, other: "CausalLM") -> None:
        self.cache.extend(other.cache, list(range(len(other.cache.lengths))), other.cache.lengths)

    @torch.inference_mode()
    def _fork(self, fork: "CausalLM", row: int, length: int) -> None:
        if self.cache.nets.layers and length < self.cache.lengths[row]:  # the state there is gone
            fork.read_again()
        else:
            fork.cache.extend(self.cache, [row], [length])


@torch.inference_mode()
def let_record(model: PreTrainedModel) -> None:
    """Let transformers put its recording hooks into a model, as it does when it is first asked for hidden states.

    Views share their model's hooks: a view that asked first would put them in once more.
    """
    if model not in RECORDING_MODELS:
        model(input_ids=torch.zeros(1, 1, dtype=torch.int64, device=compat.home(model)), output_hidden_states=True)
        RECORDING_MODELS.add(model)


@torch.inference_mode()
def prepare(model: PreTrainedModel, rows: int, new: tuple[int, int], lengths: tuple[int, int]) -> None:
    """Compile and record the steps of up to so many rows: between two numbers of tokens, and two of slots."""
    if compat.needs_paths(model):
        return
    reader = CausalLM(model, lengths[1], compiled=True)
    reader.forward([[0]] * rows, [[-1]] * rows, "none")
    reader.commit([[0]] * rows)
    reader.use_fixed_buffers()
    if reader.steps is not None:
        reader.steps.prepare(model, reader.cache, reader.windows, new, lengths[0])


def modules_of(model: Model | None) -> list[nn.Module]:
    """The modules whose weights a model's results come from, with those of all its drafters."""
    source, drafters = getattr(model, "source", model), getattr(model, "drafters", ())
    modules = [source] if isinstance(source, nn.Module) else []
    return modules + [module for drafter in drafters for module in modules_of(drafter)]


def answers_prompts(model: Model) -> bool:
    """Whether reading prompts to their ends saves a pass; one of a model without weights is free: trees come first."""
    return not isinstance(model, PrefixModel)
