"""Before the first step: what is compiled is used once before any clock runs, and prompts are read.

Both models keep all of a prompt but its last token, the root of the first tree. Where the target reads that one as
well, it has said all that the first new token is drawn from: the row's first step then drafts nothing, and takes no
pass. Prompts of similar lengths are read together, which pads little.
"""

from collections.abc import Sequence
from functools import cache
from operator import add
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from multidraft.decoding.policy import StaticTree
from multidraft.decoding.record import Clock
from multidraft.decoding.state import DecodeConfig, Row, State, for_rows
from multidraft.errors import AdviceError
from multidraft.models.base import MAX_CHUNK_TOKENS, LanguageModel, check_logits, hidden_layers_of
from multidraft.models.huggingface import Model, prepare, reader
from multidraft.sampling.drafting import draft_distributions
from multidraft.sampling.settings import Sampling
from multidraft.verification import loops
from multidraft.verification.distributions import pick_each
from multidraft.verification.scheme import Scheme

SIMILAR = 1.25  # the longest prompt of a group beside the shortest

Generators = torch.Generator | list[torch.Generator] | None


Said = list[Float[Tensor, " vocabulary"]]  # the logits after texts, if they were asked for
States = list[Float[Tensor, "_ layers width"]]  # the hidden states of texts' tokens; none if nobody reads them


def start(
    prompts: list[list[int]],
    target_model: Model,
    draft_model: Model | None,
    config: DecodeConfig,
    sampling: list[Sampling],
    longest: int,
    generator: Generators = None,
    seen: list[list[int]] | None = None,
    whole: bool = False,
    clock: Clock | None = None,
) -> State:
    """Both models read all of each prompt but its last token, which is the root of the first tree.

    Processors, where they look back, see `seen` in place of the prompts. `longest` is what a sequence may grow to. The
    target reads prompts as a `whole` where that is asked for. A policy that `skips_draft_model` leaves the draft
    model's unread.
    """
    capacity, roots = longest + 2 * config.policy.most_nodes + 2, [prompt[:-1] for prompt in prompts]
    clock = clock or Clock(False)
    with clock.part("target"):
        texts, hidden_layers = prompts if whole else roots, hidden_layers_of(draft_model)
        target, said, states = read_all(target_model, texts, capacity, config.compile, whole, hidden_layers)
    draft, skips_draft_model = None, getattr(config.policy, "skips_draft_model", False)
    if draft_model is not None:
        with clock.part("draft"):
            texts = [[] for _ in prompts] if skips_draft_model else roots
            draft, _, _ = read_all(draft_model, texts, capacity, config.compile, states=states)
    return at_roots(target, draft, prompts, sampling, generator, seen, said, roots if skips_draft_model else None)


def read_all(
    model: Model,
    texts: list[list[int]],
    capacity: int,
    compiled: bool = False,
    score: bool = False,
    hidden_layers: Sequence[int] = (),
    states: Sequence[Float[Tensor, "_ layers width"]] = (),
) -> tuple[LanguageModel, Said, States]:
    """A reader that has kept these texts, one a row; those of similar lengths are read side by side.

    A target returns the hidden states of `hidden_layers`, a draft model observes the target's `states` first.
    """
    readers, said, told = list[LanguageModel](), dict[int, Tensor](), dict[int, Tensor]()
    for rows in (groups := similar([len(text) for text in texts])):
        readers.append(own := reader(model, capacity, compiled, hidden_layers))
        if states and hidden_layers_of(own):
            cast(Any, own).observe([states[row] for row in rows])
        logits, noted = read(own, [texts[row] for row in rows], score)
        said |= zip(rows, logits, strict=False)
        told |= zip(rows, noted, strict=False)
    for other in readers[1:]:
        readers[0].extend(other)
    order = [row for rows in groups for row in rows]
    if order != sorted(order):
        readers[0].gather([order.index(row) for row in range(len(order))])
    return readers[0], [said[row] for row in sorted(said)], [told[row] for row in sorted(told)]


