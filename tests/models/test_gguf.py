"""Trees read by llama.cpp against paths read alone, by it and by Hugging Face; rows that come, leave and share."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from ggufs import (
    ALLOWED,
    CACHE_TYPE,
    LIBRARY,
    OTHER_FAMILIES,
    other_file,
    other_model,
    tiny_file,
    window_file,
    window_model,
)
from reading import PROMPTS, TOLERANCE, Forest, Session, begin_session, chain, drawn, error, forest, worst_error_of_life
from tiny import CONTEXT, VOCABULARY, tiny_model
from torch import Tensor

import multidraft as md
from multidraft.decoding.batch import Batch
from multidraft.decoding.policy import StaticTree
from multidraft.decoding.request import Request, Update
from multidraft.decoding.state import DecodeConfig
from multidraft.decoding.tree import NO_DRAFTS
from multidraft.errors import AdviceError
from multidraft.models.gguf import IK_LLAMA_CPP
from multidraft.models.gguf.choice import library_for
from multidraft.models.gguf.memory import Sequences
from multidraft.models.gguf.model import GGUF
from multidraft.models.reader import Row
from multidraft.sampling.settings import Sampling

TABLE = 10 * TOLERANCE  # llama.cpp looks GELU up in a table of f16, which is all that Hugging Face says otherwise
WRONG = 100 * TOLERANCE
READ: dict[Path, GGUF] = {}
SEVEN = [[-1, -1, 0, 0, 1, 2, 4]] * 3


@pytest.fixture(autouse=True)
def afresh():
    READ.clear()


def reader(path: Path, capacity: int = 48) -> GGUF:
    """Of one memory, so that rows can join; it is forgotten after each test."""
    return READ.setdefault(path, GGUF(path, cache_type=CACHE_TYPE)).new(capacity)


def session(name: str, prompts: tuple[int, ...] = PROMPTS, capacity: int = 48) -> Session:
    return begin_session(tiny_model(name), reader(tiny_file(name), capacity), prompts, ALLOWED)


def alone(run: Session, trees: Forest) -> Tensor:
    """Every node's logits by reading its sequence and path from the beginning, a reader for each."""
    logits = []
    for row, tokens in enumerate(trees.tokens):
        for node in range(len(tokens)):
            text = run.sequences[row] + [tokens[place] for place in trees.path(row, node)]
            logits.append(run.model.new(1).forward([text], [chain(len(text))], "last").logits[0, 0])
    return torch.stack(logits)


@pytest.mark.parametrize(("name", "capacity"), [("llama", 1), ("qwen2", 48), ("qwen3", 1)])
def test_every_family_reads_trees_as_it_reads_paths(name: str, capacity: int):
    assert worst_error_of_life(partial(session, name, capacity=capacity)) < ALLOWED


@pytest.mark.parametrize("name", OTHER_FAMILIES)
def test_other_families_read_trees_as_they_read_paths(name: str):
    if LIBRARY == IK_LLAMA_CPP:
        pytest.skip("only llama.cpp reads this family")

    def begin(prompts: tuple[int, ...]) -> Session:
        return begin_session(other_model(name), reader(other_file(name)), prompts, TABLE)

    assert worst_error_of_life(begin) < TABLE


def test_sliding_windows_are_kept_whole_and_cut_at_paths():
    if LIBRARY == IK_LLAMA_CPP:
        pytest.skip("only llama.cpp reads this family")
    run = begin_session(window_model(), reader(window_file()), allowed=TABLE)
    everything = replace(run, plain=window_model(sliding_window=CONTEXT))  # wrong: the window is as wide as the context
    for _ in range(3):
        trees = forest(len(PROMPTS), 7, run.generator)
        got = run.read(trees)
        assert error(got, alone(run, trees)) < ALLOWED
        assert error(got, run.expected(trees)) < TABLE
        everything.sequences = run.sequences
        assert error(got, everything.expected(trees)) > 1000 * TOLERANCE
        run.accept(trees)


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        ("is_recurrent", "llama has a recurrent state, which cannot be rolled back"),
        ("is_hybrid", "llama has layers with a recurrent state, which cannot be rolled back"),
        ("is_diffusion", "llama is a diffusion model"),
        ("has_encoder", "llama is an encoder, or has one"),
    ],
)
def test_models_with_a_state_are_refused_by_name(architecture, message, monkeypatch):
    """Whatever llama.cpp says so of; and encoders."""
    monkeypatch.setattr(library_for(tiny_file("llama")), f"llama_model_{architecture}", lambda model: True)
    with pytest.raises(AdviceError, match=message):
        GGUF(tiny_file("llama"))


