"""The files of heads come back as they were written and are known by name; what does not fit is refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import ends_with_advice, run
from heads import CASES, VOCABULARY, WIDTH, module_of
from safetensors.torch import load_file, save_file
from tiny import tiny_model
from transformers import LlamaConfig, LlamaForCausalLM

import multidraft as md
from multidraft import AdviceError
from multidraft.cli.drafter_names import HEADS, built_in_drafter, models_in, parse
from multidraft.cli.export_head import target_of
from multidraft.generation.inputs import as_drafter
from multidraft.models.heads.configuration import target_name
from multidraft.models.heads.drafters import SHIPPED_HEADS, EagleDrafter, head
from multidraft.models.heads.head_files import load_head
from multidraft.models.heads.networks import KINDS
from multidraft.models.heads.saving import save_head, write
from multidraft.models.huggingface.masks import CausalLM
from multidraft.models.ngram import NGram

FOLDER = Path(__file__).parent / "reference"
REDUCED = "eagle3 reduced, two layers"


@torch.inference_mode()
def test_medusa_by_hand():
    model, states = module_of("medusa"), torch.randn(2, WIDTH)
    linear, output = model[1][0].linear, model[1][1]
    inner = states @ linear.weight.T + linear.bias
    assert torch.allclose(model(states)[1], (states + inner * inner.sigmoid()) @ output.weight.T, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_a_head_comes_back_from_its_files(name, tmp_path):
    target, ours = tiny_model("llama"), module_of(name)
    save_head(ours, tmp_path, "some/target", ["LlamaForCausalLM"])
    theirs = load_head(tmp_path, target)
    assert (theirs.ids is None) if ours.ids is None else theirs.ids.equal(ours.ids)
    assert replace(theirs.settings, layer=CASES[name].layer) == CASES[name]
    mine = {key: value for key, value in ours.state_dict().items() if "embed_tokens" not in key}
    assert all(value.equal(theirs.state_dict()[key]) for key, value in mine.items())
    if name != "medusa":
        assert theirs.embed_tokens.weight.data_ptr() == target.get_input_embeddings().weight.data_ptr()


def test_an_output_that_is_left_out_is_rows_of_the_targets(tmp_path):
    target, ours = tiny_model("llama"), module_of(REDUCED)
    save_head(ours, tmp_path, "some/target", whole=False)
    assert load_head(tmp_path, target).lm_head.weight.equal(target.lm_head.weight[ours.ids])
    assert "no `lm_head.weight`" in (tmp_path / "README.md").read_text()
    save_head(ours, tmp_path, "some/target")
    assert not (tmp_path / "README.md").exists()


def test_the_shipped_heads_folder_says_that_it_has_no_output():
    folder = SHIPPED_HEADS["smollm2"]
    assert "lm_head.weight" not in weights_of(folder)
    assert "no `lm_head.weight`" in (folder / "README.md").read_text()


def weights_of(folder: Path) -> dict[str, Any]:
    """The tensors of a folder."""
    return load_file(folder / "model.safetensors")


def cached(name: str, folder: Path, cache: Path) -> None:
    """Put a head into a cache of the hub, as though it had been fetched from there."""
    kept = cache / f"models--{name.replace('/', '--')}"
    shutil.copytree(folder, kept / "snapshots" / "abc")
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("abc")


def test_a_head_is_taken_by_its_hub_name(tmp_path, monkeypatch):
    cached("owner/a-head", FOLDER / "eagle3", tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert isinstance(built_in_drafter("eagle3:owner/a-head", target()), EagleDrafter)
    with pytest.raises(md.AdviceError, match=r"cannot be had: .*; no such folder is here, so the hub was asked"):
        md.head("eagle3:owner/none", target())


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_head_is_exported_with_or_without_its_output(is_whole, tmp_path, monkeypatch):
    """The rows of the output are the target's, for the tokens that the head drafts."""
    model = tiny_model("llama")
    monkeypatch.setattr("multidraft.cli.export_head.load_models", lambda *_: (model, [], None))
    save_head(module_of(REDUCED), tmp_path / "head", "some/target", whole=False)
    flag = "--whole" if is_whole else "--without-output"
    folders = ["--target", "copies/target", "--out", tmp_path / "out"]
    result = run("export-head", f"eagle3:{tmp_path / 'head'}", *folders, flag)
    assert result.exit_code == 0, result.output
    weights = weights_of(tmp_path / "out")
    assert ("lm_head.weight" in weights) == is_whole == (not (tmp_path / "out" / "README.md").exists())
    ids = module_of(REDUCED).ids
    assert not is_whole or weights["lm_head.weight"].equal(model.lm_head.weight[ids])
    assert load_head(tmp_path / "out", model).lm_head.weight.equal(model.lm_head.weight[ids])
    assert target_name(tmp_path / "out") == "some/target"
    ends_with_advice(run("export-head", "eagle3:smollm2", *folders), "is not an empty folder")
    ends_with_advice(run("export-head", "lookup", "--out", tmp_path / "new"), "names no draft head")


