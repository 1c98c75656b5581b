"""How good a trained pair is, on the part of the corpus that it has not seen."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor, nn
from tqdm import tqdm

from multidraft.zoo import Pair
from multidraft_research.training import corpus
from multidraft_research.training.recipe import Recipe

BATCH = 8  # windows a forward pass: bounds the memory of the logits


@dataclass
class Evaluation:
    """Sums over the scored tokens of a text of `text_bytes` bytes."""

    text_bytes: int
    tokens: int = 0
    target_nats: float = 0.0
    draft_nats: float = 0.0
    overlap: float = 0.0  # sum over tokens of sum over the vocabulary of min(target, draft)

    def as_dict(self) -> dict[str, float | int]:
        """Bits per byte of both, and the acceptance rate of ordinary speculative sampling at temperature 1."""
        return {
            "held_out_bytes": self.text_bytes,
            "held_out_tokens": self.tokens,
            "target_bits_per_byte": self.target_nats / math.log(2) / self.text_bytes,
            "draft_bits_per_byte": self.draft_nats / math.log(2) / self.text_bytes,
            "mean_acceptance_one_draft": self.overlap / self.tokens,
        }


def evaluate_pair(path: Path, pair: Pair, recipe: Recipe) -> Evaluation:
    """Score a pair, in the dtypes it is stored in, on the held-out part of the text at `path`."""
    _, text = corpus.split(corpus.read_text(path), recipe.held_out)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokens = corpus.encode(pair.tokenizer, text).long().to(device)
    models: list[nn.Module] = [pair.target, pair.draft]
    target, draft = (model.to(device) for model in models)
    return evaluate(target, draft, tokens, recipe.window, len(text.encode()))


@torch.inference_mode()
def evaluate(
    target: nn.Module, draft: nn.Module, tokens: Int[Tensor, " tokens"], window: int, text_bytes: int
) -> Evaluation:
    """Score every token but the first, which stands for the start of the text, by both models."""
    result = Evaluation(text_bytes)
    for batch, first in tqdm(list(batches(len(tokens), window)), desc="evaluating", mininterval=5):
        targets = torch.stack([tokens[s + 1 : e + 1] for s, e in batch])[:, first:]
        read = torch.stack([tokens[s:e] for s, e in batch])
        ours, theirs = (m(read, use_cache=False).logits[:, first:].float().log_softmax(-1) for m in (target, draft))
        result.tokens += targets.numel()
        result.target_nats -= float(ours.gather(-1, targets[..., None]).double().sum())
        result.draft_nats -= float(theirs.gather(-1, targets[..., None]).double().sum())
        result.overlap += float(torch.minimum(ours, theirs).exp().sum(-1).double().sum())
    return result


def batches(count: int, window: int) -> Iterator[tuple[list[tuple[int, int]], int]]:
    """Windows of equal length, with the first position of each that is scored."""
    for (_, first), alike in groupby(windows(count, window), key=lambda w: (w[1] - w[0], w[2])):
        group = [(start, end) for start, end, _ in alike]
        for i in range(0, len(group), BATCH):
            yield group[i : i + BATCH], first


def windows(count: int, window: int) -> Iterator[tuple[int, int, int]]:
    """`(start, end, first)`: read tokens start to end - 1, score what follows each of those from `first` on.

    Every token but the first is scored once, and all beyond the first window see at least half a window before them.

    >>> list(windows(10, 4))
    [(0, 4, 0), (2, 6, 2), (4, 8, 2), (5, 9, 3)]
    """
    done = 0  # the last token that is scored so far
    while done < count - 1:
        end = min(done + (window if done == 0 else window // 2), count - 1)
        start = max(end - window, 0)
        yield start, end, done - start
        done = end
