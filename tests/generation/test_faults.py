"""What a model or a processor gives that is no distribution ends its own row, by name; no neighbour notices."""

from functools import cache

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessor, StoppingCriteria

import multidraft as md
from multidraft.models.prefix_models import TableModel, random_table
from multidraft.sampling.row_faults import RowFault

SIZE, NEW, NAN, INF = 6, 12, float("nan"), float("inf")
PROMPTS = [[0, 1], [2, 3, 1, 0], [4]]
FIRST = [prompt[0] for prompt in PROMPTS]
WAYS = {
    "a tree": dict(tree="3x2x1"),
    "a chain": dict(tree="1x1x1", scheme="iid:lorenz", walk="commit"),
    "no drafts": dict(plain=True),
    "greedy": dict(temperature=0, tree="2x1"),
    "truncated": dict(temperature=0.7, top_k=4, top_p=0.9, tree="2x1x1"),
}
SPOILT = {  # a line of logits, made wrong
    "nan": lambda line: torch.full_like(line, NAN),
    "one nan": lambda line: line.index_fill(-1, torch.tensor([2]), NAN),
    "plus infinity": lambda line: line.index_fill(-1, torch.tensor([2]), INF),
    "nothing left": lambda line: torch.full_like(line, -INF),
}
ANSWERS = {  # of a processor
    **SPOILT,
    "nothing": lambda scores: None,
    "another shape": lambda scores: scores[:, :2],
    "whole numbers": lambda scores: scores.long(),
    "sparse": lambda scores: scores.to_sparse(),
    "meta": lambda scores: scores.to("meta"),
    "an exception": lambda scores: {}["nowhere"],
    "overflow": lambda scores: (scores + 99) / 1e-300 / 1e-300,
}


class Wrong(LogitsProcessor):
    """Gives a wrong answer to one row, from a certain length on."""

    def __init__(self, row: int, length: int, answer):
        self.row, self.length, self.answer = row, length, answer

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        wrong = int(input_ids[0, 0]) == FIRST[self.row] and input_ids.shape[1] >= self.length
        return self.answer(scores) if wrong else scores


law_of = cache(lambda seed: random_table(SIZE, 3, seed))


def table(seed: int, row: int | None = None, length: int = 0, spoil=None) -> TableModel:
    """A model that says what is no distribution of one row, from a certain length on."""
    law = law_of(seed)

    def conditional(prefix: tuple[int, ...]) -> Tensor:
        wrong = row is not None and prefix[0] == FIRST[row] and len(prefix) >= length
        return spoil(law(prefix).log()).exp() if wrong else law(prefix)

    return TableModel(conditional, SIZE)


def run(target: TableModel, draft: TableModel, prompts: list[list[int]], seeds: list[int], way: str, **settings):
    """New tokens of all rows, and the fault."""
    keywords = WAYS[way] | dict(generator=[torch.Generator().manual_seed(seed) for seed in seeds]) | settings
    pair = (target, None if keywords.pop("plain", False) else draft)
    try:
        rows, _ = md.generate(*pair, prompts, max_new_tokens=NEW, **keywords)
    except RowFault as fault:
        return [row.tolist() for row in fault.tokens], fault
    return [row.tolist() for row in rows], None


@cache
def alone(row: int, way: str) -> list[int]:
    """What a row comes to when it runs alone and nothing is wrong."""
    (tokens,), fault = run(table(1), table(2), [PROMPTS[row]], [row], way)
    assert fault is None
    assert len(tokens) == NEW
    return tokens


def compared(target: TableModel, draft: TableModel, row: int, length: int, way: str, **settings) -> RowFault:
    """The fault of one row of three, after all have been compared with running alone."""
    together, fault = run(target, draft, PROMPTS, [0, 1, 2], way, **settings)
    assert fault is not None
    assert str(fault).startswith(f"row {row}, position {fault.position}: ")
    assert list(fault.info.faults) == [row]
    assert fault.info.finish_reasons == [None if other == row else "length" for other in range(3)]
    assert length <= fault.position
    for other in {0, 1, 2} - {row}:
        assert together[other] == alone(other, way)
    assert together[row] == alone(row, way)[: len(together[row])]  # what it had emitted before stays right
    return fault


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", SPOILT)
@pytest.mark.parametrize("whose", ["the target model", "the draft model"])
def test_a_model_s_scores(whose, kind, way):
    """The row that is spoilt goes by the kind and the way; from the prompt on, or later."""
    number = [*SPOILT].index(kind)
    row = (number + len(way)) % 3
    length = len(PROMPTS[row]) + (4 * (number % 2) if whose == "the target model" else 2)
    spoilt = row, length, SPOILT[kind]
    pair = (table(1, *spoilt), table(2)) if whose == "the target model" else (table(1), table(2, *spoilt))
    if (whose, way) != ("the draft model", "no drafts"):
        assert compared(*pair, row, length, way).source == whose


@pytest.mark.parametrize("kind", SPOILT)
def test_a_tree_that_grows_by_confidence_ends_in_the_same_fault(kind):
    """A policy asks how sure a line is that says nothing: that ended in a traceback."""
    draft = table(2, 1, len(PROMPTS[1]), SPOILT[kind])
    with pytest.raises(RowFault, match=r"row 1, position .*: the draft model"):
        md.generate(table(1), draft, PROMPTS, max_new_tokens=NEW, tree="auto", tune_budget=0)


@pytest.mark.parametrize("way", ["a tree", "greedy", "no drafts"])
@pytest.mark.parametrize("kind", ANSWERS)
def test_a_processor_s_answer(kind, way):
    row = ([*ANSWERS].index(kind) + len(way)) % 3
    length = len(PROMPTS[row]) + 3
    processors = [Wrong(row, length, ANSWERS[kind])]
    fault = compared(table(1), table(2), row, length, way, logits_processor=processors)
    assert fault.source == "processor Wrong"


class EndsFirstRow(StoppingCriteria):
    """Ends row 0 after its first token."""

    def __call__(self, input_ids: Tensor, scores: Tensor | None, **kwargs) -> Tensor:
        return input_ids[:, 0] == FIRST[0]


def test_a_fault_names_the_row_of_the_beginning():
    """By then another has left the batch."""
    length = len(PROMPTS[2]) + 6
    rows, fault = run(table(1, 2, length, SPOILT["nan"]), table(2), PROMPTS, [0, 1, 2], "a tree",
                      stopping_criteria=[EndsFirstRow()])  # fmt: skip
    assert (fault.row, len(rows[0]), rows[1]) == (2, 1, alone(1, "a tree"))


def test_faults_that_nobody_looks_for_are_caught(monkeypatch):
    """The biased twin: without its check scores let the row go on."""
    monkeypatch.setattr("multidraft.sampling.from_logits.not_finite", lambda _: [])
    with pytest.raises((AssertionError, ValueError)):
        compared(table(1, 1, 6, SPOILT["nothing left"]), table(2), 1, 6, "greedy")
