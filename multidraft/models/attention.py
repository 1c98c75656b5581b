"""Attention of few tokens over long texts on CPUs: a token reads the slots that it sees, and no others.

PyTorch's attention computes every row as though it had the slots of the longest one, and is made for many tokens. Here
each token has a list of the slots that it sees, in the order of its path, so that it has the same bits in a tree, in a
chain, alone, and beside other rows. Heads that share keys read them once. Sums are float32.
"""

from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numba import carray, types
from numba.extending import intrinsic, overload
from torch import Tensor

from multidraft.models.torch_threads import in_threads, team
from multidraft.verification.loops import compiled

NUMBERS: dict[torch.dtype, Any] = {torch.bfloat16: np.uint16, torch.float32: np.float32}  # what a loop takes them for
MAX_NEW, MAX_TOKENS_A_ROW = 32, 4  # slots of a pass in a row, tokens: over more PyTorch's attention is faster
LOG2_E, MIN_EXPONENT = 1.4426950408889634, np.float32(-126)
# Of 2^x for 0 <= x < 1, with a relative error of 1.5e-7; from the highest power on.
POLYNOMIAL = tuple(map(np.float32, (1.8671829e-3, 9.016688e-3, 5.5800445e-2, 0.24016416, 0.69315135, 1.0)))
FLOAT_BYTES, ENDLESS = 4, 1 << 40
STRIDES = np.int64, (3,)  # of rows, heads, and tokens or slots
JOB = np.dtype([
    ("queries", np.int64), ("keys", np.int64), ("values", np.int64), ("outputs", np.int64),  # addresses
    ("starts", np.int64), ("slots", np.int64), ("scratch", np.int64), ("room", np.int64),  # of a thread
    ("query_strides", *STRIDES), ("key_strides", *STRIDES), ("value_strides", *STRIDES), ("scale", np.float32),
    ("tokens", np.int64), ("new", np.int64), ("groups", np.int64), ("times", np.int64), ("width", np.int64),
    ("threads", np.int64),
])  # fmt: skip


class SlotLists:
    """Which slots each token of a pass sees, read from its mask once for all layers."""

    def __init__(self, mask: Float[Tensor, "rows 1 new slots"], threads: int | None = None):
        self.rows, _, self.new, self.size = mask.shape
        self.threads = threads or torch.get_num_threads()
        numbers = mask.view(torch.uint16) if mask.dtype == torch.bfloat16 else mask
        self.starts, self.slots = slots_seen(numbers.numpy().reshape(-1, self.size))
        self.most = int((self.starts[1:] - self.starts[:-1]).max())

    @classmethod
    def of(cls, mask: Float[Tensor, "rows 1 new slots"], threads: int | None = None) -> "SlotLists | None":
        """The lists of a pass; None where PyTorch's attention is faster, or its threads cannot run our loops."""
        rows, _, new, size = mask.shape
        if not mask.is_cpu or mask.dtype not in NUMBERS or new > MAX_NEW or team() is None:
            return None
        lists = cls(mask, threads)
        return lists if len(lists.slots) <= MAX_TOKENS_A_ROW * rows * size else None

    def can_attend(self, query: Tensor, key: Tensor, value: Tensor) -> bool:
        """Whether the loops can read these: on the CPU, of one kind and width, the numbers of a slot side by side."""
        width = query.shape[-1]
        return (
            key.shape[-1] == value.shape[-1] == width
            and query.dtype == key.dtype == value.dtype
            and query.dtype in NUMBERS
            and query.is_cpu
            and key.is_cpu
            and value.is_cpu
            and query.stride(-1) == 1
            and key.stride()[2:] == value.stride()[2:] == (width, 1)
        )

    def attend(
        self,
        query: Float[Tensor, "rows heads new width"],
        key: Float[Tensor, "rows groups slots width"],
        value: Float[Tensor, "rows groups slots width"],
        scaling: float,
    ) -> Float[Tensor, "rows new heads width"]:
        """softmax(scaling q k^T) v over each token's slots."""
        heads, width, groups, threads = query.shape[1], query.shape[3], key.shape[1], self.threads
        outputs, times = torch.empty(self.rows, self.new, heads, width, dtype=query.dtype), heads // groups
        room = times * (self.most + 2 * width)
        scratch = np.empty(threads * room, np.float32)
        addresses = [tensor.data_ptr() for tensor in (query, key, value, outputs)]
        addresses += [array.ctypes.data for array in (self.starts, self.slots, scratch)]
        strides = [tensor.stride()[:3] for tensor in (query, key, value)]
        sizes = self.rows * self.new, self.new, groups, times, width, threads
        job = np.array([(*addresses, room, *strides, scaling * LOG2_E, *sizes)], JOB)
        attend_in_threads(query.dtype)(job)
        return outputs


