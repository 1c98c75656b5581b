"""A tree read in one pass, and the next one after a path is kept, against the plain model reading every path."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field

import pytest
import torch
import transformers
from tiny import CASES, CONTEXT, EAGER_ONLY, VOCABULARY, WINDOW, WINDOWED, tiny_model
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from multidraft.errors import AdviceError
from multidraft.models.blocks import Block
from multidraft.models.huggingface import CausalLM, context
from multidraft.models.kv_cache import TreeCache
from multidraft.models.support import check_supported

TOLERANCE = 1e-4  # of the largest logit; float32 gives less than 1e-6, the wrong twins 0.07 and more
PROMPTS = (9, 4, 7)


@dataclass
class Forest:
    """One random tree for each row, as nodes in topological order (a parent of -1 is the last kept token)."""

    tokens: Tensor
    parents: list[list[int]]
    visible: Tensor = field(init=False)
    depths: Tensor = field(init=False)

    def __post_init__(self):
        rows, nodes = self.tokens.shape
        self.visible = torch.zeros(rows, nodes, nodes, dtype=torch.bool)
        for row, parents in enumerate(self.parents):
            for node, parent in enumerate(parents):
                if parent >= 0:
                    self.visible[row, node] = self.visible[row, parent]
                self.visible[row, node, node] = True
        self.depths = self.visible.sum(-1) - 1

    def path(self, row: int, node: int) -> list[int]:
        return self.visible[row, node].nonzero().flatten().tolist()


def forest(rows: int, nodes: int, generator: torch.Generator) -> Forest:
    tokens = torch.randint(VOCABULARY, (rows, nodes), generator=generator)
    parents = [[int(torch.randint(-1, n, (), generator=generator)) for n in range(nodes)] for _ in range(rows)]
    return Forest(tokens, parents)


@dataclass
class Session:
    """A CausalLM beside the plain sequences that it should hold."""

    plain: PreTrainedModel
    model: CausalLM
    sequences: list[list[int]]
    generator: torch.Generator

    def prefill(self) -> None:
        lengths = torch.tensor([len(sequence) for sequence in self.sequences])
        tokens = torch.zeros(len(lengths), int(lengths.max()), dtype=torch.int64)
        for row, sequence in enumerate(self.sequences):
            tokens[row, : len(sequence)] = torch.tensor(sequence)
        slots = torch.arange(tokens.shape[1]).expand_as(tokens)
        causal = slots[:, :, None] >= slots[:, None]
        assert self.model.forward(tokens, slots, causal, logits=False).shape[1] == 0
        self.model.keep(slots.where(slots < lengths[:, None], -1))

    def positions(self, trees: Forest) -> Tensor:
        return torch.tensor([len(sequence) for sequence in self.sequences])[:, None] + trees.depths

    def read(self, trees: Forest) -> Tensor:
        return self.model.forward(trees.tokens, self.positions(trees), trees.visible)

    @torch.no_grad()
    def expected(self, trees: Forest) -> Tensor:
        """Every node's logits, by reading its sequence and path from the beginning, without a cache."""

        def logits(row: int, node: int) -> Tensor:
            path = [int(trees.tokens[row, slot]) for slot in trees.path(row, node)]
            return self.plain(torch.tensor([self.sequences[row] + path]), use_cache=False).logits[0, -1]

        rows, nodes = trees.tokens.shape
        return torch.stack([torch.stack([logits(row, node) for node in range(nodes)]) for row in range(rows)])

    def accept(self, trees: Forest) -> None:
        """Keep the path to a random node of each row; the last row keeps nothing once in a while."""
        rows, nodes = trees.tokens.shape
        ends = torch.randint(nodes, (rows,), generator=self.generator).tolist()
        paths = [trees.path(row, end) for row, end in enumerate(ends)]
        if ends[-1] % 2:
            paths[-1] = []
        width = max(map(len, paths)) + 1
        self.model.keep(torch.tensor([path + [-1] * (width - len(path)) for path in paths]))
        for row, path in enumerate(paths):
            self.sequences[row] += trees.tokens[row, path].tolist()


