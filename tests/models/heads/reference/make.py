"""Make the fixtures beside this file: heads with random weights as the reference packages save them, and their logits.

Run it where `speculators` 0.9.0 and `dflash` 0.1.0 are installed: `python make.py`. A folder has a head's config.json
and model.safetensors; the file beside it has the target's states and tokens that go in, and what the reference says at
the end of paths. For EAGLE-3 `root` [text, i] is the law after token i + 1, `one` [text, i] after the path of one more
token, `two` of two more, where the head reads its own states; the texts share their beginning. For DFlash `block` is
what each place of a block says whose known token is token 9.
"""

from pathlib import Path
from typing import Any

import torch
from dflash.model import DFlashDraftModel as Original
from safetensors.torch import save_file
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.models.dflash import DFlashSpeculatorConfig
from speculators.models.dflash.core import DFlashDraftModel
from speculators.models.eagle3 import Eagle3SpeculatorConfig
from speculators.models.eagle3.core import Eagle3DraftModel
from speculators.proposals.greedy import GreedyTokenProposalConfig
from torch import Tensor, nn
from transformers import LlamaConfig, Qwen3Config

HERE = Path(__file__).parent
VOCABULARY, WIDTH, LAYERS, TOKENS, ROOT = 32, 16, [1, 2, 4], 12, 9
SHAPE: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 24, "head_dim": 8}
SHAPE |= {"num_attention_heads": 2, "num_key_value_heads": 1, "pad_token_id": None, "tie_word_embeddings": False}
SHAPE |= {"bos_token_id": None, "eos_token_id": None, "attn_implementation": "eager", "max_position_embeddings": 64}
HALF = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 5, "use_sliding_window": True}
EAGLES = {
    "eagle3": (LlamaConfig, {"num_hidden_layers": 1}, {}),
    "eagle3_reduced": (Qwen3Config, {"num_hidden_layers": 2}, {"draft_vocab_size": 20, "norm_before_fc": True}),
    "eagle3_1": (
        LlamaConfig,
        {"num_hidden_layers": 1, "attention_bias": True},
        {"norm_output": True, "fc_norm": True, "norm_before_residual": True},
    ),
}


def random(module: nn.Module) -> None:
    """Weights N(0, 0.3)."""
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)


def spread(model: Any, count: int) -> None:
    """A reduced vocabulary's tokens, chosen at random."""
    chosen = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(5))[:count].sort().values
    model.d2t.copy_(chosen - torch.arange(count))
    model.t2d.fill_(False)[chosen] = True


def trained(kind: str) -> SpeculatorsConfig:
    return SpeculatorsConfig(
        algorithm=kind,
        proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=3)],
        default_proposal_method="greedy",
        verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
    )


def said_by(model: Any, call: Any) -> list[Tensor]:
    """What the head of a model gives in a call."""
    outputs: list[Tensor] = []
    hook = model.lm_head.register_forward_hook(lambda module, inputs, output: outputs.append(output[0].clone()))
    with torch.no_grad():
        call()
    hook.remove()
    return outputs


def inputs() -> tuple[Tensor, Tensor]:
    """States of three layers at each token, and two texts that share their first ten tokens."""
    generator = torch.Generator().manual_seed(2)
    states = torch.randn(TOKENS, len(LAYERS), WIDTH, generator=generator)
    text = torch.randint(0, VOCABULARY, (TOKENS + 1,), generator=generator)
    other = text.clone()
    other[10:] = torch.tensor([3, 17, 4])
    return states, torch.stack([text, other])


