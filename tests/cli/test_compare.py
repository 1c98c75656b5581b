"""What stands beside drafting: intervals over prompts, assisted generation, a hint where a chain would be faster."""

from pathlib import Path

import torch
from commands import printed, written
from tiny import NO_IDS, ROTARY, VOCABULARY, tiny_model
from transformers import LlamaConfig, LlamaForCausalLM

from multidraft.cli.models import Models
from multidraft.cli.report import ASSISTED, LOOKUP, Runs, hint, rivals, widened
from multidraft.decoding.metrics import PARTS, Info
from multidraft.models.ensemble import Copying
from multidraft.models.ngram import Lookup


def runs(*rates: float) -> Runs:
    """Batches of a second each."""
    return Runs([int(rate) for rate in rates], [1.0] * len(rates))


def test_the_interval_is_that_of_prompts() -> None:
    """Prompts on which both sides are as slow do not widen the interval of the ratio; a single prompt has none."""
    ours, plain = runs(20, 200, 40, 400), runs(10, 100, 20, 200)
    assert ours.over(plain) == 2
    assert ours.interval(plain) == (2, 2)
    low, high = ours.interval() or (0, 0)
    assert low < 165 < high
    low, high = runs(10, 20, 30).interval(runs(10, 10, 10)) or (0, 0)
    assert low == 1
    assert high == 3
    assert runs(10).interval(plain) is None


def wide(target: float) -> Info:
    """Ten steps of a 4x2x2x1 tree that took `target` seconds in the target model and one in the draft model."""
    seconds = dict.fromkeys(PARTS, 0.0) | {"target": target, "draft": 1.0}
    counts = dict(lengths=[2, 2, 2, 2, 2], ranks=[18, 2, 0, 0], accepted=20, corrected=8, bonus=2, tokens=30)
    return Info(target_passes=10, row_passes=10, drafts=10, nodes=440, seconds=seconds, **counts)


PLAIN = Info(tokens=30, row_passes=30, seconds=dict.fromkeys(PARTS, 0.0) | {"target": 15.0})


def test_a_hint_where_a_chain_would_be_faster() -> None:
    assert hint(wide(5.0), PLAIN, "4x2x2x1") is None, "nodes cost nothing: no chain is faster"
    said = hint(wide(16.0), PLAIN, "4x2x2x1")
    assert said is not None
    assert "4x2x2x1 runs at 0.88 times plain" in said
    assert "--tree 1x1x1 would run at about 1.79 times" in said
    assert hint(wide(16.0), Info(), "4x2x2x1") is None, "nothing to compare with"


def test_a_hint_where_drafting_does_not_pay() -> None:
    never = Info(tokens=10, row_passes=10, drafts=10, nodes=440, lengths=[10, 0], ranks=[0], corrected=10)
    never.seconds["target"] = 20.0
    said = hint(never, PLAIN, "44") or ""
    assert "no drafts are best here: --draft none (tree 44 runs at 0.25 times plain decoding, 0% of first" in said


def test_compare_reports_assisted_generation_and_intervals(tmp_path: Path) -> None:
    file = written(tmp_path / "prompts.jsonl", "The old house", "A storm")
    report = printed("generate", "--prompts", file, "--tree", "2x1", "--max-new-tokens", 4, "--compare")
    names = [f"{side}_{what}" for side in ("assisted", "lookup") for what in ("tokens_per_second", "speedup")]
    for name in [*names, "speedup"]:
        low, high = report[f"{name}_interval"]
        assert 0 < low <= report[name] <= high
    once = ("--prompt", "The old house", "--max-new-tokens", 4)
    alone = printed("generate", *once, "--draft", "ngram", "--tree", "1", "--compare")
    assert alone["speedup"] > 0
    assert alone["speedup_interval"] is None
    assert alone["assisted_tokens_per_second"] is None, "transformers cannot draft with this"


def test_a_draft_with_a_part_of_the_vocabulary_assists_transformers_too() -> None:
    """As one of the whole vocabulary, whose other tokens are never drafted; the text stays the target's."""
    target = tiny_model("llama")
    torch.manual_seed(3)
    ids = list(range(0, VOCABULARY, 2))
    draft = LlamaForCausalLM(LlamaConfig(**ROTARY | {"vocab_size": len(ids) + 1}, **NO_IDS, target_ids=ids)).eval()
    wide = widened(draft, VOCABULARY)
    tokens = torch.tensor([[0, 1, 2, 60]])
    own = draft(input_ids=torch.tensor([[0, len(ids), 1, 30]])).logits
    theirs = wide(input_ids=tokens).logits
    assert torch.equal(theirs[..., ids], own[..., : len(ids)])
    assert theirs[..., 1::2].isneginf().all()
    assert draft.config.vocab_size == len(ids) + 1
    settings = dict(max_new_tokens=12, do_sample=False, attention_mask=torch.ones_like(tokens), pad_token_id=0)
    assert torch.equal(target.generate(tokens, assistant_model=wide, **settings), target.generate(tokens, **settings))
    way = rivals(Models(target, Copying([Lookup(VOCABULARY), draft]), None), {"stop": None}, "llama")
    assert way == {LOOKUP: {"prompt_lookup_num_tokens": 10}, ASSISTED: {"assistant_model": wide}}