def test_a_head_is_exported_with_its_own_target_and_no_other(tmp_path, monkeypatch):
    """The default was smollm2's rows and name, in any head of its width."""
    model, loaded = tiny_model("llama"), list[str]()
    monkeypatch.setattr("multidraft.cli.export_head.load_models", lambda n, _: (loaded.append(n) or model, [], None))
    for kind in ("eagle3", "medusa"):
        save_head(module_of(kind), tmp_path / kind, "some/target", whole=False)
        out, head = tmp_path / f"{kind} out", f"{kind}:{tmp_path / kind}"
        ends_with_advice(
            run("export-head", head, "--out", out, "--target", "smollm2"), "is for some/target, and --target"
        )
        assert run("export-head", head, "--out", out).exit_code == 0
        assert target_name(out) == loaded[-1] == "some/target"
    path = tmp_path / "eagle3" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"speculators_config": None}))
    ends_with_advice(run("export-head", f"eagle3:{tmp_path / 'eagle3'}", "--out", tmp_path / "new"), "pass --target")
    assert target_of("eagle3:smollm2", None, "HuggingFaceTB/SmolLM2-135M-Instruct")[0] == "smollm2"


@pytest.mark.parametrize("form", ["safetensors", "pt"])
def test_medusa_heads_as_they_were_published(form, tmp_path):
    """Their config.json says two heads, and the file has all that there are; it is read as tensors and nothing else."""
    ours, target = module_of("medusa"), tiny_model("llama")
    published = {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "lmsys/vicuna-7b-v1.3"}
    (tmp_path / "config.json").write_text(json.dumps(published))
    weights = {name: value.clone() for name, value in ours.state_dict().items()}
    if form == "pt":
        torch.save(weights, tmp_path / "medusa_lm_head.pt")
    else:
        save_file(weights, tmp_path / "medusa.safetensors")
    head = md.head(f"medusa:{tmp_path}", target)
    assert head.module.settings.heads == 3
    assert all(value.equal(head.module.state_dict()[name]) for name, value in weights.items())
    torch.save({"0.0.linear.weight": print}, tmp_path / "medusa_lm_head.pt")
    (tmp_path / "medusa.safetensors").unlink(missing_ok=True)
    with pytest.raises(AdviceError, match=r"cannot read the weights .*medusa_lm_head\.pt"):
        md.head(f"medusa:{tmp_path}", target)


def test_original_eagle_files_are_read_as_speculators_are(tmp_path):
    ours = module_of("eagle3.1")
    names = {name.replace("layers.0.", "midlayer."): value for name, value in ours.state_dict().items()}
    settings = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"} | CASES[
        "eagle3"
    ].layer.to_diff_dict()
    settings["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2], "fc_norm": True, "norm_output": True}
    write(tmp_path, settings | {"norm_before_residual": True}, names)
    theirs = load_head(tmp_path, tiny_model("llama"))
    assert replace(theirs.settings, layer=CASES["eagle3.1"].layer) == CASES["eagle3.1"]
    assert all(value.equal(theirs.state_dict()[name]) for name, value in ours.state_dict().items())


def test_the_first_eagle3_heads_are_named_like_their_target(tmp_path):
    """As that for Llama 3.1: nothing but the size of the drafted vocabulary tells them from a model."""
    ours = module_of("eagle3")
    settings = CASES["eagle3"].layer.to_diff_dict() | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    write(tmp_path, settings | {"draft_vocab_size": CASES["eagle3"].drafted}, ours.state_dict())
    assert load_head(tmp_path, tiny_model("llama")).settings.kind == "eagle3"
    write(tmp_path, settings, ours.state_dict())
    with pytest.raises(md.AdviceError, match="is of no head that can be read"):
        load_head(tmp_path, tiny_model("llama"))


def test_layers_of_original_dflash_files_are_one_further_on(tmp_path):
    weights = {
        name: weight for name, weight in module_of("dflash").state_dict().items() if name != "embed_tokens.weight"
    }
    settings = CASES["dflash"].layer.to_diff_dict() | {"architectures": ["DFlashDraftModel"], "block_size": 4}
    settings |= {"dflash_config": {"mask_token_id": 7, "target_layer_ids": [-1, 0, 1]}}
    write(tmp_path, settings, weights)
    theirs = load_head(tmp_path, tiny_model("llama"))
    assert (theirs.settings.layers, theirs.ids, theirs.settings.drafted) == ((0, 1, 2), None, VOCABULARY)


def test_broken_heads_are_refused(tmp_path):
    save_head(module_of("eagle3"), tmp_path, "some/target")
    settings = json.loads((tmp_path / "config.json").read_text())
    for change, message in (
        ({"fc_norm": True}, r"lacks fc_norm\.0\.weight"),
        ({"speculators_model_type": "other", "architectures": ["Other"]}, "is of no head"),
        ({"num_aux_hidden_states": 2}, "reads 2 layers of its target and names 3"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(settings | change))
        with pytest.raises(AdviceError, match=message):
            load_head(tmp_path, tiny_model("llama"))


# Names


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
    assert isinstance(built_in_drafter(f"eagle3:{FOLDER / 'eagle3'}", target()), EagleDrafter)
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
        ("eagle3:{}/eagle3", lambda: NGram(32), "does not give"),
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
    fingerprints = {str(md.head(f"{kind}:{FOLDER / kind}", model).fingerprint) for kind in ("eagle3", "dflash")}
    assert len(fingerprints) == 2
