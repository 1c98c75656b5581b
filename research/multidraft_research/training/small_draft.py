"""A small Llama over the most frequent tokens, distilled from a target's distributions.

It begins as the target's own first layers and its rows of embeddings. Its last token stands for all that it does not
know: such tokens are read as it, and never drafted. The loss is the cross-entropy to the target's distribution over the
tokens that the draft has, at T = 1; `mix` adds minus the logarithm of the acceptance rate, the sum of min(p, q).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from multidraft_research.training.descent import Descent, autocast, schedule
from multidraft_research.training.texts import TEXTS_TOGETHER, TopText, in_batches

STEPS_PER_CHECKPOINT = 25
TAIL_WEIGHT = 0.5  # weight of what the target gives to tokens that were not kept, which the draft may give to any


@dataclass(frozen=True)
class TrainingSettings:
    """How a draft is trained; the learning rates fall to nothing over the last `decay` of the steps."""

    layers: tuple[int, ...] = (0, 1)  # of the target, which the draft begins as
    steps: int = 400
    batch: int = 2500  # tokens a step
    learning_rate: float = 0.015
    embedding_learning_rate: float = 0.002
    warmup: int = 20
    decay: float = 0.6
    mix: float = 0.0
    seed: int = 0


class TokenSet:
    """The target's tokens that a draft has; any other is the draft's last one where it reads."""

    def __init__(self, target_ids: Sequence[int], of: int):
        self.target_ids, self.size = list(target_ids), len(target_ids)
        self.draft_ids = torch.full((of,), self.size)
        self.draft_ids[torch.tensor(self.target_ids)] = torch.arange(self.size)

    def to_draft(self, tokens: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """The target's tokens as the draft's."""
        return self.draft_ids[tokens.long()]


def new_draft(target: PreTrainedModel, layers: Sequence[int], vocabulary: TokenSet) -> LlamaForCausalLM:
    """A Llama in float32 that begins as these layers of the target, and its embeddings of these tokens."""
    of: Any = target.config
    settings = of.to_dict() | {"num_hidden_layers": len(layers), "vocab_size": vocabulary.size + 1}
    settings |= {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "tie_word_embeddings": True}
    settings |= {"architectures": None, "layer_types": None, "dtype": "float32", "target_ids": vocabulary.target_ids}
    model: Any = LlamaForCausalLM(LlamaConfig(**settings)).float()
    source: Any = target.model
    for layer, number in zip(model.model.layers, layers, strict=True):
        layer.load_state_dict(source.layers[number].state_dict())
    model.model.norm.load_state_dict(source.norm.state_dict())
    rows = source.embed_tokens.weight.detach().float()
    others = torch.ones(len(rows), dtype=torch.bool)
    others[vocabulary.target_ids] = False
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.cat([rows[~others], rows[others].mean(0, keepdim=True)]))
    return model


def logits_of(
    model: LlamaForCausalLM, texts: Sequence[TopText], vocabulary: TokenSet
) -> Float[Tensor, "places vocabulary"]:
    """What the draft expects at every place of all texts, over the tokens that it has."""
    longest = max(len(text.tokens) for text in texts)
    tokens = torch.zeros(len(texts), longest, dtype=torch.int64)
    for row, text in enumerate(texts):
        tokens[row, : len(text.tokens)] = torch.from_numpy(text.tokens.astype(np.int64))
    rows = torch.from_numpy(np.repeat(np.arange(len(texts)), [len(text.places) for text in texts]))
    before = torch.from_numpy(np.concatenate([text.places for text in texts]).astype(np.int64) - 1)
    with autocast("cpu"):
        states = model.model(vocabulary.to_draft(tokens), use_cache=False).last_hidden_state
        return model.lm_head(states[rows, before])[:, : vocabulary.size].float()


@dataclass(frozen=True)
class TargetProbabilities:
    """The target's `probability` of the tokens that were kept: the draft's `ids`, where it has them."""

    ids: Int[Tensor, "places top"]
    known: Bool[Tensor, "places top"]
    probability: Float[Tensor, "places top"]

    @classmethod
    def of(cls, texts: Sequence[TopText], vocabulary: TokenSet) -> "TargetProbabilities":
        """Those of all texts."""
        ids = vocabulary.to_draft(torch.from_numpy(np.concatenate([text.ids for text in texts]).astype(np.int64)))
        logs = torch.from_numpy(np.concatenate([text.logs for text in texts]).astype(np.float32))
        return cls(ids.clamp(max=vocabulary.size - 1), ids < vocabulary.size, logs.exp())

    def hits(self, logits: Float[Tensor, "places vocabulary"]) -> Bool[Tensor, "places 3"]:
        """Which of the draft's three most likely tokens, in that order, is the target's most likely one."""
        return logits.topk(3).indices == self.ids[:, :1].where(self.known[:, :1], -1)

    def draft_logs(self, logits: Float[Tensor, "places vocabulary"]) -> Float[Tensor, "places top"]:
        """The draft's log-probabilities of the tokens that were kept; they mean nothing where it has none."""
        return logits.gather(1, self.ids) - logits.logsumexp(-1, keepdim=True)


