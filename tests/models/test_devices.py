"""Models that are quantised, offloaded, or spread over several devices by accelerate."""

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from reading import TOLERANCE, begin_session
from tiny import tiny_model
from transformers import AutoModelForCausalLM, PreTrainedModel

import multidraft as md
from multidraft.models.huggingface.masks import CausalLM

PARTS = ["model.embed_tokens", "model.layers.0", "model.layers.1", "model.norm", "model.rotary_emb", "lm_head"]
needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


def worst_error(model: PreTrainedModel, plain: PreTrainedModel) -> float:
    """Trees read by one model against paths read alone by another, over two rounds."""
    run = begin_session(plain, CausalLM(model, 48), (3, 4, 1), allowed=9)
    return max(run.step(6), run.step(6))


def greedy(target: PreTrainedModel, draft: PreTrainedModel | None) -> list[list[int]]:
    prompts = [[1, 2, 3], [4, 5, 6, 7], [8]]
    return [row.tolist() for row in md.generate(target, draft, prompts, temperature=0, max_new_tokens=8)[0]]


@pytest.fixture
def saved(tmp_path) -> Path:
    tiny_model("llama").save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


def spread(saved: Path, *devices: str | int) -> PreTrainedModel:
    """The tiny Llama over these devices in turn."""
    places = {part: devices[i % len(devices)] for i, part in enumerate(PARTS)}
    return AutoModelForCausalLM.from_pretrained(saved, device_map=places, offload_folder=saved / "offload").eval()


@pytest.mark.parametrize("place", ["partly on disk", "offloaded"])
def test_accelerate_places_the_target(saved: Path, place: str):
    accelerate = pytest.importorskip("accelerate")
    plain = AutoModelForCausalLM.from_pretrained(saved).eval()
    on_disk = place == "partly on disk"
    model = spread(saved, "disk", "cpu") if on_disk else accelerate.cpu_offload(plain, execution_device="cpu")
    assert worst_error(model, tiny_model("llama")) < TOLERANCE
    assert greedy(model, tiny_model("qwen2")) == greedy(tiny_model("llama"), None)


@pytest.mark.gpu
def test_the_draft_model_may_be_on_another_device(saved: Path):
    model = AutoModelForCausalLM.from_pretrained(saved).eval().cuda()
    assert greedy(model, tiny_model("qwen2")) == greedy(tiny_model("llama"), None)
    assert greedy(tiny_model("qwen2"), model) == greedy(tiny_model("qwen2"), None)


@pytest.mark.gpu
@pytest.mark.parametrize("devices", [(0, "cpu"), pytest.param((0, 1), marks=needs_two)])
def test_a_target_on_two_devices(saved: Path, devices: tuple):
    pytest.importorskip("accelerate")
    assert greedy(spread(saved, *devices), tiny_model("qwen2")) == greedy(tiny_model("llama"), None)


def quantised(kind: str, saved: Path) -> PreTrainedModel:
    """The tiny Llama with smaller weights."""
    if kind == "int8 weights":
        torchao = pytest.importorskip("torchao.quantization")
        from transformers import TorchAoConfig

        config = TorchAoConfig(torchao.Int8WeightOnlyConfig())
        return AutoModelForCausalLM.from_pretrained(saved, quantization_config=config).eval()
    layers, dtype = {torch.nn.Linear}, getattr(torch, kind)
    return torch.ao.quantization.quantize_dynamic(deepcopy(tiny_model("llama")), layers, dtype=dtype)


@pytest.mark.filterwarnings("ignore:.*torch.ao.quantization:DeprecationWarning")
@pytest.mark.parametrize("kind", ["float16", "int8 weights"])
def test_a_target_with_quantised_weights(saved: Path, kind: str):
    model = quantised(kind, saved)
    assert worst_error(model, model) < TOLERANCE
    assert worst_error(model, tiny_model("llama")) > TOLERANCE  # it is not the same model
    assert greedy(model, tiny_model("qwen2")) == greedy(model, None)


@pytest.mark.filterwarnings("ignore:.*torch.ao.quantization:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:llama is quantised")  # heard once, and then again
def test_a_target_that_rounds_whole_passes_gets_a_warning(saved: Path):
    model = quantised("qint8", saved)
    with pytest.warns(UserWarning, match="llama is quantised with scales of whole passes.*quantise weights only"):
        rows = greedy(model, tiny_model("qwen2"))
    assert [len(row) for row in rows] == [8] * 3
    assert worst_error(model, model) > 100 * TOLERANCE
