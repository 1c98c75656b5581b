"""How the embedded pair is trained: tokenizer, target on the text, draft on the target's own predictions."""

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from tqdm import tqdm
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from multidraft.errors import AdviceError
from multidraft_research.training import corpus
from multidraft_research.training.descent import Descent, autocast, schedule


@dataclass(frozen=True)
class Shape:
    """The size of a Llama."""

    width: int
    layers: int
    inner: int  # width inside a feed-forward layer
    heads: int


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what is trained; the defaults are those of the embedded pair."""

    vocabulary: int = 4096
    context: int = 1024
    window: int = 512
    batch: int = 32
    target_steps: int = 1200
    draft_steps: int = 1200
    learning_rate: float = 0.02
    embedding_learning_rate: float = 0.004
    warmup: int = 40
    decay: float = 0.35
    held_out: float = 0.02
    checkpoint_every: int = 50
    seed: int = 0
    target: Shape = field(default_factory=lambda: Shape(width=768, layers=3, inner=1536, heads=12))
    draft: Shape = field(default_factory=lambda: Shape(width=192, layers=1, inner=512, heads=3))
    taught_by: str | None = None  # a target that there is already, where only the draft is trained


class Teacher(NamedTuple):
    """A target that there is already, and its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


STORED = {"target": torch.bfloat16, "draft": torch.float32}  # what decodes fastest, within the space there is


def new_model(role: str, recipe: Recipe) -> LlamaForCausalLM:
    """A randomly initialised Llama of the role's shape."""
    torch.manual_seed(recipe.seed)
    shape: Shape = getattr(recipe, role)
    config = LlamaConfig(
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        intermediate_size=shape.inner,
        num_attention_heads=shape.heads,
        vocab_size=recipe.vocabulary,
        max_position_embeddings=recipe.context,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
    )
    return LlamaForCausalLM(config)


def windows(tokens: Int[Tensor, " tokens"], step: int, recipe: Recipe) -> Int[Tensor, "batch window"]:
    """The batch of a step; it depends on seed and step alone, so a resumed run sees what an unbroken one would."""
    generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)
    starts = torch.randint(len(tokens) - recipe.window - 1, (recipe.batch,), generator=generator)
    return torch.stack([tokens[s : s + recipe.window + 1] for s in starts]).long()


def loss_of(model: nn.Module, teacher: nn.Module | None, batch: Int[Tensor, "batch window"]) -> Float[Tensor, ""]:
    """Cross-entropy against the text, or against the teacher's distribution where there is one."""
    with autocast(batch.device.type):
        logits = model(batch[:, :-1], use_cache=False).logits.flatten(0, 1).float()
        if teacher is None:
            return nn.functional.cross_entropy(logits, batch[:, 1:].flatten())
        with torch.no_grad():
            target_probs = teacher(batch[:, :-1], use_cache=False).logits.flatten(0, 1).float().softmax(-1)
        return nn.functional.cross_entropy(logits, target_probs)


