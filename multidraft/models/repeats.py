"""Where the end of a text has occurred before in it: a suffix automaton that grows with the text, token by token."""

from typing import NamedTuple

NOWHERE = -1
MAX_LINKS = 32  # from a run to its shorter ends, in a row: a text of one token again and again has one for each token


class Match(NamedTuple):
    """The longest run that ends some text and occurs in the one that was read."""

    state: int
    length: int


class SuffixAutomaton:
    """All runs of tokens of a text, in at most two states a token (Blumer and others, 1985).

    A state stands for runs that end at the same places: `length` of the longest, and `shorter` leads to the state of
    the longest of its ends that also occurs elsewhere. `place_after` is that after the latest occurrence; of a text
    that repeats one token again and again, short runs miss the latest ones. State 0 is the empty run.

        text  7 1 2 8 1 2      the longest run that ends it and occurred before is 1 2, and what followed is 8
    """

    def __init__(self) -> None:
        self.text: list[int] = []
        self.following: list[dict[int, int]] = [{}]  # by state and token: the state of runs that go on with it
        self.length, self.shorter, self.place_after = [0], [NOWHERE], [NOWHERE]
        self.whole = 0  # the state of the text itself

    def add(self, token: int) -> None:
        """Read a token behind the text."""
        place, new = len(self.text), self.new_state(self.length[self.whole] + 1, {}, 0, NOWHERE)
        self.note_place(place)
        self.text.append(token)
        state = self.whole
        while state != NOWHERE and token not in self.following[state]:
            self.following[state][token] = new
            state = self.shorter[state]
        if state != NOWHERE:
            self.shorter[new] = self.state_of_run(state, token)
        self.whole = new

    def new_state(self, length: int, following: dict[int, int], shorter: int, place_after: int) -> int:
        """Add a state."""
        self.length.append(length)
        self.following.append(following)
        self.shorter.append(shorter)
        self.place_after.append(place_after)
        return len(self.length) - 1

    def note_place(self, place: int) -> None:
        """The token that comes at a place follows all runs that end the text before it."""
        state = self.whole
        for _ in range(MAX_LINKS):
            if state <= 0:
                break
            self.place_after[state] = place
            state = self.shorter[state]
        self.place_after[0] = place

    def state_of_run(self, state: int, token: int) -> int:
        """The state of a state's longest run with a token behind it, parted from longer runs that end elsewhere."""
        together = self.following[state][token]
        if self.length[together] == self.length[state] + 1:
            return together
        apart = self.new_state(
            self.length[state] + 1, dict(self.following[together]), self.shorter[together], self.place_after[together]
        )
        self.shorter[together] = apart
        while state != NOWHERE and self.following[state].get(token) == together:
            self.following[state][token] = apart
            state = self.shorter[state]
        return apart

    @property
    def num_read(self) -> int:
        """How many tokens were read."""
        return len(self.text)

    @property
    def end(self) -> Match:
        """The longest run that ends the text and has occurred before."""
        state = max(self.shorter[self.whole], 0)
        return Match(state, self.length[state])

    def match_after(self, match: Match, token: int) -> Match:
        """The longest run that ends another text, which goes on from a match with a token."""
        state, length = match
        while state and token not in self.following[state]:
            state = self.shorter[state]
            length = self.length[state]
        return Match(self.following[state][token], length + 1) if token in self.following[state] else Match(0, 0)

    def follower(self, match: Match, longest: int) -> tuple[int | None, int]:
        """The place after the latest occurrence of a match, cut to `longest` tokens, and the length of that run.

        What has only occurred at the very end was not followed yet: then the longest of its ends that was; None where
        the text is empty.
        """
        state, length = match
        for _ in range(MAX_LINKS):
            if not state or (self.place_after[state] != NOWHERE and self.length[self.shorter[state]] < longest):
                break
            state = self.shorter[state]
            length = self.length[state]
        place = self.place_after[state]
        return (None if place == NOWHERE else place), min(length, longest)
