"""Models that masks cannot read trees of: node by node, as targets and drafters, in whole steps, and what is wrong."""

from collections.abc import Sequence
from copy import deepcopy

import pytest
import torch
import transformers
from decoded import start
from hybrids import AS_PATHS, HYBRIDS, MORE, ONE_PASS, hybrid
from reading import PROMPTS, TOLERANCE, Forest, Session, begin_session, chain, drawn, error, forest, worst_error_of_life
from steps import config_of, law_error
from tiny import VOCABULARY, tiny_model
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

import multidraft as md
from multidraft.decoding.step import step
from multidraft.errors import AdviceError
from multidraft.models.huggingface import compat
from multidraft.models.huggingface.gated_delta import DeltaLayer
from multidraft.models.huggingface.kv_cache import TreeCache
from multidraft.models.huggingface.loading import first_layers
from multidraft.models.huggingface.masks import CausalLM
from multidraft.models.huggingface.paths import Paths, Reading
from multidraft.models.ngram import NGram
from multidraft.models.reader import Reader
from multidraft.models.user_models import Model, as_reader
from multidraft.sampling.settings import Sampling

TOLD = [*ONE_PASS, *AS_PATHS]
EVERY = [*TOLD, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)]
FEW = ("qwen3_next", "qwen3_5", "lfm2", "mamba2")  # each way of reading, twice
QUICK = [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in (*TOLD, *MORE)]


def session(name: str, prompts: tuple[int, ...] = PROMPTS) -> Session:
    return begin_session(hybrid(name), as_reader(hybrid(name)).new(48), prompts)


@pytest.mark.parametrize("name", EVERY)
def test_every_family_reads_trees_as_it_reads_paths(name: str):
    """Over a batch's life: before and after keeping, in pieces, with rows of many lengths that leave and join."""
    assert isinstance(as_reader(hybrid(name)).new(9), CausalLM if name in ONE_PASS else Paths)
    assert worst_error_of_life(lambda prompts: session(name, prompts)) < TOLERANCE


@pytest.mark.parametrize("name", ["qwen3_5", "lfm2"])
def test_rows_may_all_leave_and_one_go_on_as_two(name: str):
    run, late = session(name, (6,)), session(name, (5, 3))
    run.gather([])
    run.model.extend(late.model)
    run.sequences = late.sequences
    run.gather([1, 1])
    assert run.step() < TOLERANCE


@pytest.mark.parametrize("name", ["qwen3_next", "mamba"])
def test_a_prompt_may_be_kept_in_part(name: str):
    """The state there was never formed, or let go."""
    run = session(name, (5, 2))
    later_trees = Forest([drawn(6, run.generator), drawn(3, run.generator)], [chain(6), chain(3)])
    run.model.forward(later_trees.tokens, later_trees.parents, "last")
    run.commit(later_trees, [[0, 1, 2], [0]])
    assert run.step() < TOLERANCE


def test_long_prompts_in_many_pieces_lose_no_digits():
    """Logarithms of decays are summed over a piece, and subtracted."""
    plain, generator = hybrid("qwen3_5", max_position_embeddings=1024), torch.Generator().manual_seed(1)
    run = Session(plain, as_reader(plain).new(700), [drawn(650, generator)], generator)
    assert run.prefill(512) < TOLERANCE
    assert run.step() < TOLERANCE


# Decoding


@pytest.mark.parametrize("name", QUICK)
def test_greedy_output_is_that_of_generate_with_any_drafter(name: str):
    """Each family is the target of a pair, and the drafter of the family before it."""
    names, prompts = list(HYBRIDS), [[5, 9, 3, 7, 1], [8, 7], [4]]
    target, draft = hybrid(name), hybrid(names[(names.index(name) + 1) % len(names)])
    settings = dict(max_new_tokens=9, do_sample=False)
    expected = [target.generate(torch.tensor([p]), **settings)[0, len(p) :].tolist() for p in prompts]
    for drafter, scheme in ((draft, "anchored:lorenz"), (NGram(VOCABULARY), "iid:recursive_rejection")):
        rows, _ = md.generate(target, drafter, prompts, scheme=scheme, tree="2x2x1", temperature=0, max_new_tokens=9)
        assert [row.tolist() for row in rows] == expected


def error_of_steps(name: str, target: Model, drafter: Model) -> float:
    """How far the laws of real steps, one and two, are from the target's, over every way that they can go."""
    plain = hybrid(name, vocab_size=3)

    def conditional(tokens: tuple[int, ...]) -> Tensor:
        return plain(torch.tensor([[1, 0, *tokens]]), use_cache=False).logits[0, -1].double().softmax(-1)

    configs = {1: config_of("iid:recursive_rejection", "2x1"), 2: config_of("iid:recursive_rejection", "1")}
    with torch.inference_mode():
        return max(law_error(target, drafter, [1, 0], config, conditional, steps) for steps, config in configs.items())