def eagle3(name: str) -> None:
    kind, shape, flags = EAGLES[name]
    layer = kind(**SHAPE | shape)
    layer._attn_implementation = "eager"
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        eagle_aux_hidden_state_layer_ids=LAYERS,
        speculators_config=trained("eagle3"),
        **{"draft_vocab_size": VOCABULARY} | flags,
    )
    model = Eagle3DraftModel(config).eval()
    random(model)
    if model.use_draft_vocab:
        spread(model, config.draft_vocab_size)
    states, texts = inputs()
    outputs = []
    for text in texts:
        keywords = {"hidden_states": states.flatten(1)[None], "input_ids": text[None, 1:]}
        keywords["document_ids"] = torch.zeros(1, TOKENS, dtype=torch.long)
        outputs.append(said_by(model, lambda keywords=keywords: model(**keywords, ttt_steps=3)))
    root, one, two = (torch.stack(level) for level in zip(*outputs, strict=True))
    write(name, model, {"states": states, "texts": texts, "root": root, "one": one, "two": two})


def dflash(name: str, **changes: Any) -> None:
    layer = Qwen3Config(**SHAPE, num_hidden_layers=2)
    layer._attn_implementation = "eager"
    config = DFlashSpeculatorConfig(
        transformer_layer_config=layer,
        aux_hidden_state_layer_ids=LAYERS,
        speculators_config=trained("dflash"),
        block_size=4,
        mask_token_id=7,
        **{"draft_vocab_size": VOCABULARY} | changes,
    )
    model = DFlashDraftModel(config).eval()
    random(model)
    if model.use_draft_vocab:
        spread(model, config.draft_vocab_size)
    states, texts = inputs()
    long = torch.cat([states, torch.randn(4, *states.shape[1:])]).flatten(1)[None]  # what follows is not seen
    text = torch.cat([texts[0, :TOKENS], texts[0, :4]])[None]
    keywords = {"hidden_states": long, "input_ids": text, "loss_mask": (torch.arange(16) == ROOT)[None].long()}
    keywords |= {"verifier_last_hidden_states": long[..., :WIDTH], "document_ids": torch.zeros(1, 16, dtype=torch.long)}
    (block,) = said_by(model, lambda: model._backbone_forward(**keywords, max_anchors=1))
    write(name, model, {"states": states, "texts": texts, "block": block} | of_target(model))


def original(name: str) -> None:
    settings = {"target_layer_ids": [layer - 1 for layer in LAYERS], "mask_token_id": 7, "block_size": 4}
    config = Qwen3Config(**SHAPE, num_hidden_layers=2, **HALF, max_window_layers=1)
    config.dflash_config, config.num_target_layers = settings | {"input_embedding_scale": 2.0}, 4
    config.block_size = 4
    model: Any = Original(config).eval()
    random(model)
    target = nn.ModuleDict({"embed_tokens": nn.Embedding(VOCABULARY, WIDTH)})
    target["lm_head"] = nn.Linear(WIDTH, VOCABULARY, bias=False)
    random(target)
    states, texts = inputs()
    with torch.no_grad():
        tokens = torch.tensor([[int(texts[0, ROOT]), 7, 7, 7]])
        hidden = model(
            target_hidden=states[:ROOT].flatten(1)[None],
            noise_embedding=target["embed_tokens"](tokens) * 2.0,
            position_ids=torch.arange(ROOT + 4)[None],
        )
        block = model.compute_logits(hidden, target["lm_head"])[0]
    write(name, model, {"states": states, "texts": texts, "block": block} | of_target(target))


def of_target(model: Any) -> dict[str, Tensor]:
    """What a head takes from its target."""
    parts = (
        model if isinstance(model, nn.ModuleDict) else {"embed_tokens": model.embed_tokens, "lm_head": model.lm_head}
    )
    weights = {name: part.weight.detach().clone() for name, part in parts.items()}
    return {name: value for name, value in weights.items() if len(value) == VOCABULARY}


def write(name: str, model: Any, tensors: dict[str, Tensor]) -> None:
    model.save_pretrained(HERE / name)
    (HERE / name / "config.py").unlink(missing_ok=True)  # the package's own code
    save_file({key: value.contiguous() for key, value in tensors.items()}, HERE / f"{name}.safetensors")


if __name__ == "__main__":
    for one in EAGLES:
        eagle3(one)
    dflash("dflash")
    dflash("dflash_reduced", draft_vocab_size=20, sample_from_anchor=True)
    original("dflash_original")
