"""A server whose drafter is a head: rows come and go, and what was read before is found again."""

import pytest
import torch
from heads import head_of
from tiny import tiny_model

import multidraft as md
from multidraft.decoding.policy import StaticTree
from multidraft.decoding.state import DecodeConfig
from multidraft.decoding.tree import Tree
from multidraft.server.engine import Engine
from multidraft.server.limits import Limits
from multidraft.server.rows import Ended, Failed, Job, Stepped

FIRST = [5, 3, 1, 8, 2, 9, 4]


def answered(engine: Engine, prompts: list[list[int]]) -> list[list[int]]:
    """The tokens of jobs that the engine decodes side by side, in this thread."""
    told: list[list] = [[] for _ in prompts]
    jobs = [
        Job(prompt, 10, own.append, generator=torch.Generator().manual_seed(row))
        for row, (prompt, own) in enumerate(zip(prompts, told, strict=True))
    ]
    engine.waiting.extend(jobs)
    with torch.inference_mode():
        while engine.waiting or engine.running or engine.reading:
            engine.turn()
    assert not any(isinstance(event, Failed) for own in told for event in own)
    assert all(isinstance(own[-1], Ended) for own in told)
    return [[t for event in own if isinstance(event, Stepped) for t in event.new.tokens] for own in told]


@pytest.mark.parametrize("name", ["eagle3", "dflash", "medusa"])
def test_a_conversation_goes_on_where_its_head_had_been(name):
    """As without a cache of prefixes, whatever part of them is found; prompts are read in pieces."""
    target = tiny_model("llama")
    config = DecodeConfig(md.scheme("anchored:lorenz"), StaticTree(Tree.parse("2x2x1")))
    engine = Engine(target, head_of(name), config, Limits(rows=3, prefill=4))
    answers = answered(engine, [FIRST, [7], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]])
    follow = [[*FIRST, *answers[0], 6, 6], [*FIRST[:4], 2, 2], [7, *answers[1][:5], 3]]
    before = engine.reused_tokens
    after = answered(engine, follow)
    assert engine.reused_tokens > before + 15
    for prompts, found in (([FIRST, [7]], answers[:2]), (follow, after)):
        generators = [torch.Generator().manual_seed(row) for row in range(len(prompts))]
        wanted, _ = md.generate(
            target, head_of(name), prompts, max_new_tokens=10, tree="2x2x1", generator=generators, eos_token_id=[]
        )
        assert [own.tolist() for own in wanted] == found
