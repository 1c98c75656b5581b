"""Acceptance of the schemes that papers compare, and of ours, beside the optimum of each one's drafts."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from multidraft.sampling.drafting import vanishing_weights
from multidraft.sampling.from_logits import distribution
from multidraft.verification.registry import scheme
from multidraft.verification.scheme import Scheme
from multidraft_research.captures.recording import Recording
from multidraft_research.studies.running.cells import Cell
from multidraft_research.studies.running.study import Captured, Panel

COMPARED = (
    "iid:recursive_rejection",
    "iid:k_sequential",
    "iid:lorenz",
    "without_replacement:recursive_rejection",
    "greedy:maximal_coupling",
    "anchored:lorenz",
)
TUPLES = 16  # a position, where acceptance has no formula; the error over prompts has the noise of them in it
RATE, GAP = "acceptance", "below the optimum"
PERCENT = 100.0


def panels(columns: str) -> dict[str, Panel]:
    """How `compare_schemes` is shown."""
    return {
        RATE: Panel("acceptance rate, %", columns, PERCENT),
        GAP: Panel("acceptance less the optimum, points", columns, PERCENT),
    }


def pair_at(
    recording: Recording, temperature: float, ranks: int = 1, top_k: int | None = None
) -> tuple[Float[Tensor, "positions vocabulary"], Float[Tensor, "positions vocabulary"]]:
    """Target and draft distributions; at temperature 0 the draft still tells so many `ranks` apart."""
    target, draft = (logits.double() for logits in (recording.target, recording.draft))
    if temperature == 0:
        return distribution(target, 0), rank_tokens(draft, ranks)
    return distribution(target, temperature), distribution(draft, temperature, top_k)


def rank_tokens(logits: Float[Tensor, "*batch vocabulary"], count: int) -> Float[Tensor, "*batch vocabulary"]:
    """A draft distribution for temperature 0: nearly all on the top token, a vanishing rest on the runners-up in order.

    It is the limit of falling temperature in a form that still tells the second most likely token from the third, so
    that laws without duplicates draft the `count` top tokens. The target is one-hot, and any draft leaves it exact.

    >>> rank_tokens(torch.tensor([0.0, 2.0, 1.0]), 2)
    tensor([0.0000e+00, 1.0000e+00, 9.3132e-10])
    """
    top = logits.topk(min(count, logits.shape[-1]), -1).indices
    weights = vanishing_weights(top.shape[-1], logits.dtype, logits.device)
    return torch.zeros_like(logits).scatter_(-1, top, weights.expand(top.shape))


def compare_schemes(part: Captured, temperature: float, drafts: int, column: str | float) -> Iterator[Cell]:
    """A column of the tables: every scheme, the optimum of every law, and how far schemes are below it."""
    best: dict[str, Tensor] = {}
    for name in (*COMPARED, *part.schemes):
        s = scheme(name, drafts=drafts)
        target, draft = pair_at(part.recording, temperature, ranks(s))
        if s.law.name not in best:
            best[s.law.name] = s.optimal_acceptance_rate(target, draft)
        rate = s.acceptance_rate(target, draft, TUPLES, part.generator)
        yield entry(RATE, name, column, rate)
        yield entry(GAP, name, column, rate - best[s.law.name])
    for law, optimum in best.items():
        yield entry(RATE, f"{law} optimum", column, optimum)


def ranks(s: Scheme) -> int:
    """How many tokens the limit of falling temperatures drafts: laws with duplicates draft the likeliest alone."""
    return 1 if s.law.can_repeat else s.drafts


def entry(panel: str, row: str, column: str | float, values: Float[Tensor, " positions"]) -> Cell:
    """The mean over positions."""
    return Cell(panel, row, column, float(values.double().sum()), float(torch.numel(values)))
