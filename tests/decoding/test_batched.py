"""`verify_batched`: the tokens of `verify_tree` for the same numbers, in one graph, without a wait."""

import os
import subprocess
import sys

import pytest
import torch
from pretended import counted_waits, device
from test_verify_tree import tables_of
from torch import Tensor

import multidraft as md
from multidraft.tensor_trees.batched import is_batched, verify_batched
from multidraft.transfer import upload

pytestmark = pytest.mark.usefixtures("unchecked")
VOCABULARY = 7
CASES = [  # scheme, walk, the largest number of children by depth
    ("without_replacement:recursive_rejection", "commit", (3, 2, 1)),
    ("iid:recursive_rejection", "commit", (3, 2, 2)),
    ("iid:naive", "commit", (3, 2)),
    ("top:naive", "commit", (3, 2, 1)),
    ("without_replacement:recursive_rejection", "deferred", (1, 1, 1, 1)),
    ("top:naive", "deferred", (1, 1, 1)),
    ("iid:lorenz", "deferred", (1, 1, 1)),
    ("iid:lorenz", "commit", (1,)),
]


def shape_of(siblings: tuple[int, ...], generator: torch.Generator) -> tuple[int, ...]:
    """The parents of a random tree in which no node of a depth has more children than it may."""
    parents, level = [-1], [0]
    for most in siblings:
        counts = torch.randint(most + 1, (len(level),), generator=generator).tolist()
        counts[0] = counts[0] or 1
        new = [node for node, count in zip(level, counts, strict=True) for _ in range(count)]
        level = [*range(len(parents), len(parents) + len(new))]
        parents += new
    return tuple(parents)


def random_trees(name: str, siblings: tuple[int, ...], rows: int, seed: int) -> list[Tensor | None]:
    """The arguments of `verify_tree`, for drafts that were drawn as the scheme says."""
    generator = torch.Generator().manual_seed(seed)
    parents, scheme = shape_of(siblings, generator), md.scheme(name)
    shape = rows, len(parents), VOCABULARY
    heat = 1 + 2 * torch.rand(2, 1, 1, 1, generator=generator)
    target, draft = (torch.randn(2, *shape, generator=generator) * heat).softmax(-1)
    tokens = torch.zeros(shape[:2], dtype=torch.int64)
    for node in range(len(parents)):
        if children := [child for child, parent in enumerate(parents) if parent == node]:
            tokens[:, children] = scheme.with_drafts(len(children)).draw(draft[:, node], generator)
    uniform, final = (torch.rand(s, generator=generator, dtype=torch.float64) for s in (shape[:2], shape[:1]))
    return [*tables_of(tokens.tolist(), parents), target, None if name.startswith("top") else draft, uniform, final]


def ordinary(name: str, walk: str, arguments: list, depth: int) -> list[Tensor]:
    """What `verify_tree` says on the CPU."""
    *parts, uniform, final = arguments
    numbers = dict(uniform_samples=uniform, uniform_samples_for_final_sampling=final)
    return [*md.verify_tree(*parts, scheme=name, walk=walk, num_speculative_tokens=depth, **numbers)]


def compare(name: str, walk: str, siblings: tuple[int, ...], rows: int, seed: int) -> int:
    """Check that both say the same; returns how many drafts were accepted."""
    arguments = random_trees(name, siblings, rows, seed)
    ours = verify_batched(*arguments, scheme=md.scheme(name), walk=walk, siblings=siblings)
    theirs = ordinary(name, walk, arguments, 1 + len(siblings))
    assert [part.dtype for part in ours] == [part.dtype for part in theirs]
    assert all(a.equal(b) for a, b in zip(ours, theirs, strict=True))
    return int(ours[2].sum())


@pytest.mark.parametrize(("name", "walk", "siblings"), CASES)
def test_it_says_what_verify_tree_says(name: str, walk: str, siblings: tuple[int, ...]) -> None:
    assert sum(compare(name, walk, siblings, 25, seed) for seed in range(4)) > 10


