"""Rows in lanes read what they read padded, in every family, and take memory by the sum of their lengths."""

from collections.abc import Iterator

import pytest
import torch
from test_cache import TOLERANCE, Forest, error, forest
from tiny import CONFIGURATIONS, EAGER_ONLY, VOCABULARY, WINDOWED, tiny_model
from torch import Tensor
from transformers import PreTrainedModel

import multidraft as md
from multidraft.decoding.metrics import Info
from multidraft.decoding.prefill import start
from multidraft.decoding.state import Plan
from multidraft.decoding.tree import Tree
from multidraft.models import lanes
from multidraft.models.huggingface import CausalLM, is_ragged, takes_lanes
from multidraft.models.kv_cache import TreeCache
from multidraft.models.lane_attention import by_lanes
from multidraft.models.lanes import Lanes, grouped

CASES = [(name, "eager" if name in EAGER_ONLY else "sdpa") for name in CONFIGURATIONS]
CASES += [("llama", "eager"), ("gpt2", "eager"), ("gemma3", "eager")]
OWN_ATTENTION = ["gptj", "falcon", "falcon many heads", "falcon new"]
EARLY, LATE = (9, 4, 8, 4), (3, 12)


@pytest.fixture
def cheap(monkeypatch) -> None:
    """Lanes cost next to nothing, so that few rows make many."""
    monkeypatch.setitem(lanes.COSTS, "cpu", 1)


class Life:
    """A batch from prompts to the end: chunks, trees in levels, a step given up, rows that come and leave.

    It is the same every time but for who reads.
    """

    def __init__(self, model: PreTrainedModel, may_split: bool):
        self.model, self.may_split = model, may_split
        self.chance = torch.Generator().manual_seed(0)
        self.logits: list[Tensor] = []
        self.most = 0  # lanes

    def begun(self, lengths: tuple[int, ...]) -> CausalLM:
        """Prompts, in two chunks."""
        reader = CausalLM(self.model, 4, lambda: self.may_split)
        tokens = torch.randint(VOCABULARY, (len(lengths), max(lengths)), generator=self.chance)
        for slots in torch.arange(max(lengths)).split(5):
            positions = slots.expand(len(lengths), -1)
            causal = (slots[:, None] >= slots).expand(len(lengths), -1, -1)
            reader.forward(tokens[:, slots], positions, causal, logits=False)
            reader.keep((positions - slots[0]).where(positions < torch.tensor(lengths)[:, None], -1))
        return reader

    def read(self, reader: CausalLM, trees: Forest, nodes: slice) -> None:
        positions = torch.tensor(reader.lanes.lengths)[:, None] + trees.depths
        seen = trees.visible[:, nodes, : nodes.stop]
        self.logits.append(reader.forward(trees.tokens[:, nodes], positions[:, nodes], seen))
        self.most = max(self.most, len(reader.lanes.caches))

    def accept(self, reader: CausalLM, trees: Forest) -> None:
        """Paths of different lengths, also none."""
        ends = torch.randint(-1, trees.tokens.shape[1], (len(trees.tokens),), generator=self.chance).tolist()
        paths = [trees.path(row, end) if end >= 0 else [] for row, end in enumerate(ends)]
        reader.keep(torch.tensor([path + [-1] * (8 - len(path)) for path in paths]))

    def steps(self, reader: CausalLM, count: int) -> None:
        for _ in range(count):
            trees = forest(len(reader.lanes.order), 6, self.chance)
            self.read(reader, trees, slice(0, 2))
            self.read(reader, trees, slice(2, 6))
            self.accept(reader, trees)

    def run(self) -> Tensor:
        reader = self.begun(EARLY)
        self.steps(reader, 2)
        self.read(reader, forest(len(EARLY), 3, self.chance), slice(0, 3))
        reader.keep(torch.full((len(EARLY), 0), -1))  # the step is given up
        reader.join(self.begun(LATE))
        self.steps(reader, 2)
        trees = forest(len(EARLY) + len(LATE), 4, self.chance)
        self.read(reader, trees, slice(0, 2))
        left = torch.tensor([5, 0, 3])
        reader.select(left)  # in the middle of a tree
        trees = Forest(trees.tokens[left], [trees.parents[row] for row in left])
        self.read(reader, trees, slice(2, 4))
        self.accept(reader, trees)
        self.steps(reader, 2)
        return torch.cat([logits.flatten(0, 1) for logits in self.logits])


@pytest.mark.usefixtures("cheap")
@pytest.mark.parametrize(("name", "attention"), CASES)
def test_every_family_reads_in_lanes_what_it_reads_padded(name: str, attention: str):
    model = tiny_model(name, attention)
    life = Life(model, takes_lanes(model))
    assert error(life.run(), Life(model, False).run()) < TOLERANCE
    assert (life.most > 2) == (name not in OWN_ATTENTION)


@pytest.fixture
def window_off_by_one(monkeypatch) -> None:
    """Wrong: a token sees one more than its window."""
    right = TreeCache.windowed
    monkeypatch.setattr(TreeCache, "windowed", lambda self, mask, window: right(self, mask, window + 1))


