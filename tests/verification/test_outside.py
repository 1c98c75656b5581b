"""Rules from outside that fail, or return what is no law: one line that names the rule, and no token by it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import multidraft as md
from multidraft.models.prefix_models import TableModel, random_table
from multidraft.verification import registry
from multidraft.verification import scheme as schemes_module
from multidraft.verification.outcome import Outcome

pytestmark = pytest.mark.usefixtures("unchecked")
NAN, INF = float("nan"), float("inf")
P, Q = torch.tensor([[0.2, 0.3, 0.5], [0.1, 0.1, 0.8]]), torch.tensor([[0.3, 0.3, 0.4], [0.25, 0.25, 0.5]])
Pair = tuple[Tensor, Tensor]


def right(target: Tensor, draft: Tensor, drafted: Tensor) -> Pair:
    """Accept where the target's own sample was drafted, where tokens are distinct."""
    is_draft, tokens = drafted >= 0, drafted.clamp(min=0)
    accept = target.gather(-1, tokens) * is_draft
    return accept, target - torch.zeros_like(target).scatter_add(-1, tokens, accept)


NUMBERS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "nan": lambda accept, residual: (accept * NAN, residual),
    "one nan": lambda accept, residual: (accept, residual.index_fill(-1, torch.tensor([1]), NAN)),
    "infinity": lambda accept, residual: (accept, residual + INF),
    "minus infinity": lambda accept, residual: (accept - INF, residual),
    "negative": lambda accept, residual: (-accept, residual + 2 * accept.sum(-1, keepdim=True) / residual.shape[-1]),
    "negative residual": lambda accept, residual: (accept + residual.sum(-1, keepdim=True), -residual),
    "too large": lambda accept, residual: (2 * accept + 1, residual),
    "a little too large": lambda accept, residual: (accept, residual + 1e-3),
    "nothing": lambda accept, residual: (0 * accept, 0 * residual),
}
FORMS: dict[str, tuple[Callable[[Tensor, Tensor], Any], str]] = {
    "None": (lambda accept, residual: None, "two tensors"),
    "a list": (lambda accept, residual: [accept, residual], "two tensors"),
    "one part": (lambda accept, residual: (accept,), "two tensors"),
    "numbers": (lambda accept, residual: (0.5, 0.5), "two tensors"),
    "no accept": (lambda accept, residual: (None, residual), "two tensors"),
    "another shape": (lambda accept, residual: (accept[:, :1], residual), "accept of the rule"),
    "another vocabulary": (lambda accept, residual: (accept, residual[:, :-1]), "residual of the rule"),
    "whole numbers": (lambda accept, residual: (accept.long(), residual), "accept of the rule"),
    "complex": (lambda accept, residual: (accept, residual.to(torch.complex64)), "residual of the rule"),
    "another device": (lambda accept, residual: (accept, residual.to("meta")), "on meta"),
    "an exception": (lambda accept, residual: {}["nowhere"], "fails with KeyError: 'nowhere'"),
    "several lines": (lambda accept, residual: torch.zeros(2) @ torch.zeros(3), "fails with RuntimeError"),
}


def rule_of(spoil: Callable[[Tensor, Tensor], Any], takes_law: bool) -> Callable[..., Any]:
    """The right rule with a wrong answer, in both forms."""

    def spoilt(target: Tensor, draft: Tensor, drafted: Tensor) -> Any:
        return spoil(*right(target, draft, drafted))

    def with_law(target: Tensor, draft: Tensor, drafted: Tensor, law: Any) -> Any:
        returned = spoil(*right(target, draft, drafted))
        return Outcome(*returned, drafted) if isinstance(returned, tuple) and len(returned) == 2 else returned

    return with_law if takes_law else spoilt


def generated(scheme: Any) -> Tensor:
    models, seeded = [TableModel(random_table(5, 2, seed), 5) for seed in (1, 2)], torch.Generator().manual_seed(0)
    return md.generate(*models, [[1, 2]], scheme=scheme, tree="2x1", walk="commit", max_new_tokens=8, generator=seeded)[
        0
    ][0]


def verified(scheme: Any) -> tuple[Tensor, ...]:
    tree = [torch.tensor([row]) for row in ([0, 1, 2], [0, 1, 2], [1, -1, -1], [-1, 2, -1])]
    return md.verify_tree(*tree, P[:1, None].expand(1, 3, 3), Q[:1, None], scheme=scheme, walk="commit")


WAYS: dict[str, Callable[[Any], Any]] = {
    "outcome": lambda scheme: scheme.outcome(P, Q, torch.tensor([[0, 1], [2, 0]])),
    "acceptance, enumerated": lambda scheme: scheme.acceptance_rate(P, Q),
    "acceptance, sampled": lambda scheme: scheme.acceptance_rate(*torch.ones(2, 1, 200).softmax(-1), samples=3),
    "generate": generated,
    "verify_tree": verified,
}


