"""Trees read by a reader beside the plain model, which reads every path from its beginning without a cache."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from tiny import VOCABULARY
from torch import Tensor
from transformers import PreTrainedModel

from multidraft.models.reader import Reader

TOLERANCE = 1e-4  # of the largest logit; float32 gives less than 1e-5, the wrong twins 0.01 and more
PROMPTS = (9, 4, 7)


@dataclass
class Forest:
    """One tree for each row, as nodes in topological order (a parent of -1 is the last kept token)."""

    tokens: list[list[int]]
    parents: list[list[int]]

    def path(self, row: int, node: int) -> list[int]:
        above = self.parents[row][node]
        return [*(self.path(row, above) if above >= 0 else []), node]

    def part(self, start: int, stop: int) -> tuple[list[list[int]], list[list[int]]]:
        """Some nodes of each row, as a reader takes them."""
        return [row[start:stop] for row in self.tokens], [row[start:stop] for row in self.parents]

    def of(self, rows: list[int]) -> "Forest":
        return Forest([self.tokens[row] for row in rows], [self.parents[row] for row in rows])


def drawn(count: int, generator: torch.Generator, least: int = 0, end: int = VOCABULARY) -> list[int]:
    return torch.randint(least, end, (count,), generator=generator).tolist()


def forest(rows: int, nodes: int, generator: torch.Generator, uneven: bool = True) -> Forest:
    """Random trees: of the rows, each second one is two nodes smaller if they may be `uneven`."""
    sizes = [max(nodes - 2 * (uneven and row % 2), 1) for row in range(rows)]
    parents = [[drawn(1, generator, -1, node)[0] for node in range(size)] for size in sizes]
    return Forest([drawn(size, generator) for size in sizes], parents)


def chain(count: int) -> list[int]:
    """The parents of tokens that follow each other."""
    return list(range(-1, count - 1))


def read_text(model: Reader, texts: list[list[int]], scored="none") -> Tensor:
    """Read texts and keep them."""
    scores = model.forward(texts, [chain(len(text)) for text in texts], scored)
    model.commit([list(range(len(text))) for text in texts])
    return scores.logits


@dataclass
class Session:
    """A reader beside the sequences that it should hold."""

    plain: PreTrainedModel
    model: Reader
    sequences: list[list[int]]
    generator: torch.Generator

    def prefill(self, chunk: int = 5) -> float:
        """Read the sequences, in pieces; how wrong the last logits are."""
        pieces = range(0, max(map(len, self.sequences)), chunk)
        parts = [[text[first : first + chunk] for text in self.sequences] for first in pieces]
        part_logits = [read_text(self.model, part, "last") for part in parts]
        ends = [(len(text) - 1) // chunk for text in self.sequences]
        got = torch.stack([part_logits[end][row, 0] for row, end in enumerate(ends)])
        return error(got, self.plainly(self.sequences))

    @torch.no_grad()
    def plainly(self, texts: list[list[int]]) -> Tensor:
        """What follows texts, which are read side by side: nothing sees what fills them up."""
        rows = [text + [0] * (max(map(len, texts)) - len(text)) for text in texts]
        logits = self.plain(torch.tensor(rows), use_cache=False).logits
        return logits[torch.arange(len(texts)), [len(text) - 1 for text in texts]]

    def read(self, trees: Forest, split: int = 0) -> Tensor:
        """The logits of all nodes, row by row; the first ones are read in a pass of their own."""
        parts = [(0, split), (split, 99)] if split else [(0, 99)]
        part_logits = [self.model.forward(*trees.part(*part)).logits for part in parts]
        shares = [[len(row[slice(*part)]) for row in trees.tokens] for part in parts]
        rows = range(len(trees.tokens))
        return torch.cat([s[row, : counts[row]] for row in rows for s, counts in zip(part_logits, shares, strict=True)])

    def expected(self, trees: Forest) -> Tensor:
        """The logits of all nodes by reading every sequence and path from the beginning."""
        return self.plainly(
            [
                sequence + [tokens[node] for node in trees.path(row, end)]
                for row, (sequence, tokens) in enumerate(zip(self.sequences, trees.tokens, strict=True))
                for end in range(len(tokens))
            ]
        )

    def accept(self, trees: Forest) -> None:
        """Keep the path to a random node of each row; the last row keeps nothing once in a while."""
        ends = [drawn(1, self.generator, 0, len(tokens))[0] for tokens in trees.tokens]
        paths = [trees.path(row, end) for row, end in enumerate(ends)]
        if ends[-1] % 2:
            paths[-1] = []
        self.commit(trees, paths)

    def commit(self, trees: Forest, paths: list[list[int]]) -> None:
        self.model.commit(paths)
        rows = zip(self.sequences, trees.tokens, paths, strict=True)
        self.sequences = [sequence + [tokens[node] for node in path] for sequence, tokens, path in rows]

    def step(self, nodes: int = 7, split: int = 0) -> float:
        """Read trees and keep a path of each; how wrong the logits are."""
        trees = forest(len(self.sequences), nodes, self.generator)
        worst = error(self.read(trees, split), self.expected(trees))
        self.accept(trees)
        return worst

    def gather(self, rows: list[int]) -> None:
        self.model.gather(rows)
        self.sequences = [self.sequences[row] for row in rows]


def begin_session(
    plain: PreTrainedModel, model: Reader, prompts: tuple[int, ...] = PROMPTS, allowed: float = TOLERANCE
) -> Session:
    """A reader that has read random texts of these lengths."""
    generator = torch.Generator().manual_seed(sum(prompts))
    session = Session(plain, model, [drawn(count, generator) for count in prompts], generator)
    assert session.prefill() < allowed
    return session


def error(got: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest logit."""
    assert got.shape == expected.shape
    return float((got - expected).detach().abs().max() / expected.detach().abs().max())


def worst_error_of_life(begin: Callable[[tuple[int, ...]], Session]) -> float:
    """The worst error over a batch's life: steps, one given up, rows that come, leave in mid tree, and are copied."""
    run = begin(PROMPTS)
    worst = [run.step(), run.step(split=3)]
    run.model.forward(*forest(3, 3, run.generator).part(0, 9))
    run.model.commit([[]] * 3)  # the step is given up
    other = begin((3, 12))
    run.model.extend(other.model)
    run.sequences += other.sequences
    worst += [run.step(), run.step(4)]
    trees = forest(5, 6, run.generator)
    run.model.forward(*trees.part(0, 2))
    rows = [4, 0, 3]
    run.gather(rows)
    trees = trees.of(rows)
    later_logits = run.model.forward(*trees.part(2, 9)).logits
    expected = run.expected(trees).split([len(tokens) for tokens in trees.tokens])
    worst += [
        error(later_logits[row, : len(row_logits) - 2], row_logits[2:]) for row, row_logits in enumerate(expected)
    ]
    run.accept(trees)
    copy = Session(run.plain, run.model.fork(1, 5, 40), [run.sequences[1][:5]], run.generator)
    return max(*worst, copy.step(), run.step(split=2), copy.step())
