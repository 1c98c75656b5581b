"""What a capture keeps of one prompt: a safetensors file, with all logits or with those of the likeliest tokens."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from multidraft_research.captures.recording import Recording, fault_of

WHOLE = {"prompt", "tokens", "target", "draft"}
CUT = WHOLE | {"kept", "target_rest", "draft_rest"}


@dataclass(frozen=True)
class Shard:
    """The tokens of a prompt, those that follow it, and the logits that predict each of these."""

    prompt: Int[Tensor, " read"]
    tokens: Int[Tensor, " positions"]
    recording: Recording

    def tensors(self, top_k: int | None) -> dict[str, Tensor]:
        """What is written; with `top_k`, the logits of so many tokens at each position (see `cut`)."""
        ids = {"prompt": self.prompt.int(), "tokens": self.tokens.int()}
        target, draft = self.recording.target, self.recording.draft
        if top_k is None or top_k >= target.shape[-1]:
            return ids | {"target": target.contiguous(), "draft": draft.contiguous()}
        return ids | cut(target, draft, top_k)


def cut(target: Tensor, draft: Tensor, top_k: int) -> dict[str, Tensor]:
    """The tokens that are likeliest under either model, their logits, and one logit that all others share.

    At temperature 1 the kept tokens keep their probabilities, and so do all others together.
    """
    likeliest = torch.maximum(target.double().log_softmax(-1), draft.double().log_softmax(-1))
    kept = likeliest.topk(top_k, -1).indices.sort(-1).values
    logits = {"target": target, "draft": draft}
    cuts = {name: each.gather(-1, kept) for name, each in logits.items()}
    return cuts | {"kept": kept.int()} | {f"{name}_rest": shared(each, kept) for name, each in logits.items()}


def shared(
    logits: Float[Tensor, "positions vocabulary"], kept: Int[Tensor, "positions kept"]
) -> Float[Tensor, " positions"]:
    """The logit that gives all tokens but those kept the probability that they have together."""
    rest = logits.double().scatter(-1, kept, -torch.inf)
    return (rest.logsumexp(-1) - torch.tensor(logits.shape[-1] - kept.shape[-1]).log()).to(logits.dtype)


def whole(tensors: dict[str, Tensor], vocabulary: int) -> Recording:
    """Logits of all tokens, whichever were kept."""
    if "kept" not in tensors:
        return Recording(tensors["target"], tensors["draft"])
    kept = tensors["kept"].long()

    def filled(name: str) -> Tensor:
        rest = tensors[f"{name}_rest"][:, None].expand(-1, vocabulary)
        return rest.scatter(-1, kept, tensors[name])

    return Recording(filled("target"), filled("draft"))


def losses(recording: Recording, tensors: dict[str, Tensor]) -> dict[str, float]:
    """Mean total variation at temperature 1 between what the models said and what is kept of it."""
    if "kept" not in tensors:
        return {"target_loss": 0.0, "draft_loss": 0.0}
    kept = whole(tensors, recording.target.shape[-1])
    pairs = {"target": (recording.target, kept.target), "draft": (recording.draft, kept.draft)}
    return {
        f"{name}_loss": float((a.double().softmax(-1) - b.double().softmax(-1)).abs().sum(-1).mean() / 2)
        for name, (a, b) in pairs.items()
    }


def read(content: bytes, vocabulary: int) -> Shard:
    """A shard from its file; raises ValueError with what is wrong."""
    try:
        tensors = load(content)
    except SafetensorError as error:
        raise ValueError(f"is no safetensors file ({error})") from None
    if set(tensors) not in (WHOLE, CUT):
        raise ValueError(f"holds {sorted(tensors)}")
    try:
        recording = whole(tensors, vocabulary)
    except (RuntimeError, IndexError) as error:
        raise ValueError(f"has tensors that do not fit together ({str(error).splitlines()[0]})") from None
    if fault := fault_of(recording.target, recording.draft):
        raise ValueError(fault)
    if recording.target.shape != (tensors["tokens"].numel(), vocabulary):
        raise ValueError(f"has logits of shape {tuple(recording.target.shape)}, and the capture {vocabulary} tokens")
    return Shard(tensors["prompt"].long(), tensors["tokens"].long(), recording)
