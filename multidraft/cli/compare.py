"""What `multidraft generate --compare` sets beside drafting: plain decoding, and transformers' own ways to draft."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multidraft.cli.models import Models
    from multidraft.cli.prompts import Prompt
    from multidraft.decoding.metrics import Info

ASSISTED, LOOKUP = "assisted", "lookup"  # what transformers drafts with: the same draft model, or the prompt
LOOKED_UP = 10  # tokens that prompt look-up drafts at most, as its authors have it
RESAMPLES = 2000
MARGIN = 1.1  # times faster: less may be noise, and is no reason for a hint
PLAIN = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
)  # settings that transformers has by these names


@dataclass
class Runs:
    """How many tokens each batch made, in how many seconds."""

    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def add(self, tokens: int, seconds: float) -> None:
        """One more batch."""
        self.tokens.append(tokens)
        self.seconds.append(seconds)

    def rate(self, batches: Sequence[int] | None = None) -> float:
        """Tokens per second, over all batches or some."""
        some = range(len(self.tokens)) if batches is None else batches
        return sum(self.tokens[i] for i in some) / max(sum(self.seconds[i] for i in some), 1e-9)


def speedup(runs: Runs, plain: Runs) -> float:
    """Tokens per second over those of plain decoding."""
    return runs.rate() / max(plain.rate(), 1e-9)


def interval(runs: Runs, plain: Runs | None = None) -> tuple[float, float] | None:
    """95 % of the bootstrap over batches of the rate, or of its ratio to the plain one; None with fewer than two."""
    chance, batches = random.Random(0), range(len(runs.tokens))
    if len(batches) < 2 or (plain is not None and not plain.tokens):
        return None
    samples = (chance.choices(batches, k=len(batches)) for _ in range(RESAMPLES))
    rates = sorted(runs.rate(some) / (max(plain.rate(some), 1e-9) if plain else 1) for some in samples)
    return rates[round(0.025 * RESAMPLES)], rates[round(0.975 * RESAMPLES) - 1]


def rivals(pair: "Models", settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What transformers' own loop is given for each way to draft that it has, where it can do what the settings ask."""
    from transformers import PreTrainedModel

    if not isinstance(pair.target, PreTrainedModel) or settings["stop"]:
        return {}
    found: dict[str, dict[str, Any]] = {LOOKUP: {"prompt_lookup_num_tokens": LOOKED_UP}}
    readers = [getattr(reader, "model", None) for reader in getattr(pair.draft, "drafters", ())]
    drafts = [draft for draft in (pair.draft, *readers) if isinstance(draft, PreTrainedModel)]
    if len(drafts) == 1:
        found[ASSISTED] = {"assistant_model": widened(drafts[0], pair.target.config.get_text_config().vocab_size)}
    return found


@cache
def widened(draft: Any, vocabulary: int) -> Any:
    """A draft model with a part of its target's tokens as one with all of them; the others have probability 0."""
    import copy

    import torch
    from transformers.modeling_outputs import CausalLMOutputWithPast

    ids = getattr(draft.config, "target_ids", None)
    if ids is None:
        return draft
    places, count = torch.full((vocabulary,), len(ids)), len(ids)
    places[ids] = torch.arange(count)

    class Widened(type(draft)):  # type: ignore[misc]  # whatever the draft is
        def forward(self, input_ids: Any = None, **others: Any) -> Any:
            found = super().forward(input_ids=places[input_ids], **others)
            logits = found.logits.new_full((*found.logits.shape[:2], vocabulary), -float("inf"))
            logits[..., ids] = found.logits[..., :count]
            return CausalLMOutputWithPast(logits=logits, past_key_values=found.past_key_values)

    wide = copy.copy(draft)
    wide.__class__, wide.config = Widened, copy.deepcopy(draft.config)
    wide.config.vocab_size = vocabulary
    return wide


def rival(
    pair: "Models", prompts: "list[Prompt]", settings: dict[str, Any], seed: int, way: dict[str, Any]
) -> tuple[int, float]:
    """Tokens and seconds of transformers' own loop with a way to draft; it takes one prompt at a time."""
    import time

    import torch

    target: Any = pair.target  # its type hides `generate`
    tokens, start = 0, time.perf_counter()
    for prompt in prompts:
        torch.manual_seed(seed + prompt.index)
        ids = torch.tensor([prompt.tokens], device=target.device)
        out = target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=settings["max_new_tokens"],
            **way,
            **sampling(settings),
            **ending(pair),
        )
        tokens += out.shape[1] - ids.shape[1]
    if target.device.type == "cuda":
        torch.cuda.synchronize()
    return tokens, time.perf_counter() - start


def sampling(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings by transformers' names; what is left out is off there, too."""
    if settings["temperature"] == 0:
        return {"do_sample": False}
    given = {name: settings[name] for name in PLAIN if settings[name] is not None}
    return {"do_sample": True, "top_k": 0, "top_p": 1.0} | given


def ending(pair: "Models") -> dict[str, Any]:
    """A pad token, without which transformers says that it takes the end of text for it."""
    target: Any = pair.target  # one of transformers, as `rivals` has found
    config = target.generation_config
    end = config.eos_token_id[0] if isinstance(config.eos_token_id, list) else config.eos_token_id
    return {"pad_token_id": config.pad_token_id if config.pad_token_id is not None else end if end is not None else 0}


def hint(info: "Info", plain: "Info", tree: str) -> str | None:
    """One line where a chain would be faster by the seconds that were measured, or where drafts do not pay."""
    if not (info.drafts and info.nodes and info.tokens and plain.tokens):
        return None
    deepest = len(info.lengths) - 1
    rates = {depth: chain_rate(info, plain, depth) / plain.tokens_per_second for depth in range(1, deepest + 1)}
    best, ours = max(rates, key=rates.__getitem__), info.tokens_per_second / plain.tokens_per_second
    chain = "x".join("1" * best)
    if tree != chain and rates[best] > MARGIN * max(ours, 1.0):
        return (
            f"hint: tree {tree} runs at {ours:.2f} times plain decoding here; by the seconds of its parts, "
            f"--tree {chain} would run at about {rates[best]:.2f} times"
        )
    if ours * MARGIN < 1 and rates[best] < 1:
        accepted = (info.rank_rates or [0.0])[0]
        return (
            f"hint: no drafts are best here: --draft none (tree {tree} runs at {ours:.2f} times plain decoding, "
            f"{accepted:.0%} of first drafts accepted)"
        )
    if ours * MARGIN < 1:
        return f"hint: tree {tree} runs slower than plain decoding here; try --tree {chain}"
    return None


def chain_rate(info: "Info", plain: "Info", depth: int) -> float:
    """Tokens per second to be expected of a chain, cautiously.

    Each of its drafts is taken to be accepted as often as the first draft of a node was, though alone it would be more
    often. Of the target's seconds it saves those of the nodes that it does not have: what a pass took beyond a plain
    one, in proportion. It saves the draft passes of the levels that it does not have, and nothing else.
    """
    steps, seconds, first = info.drafts, info.seconds, (info.rank_rates or [0.0])[0]
    alone = plain.seconds["target"] / plain.row_passes
    nodes = max(seconds["target"] / steps - alone, 0.0) * min(depth * steps / info.nodes, 1.0)
    draft = seconds["draft"] / steps * depth / (len(info.lengths) - 1)
    others = sum(seconds[part] for part in ("rule", "cache", "measure", "rest")) / steps
    return sum(first**level for level in range(depth + 1)) / (alone + nodes + draft + others)
