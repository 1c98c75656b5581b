"""What a capture keeps of one prompt: a safetensors file, with all logits or with those of the likeliest tokens."""

from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.errors import AdviceError
from multidraft.io.tensors import FLOATS, INTEGERS, Stored, stored_tensors
from multidraft.machine import available, format_bytes
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
    cuts = {name: values.gather(-1, kept) for name, values in logits.items()}
    return cuts | {"kept": kept.int()} | {f"{name}_rest": shared_logit(values, kept) for name, values in logits.items()}


def shared_logit(
    logits: Float[Tensor, "positions vocabulary"], kept: Int[Tensor, "positions kept"]
) -> Float[Tensor, " positions"]:
    """The logit that gives all tokens but those kept the probability that they have together."""
    other_logits = logits.double().scatter(-1, kept, -torch.inf)
    return (other_logits.logsumexp(-1) - torch.tensor(logits.shape[-1] - kept.shape[-1]).log()).to(logits.dtype)


def whole(tensors: dict[str, Tensor], vocabulary: int) -> Recording:
    """Logits of all tokens, whichever were kept."""
    if "kept" not in tensors:
        return Recording(tensors["target"], tensors["draft"])
    kept = tensors["kept"].long()

    def fill(name: str) -> Tensor:
        rest_logits = tensors[f"{name}_rest"][:, None].expand(-1, vocabulary)
        return rest_logits.scatter(-1, kept, tensors[name])

    return Recording(fill("target"), fill("draft"))


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


def read(path: Path, positions: int, vocabulary: int, advice: str) -> Shard:
    """A shard from its file; raises AdviceError where it is no such thing."""
    parts = stored_tensors(path, "the shard", advice)
    fault = fault_of_header(parts, positions, vocabulary)
    if fault is None:
        tensors = {name: part.read() for name, part in parts.items()}
        fault = fault_of_ids(tensors, vocabulary)
    if fault is None:
        shard = Shard(tensors["prompt"].long(), tensors["tokens"].long(), whole(tensors, vocabulary))
        fault = fault_of(shard.recording.target, shard.recording.draft)
    if fault:
        raise AdviceError(f"the shard {path} {fault}; {advice}")
    return shard


def fault_of_header(parts: dict[str, Stored], positions: int, vocabulary: int) -> str | None:
    """What is wrong with the names, dtypes and shapes of tensors, before there is memory for any."""
    if set(parts) not in (WHOLE, CUT):
        return f"holds {sorted(parts)}"[:200]
    columns = vocabulary if "kept" not in parts else None
    expected: dict[str, tuple[set[str], tuple[int | None, ...]]] = {
        "prompt": (INTEGERS, (None,)),
        "tokens": (INTEGERS, (positions,)),
        "target": (FLOATS, (positions, columns)),
        "draft": (FLOATS, (positions, columns)),
        "kept": (INTEGERS, parts["target"].shape),
        "target_rest": (FLOATS, (positions,)),
        "draft_rest": (FLOATS, (positions,)),
    }
    faults = {name: parts[name].fault(*expected[name]) for name in expected if name in parts}
    for name, fault in faults.items():
        if fault:
            return f"has a tensor {name} that {fault}"
    if parts["target"].shape != parts["draft"].shape or not parts["target"].shape[1] <= vocabulary:
        return f"has logits of shapes {parts['target'].shape} and {parts['draft'].shape} for {vocabulary} tokens"
    needed, free = 2 * 8 * positions * vocabulary, available(torch.device("cpu"))
    if "kept" in parts and free is not None and needed > free:
        return f"has {positions} positions of {vocabulary} tokens, which take up to {format_bytes(needed)} of memory"
    return None


def fault_of_ids(tensors: dict[str, Tensor], vocabulary: int) -> str | None:
    """What is wrong with tokens: each is one of the vocabulary, and at a position none is kept twice."""
    for name in ("prompt", "tokens", "kept"):
        ids = tensors.get(name)
        if ids is not None and not (ids.numel() and bool(((ids >= 0) & (ids < vocabulary)).all())):
            return f"has a tensor {name} that holds other tokens than the {vocabulary} that there are"
    if "kept" in tensors and bool((tensors["kept"].long().diff(dim=-1) <= 0).any()):
        return "has a tensor kept that is not in order"
    return None
