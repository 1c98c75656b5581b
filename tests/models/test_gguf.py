"""Trees read by llama.cpp against paths read alone, by it and by Hugging Face; rows that come, leave and share."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ggufs import STATEFUL, pair_files, stateful_file, tiny_file, window_file, window_model
from test_cache import PROMPTS, Forest, Session, check_level_by_level, error, forest
from tiny import CONTEXT, VOCABULARY, tiny_model
from torch import Tensor
from transformers import PreTrainedModel

from multidraft.errors import AdviceError
from multidraft.models import LanguageModel
from multidraft.models.gguf.model import GGUF
from multidraft.models.gguf.row import Row
from multidraft.models.huggingface import CausalLM
from multidraft.zoo import load_pair

FAMILIES = ["llama", "qwen2", "qwen3"]
TOLERANCE = 1e-4  # of the largest logit; float32 in another order gives less than 1e-5, the wrong twins 0.01 and more


def session(name: str, prompts: tuple[int, ...] = PROMPTS, capacity: int = 48) -> Session:
    return begun(tiny_model(name), tiny_file(name), prompts, capacity)


def begun(plain: PreTrainedModel, path: Path, prompts: tuple[int, ...] = PROMPTS, capacity: int = 48) -> Session:
    generator = torch.Generator().manual_seed(sum(prompts))
    sequences = [torch.randint(VOCABULARY, (n,), generator=generator).tolist() for n in prompts]
    made = Session(plain, GGUF(path, cache_type="f32").fresh(capacity), sequences, generator)
    made.prefill()
    return made


def alone(run: Session, trees: Forest) -> Tensor:
    """Every node's logits by reading its sequence and path from the beginning, a reader for each."""
    rows, nodes = trees.tokens.shape
    logits = torch.empty(rows, nodes, VOCABULARY)
    for row in range(rows):
        for node in range(nodes):
            tokens = torch.tensor([run.sequences[row] + trees.tokens[row, trees.path(row, node)].tolist()])
            slots = torch.arange(tokens.shape[1])[None]
            causal = (slots[0][:, None] >= slots[0])[None]
            logits[row, node] = run.model.fresh(1).forward(tokens, slots, causal)[0, -1]
    return logits


@pytest.mark.parametrize("name", FAMILIES)
def test_trees_read_at_once_equal_paths_read_alone_over_several_rounds(name):
    run = session(name)
    assert isinstance(run.model, LanguageModel)
    for _ in range(3):
        trees = forest(len(PROMPTS), 7, run.generator)
        got = run.read(trees)
        assert error(got, run.expected(trees)) < TOLERANCE
        assert error(got, alone(run, trees)) < TOLERANCE
        run.accept(trees)


def test_sliding_windows_are_kept_whole_and_cut_at_paths():
    """llama.cpp looks GELU up in a table of f16, which is all that Hugging Face says otherwise."""
    run = begun(window_model(), window_file())
    everything = replace(run, plain=window_model(sliding_window=CONTEXT))  # wrong: the window is as wide as the context
    for _ in range(3):
        trees = forest(len(PROMPTS), 7, run.generator)
        got = run.read(trees)
        assert error(got, alone(run, trees)) < TOLERANCE
        assert error(got, run.expected(trees)) < 10 * TOLERANCE
        assert error(got, everything.expected(trees)) > 1000 * TOLERANCE
        run.accept(trees)


@pytest.mark.parametrize("family", STATEFUL)
def test_models_with_a_state_are_refused_by_name(family):
    with pytest.raises(AdviceError, match=f"^{family} has .* recurrent state, which cannot be rolled back"):
        GGUF(stateful_file(family))


def test_level_by_level_equals_at_once():
    run, twin = session("llama"), session("llama")
    for _ in range(2):
        check_level_by_level(run, twin, TOLERANCE)
        assert [row.length for row in twin.model.rows] == list(map(len, run.sequences))


def test_rows_leave_in_the_middle_of_a_tree_and_go_on_as_two():
    run = session("llama")
    trees = forest(len(PROMPTS), 6, run.generator)
    whole = run.expected(trees)
    run.model.forward(trees.tokens[:, :3], run.positions(trees)[:, :3], trees.visible[:, :3, :3])
    run.model.select(torch.tensor([2, 1]))
    rest = run.model.forward(trees.tokens[[2, 1], 3:], run.positions(trees)[[2, 1], 3:], trees.visible[[2, 1], 3:])
    assert error(rest, whole[[2, 1], 3:]) < TOLERANCE
    run.model.keep(torch.full((2, 1), -1))
    run.model.select(torch.tensor([0, 0]))
    run.sequences = [run.sequences[2]] * 2
    trees = forest(2, 6, run.generator)
    assert error(run.read(trees), run.expected(trees)) < TOLERANCE


def test_rows_join_and_parts_share_cells():
    first, second = session("qwen2"), session("qwen2", prompts=(5,))
    with pytest.raises(AdviceError, match="rows of two different models cannot share a batch"):
        first.model.join(second.model)
    part = first.model.part(0, 4, 48)
    copy = Session(first.plain, part, [first.sequences[0][:4]], first.generator)
    for run in (copy, first):  # what is read in a part changes nothing in the whole
        trees = forest(len(run.sequences), 5, run.generator)
        assert error(run.read(trees), run.expected(trees)) < TOLERANCE
        run.accept(trees)
    first.model.join(part)
    first.sequences += copy.sequences
    trees = forest(len(first.sequences), 5, first.generator)
    assert error(first.read(trees), first.expected(trees)) < TOLERANCE


