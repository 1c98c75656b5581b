"""Where the end of a text has occurred before, in it or in a corpus, and what therefore may follow, token by token."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from multidraft.models.corpus import SEARCHED, SEPARATOR, Corpus

NOWHERE = -1
GUESS_WEIGHT = 0.01  # of a guess without any match
MAX_CERTAINTY = 0.998  # of a guess
LONG_MATCH, MAX_AWAY = 4, 8  # tokens: after which a copy that is left may go on; in which it has to
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


class CopiedPlace(NamedTuple):
    """A place in a corpus behind the longest run that ends a text, that run's length, and the token that follows."""

    source: Corpus
    at: int
    length: int
    token: int


class Resumption(NamedTuple):
    """Where a text that copied an earlier place, and has left it, would go on if the token there was replaced."""

    source: "SuffixAutomaton | Corpus"
    at: int  # of the token that would come next
    right: int = 0  # tokens that came from there since
    away: int = 1  # tokens since the copy was left

    @property
    def token(self) -> int:
        """The token that would come next; SEPARATOR behind the end of the source."""
        text = self.source.text
        return text[self.at] if self.at < len(text) else SEPARATOR

    def after(self, token: int) -> "Resumption | None":
        """The same behind one more token; None once that is as good as a match, or the text has gone too far."""
        source, at, right, away = self
        if self.token == token:
            return None if right + 1 == LONG_MATCH else Resumption(source, at + 1, right + 1, away)
        if right:
            return Resumption(source, at + 1)
        return None if away == MAX_AWAY else Resumption(source, at, 0, away + 1)


class Situation(NamedTuple):
    """What the end of a text tells of the token that follows."""

    match: Match
    place: int | None = None  # after the latest occurrence of the match, cut to the longest run that is looked up
    length: int = 0  # of that run
    elsewhere: CopiedPlace | None = None  # of the longest run that occurs in a corpus
    was_right: bool = False  # whether the last token was guessed by the longest match
    resumption: Resumption | None = None


class Guess(NamedTuple):
    """A token that may follow, and what it is that tells how likely."""

    token: int
    kind: tuple[str, int, int]  # guesses of one kind are about as often right
    length: int  # of the run that brings it


