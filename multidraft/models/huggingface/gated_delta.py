"""Trees over gated delta nets (Qwen3-Next, Qwen3.5, OLMo Hybrid) in one pass, without a state for every node.

A head has a state S (key x value). Along a path, with decays exp(g), keys k, values v, strengths b and queries q,

    S_i = exp(g_i) S_parent + k_i u_i',    u_i = b_i (v_i - exp(g_i) S_parent' k_i),    output_i = S_i' q_i.

Let G_i be the sum of g over the pending nodes on the path to i, its own included. Unrolled down to the state S of the
kept tokens, the u of all nodes of a tree solve one triangular system, in which j goes over the ancestors of i:

    u_i + b_i sum_j exp(G_i - G_j) (k_i k_j) u_j = b_i (v_i - exp(G_i) S' k_i)

So no node needs a state of its own. When the walk has chosen, the state at the end of its path is put together:

    S_i = exp(G_i) S + sum_j exp(G_i - G_j) k_j u_j'      (j: the pending nodes on the path, i included)

Pending nodes cost `heads * (key + value)` numbers a layer, beside `heads * key * value` for a row's state. Before the
recurrence stands a short convolution: a node's inputs are the last few on its path.
"""

import copy
from collections.abc import Iterable
from types import FunctionType
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from multidraft.models.huggingface.weight_marks import GLOBAL_HOOKS, has_additions
from multidraft.transfer import upload

try:
    from transformers.cache_utils import LinearAttentionLayer
except ImportError:  # an old version, whose nets are read otherwise

    class LinearAttentionLayer: ...  # type: ignore[no-redef]


FAMILIES = {"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid"}
CALLED_FUNCTIONS = {"causal_conv1d_fn", "torch_chunk_gated_delta_rule", "get_conv_state", "update_conv_state"}
EPSILON = 1e-6  # of the length of keys and queries, in all of these families


class Kept(NamedTuple):
    """What a layer holds of each row's kept tokens: replaced all at once."""

    inputs: Float[Tensor, "rows last channels"]  # the last ones of the convolution
    state: Float[Tensor, "rows heads key value"]


class Pending(NamedTuple):
    """What a layer holds of the pending slots."""

    keys: Float[Tensor, "rows heads slots key"]
    changes: Float[Tensor, "rows heads slots value"]  # the u above
    decays: Float[Tensor, "rows heads slots"]  # g
    sums: Float[Tensor, "rows heads slots"]  # G


