"""Compiled steps say what the model says, whatever comes and goes, and generation goes on where nothing compiles."""

import gc
import shutil
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from functools import partial
from weakref import ref

import pytest
import torch
from decoded import start
from reading import PROMPTS, TOLERANCE, Session, begin_session, worst_error_of_life
from tiny import CASES, VOCABULARY, tiny_model
from torch import Tensor
from torch._dynamo.utils import counters
from transformers import PreTrainedModel

import multidraft as md
from multidraft.autotune.plans import Profile, without_speed
from multidraft.autotune.timed_steps import note
from multidraft.decoding.policy import StaticTree
from multidraft.decoding.state import DecodeConfig
from multidraft.decoding.step import step
from multidraft.decoding.tree import Tree
from multidraft.models.huggingface import fixed_steps, masks
from multidraft.models.huggingface.fixed_steps import BufferPool, CapturedStep
from multidraft.models.huggingface.kv_cache import TreeCache
from multidraft.models.huggingface.masks import CausalLM
from multidraft.models.prefix_models import TableModel, random_table
from multidraft.models.user_models import as_reader
from multidraft.sampling.settings import Sampling

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")


@pytest.fixture(autouse=True)
def anew(monkeypatch) -> None:
    """Nothing has been compiled yet, and buckets are small, so that batches outgrow them."""
    fixed_steps.STEPS.clear()
    monkeypatch.setattr(fixed_steps, "MIN_SLOTS", 16)


@pytest.fixture
def as_written() -> Iterator[None]:
    """Steps run in fixed buffers as they do when they are compiled, and are not compiled."""
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.fixture
def traced() -> Iterator[None]:
    """What is compiled runs operation by operation: traces are as ever, and no time goes into code."""
    with torch.compiler.set_stance("default", force_backend="eager"):
        yield


def session(model: PreTrainedModel, prompts: tuple[int, ...] = PROMPTS, capacity: int = 8) -> Session:
    return begin_session(model, CausalLM(model, capacity, compiled=True), prompts)


def pools(model: PreTrainedModel) -> list[BufferPool]:
    return fixed_steps.steps_of(model).pools


QUICK = [("llama", "sdpa"), ("gemma3", "sdpa"), ("gpt2", "eager"), ("gpt_oss", "eager")]
FAMILIES = [pytest.param(*case, marks=[] if case in QUICK else pytest.mark.slow) for case in CASES]


@pytest.mark.usefixtures("as_written")
@pytest.mark.parametrize(("name", "attention"), FAMILIES)
def test_every_family_reads_in_fixed_buffers_what_it_reads_without(name: str, attention: str):
    model = tiny_model(name, attention)
    assert worst_error_of_life(partial(session, model)) < TOLERANCE
    sizes = {size for pool in pools(model) for size in pool.captured_steps}
    assert {rows for rows, _, _ in sizes} >= {1, 4}
    assert {slots for *_, slots in sizes} >= {16, 32}


class PaddingIsSeen(CapturedStep):
    """Wrong: real tokens see the slots of padded ones."""

    def fill(self, *inputs) -> None:
        super().fill(*inputs)
        for mask in self.masks.values():
            mask[..., int(self.slots[-1])] = 0


class WrittenOneTooFar(CapturedStep):
    """Wrong: keys and values go to the slots after their own."""

    def fill(self, tokens: Tensor, positions: Tensor, masks: dict, first: int) -> None:
        super().fill(tokens, positions, masks, first + 1)


class OldMasksShineThrough(CapturedStep):
    """Wrong: what a former step has seen is still seen."""

    def fill(self, *inputs) -> None:
        before = [mask.clone() for mask in self.masks.values()]
        super().fill(*inputs)
        for mask, old in zip(self.masks.values(), before, strict=True):
            torch.maximum(mask, old, out=mask)


class OtherSteps(BufferPool):
    """Memory whose steps are of another kind."""

    kind: type[CapturedStep]

    def captured_step(self, size: tuple, cache: TreeCache, kinds: Iterable[str], *others) -> CapturedStep:
        captured_step = super().captured_step(size, cache, kinds, *others)
        if not isinstance(captured_step, self.kind):
            self.captured_steps[size] = self.kind(size, kinds, others[0], captured_step.memory)
        return self.captured_steps[size]