def session(name: str, attention: str | None = None, prompts: tuple[int, ...] = PROMPTS, capacity: int = 48) -> Session:
    generator = torch.Generator().manual_seed(sum(prompts))
    sequences = [torch.randint(VOCABULARY, (n,), generator=generator).tolist() for n in prompts]
    plain = tiny_model(name, attention or ("eager" if name in EAGER_ONLY else "sdpa"))
    made = Session(plain, CausalLM(plain, capacity), sequences, generator)
    made.prefill()
    return made


def error(got: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest logit."""
    return float((got - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize(("name", "attention"), CASES)
def test_trees_read_at_once_equal_paths_read_alone_over_several_rounds(name, attention):
    run = session(name, attention)
    for _ in range(3):
        trees = forest(len(PROMPTS), 7, run.generator)
        assert error(run.read(trees), run.expected(trees)) < TOLERANCE
        run.accept(trees)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "mistral window", "mixtral", "gptj"])
def test_one_row_takes_the_short_way_and_is_right(name):
    run = session(name, "eager", prompts=(6,))
    for _ in range(4):
        trees = forest(1, 7, run.generator)
        assert error(run.read(trees), run.expected(trees)) < TOLERANCE
        run.accept(trees)


def check_level_by_level(run: Session, twin: Session, tolerance: float) -> None:
    """The twin reads a tree level by level and says what the other says at once; then both keep the same paths."""
    trees = forest(len(PROMPTS), 7, run.generator)
    trees = Forest(trees.tokens, [[-1, -1, 0, 0, 1, 2, 4]] * len(PROMPTS))
    at_once, positions = run.read(trees), run.positions(trees)
    for level in [[0, 1], [2, 3, 4], [5, 6]]:
        pending = level[-1] + 1
        got = twin.model.forward(trees.tokens[:, level], positions[:, level], trees.visible[:, level, :pending])
        assert error(got, at_once[:, level]) < tolerance
    chosen = torch.tensor([[1, 4, 6], [0, 3, -1], [1, -1, -1]])
    for each in (run, twin):
        each.model.keep(chosen)
    for row, path in enumerate(chosen):
        run.sequences[row] += trees.tokens[row, path[path >= 0]].tolist()


@pytest.mark.parametrize("name", ["llama", "opt", "gemma3", "phi3 window"])
def test_level_by_level_equals_at_once(name):
    run, twin = session(name), session(name)
    for _ in range(2):
        check_level_by_level(run, twin, TOLERANCE)
        trees = forest(len(PROMPTS), 4, run.generator)
        assert error(twin.model.forward(trees.tokens, run.positions(trees), trees.visible), run.read(trees)) < TOLERANCE
        for each in (run, twin):
            each.model.keep(torch.full((len(PROMPTS), 1), -1))


@pytest.mark.parametrize("name", ["llama", "mistral window"])
def test_select_leaves_the_other_rows_as_they_were(name):
    run = session(name)
    trees = forest(len(PROMPTS), 6, run.generator)
    run.read(trees)
    run.accept(trees)
    rows = torch.tensor([2, 1])
    run.model.select(rows)
    run.sequences = [run.sequences[row] for row in rows]
    trees = forest(2, 6, run.generator)
    whole = run.expected(trees)
    first = run.model.forward(trees.tokens[:, :3], run.positions(trees)[:, :3], trees.visible[:, :3, :3])
    run.model.select(torch.tensor([1]))  # in the middle of a tree
    rest = run.model.forward(trees.tokens[1:, 3:], run.positions(trees)[1:, 3:], trees.visible[1:, 3:])
    assert error(first, whole[:, :3]) < TOLERANCE
    assert error(rest, whole[1:, 3:]) < TOLERANCE
    run.model.select(torch.tensor([], dtype=torch.int64))
    assert run.model.cache.lengths == []


@pytest.mark.parametrize("name", ["gpt2", "opt", "llama", "dynamic rope"])
def test_nodes_beyond_the_context_do_no_harm(name):
    run = session(name, prompts=(CONTEXT - 2,), capacity=CONTEXT)
    chain = Forest(torch.randint(VOCABULARY, (1, 5), generator=run.generator), [[-1, 0, 1, 2, 3]])
    got = run.read(chain)
    inside = Forest(chain.tokens[:, :2], [[-1, 0]])
    assert got.isfinite().all()
    assert error(got[:, :2], run.expected(inside)) < TOLERANCE


def visible_without_ancestors(run: Session, trees: Forest) -> Tensor:
    """Wrong: a node sees every node before it, whether an ancestor or not."""
    return run.model.forward(trees.tokens, run.positions(trees), torch.ones_like(trees.visible).tril())


def positions_by_slot(run: Session, trees: Forest) -> Tensor:
    """Wrong: a node's position is its slot instead of its depth."""
    slots = run.model.cache.base + torch.arange(trees.tokens.shape[1]).expand_as(trees.tokens)
    return run.model.forward(trees.tokens, slots, trees.visible)


def holes_unmasked(run: Session, trees: Forest) -> Tensor:
    """Wrong: rows see the holes between their last kept token and the first pending one."""
    run.model.cache.holes = None
    return run.read(trees)


def windows_forgotten(run: Session, trees: Forest) -> Tensor:
    """Wrong: the tree's mask replaces the window."""
    run.model.windows = dict.fromkeys(run.model.windows)
    return run.read(trees)


def moved_to_the_wrong_place(run: Session, trees: Forest) -> Tensor:
    """Wrong: keys and values stay behind when a path is kept."""
    run.model.cache._move = lambda *_: None
    run.read(trees)
    run.accept(trees)
    return run.read(trees)


WRONG = [visible_without_ancestors, positions_by_slot, holes_unmasked, moved_to_the_wrong_place]
WRONG_CASES = [(wrong, name) for wrong in WRONG for name in ("llama", "gpt2", "gemma3")]


@pytest.mark.parametrize(("wrong", "name"), WRONG_CASES + [(windows_forgotten, name) for name in WINDOWED])
def test_the_comparison_catches_a_wrong_twin(wrong: Callable[[Session, Forest], Tensor], name: str):
    run = session(name)
    trees = forest(len(PROMPTS), 7, run.generator)
    assert error(wrong(run, trees), run.expected(trees)) > 100 * TOLERANCE


def pointers(model: CausalLM) -> list[int]:
    return [buffer.data_ptr() for layer in model.cache.layers for buffer in layer.buffers]


def test_keep_neither_reallocates_nor_moves_more_than_the_path(monkeypatch):
    run = session("llama")
    chain = Forest(torch.zeros(3, 6, dtype=torch.int64), [[-1, 0, 1, 2, -1, 4]] * 3)
    run.read(chain)
    before, moved = pointers(run.model), []
    move = Block.move
    monkeypatch.setattr(Block, "move", lambda self, *slots: moved.append(slots) or move(self, *slots))
    run.model.keep(torch.tensor([[4, 5, -1], [0, 1, 2], [-1, -1, -1]]))
    assert pointers(run.model) == before
    assert [(source.shape, destination.shape) for source, destination in moved] == [((3, 3), (3, 3))]  # for all layers


def test_a_path_already_in_place_is_not_moved(monkeypatch):
    run = session("llama", prompts=(6,))
    run.read(forest(1, 4, run.generator))
    monkeypatch.setattr(run.model.cache, "_move", pytest.fail)
    run.model.keep(torch.tensor([[0, 1, 2]]))
    assert run.model.cache.lengths == [9]


def test_a_buffer_that_is_too_small_grows():
    run = session("mistral window", capacity=1)
    for _ in range(3):
        trees = forest(len(PROMPTS), 7, run.generator)
        assert error(run.read(trees), run.expected(trees)) < TOLERANCE
        run.accept(trees)


def test_the_users_model_is_left_as_it_was():
    plain = tiny_model("gemma3")
    before = (
        plain.config.to_dict(),
        plain.generation_config.to_dict(),
        {k: v.clone() for k, v in plain.state_dict().items()},
    )
    run = session("gemma3")
    run.read(forest(len(PROMPTS), 4, run.generator))
    assert (plain.config.to_dict(), plain.generation_config.to_dict()) == before[:2]
    assert all(torch.equal(value, before[2][key]) for key, value in plain.state_dict().items())


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("MambaConfig", {"hidden_size": 32}, "mamba has .*, which cannot be rolled back to a path"),
        ("Mamba2Config", {"hidden_size": 32, "num_heads": 4, "head_dim": 16}, "mamba2 has .*, which cannot be rolled"),
        (
            "JambaConfig",
            {"hidden_size": 32, "num_experts": 2, "use_mamba_kernels": False},
            "jamba has .*, which cannot",
        ),
        ("FalconH1Config", {"hidden_size": 32, "num_attention_heads": 4}, "falcon_h1 has .*, which cannot be rolled"),
        ("RecurrentGemmaConfig", {"hidden_size": 32, "num_attention_heads": 4}, "recurrent_gemma has .*, which cannot"),
        ("MiniMaxConfig", {"hidden_size": 32, "num_local_experts": 2}, "minimax has layers of type linear_attention"),
        ("Llama4TextConfig", {"hidden_size": 32}, "llama4_text has layers of type chunked_attention"),
        ("BertConfig", {"hidden_size": 32, "num_attention_heads": 4}, "bert is an encoder, whose tokens see later"),
        ("Qwen3NextConfig", {"hidden_size": 32, "num_experts": 4}, "qwen3_next has layers of type linear_attention"),
        (
            "GPTNeoConfig",
            {"num_layers": 2, "attention_types": [[["local"], 2]]},
            "gpt_neo builds its own local mask",
        ),
        ("RwkvConfig", {"hidden_size": 32}, "rwkv has a recurrent state, which cannot be rolled back"),
        ("BloomConfig", {"hidden_size": 32, "n_head": 4}, "bloom takes no explicit positions"),
        ("FalconConfig", {"hidden_size": 32, "num_attention_heads": 4, "alibi": True}, "falcon takes no explicit pos"),
    ],
)
def test_models_that_cannot_be_trusted_are_refused(kind, settings, message):
    settings = {"vocab_size": VOCABULARY, "num_hidden_layers": 2, **settings}
    config = getattr(transformers, kind)(**settings)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(AdviceError, match=message):
        CausalLM(model)


