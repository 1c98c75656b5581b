"""Attention over lists of slots: what a softmax in float64 gives, and the same bits wherever a token stands."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tiny import tiny_model
from torch import Tensor

from multidraft.models import attention
from multidraft.models.attention import SlotLists
from multidraft.models.huggingface import CausalLM

if attention.team() is None:
    pytest.skip("PyTorch has other threads here", allow_module_level=True)

ERRORS = {torch.float32: 1e-5, torch.bfloat16: 0.02}  # of numbers of about one
SHAPES = [(1, 1, 1, 1, 9, 16), (1, 4, 2, 3, 41, 8), (3, 2, 3, 3, 300, 64), (2, 3, 1, 5, 70, 24)]


def case(rows: int, new: int, groups: int, times: int, slots: int, width: int) -> list[Tensor]:
    """Queries, keys and values as views into larger memory, and a mask where every token sees some slots."""
    random = torch.Generator().manual_seed(slots)
    query = torch.randn(rows, new, groups * times, width, generator=random).transpose(1, 2)
    keys, values = torch.randn(2, rows, groups, slots + 7, width, generator=random)[:, :, :, :slots]
    hidden = torch.rand(rows, 1, new, slots, generator=random) < 0.4
    hidden[..., 0] = False
    return [query, keys, values, torch.zeros(hidden.shape).masked_fill(hidden, torch.finfo(torch.bfloat16).min)]


def reference(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scaling: float) -> Tensor:
    """The same in float64, one operation after the other."""
    times = query.shape[1] // keys.shape[1]
    keys, values = (numbers.double().repeat_interleave(times, 1) for numbers in (keys, values))
    scores = scaling * query.double() @ keys.transpose(2, 3)
    return (scores.masked_fill(mask < 0, -torch.inf).softmax(-1) @ values).transpose(1, 2)


@pytest.mark.parametrize("dtype", ERRORS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_attends_as_in_float64(shape: tuple[int, ...], dtype: torch.dtype, threads: int) -> None:
    query, keys, values, mask = (numbers.to(dtype) for numbers in case(*shape))
    lists, before = SlotLists(mask), torch.get_num_threads()
    assert lists.can_attend(query, keys, values)
    try:
        torch.set_num_threads(threads)
        outputs = lists.attend(query, keys, values, 0.3)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(
        outputs.double(), reference(query, keys, values, mask, 0.3), atol=ERRORS[dtype], rtol=ERRORS[dtype]
    )


def test_powers_of_two() -> None:
    assert attention.power_of_two(np.float32(0)) == 1
    for exponent in np.linspace(-140, 0, 1001, dtype=np.float32):
        assert attention.power_of_two(exponent) == pytest.approx(2.0 ** float(exponent), rel=3e-7, abs=2e-38)


@pytest.mark.parametrize("dtype", ERRORS)
def test_no_number_is_no_number(dtype: torch.dtype) -> None:
    """A fault of the model has to reach the check of its logits; a slot that nobody sees does no harm."""
    query, keys, values, mask = (numbers.to(dtype) for numbers in case(*SHAPES[1]))
    mask[:] = 0
    mask[..., 5], keys[:, :, 5], values[:, :, 5] = -1, torch.nan, torch.nan
    assert SlotLists(mask).attend(query, keys, values, 0.3).isfinite().all()
    keys[0, 0, 7, 0] = torch.nan
    assert SlotLists(mask).attend(query, keys, values, 0.3)[0, :, : SHAPES[1][3]].isnan().all()


def test_what_the_loops_cannot_read() -> None:
    query, keys, values, mask = case(*SHAPES[1])
    lists = SlotLists(mask)
    assert not lists.can_attend(query.double(), keys.double(), values.double())
    assert not lists.can_attend(query, keys, values[..., :-1])
    assert not lists.can_attend(query, keys.to("meta"), values.to("meta"))  # whose address is none of ours
    assert not lists.can_attend(query, keys.transpose(2, 3).contiguous().transpose(2, 3), values)
    assert SlotLists.of(torch.zeros(2, 1, attention.MAX_NEW + 1, 40)) is None
    assert SlotLists.of(torch.zeros(2, 1, 5, 40)) is None  # all see all: five tokens a row are too many
    assert SlotLists.of(torch.zeros(2, 1, 4, 40)) is not None


@pytest.mark.parametrize("dtype", ERRORS)
def test_same_bits_in_tree_and_path_alone_and_beside_others(dtype: torch.dtype) -> None:
    """Slots that a token does not see may lie anywhere: the hole of a shorter row, siblings."""
    query, keys, values, _ = (numbers.to(dtype) for numbers in case(2, 1, 3, 3, 300, 64))
    seen = torch.arange(300)[(torch.arange(300) < 211) | (torch.arange(300) % 7 == 0)]
    mask = torch.full((2, 1, 1, 300), -1.0, dtype=dtype)
    mask[..., seen] = 0
    beside = SlotLists(mask).attend(query, keys, values, 0.3)[:1]
    path = [numbers[:1, :, seen].contiguous() for numbers in (keys, values)]
    alone = SlotLists(torch.zeros(1, 1, 1, len(seen), dtype=dtype)).attend(query[:1], *path, 0.3)
    assert torch.equal(beside, alone)
    mask[0, ..., 212] = 0  # a sibling
    assert not torch.equal(SlotLists(mask).attend(query, keys, values, 0.3)[:1], alone)


def logits_of(rows: list[list[int]], pending: list[list[int]], parents: list[list[int]]) -> Tensor:
    """Logits of pending tokens behind kept ones."""
    torch.manual_seed(0)
    settings = dict(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, hidden_size=64, head_dim=16)
    reader = CausalLM(tiny_model("llama", **settings).to(torch.bfloat16), 64)
    reader.forward(rows, [list(range(-1, len(row) - 1)) for row in rows], "none")
    reader.commit([list(range(len(row))) for row in rows])
    return reader.forward(pending, parents).float()


@pytest.mark.parametrize("way", [SlotLists.of, lambda *_: None], ids=["lists", "PyTorch's"])
def test_a_leaf_is_read_as_its_path(way: Callable[..., SlotLists | None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also behind a sibling and beside a longer row; a mutant that sees it differs by far more than rounding."""
    monkeypatch.setattr(attention.SlotLists, "of", way)
    kept, other = [5, 9, 2, 7, 3] * 4, [8, 1, 4] * 9
    path = logits_of([kept], [[6, 11]], [[-1, 0]])[0, 1]
    tree = logits_of([kept, other], [[6, 10, 11], [1]], [[-1, 0, 0], [-1]])[0, 2]
    assert (path - tree).abs().max() <= 2**-6 * path.abs().max()
    mutant = logits_of([kept], [[6, 10, 11]], [[-1, 0, 1]])[0, 2]
    assert (path - mutant).abs().max() > 2**-6 * path.abs().max()