def loss_of(
    logits: Float[Tensor, "places vocabulary"], target_probs: TargetProbabilities, mix: float
) -> Float[Tensor, " places"]:
    """Cross-entropy to the target, mixed with minus the logarithm of the acceptance rate."""
    logs, share = target_probs.draft_logs(logits), target_probs.probability * target_probs.known
    tail = (1 - target_probs.probability.sum(1)).clamp(min=0)
    left = (1 - (logs.exp() * target_probs.known).sum(1)).clamp(min=1e-4)
    entropy = -(share * logs).sum(1) - TAIL_WEIGHT * tail * left.log()
    if not mix:
        return entropy
    accepted = torch.minimum(logs.exp() * target_probs.known, share).sum(1)
    return (1 - mix) * entropy - mix * accepted.clamp(min=1e-3).log()


def train(
    target: PreTrainedModel,
    texts: Sequence[TopText],
    vocabulary: TokenSet,
    settings: TrainingSettings,
    checkpoint: Path,
) -> Iterator[tuple[int, float, LlamaForCausalLM]]:
    """Train a draft, or go on from the checkpoint; after every step its number, its loss in nats, and the draft."""
    torch.manual_seed(settings.seed)
    model = new_draft(target, settings.layers, vocabulary)
    matrices = [parameter for name, parameter in model.named_parameters() if parameter.ndim == 2 and "layers" in name]
    descent = Descent(model, matrices, settings.learning_rate, settings.embedding_learning_rate, checkpoint)
    first, source = descent.done, in_batches([len(text.tokens) for text in texts], settings.batch, settings.seed)
    for step in range(settings.steps):
        batch = [texts[index] for index in next(source)]
        if step < first:
            continue
        share = schedule(step, settings.steps, settings.warmup, settings.decay)
        loss = descent.step(share, partial(accumulate, model, batch, vocabulary, settings.mix))
        if (step + 1) % STEPS_PER_CHECKPOINT == 0 or step + 1 == settings.steps:
            descent.save()
        yield step + 1, loss, model


def accumulate(model: LlamaForCausalLM, batch: Sequence[TopText], vocabulary: TokenSet, mix: float) -> float:
    """Gradients of a batch, some texts at a time, which bounds the memory of the logits."""
    places, total = sum(len(text.places) for text in batch), 0.0
    for first in range(0, len(batch), TEXTS_TOGETHER):
        part = batch[first : first + TEXTS_TOGETHER]
        loss = loss_of(logits_of(model, part, vocabulary), TargetProbabilities.of(part, vocabulary), mix).sum() / places
        loss.backward()
        total += loss.item()
    return total


@torch.inference_mode()
def acceptance(model: LlamaForCausalLM, texts: Sequence[TopText], vocabulary: TokenSet) -> dict[str, float]:
    """Means over the tokens of answers that were written at the temperature that is named.

    The sum of min(p, q); at T = 0 how often the most likely token is right, or among the draft's three; and what the
    draft's tokens have of the probability of those that were kept.
    """
    sums: dict[str, list[Tensor]] = {name: [] for name in ("T=1", "T=0.7", "T=0", "T=0, of three", "covered")}
    for first in range(0, len(texts), TEXTS_TOGETHER):
        part = texts[first : first + TEXTS_TOGETHER]
        logits, target_probs = logits_of(model, part, vocabulary), TargetProbabilities.of(part, vocabulary)
        answer = torch.from_numpy(np.concatenate([text.places >= text.about["answer"] for text in part]))
        temperatures = np.repeat([text.about["temperature"] for text in part], [len(text.places) for text in part])
        temperature = torch.from_numpy(temperatures)
        for value, name in ((1.0, "T=1"), (0.7, "T=0.7")):
            sums[name].append(overlap(logits, target_probs, value)[answer & (temperature == value)])
        best = target_probs.hits(logits)
        sums["T=0"].append(best[:, 0][answer & (temperature == 0)].float())
        sums["T=0, of three"].append(best.any(1)[answer & (temperature == 0)].float())
        covered = (target_probs.probability * target_probs.known).sum(1) / target_probs.probability.sum(1)
        sums["covered"].append(covered[answer])
    return {name: float(torch.cat(values).mean()) for name, values in sums.items() if sum(map(len, values))}


def overlap(
    logits: Float[Tensor, "places vocabulary"], target_probs: TargetProbabilities, temperature: float
) -> Float[Tensor, " places"]:
    """The sum of min(p, q); below T = 1, the target's law is that of the tokens that were kept."""
    draft_probs = target_probs.draft_logs(logits / temperature).exp() * target_probs.known
    tempered = target_probs.probability ** (1 / temperature)
    return torch.minimum(draft_probs, tempered if temperature == 1 else tempered / tempered.sum(1, keepdim=True)).sum(1)
