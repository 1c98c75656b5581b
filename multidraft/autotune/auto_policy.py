"""`tree="auto"`: trees that grow while drafts pay, by measured seconds of steps and by acceptance so far."""

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from multidraft.autotune.estimates import DEFAULT, DEFAULT_COSTS, MAX_DRAFTS, AcceptanceTracker, Costs, TreeRates, Work
from multidraft.autotune.growing_policy import Growing
from multidraft.autotune.limits import FIXED_TREE, TreeLimits
from multidraft.autotune.plans import MeasuredPair, Profile, profile_for
from multidraft.autotune.probes import TRANSITIONS, Event, Phase, Probes
from multidraft.autotune.recent_speed import RecentSpeed
from multidraft.autotune.timed_steps import NO_WORK, TimedSteps, temperatures_of, tree_within, work_of
from multidraft.decoding.batch import paths_of
from multidraft.decoding.policy import NO_PROMPTS, Outlook, Plan, PromptReads, StaticTree, StepForecast
from multidraft.decoding.tree import NO_DRAFTS, TokenTree, Tree
from multidraft.errors import say_once
from multidraft.models.reader import Cost
from multidraft.verification.scheme import Scheme

if TYPE_CHECKING:
    from multidraft.decoding.record import StepRecord

STEPS_PER_PRICING, PRICING_TOLERANCE = 8, 0.01  # prices are due after so many steps, if numbers differ by more
STEPS_PER_RARE_PRICING = 16  # of look-ups alone, and while nothing is drafted
CERTAINTY_TO_TIME = 0.65  # of a look-up whose pass is timed: one that is wrong costs several plain steps
IDLE_STEPS, MAX_STEPS_PER_LOOKUP = 16, 32  # after so many without drafts look-ups are skipped; up to one of so many
STEPS_PER_LOOK = 8  # of those without drafts most are only counted, and nothing is decided in them
MARGIN, MARGIN_PER_DOUBLING = 0.02, 0.02  # drafts must be faster than none by this; more for every doubling of rows
CATCH_UP_MARGIN = 0.007  # for each row, of a model that has rested: catching up takes a step of 32 rows some 15 times
MEMORY_NODES = 100.0  # of each row, over which acceptance fades by a factor e
PROBE_MEMORY_NODES = 8.0  # of all rows, in a probe, which is to find out what has changed: few of many draft in it
PROFILE_WEIGHT, DEFAULT_WEIGHT = 10.0, 4.0  # nodes that the profile's acceptance, and the prior, count as
MAX_LOSS = 3.0  # tokens of a row that the last steps may have made fewer than plain ones, as chance has it
LOSS_BEFORE = 2.0  # what is taken for lost already after drafts have lost and rested
MAX_SURPRISE = 2.0  # of a step with drafts against its forecast: beyond it, prices are computed again at once
NO_DRAFTS_ADVICE = "no drafts are best here: pass None in place of the draft model (--draft none)"
MIN_STEPS_TO_ADVISE = 200  # after fewer steps there is no advice to do without drafts
CHAINS = [
    NO_DRAFTS,
    *(Tree.levels([1] * length) for length in range(1, 9)),
]  # the first guess of the speed is that of the fastest


