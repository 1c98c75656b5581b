"""A scheme is a drafting law with a verification rule that is valid for it, written `law:rule`; the list of them."""

import json
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft import distributions
from multidraft.acceptance import Acceptance, by_enumeration, by_sampling
from multidraft.drafting import LAWS, Law
from multidraft.errors import AdviceError
from multidraft.kinds import shown
from multidraft.verification import Outcome, anchored_lorenz, formulas, k_sequential, lorenz, naive, recursive_rejection
from multidraft.verification.global_resolution import global_resolution
from multidraft.verification.linear_program import linear_program
from multidraft.verification.max_flow import max_flow, reduced_max_flow
from multidraft.verification.maximal_coupling import maximal_coupling, spechub
from multidraft.verification.solved import optimum

Rule = Callable[[Tensor, Tensor, Tensor, Any], Outcome]  # target, draft, drafted, and the law they were drawn by


@dataclass(frozen=True)
class Entry:
    """What is known of a scheme: its rule, the formula of its acceptance rate if there is one, and where it is from."""

    rule: Rule
    source: str
    cost: str
    formula: Callable[[Tensor, Tensor, Any], Tensor | None] | None = None
    exact: bool = True
    small: bool = False  # for small vocabularies only: its work grows with the number of token sets
    known_as: str = ""  # the name it goes by with the deferred walk


# With a single draft, drawn from q itself, these are the coupling of q with the target: they accept min(1, p/q).
COUPLINGS: list[Rule] = [lorenz, anchored_lorenz, k_sequential, recursive_rejection, maximal_coupling]

MCSD = "Multi-Candidate Speculative Decoding"
OPTIMAL = "Towards Optimal Multi-Draft Speculative Decoding"
GLOBAL = "Global Resolution"
OURS = "multidraft (docs/theory.md)"

SCHEMES: dict[str, Entry] = {
    "iid:lorenz": Entry(
        lorenz, OURS, "one sort", formulas.lorenz_iid, known_as="on a chain, deferred: block verification"
    ),
    "iid:k_sequential": Entry(k_sequential, "SpecTr, Algorithm 2", "50 passes", formulas.k_sequential),
    "iid:recursive_rejection": Entry(
        recursive_rejection, f"SpecInfer; {MCSD}, Algorithm 1", "n passes", formulas.recursive_rejection
    ),
    "iid:naive": Entry(naive, MCSD, "one look-up", formulas.naive_iid),
    "without_replacement:recursive_rejection": Entry(
        recursive_rejection, f"{MCSD}, Algorithm 2", "n passes", known_as="deferred: traversal verification"
    ),
    "without_replacement:naive": Entry(naive, MCSD, "one look-up"),
    "greedy:maximal_coupling": Entry(maximal_coupling, f"{OPTIMAL}, Section 5", "one pass", formulas.maximal_coupling),
    "greedy:naive": Entry(naive, MCSD, "one look-up"),
    "anchored:lorenz": Entry(anchored_lorenz, OURS, "one sort, then a pass per top-up", formulas.lorenz_anchored),
    "anchored:naive": Entry(naive, MCSD, "one look-up"),
    "top:naive": Entry(naive, f"{MCSD}; EAGLE", "one look-up", formulas.naive_top),
    "spechub:spechub": Entry(spechub, "SpecHub (Sun et al., 2024)", "one pass", formulas.maximal_coupling),
    "spechub:naive": Entry(naive, MCSD, "one look-up"),
    "distinct:recursive_rejection": Entry(recursive_rejection, "SpecInfer", "n passes", formulas.recursive_rejection),
    "distinct:naive": Entry(naive, MCSD, "one look-up", formulas.naive_distinct),
    "iid:global_resolution": Entry(
        global_resolution, f"{GLOBAL}, Section 6", "two convex problems; may fail", exact=False, small=True
    ),
    "iid:reduced_max_flow": Entry(
        reduced_max_flow, f"{GLOBAL}, Section 5.3", "two flows over token sets", optimum, small=True
    ),
}
for _law in LAWS:
    SCHEMES[f"{_law}:max_flow"] = Entry(
        max_flow, f"{GLOBAL}, Section 5.2", "a flow over token sets", optimum, small=True
    )
    SCHEMES[f"{_law}:linear_program"] = Entry(
        linear_program, f"{OPTIMAL}, eq. 9", "a linear program over token sets", optimum, small=True
    )


