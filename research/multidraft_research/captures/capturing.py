"""Record a pair of models: the target continues each prompt, and both models say what they expected there."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors.torch import save
from torch import Tensor

from multidraft.decoding.prefill import read
from multidraft.errors import AdviceError
from multidraft.generation.generate import generate
from multidraft.io import files as outputs
from multidraft.models.reader import chain_parents
from multidraft.models.user_models import Model, as_reader, context_of
from multidraft_research.captures.folder import ShardEntry
from multidraft_research.captures.recording import Recording, resize
from multidraft_research.captures.shard import Shard, losses


@dataclass(frozen=True)
class Manner:
    """How each prompt is captured.

    The target continues it by `new_tokens` tokens at `temperature`; with `score`, the prompt's own tokens after the
    first are taken in their place. `top_k` tokens are kept at each position, or all.
    """

    new_tokens: int = 64
    temperature: float = 1.0
    seed: int = 0
    score: bool = False
    top_k: int | None = None


def capture(target: Model, draft: Model, prompts: Iterable[list[int]], manner: Manner) -> Iterable[Recording]:
    """For each prompt, the logits of both models at every token that follows it."""
    for index, prompt in enumerate(prompts):
        yield capture_prompt(target, draft, prompt, index, manner).recording


def capture_prompt(target: Model, draft: Model, prompt: list[int], index: int, manner: Manner) -> Shard:
    """The same for one prompt, whose random numbers depend on its place alone."""
    context = min((size for size in map(context_of, (target, draft)) if size is not None), default=math.inf)
    room = min(manner.new_tokens, context - (1 if manner.score else len(prompt)))  # both read all of it
    if room < 1:
        raise AdviceError(f"prompt {index} has {len(prompt)} tokens, and the smaller context is {context}; shorten it")
    prefix, following = prompt[:1], prompt[1 : 1 + int(room)]
    if not manner.score:
        generator = torch.Generator().manual_seed(manner.seed + index)
        settings = dict(max_new_tokens=int(room), temperature=manner.temperature, measure=False)
        tokens, _ = generate(target, None, [prompt], generator=generator, **settings)
        prefix, following = prompt, tokens[0].tolist()
    ours, theirs = (logits_at(model, prefix, following) for model in (target, draft))
    recording = Recording(ours, resize(theirs, ours.shape[-1]))
    return Shard(torch.tensor(prefix), torch.tensor(following), recording)


def logits_at(model: Model, prompt: list[int], following: list[int]) -> Float[Tensor, "positions vocabulary"]:
    """Logits that predict each of the `following` tokens.

    What a draft model with a reduced vocabulary does not have is never drafted: its logit is minus infinity.
    """
    (*before, last), reader = prompt, as_reader(model).new(len(prompt) + len(following))
    asked = [last, *following[:-1]]
    with torch.inference_mode():
        if before:
            read(reader, [before], "none")
        scores = reader.forward([asked], [chain_parents(len(asked))])
        logits = scores.drafted_logits[0].cpu()
    if scores.ids is None:
        return logits
    return logits.new_full((len(logits), reader.vocabulary), -torch.inf).index_copy(1, scores.ids.cpu(), logits)


def write(shard: Shard, folder: Path, index: int, name: str, task: str, top_k: int | None) -> dict[str, object]:
    """Write the shard of a prompt, whole or not at all; its line of the manifest."""
    tensors = shard.tensors(top_k)
    content, file = save(tensors), f"{index:05}.safetensors"
    outputs.write(folder / file, content)
    digest, lost = sha256(content).hexdigest(), losses(shard.recording, tensors)
    return asdict(ShardEntry(file, digest, len(content), name, task, len(shard.tokens), **lost))


def largest(prompts: int, manner: Manner, vocabulary: int, bytes_of_pair: int = 8) -> int:
    """Bytes that a capture takes at most, up to ids and headers; a logit of both models takes `both` bytes.

    >>> largest(2, Manner(new_tokens=3), 10)
    480
    """
    kept = min(manner.top_k or vocabulary, vocabulary)
    return prompts * manner.new_tokens * kept * (bytes_of_pair + (4 if kept < vocabulary else 0))
