"""Acceptance is learnt: what walks come to after real prompts, and which trees that makes the best."""

from dataclasses import replace

import torch

from multidraft.autotune.best_trees import menu
from multidraft.autotune.costs import CostsByRows
from multidraft.autotune.fitting import confidence_of
from multidraft.autotune.pair_plan import DRAFT_PROBABILITIES, AtTemperature
from multidraft.autotune.positions import Listening, Positions, rates_of
from multidraft.autotune.rates import Rates
from multidraft.autotune.subject import PROMPT, Subject
from multidraft.decoding.metrics import Info
from multidraft.decoding.step import step
from multidraft.decoding.tree import Tree
from multidraft.verification.distributions import tempered
from multidraft.verification.optimal import optimum
from multidraft.verification.scheme import Scheme

ROWS = 8  # texts read side by side
CONTEXTS, LEAD = 4 * ROWS, 10  # places from which is learnt, and the steps that lead to them
LEARNT_WITH = "3x2x1x1"
NUMBERS, FEWEST, MOST = 3_200_000, 48, 800  # positions times vocabulary, and the limits of the former
MOST_DRAFTS, MOST_LEVELS = 8, 8
TEMPERS = (1.0, 1.15, 1.3)
WORTH_IT = 0.005  # acceptance that another temper must gain: less is noise, and it costs a pass over the vocabulary
TEMPERED, SAMPLE = (2, 3, 4), 64  # numbers of drafts, and of positions, for which tempers are tried
OBSERVED = 200.0  # nodes' worth of the prediction in a factor: chance alone moves those of deep levels by a twentieth


def contexts(subject: Subject) -> list[list[int]]:
    """Prompts, each with more or less of a sampled continuation, so that few prompts lead to many places."""
    plan, found = subject.plan(Tree.parse("2x1")), list[list[int]]()
    for turn in range(CONTEXTS // ROWS):
        texts = subject.texts(ROWS, turn)
        state, more = subject.begin(plan, texts, turn), [list[int]() for _ in texts]
        for _ in range(LEAD):
            state, emitted = step(state, plan, Info())
            for row, own in enumerate(emitted):
                more[row] += own.tokens
        found += [text + new[: len(new) * row // ROWS] for row, (text, new) in enumerate(zip(texts, more, strict=True))]
    return found


def learnt(subject: Subject, texts: list[list[int]], costs: CostsByRows, temperature: float) -> AtTemperature:
    """What is accepted at a temperature, and the fixed trees that are best for it with any number of rows."""
    positions = gathered(subject, texts, temperature)
    tempers = best_tempers(subject.scheme, positions) if temperature else [1.0] * (MOST_DRAFTS + 1)
    rates = with_factors(rates_of(subject.scheme, positions, MOST_DRAFTS, tempers), positions)
    trees = dict.fromkeys(tree for rows in costs.rows for tree in menu(rates, costs.at(rows), rows, MOST_LEVELS))
    confidence = confidence_of(subject.scheme, positions, tempers)
    drafts = [list(tree.drafts) for tree in trees]
    return AtTemperature(temperature, rates, drafts, tempers, covered(positions), confidence)


def covered(positions: Positions) -> list[float]:
    """What one draft covers that is made with some probability: sum_x min(p(x), a q(x)), for every a."""
    target, draft, passing = torch.stack(positions.targets), torch.stack(positions.drafts), positions.passing()
    return [float(torch.minimum(target, a * draft).sum(-1).double() @ passing) for a in DRAFT_PROBABILITIES]


def gathered(subject: Subject, texts: list[list[int]], temperature: float) -> Positions:
    """The nodes that walks come to after some texts, the same number of steps from each."""
    positions = Positions()
    plan = subject.plan(Listening(Tree.parse(LEARNT_WITH), positions, MOST_DRAFTS), temperature)
    groups = [texts[first : first + ROWS] for first in range(0, len(texts), ROWS)]
    for turn, group in enumerate(groups, 1):
        state = subject.begin(plan, [text[-PROMPT:] for text in group], turn)
        while len(positions) * len(groups) < enough(positions) * turn:
            state, _ = step(state, plan, Info())
    return positions


def enough(positions: Positions) -> int:
    """How many positions are wanted, of distributions as large as those that there are."""
    return min(max(NUMBERS // positions.targets[0].shape[-1], FEWEST), MOST) if positions.targets else 1


def with_factors(rates: Rates, positions: Positions) -> Rates:
    """The rates with what real steps accepted at every depth beyond them."""
    depths = range(1 + max(depth for depth, *_ in positions.seen))
    above, below = [OBSERVED for _ in depths], [OBSERVED for _ in depths]
    for depth, drafts, weight, claimed in positions.seen:
        above[depth] += claimed
        below[depth] += weight * rates.accepted(min(drafts, rates.most), weight, 0)
    return replace(rates, factors=[one / other for one, other in zip(above, below, strict=True)])


def best_tempers(scheme: Scheme, positions: Positions) -> list[float]:
    """By number of drafts, the temper whose drafts can be accepted most often: the optimum says how often."""
    every = max(len(positions) // SAMPLE, 1)
    target, draft = torch.stack(positions.targets[::every]), torch.stack(positions.drafts[::every])
    flatter, chosen = {temper: tempered(draft, temper) for temper in TEMPERS}, [1.0, 1.0]
    for drafts in TEMPERED:
        law = scheme.with_drafts(drafts).law
        rate = {temper: float(optimum(target, q, law).mean()) for temper, q in flatter.items()}
        best = max(rate, key=rate.__getitem__)
        chosen.append(best if rate[best] > rate[1.0] + WORTH_IT else 1.0)
    return chosen + [chosen[-1]] * (MOST_DRAFTS + 1 - len(chosen))
