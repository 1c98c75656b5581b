"""Views of a user's model: whatever was written or put into it, a pass gives what the model itself gives."""

import gc
import os
import subprocess
import sys
import types
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from functools import wraps
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import ref

import psutil
import pytest
import torch
import transformers
from heads import head_of
from hybrids import hybrid
from tiny import tiny_model
from torch import Tensor, nn
from torch.nn.utils import parametrizations, vector_to_parameters
from transformers import LlamaForCausalLM, PreTrainedModel

import multidraft as md
from multidraft.decoding import prefill
from multidraft.models.huggingface import compat, packed_view, weight_marks
from multidraft.models.huggingface.masks import CausalLM
from multidraft.models.huggingface.packed_view import PackedLinear, view_of
from multidraft.models.user_models import as_reader

SIZES = {"hidden_size": 128, "intermediate_size": 160}  # so that linear layers are worth packing
NORMED = {**SIZES, "head_dim": 32}
FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: tiny_model("llama", **SIZES),
    "qwen3": lambda: tiny_model("qwen3", **NORMED),
    "gemma3": lambda: tiny_model("gemma3", **NORMED),
    "gpt2": lambda: tiny_model("gpt2", n_embd=128),
    "phi": lambda: tiny_model("phi", **SIZES),
}
HYBRID_FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {
    "qwen3_5": lambda: hybrid("qwen3_5", **NORMED),  # its trees are read in one pass
    "lfm2": lambda: hybrid("lfm2", **SIZES),  # as paths
}
if compat.Version(transformers.__version__) >= compat.STATES:
    FAMILIES |= HYBRID_FAMILIES
DTYPES = torch.float32, torch.bfloat16
IDS = [3, 14, 15, 9, 2, 6]
SEEN = 1, 2  # hidden states


def new_model(family: str, dtype: torch.dtype = torch.float32, scale: float = 0.2) -> PreTrainedModel:
    """A model that no other test has read with; smaller weights round less."""
    model = deepcopy(FAMILIES[family]()).to(dtype)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(scale)
    return model


def ours(model: PreTrainedModel, layers: tuple[int, ...] = ()) -> Tensor:
    """Our logits of a chain, read in a new call; with layers also their hidden states, behind them."""
    target = (as_reader(model).with_hidden_states(layers) if layers else as_reader(model)).new(64)
    logits = target.forward([IDS], [list(range(-1, len(IDS) - 1))]).logits[0]
    states = target.commit([list(range(len(IDS)))])
    return torch.cat([logits, states[0].flatten(1)], 1) if layers else logits


@torch.inference_mode()
def theirs(model: PreTrainedModel, layers: tuple[int, ...] = ()) -> Tensor:
    """The model's own."""
    output = model(torch.tensor([IDS]), output_hidden_states=bool(layers), use_cache=False)
    states = [output.hidden_states[layer][0] for layer in layers]
    return torch.cat([output.logits[0], *states], 1)


def error(model: PreTrainedModel, layers: tuple[int, ...] = ()) -> float:
    """The largest difference, over the largest number."""
    expected = theirs(model, layers).float()
    return float((ours(model, layers).float() - expected).abs().max() / expected.abs().max())


def tolerance(model: PreTrainedModel) -> float:
    """Of what is computed in another order."""
    return 0.03 if model.dtype == torch.bfloat16 else 1e-4


# Weights


def write_in_place(model: Any, other: Any) -> None:
    with torch.no_grad():
        for weight, new in zip(model.parameters(), other.parameters(), strict=True):
            weight.copy_(new)


def write_data(model: Any, other: Any) -> None:
    for weight, new in zip(model.parameters(), other.parameters(), strict=True):
        weight.data.copy_(new)


def multiply_data(model: Any, other: Any) -> None:
    for weight in model.parameters():
        weight.data.mul_(-1.5)


def replace_data(model: Any, other: Any) -> None:
    for weight, new in zip(model.parameters(), other.parameters(), strict=True):
        weight.data = new.data.clone()