def test_settings_that_cannot_be_trusted_are_refused():
    model = AutoModelForCausalLM.from_config(deepcopy(tiny_model("llama").config))
    with pytest.raises(AdviceError, match=r"training mode.*call model.eval\(\) first"):
        check_supported(model.train())
    model.eval().config._attn_implementation = "flex_attention"
    with pytest.raises(
        AdviceError, match='flex_attention takes no tree mask; load llama with attn_implementation="sdpa"'
    ):
        check_supported(model)


def test_longrope_is_used_up_to_its_original_context_only():
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    settings = {"hidden_size": 32, "num_attention_heads": 4, "max_position_embeddings": CONTEXT, "pad_token_id": None}
    long = transformers.Phi3Config(rope_parameters=rope, original_max_position_embeddings=16, **settings)
    assert context(long) == 16
    assert context(transformers.Phi3Config(**settings)) == CONTEXT


def test_misuse_gets_advice():
    with pytest.raises(AdviceError, match="capacity 0 holds no token"):
        TreeCache(2, 0)
    run = session("llama")
    trees = forest(len(PROMPTS), 3, run.generator)
    with pytest.raises(AdviceError, match=r"2 rows for a cache of 3; rows leave by select\(rows\) and come by join"):
        run.model.forward(trees.tokens[:2], trees.depths[:2], trees.visible[:2])
    run.read(trees)
    with pytest.raises(AdviceError, match=r"visible has shape \(3, 3, 3\); it must be \(3, new, 6\)"):
        run.read(trees)


@pytest.mark.parametrize("path", [[0, 3], [0, 0], [-1, 0], [-2, -1]])
def test_keep_refuses_what_is_no_path(path):
    run = session("llama", prompts=(WINDOW,))
    run.read(forest(1, 3, run.generator))
    with pytest.raises(AdviceError, match=r"chosen has a row .*distinct pending slots \(0 to 2\)"):
        run.model.keep(torch.tensor([path]))
    with pytest.raises(AdviceError, match="chosen has 2 rows, the cache 1"):
        run.model.keep(torch.tensor([path, path]))