class CapturedStepsOutliveTheirMemory(BufferPool):
    """Wrong: steps go on writing where the memory was before it grew."""

    def reserve(self, rows: int, capacity: int) -> None:
        captured_steps = dict(self.captured_steps)
        super().reserve(rows, capacity)
        self.captured_steps.update(captured_steps)


class RowsStay(BufferPool):
    """Wrong: when rows leave, the first ones are those that go on."""

    def gather(self, rows: list[int], end: int) -> None:
        super().gather(list(range(len(rows))), end)


WRONG = [PaddingIsSeen, WrittenOneTooFar, OldMasksShineThrough, CapturedStepsOutliveTheirMemory, RowsStay]


@pytest.mark.usefixtures("as_written")
@pytest.mark.parametrize("wrong", [None, *WRONG])
def test_the_comparison_catches_a_wrong_twin(wrong: type | None):
    """A batch goes into memory that is free; what is right passes in the same way."""
    model = tiny_model("gemma3")
    if wrong is None or issubclass(wrong, CapturedStep):
        wrong_pool = type("Wrong", (OtherSteps,), {"kind": wrong or CapturedStep})
    else:
        wrong_pool = wrong
    pools(model).extend(wrong_pool(len(model.model.layers), *size) for size in ((4, 16), (1, 64)))
    error = worst_error_of_life(partial(session, model))
    assert error < TOLERANCE if wrong is None else error > 100 * TOLERANCE, error


@pytest.mark.usefixtures("as_written")
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_what_is_padded_does_not_survive(name: str):
    """Whatever padded tokens leave behind is overwritten or hidden: no number in there makes a difference."""
    run = session(tiny_model(name, "eager" if name == "gemma2" else "sdpa"))
    for _ in range(3):
        assert run.step(5) < TOLERANCE
        spoil(run.model)


@torch.inference_mode()
def spoil(model: CausalLM) -> None:
    """Write large numbers wherever no row has a kept token."""
    for block in model.cache.storage.blocks:
        for tensor in block.contents.tensors:
            for row, length in enumerate(model.cache.lengths):
                tensor[:, row, :, length:] = 100.0
            tensor[:, len(model.cache.lengths) :] = 100.0


@pytest.mark.usefixtures("as_written")
def test_a_room_grows_with_its_batch_and_forgets_what_was_recorded():
    run, capacities = session(tiny_model("llama"), capacity=1), []
    for nodes in (3, 9, 12, 9):
        assert run.step(nodes) < TOLERANCE
        pool = run.model.cache.storage
        capacities.append(pool.capacity)
        assert {buffer.shape[2] for captured in pool.captured_steps.values() for buffer in captured.memory} == {
            pool.capacity
        }
    assert capacities == sorted(capacities)
    assert capacities[0] < capacities[-1]
    assert capacities[-1] < 64


def test_prompts_take_no_room_that_their_batch_has_in_its_own():
    reader = CausalLM(tiny_model("llama"), 5000, fixed_shapes=True)
    reader.begin(2)
    reader.reserve(2, 5000)
    assert reader.cache.storage.capacity == masks.MAX_PROMPT_SLOTS < 5000


@pytest.mark.usefixtures("as_written")
def test_rows_that_leave_take_nothing_of_the_room_with_them():
    run = session(tiny_model("llama"))
    assert run.step(3) < TOLERANCE
    pool = run.model.cache.storage
    before = pool.rows, pool.capacity, list(pool.captured_steps)
    for rows in ([2, 0], [1], [0]):
        run.gather(rows)
        assert (pool.rows, pool.capacity, list(pool.captured_steps)) == before


@pytest.mark.usefixtures("as_written")
def test_a_room_is_lent_to_one_batch_at_a_time():
    model = tiny_model("llama")
    first, second = session(model), session(model)
    assert max(first.step(3), second.step(3)) < TOLERANCE
    pool, other_pool = pools(model)
    assert (first.model.cache.storage, second.model.cache.storage) == (pool, other_pool)
    del first
    assert (pool.is_free, other_pool.is_free) == (True, False)
    with torch.inference_mode():
        pool.blocks[0].contents.tensors[0].fill_(torch.nan)  # which would spread, did it stay
    third = session(model)
    assert third.step(3) < TOLERANCE
    assert third.model.cache.storage is pool
    assert pools(model) == [pool, other_pool]


