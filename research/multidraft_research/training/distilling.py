"""A draft model distilled from a capture: what the target expected, at every token of its own text."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from multidraft.errors import AdviceError
from multidraft.models.huggingface.compat import home
from multidraft.sampling.from_logits import distribution
from multidraft.verification.registry import scheme
from multidraft_research.captures.capturing import logits_at
from multidraft_research.captures.folder import Capture
from multidraft_research.captures.recording import resize
from multidraft_research.captures.shard import Shard
from multidraft_research.studies.on_captures.rates import TUPLES, entry
from multidraft_research.studies.running.cells import Cell
from multidraft_research.training.descent import load_checkpoint, save_checkpoint

SCHEME, COUNTS = "without_replacement:recursive_rejection", (1, 2, 3, 4)
BEFORE, AFTER, GAIN, PANEL = "before", "after", "gain", "acceptance"


@dataclass(frozen=True)
class DistillingSettings:
    """How the draft model is trained; prompts at the end of the capture are held out for measurements."""

    steps: int = 200
    batch: int = 4  # prompts a step
    learning_rate: float = 1e-4
    held_out: float = 0.2
    checkpoint_every: int = 20
    seed: int = 0

    def parts(self, prompts: int) -> tuple[range, range]:
        """The prompts to train on, and those that are held out.

        >>> DistillingSettings(held_out=0.2).parts(6)
        (range(0, 4), range(4, 6))
        """
        count = prompts - max(math.ceil(self.held_out * prompts), 1)
        if count < 1:
            raise AdviceError(f"the capture has {prompts} prompts, of which none is left to train on; capture more")
        return range(count), range(count, prompts)

    def choose_prompts(self, step: int, training: range) -> list[int]:
        """The prompts of a step; they depend on seed and step alone, so that a resumed run sees the same."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        return torch.randint(len(training), (self.batch,), generator=generator).tolist()


def distil(draft: PreTrainedModel, capture: Capture, settings: DistillingSettings, checkpoint: Path) -> PreTrainedModel:
    """Train a draft model in float32; goes on from the checkpoint where there is one."""
    training, _ = settings.parts(len(capture.entries))
    model = draft.float().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=0.0)
    first = load_checkpoint(checkpoint, model, [optimizer])
    for step in tqdm(range(first, settings.steps), initial=first, total=settings.steps, desc="distilling", unit="step"):
        optimizer.zero_grad(set_to_none=True)
        for index in settings.choose_prompts(step, training):
            (loss_of(model, capture.shard(index)) / settings.batch).backward()
        optimizer.step()
        if (step + 1) % settings.checkpoint_every == 0 or step + 1 == settings.steps:
            save_checkpoint(checkpoint, model, [optimizer], step + 1)
    return model.eval()


def loss_of(model: PreTrainedModel, shard: Shard) -> Float[Tensor, ""]:
    """Cross-entropy against the target's distributions, over the positions of a shard."""
    ids = torch.cat([shard.prompt, shard.tokens[:-1]])[None].to(home(model))
    logits = model(ids, use_cache=False).logits[0, len(shard.prompt) - 1 :].float()
    target_probs = shard.recording.target.to(logits.device).float().softmax(-1)
    size = min(logits.shape[-1], target_probs.shape[-1])  # vocabularies may be padded to different sizes
    return -(target_probs[:, :size] * logits.log_softmax(-1)[:, :size]).sum(-1).mean()


def gains(draft: PreTrainedModel, capture: Capture, settings: DistillingSettings) -> Iterator[tuple[str, list[Cell]]]:
    """Acceptance on each prompt that was held out, with the draft that was captured and with this one."""
    _, held_out = settings.parts(len(capture.entries))
    for index in held_out:
        shard = capture.shard(index)
        logits = logits_at(draft, shard.prompt.tolist(), shard.tokens.tolist())
        theirs = resize(logits, capture.vocabulary)
        yield capture.entries[index].id, list(compare_drafts(shard, theirs, torch.Generator().manual_seed(index)))


def compare_drafts(
    shard: Shard, draft: Float[Tensor, "positions vocabulary"], generator: torch.Generator
) -> Iterator[Cell]:
    """Rates with both drafts, and how far the second is above the first, position by position."""
    target = distribution(shard.recording.target.double())
    for count in COUNTS:
        s = scheme(SCHEME, drafts=count)
        before, after = (
            s.acceptance_rate(target, distribution(logits.double()), TUPLES, generator)
            for logits in (shard.recording.draft, draft)
        )
        for row, rate in ((BEFORE, before), (AFTER, after), (GAIN, after - before)):
            yield entry(PANEL, row, float(count), rate)