def write_numpy(model: Any, other: Any) -> None:
    for weight, new in zip(model.parameters(), other.parameters(), strict=True):
        numbers = weight.detach().view(torch.int16 if weight.dtype == torch.bfloat16 else weight.dtype).numpy()
        numbers[...] = new.detach().view(torch.int16 if weight.dtype == torch.bfloat16 else weight.dtype).numpy()


def load(model: Any, other: Any) -> None:
    model.load_state_dict(other.state_dict())


def assign(model: Any, other: Any) -> None:
    model.load_state_dict(other.state_dict(), assign=True)


def from_vector(model: Any, other: Any) -> None:
    vector_to_parameters(torch.cat([weight.detach().flatten() for weight in other.parameters()]), model.parameters())


def replace_parameters(model: Any, other: Any) -> None:
    for module, new in zip(model.modules(), other.modules(), strict=True):
        for name, weight in new._parameters.items():
            if weight is not None:
                setattr(module, name, nn.Parameter(weight.detach().clone()))


def merge_an_adapter(model: Any, other: Any) -> None:
    """As PEFT does: a product of two thin matrices is added through `.data`."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            height, width = module.weight.shape
            module.weight.data += (torch.ones(height, 1) @ torch.linspace(-0.3, 0.3, width)[None]).to(module.weight)


def write_one_row(model: Any, other: Any) -> None:
    """As for a token that was added."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.data[-1] = 1


def write_one_column(model: Any, other: Any) -> None:
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.data[:, -1] = 1


WRITERS = [
    write_in_place, write_data, multiply_data, replace_data, write_numpy, load, assign, from_vector,
    replace_parameters, merge_an_adapter, write_one_row, write_one_column,
]  # fmt: skip


PAIRS = product(enumerate(FAMILIES), enumerate(WRITERS))
FAST = {(family, writer) for (row, family), (column, writer) in PAIRS if (row + column) % 3 == 0}  # four of each family
WRITTEN = [*product(FAMILIES, WRITERS, DTYPES)]


@pytest.mark.parametrize(
    ("family", "writer", "dtype"),
    [case if case[:2] in FAST else pytest.param(*case, marks=pytest.mark.slow) for case in WRITTEN],
)
def test_weights_written_in_any_way_are_seen(family: str, writer: Any, dtype: torch.dtype) -> None:
    model, other = new_model(family, dtype), new_model(family, dtype, scale=-0.1)
    before = ours(model)
    writer(model, other)
    assert error(model) < tolerance(model)
    assert not torch.allclose(ours(model), before, rtol=0.1)  # the test could have failed


