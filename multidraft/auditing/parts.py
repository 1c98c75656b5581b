"""The audit: what is audited, and the parts in order, each a job that returns a finding."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

from multidraft.auditing.exact import KINDS, TREES, Exact, Walked, examine_all, fits, follow_walk
from multidraft.auditing.pairs import DRAFTS, given_pairs, small_pairs
from multidraft.auditing.report import Report
from multidraft.auditing.statistical import Sampled, Sampler, Subject, sample
from multidraft.decoding.walks import WALKS, Walker
from multidraft.errors import AdviceError
from multidraft.verification.law import Law
from multidraft.verification.outside import WithoutLaw, arguments_of
from multidraft.verification.registry import resolve, scheme
from multidraft.verification.scheme import Scheme

TESTS = 2  # of each sample
SIZES, SMALL_SIZES = (4096, 32_000), (32,)  # of real vocabularies; what a program over token sets can do
PartJob = Callable[[], Exact | Sampled | Walked]


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
    progress: Callable[[Sequence[PartJob]], Iterable[PartJob]] = iter,
    **settings: Any,
) -> Report:
    """Find out whether a verifier is lossless: whether what it emits has the target's law, whatever the drafts.

        sum over drafted tuples of P(drafted) * (accept + residual) = target

    `verifier` is what `md.scheme` takes (a scheme, its name, a rule, "module:rule"), or a sampler. A rule(target
    (N, V), draft (N, V), drafted (N, n)) returns (accept (N, n), residual (N, V)), or an object with these fields. A
    sampler verify(target, draft, drafted, generator) returns N token ids. For functions, `law` names what the drafts
    are really drawn from, and `settings` are that law's (`draft_probability`, `anchors`, ...).

    Three parts: every tuple of small vocabularies (or of your own `pairs`); bets on `trials` drawn tuples (10,000, or
    6,000 of more than 8,192 tokens; 75,000 for a sampler) for a draft near the target and one far from it, at each size
    in `vocabulary` (4,096 and 32,000, or 32 for rules of small vocabularies; `()` for none), with false alarms at
    `odds` in all; with `walks`, every tree that a decode step can draw (`trees`), by every walk or by those you give.

    A rule that also takes targets that sum to less than one (`sub_probability`) is audited with them, and with the
    deferred walk. A rule of yours sees empty positions (-1) only where its law always has some. A stated deviation
    (total variation, a node) goes to `within`. `progress` wraps the jobs, as tqdm does. Raises AdviceError.

    >>> report = audit("iid:naive", drafts=2, vocabulary=())
    >>> report.verdict, report.exact.pairs
    ('lossless', 124)
    """
    if not 0 <= within < 1:
        raise AdviceError(f"within={within} is no total variation; use a number from 0 to 1")
    if not 0 < odds < 0.5:
        raise AdviceError(f"odds={odds} of a false alarm make no test; use a small number such as 1e-6")
    audited = subject(verifier, law, drafts, settings)
    if isinstance(audited, Scheme):  # what is no law is a finding here
        audited = replace(audited, entry=replace(audited.entry, guarded=False))
    within = max(within, audited.within)
    jobs: list[PartJob] = []
    whole = isinstance(audited, Scheme) and not (audited.entry.sub_probability or sub_probability)
    if isinstance(audited, Scheme):
        small = small_pairs(audited.law, seed) if pairs is None else given_pairs(audited.law, pairs)
        if isinstance(audited.entry.rule, WithoutLaw):  # the pairs that fill every position of every tuple, if any does
            small = [pair for pair in small if (audited.law.tuples(pair[2])[0] >= 0).all()] or small
        jobs.append(partial(examine_all, audited, small, (1.0,) if whole or pairs is not None else (1.0, 0.37)))
    jobs += sampling(audited, vocabulary, trials, odds, within, seed)
    if walks or trees is not None:
        default_walks = ("commit",) if whole else tuple(WALKS)
        jobs += walking(audited, default_walks if isinstance(walks, bool) else walks, trees, seed)
    if not jobs:
        raise AdviceError("nothing to do: a sampler is audited by its tokens, so give vocabulary sizes")
    findings = [job() for job in progress(jobs)]
    exact = next((part for part in findings if isinstance(part, Exact)), None)
    sampled = [part for part in findings if isinstance(part, Sampled)]
    return Report(audited, odds, within, exact, sampled, [part for part in findings if isinstance(part, Walked)])


def subject(verifier: Any, law: str | Law | None, drafts: int | None, settings: dict[str, Any]) -> Subject:
    """The verifier with its drafting law, whatever form it was given in; two drafts where nothing says how many."""
    name = str(getattr(verifier, "__name__", type(verifier).__name__))
    if isinstance(verifier, str):
        name = verifier.split(",")[0]
        verifier, settings = resolve(verifier, settings if law is None else settings | {"law": law})
        law = settings.pop("law", None)
    count = 2 if drafts is None and not isinstance(verifier, Scheme) and not isinstance(law, Law) else drafts
    if takes_generator(verifier):
        return Sampler(name, scheme(lambda target, draft, drafted: None, count, law=law, **settings).law, verifier)
    made_scheme = scheme(verifier, count, law=law, **settings)
    return made_scheme if isinstance(verifier, Scheme) else replace(made_scheme, name=name)


def takes_generator(verifier: Any) -> bool:
    """Whether it is a sampler, whose fourth argument is a generator; a rule's is the law."""
    names = arguments_of(verifier) if callable(verifier) else []
    if names and len(names) == 4:
        return "law" not in names
    try:
        return "generator" in inspect.signature(verifier).parameters
    except (TypeError, ValueError):  # some built-in callables do not tell, and a name is none
        return False


def sampling(
    audited: Subject, vocabulary: int | Sequence[int] | None, trials: int | None, odds: float, within: float, seed: int
) -> list[PartJob]:
    """The jobs of the statistical part: fewer draws where they cost more, more where only an emitted token is seen."""
    if vocabulary is None:
        vocabulary = SMALL_SIZES if isinstance(audited, Scheme) and audited.entry.small else SIZES
    sizes = (vocabulary,) if isinstance(vocabulary, int) else tuple(vocabulary)
    jobs: list[PartJob] = []
    for size in sizes:
        default_draws = 75_000 if isinstance(audited, Sampler) else 10_000 if size <= 8_192 else 6_000
        draws, odds_of_test = default_draws if trials is None else trials, odds / (TESTS * len(sizes) * len(DRAFTS))
        jobs += [partial(sample, audited, size, kind, draws, odds_of_test, within, seed) for kind in DRAFTS]
    return jobs


def walking(audited: Subject, walks: Sequence[str | Walker], trees: Sequence[str] | None, seed: int) -> list[PartJob]:
    """The jobs of the walks' part: these walks over every tree that the scheme can draw."""
    if isinstance(audited, Sampler):
        raise AdviceError("a sampler cannot be walked with: only a rule tells what each child may claim")
    fitting = [tree for tree in (TREES if trees is None else trees) if fits(audited, tree)]
    if not fitting and trees is not None:
        raise AdviceError(f"{audited.name} cannot draw the trees {', '.join(trees)}; leave them out, or try 2x2")
    return [partial(follow_walk, audited, *how, seed) for how in product(walks, fitting, KINDS)]
