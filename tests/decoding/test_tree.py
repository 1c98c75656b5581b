"""What trees can be written down, what cannot, and that slots are in breadth-first order with children in a row."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import multidraft as md
from multidraft.decoding.shapes import MAX_NODES
from multidraft.decoding.tree import NodeLaw, TokenTree, Tree

COUNTS = st.lists(st.integers(1, 4), min_size=1, max_size=4)


def draw_paths(data: st.DataObject) -> list[list[int]]:
    """Random paths, each below a path already there and next to its siblings, in any order."""
    children = {(): 0}
    for _ in range(data.draw(st.integers(1, 15))):
        parent = data.draw(st.sampled_from(sorted(children)))
        children[(*parent, children[parent])] = 0
        children[parent] += 1
    return data.draw(st.permutations([list(path) for path in children if path]))


def check_order(tree: Tree) -> None:
    assert tree.parents[0] == -1
    assert list(tree.parents[1:]) == sorted(tree.parents[1:])
    assert list(tree.depths) == sorted(tree.depths)
    assert sum(tree.drafts) == len(tree) - 1
    for slot in range(len(tree)):
        children = [child for child in range(len(tree)) if tree.parents[child] == slot]
        first = tree.first_child.get(slot, 0)
        assert children == list(range(first, first + tree.drafts[slot]))
        assert all(tree.depths[child] == tree.depths[slot] + 1 for child in children)


@given(COUNTS)
def test_k_configs(counts):
    tree = Tree.parse("x".join(map(str, counts)))
    check_order(tree)
    assert tree.depth == len(counts)
    for depth, count in enumerate([*counts, 0]):
        drafts = [tree.drafts[slot] for slot in range(len(tree)) if tree.depths[slot] == depth]
        assert set(drafts) == {count}


@given(st.data())
def test_lists_of_paths(data):
    paths = draw_paths(data)
    tree = Tree.parse(str(paths))
    check_order(tree)
    assert len(tree) == len(paths) + 1
    assert sorted(map(len, paths)) == list(tree.depths[1:])
    above = {tuple(path[:-1]) for path in paths}
    assert Tree.paths([path for path in paths if tuple(path) not in above]) == tree  # missing parents are added
    assert Tree.parse(tree.name) == tree


@given(st.integers(1, 6), st.integers(1, 5))
def test_paths_of_a_length(paths, length):
    tree = Tree.parse(f"{paths} paths of {length}")
    assert tree == Tree.levels([paths] + [1] * (length - 1))
    assert tree.depths.count(length) == paths


@pytest.mark.parametrize(
    ("text", "parents"),
    [(" 2X1 ", (-1, 0, 0, 1, 2)), ("1 path of 2", (-1, 0, 1)), ("[[1, 0], [0]]", (-1, 0, 0, 2))],
)
def test_parents(text, parents):
    assert Tree.parse(text).parents == parents


NONSENSE = ["4x2xx1", "", "-1", "4y2", '{"a": 1}', "[0, 1]", "[]", "{}", "[[]]", "[[0.5]]", "[[true]]", "[" * 100_000]
LARGE = ["64x64x64", "9999 paths of 9", "9" * 24, "9" * 5000, "1 paths of " + "9" * 24, str([[0] * 5000]), "9999/1,0"]
WRONG = {
    "does not parse; write a chain": [*NONSENSE, '[["a"]]', "2 paths of 0", "[[-1]]"],
    "has a level without drafts": ["4x0x1", "0", "0 paths of 3"],
    r"comes without its sibling \[0\]": ["[[1]]"],
    r"comes without its sibling \[0, 1\]": ["[[0],[0,2]]"],
    "make no tree": ["1/0,0,0,1"],
    f"more than {MAX_NODES} nodes": LARGE,
}


@pytest.mark.parametrize("advice", WRONG)
def test_advice(advice):
    for text in WRONG[advice]:
        with pytest.raises(md.AdviceError, match=advice):
            Tree.parse(text)


def test_a_token_tree_holds_each_token_below_a_node_once() -> None:
    tree, ids = TokenTree([7], can_repeat=True), np.array([4, 9])
    for node in (0, 1):
        tree.laws[node] = NodeLaw(ids, np.array([0.5, 0.5]))
    tree.add(0, 3, [1, 1, 0], [])
    tree.add(1, 1, [-1], [])
    assert (tree.tokens, tree.parents, tree.levels) == ([7, 9, 4], [-1, 0, 0], [[0], [1, 2]])
    assert (tree.tuples, tree.drawn_tokens(0), tree.ranks[2]) == ({0: [9, 9, 4], 1: [-1]}, [9, 9, 4], 2)
    assert (tree.path(2), tree.shape.name, tree.has_drafts(1), tree.has_drafts(2)) == ([2], "2", True, False)
    other = tree.copy()
    other.laws[2] = tree.laws[1]
    other.add(2, 1, [0], [])
    assert (len(tree), len(other), tree.levels) == (3, 4, [[0], [1, 2]])