def test_a_row_goes_on_as_two():
    run = session("llama")
    run.model.forward([[1], [2], [3]], [[-1]] * 3)
    with pytest.raises(AdviceError, match="a row is copied while tokens are pending"):
        run.model.gather([0, 0])
    run.model.commit([[]] * 3)
    run.gather([2, 2])
    assert run.step() < ALLOWED


def test_a_memory_that_is_too_small_grows_and_forgets_nothing():
    run = session("llama", (30, 40, 50), 1)
    assert run.model.memory.cells == 256
    others = [run.model.fork(row, 30, 1) for row in range(3) for _ in range(8)]
    for _ in range(6):
        trees = forest(3, 12, run.generator)
        assert error(run.read(trees), run.expected(trees)) < ALLOWED
        run.model.commit([[]] * 3)
        others.append(run.model.new(1))
        others[-1].forward([list(range(60))], [chain(60)], "none")
    assert run.model.memory.cells > 256
    assert run.model.memory.sequences > 16


def test_rows_that_are_set_aside_take_part_in_no_pass_and_go_on_as_they_were():
    run = session("llama")
    memory, rows, text = run.model.memory, len(PROMPTS), drawn(60, run.generator)
    kept = run.model.new(1)
    kept.forward([text], [chain(60)], "none")
    kept.commit([list(range(60))])
    expected = kept.fork(0, 40, 48).forward([[1, 2]], [[-1, 0]]).logits
    for _ in range(2):  # as often as somebody likes
        kept.set_aside()
    memory.tidy()
    assert len(memory.free) == memory.sequences - rows  # of those whose tokens are in cells
    assert run.step() < ALLOWED
    forks = [kept.fork(0, length, 300) for length in (40, 60, 40)]  # which the memory has to grow for
    for fork in forks[::2]:
        assert error(fork.forward([[1, 2]], [[-1, 0]]).logits, expected) < ALLOWED
    assert error(forks[1].forward([[1, 2]], [[-1, 0]]).logits, expected) > WRONG  # it has 20 tokens more
    assert run.step() < ALLOWED


@pytest.mark.parametrize("name", OTHER_FAMILIES)
def test_rows_of_other_families_go_on_as_they_were_too(name: str):
    """With a window llama.cpp copies a row's last tokens alone: what was read next was 3.4 of 6.8 off."""
    if LIBRARY == IK_LLAMA_CPP:
        pytest.skip("only llama.cpp reads this family")
    kept, text = reader(other_file(name), 1), drawn(60, torch.Generator().manual_seed(1))
    kept.forward([text], [chain(60)], "none")
    kept.commit([list(range(60))])
    expected = [kept.fork(0, length, 70).forward([[1, 2]], [[-1, 0]]).logits for length in (40, 60)]
    kept.set_aside()
    for length, logits in zip((40, 60), expected, strict=True):
        assert error(kept.fork(0, length, 70).forward([[1, 2]], [[-1, 0]]).logits, logits) < ALLOWED


def test_a_batch_sets_rows_aside_that_a_new_prompt_does_not_go_on_from():
    model, first, second = reader(tiny_file("llama"), 1), list(range(1, 30)), list(range(30, 59))
    plain = StaticTree(NO_DRAFTS)
    batch = Batch(model, None, DecodeConfig(md.scheme("anchored:lorenz")), plain, max_num_seqs=2, max_tokens=300)
    cached, answers = list[int](), list[list[int]]()
    for prompt in (first, second, first):
        batch.add([Request(prompt, 6, Sampling(0))])
        updates = list[Update]()
        while batch.requests:
            updates += [update for _, update in batch.step()]
        cached.append(sum(update.cached_tokens or 0 for update in updates))
        answers.append([token for update in updates if update.step for token in update.step.emitted.tokens])
    model.memory.tidy()
    assert model.memory.sequences - len(model.memory.free) == 1  # of the last row; those before are elsewhere
    assert cached == [0, 0, 28]
    assert answers[0] == answers[2] != answers[1]


def test_sequences_come_back_when_rows_are_gone():
    run = session("llama")
    memory, rows = run.model.memory, len(PROMPTS)
    for _ in range(5):
        run.read(forest(rows, 7, run.generator))
        run.model.fork(1, 2, 8)
        run.model.commit([[]] * rows)
    memory.tidy()
    assert len(memory.free) == memory.sequences - rows
    run.model.gather([1])
    memory.tidy()
    assert len(memory.free) == memory.sequences - 1
    del run
    memory.tidy()
    assert len(memory.free) == memory.sequences