def tokens(compile: bool, prompts: list[list[int]], family: str = "llama", **settings: object) -> list[list[int]]:
    """A run with a tiny pair."""
    models = tiny_model(family), tiny_model(family, num_hidden_layers=1)
    keywords = dict(tree="2x1", generator=torch.Generator().manual_seed(3), max_new_tokens=12) | settings
    return [row.tolist() for row in md.generate(*models, prompts, compile=compile, **keywords)[0]]


PROMPT, SEVERAL = [[1, 2, 3]], [[1, 2, 3], [4, 5], [6], [7, 8, 9, 10, 11]]


@pytest.mark.usefixtures("as_written")
@pytest.mark.parametrize(("prompts", "temperature"), [(PROMPT, 1.0), (SEVERAL, 0)])
def test_generation_is_the_same_in_fixed_buffers(prompts: list[list[int]], temperature: float):
    expected = tokens(False, prompts, temperature=temperature)
    assert not fixed_steps.STEPS
    assert tokens(True, prompts, temperature=temperature) == expected
    used_pools = [steps.pools for kinds in fixed_steps.STEPS.values() for steps in kinds.values()]
    assert [len(of_model) for of_model in used_pools] == [1, 1]  # one run after another, and warming
    assert all(pool.captured_steps for [pool] in used_pools)


def test_generation_goes_on_where_compiling_fails():
    def broken(*inputs, **options):
        raise RuntimeError("no compiler here\nand much more")

    for model in tiny_model("llama"), tiny_model("llama", num_hidden_layers=1):
        fixed_steps.steps_of(model).step = broken
    expected = tokens(False, SEVERAL)
    with pytest.warns(UserWarning, match="does not compile, so it runs without: no compiler here$") as caught:
        assert tokens(True, SEVERAL) == expected
    assert len(caught) == 2  # a line for each model
    assert tokens(True, SEVERAL) == expected  # and none the next time


@pytest.mark.usefixtures("as_written")
def test_reading_goes_on_where_memory_lacks():
    run = session(tiny_model("llama"), capacity=2**40)
    with pytest.warns(UserWarning, match=r"without fixed shapes: .* need .* GiB, and .* are free; decode fewer"):
        assert run.step(3) < TOLERANCE
    assert run.step(3) < TOLERANCE


def fixed(model: PreTrainedModel, layers: tuple[int, ...] = ()) -> CausalLM:
    """As a model is read on a GPU: in fixed shapes, and not compiled."""
    return CausalLM(model, 8, hidden_layers=layers, fixed_shapes=True)