def read(model: LanguageModel, texts: list[list[int]], score: bool) -> tuple[Said, States]:
    """Commit texts piece by piece, all of which end together; the logits after each, and hidden states if any."""
    longest, told = max(map(len, texts)), []
    for ahead in reversed(
        range(0, max(longest, 1), MAX_CHUNK_TOKENS)
    ):  # once at least, which settles the number of rows
        pieces = [
            text[max(len(text) - ahead - MAX_CHUNK_TOKENS, 0) : len(text) - ahead] if len(text) > ahead else []
            for text in texts
        ]
        parents = [list(range(-1, len(piece) - 1)) for piece in pieces]
        logits = model.forward(pieces, parents, "last" if score and not ahead else "none")
        model.commit([list(range(len(piece))) for piece in pieces])
        told.append(getattr(model, "hidden_states", []))
    if score:
        check_logits(model, logits, (len(texts), 1), model.vocabulary)
    return list(logits[:, -1]) if score else [], [torch.cat(pieces) for pieces in zip(*told, strict=True)]


def at_roots(
    target: LanguageModel,
    draft: LanguageModel | None,
    prompts: list[list[int]],
    sampling: list[Sampling],
    generator: Generators = None,
    seen: list[list[int]] | None = None,
    said: Said | None = None,
    unread: list[list[int]] | None = None,
) -> State:
    """The state of readers that have read all of each prompt but its last token; the target that too, if it `said` so.

    `unread` is what the draft model has not read of each prompt before its last token.
    """
    if len(sampling) != len(prompts):
        raise AdviceError(f"there are {len(prompts)} prompts and {len(sampling)} settings; give one for each prompt")
    for row, prompt in enumerate(prompts):
        if not 0 <= min(prompt) <= max(prompt) < target.vocabulary:  # a reader of theirs may take it for another
            strange = next(token for token in prompt if not 0 <= token < target.vocabulary)
            raise AdviceError(f"prompt {row} has token {strange}, and the target's are 0 to {target.vocabulary - 1}")
    rows = []
    for number, (own, random) in enumerate(zip(sampling, for_rows(generator, len(prompts)), strict=True)):
        prompt, left = prompts[number], list(unread[number]) if unread else []
        prefix = torch.tensor((seen or prompts)[number], device=target.device) if own.looks_back else None
        rows.append(Row(own, random, prompt[-1], len(prompt) - 1, left, prefix, said[number] if said else None))
    return State(target, draft, rows)


def similar(lengths: list[int]) -> list[list[int]]:
    """Rows whose texts are about as long, from the longest on."""
    groups: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if groups and lengths[groups[-1][0]] <= SIMILAR * lengths[row]:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def warm_up(config: DecodeConfig, device: torch.device) -> None:
    """Draw and verify once with every number of drafts that a node may have, where that runs as loops."""
    if loops.HAS_NUMBA and device.type == "cpu" and not config.scheme.entry.small:  # solvers have no loops
        for count in config.policy.counts_drawn:
            use_once(config.scheme.with_drafts(count))
        for dtype in (torch.float32, torch.float64):
            draft_distributions(torch.zeros(1, 2, dtype=dtype), [Sampling()], drafts=1, vocabulary=2)


def compile_steps(
    config: DecodeConfig, models: Sequence[Model | None], prompts: list[list[int]], budgets: list[int]
) -> None:
    """Compile the steps of such a run, where models can be compiled; what is there already is not compiled again."""
    lengths = [len(prompt) for prompt in prompts]
    longest = max(map(add, lengths, budgets)) + 2 * config.policy.most_nodes + 2
    for number, model in enumerate(models):
        branches = number == 0 and isinstance(config.policy, StaticTree) and config.policy.most_nodes > 1
        if isinstance(model, PreTrainedModel):
            prepare(model, len(prompts), (1 + branches, config.policy.most_nodes), (min(lengths), longest))


@cache
def use_once(scheme: Scheme) -> None:
    """All loops that a step may call, on a few tokens: with duplicates and without, with an anchor and without."""
    numbers = torch.zeros(1, scheme.law.numbers, dtype=torch.float64)
    for first in (0.0, 2.0):
        target = torch.tensor([[first] + [0.0] * (2 * scheme.drafts)], dtype=torch.float64).softmax(-1)
        for weights in (target, target.float()):
            pick_each(weights, [0.5])
        draft = target[:, None].expand(-1, scheme.drafts, -1) if scheme.law.several else target
        _ = scheme.verify(target, draft, scheme.law.draw(draft, numbers)).residual
