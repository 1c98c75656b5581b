"""Any decoder-only Hugging Face model, as a target or as a drafter: trees as masks, over gated delta nets too."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from multidraft.errors import AdviceError
from multidraft.models import compat
from multidraft.models.base import LanguageModel, Lists, Scored, check_nothing_pending, check_part, check_same
from multidraft.models.compiled import steps_of
from multidraft.models.gated_delta import nets_of, with_tree_nets
from multidraft.models.kv_cache import TreeCache
from multidraft.models.passes import grouped, packed
from multidraft.models.recurrent import Paths
from multidraft.models.table import PrefixModel

Model = PreTrainedModel | LanguageModel
NOT_TOLD = (
    "a draft head reads hidden states, which a target {} does not tell; use a Hugging Face model with attention or "
    "gated delta nets, for a GGUF file with --engine transformers"
)
SHORT = 4  # tokens of which all are scored where only the last one is asked for, as a compiled step does
BEGIN = 1024  # slots of the buffers that prompts are read into before they move


def reader(model: Model, capacity: int, compiled: bool = False, tells: Sequence[int] = ()) -> LanguageModel:
    """A reader of the model that has read nothing, for sequences of up to `capacity` tokens with their trees.

    A target `tells` the hidden states that its drafter reads; raises AdviceError where it cannot.
    """
    model = model.model if tells and isinstance(model, CausalLM) else model
    if not isinstance(model, PreTrainedModel):
        if tells:
            raise AdviceError(NOT_TOLD.format(f"of {type(model).__name__}"))
        return model.fresh(capacity)
    by_masks = not compat.needs_paths(model)
    if compiled and not by_masks:
        name = model.config.model_type
        warnings.warn(f"decoding goes on without compiled steps: {name} is not read by masks alone", stacklevel=2)
    if by_masks or nets_of(model):
        return CausalLM(model, capacity, compiled and by_masks, tells)
    if tells:
        raise AdviceError(NOT_TOLD.format("that is read as paths"))
    return Paths(model)


class CausalLM:
    """A Hugging Face model that reads trees; it keeps a key-value buffer of its own and leaves `model` as it was.

    `capacity` is the number of slots to begin with: the longest sequence plus one tree. Steps may be `compiled`:
    prompts are read as ever, and then the batch moves to buffers that stay. Logits come in the model's dtype, as
    inference tensors: do not change them in place. After `keep` it has `told` the hidden states that it `tells`
    (`heard_by`) of each row's tokens that were kept; steps are not compiled then.
    """

    def __init__(self, model: PreTrainedModel, capacity: int = 256, compiled: bool = False, tells: Sequence[int] = ()):
        compat.check_supported(model)
        config = compat.text_config(model)
        self.model = model
        self.device, self.dtype = compat.home(model), model.dtype  # for which a model looks through its weights
        self.tokens = compat.vocabulary_of(model)
        self.vocabulary, self.ids = self.tokens.size, self.tokens.ids
        self.context = compat.context(config)
        self.windows = compat.windows(config)
        self.tells, self.width = tuple(tells), config.hidden_size
        self.noted: list[Float[Tensor, "rows new layers width"]] = []  # of pending tokens, pass by pass
        self.told: list[Float[Tensor, "_ layers width"]] = []
        nets = nets_of(model)
        self.reading = with_tree_nets(model) if nets else model
        self.texts: list[list[int]] = []  # what rows have kept, then what is pending: a state cannot be taken back
        self.capacity, self.steps = capacity, steps_of(model) if compiled and not tells else None
        self.cache = TreeCache(config.num_hidden_layers, min(capacity, BEGIN) if self.steps else capacity, nets)
        self.last_logits = {"logits_to_keep": 1} if "logits_to_keep" in compat.called(model) else {}

    def fresh(self, capacity: int) -> "CausalLM":
        return CausalLM(self.model, capacity, self.steps is not None, self.tells)

    @torch.inference_mode()
    def forward(self, tokens: Lists, parents: Lists, scored: Scored = "all") -> Float[Tensor, "rows new columns"]:
        self.cache.begin(len(tokens))
        self.texts = self.texts or [[] for _ in tokens]
        width = max(map(len, tokens), default=0)
        if not width:
            return torch.empty(len(tokens), 0, self.tokens.columns, dtype=self.dtype, device=self.device)
        if scored == "all":
            self.settle()
        positions = self.cache.append(parents, scored == "last")
        for text, new in zip(self.texts, tokens, strict=True):
            text += new
        if self.context is not None:
            positions = positions.clamp(max=self.context - 1)
        inputs = torch.stack([self.filled_up(tokens, width, scored == "last"), positions])
        inputs = inputs.to(self.device, non_blocking=True)
        scores = self.read(inputs[0], inputs[1], scored == "all" or width <= SHORT)
        if self.ids is not None:
            scores = scores[..., : self.tokens.columns]
        return scores if scored == "all" else scores[:, -1:] if scored == "last" else scores[:, :0]

    def filled_up(self, tokens: Lists, width: int, at_end: bool) -> Int[Tensor, "rows new"]:
        """The model's own tokens in rows of this width."""
        known = [self.tokens.own(row) for row in tokens]
        fills = [[0] * (width - len(row)) for row in tokens]
        pairs = zip(fills, known, strict=True) if at_end else zip(known, fills, strict=True)
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
        with packed(self.model), grouped(compat.text_config(self.model)):
            output = self.reading(
                input_ids=tokens,
                position_ids=positions,
                attention_mask=seen if len(seen) > 1 else next(iter(seen.values())),  # one where all layers are alike
                past_key_values=self.cache.cache,
                use_cache=True,
                **({} if everything else self.last_logits),
                **({"output_hidden_states": list(self.tells)} if self.tells else {}),  # others: None, or there too
            )
        if self.tells:
            self.noted.append(torch.stack([output.hidden_states[layer] for layer in self.tells], 2))
        return output.logits

    def settle(self) -> None:
        """Move into buffers that stay, if steps are compiled and there is memory for them."""
        if self.steps is None:
            return
        try:
            self.steps.settle(self.cache, self.capacity)
        except (AdviceError, torch.OutOfMemoryError) as error:
            self.steps = None
            warnings.warn(f"decoding goes on without compiled steps: {str(error).splitlines()[0]}", stacklevel=2)

    @torch.inference_mode()
    def keep(self, chosen: Lists) -> None:
        pending, lengths = self.cache.pending, self.cache.lengths
        self.cache.keep(chosen)
        if self.tells:
            none = torch.empty(len(chosen), 0, len(self.tells), self.width, dtype=self.dtype, device=self.device)
            noted = torch.cat(self.noted, 1) if self.noted else none
            rows = zip(noted, pending, chosen, strict=True)
            self.noted, self.told = [], [row[[own.slots[token] for token in path]] for row, own, path in rows]
        for text, length, path in zip(self.texts, lengths, chosen, strict=True):
            text[length:] = [text[length + node] for node in path]

    @torch.inference_mode()
    def select(self, rows: list[int]) -> None:
        self.cache.select(rows)
        self.noted = [each[rows] for each in self.noted]
        self.texts = [[*self.texts[row]] for row in rows]

    @torch.inference_mode()
    def join(self, other: Any) -> None:
        check_same(self.model, other.model)
        check_nothing_pending(other.cache.width)
        self.cache.add(other.cache, list(range(len(other.cache.lengths))), other.cache.lengths)
        self.texts = self.texts + [[*text] for text in other.texts]

    @torch.inference_mode()
    def part(self, row: int, length: int, capacity: int) -> "CausalLM":
        check_part(row, length, self.cache.lengths[row])
        part = self.fresh(capacity)
        if self.cache.nets.layers and length < self.cache.lengths[row]:  # the state there is gone, so it is read again
            part.forward([self.texts[row][:length]], [list(range(-1, length - 1))], "none")
            part.keep([list(range(length))])
        else:
            part.cache.add(self.cache, [row], [length])
            part.texts = [self.texts[row][:length]]
        return part


@torch.inference_mode()
def prepare(model: PreTrainedModel, rows: int, new: tuple[int, int], lengths: tuple[int, int]) -> None:
    """Compile and record the steps of up to so many rows: between two numbers of tokens, and two of slots."""
    if compat.needs_paths(model):
        return
    reader = CausalLM(model, lengths[1], compiled=True)
    reader.forward([[0]] * rows, [[-1]] * rows, "none")
    reader.keep([[0]] * rows)
    reader.settle()
    if reader.steps is not None:
        reader.steps.prepare(model, reader.cache, reader.windows, new, lengths[0])


def answers_prompts(model: Model) -> bool:
    """Whether reading prompts to their ends saves a pass; one of a model without weights is free: trees come first."""
    return not isinstance(model, PrefixModel)