def test_nodes_beyond_the_context_do_no_harm():
    run = session("llama", (CONTEXT - 2,), CONTEXT)
    tree = Forest([drawn(5, run.generator)], [chain(5)])
    got = run.read(tree)
    assert got.isfinite().all()
    assert error(got[:2], run.expected(Forest([tree.tokens[0][:2]], [chain(2)]))) < ALLOWED
    run.model.commit([[0, 1, 2, 3, 4]])
    assert run.model.rows[0].memory.length == CONTEXT
    assert not run.model.forward([[1]], [[-1]]).logits.any()


def test_rows_may_bring_nothing_and_tokens_that_only_a_larger_vocabulary_has():
    run, twin = session("llama"), session("llama")
    assert run.model.forward([[]] * 3, [[]] * 3).logits.shape == (3, 0, VOCABULARY)
    got = run.model.forward([[1, 2], [], [3]], [[-1, 0], [], [-1]], "last").logits
    assert error(got[2, 0], run.plainly([[*run.sequences[2], 3]])[0]) < ALLOWED
    assert run.model.forward([[1], [1], [1]], [[1], [-1], [0]], "none").logits.shape == (3, 0, VOCABULARY)
    run.model.commit([[]] * 3)
    texts, read = ([[token, 3], [1], [token]] for token in (VOCABULARY + 2, 0))
    parents = [[-1, 0], [-1], [-1]]
    assert error(run.model.forward(texts, parents).logits, twin.model.forward(read, parents).logits) < ALLOWED


def test_an_interrupted_step_is_taken_back(monkeypatch):
    """Ctrl-C arrives when llama.cpp is done, before anybody has noted what it has read."""
    run = session("llama")
    trees, read = forest(len(PROMPTS), 7, run.generator), run.model.memory.read

    def interrupted(*arguments):
        read(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(run.model.memory, "read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.read(trees)
    monkeypatch.undo()
    run.model.commit([[]] * len(PROMPTS))
    assert error(run.read(trees), run.expected(trees)) < ALLOWED


@pytest.mark.parametrize("step", ["commit", "set_aside", "renew"])
def test_an_interruption_gives_no_sequence_back_twice(step: str, monkeypatch):
    """It would be lent to two rows, which then read each other's tokens."""
    run = session("llama")
    memory = run.model.memory
    run.read(forest(len(PROMPTS), 7, run.generator))
    after = {"renew": "closing"}.get(step, "drop")
    plainly = getattr(memory, after)

    def interrupted(*arguments):
        plainly(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(memory, after, interrupted)
    steps = {
        "commit": lambda: run.model.commit([[]] * len(PROMPTS)),
        "set_aside": run.model.set_aside,
        "renew": lambda: memory.reserve(memory.cells + 1, memory.sequences + 9),
    }
    with pytest.raises(KeyboardInterrupt):
        steps[step]()
    monkeypatch.undo()
    if step == "renew":
        run.model.commit([[]] * len(PROMPTS))
        trees = forest(len(PROMPTS), 7, run.generator)
        assert error(run.read(trees), run.expected(trees)) < ALLOWED
    numbers = [*memory.free, *(number for row in run.model.rows for number in row.memory.numbers)]
    assert len(numbers) == len(set(numbers))


def one_sequence(run: Session, monkeypatch) -> None:
    """Wrong: what all leaves go on from is one sequence, which sees all of them."""
    monkeypatch.setattr(Sequences, "sequence_after", lambda self, row, place: self.numbers[0])
    right = Sequences.grow

    def as_chains(self: Sequences, row: Row, new_places: list[int], end: int) -> list:
        return right(self, replace(row, parents=list(range(-1, len(row.tokens) - 1))), new_places, end)

    monkeypatch.setattr(Sequences, "grow", as_chains)


def kept_elsewhere(run: Session, monkeypatch) -> None:
    """Wrong: the sequence that stays is not that of the path that is kept."""
    trees = Forest([drawn(7, run.generator) for _ in PROMPTS], SEVEN)
    run.read(trees)
    for row in run.model.rows:
        row.memory.through = [row.memory.numbers[-1]] * len(row.memory.through)
    run.commit(trees, [trees.path(row, 2) for row in range(3)])


@pytest.mark.parametrize("wrong", [one_sequence, kept_elsewhere])
def test_the_comparison_catches_a_wrong_twin(wrong, monkeypatch):
    run = session("llama")
    wrong(run, monkeypatch)
    trees = Forest([drawn(7, run.generator) for _ in PROMPTS], SEVEN)
    assert error(run.read(trees), run.expected(trees)) > WRONG