@dataclass(frozen=True)
class Scheme:
    """A drafting law and the rule that verifies its drafts; made by `multidraft.catalogue`."""

    name: str
    law: Law
    settings: tuple[tuple[str, Any], ...] = ()  # of the rule

    @property
    def entry(self) -> Entry:
        """The scheme's line in the list, its rule with the settings asked for."""
        entry = SCHEMES[self.name]
        rule: Any = entry.rule  # a dataclass where there are settings
        return replace(entry, rule=replace(rule, **dict(self.settings))) if self.settings else entry

    @cached_property
    def is_coupling(self) -> bool:
        """Whether it accepts its one draft with probability min(1, p/q)."""
        return self.law.draws_one and self.entry.rule in COUPLINGS

    @property
    def within(self) -> float:
        """The total variation from the target that the rule may have; 0 for an exact one."""
        return getattr(self.entry.rule, "within", 0.0)

    @property
    def drafts(self) -> int:
        """Number of drafts a node."""
        return self.law.drafts

    @cache  # noqa: B019  # schemes are few, and the decoding loop asks at every level
    def at(self, drafts: int) -> "Scheme":
        """The same scheme with another number of drafts."""
        return replace(self, law=replace(self.law, drafts=drafts))

    def draw(
        self, draft: Float[Tensor, "*drafting vocabulary"], generator: torch.Generator | None = None
    ) -> Int[Tensor, "*batch width"]:
        """Drafted tokens in the order in which they were drawn, -1 where a position is empty."""
        self.check_draft(draft)
        shape = (*self.law.batch(draft), self.law.numbers)
        return self.law.draw(draft, distributions.uniform(shape, generator, draft.device))

    def probability(
        self, draft: Float[Tensor, "*drafting vocabulary"], drafted: Int[Tensor, "*batch width"]
    ) -> Float[Tensor, "*batch"]:
        """Probability that `draw` gives exactly this ordered tuple."""
        self.check_draft(draft)
        self.check_drafted(draft, drafted)
        return self.law.probability(draft, drafted)

    def tuples(
        self, draft: Float[Tensor, "*drafting vocabulary"]
    ) -> tuple[Int[Tensor, "tuples width"], Float[Tensor, " tuples"]]:
        """Every possible tuple for one small vocabulary and its probability; refuses large ones."""
        self.check_draft(draft)
        if self.law.batch(draft):
            raise AdviceError(
                f"tuples lists those of one draft distribution; got a batch of shape {tuple(draft.shape)}"
            )
        return self.law.tuples(draft)

    def outcome(
        self,
        target: Float[Tensor, "*batch vocabulary"],
        draft: Float[Tensor, "*drafting vocabulary"],
        drafted: Int[Tensor, "*batch width"],
    ) -> Outcome:
        """The exact law of the emitted token; refuses drafts that this scheme's law cannot have drawn.

        `target` may sum to less than one (see `Outcome`).
        """
        self.check_pair(target, draft)
        self.check_drafted(draft, drafted)
        if not (possible := self.law.possible(draft, drafted)).all():
            row = int((~possible).reshape(-1).nonzero()[0])
            tokens = drafted.reshape(-1, drafted.shape[-1])[row].tolist()
            raise AdviceError(
                f"drafted row {row} {tokens} has probability 0 under the law {self.law.name}; "
                "pass the distribution and the law that the drafts were really drawn from"
            )
        if drafted.numel() == 0:  # no rows: the rules may take a maximum over them
            return Outcome(target.new_zeros(drafted.shape), target.clone(), drafted)
        return self.verify(target, draft, drafted)

    def verify(self, target: Tensor, draft: Tensor, drafted: Tensor) -> Outcome:
        """`outcome` without its checks, for the decoding loop."""
        return self.entry.rule(target, draft, drafted, self.law)

    def expected_acceptance(self, target: Tensor, draft: Tensor) -> Tensor | None:
        """The acceptance rate by its formula, None where there is none; unchecked, for the decoding loop."""
        formula = self.entry.formula
        return None if formula is None else formula(target, draft, self.law)

    def acceptance(
        self,
        target: Float[Tensor, "*batch vocabulary"],
        draft: Float[Tensor, "*drafting vocabulary"],
        samples: int = 1000,
        generator: torch.Generator | None = None,
    ) -> Acceptance:
        """The acceptance rate with the method that gave it: a formula, enumeration where small, else sampling."""
        self.check_pair(target, draft)
        if not target.numel():
            return Acceptance(target.new_empty(target.shape[:-1]), "nothing to average")
        if (rate := self.expected_acceptance(target, draft)) is not None:
            return Acceptance(rate, "formula")
        if draft.shape[-1] ** self.law.drafts <= 4096 and target.numel() <= 16 * target.shape[-1]:
            return by_enumeration(self, target, draft)
        return by_sampling(self, target, draft, samples, generator)

    def acceptance_rate(
        self, target: Float[Tensor, "*batch vocabulary"], draft: Float[Tensor, "*drafting vocabulary"]
    ) -> Float[Tensor, "*batch"]:
        """Probability that the emitted token is a drafted one; `acceptance` also says how it was computed."""
        return self.acceptance(target, draft).rate

    def optimal_acceptance_rate(
        self, target: Float[Tensor, "*batch vocabulary"], draft: Float[Tensor, "*drafting vocabulary"]
    ) -> Float[Tensor, "*batch"]:
        """The largest acceptance rate that any rule can reach with this scheme's drafts."""
        self.check_pair(target, draft)
        return optimum(target, draft, self.law)

    def check_draft(self, draft: Tensor) -> None:
        """Raise unless `draft` is a draft distribution of this law, or several."""
        distributions.check_distribution(draft, "draft")
        self.law.batch(draft)

    def check_pair(self, target: Tensor, draft: Tensor) -> None:
        """Raise unless there is a target (which may sum to less than one) for every row of `draft`."""
        distributions.check_distribution(target, "target", total_at_most_one=True)
        self.check_draft(draft)
        wanted = (*self.law.batch(draft), draft.shape[-1])
        if target.shape != wanted:
            raise AdviceError(
                f"target has shape {tuple(target.shape)} and draft {tuple(draft.shape)}; {self.name} needs a target of "
                f"shape {wanted} for this draft: one row each, over one vocabulary"
            )

    def check_drafted(self, draft: Tensor, drafted: Tensor) -> None:
        """Raise unless `drafted` has one column for each position of the law, with ids of the vocabulary or -1."""
        if not isinstance(drafted, Tensor) or drafted.dtype != torch.int64 or drafted.ndim == 0:
            kind = drafted.dtype if isinstance(drafted, Tensor) else type(drafted).__name__
            raise AdviceError(f"drafted must be an int64 tensor (..., {self.law.width}) of token ids; got {kind}")
        if drafted.shape[-1] != self.law.width:
            raise AdviceError(
                f"drafted has {drafted.shape[-1]} positions a row; "
                f"{self.name} with {self.drafts} drafts has {self.law.width}"
            )
        if drafted.shape[:-1] != self.law.batch(draft):
            raise AdviceError(
                f"drafted has shape {tuple(drafted.shape)} and draft {tuple(draft.shape)}; give one tuple for each row"
            )
        outside = drafted[(drafted < -1) | (drafted >= draft.shape[-1])]
        if len(outside):
            raise AdviceError(
                f"drafted has token id {int(outside[0])}; "
                f"ids are 0 to {draft.shape[-1] - 1}, and -1 where a position is empty"
            )


