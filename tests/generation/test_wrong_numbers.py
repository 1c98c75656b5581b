"""What others compute while decoding, wrong by source and by kind: one line that says who and where; no token by it."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from tiny import tiny_model
from torch import Tensor

import multidraft as md
from multidraft.models.ensemble import Mixture, SideBySide
from multidraft.models.ngram import Lookup, NGram
from multidraft.models.prefix_models import TableModel, random_table
from multidraft.models.scores import Scores
from multidraft.sampling.row_faults import RowFault

pytestmark = pytest.mark.usefixtures("unchecked")
SIZE, NEW, NAN, INF = 6, 8, float("nan"), float("inf")
PROMPTS = [[0, 1], [2, 3, 1]]
LAWS = [random_table(SIZE, 2, seed) for seed in (1, 2)]
Change = Callable[[Any], Any]


class Spoilt(TableModel):
    """A model whose answers are changed, from its second pass that scores on."""

    def __init__(self, change: Change, passes: int = 0):
        super().__init__(LAWS[1], SIZE)
        self.change, self.passes = change, passes

    def new(self, capacity: int) -> "Spoilt":
        return Spoilt(self.change)

    def _read(self, tokens, parents, scored):
        answer = super()._read(tokens, parents, scored)
        self.passes += scored != "none"
        return self.change(answer) if self.passes > 1 else answer


def target() -> TableModel:
    return TableModel(LAWS[0], SIZE)


def run(target_model: Any, draft: Any, **settings: Any) -> list[Tensor]:
    seeded = [torch.Generator().manual_seed(row) for row in range(len(PROMPTS))]
    keywords = dict(tree="2x1", scheme="iid:lorenz", max_new_tokens=NEW, generator=seeded) | settings
    return md.generate(target_model, draft, PROMPTS, **keywords)[0]


def line(call: Callable[[], Any]) -> str:
    """The one line of advice that a call ends with."""
    with pytest.raises(md.AdviceError) as caught:
        call()
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message


FORMS: dict[str, Change] = {
    "nothing": lambda logits: None,
    "text": lambda logits: "logits",
    "a list": lambda logits: logits.tolist(),
    "another rank": lambda logits: logits[0],
    "a row too few": lambda logits: logits[:1],
    "a row too many": lambda logits: torch.cat([logits, logits[:1]]),
    "a node too few": lambda logits: logits[:, 1:],
    "a node too many": lambda logits: torch.cat([logits, logits[:, :1]], 1),
    "no columns": lambda logits: logits[..., :0],
    "whole numbers": lambda logits: logits.long(),
    "complex": lambda logits: logits + 0j,
    "meta": lambda logits: logits.to("meta"),
    "sparse": lambda logits: logits.to_sparse(),
}


@pytest.mark.parametrize("kind", FORMS)
def test_forms_of_a_model_s_answer(kind: str) -> None:
    for pair in ((Spoilt(FORMS[kind]), target()), (target(), Spoilt(FORMS[kind]))):
        message = line(lambda pair=pair: run(*pair))
        assert message.startswith("the model Spoilt returns ")
        assert "its forward must return logits (2, " in message


def test_a_target_needs_a_score_for_each_of_its_tokens() -> None:
    """A drafter need not."""
    fewer = lambda logits: logits[..., :3]  # noqa: E731
    assert "must return logits (2, " in line(lambda: run(Spoilt(fewer), target()))
    assert [len(row) for row in run(target(), Spoilt(fewer))] == [NEW, NEW]


def scored(ids: list[int], logits: list[float]) -> Change:
    """Few tokens, the same at every node."""

    def change(answer: Tensor) -> Scores:
        shape = (*answer.shape[:2], len(ids))
        return Scores(torch.tensor(logits).expand(shape), torch.tensor(ids).expand(shape))

    return change


SCORES = {
    "beyond": ([1, SIZE], [0.0, 0.0], f"scores token {SIZE}, and the target has 0 to {SIZE - 1}"),
    "far beyond": ([1, 2**60], [0.0, -1.0], f"scores token {2**60}, and"),
    "negative": ([-1, 3], [0.0, 0.0], "scores token -1, and"),
    "twice": ([3, 1, 3], [0.0, 0.0, 0.0], "scores token 3 twice"),
    "nan": ([1, 5, 3], [0.0, NAN, 0.0], "gives token 5 the score nan"),
    "infinity": ([1, 5], [0.0, INF], "gives token 5 the score inf"),
    "no token": ([1, 5], [-INF, -INF], "leaves no token with a finite score"),
}
SETTINGS: list[dict[str, Any]] = [{}, {"temperature": 0}, {"repetition_penalty": 1.3}, {"top_k": 2}]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("kind", SCORES)
def test_scores_of_few_tokens(kind: str, settings: dict[str, Any]) -> None:
    ids, logits, message = SCORES[kind]
    with pytest.raises(RowFault) as caught:
        run(target(), Spoilt(scored(ids, logits)), **settings)
    assert (caught.value.row, caught.value.source) == (0, "the draft model")
    assert str(caught.value).startswith(f"row 0, position {caught.value.position}: the draft model {message}")
    assert len(PROMPTS[0]) < caught.value.position < len(PROMPTS[0]) + NEW


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_right_twin_of_few_tokens(settings: dict[str, Any]) -> None:
    """Empty columns may name whatever token."""
    rows = run(target(), Spoilt(scored([4, 1, 4, 99, -7], [0.0, 1.0, -INF, -INF, -INF])), **settings)
    assert [len(row) for row in rows] == [NEW, NEW]


@pytest.mark.parametrize("ids", [torch.zeros(2, 1, 3), torch.zeros(2, 1, 2, dtype=torch.int64), "ids"], ids=str)
def test_scores_with_other_ids(ids: Any) -> None:
    change = lambda answer: Scores(torch.zeros(*answer.shape[:2], 3), ids)  # noqa: E731
    assert line(lambda: run(target(), Spoilt(change))).startswith("the model Spoilt has ids ")


@pytest.mark.parametrize("ids", [[0, SIZE], [0, -1], [1, 1], [[0], [1]], [0.0, 1.0], []])
def test_a_model_whose_columns_are_no_tokens(ids: list) -> None:
    draft = Spoilt(lambda logits: logits[..., :2])
    draft.ids = torch.tensor(ids)
    for model in (draft, SideBySide([draft, target()])):
        scheme = "iid:lorenz" if model is draft else "distinct:naive"
        message = line(lambda model=model, scheme=scheme: run(target(), model, scheme=scheme))
        assert message.startswith("the ids of the model Spoilt are ")


CRITERIA: dict[str, tuple[Any, str]] = {
    "None": (None, "returns NoneType 'None'"),
    "text": ("no", "returns str 'no'"),
    "a number": (0.0, "returns float '0.0'"),
    "nan": (torch.tensor([NAN]), "returns a tensor of type torch.float32"),
    "several": (torch.tensor([True, False]), "of type torch.bool and shape (2,)"),
    "nothing": (torch.tensor([], dtype=torch.bool), "of type torch.bool and shape (0,)"),
    "meta": (torch.tensor([True], device="meta"), "on meta"),
    "a list": ([False], "returns list '[False]'"),
}


@pytest.mark.parametrize("kind", [*CRITERIA, "an exception"])
def test_criteria(kind: str) -> None:
    """The other row goes on to its end."""
    answer, message = CRITERIA.get(kind, (None, "fails with KeyError: 'nowhere'"))

    def criterion(input_ids: Tensor, scores: None) -> Any:
        if input_ids[0, 0] == 0 or input_ids.shape[1] < 6:
            return input_ids.new_zeros(1, dtype=torch.bool)
        return {}["nowhere"] if kind == "an exception" else answer

    with pytest.raises(RowFault) as caught:
        run(target(), target(), stopping_criteria=[criterion])
    assert str(caught.value).startswith("row 1, position 5: criterion criterion ")
    assert message in str(caught.value)
    assert str(caught.value).endswith("; mend it, or change its settings")
    assert len(caught.value.tokens[0]) == NEW
    assert len(caught.value.tokens[1]) <= 2


@pytest.mark.parametrize("answer", [True, torch.tensor(True), torch.tensor([True]), torch.tensor([[1]])])
def test_right_twins_of_criteria(answer: Any) -> None:
    rows = run(target(), target(), stopping_criteria=[lambda ids, scores: answer])
    assert [len(row) for row in rows] == [1, 1]


WEIGHTS: dict[str, Change] = {
    "nothing": lambda laws: None,
    "another shape": lambda laws: laws[..., 0, 0],
    "all tokens": lambda laws: laws,
    "nan": lambda laws: torch.full(laws.shape[:-1], NAN),
    "one infinity": lambda laws: torch.full(laws.shape[:-1], 0.5).index_fill(2, torch.tensor([1]), INF),
    "negative": lambda laws: torch.full(laws.shape[:-1], -0.5),
    "zero": lambda laws: torch.zeros(laws.shape[:-1]),
    "whole numbers": lambda laws: torch.ones(laws.shape[:-1], dtype=torch.int64),
    "meta": lambda laws: torch.ones(laws.shape[:-1], device="meta"),
}


@pytest.mark.parametrize("kind", WEIGHTS)
def test_weights_of_a_mixture(kind: str) -> None:
    mixed = Mixture([target(), Lookup(SIZE)], WEIGHTS[kind])
    message = line(lambda: run(target(), mixed))
    assert message.startswith("the weights function of a Mixture returns ")
    assert ("in row 0, node 0" in message) == (kind in ("nan", "one infinity", "negative", "zero"))


def test_the_right_twin_of_weights() -> None:
    even = lambda laws: torch.full(laws.shape[:-1], 0.5)  # noqa: E731
    assert [len(row) for row in run(target(), Mixture([target(), Lookup(SIZE)], even))] == [NEW, NEW]


def float8() -> Any:
    return deepcopy(tiny_model("llama")).to(torch.float8_e4m3fn)


P = torch.tensor([0.25, 0.75])
CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "n-gram as a target": (lambda: run(NGram(SIZE), target()), "the model NGram can only draft"),
    "look-up as a target": (lambda: run(Lookup(SIZE), None), "the model Lookup can only draft"),
    "several as a target": (lambda: run(SideBySide([target(), target()]), None), "the model SideBySide can only draft"),
    "corpus beyond": (lambda: NGram(SIZE, corpus=[0, 1, SIZE]), "the corpus has 6 at 2; give token ids"),
    "corpus below": (lambda: NGram(SIZE, corpus=[-1]), "the corpus has -1 at 0"),
    "corpus of text": (lambda: NGram(SIZE, corpus="abc"), "the corpus is str 'abc'"),
    "corpus of numbers": (lambda: NGram(SIZE, corpus=[0.5]), "the corpus has 0.5 at 0"),
    "corpus as a tensor": (lambda: NGram(SIZE, corpus=torch.tensor([1, 2])), "the corpus is a tensor"),
    "order": (lambda: NGram(SIZE, order="x"), "of order 'x' predicts nothing"),
    "longest": (lambda: Lookup(SIZE, longest=1.5), "look-up of runs of 1.5 tokens"),
    "weights": (lambda: Mixture([target(), target()], ["a", "b"]), "make no mixture of 2 drafters"),
    "float8": (lambda: run(float8(), None), "llama has weights in torch.float8_e4m3fn"),
    "samples": (lambda: md.scheme("iid:naive").acceptance_rate(P, P, samples=-1), "samples is -1"),
    "samples by half": (lambda: md.scheme("iid:naive").acceptance_rate(P, P, samples=0.5), "samples is 0.5"),
    "generator": (lambda: md.scheme("iid:lorenz").draw(P, generator="x"), "generator is str 'x'"),
    "target on meta": (
        lambda: md.scheme("iid:lorenz", 1).outcome(P.to("meta"), P, torch.tensor([0])),
        "target must be a dense float tensor",
    ),
    "draft on meta": (lambda: md.scheme("iid:lorenz").draw(P.to("meta")), "torch.strided on meta"),
    "drafted on meta": (
        lambda: md.scheme("iid:lorenz", 1).outcome(P, P, torch.tensor([0], device="meta")),
        "drafted is a tensor",
    ),
    "head": (lambda: md.head(5, tiny_model("llama")), "5 names no draft head"),
    "walk": (lambda: run(target(), target(), walk=lambda *_: None), "a walk of yours returns None"),
}


@pytest.mark.parametrize("kind", CALLS)
def test_what_was_told_too_late(kind: str) -> None:
    call, message = CALLS[kind]
    assert message in line(call)
