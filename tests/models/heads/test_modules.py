"""The files of heads come back as they were written; what heads say is compared with references beside this."""

import json

import pytest
import torch
from multidraft_research.training.heads.saving import save_head, write
from tiny import tiny_model
from transformers import AutoConfig

from multidraft import AdviceError
from multidraft.models.heads.files import load_head
from multidraft.models.heads import DFlash, Eagle3, Medusa, Settings

VOCABULARY, WIDTH, IDS = 61, 32, [3, 5, 9, 40]
OFFSETS = torch.tensor(IDS) - torch.arange(len(IDS))


def layer(family: str = "llama", layers: int = 1, **more: object):
    """A small decoder layer's configuration."""
    sizes = {"hidden_size": WIDTH, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    return AutoConfig.for_model(family, **sizes, head_dim=8, vocab_size=VOCABULARY, num_hidden_layers=layers, **more)


def head(kind: str = "eagle3", family: str = "llama", layers: int = 1, seed: int = 0, **more: object):
    """A random head."""
    torch.manual_seed(seed)
    given = {"dflash": {"block": 4, "mask_token": 7}, "medusa": {"heads": 3}}.get(kind, {})
    read = (2,) if kind == "medusa" else (0, 1, 2)
    settings = Settings(kind, layer(family, layers), read, len(IDS), WIDTH, **(given | more))
    made = {"eagle3": Eagle3, "dflash": DFlash, "medusa": Medusa}[kind](settings)
    for value in made.parameters():
        torch.nn.init.normal_(value, std=0.3)
    made.d2t = OFFSETS.clone()
    return made.eval()


@torch.inference_mode()
def test_medusa_by_hand():
    model, states = head("medusa"), torch.randn(2, WIDTH)
    linear, output = model[1][0].linear, model[1][1]
    inner = states @ linear.weight.T + linear.bias
    assert torch.allclose(model(states)[1], (states + inner * inner.sigmoid()) @ output.weight.T, atol=1e-5)


@pytest.mark.parametrize("kind", ["eagle3", "dflash", "medusa"])
def test_a_head_comes_back_from_its_files(kind, tmp_path):
    target, ours = tiny_model("llama"), head(kind, "qwen3" if kind == "dflash" else "llama")
    save_head(ours, tmp_path, "some/target", ["LlamaForCausalLM"])
    theirs = load_head(tmp_path, target)
    assert theirs.ids.tolist() == IDS
    assert theirs.settings.layers == ours.settings.layers
    mine = {name: value for name, value in ours.state_dict().items() if "embed_tokens" not in name}
    assert all(value.equal(theirs.state_dict()[name]) for name, value in mine.items())
    if kind != "medusa":
        assert theirs.embed_tokens.weight.data_ptr() == target.get_input_embeddings().weight.data_ptr()


def test_an_output_that_is_left_out_is_rows_of_the_targets(tmp_path):
    target = tiny_model("llama")
    save_head(head(), tmp_path, "some/target", whole=False)
    assert load_head(tmp_path, target).lm_head.weight.equal(target.lm_head.weight[IDS])


def test_original_eagle_files_are_read_as_speculators_are(tmp_path):
    ours = head(layers=1, norm_before_fc=True)
    names = {name.replace("layers.0.", "midlayer."): value for name, value in ours.state_dict().items()}
    said = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "draft_vocab_size": len(IDS)}
    said |= {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2], "norm_before_fc": True}}
    said |= {name: getattr(layer(), name) for name in ("hidden_size", "intermediate_size", "num_attention_heads")}
    said |= {"num_key_value_heads": 2, "head_dim": 8, "vocab_size": VOCABULARY, "num_hidden_layers": 1}
    write(tmp_path, said, names)
    theirs = load_head(tmp_path, tiny_model("llama"))
    assert theirs.input_norm.weight.equal(ours.input_norm.weight)
    assert theirs.layers[0].hidden_norm.weight.equal(ours.layers[0].hidden_norm.weight)


def test_layers_of_original_dflash_files_are_one_further_on(tmp_path):
    ours = head("dflash", "qwen3")
    weights = {name: each for name, each in ours.state_dict().items() if name not in ("embed_tokens.weight", "d2t")}
    weights["lm_head.weight"] = torch.zeros(VOCABULARY, WIDTH)
    said = layer("qwen3").to_diff_dict() | {"architectures": ["DFlashDraftModel"], "block_size": 4}
    said |= {"dflash_config": {"mask_token_id": 7, "target_layer_ids": [-1, 0, 1]}}
    write(tmp_path, said, weights)
    theirs = load_head(tmp_path, tiny_model("llama"))
    assert (theirs.settings.layers, theirs.ids) == ((0, 1, 2), None)


def test_broken_heads_are_refused(tmp_path):  # those of another target are in `test_names_of_heads.py`
    save_head(head(), tmp_path, "some/target")
    said = json.loads((tmp_path / "config.json").read_text())
    for change, message in (
        ({"fc_norm": True}, r"lacks fc_norm\.0\.weight"),
        ({"speculators_model_type": "other", "architectures": ["Other"]}, "is of no head"),
        ({"num_aux_hidden_states": 2}, "reads 2 layers of its target and names 3"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(said | change))
        with pytest.raises(AdviceError, match=message):
            load_head(tmp_path, tiny_model("llama"))
