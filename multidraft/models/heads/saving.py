"""Heads as files that other engines read: `speculators`' format, and Medusa's as it was first published."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from multidraft.io import files
from multidraft.models.heads.configuration import FLAGS
from multidraft.models.heads.networks import EAGLE3, MEDUSA, AnyHead, Settings

WITHOUT_OUTPUT = """# A draft head without its output layer

`model.safetensors` has no `lm_head.weight`: only multidraft reads this folder, which takes those rows from the target.
vLLM loads such a head without a word and then accepts none of its drafts. For other engines write it whole:

    multidraft export-head {kind}:FOLDER --target {target} --out WHOLE_FOLDER
"""
README = "README.md"


def save_head(
    head: AnyHead, folder: Path, target: str, architectures: Sequence[str] = (), tokens: int = 3, whole: bool = True,
    dtype: torch.dtype | None = None,
) -> None:  # fmt: skip
    """Write a head; `target` is the name that engines find its target by, `tokens` what they draft by default.

    The embedding is left out, as it is the target's; so are its rows of the output where it is not to be `whole`: then
    only this library reads it, and a README.md in the folder says so.
    """
    settings: Settings = head.settings
    ids, left_out = head.ids, {"embed_tokens.weight"} | (set() if whole else {"lm_head.weight"})
    weights = {name: value for name, value in head.state_dict().items() if name not in left_out}
    weights = {name: value.to(dtype) if value.is_floating_point() else value for name, value in weights.items()}
    if settings.kind == MEDUSA:
        weights |= {} if ids is None else {"token_map": ids}
        weights.pop("d2t", None)
        return write(folder, medusa_configuration(settings, target), weights)
    if ids is not None:
        weights["t2d"] = torch.zeros(settings.layer.vocab_size, dtype=torch.bool).index_fill_(0, ids.cpu(), True)
    write(folder, configuration(settings, target, architectures, tokens), weights)
    (folder / README).unlink(missing_ok=True)
    if not whole:
        files.write(folder / README, WITHOUT_OUTPUT.format(kind=settings.kind, target=target).encode())


def write(folder: Path, settings: dict[str, Any], weights: dict[str, Tensor]) -> None:
    """`config.json` and `model.safetensors`, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    new_path = folder / (files.NEW_PREFIX + "model.safetensors")
    save_file({name: value.contiguous() for name, value in weights.items()}, new_path, {"format": "pt"})
    new_path.replace(folder / "model.safetensors")
    files.write(folder / "config.json", (json.dumps(settings, indent=2) + "\n").encode())


def medusa_configuration(settings: Settings, name: str) -> dict[str, Any]:
    """What `config.json` of Medusa heads says."""
    return {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "base_model_name_or_path": name,
        "medusa_num_heads": settings.heads,
        "medusa_num_layers": settings.depth,
        "hidden_size": settings.target_width,
        "vocab_size": settings.layer.vocab_size,
        "truncated_vocab_size": settings.drafted,
    }


def configuration(settings: Settings, name: str, architectures: Sequence[str], tokens: int) -> dict[str, Any]:
    """What `config.json` says in speculators' format of an EAGLE-3 or DFlash head that drafts so many tokens."""
    is_eagle, layers = settings.kind == EAGLE3, list(settings.layers)
    fields: dict[str, Any] = {
        "aux_hidden_state_layer_ids": layers,
        "block_size": settings.block,
        "sliding_window_non_causal": not settings.causal_window,
        "mask_token_id": settings.mask_token,
        "sample_from_anchor": settings.from_anchor,
    }
    if is_eagle:
        fields = {"eagle_aux_hidden_state_layer_ids": layers} | {flag: getattr(settings, flag) for flag in FLAGS}
    if settings.target_width != settings.layer.hidden_size:
        fields["target_hidden_size"] = settings.target_width
    return fields | {
        "architectures": ["Eagle3DraftModel" if is_eagle else "DFlashDraftModel"],
        "speculators_model_type": settings.kind,
        "speculators_version": "0.9.0",
        "transformer_layer_config": settings.layer.to_diff_dict(),
        "draft_vocab_size": settings.drafted,
        "speculators_config": {
            "algorithm": settings.kind,
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": tokens}],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": name, "architectures": list(architectures)},
        },
    }
