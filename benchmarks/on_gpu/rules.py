"""Rules and draws at the vocabulary of the published shapes, beside one sort of the same rows."""

from collections.abc import Callable

import torch
from multidraft_research.studies.acceptance import random_pairs

import multidraft as md
from multidraft.verification.registry import entries
from multidraft.verification.scheme import Scheme
from on_gpu.asked import Line, PieceOptions
from on_gpu.published import config_of

FAST = ("iid:lorenz", "iid:binned_lorenz", "anchored:lorenz", "without_replacement:recursive_rejection", "top:naive")
ROWS, DRAFTS = (1, 13, 45), (2, 4)


def measure(piece_options: PieceOptions) -> list[Line]:
    """A line a case: milliseconds of the draw, of the rule with its residual, and of one sort."""
    vocabulary = config_of("8 B", piece_options.quick).vocab_size
    rows, drafts = (ROWS[:2], DRAFTS[:1]) if piece_options.quick else (ROWS, DRAFTS)
    cases = [(n, k, name) for n in rows for k in drafts for name in FAST if name in entries()]
    return [line_of(piece_options, vocabulary, *case) for case in cases]


def line_of(piece_options: PieceOptions, vocabulary: int, rows: int, drafts: int, name: str) -> Line:
    """One case."""
    pairs, scheme = random_pairs(rows, vocabulary, 0), md.scheme(name, drafts=drafts)
    target, draft = (logits.to(piece_options.device).softmax(-1) for logits in (pairs.target, pairs.draft))
    uniform = torch.rand(rows, scheme.law.num_uniforms, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    uniform = uniform.to(piece_options.device)
    drafted = scheme.law.draw(draft, uniform)
    works: dict[str, Callable[[], object]] = {
        "sort": lambda: target.sort(-1),
        "draw": lambda: scheme.law.draw(draft, uniform),
        "rule": lambda: used(scheme, target, draft, drafted),
    }
    took = {work: piece_options.milliseconds(run) for work, run in works.items()}
    line = dict(scheme=name, rows=rows, drafts=drafts) | {work: round(ms, 3) for work, ms in took.items()}
    return line | dict(rule_to_sort=round(took["rule"] / took["sort"], 2))


def used(scheme: Scheme, target: torch.Tensor, draft: torch.Tensor, drafted: torch.Tensor) -> None:
    """What a step asks of an outcome, residual included."""
    outcome = scheme.verify(target, draft, drafted)
    _ = outcome.accept, outcome.residual_mass, outcome.residual