@pytest.mark.slow
@pytest.mark.parametrize(("name", "walk", "siblings"), CASES)
def test_it_says_what_verify_tree_says_of_10_000_trees(name: str, walk: str, siblings: tuple[int, ...]) -> None:
    for seed in range(4, 54):
        compare(name, walk, siblings, 25, seed)


def test_another_number_is_seen() -> None:
    name, walk, siblings = CASES[0]
    arguments = random_trees(name, siblings, 50, 0)
    theirs = ordinary(name, walk, arguments, 1 + len(siblings))
    arguments[-2] = arguments[-2].flip(0)
    ours = verify_batched(*arguments, scheme=md.scheme(name), walk=walk, siblings=siblings)
    assert not ours[2].equal(theirs[2])


@pytest.mark.parametrize(("name", "walk", "siblings"), CASES)
def test_it_never_waits(name: str, walk: str, siblings: tuple[int, ...]) -> None:
    arguments = random_trees(name, siblings, 5, 1)
    there = [part if part is None else upload(part, device()) for part in arguments]
    with counted_waits() as waits:
        answer = verify_batched(*there, scheme=md.scheme(name), walk=walk, siblings=siblings)
    assert not waits
    assert all(
        a.cpu().equal(b) for a, b in zip(answer, ordinary(name, walk, arguments, 1 + len(siblings)), strict=True)
    )


def check_graphs() -> None:
    """Compile every case whole, without breaks, and compare."""
    for name, walk, siblings in CASES:
        arguments, scheme = random_trees(name, siblings, 5, 1), md.scheme(name)
        torch._dynamo.reset()
        answer = torch.compile(verify_batched, fullgraph=True, backend="eager")(
            *arguments, scheme=scheme, walk=walk, siblings=siblings
        )
        assert all(a.equal(b) for a, b in zip(answer, ordinary(name, walk, arguments, 1 + len(siblings)), strict=True))


@pytest.mark.slow
def test_each_is_one_graph() -> None:
    """In a process of its own: what checks hints here cannot be compiled."""
    code = "from test_batched import check_graphs; check_graphs(); print('whole')"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout == "whole\n", done.stderr[-2000:]


def test_verify_tree_takes_it_on_a_device() -> None:
    """Which shows in that the answer is there, and that the depth has to be given."""
    name, walk, siblings = CASES[0]
    arguments = random_trees(name, siblings, 5, 1)
    there = [upload(part, device()) for part in arguments]
    answer = ordinary(name, walk, there, 1 + len(siblings))
    assert all(part.device == device() for part in answer)
    expected = ordinary(name, walk, arguments, 1 + len(siblings))
    assert all(a.cpu().equal(b) for a, b in zip(answer, expected, strict=True))
    with pytest.raises(md.AdviceError, match="give the depth of the trees"):
        ordinary(name, walk, there, 1)


def test_what_it_takes() -> None:
    chain, tree = (1, 1), (2, 1)
    recursive = md.scheme("without_replacement:recursive_rejection")
    assert is_batched(recursive, "commit", tree)
    assert is_batched(recursive, "deferred", chain)
    assert not is_batched(recursive, "deferred", tree)
    assert not is_batched(md.scheme("iid:lorenz"), "commit", tree)
    with pytest.raises(md.AdviceError, match="needs verify_tree"):
        verify_batched(*random_trees(recursive.name, tree, 1, 0), scheme=recursive, walk="deferred", siblings=tree)


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "walk", "siblings"), CASES)
def test_a_gpu_says_the_same(name: str, walk: str, siblings: tuple[int, ...]) -> None:
    arguments = random_trees(name, siblings, 25, 1)
    there = [part if part is None else part.cuda() for part in arguments]
    answer = verify_batched(*there, scheme=md.scheme(name), walk=walk, siblings=siblings)
    expected = ordinary(name, walk, arguments, 1 + len(siblings))
    assert all(a.cpu().equal(b) for a, b in zip(answer, expected, strict=True))