def list_slots(masks: Iterable[Float[Tensor, "rows 1 new slots"]], threads: int | None = None) -> None:
    """Give masks their lists, which all layers of a pass read."""
    for mask in masks:
        mask.__dict__["slot_lists"] = SlotLists.of(mask, threads)


def listed(mask: Tensor, query: Tensor, key: Tensor, value: Tensor) -> SlotLists | None:
    """The lists of a mask, if it has any and they can read these."""
    lists = mask.__dict__.get("slot_lists")
    return lists if lists is not None and lists.can_attend(query, key, value) else None


@compiled
def slots_seen(masks):
    """The slots of each line of a mask where nothing is added to the scores, one line after the other."""
    starts, slots = np.zeros(len(masks) + 1, np.int64), np.empty(masks.size + 1, np.int64)
    count = 0
    for line in range(len(masks)):
        for slot in range(masks.shape[1]):
            slots[count] = slot
            count += masks[line, slot] == 0
        starts[line + 1] = count
    return starts, slots[:count]


@cache
def attend_in_threads(dtype: torch.dtype) -> Callable[[np.ndarray], None]:
    """The function of a job by which all threads do their shares."""
    return in_threads(attend_share, JOB, NUMBERS[dtype](0))


@partial(compiled, any_order=True)
def attend_share(job, thread, number):
    """A thread's share of a pass: tokens with groups of heads, divided where the sums of their slots are equal."""
    starts = array_at(job.starts, np.int64(0), job.tokens + 1)
    total, passed = starts[job.tokens] * job.groups, 0
    first, last = total * thread // job.threads, total * (thread + 1) // job.threads
    for token in range(job.tokens):
        slots = array_at(job.slots, np.int64(0), total)[starts[token] : starts[token + 1]]
        for group in range(job.groups):
            if first <= passed < last:
                attend_heads(job, thread, token, group, slots, number)
            passed += len(slots)


@partial(compiled, any_order=True)
def attend_heads(job, thread, token, group, slots, number):
    """A token's heads of one group: their scores to the base of two, the softmax of these, the sum of values."""
    row, place, times, width = token // job.new, token % job.new, job.times, job.width
    scratch = array_at(job.scratch + FLOAT_BYTES * thread * job.room, np.float32(0), job.room)
    lines = scratch[: 2 * times * width].reshape((2, times, width))
    queries, sums = lines[0], lines[1]
    scores = scratch[lines.size : lines.size + times * len(slots)].reshape((times, len(slots)))
    outputs = array_at(job.outputs, number, job.tokens * job.groups * times * width).reshape((-1, times, width))
    strides, all_queries = job.query_strides, array_at(job.queries, number, ENDLESS)
    for head in range(times):
        query = all_queries[row * strides[0] + (group * times + head) * strides[1] + place * strides[2] :]
        for i in range(width):
            queries[head, i] = widened(query[i]) * job.scale
            sums[head, i] = 0
    score(scores, queries, lines_of(job.keys, job.key_strides, row, group, width, number), slots)
    for head in range(times):
        softmax(scores[head])
    add_up(sums, scores, lines_of(job.values, job.value_strides, row, group, width, number), slots)
    output = outputs[token * job.groups + group]
    for head in range(times):
        for i in range(width):
            output[head, i] = narrowed(sums[head, i], number)


