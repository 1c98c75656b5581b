"""A case: answers are added wave by wave, and weighed until the verdict."""

from collections.abc import Sequence
from typing import Any

from multidraft_judge.errors import AdviceError
from multidraft_judge.evidence import greedy
from multidraft_judge.evidence.bets import LARGEST_BIAS, Evidence
from multidraft_judge.evidence.forms import Forms
from multidraft_judge.evidence.laws import Settings
from multidraft_judge.evidence.observation import Completion, Token, observe
from multidraft_judge.evidence.places import Place
from multidraft_judge.references.reference import (
    BFLOAT16_ROUNDING,
    MARGIN,
    MIN_PLACES,
    WIDTHS,
    Reference,
    differences,
    rounding_of,
)
from multidraft_judge.verdict import MAX_PLACES, Bets, Compared, Verdict

IMPOSSIBLE_LOGPROB = -46.0  # log-probability: among 1e5 tokens one of 1e5 such tokens comes once in 1e10 audits
TEXTS_FOR_ROUNDING, MAX_TEXTS_FOR_ROUNDING = 4, 8  # from which a reference's is learnt
UNLISTED_ADVICE = (
    "the server lists no likeliest tokens beside {} of {} tokens, as llama.cpp does for accepted drafts; only a "
    "reference can judge it: give --reference or --reference-model"
)
UNREAD_ADVICE = (
    "{} cannot be judged: the reference reads none of its {} texts as the tokens that came; use --reference-model, or "
    "a server that says the ids of its tokens"
)
TOO_CERTAIN_ADVICE = (
    "{} cannot be judged: in {:,} tokens its lists leave {:.3f} nats a token open, at {:.1%} of the places, too little "
    "to find a shift by {:g} of the likeliest token's probability; raise --budget-tokens, have it list what it samples "
    "from, or give a reference"
)
UNFORMED_ADVICE = (
    "{} of {} texts do not begin as the form that was asked for: the server thinks first, or takes no response_format; "
    "leave --forms out"
)


