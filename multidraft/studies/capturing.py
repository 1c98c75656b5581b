"""Recorded logits of a model pair on text that the target itself continues: what studies of acceptance run on."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor
from transformers import PreTrainedModel

from multidraft.errors import AdviceError, outputs
from multidraft.generation.way_in import generate
from multidraft.models.causal_lm import home
from multidraft.models.resized import resize

HOW = "make one with `multidraft capture --out FILE`"


@dataclass(frozen=True)
class Recording:
    """Next-token logits of both models at the same positions, in float32."""

    target: Float[Tensor, "positions vocabulary"]
    draft: Float[Tensor, "positions vocabulary"]

    def save(self, path: Path) -> None:
        """Write a safetensors file with the tensors `target` and `draft`, whole or not at all."""
        outputs.write(path, save({"target": self.target.contiguous(), "draft": self.draft.contiguous()}))

    @classmethod
    def load(cls, path: Path) -> "Recording":
        """Read what `save` has written."""
        if not path.is_file():
            raise AdviceError(f"there is no recording {str(path)!r}; {HOW}")
        try:
            tensors = load_file(path)
        except (OSError, SafetensorError) as error:
            raise AdviceError(f"{str(path)!r} is no recording ({error}); {HOW}") from None
        if set(tensors) != {"target", "draft"}:
            raise AdviceError(f"{str(path)!r} holds {sorted(tensors)}, not target and draft; {HOW}")
        if fault := fault_of(tensors["target"], tensors["draft"]):
            raise AdviceError(f"{str(path)!r} {fault}; {HOW}")
        return cls(tensors["target"], tensors["draft"])


def fault_of(target: Tensor, draft: Tensor) -> str | None:
    """What is wrong with the logits of a pair."""
    if target.shape != draft.shape or target.ndim != 2 or not target.numel():
        return f"holds logits of shapes {tuple(target.shape)} and {tuple(draft.shape)}, not positions x vocabulary"
    for name, logits in ("target", target), ("draft", draft):
        if not logits.is_floating_point() or (logits.isnan() | (logits == torch.inf)).any():
            return f"has logits of the {name} that are no numbers"
        if (logits == -torch.inf).all(-1).any():
            return f"has a position where the {name} allows no token"
    return None


def capture(
    target: PreTrainedModel, draft: PreTrainedModel, prompts: Iterable[list[int]], new_tokens: int = 64, seed: int = 0
) -> Iterable[Recording]:
    """For each prompt, the logits of both models at every token of a continuation sampled from the target."""
    for index, prompt in enumerate(prompts):
        generator = torch.Generator().manual_seed(seed + index)
        tokens, _ = generate(target, None, [prompt], max_new_tokens=new_tokens, generator=generator, measure=False)
        ours, theirs = (logits_at(model, prompt, tokens[0].tolist()) for model in (target, draft))
        yield Recording(ours, resize(theirs, ours.shape[-1]))


def logits_at(model: PreTrainedModel, prompt: list[int], following: list[int]) -> Float[Tensor, "positions vocabulary"]:
    """Logits that predict each of the `following` tokens, from one forward pass over the text."""
    ids = torch.tensor([prompt + following[:-1]], device=home(model))
    with torch.inference_mode():
        return model(ids, use_cache=False).logits[0, len(prompt) - 1 :].float().cpu()


def joined(recordings: Iterable[Recording]) -> Recording:
    """One recording of all."""
    parts = list(recordings)
    return Recording(torch.cat([r.target for r in parts]), torch.cat([r.draft for r in parts]))