def train_model(
    role: str, tokens: Int[Tensor, " tokens"], recipe: Recipe, folder: Path, teacher: nn.Module | None = None
) -> LlamaForCausalLM:
    """Train one model; resumes from the checkpoint in `folder` where there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = new_model(role, recipe).to(device=device)  # type: ignore[call-arg]  # hidden self
    matrices = [
        parameter for name, parameter in model.named_parameters() if parameter.ndim == 2 and "embed" not in name
    ]
    rates = recipe.learning_rate, recipe.embedding_learning_rate
    descent = Descent(model, matrices, *rates, folder / f"{role}.pt", weight_decay=0.01)
    first, steps = descent.done, getattr(recipe, f"{role}_steps")
    progress = tqdm(
        range(first, steps), initial=first, total=steps, desc=f"training the {role}", mininterval=0, miniters=1
    )
    for step in progress:  # each of them shows, as a step may take seconds
        batch = windows(tokens, step, recipe).to(device)
        share = schedule(step, steps, recipe.warmup, recipe.decay)
        loss = descent.step(share, partial(accumulate, model, teacher, batch))
        progress.set_postfix(bits_per_token=f"{loss / math.log(2):.3f}", refresh=False)
        if (step + 1) % recipe.checkpoint_every == 0 or step + 1 == steps:
            descent.save()
    return model.eval()


def accumulate(model: nn.Module, teacher: nn.Module | None, batch: Int[Tensor, "batch window"]) -> float:
    """Gradients of a batch in slices of eight windows, which bounds the memory of the logits."""
    total, slices = 0.0, batch.split(8)
    for part in slices:
        loss = loss_of(model, teacher, part) / len(slices)
        loss.backward()
        total += loss.item()
    return total


def save_pretrained(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, role: str, out: Path) -> None:
    """Write model and tokenizer in Hugging Face format."""
    model.to(dtype=STORED[role]).save_pretrained(out / role)  # type: ignore[call-arg]  # hidden self
    corpus.save_tokenizer(tokenizer, out / role)


def check_same(folder: Path, text: str, recipe: Recipe) -> None:
    """Note recipe and corpus in `folder`; raise where another run has left its checkpoints there."""
    note = folder / "recipe.json"
    ours = asdict(recipe) | {"corpus_sha256": hashlib.sha256(text.encode()).hexdigest()}
    del ours["checkpoint_every"]  # it does not decide what is trained
    theirs = json.loads(note.read_text()) if note.exists() else ours
    if changed := [f"{key} {theirs.get(key)} is now {ours[key]}" for key in ours if theirs.get(key) != ours[key]]:
        raise AdviceError(
            f"{folder} holds checkpoints of another run ({'; '.join(changed)}); use the same settings to go on, "
            "another --out to start afresh, or remove that folder"
        )
    folder.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps(ours, indent=2) + "\n")


def prepare(path: Path, recipe: Recipe, folder: Path) -> tuple[PreTrainedTokenizerFast, Int[Tensor, " tokens"]]:
    """The tokenizer (trained once, then read from `folder`) and the training part of the corpus as tokens."""
    text = training_text(path, recipe, folder)
    if (folder / "tokenizer").exists():
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / "tokenizer")
    else:
        tokenizer = corpus.train_tokenizer(text, recipe.vocabulary, recipe.context)
        corpus.save_tokenizer(tokenizer, folder / "tokenizer")
    return tokenizer, in_tokens(text, tokenizer, recipe)


def training_text(path: Path, recipe: Recipe, folder: Path) -> str:
    """All of the corpus but what is held out, for the run that `folder` is of."""
    whole = corpus.read_text(path)
    text, _ = corpus.split(whole, recipe.held_out)
    check_same(folder, whole, recipe)
    return text


def in_tokens(text: str, tokenizer: PreTrainedTokenizerBase, recipe: Recipe) -> Int[Tensor, " tokens"]:
    """The tokens of a text; raises where they do not fill a window."""
    tokens = corpus.encode(tokenizer, text)
    if len(tokens) <= recipe.window + 1:
        raise AdviceError(
            f"the corpus has {len(tokens)} tokens and a window {recipe.window}; use more text or smaller windows"
        )
    return tokens


def train_pair(path: Path, out: Path, recipe: Recipe) -> Iterator[str]:
    """Train both models on the text at `path` and write them to `out`; yields each role when it is there."""
    folder = out / "checkpoints"
    tokenizer, tokens = prepare(path, recipe, folder)
    target = train_model("target", tokens, recipe, folder)
    save_pretrained(target, tokenizer, "target", out)
    yield "target"
    draft = train_model("draft", tokens, recipe, folder, teacher=target.requires_grad_(False))
    save_pretrained(draft, tokenizer, "draft", out)
    yield "draft"


def train_draft(path: Path, out: Path, recipe: Recipe, teacher: Teacher) -> Iterator[str]:
    """Train a draft for a target that there is already, on the text at `path`, and write it to `out`."""
    folder = out / "checkpoints"
    tokens = in_tokens(training_text(path, recipe, folder), teacher.tokenizer, recipe)
    draft = train_model("draft", tokens, recipe, folder, teacher.model.requires_grad_(False))
    draft.config.eos_token_id = teacher.tokenizer.eos_token_id
    save_pretrained(draft, teacher.tokenizer, "draft", out)
    yield "draft"
