"""What trees can be written down, what cannot, and that slots are in breadth-first order with children in a row."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import multidraft as md
from multidraft.decoding.tree import MOST_NODES, NO_DRAFTS, Tree

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
        assert children == tree.children([slot])
        assert all(tree.depths[child] == tree.depths[slot] + 1 for child in children)


def check_drawing(tree: Tree) -> None:
    drawn = [slot for drawing in tree.draws for slot in drawing.slots]
    assert drawn == [slot for slot in range(len(tree)) if tree.drafts[slot]]
    for depth, drawing in enumerate(tree.draws):
        assert all(tree.depths[slot] == depth for slot in drawing.slots)
        assert drawing.children == tree.children(drawing.slots)


def parts_of(tree: Tree) -> tuple:
    """What is worked out of a tree."""
    draws = [(drawing.slots, drawing.counts, drawing.first, drawing.children) for drawing in tree.draws]
    return tree.name, tree.depths, tree.children(range(len(tree))), draws


@given(st.data())
def test_a_tree_that_grows_is_that_which_is_made_at_once(data: st.DataObject) -> None:
    """Its levels have more or less room than they need, and what is known of them is carried on."""
    grown, level = NO_DRAFTS, [0]
    for _ in range(data.draw(st.integers(1, 4))):
        counts = {slot: data.draw(st.integers(0, 3)) for slot in data.draw(st.permutations(level))}
        drawn, old = sum(counts.values()), len(grown)
        grown = grown.with_level(counts, drawn + data.draw(st.integers(0, 2)))
        level = list(range(old, old + drawn))
    fresh = Tree(grown.parents, grown.drafts)
    assert parts_of(grown) == parts_of(fresh)
    levels = [slot for depth in range(len(grown.draws) + 2) for slot in grown.slots_at(depth)]
    assert levels == [slot for slot, parent in enumerate(grown.parents) if parent >= 0 or slot == 0]


@given(COUNTS)
def test_k_configs(counts):
    tree = Tree.parse("x".join(map(str, counts)))
    check_order(tree)
    check_drawing(tree)
    assert max(tree.depths) == len(counts)
    for depth, count in enumerate([*counts, 0]):
        drafts = [tree.drafts[slot] for slot in range(len(tree)) if tree.depths[slot] == depth]
        assert set(drafts) == {count}


@given(st.data())
def test_lists_of_paths(data):
    paths = draw_paths(data)
    tree = Tree.parse(str(paths))
    check_order(tree)
    check_drawing(tree)
    assert len(tree) == len(paths) + 1
    assert sorted(map(len, paths)) == list(tree.depths[1:])


@given(st.data())
def test_missing_parents_are_added(data):
    paths = draw_paths(data)
    parents = {tuple(path[:-1]) for path in paths}
    assert Tree.paths([path for path in paths if tuple(path) not in parents]) == Tree.paths(paths)


@given(st.integers(1, 6), st.integers(1, 5))
def test_paths_of_a_length(paths, length):
    tree = Tree.parse(f"{paths} paths of {length}")
    assert tree == Tree.levels([paths] + [1] * (length - 1))
    assert tree.depths.count(length) == paths


@pytest.mark.parametrize(
    ("text", "parents"),
    [
        ("1", (-1, 0)),
        ("1x1x1", (-1, 0, 1, 2)),
        (" 2X1 ", (-1, 0, 0, 1, 2)),
        ("1 path of 2", (-1, 0, 1)),
        ("[[0],[0,0],[1]]", (-1, 0, 0, 1)),
        ("[[1, 0], [0]]", (-1, 0, 0, 2)),
    ],
)
def test_parents(text, parents):
    assert Tree.parse(text).parents == parents


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("4x2xx1", "does not parse; write a chain"),
        ("", "does not parse"),
        ("-1", "does not parse"),
        ("4y2", "does not parse"),
        ('{"a": 1}', "does not parse"),
        ("[0, 1]", "does not parse"),
        ("[]", "does not parse"),
        ("{}", "does not parse"),
        ("[[]]", "does not parse"),
        ("[[0.5]]", "does not parse"),
        ("[[true]]", "does not parse"),
        ("[" * 100_000, "does not parse"),
        ('[["a"]]', "does not parse"),
        ("4x0x1", "has a level without drafts"),
        ("0", "has a level without drafts"),
        ("0 paths of 3", "has a level without drafts"),
        ("2 paths of 0", "does not parse"),
        ("[[1]]", r"comes without its sibling \[0\]"),
        ("[[0],[0,2]]", r"comes without its sibling \[0, 1\]"),
        ("[[-1]]", "-1"),
        ("64x64x64", f"more than {MOST_NODES} nodes"),
        ("9999 paths of 9", f"more than {MOST_NODES} nodes"),
        ("9" * 24, f"more than {MOST_NODES} nodes"),
        ("9" * 5000, f"more than {MOST_NODES} nodes"),
        ("1 paths of " + "9" * 24, f"more than {MOST_NODES} nodes"),
        (str([[0] * 5000]), f"more than {MOST_NODES} nodes"),
    ],
)
def test_advice(text, advice):
    with pytest.raises(md.AdviceError, match=advice):
        Tree.parse(text)
