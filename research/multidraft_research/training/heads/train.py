"""How a head is trained: it begins as a part of its target, and learns the target's distribution at every depth."""

import signal
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

from multidraft.errors import AdviceError
from multidraft.models.heads import drafters
from multidraft.models.heads.configuration import usual_layers
from multidraft.models.heads.networks import DFLASH, EAGLE3, MEDUSA, MODULES, AnyHead, Settings
from multidraft.models.huggingface import compat
from multidraft_research.training.conversations import logits_of
from multidraft_research.training.descent import Descent, autocast, schedule
from multidraft_research.training.heads.captured import CapturedText
from multidraft_research.training.heads.drafts import Depths, TextBatch, draft_along
from multidraft_research.training.small_draft import TEXTS_TOGETHER, TargetProbabilities, TokenSet, loss_of, overlap
from multidraft_research.training.texts import in_batches

STEPS_PER_CHECKPOINT = 25
NORM_SCALE = 0.3  # of the target's last norm, which a head begins with: sharp guesses without knowledge cost much
MEASURED_SHARE = 0.25  # share of the held-out places that deeper tokens are measured at
TEMPERATURES = {"T=1": 1.0, "T=0.7": 0.7}


@dataclass(frozen=True)
class HeadSettings:
    """How a head is trained; the learning rates fall to nothing over the last `decay` of the steps."""

    steps: int = 400
    batch: int = 1500  # tokens a step
    learning_rate: float = 0.02
    other_learning_rate: float = 0.002
    warmup: int = 10
    decay: float = 0.5
    depth: int = 4
    share: float = 0.4  # of the places, at which deeper tokens are trained
    deeper: float = 0.8  # weight of a depth beside that of the one before
    mix: float = 0.0  # of minus the logarithm of the acceptance rate in the loss
    seed: int = 0


@dataclass(frozen=True)
class HeadPlan:
    """What a head is to be: of which kind, how many tokens it has, and its layers, heads or block."""

    kind: str
    drafted: int
    layers: int = 1
    heads: int = 4  # Medusa
    block: int = 5  # DFlash, the known token among them
    mask_token: int = 0  # DFlash

    def settings(self, target: PretrainedConfig) -> Settings:
        """Its settings for this target: EAGLE-3.1, with norms that large states of single tokens do not upset."""
        if self.kind == MEDUSA:
            layer = AutoConfig.for_model("llama", hidden_size=target.hidden_size, vocab_size=target.vocab_size)
            last = (target.num_hidden_layers,)
            return Settings(MEDUSA, layer, last, self.drafted, target.hidden_size, heads=self.heads)
        read = usual_layers(target.num_hidden_layers)
        layer = decoder(target, self.layers, "llama" if self.kind == EAGLE3 else "qwen3")
        common_settings: dict[str, Any] = {"fc_norm": True, "norm_output": True}
        if self.kind == DFLASH:
            common_settings = {"block": self.block, "mask_token": self.mask_token}
        return Settings(self.kind, layer, read, self.drafted, target.hidden_size, **common_settings)


def decoder(target: PretrainedConfig, layers: int, family: str) -> PretrainedConfig:
    """A decoder layer's configuration like that of the target."""
    names = ["hidden_size", "intermediate_size", "num_attention_heads", "head_dim", "vocab_size", "hidden_act"]
    names += ["max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters"]
    of = target.to_dict()
    values = {name: of[name] for name in names if of.get(name) is not None}
    values["num_key_value_heads"] = target.num_attention_heads  # what a token is reaches its state through values alone
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    return AutoConfig.for_model(family, **values, **ends, num_hidden_layers=layers, tie_word_embeddings=False)