@pytest.mark.parametrize("name", ["llama", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_steps_as_they_are_on_a_gpu_read_what_the_model_reads(name: str):
    model = tiny_model(name)
    assert worst_error_of_life(lambda prompts: begin_session(model, fixed(model), prompts)) < TOLERANCE
    [kind] = fixed_steps.STEPS[model]
    assert kind == (False, ())
    assert CausalLM(model).steps is None  # a CPU gains nothing by them


def test_the_first_pass_of_drafting_is_recorded_too():
    """It asks for the last scores alone, as a prompt's pass does, which is read as ever."""
    model, sizes = tiny_model("llama"), []
    reader, expected = fixed(model), CausalLM(model, 8)
    for new in ([5, 9, 2, 6, 5, 3], [3, 1, 4]):
        logits = []
        for each in (reader, expected):
            logits.append(each.forward([new], [list(range(-1, len(new) - 1))], "last").logits)
            each.commit([list(range(len(new)))])
        assert torch.allclose(*logits, atol=1e-5)
        sizes.append([size[:2] for pool in reader.steps.pools for size in pool.captured_steps])
    assert sizes == [[], [(1, 4)]]


def test_fixed_shapes_tell_hidden_states():
    model, layers, rows = tiny_model("llama"), (0, 2), [[3, 1, 4], [5]]
    parents = [[-1, 0, 0], [-1]]
    states = []
    for reader in (fixed(model, layers), CausalLM(model, 8, hidden_layers=layers)):
        reader.forward([[7, 8], [9]], [[-1, 0], [-1]], "none")
        reader.commit([[0, 1], [0]])
        reader.forward(rows, parents)
        states.append(reader.commit([[0, 2], [0]]))
        assert (reader.steps is None) == (reader.fixed_shapes is None)
    for ours, expected in zip(*states, strict=True):
        assert torch.allclose(ours, expected, atol=1e-5)


def test_a_plan_is_of_steps_that_run_alike():
    """Compiled steps have other prices; what is accepted is the same."""
    model = tiny_model("llama")
    fingerprints = [as_reader(model).fingerprint, fixed(model).fingerprint, as_reader(model, compiled=True).fingerprint]
    assert [fingerprint.get("steps") for fingerprint in fingerprints] == [None, "recorded", "compiled"]
    assert [without_speed(fingerprint) == without_speed(fingerprints[0]) for fingerprint in fingerprints] == [True] * 3


def replace_parameter(model: PreTrainedModel) -> None:
    model.model.norm.weight = torch.nn.Parameter(model.model.norm.weight.detach().clone())


def replace_data(model: PreTrainedModel) -> None:
    model.model.norm.weight.data = model.model.norm.weight.data.clone()


def swap_layers(model: PreTrainedModel) -> None:
    model.model.layers[0], model.model.layers[1] = model.model.layers[1], model.model.layers[0]


def add_hook(model: PreTrainedModel) -> None:
    model.model.layers[1].mlp.register_forward_hook(lambda module, inputs, output: 2 * output)


def add_forward(model: PreTrainedModel) -> None:
    model.lm_head.forward = lambda states: model.lm_head.__class__.forward(model.lm_head, 2 * states)


def train(model: PreTrainedModel) -> None:
    model.train()


@pytest.mark.parametrize("change", [replace_parameter, replace_data, swap_layers, add_hook, add_forward, train])
def test_what_was_recorded_is_not_replayed_once_the_model_has_moved(change: Callable[[PreTrainedModel], None]):
    model = deepcopy(tiny_model("llama"))
    steps = fixed_steps.steps_of(model, compiles=False)
    with torch.no_grad():
        model.model.norm.weight.mul_(2)
    assert steps.mark.agrees()  # numbers are read anew
    assert fixed_steps.steps_of(model, compiles=False) is steps
    reader = fixed(model)
    reader.forward([[3, 1]], [[-1, 0]], "none")
    reader.commit([[0, 1]])
    assert reader.forward([[4]], [[-1]]).logits is not None
    assert steps.works
    reader.commit([[]])
    change(model)
    reader.forward([[4]], [[-1]])
    assert not steps.works  # it was read as it is now
    assert fixed_steps.steps_of(model, compiles=False) is not steps


def test_steps_that_record_a_size_are_not_timed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fixed_steps, "MIN_SLOTS", 32)
    shapes = [
        Tree.parse(shape) for shape in ("1", "1", "1x1x1", "1", "1x1x1")
    ]  # of the drafts of one step after another
    reader, draft, profile = fixed(tiny_model("llama")), as_reader(tiny_model("llama")), Profile({})
    policies, first, timed = [StaticTree(shape) for shape in shapes], list[bool](), list[bool]()
    with torch.inference_mode():
        way = DecodeConfig(md.scheme("anchored:lorenz"), measure=0), policies[0]
        state = start([[1, 2, 3]], reader, draft, way, [Sampling()], 64)
        for policy in policies:
            state, record = step(state, way[0], policy)
            first.append(record.is_first_of_size)
            timed.append(note(profile, record, "pass", 1e9) > 0)
    assert first == [True, False, True, False, False]
    assert timed == [not is_first for is_first in first]


def test_what_pytorch_does_to_all_models_is_seen_too():
    steps = fixed_steps.steps_of(tiny_model("llama"), compiles=False)
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert not steps.mark.agrees()
    handle.remove()
    assert steps.mark.agrees()


@pytest.mark.usefixtures("as_written")
def test_what_was_compiled_is_forgotten_when_weights_change():
    model = tiny_model("gpt2", n_layer=1)
    before = fixed_steps.steps_of(model)
    assert fixed_steps.steps_of(model) is before
    with torch.no_grad():
        next(model.parameters()).mul_(1)
    assert fixed_steps.steps_of(model) is not before


@pytest.mark.usefixtures("as_written")
def test_what_was_compiled_is_forgotten_when_weights_are_written_through_data():
    model = deepcopy(tiny_model("gpt2", n_layer=1))
    before = fixed_steps.steps_of(model)
    next(model.parameters()).data.mul_(2)
    assert fixed_steps.steps_of(model) is not before


def test_a_model_with_hooks_is_read_without_compiled_steps():
    """Compiled code might leave out a hook, or do once what it does at every step."""
    model = deepcopy(tiny_model("llama"))
    model.model.layers[0].mlp.register_forward_hook(lambda module, inputs, output: 0.5 * output)
    with pytest.warns(UserWarning, match="without compiled steps: the model has hooks"):
        hooked = as_reader(model, compiled=True).forward([[3, 1, 4]], [[-1, 0, 1]]).logits
    assert torch.equal(hooked, as_reader(model).forward([[3, 1, 4]], [[-1, 0, 1]]).logits)


def test_only_models_compile():
    table = TableModel(random_table(VOCABULARY, 1, 0), VOCABULARY)
    with pytest.raises(md.AdviceError, match="compiles Hugging Face models, and there is none"):
        md.generate(table, table, [[1]], compile=True)


def compilations(prompts: list[list[int]], lengths: tuple[int, ...]) -> int:
    """Trees of many sizes, read and generated with, are the model's own; how often something was compiled for them."""
    model, table = tiny_model("llama", num_hidden_layers=1), TableModel(random_table(VOCABULARY, 1, 0), VOCABULARY)
    settings = dict(tree="2x1", temperature=0, max_new_tokens=20, measure=False)
    counters.clear()
    for batch in (prompts, [prompt * 10 for prompt in prompts]):
        got, _ = md.generate(model, table, batch, compile=True, **settings)
        expected, _ = md.generate(model, table, batch, **settings)
        assert [row.tolist() for row in got] == [row.tolist() for row in expected]
    run = session(model, lengths, capacity=1)
    assert max(run.step(nodes) for nodes in (2, 3, 9, 17)) < TOLERANCE
    return counters["stats"]["unique_graphs"]


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize(
    ("prompts", "lengths", "count"),
    [([[1, 2, 3]], (6,), 1), pytest.param([[1, 2, 3], [4], [5, 6]], PROMPTS, 2, marks=pytest.mark.slow)],
)
def test_one_compilation_serves_a_row_and_another_one_several(prompts: list, lengths: tuple[int, ...], count: int):
    assert compilations(prompts, lengths) == count


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
def test_without_marks_sizes_are_compiled_again(monkeypatch):
    """The wrong twin of the one above: that it counts at all."""
    monkeypatch.setattr(torch._dynamo, "maybe_mark_dynamic", lambda *_: None)
    assert compilations([[1, 2, 3]], (6,)) > 1


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(("name", "attention"), [QUICK[0], ("gpt2", "sdpa"), *QUICK[1:]])
def test_compiled_families_read_what_they_read_without(name: str, attention: str):
    model = tiny_model(name, attention)
    counters.clear()
    assert worst_error_of_life(partial(session, model)) < TOLERANCE
    assert fixed_steps.steps_of(model).works
    assert counters["stats"]["unique_graphs"] <= 4  # one row and several, in a step of one token and of several


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("prompts", [PROMPT, SEVERAL], ids=len)
def test_compiled_generation_is_greedy_alike_and_compiles_at_most_four_times_a_model(prompts: list[list[int]]):
    counters.clear()
    for tree in ("2x1", "1x1x1", "4"):
        settings = dict(tree=tree, temperature=0, max_new_tokens=30)
        assert tokens(True, prompts, **settings) == tokens(False, prompts, **settings)
    assert all(steps.works for kinds in fixed_steps.STEPS.values() for steps in kinds.values())
    assert counters["stats"]["unique_graphs"] <= 2 * 4


@needs_compiler
@pytest.mark.slow
def test_what_is_compiled_does_not_keep_a_model_alive():
    model = deepcopy(tiny_model("gpt2", n_layer=1))
    md.generate(model, None, [[1, 2]], max_new_tokens=3, compile=True)
    assert len(fixed_steps.STEPS) == 1
    gone = ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert not fixed_steps.STEPS