def test_logits_are_as_exact_as_a_model_s_head_makes_them() -> None:
    """Rounded to the model's own numbers, likely tokens became equal."""
    model = deepcopy(hybrid("mamba2")).to(torch.bfloat16)
    model.lm_head.register_forward_hook(lambda module, inputs, output: output.float() + 1e-4)
    scores = as_reader(model).new(8).forward([[1, 2]], [[-1, 0]])
    assert scores.logits.dtype == torch.float32
    assert not scores.logits.equal(scores.logits.bfloat16().float())


PAIRS = [("qwen3_5", "mamba2"), ("lfm2", "qwen3_5"), ("mamba2", "olmo_hybrid")]
MORE_PAIRS = [("qwen3_next", "falcon_h1"), ("olmo_hybrid", "bamba"), ("bamba", "qwen3_next"), ("falcon_h1", "lfm2")]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("name", "draft"), [*PAIRS, *(pytest.param(*p, marks=pytest.mark.slow) for p in MORE_PAIRS)])
def test_real_steps_have_the_target_law(name: str, draft: str):
    assert error_of_steps(name, hybrid(name, vocab_size=3), hybrid(draft, vocab_size=3)) < 1e-5  # of float32


# Wrong twins


class OtherCache(TreeCache):
    """A cache whose gated delta nets keep what this kind of layer keeps."""

    def __init__(self, layers: int, capacity: int, nets: Sequence[int], kind: type[DeltaLayer]):
        super().__init__(layers, capacity, nets)
        self.nets.layers = {place: kind(self.nets) for place in nets}
        self._hold(self.storage, self.layers)


class OtherNets(CausalLM):
    """A reader with such a cache."""

    def __init__(self, model: PreTrainedModel, capacity: int, kind: type[DeltaLayer], cache: type = OtherCache):
        super().__init__(model, capacity)
        self.kinds = kind, cache
        self.cache = cache(model.config.num_hidden_layers, capacity, self.nets, kind)

    def new(self, capacity: int) -> "OtherNets":
        return OtherNets(self.model, capacity, *self.kinds)


class SiblingsSeen(OtherCache):
    """Wrong: where a node has an elder sibling, it goes on from that one's state."""

    def masks(self, *arguments) -> dict[str, Tensor]:
        mask, seen = super().masks(*arguments), self.nets.seen.clone()
        for row in seen if seen.shape[1] == seen.shape[2] else ():
            above = row & ~torch.eye(len(row), dtype=torch.bool)
            for node in range(len(row)):
                elder = [other for other in range(node) if torch.equal(above[other], above[node])]
                row[node] |= row[elder[-1]] if elder else False
        self.nets.seen = seen
        return mask


class SiblingsFollowed(Paths):
    """Wrong in the same way."""

    def new(self, capacity: int) -> Paths:
        return SiblingsFollowed(self.model)

    def reading(self, row: int, nodes: list[int]) -> Reading:
        made, own = super().reading(row, nodes), self.rows[row]
        elder = [node for node in range(nodes[0]) if own.parents[node] == own.parents[nodes[0]] and node in own.memory]
        return made._replace(memory=own.memory[elder[-1]][0], place=own.memory[elder[-1]][1]) if elder else made

    def read(self, paths: list) -> dict:  # in their order, so that elder siblings come first
        logits = {}
        for path in paths:
            logits |= self.read_together([self.reading(*path)])
        return logits


class NothingKept(DeltaLayer):
    """Wrong: what is kept does not change the state."""

    def commit(self, marked: Tensor) -> None:
        pass


class RootStays(Paths):
    """Wrong in the same way."""

    def _commit(self, paths: list[list[int]]) -> None:
        before = [row.memory[-1] for row in self.rows]
        super()._commit(paths)
        for row, state in zip(self.rows, before, strict=True):
            row.memory[-1] = state


class ConvolutionSeesSlots(DeltaLayer):
    """Wrong: the last inputs are those of the last slots, whosever they are."""

    def convolve(self, *arguments, **settings) -> Tensor:
        seen = self.nets.seen
        self.nets.seen = torch.ones_like(seen).tril(seen.shape[2] - seen.shape[1])
        outputs = super().convolve(*arguments, **settings)
        self.nets.seen = seen
        return outputs


class RowsStay(DeltaLayer):
    """Wrong: when rows leave, the states of the first ones are those that go on."""

    def gather(self, rows: list[int]) -> None:
        super().gather(list(range(len(rows))))


def twin_of(wrong: str, name: str, **changes: int) -> Reader:
    """A reader of a model that is wrong in one of these ways."""
    model, is_one_pass = hybrid(name, **changes), name in ONE_PASS
    if wrong == "a sibling for a parent":
        return OtherNets(model, 48, DeltaLayer, SiblingsSeen) if is_one_pass else SiblingsFollowed(model)
    if wrong == "the root stays":
        return OtherNets(model, 48, NothingKept) if is_one_pass else RootStays(model)
    return OtherNets(model, 48, {"the convolution sees slots": ConvolutionSeesSlots, "rows stay": RowsStay}[wrong])


