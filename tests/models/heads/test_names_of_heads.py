"""Heads by their names, from the command line and from Python; what does not fit is refused with what differs."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import multidraft as md
from multidraft.cli.models import HEADS, models_in, own, parse
from multidraft.generation.inputs import as_drafter
from multidraft.models.heads.drafters import EagleDrafter, head
from multidraft.models.heads import KINDS
from multidraft.models.huggingface import CausalLM
from multidraft.models.ngram import NGram

FOLDER = Path(__file__).parent / "reference"


def target(width: int = 16, size: int = 32, layers: int = 4) -> LlamaForCausalLM:
    shape = {"intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": layers}
    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=size, hidden_size=width, **shape, bos_token_id=None, eos_token_id=None)
    return LlamaForCausalLM(config).eval()


def test_a_head_is_named_on_the_command_line():
    assert HEADS == KINDS
    listed = parse("copy+eagle3:some/where,0.5*dflash:a+0.5*ngram")
    assert listed == [[("copy", None), ("eagle3:some/where", None)], [("dflash:a", 0.5), ("ngram", 0.5)]]
    assert models_in(listed) == []
    assert isinstance(own(f"eagle3:{FOLDER / 'eagle3'}", target()), EagleDrafter)
    with pytest.raises(md.AdviceError, match="write medusa:FOLDER"):
        parse("medusa")


def test_a_head_is_named_in_python():
    """And loaded once where the same is asked for."""
    model, name = target(), f"eagle3:{FOLDER / 'eagle3'}"
    plain, _ = md.generate(model, None, [[1, 2, 3]], max_new_tokens=8, temperature=0)
    for draft in (name, md.head(name, model), [name, f"dflash:{FOLDER / 'dflash'}"]):
        scheme = "distinct:recursive_rejection" if isinstance(draft, list) else "anchored:lorenz"
        tokens, _ = md.generate(model, draft, [[1, 2, 3]], max_new_tokens=8, temperature=0, tree="2x1", scheme=scheme)
        assert tokens[0].tolist() == plain[0].tolist()
    assert as_drafter(None, model) is None
    assert isinstance(head(name, CausalLM(model)), EagleDrafter)


@pytest.mark.parametrize(
    ("name", "model", "says"),
    [
        ("dflash:{}/eagle3", target, r"kind eagle3, not dflash; write eagle3:"),
        ("eagle3:{}/eagle3", lambda: target(width=32), "width 16 and this one has 32"),
        ("eagle3:{}/eagle3", lambda: target(layers=3), "reads layer 4 of its target and this one has 3"),
        ("eagle3:{}/eagle3", lambda: target(size=40), "of 32 tokens and this one has 40"),
        ("eagle3:{}/nowhere", target, "there is no folder"),
        ("eagle3:{}", target, "no config.json"),
        ("eagle3:{}/eagle3", lambda: NGram(32), "does not tell"),
        ("eagle:{}/eagle3", target, "names no draft head; write eagle3:FOLDER"),
    ],
)
def test_what_does_not_fit_is_refused(name, model, says):
    with pytest.raises(md.AdviceError, match=says):
        md.head(name.format(FOLDER), model())


def test_steps_that_tell_states_are_not_compiled():
    model = target()
    with pytest.raises(md.AdviceError, match="does not go with a draft head"):
        md.generate(model, f"eagle3:{FOLDER / 'eagle3'}", [[1, 2]], max_new_tokens=2, compile=True)


def test_profiles_tell_heads_apart():
    model = target()
    found = {str(md.head(f"{kind}:{FOLDER / kind}", model).identity) for kind in ("eagle3", "dflash")}
    assert len(found) == 2