def new_head(plan: HeadPlan, target: PreTrainedModel, vocabulary: TokenSet, seed: int) -> AnyHead:
    """A head in float32 whose outputs begin as the target's rows; but for Medusa they stay so, as do embeddings.

    It has the tokens of the vocabulary, which may be fewer than the plan asks for.
    """
    plan = replace(plan, drafted=vocabulary.size)
    torch.manual_seed(seed)
    output: Any = target.get_output_embeddings()
    of = output.weight.detach()
    head: Any = MODULES[plan.kind](plan.settings(target.config.get_text_config(decoder=True))).to(of.device)
    rows = of[torch.tensor(vocabulary.target_ids)]
    if head.d2t is not None:
        head.d2t.copy_(torch.tensor(vocabulary.target_ids) - torch.arange(vocabulary.size))
    if plan.kind == MEDUSA:
        for part in head:
            part[-1].weight.data = rows.float().clone()
            nn.init.zeros_(part[0].linear.weight)
        return head
    embedding: Any = target.get_input_embeddings()
    head.embed_tokens.weight = nn.Parameter(embedding.weight.detach(), requires_grad=False)
    head.lm_head.weight = nn.Parameter(rows.float(), requires_grad=False)
    head.norm.weight.data = NORM_SCALE * output_scale(target) * norm_weight(compat.body(target)[1]).float()
    return head


@torch.no_grad()
def norm_weight(body: Any) -> Tensor:
    """What the last norm multiplies by, in whatever way its family writes it: Gemma adds one."""
    weight = body.norm.weight
    signs = 1 - 2 * (torch.arange(len(weight), device=weight.device) % 2).to(weight.dtype)  # mean 0, mean square 1
    return body.norm(signs[None])[0] * signs


@torch.no_grad()
def output_scale(target: PreTrainedModel) -> float:
    """What the target multiplies the product with its output layer by: Granite and Cohere scale their logits."""
    output: Any = target.get_output_embeddings()
    row = output.weight[:1].float()
    states = (row / row.square().sum() / 100).to(output.weight.dtype)  # whose product is too small for a cap
    product = output(states)[0].float()
    return float(logits_of(target, states)[0] @ product / product.square().sum())


def check_trainable(target: PreTrainedModel, kind: str) -> None:
    """Raise unless a head of this kind can begin as a part of a target; its laws are those of the target's forward."""
    body, family = compat.body(target)[1], target.config.model_type
    if "forward" in vars(target) or "forward" in vars(body):  # accelerate's
        raise AdviceError(f"this {family} is spread over devices; load it on one to train a head for it")
    if kind != MEDUSA and getattr(getattr(body, "norm", None), "weight", None) is None:
        raise AdviceError(
            f"{kind} heads begin with their target's last norm, which is not found in a {family}; train a medusa head, "
            "or one for another family, such as llama, qwen, gemma, granite or cohere"
        )


def load_for_training(name: str, target: PreTrainedModel) -> tuple[AnyHead, TokenSet]:
    """A head that was trained before, as `eagle3:FOLDER` names it, in float32, and its tokens, which stay as they are.

    Raises AdviceError where the name leads to no such head for this target.
    """
    head: Any = deepcopy(drafters.head(name, target).module).float().train()  # of parts that the target shares, too
    size = target.config.get_text_config(decoder=True).vocab_size
    if head.settings.kind != MEDUSA:
        head.embed_tokens.requires_grad_(False)
        head.lm_head.requires_grad_(False)
    return head, TokenSet(range(size) if head.ids is None else head.ids.tolist(), size)


def trained_parameters(head: AnyHead) -> nn.ParameterList:
    """The parameters of a head that training changes: none of the target's."""
    return nn.ParameterList([parameter for parameter in head.parameters() if parameter.requires_grad])


def new_descent(head: AnyHead, settings: HeadSettings, checkpoint: Path) -> Descent:
    """Muon for the matrices within, AdamW for outputs and all that is no matrix."""
    trained, size = trained_parameters(head), head.settings.drafted
    matrices = [parameter for parameter in trained if parameter.ndim == 2 and parameter.shape[0] != size]
    return Descent(trained, matrices, settings.learning_rate, settings.other_learning_rate, checkpoint)


