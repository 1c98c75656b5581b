"""Every ending of the walks over scored trees, with its exact probability: expectations over coins without noise."""

from collections.abc import Iterator
from functools import partial

from multidraft.decoding.state import DecodeConfig, Scored
from multidraft.decoding.verify import judge
from multidraft.decoding.walks import Ending, Verdict, Walker, deferred, drive, walker
from multidraft.verification.scheme import Scheme

SURE = 1e-15  # a coin this close to 0 or 1 has one side


class Script:
    """A coin that gives the answers written down for it, then True, and keeps track of their probability.

    `others` are the scripts that lead elsewhere from here on.
    """

    def __init__(self, answers: tuple[bool, ...]):
        self.answers = answers
        self.given: tuple[bool, ...] = ()
        self.probability = 1.0
        self.others: list[tuple[bool, ...]] = []

    def __call__(self, probability: float) -> bool:
        """The next answer."""
        place = len(self.given)
        answer = self.answers[place] if place < len(self.answers) else probability > SURE
        if place >= len(self.answers) and SURE < probability < 1 - SURE:
            self.others.append((*self.given, False))
        self.given += (answer,)
        self.probability *= min(probability, 1.0) if answer else 1 - max(probability, 0.0)
        return answer


def all_endings(
    scored: Scored, config: DecodeConfig, walk: str | Walker | None = None
) -> Iterator[tuple[int, float, Ending]]:
    """Where the walks over every row can end, with which probability: rows side by side, one script at a time.

    The walk is that of the configuration unless another is given.
    """
    start, verdicts = walker(walk or config.walk), Remembered(config.scheme, scored)
    scripts: list[list[tuple[bool, ...]]] = [[()] for _ in scored.trees]
    while rows := [row for row, left in enumerate(scripts) if left]:
        coins = [Script(scripts[row].pop()) for row in rows]
        pairs = zip(rows, coins, strict=True)
        walks = [start(0, 1.0, scored.trees[row].has_drafts, coin) for row, coin in pairs]
        verdicts.rows = rows
        for row, coin, ending in zip(rows, coins, drive(walks, verdicts), strict=True):
            scripts[row] += coin.others
            yield row, coin.probability, ending


class Remembered:
    """The verdicts for walks over some of a tree's rows; none is computed twice."""

    def __init__(self, scheme: Scheme, scored: Scored):
        self.scheme, self.scored = scheme, scored
        self.rows: list[int] = []  # the row that each walk is on
        self.known: dict[tuple[int, int, float], Verdict] = {}

    def __call__(self, asked: dict[int, tuple[int, float]]) -> dict[int, Verdict]:
        """For each walk the verdict that it asks for."""
        keys = {walk: (self.rows[walk], *question) for walk, question in asked.items()}
        new = {row: (node, weight) for row, node, weight in keys.values() if (row, node, weight) not in self.known}
        if new:
            self.known |= {(row, *new[row]): verdict for row, verdict in judge(self.scheme, self.scored, new).items()}
        return {walk: self.known[key] for walk, key in keys.items()}


def expected_tokens(scored: Scored, config: DecodeConfig) -> list[float]:
    """By row the tokens that a step emits on the average over coins, on the tree that was drawn.

    The deferred walk is taken without its coin for small claims: with it, the ways to go double at every such child.
    """
    walk = partial(deferred, smallest=0.0) if config.walk == "deferred" else config.walk
    tokens = [1.0] * len(scored.trees)
    for row, chance, ending in all_endings(scored, config, walk):
        tokens[row] += chance * len(ending.path)
    return tokens
