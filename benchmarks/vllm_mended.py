"""A plug-in of vLLM 0.32 that mends its kernels for CPUs, in memory: nothing that is installed is changed.

vLLM loads it in every process by the entry point that judge_servers.py writes. `_expand_kernel_impl` fills a copy of
its output unless that is int64, so that temperature, top-k and top-p of rows with drafts are uninitialised memory
(vllm#55005). Synthetic acceptance is refused by an assertion; here it does what the Triton kernels for GPUs do.
"""

from collections.abc import Iterable
from typing import Any

import torch

Kernel = Any  # a function without a result; the arguments come by position, in the order of the Triton kernel


def register() -> None:
    """Replace the functions, before vLLM takes them for its kernels."""
    from vllm.utils import cpu_triton_utils as kernels

    kernels._expand_kernel_impl = expand
    kernels._rejection_greedy_sample_kernel_impl = greedy_or_synthetic(kernels._rejection_greedy_sample_kernel_impl)
    kernels._rejection_random_sample_kernel_impl = random_or_synthetic(kernels._rejection_random_sample_kernel_impl)


def expand(
    output: torch.Tensor, values: torch.Tensor, ends: torch.Tensor, replace_from: int, replace_to: int, *_: int
) -> None:
    """Repeat each row's value for all its drafts, in place."""
    lengths = torch.diff(ends, prepend=ends.new_zeros(1)).to(torch.int64)
    replaced = torch.where(values == replace_from, torch.full_like(values, replace_to), values)
    expanded = torch.repeat_interleave(replaced, lengths)
    output[: len(expanded)] = expanded.to(output.dtype)


def greedy_or_synthetic(kernel: Kernel) -> Kernel:
    """The kernel for rows at temperature 0, with synthetic acceptance."""

    def verify(*arguments: Any) -> None:
        output, ends, drafts, argmax, bonus, is_greedy, _, uniform, rates, is_synthetic = arguments
        if not is_synthetic:
            return kernel(*arguments)
        rows = [row for row in range(len(ends)) if is_greedy is None or is_greedy[row]]
        return accept_at_rates(output, ends, drafts, argmax, bonus, uniform, rates, rows)

    return verify


def random_or_synthetic(kernel: Kernel) -> Kernel:
    """The kernel for the other rows, with synthetic acceptance."""

    def verify(*arguments: Any) -> None:
        output, ends, drafts, _, _, bonus, recovered, uniform, is_greedy, _, _, rates, _, is_synthetic = arguments
        if not is_synthetic:
            return kernel(*arguments)
        rows = [row for row in range(len(ends)) if not is_greedy[row]]
        return accept_at_rates(output, ends, drafts, recovered, bonus, uniform, rates, rows)

    return verify


def accept_at_rates(
    output: torch.Tensor,
    ends: torch.Tensor,
    drafts: torch.Tensor,
    instead: torch.Tensor,
    bonus: torch.Tensor,
    uniform: torch.Tensor,
    rates: torch.Tensor,
    rows: Iterable[int],
) -> None:
    """Accept the draft at each depth with a fixed probability; then what comes instead, or the bonus token."""
    bounds = [0, *ends.tolist()]
    for row in rows:
        start, end = bounds[row : row + 2]
        accepted = (uniform[start:end] < rates[: end - start]) & (drafts[start:end] >= 0)
        count = int(accepted.cumprod(0).sum())
        output[row, :count] = drafts[start : start + count]
        output[row, count] = instead[start + count] if start + count < end else bonus.flatten()[row]