def scheme_of(rule: Callable[..., Any]) -> Any:
    """The rule under a name, with distinct drafts."""
    md.register("mine:wrong", law="without_replacement", rule=rule)
    return md.scheme("mine:wrong", 2)


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test leaves a scheme behind."""
    monkeypatch.setitem(registry.SCHEMES, "mine:wrong", None)
    del registry.entries()["mine:wrong"]


@pytest.mark.parametrize("takes_law", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_the_right_twin_passes(way: str, takes_law: bool) -> None:
    WAYS[way](scheme_of(rule_of(lambda accept, residual: (accept, residual), takes_law)))


@pytest.mark.parametrize("takes_law", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("wrong", NUMBERS)
def test_numbers_that_are_no_law(wrong: str, way: str, takes_law: bool) -> None:
    scheme = scheme_of(rule_of(NUMBERS[wrong], takes_law))
    with pytest.raises(md.AdviceError, match=r"the rule mine:wrong makes no law in row 0: .*; mend it") as caught:
        WAYS[way](scheme)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("takes_law", [False, True])
@pytest.mark.parametrize("wrong", FORMS)
def test_what_is_no_answer(wrong: str, takes_law: bool) -> None:
    spoil, message = FORMS[wrong]
    scheme = scheme_of(rule_of(spoil, takes_law))
    for way in WAYS.values():
        with pytest.raises(md.AdviceError, match=message) as caught:
            way(scheme)
        assert "the rule mine:wrong" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_without_the_look_at_numbers_tokens_are_emitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant, which the tests above catch."""
    monkeypatch.setattr(schemes_module, "check_numbers", lambda *_: None)
    assert len(generated(scheme_of(rule_of(NUMBERS["nan"], True)))) == 8


def test_the_row_is_named() -> None:
    def second(accept: Tensor, residual: Tensor) -> Pair:
        return accept, torch.where(torch.arange(len(accept))[:, None] == 1, NAN, residual)

    with pytest.raises(md.AdviceError, match="makes no law in row 1: accept and residual sum to nan"):
        WAYS["outcome"](scheme_of(rule_of(second, True)))


def test_a_claim_for_no_draft() -> None:
    """Where fewer tokens can be drawn than are asked for, positions stay empty."""

    def claims(target: Tensor, draft: Tensor, drafted: Tensor, law: Any) -> Outcome:
        return Outcome(torch.full_like(drafted, 0.5, dtype=target.dtype), 0 * target, drafted)

    sure = torch.tensor([[0.0, 1.0, 0.0]])
    with pytest.raises(md.AdviceError, match=r"claims 0.5 for a position without a draft in row 0"):
        scheme_of(claims).outcome(P[:1], sure, torch.tensor([[1, -1]]))


@dataclass(frozen=True)
class Coarse:
    """A rule that states by how much it may be off, and is."""

    within: float = 0.01

    def __call__(self, target: Tensor, draft: Tensor, drafted: Tensor, law: Any) -> Outcome:
        accept, residual = right(target, draft, drafted)
        return Outcome(accept, 0.995 * residual, drafted)


def test_what_a_rule_states_it_may_have() -> None:
    assert scheme_of(Coarse()).within == 0.01
    for way in WAYS.values():
        way(scheme_of(Coarse()))
    with pytest.raises(md.AdviceError, match="makes no law"):
        WAYS["outcome"](scheme_of(Coarse(within=1e-3)))


@pytest.mark.parametrize("wrong", ["nan", "infinity", "negative", "too large", "nothing"])
def test_an_audit_tells_what_it_finds(wrong: str) -> None:
    """There a wrong number is no error but the finding."""
    rule = rule_of(NUMBERS[wrong], True)
    report = md.audit(rule, 2, law="top", vocabulary=64, trials=100, walks=["commit"], trees=["2x1"])
    assert report.verdict == "biased"
    assert {"exact", "statistical"} <= {*report.guilty()}  # where nothing is left a walk draws from the target


def test_keywords_are_refused_at_once() -> None:
    def asks(target: Tensor, draft: Tensor, drafted: Tensor, *, temperature: float) -> Pair:
        return right(target, draft, drafted)

    def may_ask(target: Tensor, draft: Tensor, drafted: Tensor, *, temperature: float = 1.0) -> Pair:
        return right(target, draft, drafted)

    with pytest.raises(md.AdviceError, match="this one asks for temperature by name; a rule is a function"):
        scheme_of(asks)
    assert len(generated(scheme_of(may_ask))) == 8