def scheme(name: str, drafts: int | None = None, **settings: Any) -> Scheme:
    """The scheme `law:rule` with `drafts` drafts a node; `settings` are the law's and the rule's.

    Settings may follow the name too: "anchored:lorenz,anchors=2".

    >>> scheme("iid:lorenz", drafts=2).acceptance_rate(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0]))
    tensor(0.5000)
    """
    if not isinstance(name, str):
        raise AdviceError(f"a scheme's name is {shown(name)}; write law:rule, as in iid:lorenz; md.schemes() lists all")
    name, *written = name.split(",")
    settings = dict(map(setting, written)) | settings
    if name not in SCHEMES:
        raise AdviceError(unknown(name))
    law, rule = LAWS[name.split(":")[0]], SCHEMES[name].rule
    of_law = {field.name for field in fields(law)} - {"drafts"}
    of_rule: set[str] = {field.name for field in fields(rule)} if is_dataclass(rule) else set()
    if extra := set(settings) - of_law - of_rule:
        raise AdviceError(
            f"{name} has no setting {', '.join(sorted(extra))}; it has {', '.join(sorted(of_law | of_rule)) or 'none'}"
        )
    described: Any = [kind for kind in (law, rule) if is_dataclass(kind)]
    settings = of_kinds(settings, {field.name: field.type for kind in described for field in fields(kind)})
    drafts = (2 if law.name == "spechub" else 4) if drafts is None else drafts
    made = law(drafts, **{key: settings[key] for key in settings if key in of_law})
    found = Scheme(name, made, tuple((key, settings[key]) for key in settings if key in of_rule))
    _ = found.entry  # raises where a setting of the rule makes no sense
    return found