def test_a_memory_that_is_too_small_grows_and_forgets_nothing():
    run = session("llama", prompts=(30, 40, 50), capacity=1)
    assert run.model.memory.cells == 256
    others = [run.model.part(row, 30, 1) for row in range(3) for _ in range(8)]
    for _ in range(6):
        trees = forest(3, 12, run.generator)
        assert error(run.read(trees), run.expected(trees)) < TOLERANCE
        run.model.keep(torch.full((3, 1), -1))
        long = run.model.fresh(1)
        slots = torch.arange(60)[None]
        long.forward(slots, slots, (slots[0][:, None] >= slots[0])[None], logits=False)
        others.append(long)
    assert run.model.memory.cells > 256
    assert run.model.memory.sequences > 16


def test_sequences_come_back_when_rows_are_gone():
    run = session("llama")
    memory, rows = run.model.memory, len(PROMPTS)
    for _ in range(5):
        run.read(forest(rows, 7, run.generator))
        run.model.part(1, 2, 8)
        run.model.keep(torch.full((rows, 1), -1))
    memory.tidy()
    assert len(memory.free) == memory.sequences - rows
    run.model.select(torch.tensor([1]))
    memory.tidy()
    assert len(memory.free) == memory.sequences - 1
    del run
    memory.tidy()
    assert len(memory.free) == memory.sequences


def test_nodes_beyond_the_context_do_no_harm():
    run = session("llama", prompts=(CONTEXT - 2,), capacity=CONTEXT)
    chain = Forest(torch.randint(VOCABULARY, (1, 5), generator=run.generator), [[-1, 0, 1, 2, 3]])
    got, inside = run.read(chain), Forest(chain.tokens[:, :2], [[-1, 0]])
    assert got.isfinite().all()
    assert error(got[:, :2], run.expected(inside)) < TOLERANCE
    run.model.keep(torch.arange(5)[None])
    assert run.model.rows[0].length == CONTEXT


def test_an_interrupted_step_is_taken_back(monkeypatch):
    """Ctrl-C arrives when llama.cpp is done, before anybody has noted what it has read."""
    run = session("llama")
    trees, read = forest(len(PROMPTS), 7, run.generator), run.model.memory.read

    def interrupted(*given):
        read(*given)
        raise KeyboardInterrupt

    monkeypatch.setattr(run.model.memory, "read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.read(trees)
    monkeypatch.undo()
    run.model.keep(torch.full((len(PROMPTS), 0), -1))
    assert error(run.read(trees), run.expected(trees)) < TOLERANCE


def one_sequence(run: Session, trees: Forest, monkeypatch) -> Tensor:
    """Wrong: what all leaves go on from is one sequence, which sees all of them."""
    monkeypatch.setattr(Row, "sequence_after", lambda row, place: row.sequences[0])
    depths = torch.arange(trees.tokens.shape[1]).expand_as(trees.tokens)
    chain = torch.ones_like(trees.visible).tril()
    return run.model.forward(trees.tokens, run.positions(trees) - trees.depths + depths, chain)


def kept_elsewhere(run: Session, trees: Forest, monkeypatch) -> Tensor:
    """Wrong: the sequence that stays is not that of the path that is kept."""
    run.read(trees)
    for row in run.model.rows:
        row.through = [row.sequences[-1]] * len(row.through)
    paths = [trees.path(row, 2) for row in range(len(PROMPTS))]
    width = max(map(len, paths))
    run.model.keep(torch.tensor([path + [-1] * (width - len(path)) for path in paths]))
    for row, path in enumerate(paths):
        run.sequences[row] += trees.tokens[row, path].tolist()
    return run.read(trees)


@pytest.mark.parametrize("wrong", [one_sequence, kept_elsewhere])
def test_the_comparison_catches_a_wrong_twin(wrong, monkeypatch):
    run = session("llama")
    trees = Forest(forest(len(PROMPTS), 7, run.generator).tokens, [[-1, -1, 0, 0, 1, 2, 4]] * len(PROMPTS))
    assert error(wrong(run, trees, monkeypatch), run.expected(trees)) > 100 * TOLERANCE


def test_keep_refuses_what_is_no_path():
    run = session("llama", prompts=(5,))
    run.read(Forest(torch.zeros(1, 3, dtype=torch.int64), [[-1, -1, 0]]))
    for path in ([0, 3], [0, 1], [2], [0, 0]):
        with pytest.raises(AdviceError, match="no path of the pending tree"):
            run.model.keep(torch.tensor([path]))


def test_the_embedded_pair_says_what_hugging_face_says():
    """In float32; the target's weights are bfloat16, which float32 holds exactly."""
    pair = load_pair()
    text = torch.tensor([pair.tokenizer("Once upon a time there was a king who had")["input_ids"]])
    slots = torch.arange(text.shape[1])[None]
    causal = (slots[0][:, None] >= slots[0])[None]
    for model, path in zip((pair.target.float(), pair.draft), pair_files(), strict=True):
        theirs = CausalLM(model, 32).forward(text, slots, causal)
        ours = GGUF(path, cache_type="f32").fresh(32).forward(text, slots, causal)
        assert error(ours, theirs) < TOLERANCE