def test_a_view_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nothing here would be tested."""
    if not packed_view.can_pack(torch.float32):
        pytest.skip("this processor has no oneDNN")
    for family in FAMILIES:
        packed = [part for part in view_of(new_model(family)).modules() if isinstance(part, PackedLinear)]
        assert bool(packed) == (family != "gpt2"), family  # whose layers are of another class


def test_scattered_numbers_are_seen_when_somebody_says_so() -> None:
    model = new_model("llama")
    before, weight = ours(model), model.model.layers[0].mlp.up_proj.weight
    weight.data.view(-1)[0] += 50
    md.weights_changed(model)
    assert error(model) < tolerance(model)
    assert not torch.allclose(ours(model), before, rtol=0.1)


def write_all_but_the_sample(model: Any, other: Any) -> None:
    """Everywhere but where a mark looks."""
    for weight, new in zip(model.parameters(), other.parameters(), strict=True):
        numbers = weight.data.view(-1)
        width = weight.shape[-1] if weight.dim() > 1 else weight.numel()
        places = weight_marks.sample_places(weight.numel() // width, width)
        kept = numbers[places].clone()
        weight.data.copy_(new.data)
        numbers[places] = kept


def test_it_is_the_sample_by_which_weights_written_through_data_are_seen() -> None:
    """The twin: a weight whose sample is as it was is taken for the old one."""
    model = new_model("llama")
    ours(model)
    write_all_but_the_sample(model, new_model("llama", scale=-0.1))
    assert error(model) > 10 * tolerance(model)


def test_target_draft_and_head_follow_their_weights() -> None:
    """Draft and target are equal models: every draft is accepted, before both are written and after."""
    target, draft, other = (new_model("llama", scale=scale) for scale in (1, 1, -0.5))
    for _ in range(2):
        tokens, info = md.generate(target, draft, [IDS], temperature=0, tree="1x1x1", max_new_tokens=16)
        expected = target.generate(torch.tensor([IDS]), max_new_tokens=16, do_sample=False)[0, len(IDS) :]
        assert tokens[0].tolist() == expected.tolist()
        assert info.block_efficiency == 4
        write_data(target, other)
        write_data(draft, other)


# What is put into modules


def scaled(output: Any) -> Any:
    """Another output than a module gave."""
    if isinstance(output, tuple):
        return (scaled(output[0]), *output[1:])
    return output * 0.7 if isinstance(output, Tensor) and output.is_floating_point() else output


def add_hook(module: Any) -> None:
    module.register_forward_hook(lambda module, inputs, output: scaled(output))


def add_pre_hook(module: Any) -> None:
    def change(module: Any, inputs: Any, keywords: Any) -> Any:
        return tuple(map(scaled, inputs)), {name: scaled(value) for name, value in keywords.items()}

    module.register_forward_pre_hook(change, with_kwargs=True)


def replace_forward(module: Any) -> None:
    plainly = module.forward
    module.forward = lambda *inputs, **keywords: scaled(plainly(*inputs, **keywords))


def bind_forward(module: Any) -> None:
    kind = type(module)

    def forward(self: Any, *inputs: Any, **keywords: Any) -> Any:
        return scaled(kind.forward(self, *inputs, **keywords))

    module.forward = types.MethodType(forward, module)


def change_class(module: Any) -> None:
    kind = type(module)
    forward = lambda self, *inputs, **keywords: scaled(kind.forward(self, *inputs, **keywords))  # noqa: E731
    module.__class__ = type(kind.__name__, (kind,), {"forward": forward})


ADDITIONS = [add_hook, add_pre_hook, replace_forward, bind_forward, change_class]
CASES = [(*case, torch.float32) for case in [("llama", add_hook), ("gemma3", replace_forward)]]
CASES = [case for case in CASES if case[0] in FAMILIES]
SLOW_CASES = [case for case in product(FAMILIES, ADDITIONS, DTYPES) if case not in CASES]


@pytest.mark.parametrize(
    ("family", "addition", "dtype"), [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW_CASES)]
)
def test_what_is_put_into_any_module_runs(family: str, addition: Any, dtype: torch.dtype) -> None:
    model = new_model(family, dtype)
    plain, changed = ours(model), 0
    # The root takes the signature of its forward along; a mask of another kind is no tree's.
    names = [name for name, module in model.named_modules() if name and not isinstance(module, nn.ModuleList)]
    for name in names:
        other = deepcopy(model)
        ours(other)
        module = other.get_submodule(name)
        addition(module)
        assert error(other) < tolerance(model), name
        changed += not torch.allclose(ours(other), plain, rtol=1e-3)
    assert changed > len(names) / 2


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() & {"llama", "gemma3", "qwen3_5", "gpt2"}))
def test_hooks_get_the_users_modules(family: str) -> None:
    """Who asks which module it was finds it; the model is as it was, to the last attribute."""
    model = new_model(family)
    ours(model)
    names = {module: name for name, module in model.named_modules()}
    attributes = {module: set(vars(module)) for module in model.modules()}
    called = list[str]()
    for module in model.modules():
        if not isinstance(module, nn.ModuleList) and module is not model:
            module.register_forward_hook(lambda module, inputs, output: called.append(names[module]))
    theirs(model)
    expected, called[:] = called[:], []
    ours(model)
    assert set(called) == set(expected)
    assert {module: set(vars(module)) for module in model.modules()} == attributes


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() & {"llama", "qwen3_5", "lfm2"}))
def test_a_patched_class_and_global_hooks_are_seen(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = new_model(family)
    plain, linear = ours(model), nn.Linear.forward
    with monkeypatch.context() as patch:
        patch.setattr(nn.Linear, "forward", lambda self, inputs: 0.7 * linear(self, inputs))
        assert error(model) < tolerance(model)
        assert not torch.allclose(ours(model), plain, rtol=1e-3)
    for kind in {type(module) for module in model.model.layers.modules()} - {nn.ModuleList}:
        with monkeypatch.context() as patch:
            plainly = kind.forward
            changed = lambda *inputs, plainly=plainly, **keywords: scaled(plainly(*inputs, **keywords))  # noqa: E731
            patch.setattr(kind, "forward", wraps(plainly)(changed))
            assert error(model) < tolerance(model), kind
        hook = lambda module, inputs, output, kind=kind: scaled(output) if type(module) is kind else None  # noqa: E731
        handle = nn.modules.module.register_module_forward_hook(hook)
        try:
            assert error(model) < tolerance(model), kind
            assert kind is not nn.Linear or not torch.allclose(ours(model), plain, rtol=1e-3)
        finally:
            handle.remove()
    assert torch.equal(ours(model), plain)


@pytest.mark.parametrize("attribute", ["variance_epsilon", "scaling"])
def test_changed_attributes_are_seen(attribute: str) -> None:
    model = new_model("llama")
    plain = ours(model)
    for module in model.modules():
        if hasattr(module, attribute):
            setattr(module, attribute, 0.4)
    assert error(model) < tolerance(model)
    assert not torch.allclose(ours(model), plain, rtol=1e-3)


def test_parametrised_and_replaced_layers_are_seen() -> None:
    model = new_model("llama")
    ours(model)
    parametrizations.weight_norm(model.model.layers[0].mlp.up_proj)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.parametrizations.weight.original0.mul_(3)
    assert error(model) < tolerance(model)
    model.model.layers[1].mlp.gate_proj = nn.Linear(128, 160, bias=False)
    assert error(model) < tolerance(model)


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() & {"llama", "gemma3", "qwen3_5"}))
def test_hidden_states_are_the_models(family: str) -> None:
    """Also where somebody has asked for them before, and with hooks and new weights."""
    for asked_before in (False, True):
        model = new_model(family)
        if asked_before:
            theirs(model, SEEN)
        for _ in range(2):
            assert error(model, SEEN) < tolerance(model)
        add_hook(model.model.layers[1].mlp)
        write_data(model, new_model(family, scale=-0.1))
        assert error(model, SEEN) < tolerance(model)
        assert len(theirs(model, SEEN)) == len(IDS)


@pytest.mark.usefixtures("unchecked")  # what checks hints does not compile
@pytest.mark.parametrize("place", ["", "model", "model.layers.0", "model.layers.1.mlp"])
@pytest.mark.parametrize("way", ["compile", "forward", "wrapper"])
def test_compiled_modules_are_called(way: str, place: str) -> None:
    model = new_model("llama")
    plain, module = ours(model), model.get_submodule(place)
    calls = list[int]()

    def backend(graph: Any, inputs: Any) -> Any:
        return lambda *values: calls.append(1) or graph.forward(*values)

    if way == "compile":
        module.compile(backend=backend)
    elif way == "forward":
        module.forward = torch.compile(module.forward, backend=backend)
    elif place.endswith("mlp"):
        model.set_submodule(place, torch.compile(module, backend=backend))
    torch.testing.assert_close(ours(model), plain, rtol=0, atol=1e-4)
    assert bool(calls) == (way != "wrapper" or place.endswith("mlp"))


class Wrapped:
    """As PEFT wraps a model, whose adapters are in its layers."""

    def __init__(self, model: PreTrainedModel, **config: Any):
        self.model, self.peft_config = model, {"default": types.SimpleNamespace(**config)}

    def get_base_model(self) -> PreTrainedModel:
        return self.model


@pytest.mark.usefixtures("unchecked")
def test_a_wrapped_model_is_taken_with_its_adapters() -> None:
    model = new_model("llama", scale=1)
    replace_forward(model.model.layers[0].mlp.up_proj)  # as an adapter does
    settings: dict[str, Any] = {"temperature": 0, "max_new_tokens": 9, "tree": "2x1"}
    expected = md.generate(model, model, [IDS], **settings)[0][0].tolist()
    wrapped = Wrapped(model, is_prompt_learning=False)
    assert md.generate(wrapped, wrapped, [IDS], **settings)[0][0].tolist() == expected
    with pytest.raises(md.AdviceError, match="the target model has an adapter that puts tokens of its own"):
        md.generate(Wrapped(model, is_prompt_learning=True), None, [IDS])
    with pytest.raises(md.AdviceError, match="an adapter that begins where its invocation tokens stand"):
        md.generate(Wrapped(model, alora_invocation_tokens=[1, 2]), None, [IDS])


@pytest.mark.slow
@pytest.mark.parametrize(
    "limit", ["OMP_THREAD_LIMIT=1", "OMP_THREAD_LIMIT=2", "OMP_DYNAMIC=true", "OMP_MAX_ACTIVE_LEVELS=0"]
)
def test_fewer_threads_than_asked_give_the_same(limit: str) -> None:
    """In float32: with bfloat16 PyTorch's own products are wrong then."""
    program = """
import sys
sys.path[:0] = sys.argv[1:]
import torch
from test_views import FAMILIES, error, new_model, tolerance
torch.set_num_threads(4)
for family in FAMILIES:
    model = new_model(family)
    print(error(model) < tolerance(model))
"""
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "helpers")]
    ran = subprocess.run(
        [sys.executable, "-c", program, *folders],
        env=os.environ | dict([limit.split("=")]),
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == ["True"] * len(FAMILIES)
    assert ran.stderr.count("fewer threads than the 4 that PyTorch asks for") == 1


def steer_last(module: Any, inputs: Any, output: Any) -> Any:
    """What papers on steering do: the last position is written."""
    output[:, -1] += torch.linspace(-3, 3, output.shape[-1])
    return output


def steer_answers(module: Any, inputs: Any, output: Any) -> Any:
    return 0.5 * output if output.shape[1] == 1 else output


@pytest.mark.parametrize("hook", [steer_last, steer_answers])
@pytest.mark.parametrize("drafter", ["model", "head"])
def test_hooks_that_look_at_places_in_a_pass_get_plain_decoding_and_a_line(hook: Any, drafter: str) -> None:
    """A tree has many last positions."""
    model = new_model("llama", scale=1) if drafter == "model" else deepcopy(tiny_model("llama"))
    draft = deepcopy(model) if drafter == "model" else head_of("eagle3")
    model.model.layers[0].mlp.register_forward_hook(hook)
    with pytest.warns(UserWarning, match="treats tokens differently .* goes on without drafts"):
        tokens, info = md.generate(model, draft, [IDS], temperature=0, max_new_tokens=12, tree="1x1")
    expected = model.generate(torch.tensor([IDS]), max_new_tokens=12, do_sample=False)[0, len(IDS) :]
    assert tokens[0].tolist() == expected.tolist()
    assert not info.nodes


@pytest.mark.parametrize("way", ["global hook", "patched class"])
def test_what_looks_at_places_in_a_pass_from_outside_of_the_model_is_seen(way: str, monkeypatch) -> None:
    """Nothing of it is in the model's own modules: drafts were verified, and the text was another, without a word."""
    model = new_model("llama", scale=1)
    kind = type(model.model.layers[0].mlp)
    plainly, handles = kind.forward, list[Any]()
    steer = lambda module, inputs, output: steer_last(module, inputs, output.clone())  # noqa: E731
    if way == "patched class":
        changed = lambda self, inputs: steer(self, inputs, plainly(self, inputs))  # noqa: E731
        monkeypatch.setattr(kind, "forward", wraps(plainly)(changed))
    else:
        hook = lambda module, inputs, output: steer(module, inputs, output) if type(module) is kind else None  # noqa: E731
        handles.append(nn.modules.module.register_module_forward_hook(hook))
    try:
        with pytest.warns(UserWarning, match="treats tokens differently .* goes on without drafts"):
            tokens, info = md.generate(model, deepcopy(model), [IDS], temperature=0, max_new_tokens=12, tree="1x1")
        expected = model.generate(torch.tensor([IDS]), max_new_tokens=12, do_sample=False)[0, len(IDS) :]
    finally:
        for handle in handles:
            handle.remove()
    assert tokens[0].tolist() == expected.tolist()
    assert not info.nodes


@pytest.mark.parametrize(("hook", "prompts"), [(steer_last, [IDS, IDS[1:], [*IDS, 3]]), (steer_answers, [IDS])])
def test_prompts_are_read_whole_where_a_hook_looks_at_places_in_a_pass(hook: Any, prompts, monkeypatch) -> None:
    """And each alone: in pieces, each last position was written, and a piece of one token was taken for an answer."""
    monkeypatch.setattr(prefill, "MAX_CHUNK_TOKENS", len(IDS) - 1)
    model = new_model("llama", scale=1)
    model.model.layers[0].mlp.register_forward_hook(hook)
    _, info = md.generate(model, None, prompts, temperature=0, max_new_tokens=2, logprobs=1)
    for prompt, (first, _) in zip(prompts, info.logprobs, strict=True):
        with torch.no_grad():
            expected = model(torch.tensor([prompt])).logits[0, -1].log_softmax(-1).max().item()
        assert first.logprob == pytest.approx(expected, abs=1e-4)


def test_an_object_s_tensor_counts_as_what_a_model_computes_with() -> None:
    """One that is no parameter: what was recorded read the old one for ever."""
    model = new_model("llama")
    layer = model.model.layers[0]
    layer.direction = torch.ones(3)
    marks = weight_marks.PlaceMark(model), weight_marks.ModelMark([model])
    assert all(mark.agrees() for mark in marks)
    layer.direction = torch.zeros(3)
    assert not any(mark.agrees() for mark in marks)


class LastBoost(nn.Module):
    """A norm of a user's own that writes the last position."""

    def __init__(self, norm: nn.Module):
        super().__init__()
        self.norm = norm

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        states = self.norm(states).clone()
        states[:, -1] *= 1.5
        return states


class Rounded(nn.Module):
    """A product whose input is rounded to steps of the largest number in the pass."""

    def __init__(self, linear: nn.Module):
        super().__init__()
        self.linear = linear

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        step = states.abs().max() / 7
        return self.linear((states / step).round() * step)


class Scaled(Rounded):
    """One that treats all tokens alike."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.linear(1.1 * states)


@pytest.mark.parametrize(("kind", "drafts"), [(LastBoost, False), (Rounded, False), (Scaled, True)])
def test_a_user_s_modules_that_look_across_a_pass_get_plain_decoding(kind: type[nn.Module], drafts: bool) -> None:
    """With greedy drafts of a copy the text was once another than the model's, in silence."""
    model = new_model("llama", scale=1)
    draft, layer = deepcopy(model), model.model.layers[1]
    if kind is LastBoost:
        layer.input_layernorm = LastBoost(layer.input_layernorm)
    else:
        layer.mlp.down_proj = kind(layer.mlp.down_proj)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tokens, info = md.generate(model, draft, [IDS], temperature=0, max_new_tokens=12, tree="1x1")
    assert bool(info.nodes) == drafts
    assert any("goes on without drafts" in str(warning.message) for warning in caught) == (not drafts)
    expected = model.generate(torch.tensor([IDS]), max_new_tokens=12, do_sample=False)[0, len(IDS) :]
    assert tokens[0].tolist() == expected.tolist()


@pytest.mark.parametrize("hands_on", [True, False])
def test_a_subclass_whose_forward_names_nothing_is_read_as_its_parent(hands_on: bool) -> None:
    """As one that logs its calls; one that takes too little is refused as before."""

    class Wrapped(LlamaForCausalLM):
        def forward(self, *inputs: Any, **named: Any) -> Any:
            return super().forward(*inputs, **named)

    class Narrow(LlamaForCausalLM):
        def forward(self, input_ids: torch.Tensor, attention_mask: Any = None) -> Any:
            return super().forward(input_ids, attention_mask)

    model = new_model("llama", scale=1)
    model.__class__ = Wrapped if hands_on else Narrow
    with nullcontext() if hands_on else pytest.raises(md.AdviceError, match="gives nothing to go on from"):
        tokens, info = md.generate(model, model, [IDS], temperature=0, max_new_tokens=9, tree="1x1")
        expected = model.generate(torch.tensor([IDS]), max_new_tokens=9, do_sample=False)[0, len(IDS) :]
        assert tokens[0].tolist() == expected.tolist()
        assert info.nodes


def test_hooks_that_treat_all_tokens_alike_get_drafts() -> None:
    model = new_model("llama", scale=1)
    draft = deepcopy(model)
    add_hook(model.model.layers[0].mlp)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert md.generate(model, draft, [IDS], temperature=0, max_new_tokens=9, tree="1x1")[1].nodes


def test_a_part_in_training_mode_is_refused() -> None:
    model = new_model("llama")
    model.model.layers[0].mlp.train()  # drops nothing
    assert error(model) < tolerance(model)
    model.model.layers[0].mlp.up_proj = nn.Sequential(model.model.layers[0].mlp.up_proj, nn.Dropout(0.3))
    with pytest.raises(md.AdviceError, match=r"or a part of it, is in training mode.*call model.eval\(\)"):
        md.generate(model, None, [IDS])


def test_a_layer_that_came_after_a_head_is_said() -> None:
    """transformers puts hooks that record states into the layers that are there when it is first asked."""
    model = deepcopy(tiny_model("llama"))
    ours(model, SEEN)
    model.model.layers[1] = type(model.model.layers[1])(model.config, 1).eval()
    with pytest.raises(md.AdviceError, match="gives 2 hidden states in place of 3: a layer was put in"):
        ours(model, SEEN)


def test_autocast_and_a_dtype_that_changes() -> None:
    model = new_model("llama")
    ours(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.allclose(ours(model).float(), theirs(model).float(), rtol=0.03, atol=0.03)
    model.to(torch.bfloat16)
    assert error(model) < tolerance(model)


def test_two_threads_hold_two_views() -> None:
    """One reads a model while another generates from it with transformers and gets just its logits."""
    from concurrent.futures import ThreadPoolExecutor

    model = new_model("llama")
    expected_ours, expected_theirs = ours(model), theirs(model)
    with ThreadPoolExecutor(2) as pool:
        results = [pool.submit(ours if turn % 2 else theirs, model) for turn in range(20)]
        for turn, result in enumerate(results):
            assert torch.equal(result.result(), expected_ours if turn % 2 else expected_theirs)


def test_a_model_that_is_gone_takes_its_packed_weights_along() -> None:
    model = new_model("llama")
    ours(model)
    packed = [ref(packed_view.PACKED_WEIGHTS[part]) for part in model.modules() if part in packed_view.PACKED_WEIGHTS]
    del model
    gc.collect()
    assert packed or not packed_view.can_pack(torch.float32)
    assert not any(weight() for weight in packed)


@pytest.mark.skipif(not packed_view.can_pack(torch.float32), reason="this processor has no oneDNN")
def test_long_prompts_are_read_without_what_was_packed() -> None:
    """oneDNN keeps code for every number of tokens that it has seen. What was packed is spoilt here."""
    model, long = new_model("llama"), [[1] * 200]
    before = CausalLM(model, 256).forward(long, [list(range(-1, 199))], "last").logits
    plain = ours(model)
    for layer in filter(packed_view.PACKED_WEIGHTS.get, model.modules()):
        packed_view.PACKED_WEIGHTS[layer].numbers = torch.ops.mkldnn._reorder_linear_weight(-layer.weight.detach())
    assert torch.equal(CausalLM(model, 256).forward(long, [list(range(-1, 199))], "last").logits, before)
    assert not torch.allclose(ours(model), plain)


def test_with_too_little_memory_nothing_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    assert view_of(model := new_model("llama")) is model


def test_a_layer_that_packs_wrongly_is_left_alone() -> None:
    """Its products are looked at: here they are not what the layer gives, for they are no numbers."""
    model = new_model("llama")
    for weight in model.parameters():
        weight.data.fill_(torch.nan)
    assert view_of(model) is model