class Auto(Growing):
    """Trees that grow while drafts pay; a draft model whose drafts do not pay is not asked.

    The policy uses a profile, corrected by a moving average of this run's verdicts. `budget` is the seconds of steps
    that may be timed. With a budget of 0 it reads no clock, so that a seed repeats a run; a pair without a plan then
    has the prior's costs. Rows with a seed of their own always draft the same shape: what was timed or learnt, and
    other rows, must not change their tokens. `paths` of all rows together are told apart by the models; None for any.
    """

    def __init__(
        self,
        profile: Profile,
        temperature: float | int,
        limits: TreeLimits | None = None,
        budget: float | int = 0.0,
        kind: Cost = "pass",
        paths: int | None = None,
    ):
        size = limits or TreeLimits()
        super().__init__(size.nodes, size.depth, kind, paths)
        self.temperature, self.timing = round(float(temperature), 1), TimedSteps(profile, kind, budget, size)
        self.prior, self.recent = profile.rates(temperature), AcceptanceTracker()
        self.ends_with_rows = bool(budget)  # else a seed's shorter text is the beginning of its longer one
        self.seeded_tree = StaticTree(tree_within(size, Tree.parse(FIXED_TREE)))
        shapes = (self.limits, self.timing.first_tree.limits, self.seeded_tree.limits)
        max_paths = max(shape.max_paths or 0 for shape in shapes)
        self.limits = replace(self.limits, draft_counts=range(1, MAX_DRAFTS + 1), max_paths=max_paths)
        self.timed_tree: StaticTree | None = None  # drafted in place of a growing tree, to be timed
        self.temperatures = set[float | int]()  # of the last step's rows
        self.learnt_rates: TreeRates | None = None  # from the prior and recent verdicts; None where newer ones came
        self.costs: Costs | None = None  # of steps now
        self.priced_costs: Costs | None = None  # that prices come from, beside the acceptance rates
        self.priced_by: tuple[float | int, ...] = ()  # and the other numbers
        self.measured_plain_seconds: float | None = None  # of a step
        self.rows = self.rows_to_come = 0  # that prices are for; that are about to decode
        self.steps = self.steps_without_drafts = self.idle_steps = 0  # all, and the latest without drafts
        self.next_look = self.next_question = 0  # the steps in which something is decided next, look-ups are asked next
        self.asks_none = False  # in this step
        self.phase, self.probes, self.speed = Phase.TIMING, Probes(), RecentSpeed()
        self.prompt_reads = NO_PROMPTS
        self.is_surprised = False  # by what the last step took

    @property
    def profile(self) -> Profile:
        """What is known of the pair."""
        return self.timing.profile

    @property
    def plain_seconds(self) -> float | None:
        """The seconds of a step without drafts, once they are well known, and while steps take what they took then."""
        is_valid = self.speed.is_as_forecast and not self.timing.is_busy
        return self.measured_plain_seconds if is_valid else None

    def begin(self, rows: int, prompt_reads: PromptReads | None = None) -> Outlook:
        """Set prices before the first step, so that a draft model that will not be used need not read the prompts.

        Say that steps will be timed, if so: not in the middle of a text that is printed as it comes.
        """
        self.rows_to_come = rows
        if prompt_reads is not None:
            self.prompt_reads = prompt_reads
        is_first = not self.steps and (prompt_reads is not None or self.costs is None)
        if is_first:
            self.timing.say(rows)
        if self.timing.has_costs and (is_first or (rows > self.rows and not self.asks_nobody)):
            self.choose(rows)
        is_known = self.costs is not None and self.timing.has_costs
        rests = self.kind == "pass" and is_known and self.asks_nobody  # look-ups read for nothing
        return Outlook(rests, self.plain_seconds)

    def advance(self, rows: int, may_time: bool) -> None:
        """A step of so many rows begins: set prices if it is time, follow the transitions, and choose what is timed.

        Nothing is timed beside a row with a seed. While others are about to join, prices are those of all: drafts that
        do not pay then are not begun.
        """
        priced_rows, self.rows_to_come = max(rows, self.rows_to_come), 0
        is_rare = self.kind == "lookup" or self.idle_steps > IDLE_STEPS
        is_due = self.steps % (STEPS_PER_RARE_PRICING if is_rare else STEPS_PER_PRICING) == 0
        if is_due and self.timing.budget:  # also where it is spent: a busy machine's steps are dropped once it is quiet
            self.profile.check_load()
        is_due |= self.has_probed or self.is_surprised or self.costs is None
        if not self.timing.has_costs:
            self.rows, self.costs, self.measured_plain_seconds, self.speed.seconds = priced_rows, None, None, 0.0
        elif is_due or (priced_rows != self.rows and not self.asks_nobody):
            self.choose(priced_rows)
            self.is_surprised = False
        event = self.event()
        if following := TRANSITIONS.get((self.phase, event)):
            self.enter(following, event)
        else:
            self.probes.count_step()
        self.is_probing = self.phase is Phase.PROBING
        is_new_pair = self.phase is Phase.TIMING
        later_tree = None if is_new_pair or not may_time else self.timing.tree_for(rows, self.steps)
        self.timed_tree = self.timing.first_tree_for(rows) if is_new_pair else later_tree
        self.steps += 1
        is_settled = self.measured_plain_seconds is not None and not self.timing.chain_for(rows)
        may_look_away = is_settled and self.phase in (Phase.DRAFTING, Phase.RESTING) and not self.asks_model
        self.next_look = self.steps + -self.steps % STEPS_PER_LOOK if may_look_away and not self.timed_tree else 0
        self.next_question = 0

    def event(self) -> Event:
        """What decides on the next phase."""
        if not self.timing.has_costs:
            return Event.UNKNOWN
        if self.speed.gained < -MAX_LOSS * math.sqrt(self.rows) - self.speed.stake:
            return Event.LOSES
        if self.model_pays and not self.rests:
            return Event.PAYS
        probes, may_probe = self.probes, self.phase is Phase.RESTING and self.can_pay
        has_rested = may_probe and probes.rested >= probes.rest_steps(self.rows)
        return Event.OVER if has_rested or self.has_probed else Event.FAILS

    @property
    def has_probed(self) -> bool:
        """Whether a probe has come to its end: then prices are set, as what it has shown decides."""
        return self.phase is Phase.PROBING and self.probes.steps_left <= 0

    def enter(self, phase: Phase, event: Event) -> None:
        """Begin a phase: what does not pay rests from this step on, and longer after each probe."""
        probes, speed = self.probes, self.speed
        if self.phase is Phase.PROBING and event is not Event.UNKNOWN and self.timing.budget:
            probes.note_time(self.rows)
        if phase is Phase.PROBING:
            probes.begin(self.rows)
            speed.gained = -LOSS_BEFORE * math.sqrt(self.rows) if self.rests else speed.gained
        elif phase is Phase.RESTING:
            probes.rested = int(event is not Event.OVER)
        if event is Event.OVER and phase is Phase.RESTING:
            self.recent.fade(math.exp(-probes.pauses[self.rows.bit_length()] / (8 * MEMORY_NODES)))
            self.learnt_rates = None
        if event in (Event.LOSES, Event.UNKNOWN):
            speed.gained = 0.0
        self.phase, self.rests = phase, event is Event.LOSES

    def choose(self, rows: int) -> None:
        """Set the prices of drafts by the tokens per second so far; drafts must beat no drafts by a margin."""
        self.speed.add_counted(self.rows, self.measured_plain_seconds)
        self.next_look = 0
        if self.learnt_rates is None:
            weight = DEFAULT_WEIGHT if self.prior is DEFAULT else PROFILE_WEIGHT
            self.learnt_rates = self.recent.rates(self.prior, weight)
        rates = self.learnt_rates
        self.costs = costs = self.profile.costs(rows) if self.profile.timed_rows else DEFAULT_COSTS.scale_rows(rows)
        self.measured_plain_seconds = costs.seconds(NO_WORK) if self.timing.is_settled(rows) else None
        if rows != self.rows or not self.speed.seconds:  # at the speed of no drafts the first trees would be too large
            chains = CHAINS if self.kind == "pass" else CHAINS[:1]
            forecasts = [StepForecast(rates.tokens(tree), costs.seconds(Work.of_tree(tree))) for tree in chains]
            best = max(forecasts, key=lambda forecast: forecast.tokens / forecast.seconds)
            self.speed.begin(StepForecast(rows * best.tokens, best.seconds), STEPS_PER_PRICING)
        self.rows = rows
        rate = max(1 / costs.seconds(NO_WORK), self.speed.tokens / self.speed.seconds / rows)
        reads = self.prompt_reads._replace(passes=rows * self.prompt_reads.passes)
        model_margin = CATCH_UP_MARGIN * rows if self.phase is Phase.RESTING else 0.0
        numbers = (rate, *reads, MARGIN + MARGIN_PER_DOUBLING * math.log2(rows), model_margin)
        is_close = all(
            math.isclose(new, old, rel_tol=PRICING_TOLERANCE)
            for new, old in zip(numbers, self.priced_by or numbers, strict=True)
        )
        if not (rates is self.rates and costs == self.priced_costs and is_close):
            self.priced_costs, self.priced_by = costs, numbers
            self.price(rates, costs, rate, reads, *numbers[-2:])
        if self.model_pays and self.speed.gained > 0:
            self.probes.shorten_pause(rows)

    def plan(self, trees: list[TokenTree], depth: int) -> Plan:
        """The nodes that the draft model reads, by the tree in use; a model that some rows ask answers them all."""
        seeded = [tree for tree in trees if tree.is_seeded]
        if depth == 0:
            rows, self.asks_none = len(trees), False
            if seeded or self.steps >= self.next_look or max(rows, self.rows_to_come) != self.rows:
                self.advance(rows, may_time=not seeded)
            else:
                self.asks_none = self.steps < self.next_question
                self.steps, self.rows_to_come = self.steps + 1, 0
                self.probes.count_step()
            if self.asks_none:
                return Plan([[]] * rows)
        if not seeded:
            return self.plan_unseeded(trees, depth)
        unseeded = [tree for tree in trees if not tree.is_seeded]
        others = iter(self.plan_unseeded(unseeded, depth).nodes if unseeded else ())
        self.share_paths(len(trees))
        fixed = iter(self.seeded_tree.plan(seeded, depth).nodes)
        return Plan([next(fixed if tree.is_seeded else others, []) for tree in trees])

    def plan_unseeded(self, trees: list[TokenTree], depth: int) -> Plan:
        """The same for rows without a seed; look-ups are timed where they are likely right."""
        if self.timed_tree is None:
            if depth or not self.skips_lookups:
                return super().plan(trees, depth)
            self.next_question = self.steps + (-(self.idle_steps + 1) % self.steps_per_lookup)
            return Plan([[]] * len(trees))
        plan = self.timed_tree.plan(trees, depth)
        if self.kind != "lookup":
            return plan
        return plan._replace(lookup_only=True, min_certainty=lambda drafting_rows: CERTAINTY_TO_TIME)

    @property
    def skips_lookups(self) -> bool:
        """Whether look-ups are not asked in this step: those of one row alone could not pay for the others' padding."""
        is_skipped = self.idle_steps > IDLE_STEPS and self.idle_steps % self.steps_per_lookup > 0
        return is_skipped and not self.asks_model and self.min_certainty(self.rows, 1) == math.inf

    @property
    def steps_per_lookup(self) -> int:
        """From one that asks to the next: a quarter to an eighth of those without drafts so far, up to the most."""
        return min(1 << self.idle_steps.bit_length() >> 3, MAX_STEPS_PER_LOOKUP)

    def counts(self, trees: list[TokenTree], depth: int) -> list[dict[int, int]]:
        """The number of drafts by node, by the tree in use."""
        unseeded = [tree for tree in trees if not tree.is_seeded]
        policy_counts = super().counts if self.timed_tree is None else self.timed_tree.counts
        fixed = iter(self.seeded_tree.counts([tree for tree in trees if tree.is_seeded], depth))
        others = iter(policy_counts(unseeded, depth))
        return [next(fixed if tree.is_seeded else others) for tree in trees]

    def observe(self, record: "StepRecord") -> StepForecast | None:
        """Learn from the rule's acceptance probabilities, which are exact. Time the step while the budget lasts."""
        if not any(record.scored):
            return None
        rows, work = len(record.trees), NO_WORK if self.asks_none else work_of(record.trees, self.kind)
        self.steps_without_drafts += not work.nodes
        self.idle_steps = 0 if work.nodes else self.idle_steps + 1
        plain_seconds = self.measured_plain_seconds if rows == self.rows and not self.is_probing else None
        is_quiet = not (work.nodes or record.draft_passes) and self.steps % STEPS_PER_LOOK > 0
        are_fewer = self.asks_none and rows != self.rows  # than prices are for: others are about to join
        if is_quiet and are_fewer and self.timing.is_settled(rows):
            self.timing.note_plain(rows, record.decoding_seconds)
            return None
        if is_quiet and plain_seconds is not None:
            seconds = plain_seconds if record.is_first_of_size else record.decoding_seconds
            self.speed.count_plain(seconds)
            self.timing.note_plain(rows, seconds)
            return StepForecast(sum(record.scored), plain_seconds)
        if work.nodes:
            self.next_look = 0
        self.speed.add_counted(self.rows, self.measured_plain_seconds)
        is_usual = not (record.is_first_of_size or record.is_catching_up)
        if (forecast := self.forecast(record, work)) is not None and is_usual:
            is_slow = record.decoding_seconds > MAX_SURPRISE * forecast.seconds
            self.is_surprised = bool(self.timing.budget and work.nodes) and is_slow
            self.speed.compare(record.decoding_seconds, forecast.seconds)
        if work is not NO_WORK:
            self.recent.observe(record, PROBE_MEMORY_NODES / rows if self.is_probing else MEMORY_NODES)
            self.learnt_rates = None
        if self.is_probing:
            self.probes.extend(record)
            if self.timing.budget and self.costs and not record.is_first_of_size:
                self.probes.plain_steps_now += record.decoding_seconds / self.costs.plain - 1
        if work.reads:
            self.prompt_reads = NO_PROMPTS
        self.follow_temperature(record)
        self.timing.observe(record, work, self.timed_tree, self.phase is Phase.TIMING)
        if self.costs and rows == self.rows:
            tokens, seconds = sum(len(emission.tokens) for emission in record.emitted), self.costs.seconds(work)
            self.speed.add(tokens, seconds)
            if self.phase in (Phase.DRAFTING, Phase.RESTING) and not any(tree.is_seeded for tree in record.trees):
                plain_tokens = rows * seconds / self.costs.plain
                self.speed.add_gain(tokens, plain_tokens, plain_tokens - rows if self.kind == "lookup" else 0.0)
        return forecast

    def forecast(self, record: "StepRecord", work: Work) -> StepForecast | None:
        """The tokens and seconds that were to be expected of the trees that were drawn."""
        if self.costs is None or self.timed_tree is not None or len(record.trees) != self.rows:
            return None
        tokens = float(sum(record.scored))
        for tree, scored in zip(record.trees, record.scored, strict=True) if work.nodes else ():
            tokens += sum(self.reach(tree, node) for node in range(1, len(tree)) if scored)
        return StepForecast(tokens, self.costs.seconds(work))

    def follow_temperature(self, record: "StepRecord") -> None:
        """Where no row has the temperature of before, start from what is known of acceptance at most rows' own."""
        if (exact := {row.sampling.temperature for row in record.targets.rows}) == self.temperatures:
            return
        self.temperatures, temperatures = exact, temperatures_of(record)
        if self.temperature not in temperatures and temperatures:
            ((self.temperature, _),) = Counter(temperatures).most_common(1)
            self.prior, self.learnt_rates = self.profile.rates(self.temperature), None
            self.recent = AcceptanceTracker()  # of steps at another temperature

    def finish(self, advise: bool = True) -> None:
        """Write the profile; if drafts have not paid, warn once and say how to do without."""
        self.timing.save()
        mostly_plain = self.steps >= MIN_STEPS_TO_ADVISE and self.steps_without_drafts > self.steps / 2
        rests = self.kind != "lookup" and self.phase is not Phase.DRAFTING  # look-ups that rest cost nothing
        advise &= rests and mostly_plain and not self.timing.is_busy
        if advise and self.costs and self.profile.timed_rows:
            plain_tokens = self.rows * self.speed.seconds / self.costs.seconds(NO_WORK)
            if self.speed.tokens <= (1 + MARGIN) * plain_tokens:
                say_once(NO_DRAFTS_ADVICE)


def can_choose(scheme: Scheme) -> bool:
    """Whether a scheme takes any number of drafts, and is fast on large vocabularies."""
    law = scheme.law
    return not (law.per_draft_distributions or law.fixed_drafts or law.draft_probability < 1 or scheme.entry.small)


def auto(
    pair: MeasuredPair,
    temperature: float | int,
    limits: TreeLimits | None = None,
    file: Path | None = None,
    budget: float | int = 0.0,
) -> Auto:
    """The policy of `tree="auto"`; with a plan's file nothing is measured."""
    profile, paths = profile_for(pair, file), paths_of(pair.target, pair.draft)
    return Auto(profile, temperature, limits, 0.0 if file else budget, pair.draft.cost, paths)