@partial(compiled, any_order=True)
def score(scores, queries, keys, slots):
    """The products of queries with the keys in these slots."""
    for place in range(len(slots)):
        key = keys[slots[place]]
        for head in range(len(queries)):
            product = np.float32(0)
            for i in range(queries.shape[1]):
                product += queries[head, i] * widened(key[i])
            scores[head, place] = product


@partial(compiled, any_order=True)
def softmax(scores):
    """Make probabilities of scores to the base of two."""
    largest, total = np.float32(-np.inf), np.float32(0)
    for i in range(len(scores)):
        largest = max(largest, scores[i])
    for i in range(len(scores)):
        scores[i] = power_of_two(scores[i] - largest)
        total += scores[i]
    for i in range(len(scores)):
        scores[i] /= total


@partial(compiled, any_order=True)
def add_up(sums, weights, values, slots):
    """Add the weighted values in these slots, four at a time: a sum is read and written once for them."""
    whole = len(slots) // 4 * 4
    for place in range(0, whole, 4):
        first, second = values[slots[place]], values[slots[place + 1]]
        third, fourth = values[slots[place + 2]], values[slots[place + 3]]
        for head in range(len(sums)):
            for i in range(sums.shape[1]):
                pair = weights[head, place] * widened(first[i]) + weights[head, place + 1] * widened(second[i])
                pair += weights[head, place + 2] * widened(third[i]) + weights[head, place + 3] * widened(fourth[i])
                sums[head, i] += pair
    for place in range(whole, len(slots)):
        value = values[slots[place]]
        for head in range(len(sums)):
            for i in range(sums.shape[1]):
                sums[head, i] += weights[head, place] * widened(value[i])


@partial(compiled, any_order=True)
def power_of_two(exponent):
    """2 to the power of a number up to 0: a polynomial and the whole part, so that a loop over many is vectorised."""
    bounded = exponent if not exponent < MIN_EXPONENT else MIN_EXPONENT  # NaN stays
    whole = np.floor(bounded)
    value = np.float32(0)
    for factor in POLYNOMIAL:
        value = value * (bounded - whole) + factor
    return value * np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)).view(np.float32)


# What the loops read from addresses


@intrinsic
def pointer(context, address, number):
    """An address as a pointer to numbers of this type."""

    def generated(target, builder, signature, arguments):
        return builder.inttoptr(arguments[0], target.get_value_type(signature.return_type))

    return types.CPointer(number)(types.int64, number), generated


@compiled
def array_at(address, number, size):
    """The numbers of this type at an address."""
    return carray(pointer(address, number), size)  # type: ignore[call-arg]  # the compiler adds the context


@compiled
def lines_of(address, strides, row, group, width, number):
    """The lines of a row's group, one a slot, with no end."""
    numbers = array_at(address, number, ENDLESS)[row * strides[0] + group * strides[1] :]
    return numbers[: ENDLESS // 2 // width * width].reshape((-1, width))


def widened(number):
    """A number that was read, as float32."""


def narrowed(value, number):
    """A float32 as it is written among such numbers: bfloat16 rounded to the nearest, ties to even."""


@overload(widened)
def typed_widened(number):
    if isinstance(number, types.Float):
        return lambda number: number
    return lambda number: np.uint32(np.uint32(number) << np.uint32(16)).view(np.float32)


@overload(narrowed)
def typed_narrowed(value, number):
    if isinstance(number, types.Float):
        return lambda value, number: value
    return lambda value, number: rounded(np.float32(value).view(np.uint32))


@compiled
def rounded(bits):
    """The upper half of a float32's bits, rounded."""
    return np.uint16((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))
