"""A drafter whose context is shorter than the target's: rows go on without drafts behind it, and nothing is cut."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from decoded import readers
from ggufs import pair_files
from heads import filled, head_of
from serving import complete, letters, served, service
from tiny import CONTEXT, tiny_model

import multidraft as md
from multidraft.decoding.batch import Batch
from multidraft.decoding.policy import StaticTree
from multidraft.decoding.request import Request
from multidraft.decoding.state import DecodeConfig
from multidraft.decoding.tree import Tree
from multidraft.models.ensemble import LookupThenModel, Mixture, SideBySide
from multidraft.models.gguf.model import GGUF
from multidraft.models.heads.configuration import settings_of
from multidraft.models.heads.drafters import drafter
from multidraft.models.heads.networks import MODULES
from multidraft.models.ngram import Lookup

SHORT, NEW = 20, 16
PROMPTS = [[1, 2, 3, 4, 5], [7, 8, 9] * 5, [4, 3, 2, 1] * 10]  # before the drafter's end, across it, and behind it
TARGET = tiny_model("llama")


def short_head(kind: str) -> Any:
    settings = head_of(kind).module.settings
    layer = type(settings.layer)(**settings.layer.to_dict() | {"max_position_embeddings": SHORT})
    return drafter(filled(MODULES[settings.kind](replace(settings, layer=layer))))


DRAFTERS: dict[str, Any] = {
    "gpt2": lambda: tiny_model("gpt2", n_positions=SHORT),
    "qwen2": lambda: tiny_model("qwen2", max_position_embeddings=SHORT),
    "two": lambda: SideBySide([tiny_model("qwen2", max_position_embeddings=SHORT), tiny_model("gemma")]),
    "mixture": lambda: Mixture([tiny_model("qwen2", max_position_embeddings=SHORT), Lookup(TARGET.vocab_size)]),
    "eagle3": lambda: short_head("eagle3"),
    "dflash": lambda: short_head("dflash"),
}


@cache
def plain(prompt: tuple[int, ...]) -> list[int]:
    tokens, _ = md.generate(TARGET, None, [list(prompt)], temperature=0, max_new_tokens=NEW)
    return tokens[0].tolist()


def batch_of(draft: Any, on_record: Any = lambda record, requests: None, **limits: Any) -> Batch:
    scheme = md.scheme("distinct:recursive_rejection" if isinstance(draft, SideBySide) else "anchored:lorenz")
    return Batch(
        *readers(TARGET, draft), DecodeConfig(scheme), StaticTree(Tree.parse("2x1x1")), on_record=on_record, **limits
    )


@torch.inference_mode()
def decoded(batch: Batch, prompts: list[list[int]]) -> list[list[int]]:
    greedy = md.SamplingParams(temperature=0).compile([1], TARGET.vocab_size, torch.device("cpu"))
    batch.add(requests := [Request(prompt, NEW, greedy) for prompt in prompts])
    while batch.requests:
        batch.step()
    return [request.tokens for request in requests]


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_row_behind_the_drafters_context_goes_on_without_drafts(name):
    drafted: dict[bool, set[bool]] = {True: set(), False: set()}

    def note(record: Any, requests: Any) -> None:
        for row, tree, is_first in zip(record.targets.rows, record.trees, record.scored, strict=True):
            if is_first and row.root_logits is None:
                drafted[row.position < SHORT].add(len(tree) > 1)

    assert decoded(batch_of(DRAFTERS[name](), note), PROMPTS) == [plain(tuple(prompt)) for prompt in PROMPTS]
    assert drafted == {True: {True}, False: {False}}


@pytest.mark.parametrize("name", [*DRAFTERS, "look-up first"])
def test_prefixes_of_such_rows_are_kept(name):
    """The second time a part of each prompt is known to the target, and less to the drafter."""
    draft = DRAFTERS[name]() if name in DRAFTERS else LookupThenModel([Lookup(TARGET.vocab_size), DRAFTERS["gpt2"]()])
    batch = batch_of(draft, max_tokens=2000)
    first = decoded(batch, PROMPTS)
    longer = [[*prompt, *new[:2]] for prompt, new in zip(PROMPTS, first, strict=True)]
    assert decoded(batch, longer) == [plain(tuple(prompt)) for prompt in longer]
    assert batch.reused_tokens > sum(map(len, PROMPTS)) / 4


def test_look_ups_go_on_behind_the_models_context():
    """The draft model is asked no more, and the look-up's matches are still drafted."""
    copied = LookupThenModel([Lookup(TARGET.vocab_size), tiny_model("gpt2", n_positions=SHORT)])
    sizes = list[int]()

    def note(record: Any, requests: Any) -> None:
        sizes.extend(map(len, record.trees))

    prompts = [[4, 3, 2, 1] * 10]
    assert decoded(batch_of(copied, note), prompts) == [plain(tuple(prompts[0]))]
    assert max(sizes) > 1


def test_python_and_the_server_give_the_whole_answer():
    draft, prompt = tiny_model("gpt2", n_positions=SHORT), [4, 3, 2, 1] * 10
    tokens, _ = md.generate(TARGET, draft, [prompt], temperature=0, max_new_tokens=NEW, tree="2x1")
    assert tokens[0].tolist() == plain(tuple(prompt))
    sequences = TARGET.generate(
        torch.tensor([prompt]), custom_generate=md.generate, draft_model=draft, max_new_tokens=NEW, do_sample=False
    )
    assert sequences[0, len(prompt) :].tolist() == plain(tuple(prompt))
    with served(service(TARGET, draft, letters(26))) as client:
        answer = complete(client, prompt=prompt, max_tokens=NEW, temperature=0, logprobs=1)
        assert answer["usage"]["completion_tokens"] == NEW
        assert client.get("/v1/models").json()["data"][0]["max_model_len"] == CONTEXT


@pytest.mark.parametrize("tree", ["1x6", "2x2x1", "auto"])
def test_the_report_names_the_trees_that_were_drafted(tree):
    """Behind the drafter's context there are none, whatever the policy asks for; before it, some."""
    for prompt, has_drafts in ((PROMPTS[2], False), (PROMPTS[0], True)):
        _, info = md.generate(TARGET, DRAFTERS["gpt2"](), [prompt], temperature=0, max_new_tokens=NEW, tree=tree)
        report = info.as_dict()
        drafted = sum(count for name, count in report["trees"].items() if name != "none")
        assert (drafted, sum(report["trees"].values())) == (report["num_drafts"], info.row_passes)
        assert (drafted > 0) == (report["drafted_nodes"] > 0) == has_drafts


def test_a_gguf_draft_of_a_short_context():
    target, draft = (GGUF(path) for path in pair_files())
    prompt = list(range(3, 12)) * 3
    draft.context = SHORT
    expected, _ = md.generate(target, None, [prompt], temperature=0, max_new_tokens=NEW)
    tokens, info = md.generate(target, draft, [prompt], temperature=0, max_new_tokens=NEW, tree="2x1")
    assert tokens[0].tolist() == expected[0].tolist()
    assert info.draft_passes == 0


def test_a_head_that_does_not_say_its_context_has_the_targets():
    """And not the 2,048 tokens that transformers gives a Llama by default; Medusa has no positions."""
    config = {"architectures": ["Eagle3"], "hidden_size": 32, "num_attention_heads": 4}
    settings = settings_of(config, TARGET.config, "here")
    assert settings.layer.max_position_embeddings == CONTEXT
    assert head_of("medusa").context is None