WRONG = [(wrong, n) for wrong in ("a sibling for a parent", "the root stays") for n in ("qwen3_5", "lfm2", "mamba2")]
WRONG += [(wrong, name) for wrong in ("the convolution sees slots", "rows stay") for name in ONE_PASS]


@pytest.mark.parametrize(("wrong", "name"), WRONG)
def test_the_comparison_catches_a_wrong_twin(wrong: str, name: str):
    """Texts are read well, and what comes after is not."""
    model, twin = hybrid(name), twin_of(wrong, name)
    run = begin_session(model, OtherNets(model, 48, DeltaLayer) if name in ONE_PASS else Paths(model))
    if isinstance(twin, Paths):
        twin.rows = run.model.rows
    else:
        twin.extend(run.model)
    run.model = twin
    if wrong == "rows stay":
        run.gather([2, 0])
    worst = run.step(9)
    trees = forest(len(run.sequences), 7, run.generator)
    assert max(worst, error(run.read(trees), run.expected(trees))) > 100 * TOLERANCE


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("name", "draft"), PAIRS[:2])
def test_enumeration_catches_a_sibling_taken_for_a_parent(name: str, draft: str):
    twins = [twin_of("a sibling for a parent", kind, vocab_size=3) for kind in (name, draft)]
    assert error_of_steps(name, *twins) > 1e-4  # ten times what is let through above


# Interruptions, memory, ways in


PLACES = [("qwen3_5", DeltaLayer, method) for method in ("convolve", "rule", "commit", "drop_pending")]
PLACES += [("lfm2", Paths, method) for method in ("read_together", "_commit")]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("name", "owner", "method"), PLACES)
@torch.inference_mode()
def test_an_interruption_leaves_a_state_usable_or_says_so(name: str, owner: type, method: str):
    config = config_of("anchored:lorenz", "2x1")

    def run(interrupted: int) -> list[list[int]]:
        left = -1

        def alarmed(self: object, *arguments, **settings):
            nonlocal left
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
            return getattr(owner, method)(self, *arguments, **settings)

        kind = type("Interrupted", (owner,), {method: alarmed, "new": lambda self, capacity: kind(self.model)})
        target = OtherNets(hybrid(name), 48, kind) if owner is DeltaLayer else kind(hybrid(name))
        state = start([[1, 2], [3]], target, NGram(VOCABULARY), config, [Sampling(0)] * 2, 30)
        left, done = interrupted, [[], []]
        while min(map(len, done)) < 6:
            try:
                state, record = step(state, *config)
            except KeyboardInterrupt:
                continue
            done = [row_tokens + emitted.tokens for row_tokens, emitted in zip(done, record.emitted, strict=True)]
        return [row_tokens[:6] for row_tokens in done]

    truth = run(-1)
    for after in (1, 2, 5):
        try:
            assert run(after) == truth
        except AdviceError as advice:
            assert "or was interrupted while its caches were written" in str(advice)  # noqa: PT017


def test_the_first_layers_of_a_hybrid_draft_and_the_model_stays_as_it_was():
    plain = hybrid("qwen3_5")
    before = {name: module for name, module in plain.named_modules()}
    rows, _ = md.generate(plain, first_layers(plain, 2), [[1, 2, 3]], tree="2x1", temperature=0, max_new_tokens=6)
    assert rows[0].tolist() == md.generate(plain, None, [[1, 2, 3]], temperature=0, max_new_tokens=6)[0][0].tolist()
    assert {name: module for name, module in plain.named_modules()} == before


@pytest.mark.parametrize("name", ["qwen3_5", "lfm2"])
def test_compiled_steps_are_done_without(name: str):
    settings = dict(tree="2x1", temperature=0, max_new_tokens=5)
    expected = md.generate(hybrid(name), NGram(VOCABULARY), [[1, 2]], **settings)[0][0]
    with pytest.warns(UserWarning, match="goes on without compiled steps"):
        rows, _ = md.generate(hybrid(name), NGram(VOCABULARY), [[1, 2]], compile=True, **settings)
    assert torch.equal(rows[0], expected)


# What is refused


TINY = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 3}


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("BertConfig", {"num_attention_heads": 4}, "bert is an encoder, whose tokens see later"),
        ("RwkvConfig", {"attention_hidden_size": 32}, "rwkv is read wrongly by transformers where a batch goes on"),
        ("RecurrentGemmaConfig", {"num_attention_heads": 4}, "recurrent_gemma keeps its state in its own layers"),
    ],
)
def test_what_cannot_work_is_refused_by_name(kind: str, settings: dict, message: str):
    config = getattr(transformers, kind)(**TINY, **settings)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(AdviceError, match=message):
        as_reader(model).new(9)


def test_versions_in_which_states_have_other_forms_are_refused(monkeypatch):
    monkeypatch.setattr(compat, "STATES", compat.Version("99"))
    for name in ("qwen3_5", "mamba2"):
        with pytest.raises(AdviceError, match="a recurrent state, which is read from transformers 99 on; update it"):
            as_reader(hybrid(name)).new(9)
    as_reader(tiny_model("llama")).new(9)
