"""The public way in: greedy output, seeds, limits, ends of text, streams, and errors that advise."""

import pytest
import torch
from decoded import tables
from tiny import CONTEXT, VOCABULARY, tiny_model

import multidraft as md
from multidraft.decoding.metrics import Info
from multidraft.decoding.record import Emitted
from multidraft.decoding.walks import WALKS

SIZE = 5
PROMPTS = [[0, 1], [2, 3, 1, 0], [4]]
TREES = {"spechub": "2x2"}  # by law, where the usual one does not fit
NAMES = [scheme["name"] for scheme in md.schemes() if scheme["law"] != "distinct" and not scheme["small"]]
LAW = tables()[0].conditional


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def run(prompts: list[list[int]] = PROMPTS, **settings) -> tuple[list[list[int]], Info]:
    """Tokens of a run with table models, and the report."""
    settings = dict(tree="3x2x1", generator=generator(), max_new_tokens=20) | settings
    rows, info = md.generate(*tables(), prompts, **settings)
    return [row.tolist() for row in rows], info


def greedy_table(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(LAW(tuple(tokens)).argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize("name", NAMES)
def test_greedy_on_tables(name, walk):
    settings = dict(temperature=0, tree=TREES.get(name.split(":")[0], "3x2x1"), max_new_tokens=8)
    assert run(scheme=name, walk=walk, **settings)[0] == [greedy_table(prompt, 8) for prompt in PROMPTS]


@torch.inference_mode()
def greedy(model: torch.nn.Module, prompt: list[int], count: int) -> list[int]:
    """Plain decoding, every step from scratch."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize("name", ["anchored:lorenz", "without_replacement:recursive_rejection", "top:naive"])
def test_greedy_on_tiny_models(name, walk):
    settings = dict(scheme=name, walk=walk, tree="3x2x1", temperature=0, max_new_tokens=8)
    rows, _ = md.generate(tiny_model("gpt2"), tiny_model("qwen2"), PROMPTS, **settings)
    assert [row.tolist() for row in rows] == [greedy(tiny_model("gpt2"), prompt, 8) for prompt in PROMPTS]


def test_a_seed_repeats_itself_and_another_does_not():
    runs = [run(generator=generator(seed))[0] for seed in (3, 3, 4)]
    assert runs[0] == runs[1] != runs[2]


def test_end_of_text_stops_a_row_and_others_go_on():
    free, free_info = run(generator=[generator(seed) for seed in range(3)], eos_token_id=[])
    stopped, info = run(generator=[generator(seed) for seed in range(3)], eos_token_id=[3, 4])
    for row, (cut, whole) in enumerate(zip(stopped, free, strict=True)):
        end = next((i + 1 for i, token in enumerate(whole) if token in (3, 4)), len(whole))
        assert cut == whole[:end], row
    assert min(map(len, stopped)) < max(map(len, stopped))
    assert info.tokens == sum(map(len, stopped))
    assert info.finish_reasons == ["stop" if row[-1] in (3, 4) else "length" for row in stopped]
    assert free_info.finish_reasons == ["length"] * 3


@pytest.mark.parametrize("tree", ["2x2x1", "1x1x1x1x1x1x1x1"])
def test_context_limit(tree):
    """A tree may reach beyond the context; the tokens up to there are still those of plain decoding."""
    model, room = tiny_model("llama"), 6
    prompts = [[1, 2, 3] * 20, list(range(CONTEXT - room))]
    rows, _ = md.generate(model, tiny_model("qwen2"), prompts, tree=tree, temperature=0, max_new_tokens=50)
    room = [CONTEXT - len(prompt) for prompt in prompts]
    assert [row.tolist() for row in rows] == [greedy(model, p, n) for p, n in zip(prompts, room, strict=True)]


def test_stream_gets_exactly_the_returned_tokens():
    pieces: dict[int, list[Emitted]] = {0: [], 1: [], 2: []}
    rows, info = run(stream=lambda row, emitted: pieces[row].append(emitted))
    kinds = []
    for row, emitted in pieces.items():
        assert [token for piece in emitted for token in piece.tokens] == rows[row]
        assert all(len(piece.kinds) == len(piece.tokens) > 0 for piece in emitted)
        assert all(set(piece.kinds[:-1]) <= {"accepted"} for piece in emitted)
        kinds += [kind for piece in emitted for kind in piece.kinds]
    assert set(kinds) == {"accepted", "recovered", "bonus"}
    assert kinds.count("accepted") <= info.accepted
    assert sum(map(len, pieces.values())) == info.row_passes


def test_without_a_draft_model_it_decodes_plainly():
    prompts = [*PROMPTS, [4, 1]]  # two of them are equally long
    rows, info = md.generate(tables()[0], None, prompts, temperature=0, max_new_tokens=9)
    assert [row.tolist() for row in rows] == [greedy_table(prompt, 9) for prompt in prompts]
    assert (info.block_efficiency, info.target_passes, info.accepted) == (1, 9, 0)


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        (dict(scheme="top:lorenz"), "lorenz is not valid for drafts of the law top; valid rules for it: naive"),
        (dict(scheme="distinct:naive"), "use iid"),
        (dict(scheme="spechub:naive", tree="3"), "use drafts=2"),
        (dict(walk="random"), "unknown walk 'random'; walks are deferred, commit"),
        (dict(prompts=[[1, SIZE]]), f"prompt 0 has token {SIZE}, but the vocabulary is 0 to {SIZE - 1}"),
    ],
)
def test_advice(settings, advice):
    with pytest.raises(md.AdviceError, match=advice):
        run(**settings)


def test_advice_on_contexts_and_vocabularies():
    model = tiny_model("llama")
    with pytest.raises(md.AdviceError, match=f"prompt 0 has {CONTEXT} tokens and the target's context is {CONTEXT}"):
        md.generate(model, model, [[1] * CONTEXT])
    with pytest.raises(md.AdviceError, match=f"target has {VOCABULARY} tokens and the draft {SIZE}"):
        md.generate(model, tables()[1], [[1, 2]])


def test_the_public_names_of_version_0_1_0_are_there():
    names = "GGUF AdviceError Tree audit generate optimal_acceptance_rate scheme schemes".split()
    assert all(getattr(md, name) for name in names)