class DeltaLayer(LinearAttentionLayer):
    """One net's part of the cache. To transformers it always looks empty, so that a net takes but one way."""

    def __init__(self, nets: "Nets"):
        super().__init__()
        self.nets = nets
        self.kept: Kept | None = None  # None before the first pass: nothing but zeros
        self.inputs: Tensor | None = None  # of the convolution: the last kept ones, and those of all pending slots
        self.pending: Pending | None = None

    def update_conv_state(self, conv_states: Tensor, *args: Any, **others: Any) -> Tensor:
        return conv_states

    def update_recurrent_state(self, *args: Any, **others: Any) -> None:  # type: ignore[override]
        """The rule has kept what there is to keep."""

    def convolve(
        self,
        hidden_states: Float[Tensor, "rows channels new"],
        weight: Float[Tensor, "channels wide"],
        bias: Float[Tensor, " channels"] | None = None,
        activation: str | None = None,
        **others: Any,
    ) -> Float[Tensor, "rows channels new"]:
        """The convolution over the last inputs on the path to each node."""
        new = hidden_states.transpose(1, 2)
        if self.inputs is None:
            empty = new.new_zeros(len(new), weight.shape[1] - 1, new.shape[2])
            self.inputs = empty if self.kept is None else self.kept.inputs
        self.inputs = torch.cat([self.inputs, new], 1)
        rows = torch.arange(len(new), device=new.device)[:, None, None]
        seen = self.inputs[rows, last(self.nets.seen, weight.shape[1] - 1, weight.shape[1])].to(weight.dtype)
        outputs = torch.einsum("rnwc,cw->rcn", seen, weight)
        outputs = outputs if bias is None else outputs + bias[:, None]
        return (outputs if activation is None else ACT2FN[activation](outputs)).to(new.dtype)

    def rule(
        self,
        query: Float[Tensor, "rows new fewer key"],
        key: Float[Tensor, "rows new fewer key"],
        value: Float[Tensor, "rows new heads value"],
        g: Float[Tensor, "rows new heads"],
        beta: Float[Tensor, "rows new heads"],
        use_qk_l2norm_in_kernel: bool = False,
        **others: Any,
    ) -> tuple[Float[Tensor, "rows new heads value"], None]:
        """The outputs of all nodes; what later ones need of them is pending."""
        q, k = (by_head(vectors, value.shape[2]) for vectors in (query, key))
        if use_qk_l2norm_in_kernel:
            q, k = unit(q), unit(k)
        v, b = by_head(value, value.shape[2]), beta.transpose(1, 2).float()[..., None]
        decay = g.transpose(1, 2).double()  # its sums over long prompts are subtracted from each other
        state = k.new_zeros(*k.shape[:2], k.shape[3], v.shape[3]) if self.kept is None else self.kept.state
        old = self.pending or Pending(*(tensor[:, :, :0] for tensor in (k, v, decay, decay)))
        seen, before = self.nets.seen[:, None], old.sums.shape[2]
        decays = torch.cat([old.decays, decay], 2)
        new_sums = (seen.double() @ decays[..., None])[..., 0]
        sums, keys = torch.cat([old.sums, new_sums], 2), torch.cat([old.keys, k], 2)
        weights = (new_sums[..., None] - sums[:, :, None]).masked_fill(~seen, -torch.inf).exp().float()
        whole = new_sums.exp().float()[..., None]
        system = b * weights * (k @ keys.mT)
        known = b * (v - whole * (k @ state)) - system[..., :before] @ old.changes
        solved = torch.linalg.solve_triangular(system[..., before:], known, upper=False, unitriangular=True)
        changes = torch.cat([old.changes, solved], 2)
        outputs = whole * (q @ state) + (weights * (q @ keys.mT)) @ changes
        self.pending = Pending(keys, changes, decays, sums)
        if self.kept is None:
            assert self.inputs is not None
            self.kept = Kept(self.inputs[:, : -decays.shape[2]], state)
        return (outputs * k.shape[3] ** -0.5).transpose(1, 2).to(query.dtype), None

    def commit(self, marked: Bool[Tensor, "rows slots"]) -> None:
        """Go on from the end of each row's path, whose slots are marked."""
        if self.pending is None or self.kept is None or self.inputs is None:
            return
        keys, changes, decays, sums = self.pending
        marks = upload(marked[:, None], decays.device)
        ends = (decays * marks).sum(-1)
        weights = (ends[..., None] - sums).masked_fill(~marks, -torch.inf).exp().float()
        state = ends.exp().float()[..., None, None] * self.kept.state + (keys * weights[..., None]).mT @ changes
        count = self.kept.inputs.shape[1]
        places = last(marks, count, count)[:, 0]
        rows = torch.arange(len(places), device=places.device)[:, None]
        self.kept = Kept(self.inputs[rows, places], state)

    def drop_pending(self) -> None:
        """Nothing is pending."""
        self.inputs = self.pending = None

    def gather(self, rows: list[int]) -> None:
        """Go on with these rows."""
        self.kept = self.kept and Kept(*(tensor[rows] for tensor in self.kept))
        self.pending = self.pending and Pending(*(tensor[rows] for tensor in self.pending))
        self.inputs = None if self.inputs is None else self.inputs[rows]

    def extend(self, other: "DeltaLayer", rows: slice, held: int) -> None:
        """Put rows of another cache below the rows held; either may have read nothing."""
        if like := self.kept or other.kept:
            kept = self.kept or [tensor.new_zeros(held, *tensor.shape[1:]) for tensor in like]
            added = other.kept or [tensor.new_zeros(rows.stop, *tensor.shape[1:]) for tensor in like]
            self.kept = Kept(*(torch.cat([old, new[rows]]) for old, new in zip(kept, added, strict=True)))