def setting(text: str) -> tuple[str, Any]:
    """A setting written `name=value`; the value is read as JSON where it is that, else as text."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals:
        raise AdviceError(f"a scheme's setting {text!r} has no value; write it as in anchored:lorenz,anchors=2")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):  # of JSON, of the digits that Python reads, of its depth
        return name, value


def of_kinds(settings: dict[str, Any], kinds: dict[str, Any]) -> dict[str, Any]:
    """The settings, a whole number as a float where its field is one; raises where a value is of another kind."""
    made = {}
    for name, value in settings.items():
        kind = kinds[name]
        whole = type(value) is int and not isinstance(value, kind) and isinstance(1.0, kind)
        made[name] = float(value) if whole else value
        if not isinstance(made[name], kind) or (type(value) is bool and kind is not bool):
            wanted = getattr(kind, "__name__", str(kind))
            raise AdviceError(f"setting {name}={value!r} is of another kind than {wanted}; write it as in anchors=2")
    return made


def schemes() -> list[dict[str, str | bool]]:
    """Every scheme: its law, rule, source and cost, if it is exact, and if it is for small vocabularies only.

    The strongest published yardsticks are block verification (a chain) and traversal verification (a tree).
    """
    return [
        dict(
            name=name,
            law=name.split(":")[0],
            rule=name.split(":")[1],
            source=entry.source,
            exact=entry.exact,
            small=entry.small,
            cost=entry.cost,
            known_as=entry.known_as,
        )
        for name, entry in SCHEMES.items()
    ]


def unknown(name: str) -> str:
    """What is wrong with a scheme's name and which names there are."""
    law, _, rule = name.partition(":")
    rules = [n.split(":")[1] for n in SCHEMES if n.split(":")[0] == law]
    if rules and any(n.endswith(f":{rule}") for n in SCHEMES):
        return f"the rule {rule} is not valid for drafts of the law {law}; valid rules for it: {', '.join(rules)}"
    return f"unknown scheme {name!r}; schemes are {', '.join(SCHEMES)}"
