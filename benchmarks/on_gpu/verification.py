"""Verification and draws in fixed shapes, beside `verify_tree`; what they launch and move, counted without a device."""

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import multidraft as md
from multidraft.decoding.tree import Tree
from multidraft.tensor_trees.batched import verify_batched
from multidraft.tensor_trees.draws import FixedTree
from multidraft.verification.scheme import Scheme
from on_gpu.asked import Line, PieceOptions

RECURSIVE = "without_replacement:recursive_rejection"
CASES = [(RECURSIVE, "commit", "4x2x2x2"), ("top:naive", "commit", "4x2x2x2"), (RECURSIVE, "deferred", "1x1x1x1x1x1x1")]
SHAPE, QUICK_SHAPE = (8, 151_936), (2, 512)  # rows and vocabulary
PARTIAL_READS = {"aten::gather", "aten::index_select", "aten::index"}  # of their first operand, as much as they give
NO_KERNELS = {"aten::scalar_tensor"}  # a number of the host


class Traffic(TorchDispatchMode):
    """Counts operations that launch a kernel, which views do not, and the bytes of their operands and results."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels, self.bytes = 0, 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result, name = operation(*args, **(kwargs or {})), operation._schema.name
        is_view = any(value.alias_info and not value.alias_info.is_write for value in operation._schema.returns)
        if name.startswith("aten::") and not is_view and name not in NO_KERNELS:
            self.kernels += 1
            operands = tree_leaves((args[1:] if name in PARTIAL_READS else args, kwargs))
            twice = result if name in PARTIAL_READS else None
            self.bytes += sum(bytes_of(leaf) for leaf in [*operands, *tree_leaves(result), twice])
        return result


def bytes_of(value: Any) -> int:
    """What a tensor has in memory: of what is expanded, one copy."""
    if not isinstance(value, Tensor):
        return 0
    sizes = [size for size, stride in zip(value.shape, value.stride(), strict=True) if stride]
    return value.element_size() * prod(sizes)


class Case(NamedTuple):
    """A shape of trees, and distributions for all its nodes."""

    scheme: Scheme
    walk: str
    tree: FixedTree
    target: Tensor
    draft: Tensor
    numbers: Tensor

    def draw(self) -> tuple[Tensor, ...]:
        """Trees for all rows."""
        roots = self.target.new_zeros(len(self.target), dtype=torch.int64)
        return self.tree.draw(roots, lambda _, slots: self.draft[:, slots[0] : slots[-1] + 1], self.scheme.law.name)

    def verify(self, *tables: Tensor) -> object:
        """Their tokens, in fixed shapes."""
        settings = dict(scheme=self.scheme, walk=self.walk, siblings=self.tree.siblings)
        return verify_batched(*tables, self.target, self.draft, self.numbers[:, 1:], self.numbers[:, 0], **settings)

    def verify_tree(self, *tables: Tensor) -> object:
        """Their tokens, as the CPU finds them."""
        numbers = dict(uniform_samples=self.numbers[:, 1:], uniform_samples_for_final_sampling=self.numbers[:, 0])
        draft = None if self.scheme.name == "top:naive" else self.draft
        return md.verify_tree(*tables, self.target, draft, scheme=self.scheme.name, walk=self.walk, **numbers)


def case_of(name: str, walk: str, tree: str, shape: tuple[int, int], device: torch.device) -> Case:
    """A case with made-up distributions, the draft's near the target's."""
    (rows, vocabulary), parsed = shape, Tree.parse(tree)
    heights = -1.8 * torch.log(1.0 + torch.rand(rows, len(parsed), vocabulary, device=device).argsort(-1))
    inner = parsed.drafts.index(0)
    draft = (heights[:, :inner] + 0.7 * torch.randn(rows, inner, vocabulary, device=device)).softmax(-1)
    numbers = torch.rand(rows, 1 + len(parsed), dtype=torch.float64, device=device)
    return Case(md.scheme(name), walk, FixedTree(parsed, device), heights.softmax(-1), draft, numbers)


def traffic_of(name: str, walk: str, tree: str, shape: tuple[int, int]) -> Line:
    """Kernels and bytes of the draws and of the verification, from shapes alone."""
    counts: Line = {}
    with FakeTensorMode(allow_non_fake_inputs=True):
        case = case_of(name, walk, tree, shape, torch.device("cpu"))
        with Traffic() as draws:
            *tables, _ = case.draw()
        with Traffic() as verification:
            case.verify(*tables)
    for part, traffic in {"draw": draws, "verify": verification}.items():
        counts |= {f"{part}_kernels": traffic.kernels, f"{part}_megabytes": round(traffic.bytes / 1e6)}
    return counts


def line_of(piece_options: PieceOptions, name: str, walk: str, tree: str, shape: tuple[int, int]) -> Line:
    """Milliseconds of one case, and what is counted; `verify_tree` reads the tables on the CPU, whatever the device."""
    torch.manual_seed(0)
    case = case_of(name, walk, tree, shape, piece_options.device)
    *tables, _ = case.draw()
    works: dict[str, Callable[[], object]] = {
        "draw": case.draw,
        "verify_batched": lambda: case.verify(*tables),
        "verify_tree": lambda: case.verify_tree(*tables),
    }
    took = {work: piece_options.milliseconds(run) for work, run in works.items()}
    line = dict(scheme=name, walk=walk, tree=tree, rows=shape[0], vocabulary=shape[1])
    line |= {work: round(ms, 2) for work, ms in took.items()}
    return (
        line | dict(ratio=round(took["verify_batched"] / took["verify_tree"], 2)) | traffic_of(name, walk, tree, shape)
    )


def measure(piece_options: PieceOptions) -> list[Line]:
    """A line a case."""
    shape = QUICK_SHAPE if piece_options.quick else SHAPE
    return [line_of(piece_options, *case, shape) for case in CASES]