def train(
    head: AnyHead, texts: Sequence[CapturedText], vocabulary: TokenSet, settings: HeadSettings, checkpoint: Path
) -> Iterator[tuple[int, int, float]]:
    """Train a head, or go on from the checkpoint; after every step its number, the tokens seen so far, and the loss.

    Ctrl-C ends it after the step that it comes in, with a checkpoint; a second one at once.
    """
    descent, tokens = new_descent(head, settings, checkpoint), 0
    first, source = (
        descent.done,
        in_batches([len(captured_text.text.tokens) for captured_text in texts], settings.batch, settings.seed),
    )
    with StopAfterStep() as stop:
        for step in range(settings.steps):
            batch = [texts[index] for index in next(source)]
            tokens += sum(len(captured_text.text.tokens) for captured_text in batch)
            if step < first:
                continue
            share, is_last = schedule(step, settings.steps, settings.warmup, settings.decay), step + 1 == settings.steps
            loss = descent.step(share, partial(accumulate, head, batch, vocabulary, settings, step))
            if is_last:  # with no checkpoint: a run that is killed before its head is written has this step to take
                yield step + 1, tokens, loss
                return
            if (step + 1) % STEPS_PER_CHECKPOINT == 0 or stop.is_requested:
                descent.save()
            stop.check()
            yield step + 1, tokens, loss


class StopAfterStep:
    """Ctrl-C waits for the end of a step."""

    def __enter__(self) -> "StopAfterStep":
        self.is_requested = False
        self.before = signal.signal(signal.SIGINT, self.note)
        return self

    def note(self, number: int, frame: FrameType | None) -> None:
        """The first one waits."""
        if self.is_requested:
            raise KeyboardInterrupt
        self.is_requested = True

    def check(self) -> None:
        """Raise where one has come."""
        if self.is_requested:
            raise KeyboardInterrupt

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self.before)


def accumulate(
    head: AnyHead, texts: Sequence[CapturedText], vocabulary: TokenSet, settings: HeadSettings, step: int
) -> float:
    """Gradients of a batch, some texts at a time, which bounds the memory of the logits."""
    places, total = sum(len(captured_text.text.places) for captured_text in texts), 0.0
    generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + step)
    depths = Depths(settings.depth, settings.share, generator)
    device = next(head.parameters()).device
    for first in range(0, len(texts), TEXTS_TOGETHER):
        batch = TextBatch.of(texts[first : first + TEXTS_TOGETHER], vocabulary, device)
        loss = torch.zeros((), device=device)
        with autocast(device.type):
            for depth, logits, laws in draft_along(head, batch, depths):
                losses = loss_of(logits.float(), select(batch.target_probs, laws), settings.mix)
                share = settings.share if depth > 1 or head.settings.kind == DFLASH else 1.0
                loss = loss + settings.deeper ** (depth - 1) * losses.sum() / share
        (loss / places).backward()
        total += loss.item() / places
    return total


def select(target_probs: TargetProbabilities, laws: Tensor) -> TargetProbabilities:
    """Some of the laws."""
    return TargetProbabilities(target_probs.ids[laws], target_probs.known[laws], target_probs.probability[laws])


@torch.inference_mode()
def acceptance(
    head: AnyHead, texts: Sequence[CapturedText], vocabulary: TokenSet, depth: int
) -> dict[str, list[float]]:
    """By depth, means over the tokens of answers that were written at the temperature that is named.

    The sum of min(p, q); at T = 0 how often the most likely token is right, or among the head's three.
    """
    sums: dict[str, list[list[Tensor]]] = {
        name: [[] for _ in range(depth)] for name in (*TEMPERATURES, "T=0", "T=0, of three")
    }
    depths = Depths(depth, MEASURED_SHARE, torch.Generator().manual_seed(5))
    device = next(head.parameters()).device
    for first in range(0, len(texts), TEXTS_TOGETHER):
        batch = TextBatch.of(texts[first : first + TEXTS_TOGETHER], vocabulary, device)
        with autocast(device.type):
            for level, logits, laws in draft_along(head, batch, depths):
                target_probs = select(batch.target_probs, laws)
                temperature = batch.temperatures[laws].where(batch.answers[laws], -1)
                for name, value in TEMPERATURES.items():
                    rates_at_places = overlap(logits.float(), target_probs, value)
                    sums[name][level - 1].append(rates_at_places[(temperature - value).abs() < 1e-3])
                right = target_probs.hits(logits)
                sums["T=0"][level - 1].append(right[:, 0][temperature == 0].float())
                sums["T=0, of three"][level - 1].append(right.any(1)[temperature == 0].float())
    rates = {name: [torch.cat(values) for values in by_depth if values] for name, by_depth in sums.items()}
    return {
        name: [round(float(values.mean()), 4) for values in rates_by_depth if len(values)]
        for name, rates_by_depth in rates.items()
    }