class Matches(SuffixAutomaton):
    """Guesses at what follows a text, and how often guesses of their kind were right in it.

    A guess is what followed the latest occurrence of the longest run that occurred before, of up to `longest` tokens,
    and of a longer one in a corpus; where a long match has just failed, also what would follow there if one token was
    replaced by another, or by a few.
    """

    looks_back = 0  # tokens before a new one that have to be given again

    def __init__(self, longest: int, corpora: Sequence[Corpus] = ()):
        super().__init__()
        self.longest, self.corpora, self.now = longest, corpora, Situation(Match(0, 0))
        self.guesses_now = list[Guess]()
        self.ahead: dict[tuple[int, ...], Situation] = {}  # by tokens that the text may go on with
        self.tallies: dict[tuple[str, int, int], tuple[int, int]] = {}  # hits and trials, by kind

    def read(self, text: Sequence[int], start: int = 0) -> None:
        """Go on to the end of a text, given from `start` on, of which the beginning has been read."""
        self.ahead.clear()
        for token in text[len(self.text) - start :]:
            for guess in self.guesses_now:
                hits, trials = self.tallies.get(guess.kind, (0, 0))
                self.tallies[guess.kind] = hits + (guess.token == token), trials + 1
            was_right, resumption = self.outcome(self.now, token)
            elsewhere = self.elsewhere_after(self.now, (token,))
            self.add(token)
            match = self.end
            self.now = Situation(match, *self.follower(match, self.longest), elsewhere, was_right, resumption)
            self.guesses_now = list(self.guesses(self.now))

    def after(self, situation: Situation, path: tuple[int, ...]) -> Situation:
        """The situation behind a path, from that before its last token; the text only may go on with it."""
        match = self.match_after(situation.match, path[-1])
        elsewhere, outcome = self.elsewhere_after(situation, path), self.outcome(situation, path[-1])
        return Situation(match, *self.follower(match, self.longest), elsewhere, *outcome)

    def outcome(self, situation: Situation, token: int) -> tuple[bool, Resumption | None]:
        """Whether the longest run has been right if this token came, and where the text would go on if not."""
        _, at, length, elsewhere, _, resumption = situation
        source: SuffixAutomaton | Corpus = self
        if elsewhere is not None and elsewhere.length > length:
            source, at, length, _ = elsewhere
        was_right = at is not None and source.text[at] == token
        resumption = resumption and resumption.after(token)
        if resumption is None and at is not None and not was_right and length >= LONG_MATCH:
            resumption = Resumption(source, at + 1)
        return was_right, resumption

    def elsewhere_after(self, situation: Situation, path: tuple[int, ...]) -> CopiedPlace | None:
        """The place in a corpus behind a path, from the situation before its last token."""
        if not self.corpora:
            return None
        return self.place_elsewhere(situation.elsewhere, self.match_after(situation.match, path[-1]).length, path)

    def place_elsewhere(self, before: CopiedPlace | None, length: int, path: tuple[int, ...]) -> CopiedPlace | None:
        """The place behind the longest run in a corpus: a long one that goes on, or one that is searched for.

        No run is longer than the one before by more than a token. Where the text has a long one itself, none is needed.
        """
        if before is not None and before.length >= LONG_MATCH and before.token == path[-1]:
            if (following := before.source.text[before.at + 1]) != SEPARATOR:
                return CopiedPlace(before.source, before.at + 1, min(before.length + 1, self.longest), following)
        searched = min(self.longest, SEARCHED)
        if length >= searched:
            return None
        end = [*self.text[-searched:], *path][-searched:]
        return max((CopiedPlace(corpus, *corpus.find(end)) for corpus in self.corpora), key=lambda place: place.length)

    def situation(self, path: tuple[int, ...]) -> Situation:
        """The situation if the text goes on with a path; a tree's nodes are asked for one below another."""
        known = next(count for count in range(len(path), -1, -1) if not count or path[:count] in self.ahead)
        situation = self.ahead[path[:known]] if known else self.now
        for count in range(known, len(path)):
            situation = self.ahead[path[: count + 1]] = self.after(situation, path[: count + 1])
        return situation

    def guesses(self, situation: Situation) -> Iterator[Guess]:
        """What may follow: by the match, by a longer one in a corpus, and by the resumption."""
        _, at, length, elsewhere, was_right, resumption = situation
        if at is not None:
            yield Guess(self.text[at], ("match", size_class(length), was_right), length)
        if elsewhere is not None and elsewhere.length > length:
            yield Guess(elsewhere.token, ("corpus", size_class(elsewhere.length), was_right), elsewhere.length)
        if resumption is not None and (token := resumption.token) != SEPARATOR:
            _, _, right, away = resumption
            yield Guess(token, ("resumption", right, size_class(away)), 1 + 2 * right)

    def certainty(self, guess: Guess) -> float:
        """How likely a guess is right: (hits + 2 m) / (trials + 2) among those of its kind.

        m = length^1.5 / (length^1.5 + 4) is a guess in advance, as in chats. At most 0.998: what sums to one is whole.
        """
        hits, trials = self.tallies.get(guess.kind, (0, 0))
        in_advance = max(guess.length**1.5, GUESS_WEIGHT) / (guess.length**1.5 + 4)
        return min((hits + 2 * in_advance) / (trials + 2), MAX_CERTAINTY)

    def next_token(self, path: Sequence[int]) -> tuple[int, float] | None:
        """The token that most likely follows if the text goes on with a path, and how likely; None for no text."""
        guesses = self.guesses(self.situation(tuple(path))) if path else self.guesses_now
        likely = [(guess.token, self.certainty(guess)) for guess in guesses]
        return max(likely, key=lambda pair: pair[1], default=None)


def size_class(length: int) -> int:
    """The class of a run's length: of up to 3 tokens each its own, then 4 to 7, 8 to 15, and so on."""
    return length if length < 4 else 1 + length.bit_length()
