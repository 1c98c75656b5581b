"""Heads as drafters: at every node of a tree they say what they say of its path alone, step after step."""

import pytest
import torch
from heads import CASES, head_of, plain_logits, states_of
from tiny import tiny_model

import multidraft as md

TEXTS = [[3, 1, 4, 1, 5, 9], [2], [8, 2, 6]]  # each ends with the root
CLOSE = {"atol": 1e-4, "rtol": 1e-4}


def observe_texts(head, texts, before):
    """Let rows hear what the target says of texts from a token on."""
    target = tiny_model("llama")
    states = [
        states_of(target, text, head.hidden_layers) if text else torch.zeros(0, len(head.hidden_layers), 32)
        for text in texts
    ]
    head.observe([row_states[first:] for row_states, first in zip(states, before, strict=True)])


def prompted(name, texts):
    """A head that has read texts but for their roots."""
    head = head_of(name).new(64)
    roots = [text[:-1] for text in texts]
    observe_texts(head, roots, [0] * len(texts))
    head.forward(roots, [list(range(-1, len(text) - 1)) for text in roots], "none")
    head.commit([list(range(len(text))) for text in roots])
    return head


def read_tree(head, roots, trees):
    """The logits of the roots, and of nodes level by level, each with its path."""
    logits_by_path = {
        (row, ()): line
        for row, line in enumerate(head.forward([[root] for root in roots], [[-1]] * len(roots), "last").logits[:, 0])
    }
    places = [{(): 0} for _ in roots]
    depth = 1
    while any(level := [[path for path in tree if len(path) == depth] for tree in trees]):
        logits = head.forward(
            [[path[-1] for path in row_paths] for row_paths in level],
            [[places[row][path[:-1]] for path in row_paths] for row, row_paths in enumerate(level)],
        ).logits
        for row, row_paths in enumerate(level):
            for index, path in enumerate(row_paths):
                places[row][path] = len(places[row])
                logits_by_path[row, path] = logits[row, index]
        depth += 1
    return logits_by_path, places


TREES = [[(4,), (9,), (9, 1), (9, 2), (9, 1, 3)], [(5,), (5, 5)], [(1,), (2,), (1, 7)]]


def check(name, head, texts, trees):
    logits_by_path, places = read_tree(head, [text[-1] for text in texts], trees)
    for (row, path), logits in logits_by_path.items():
        if len(texts[row]) > 1:  # of a text of one token nothing is known
            torch.testing.assert_close(logits, plain_logits(name, texts[row], list(path)), **CLOSE)
    return places


@torch.no_grad()
@pytest.mark.parametrize("name", CASES)
def test_every_node_says_what_its_path_says(name):
    """Three steps: what was read below the root is read again, beside what the target says of it.

    Each begins anew once, and is then what it would have been.
    """
    texts = [list(text) for text in TEXTS]
    head = prompted(name, texts)
    for step, (paths, last) in enumerate([([(9, 1), (5, 5), ()], [6, 7, 8]), ([(4,), (), (1, 7)], [1, 2, 3])]):
        check(name, head, texts, TREES)
        head.commit([[], [], []])  # as after a step that failed
        places = check(name, head, texts, TREES)
        before = [len(text) - 1 for text in texts]
        observe_texts(head, [[*text, *path] for text, path in zip(texts, paths, strict=True)], before)
        head.commit([[places[row][path[:depth]] for depth in range(len(path) + 1)] for row, path in enumerate(paths)])
        texts = [[*text, *path, token] for text, path, token in zip(texts, paths, last, strict=True)]
        if step == 0:
            order = [2, 0, 1]
            head.gather(order)
            texts = [texts[row] for row in order]
    check(name, head, texts, TREES)


@torch.no_grad()
@pytest.mark.parametrize("name", ["eagle3", "dflash", "medusa"])
def test_rows_join_and_parts_go_on(name):
    reader, other = prompted(name, [TEXTS[0]]), prompted(name, [TEXTS[2]])
    read_tree(reader, [9], [TREES[0]])
    observe_texts(reader, [[*TEXTS[0], 9, 1]], [5])
    reader.commit([[0, 2, 3]])  # two of them are to be read again
    reader.extend(other)
    texts = [[*TEXTS[0], 9, 1, 6], TEXTS[2]]
    expected = states_of(tiny_model("llama"), texts[0], reader.hidden_layers)
    for length in (2, 4, 6, 7, 8):
        part, state = reader.fork(0, length, 64), reader.observed_state(0, length - 1)
        if is_held := length >= len(TEXTS[0]):  # else it has been used
            torch.testing.assert_close(state[0], expected[length - 1], **CLOSE)
        observe_texts(part, [texts[0][:-1]], [length - 1 + is_held])
        later_tokens = texts[0][length:-1]
        part.forward([later_tokens], [list(range(-1, len(later_tokens) - 1))], "none")
        part.commit([list(range(len(later_tokens)))])
        check(name, part, texts[:1], TREES[:1])
    check(name, reader, texts, [TREES[0], TREES[2]])


@torch.no_grad()
def test_a_row_goes_on_elsewhere_behind_its_heads_context():
    """A step has begun within it, and has led beyond."""
    head, text = prompted("eagle3", [TEXTS[0][:4]]), TEXTS[0]
    head.context = 4
    head.forward([[text[3]]], [[-1]])
    head.forward([text[4:]], [[0, 1]])
    observe_texts(head, [text], [3])
    head.commit([[0, 1, 2]])
    assert head.fork(0, len(text), 8).rows[0].memory.count == 4


@torch.no_grad()
@pytest.mark.parametrize("name", ["eagle3", "dflash", "medusa"])
def test_what_comes_late_is_read_at_once(name):
    """A root with its tree in one pass, and a row that is asked when another has come further."""
    head, texts = prompted(name, [TEXTS[0], TEXTS[2]]), [TEXTS[0], TEXTS[2]]
    head.forward([[9], []], [[-1], []], "last")
    tree = head.forward([[9], [6, 1, 2, 7]], [[0], [-1, 0, 0, 1]]).logits
    again = head.forward([[1], [4]], [[1], [3]]).logits
    for row, line, path in [(0, tree[0, 0], [9]), (0, again[0, 0], [9, 1]), (1, again[1, 0], [1, 7, 4])]:
        torch.testing.assert_close(line, plain_logits(name, texts[row], path), **CLOSE)
    for line, path in zip(tree[1], ([], [1], [2], [1, 7]), strict=True):
        torch.testing.assert_close(line, plain_logits(name, texts[1], path), **CLOSE)


@torch.no_grad()
def test_reading_out_of_order_is_refused():
    head = head_of("eagle3").new(64)
    head.forward([[1]], [[-1]])
    head.commit([[0]])
    with pytest.raises(md.AdviceError, match="before token 1"):
        head.forward([[1, 2]], [[-1, 0]])
    for chain in ([-1, -1], [0, 0]):
        head = prompted("eagle3", TEXTS[:1])
        with pytest.raises(md.AdviceError, match=r"tree|as far as|has parent 0"):
            head.forward([[1, 2]], [chain])
    head = prompted("eagle3", TEXTS[:1])
    head.forward([[9]], [[-1]])
    with pytest.raises(md.AdviceError, match="has parent 2"):
        head.forward([[1, 2]], [[0, 2]])