class Case:
    """The evidence for and against a sampler."""

    def __init__(self, settings: Settings, alpha: float, rounding: float, reference: Reference | None = None):
        self.settings, self.alpha, self.rounding, self.reference = settings, alpha, rounding, reference
        self.part_alpha = alpha / (1 if reference is None else 2)  # for each law that is bet against
        self.reported = Evidence(rounding)
        self.referenced: Evidence | None = None  # from when the reference's rounding is known
        self.reference_rounding = 0.0
        self.waiting = list[tuple[Completion, list[Token]]]()  # scored, but not weighed: rounding is not known yet
        self.is_listed = True  # bets on reported laws go on
        self.tokens = self.texts = self.greedy_tokens = self.compared_tokens = self.skipped = self.texts_found = 0
        self.forms: Forms | None = None  # from when an answer had to have one
        self.greedy_places, self.places, self.impossible = list[Place](), list[Place](), list[Place]()

    def add(self, completions: Sequence[Completion]) -> None:
        """Weigh the answers of a wave."""
        self.texts += len(completions)
        self.tokens += sum(len(completion.tokens) for completion in completions)
        if any(completion.ask.formed for completion in completions):  # then all are
            return self.add_formed(completions)
        self.greedy_tokens += sum(
            len(completion.tokens) for completion in completions if not completion.ask.temperature
        )
        self.check_lists(completions)
        for completion in completions:
            if self.is_listed:
                self.add_reported(completion)
        if self.reference is not None:
            self.add_referenced(self.reference, completions)

    def add_formed(self, completions: Sequence[Completion]) -> None:
        """Look whether answers have their form; what is listed beside them need not be the law behind its mask."""
        self.forms = self.forms or Forms()
        for completion in completions:
            self.forms.add(completion)
        if self.forms.is_unknown:
            raise AdviceError(UNFORMED_ADVICE.format(self.forms.texts - self.forms.begun, self.forms.texts))

    def check_lists(self, completions: Sequence[Completion]) -> None:
        """Stop betting on reported laws where not all tokens come with one: which ones do may hang on the tokens."""
        unlisted, count = sum(c.unlisted for c in completions), sum(len(c.tokens) for c in completions)
        if unlisted and self.reference is None:
            raise AdviceError(UNLISTED_ADVICE.format(unlisted, count))
        self.is_listed &= not unlisted

    def add_reported(self, completion: Completion) -> None:
        """Weigh one answer by what the server itself reports."""
        if completion.ask.temperature == 0:
            self.greedy_places += greedy.unlikely(completion, 2 * self.rounding)
            return
        for seen in observe(completion, self.settings):
            self.reported.add(seen)
        # A law is at most its logarithm before the temperature, divided by that.
        least = IMPOSSIBLE_LOGPROB * (max(self.settings.temperature, 1.0) if self.settings.reported == "raw" else 1.0)
        self.impossible += [
            Place.of(completion, position, token.logprob, least)
            for position, token in enumerate(completion.tokens)
            if token.logprob < least
        ]

    def add_referenced(self, reference: Reference, completions: Sequence[Completion]) -> None:
        """Weigh answers by what the reference says of the same tokens."""
        scores = reference.score(completions, self.settings, len(completions))
        pairs = [(c, scored) for c, scored in zip(completions, scores, strict=True) if scored is not None]
        self.skipped += sum(bool(completion.tokens) for completion in completions) - len(pairs)
        self.waiting += pairs
        if self.referenced is None and len(self.waiting) >= TEXTS_FOR_ROUNDING:
            self.learn_rounding(reference)
        if self.referenced is not None:
            self.add_waiting(self.referenced)

    def learn_rounding(self, reference: Reference) -> None:
        """Learn from the texts that came how far the reference is off from itself, and begin to bet on its law."""
        texts = [completion for completion, _ in self.waiting]
        sample = (texts * WIDTHS[-1])[: max(len(texts), WIDTHS[-1])]  # few texts would fill no batch
        own_rounding = rounding_of(reference, sample[:MAX_TEXTS_FOR_ROUNDING], self.settings)
        stated_rounding = reference.rounding_share * self.rounding if self.rounding >= BFLOAT16_ROUNDING else 0.0
        self.reference_rounding = max(own_rounding, stated_rounding)
        self.referenced = Evidence(max(self.rounding, MARGIN * self.reference_rounding))

    def add_waiting(self, evidence: Evidence) -> None:
        """Weigh the answers that the reference has scored, and that wait."""
        for completion, scored in self.waiting:
            self.add_scored(completion, scored, evidence)
        self.waiting.clear()

    def close(self) -> None:
        """Weigh what still waits, where fewer texts came than rounding is learnt from."""
        if self.waiting and self.reference is not None:
            self.learn_rounding(self.reference)
        if self.referenced is not None:
            self.add_waiting(self.referenced)

    def add_scored(self, completion: Completion, scored: list[Token], evidence: Evidence) -> None:
        """Weigh one answer whose tokens a reference has scored."""
        tolerance = MARGIN * self.reference_rounding
        self.compared_tokens += len(scored)
        places = differences(completion, scored, tolerance)
        self.places += places
        self.texts_found += len(places) >= MIN_PLACES
        if completion.ask.temperature == 0:
            self.greedy_places += greedy.unlikely(completion, tolerance, scored)
        else:
            for seen in observe(completion, self.settings, scored):
                evidence.add(seen)

    def check_open(self, subject: str) -> None:
        """Raise where nothing was found, and the laws left too little open to find much: no acquittal from that."""
        if self.reference is not None and not self.compared_tokens and not self.reasons:
            raise AdviceError(UNREAD_ADVICE.format(subject, self.skipped))
        evidence = [laws for laws in (self.reported if self.is_listed else None, self.referenced) if laws is not None]
        if self.reasons or not self.drawn_tokens or any(laws.can_acquit(self.part_alpha) for laws in evidence):
            return
        laws = max(evidence, key=lambda laws: laws.entropy)
        rates = laws.entropy / self.drawn_tokens, laws.open_tokens / self.drawn_tokens
        raise AdviceError(TOO_CERTAIN_ADVICE.format(subject, self.drawn_tokens, *rates, LARGEST_BIAS))

    @property
    def drawn_tokens(self) -> int:
        """How many tokens came at a temperature above 0, without a form."""
        return self.tokens - self.greedy_tokens - (self.forms.tokens if self.forms else 0)

    @property
    def reasons(self) -> list[str]:
        """Why the sampler is guilty; empty if nothing was found."""
        reasons = []
        if self.reported.convicts(self.part_alpha):
            reasons.append("its tokens are not drawn from the law that it reports")
        if self.referenced is not None and self.referenced.convicts(self.part_alpha):
            reasons.append("its tokens are not drawn from the reference's law")
        if self.impossible:
            reasons.append(f"it emits tokens that cannot come by its own law: {self.impossible[0]}")
        if self.greedy_places:
            reasons.append(f"a greedy token is not the likeliest: {self.greedy_places[0]}")
        if self.forms is not None and self.forms.convicts:
            reasons.append(f"a text does not have the form that was asked for: {self.forms.broken[0]}")
        if self.texts_found:
            reasons.append(f"what it reports is not the reference's law: {self.places[0]}")
        return reasons

    def verdict(self, subject: str, settings: dict[str, Any], repeats: dict[str, int]) -> Verdict:
        """What was found so far."""
        bets = [Bets.of("reported", self.reported, self.part_alpha)] if self.is_listed or self.reported.tokens else []
        compared = None
        if self.referenced is not None:
            bets.append(Bets.of("reference", self.referenced, self.part_alpha))
            compared = Compared(
                self.compared_tokens,
                self.reference_rounding,
                MARGIN * self.reference_rounding,
                self.places[:MAX_PLACES],
                self.texts_found,
                self.skipped,
            )
        return Verdict(
            subject,
            settings,
            self.alpha,
            self.tokens,
            self.texts,
            self.reasons,
            bets,
            self.greedy_tokens,
            self.greedy_places[:MAX_PLACES],
            compared,
            repeats,
            self.forms,
        )
