"""The phases of `tree="auto"`: what leads from one to another, and when a draft model that rests is probed."""

import math
from collections import defaultdict
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multidraft.decoding.record import StepRecord

PROBE_STEPS = 2  # a draft model that does not pay is asked again
MAX_TREES_WHILE_RIGHT = 14  # by which a probe may become longer, while drafts are right; each row's counts
FIRST_PAUSE, MAX_PAUSE = 32, 512  # steps between two probes of one row; many rest for longer
REST_PER_PROBE = 100.0  # times what the last probe took, for each doubling of rows: the more, the less there is to gain
MAX_PROBE = 16.0  # plain steps that count of a probe, which may have waited for something else
FIRST_PROBE = 2.0  # plain steps, times the square root of the number of rows: what a probe is taken to take


class Phase(Enum):
    """What the draft model does in a step."""

    TIMING = "it drafts the first tree, or nothing, and is timed: no costs are known yet"
    DRAFTING = "it is asked, because that is expected to pay"
    RESTING = "it is not asked, because that does not pay; where drafts have lost, nor are look-ups"
    PROBING = "it is asked for a few steps, to see whether it pays now"


class Event(Enum):
    """What is found before a step."""

    UNKNOWN = "no costs are known"
    PAYS = "the draft model is expected to gain more than it costs"
    FAILS = "it is not"
    LOSES = "with drafts the last steps have made fewer tokens a second than without"
    OVER = "the last of a rest's or probe's steps is over, the draft model still does not pay, and it might"


TRANSITIONS = {  # where none is named, a phase goes on
    (Phase.TIMING, Event.PAYS): Phase.DRAFTING,
    (Phase.TIMING, Event.FAILS): Phase.RESTING,
    (Phase.DRAFTING, Event.FAILS): Phase.RESTING,
    (Phase.DRAFTING, Event.LOSES): Phase.RESTING,
    (Phase.DRAFTING, Event.UNKNOWN): Phase.TIMING,
    (Phase.RESTING, Event.PAYS): Phase.DRAFTING,
    (Phase.RESTING, Event.OVER): Phase.PROBING,
    (Phase.RESTING, Event.LOSES): Phase.RESTING,  # by look-ups
    (Phase.RESTING, Event.UNKNOWN): Phase.TIMING,
    (Phase.PROBING, Event.PAYS): Phase.DRAFTING,
    (Phase.PROBING, Event.OVER): Phase.RESTING,  # for a longer pause
    (Phase.PROBING, Event.LOSES): Phase.RESTING,  # of fewer rows, which may have lost less before
    (Phase.PROBING, Event.UNKNOWN): Phase.TIMING,
}


class Probes:
    """When drafts that do not pay are probed, and for how long: until they pay, each rest is longer than the last."""

    def __init__(self) -> None:
        self.pauses = defaultdict[int, int](lambda: FIRST_PAUSE)  # of the next rest, by the bits of the number of rows
        self.plain_steps = dict[int, float]()  # by the same: that the last probe took time for
        self.plain_steps_now = 0.0  # the same of the probe that goes on
        self.rested = self.steps_left = 0  # steps since a rest began; of a probe
        self.trees_while_right = 0  # by which a probe may still become longer

    def rest_steps(self, rows: int) -> float | int:
        """How long so many rows rest: many for longer, whose drafts gain less, and whose models catch up first."""
        size, doublings = rows.bit_length(), math.log2(rows)
        pause = min(self.pauses[size] * (1 + doublings), MAX_PAUSE)
        return max(pause, REST_PER_PROBE * doublings * self.plain_steps.get(size, FIRST_PROBE * math.sqrt(rows)))

    def count_step(self) -> None:
        """A step goes by."""
        self.rested, self.steps_left = self.rested + 1, self.steps_left - 1

    def begin(self, rows: int) -> None:
        """A probe of so many rows begins; the next pause will be longer."""
        self.steps_left, self.trees_while_right, self.plain_steps_now = PROBE_STEPS - 1, MAX_TREES_WHILE_RIGHT, 0.0
        self.pauses[rows.bit_length()] = min(2 * self.pauses[rows.bit_length()], MAX_PAUSE)

    def note_time(self, rows: int) -> None:
        """A probe of so many rows, whose steps were timed, is over."""
        self.plain_steps[rows.bit_length()] = min(self.plain_steps_now, MAX_PROBE)

    def shorten_pause(self, rows: int) -> None:
        """The draft model pays; it has to go on with that before pauses are as short as at first."""
        self.pauses[rows.bit_length()] = max(self.pauses[rows.bit_length()] // 2, FIRST_PAUSE)

    def extend(self, record: "StepRecord") -> None:
        """A step that catches up does not count; and while most rows' drafts are right, a probe goes on for a while."""
        drafting = [emission for emission, tree in zip(record.emitted, record.trees, strict=True) if tree.laws]
        num_right = sum(len(emission.tokens) > 1 for emission in drafting)
        if record.is_catching_up:
            self.steps_left += 1
        elif 2 * num_right > len(drafting) and self.trees_while_right > 0:
            self.steps_left, self.trees_while_right = self.steps_left + 1, self.trees_while_right - len(drafting)