class Nets:
    """All gated delta nets of one reader, by the number of the layer, and what they share."""

    # which pending slots are on the path to each new one, its own included
    seen: Bool[Tensor, "rows new slots"]

    def __init__(self, places: Iterable[int]):
        self.layers = {place: DeltaLayer(self) for place in places}

    def commit(self, paths: list[list[int]], width: int) -> None:
        """Go on from the ends of these paths of slots."""
        marked = torch.zeros(len(paths), width, dtype=torch.bool)
        for row, path in enumerate(paths):
            marked[row, path] = True
        for layer in self.layers.values():
            layer.commit(marked)


def last(seen: Bool[Tensor, "rows new slots"], kept: int, count: int) -> Int[Tensor, "rows new count"]:
    """Where the last inputs on each path are, the oldest first, among so many kept ones and then those of the slots.

    >>> last(torch.tensor([[[True, False, True]]]), kept=2, count=3)  # slots 0 and 2 are on the path
    tensor([[[1, 2, 4]]])
    """
    marks = pad(seen, (kept, 0), value=True)
    return (marks * torch.arange(1, marks.shape[2] + 1, device=marks.device)).topk(count).values.flip(-1) - 1


def by_head(numbers: Float[Tensor, "rows new fewer size"], heads: int) -> Float[Tensor, "rows heads new size"]:
    """In float32, each repeated for as many heads as it serves."""
    return numbers.transpose(1, 2).float().repeat_interleave(heads // numbers.shape[2], 1)


def unit(vectors: Float[Tensor, "*lines size"]) -> Float[Tensor, "*lines size"]:
    """Of length one, as these families understand it."""
    return vectors * torch.rsqrt((vectors * vectors).sum(-1, keepdim=True) + EPSILON)


class TreeNet(nn.Module):
    """A gated delta net whose convolution and recurrence are those of its layer in the cache; all else is its own."""

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net: Any = net

    def forward(self, hidden_states: Tensor, cache_params: Any = None, cache: Any = None, **others: Any) -> Tensor:
        memory = cache_params if cache is None else cache  # its name since transformers 5.24
        layer, forward = memory.layers[self.net.layer_idx], forward_of(type(self.net))
        replaced = {"causal_conv1d_fn": layer.convolve, "torch_chunk_gated_delta_rule": layer.rule}
        return FunctionType(forward.__code__, forward.__globals__ | replaced)(self.net, hidden_states, memory, None)


def forward_of(kind: type[nn.Module]) -> Any:
    """A class's forward without what transformers has put around it; what somebody else has stays."""
    function: Any = kind.forward
    while hasattr(function, "__wrapped__") and function.__globals__["__name__"].startswith("transformers."):
        function = function.__wrapped__
    return function


def is_net(module: Any) -> bool:
    """Whether it is a gated delta net that is written as those that we know."""
    names = getattr(getattr(forward_of(type(module)), "__code__", None), "co_names", ())
    return hasattr(module, "layer_idx") and set(names) >= CALLED_FUNCTIONS


def nets_of(model: PreTrainedModel) -> list[int]:
    """The layers with gated delta nets that can be read in one pass; none where some layer cannot."""
    config = model.config.get_text_config(decoder=True)
    if config.model_type not in FAMILIES or any(GLOBAL_HOOKS):  # which know modules by their class, or themselves
        return []
    nets = list(filter(is_net, model.modules()))
    around = [part for part in model.modules() if any(map(is_net, part.modules()))]
    within = [part for net in nets for part in net.modules()]
    if any(map(has_additions, around + within)):  # forwards that bring weights, or hooks
        return []
    numbers = [vars(net)["layer_idx"] for net in nets]
    return numbers if len(numbers) == list(config.layer_types).count("linear_attention") else []


def with_tree_nets(module: nn.Module) -> nn.Module:
    """A model that shares all weights with this one, which stays as it was, and reads trees in its nets."""
    if is_net(module):
        return TreeNet(module)
    children = {name: None if child is None else with_tree_nets(child) for name, child in module._modules.items()}
    if children == module._modules:
        return module
    other = copy.copy(module)
    other._modules = children
    return other
