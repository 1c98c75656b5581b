"""The audit: its parts in order, each a job that returns a finding."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from multidraft.auditing.bets import Alarm
from multidraft.auditing.exact import Exact, examine_all
from multidraft.auditing.pairs import DRAFTS, given_pairs, small_pairs, without_empty
from multidraft.auditing.report import Report
from multidraft.auditing.statistical import Sampled, sample
from multidraft.auditing.subject import Sampler, Subject, subject
from multidraft.auditing.walks import KINDS, TREES, Walked, fits, follow_walk, vocabulary_for
from multidraft.decoding.walks import WALKS, Walker
from multidraft.errors import AdviceError
from multidraft.verification.law import Law
from multidraft.verification.registry import Outside
from multidraft.verification.scheme import Scheme

TESTS = 2  # of each sample
SIZES, SMALL_SIZES = (4096, 32_000), (32,)  # of real vocabularies; what a program over token sets can do
Job = Callable[[], Exact | Sampled | Walked]


def audit(
    verifier: str | Scheme | Callable[..., Any],
    drafts: int | None = None,
    *,
    law: str | Law | None = None,
    vocabulary: int | Sequence[int] | None = None,
    trials: int | None = None,
    pairs: Iterable[Sequence[Any]] | None = None,
    walks: bool | Sequence[str | Walker] = False,
    trees: Sequence[str] | None = None,
    sub_probability: bool = False,
    within: float | int = 0.0,
    odds: float | int = 1e-6,
    seed: int = 0,
    progress: Callable[[Sequence[Job]], Iterable[Job]] = iter,
    **settings: Any,
) -> Report:
    """Find out whether a verifier is lossless: whether what it emits has the target's law, whatever the drafts.

        sum over drafted tuples of P(drafted) * (accept + residual) = target

    `verifier` is whatever `md.scheme` takes (a scheme, its name, a rule, "module:rule"), or a sampler. A rule(target
    (N, V), draft (N, V), drafted (N, n)) returns (accept (N, n), residual (N, V)), or an object with these fields. A
    sampler verify(target, draft, drafted, generator) returns N token ids. For functions, `law` names what the drafts
    are really drawn from, and `settings` are that law's (`draft_probability`, `anchors`, ...).

    Three parts: every tuple of small vocabularies (or of your own `pairs`); bets on `trials` drawn tuples (by default
    5,000, or 3,000 of more than 8,192 tokens; 75,000 for a sampler, of which only tokens can be seen) for a draft near
    the target and one far from it, at each size in `vocabulary` (by default 4,096 and 32,000, or 32 for rules of small
    vocabularies; `()` for none), with false alarms at `odds` in all; with `walks`, every tree that a decode step can
    draw (`trees`: which), by every walk or by those that you give.

    A rule that also takes targets that sum to less than one (`sub_probability`) is audited with them, and with the
    deferred walk. A rule of yours sees empty positions (-1) only where its law always has some. A stated deviation
    (total variation, a node) goes to `within`; a scheme states its own. `progress` wraps the jobs, as tqdm does.

    >>> report = audit("iid:naive", drafts=2, vocabulary=())
    >>> report.verdict, report.exact.pairs
    ('lossless', 124)
    """
    audited = subject(verifier, law, drafts, settings)
    if vocabulary is None:
        vocabulary = SMALL_SIZES if isinstance(audited, Scheme) and audited.entry.small else SIZES
    sizes = (vocabulary,) if isinstance(vocabulary, int) else tuple(vocabulary)
    if not 0 <= within < 1:
        raise AdviceError(f"within={within} is no total variation; use a number from 0 to 1")
    if not 0 < odds < 0.5:
        raise AdviceError(f"odds={odds} of a false alarm make no test; use a small number such as 1e-6")
    within = max(within, audited.within)
    outside = isinstance(audited, Scheme) and isinstance(audited.entry.rule, Outside)
    whole = isinstance(audited, Scheme) and not (audited.entry.sub_probability or sub_probability)
    jobs: list[Job] = []
    if isinstance(audited, Scheme):
        small = small_pairs(audited.law, seed) if pairs is None else given_pairs(audited.law, pairs)
        small = without_empty(audited.law, small) if outside else small
        jobs.append(partial(examine_all, audited, small, (1.0,) if whole or pairs is not None else (1.0, 0.37)))
    samples = [(size, kind) for size in sizes for kind in DRAFTS]
    alarm = Alarm(odds / max(TESTS * len(samples), 1), within)
    draws = {size: draws_for(audited, size) if trials is None else trials for size in sizes}
    jobs += [partial(sample, audited, size, kind, draws[size], alarm, seed) for size, kind in samples]
    if walks or trees is not None:
        every = ("commit",) if whole else tuple(WALKS)
        jobs += walking(audited, every if isinstance(walks, bool) else walks, trees, seed)
    if not jobs:
        raise AdviceError("nothing to do: a sampler is audited by its tokens, so give vocabulary sizes")
    report = Report(audited, odds, within)
    for job in progress(jobs):
        report.add(job())
    return report


def draws_for(audited: Subject, size: int) -> int:
    """Tuples to draw at a vocabulary size: more where only an emitted token is seen, or where they cost less."""
    if isinstance(audited, Sampler):
        return 75_000
    return 5_000 if size <= 8_192 else 3_000


def walking(audited: Subject, walks: Sequence[str | Walker], trees: Sequence[str] | None, seed: int) -> list[Job]:
    """The jobs of the walks' part: these walks over every tree that the scheme can draw."""
    if isinstance(audited, Sampler):
        raise AdviceError("a sampler cannot be walked with: only a rule tells what each child may claim")
    for tree in trees or ():
        vocabulary_for(tree)  # refuses a large tree before anything is done
    fitting = [tree for tree in (TREES if trees is None else trees) if fits(audited, tree)]
    if trees is not None and not fitting:
        raise AdviceError(f"{audited.name} cannot draw the trees {', '.join(trees)}; leave them out, or try 2x2")
    return [
        partial(follow_walk, audited, walk, tree, kind, seed) for tree in fitting for walk in walks for kind in KINDS
    ]