@pytest.fixture
def rows_not_put_back(monkeypatch) -> None:
    """Wrong: logits come back lane by lane."""
    monkeypatch.setattr(Lanes, "restored", lambda self, rows: rows)


@pytest.fixture
def copies_of_others(monkeypatch) -> None:
    """Wrong: a new lane's rows are taken for each other."""
    right = lanes.copied

    def wrong(old: list, capacity: int, rows: set | None = None) -> tuple:
        cache, held = right(old, capacity, rows)
        return cache, held[::-1]

    monkeypatch.setattr(lanes, "copied", wrong)


@pytest.mark.usefixtures("cheap")
@pytest.mark.parametrize(
    ("wrong", "name"),
    [("window_off_by_one", name) for name in WINDOWED]
    + [(wrong, name) for wrong in ("rows_not_put_back", "copies_of_others") for name in ("llama", "gpt_oss")],
)
def test_the_comparison_catches_a_wrong_twin(wrong: str, name: str, request):
    model = tiny_model(name, "eager" if name in EAGER_ONLY else "sdpa")
    expected = Life(model, False).run()
    assert takes_lanes(model)
    request.getfixturevalue(wrong)
    assert error(Life(model, True).run(), expected) > 100 * TOLERANCE


@pytest.mark.usefixtures("cheap")
def test_a_model_that_is_used_meanwhile_reads_as_ever():
    model, tokens = tiny_model("gemma3"), torch.tensor([[1, 2, 3]])
    expected = model(tokens).logits
    with by_lanes(model):
        assert torch.equal(model(tokens).logits, expected)
    with pytest.raises(ZeroDivisionError), by_lanes(model):
        _ = 1 / 0
    assert model.config._attn_implementation == "sdpa"


def elements(model: CausalLM) -> int:
    """Numbers that there is room for."""
    blocks = [block for cache in model.lanes.caches for block in cache.storage.blocks]
    return sum(tensor.numel() for block in blocks for tensor in block.contents.tensors)


LENGTHS = [40, 4, 4, 20, 4, 4, 4, 4]
NEW = 9  # tokens
PER_SLOT = 2 * 2 * 2 * 8  # keys and values, layers, heads and dimension of the tiny Llama


def begun(lengths: list[int]) -> CausalLM:
    """What `generate` would begin with."""
    plan = Plan(md.scheme("iid:lorenz"), Tree.paths([]), measure=False)
    generators = [torch.Generator() for _ in lengths]
    state = start([[1] * n for n in lengths], tiny_model("llama"), None, plan, max(lengths) + NEW, generators, Info())
    assert isinstance(state.target, CausalLM)
    return state.target


@pytest.mark.parametrize(("cost", "slots"), [(1, sum(LENGTHS)), (10_000, len(LENGTHS) * max(LENGTHS))])
def test_memory_goes_with_the_sum_of_lengths_unless_lanes_are_dear(cost: int, slots: int, monkeypatch):
    monkeypatch.setitem(lanes.COSTS, "cpu", cost)
    tree = 2 * 1 + 2  # what rows may need beyond their tokens
    assert elements(begun(LENGTHS)) == PER_SLOT * (slots + len(LENGTHS) * (NEW + tree))


@pytest.mark.usefixtures("cheap")
def test_rows_that_come_and_leave_move_no_others():
    model = begun(LENGTHS)
    before = {length: cache.layers[0].buffers[0].data_ptr() for cache in model.lanes.caches for length in cache.lengths}
    model.join(begun([30]))
    model.select(torch.tensor([1, 2, 4, 5, 6, 7, 8, 0]))  # one is gone
    model.keep(torch.full((8, 0), -1))
    after = {length: cache.layers[0].buffers[0].data_ptr() for cache in model.lanes.caches for length in cache.lengths}
    assert model.lanes.lengths == [3, 3, 3, 3, 3, 3, 29, 39]
    assert {length: after[length] for length in (3, 39)} == {length: before[length] for length in (3, 39)}


def all_groupings(rows: list[int]) -> Iterator[list[list[int]]]:
    """Every way to part rows."""
    if not rows:
        yield []
        return
    for rest in all_groupings(rows[1:]):
        yield [[rows[0]], *rest]
        for place in range(len(rest)):
            yield [*rest[:place], [rows[0], *rest[place]], *rest[place + 1 :]]


@pytest.mark.parametrize("cost", [0, 1, 3, 8, 100])
def test_the_lanes_are_the_cheapest_of_all(cost: int):
    lengths = [5, 1, 9, 5, 2, 14, 6]

    def price(groups: list[list[int]]) -> int:
        return sum(cost + len(rows) * max(lengths[row] for row in rows) for rows in groups)

    assert price(grouped(lengths, cost)) == min(map(price, all_groupings(list(range(7)))))


def test_who_is_ragged():
    assert is_ragged(tiny_model("llama"))
    assert not is_ragged(tiny_model("gptj", "eager"))
