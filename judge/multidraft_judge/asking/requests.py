"""Which requests are made: alone and side by side, streamed and whole, short and long, cancelled, with seeds."""

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from multidraft_judge.asking.client import Client
from multidraft_judge.asking.functions import Function
from multidraft_judge.evidence.laws import Settings
from multidraft_judge.evidence.observation import Ask, Completion
from multidraft_judge.journal import Journal

WIDTHS = (1, 4, 16)  # requests at once, in turn
ROUNDS_OF_WIDTH = (4, 2, 1)  # waves of each width in turn, so that each has some part in the tokens
WHOLE_EVERY = 4  # of so many requests one is not streamed, and says nothing of chunks
SEED_EVERY = 3  # one in so many has a seed
LONG_EVERY, LONG_PROMPTS = 4, 3  # one prompt in so many is made of several
CANCEL_EVERY, CANCEL_AFTER = 5, 3  # beside others, one in so many is cancelled after some events
GREEDY_EVERY = 8  # one wave in so many is at temperature 0
FORMED_EVERY, FORMED_AT = 4, 2  # the second of so many waves asks for a form, if forms are asked for; none is greedy
JOURNAL = "asked.jsonl"


Subject = Client | Function


def waves(prompts: Sequence[str], temperature: float, max_tokens: int, with_forms: bool = False) -> Iterator[list[Ask]]:
    """Requests that run at once, wave after wave without an end; the same whenever they are asked for."""
    widths = [width for width, rounds in zip(WIDTHS, ROUNDS_OF_WIDTH, strict=True) for _ in range(rounds)]
    index = 0
    for number, width in enumerate(itertools.cycle(widths), 1):
        asked_temperature = temperature if number % GREEDY_EVERY else 0.0
        wave = [ask_of(prompts, i, max_tokens, asked_temperature, width) for i in range(index, index + width)]
        cancelled = {ask.index for ask in wave if ask.cancel_after is not None}
        formed = with_forms and number % FORMED_EVERY == FORMED_AT
        yield [
            replace(ask, client=client, beside_cancelled=bool(cancelled - {ask.index}), formed=formed)
            for client, ask in enumerate(wave)
        ]
        index += width


def ask_of(prompts: Sequence[str], index: int, max_tokens: int, temperature: float, width: int) -> Ask:
    """One request of a wave of this width."""
    pieces = LONG_PROMPTS if index % LONG_EVERY == LONG_EVERY - 1 else 1
    prompt = "\n".join(prompts[(index + piece) % len(prompts)] for piece in range(pieces))
    streamed = index % WHOLE_EVERY != 1
    return Ask(
        index,
        prompt,
        max_tokens,
        temperature,
        streamed,
        seed=index if index % SEED_EVERY == 0 else None,
        beside=width,
        cancel_after=CANCEL_AFTER if width > 1 and streamed and index % CANCEL_EVERY == 0 else None,
        reused=index >= len(prompts),
    )


class Asking:
    """Asks a subject, and keeps the answers in a folder if there is one: what was asked is not asked again."""

    def __init__(self, subject: Subject, settings: Settings, folder: Path | None, header: dict[str, Any]):
        self.subject, self.settings = subject, settings
        self.journal = None if folder is None else Journal(folder / JOURNAL, header)
        records = self.journal.records if self.journal else []
        self.known = {record["ask"]: record for record in records}

    def answer(self, wave: list[Ask]) -> list[Completion]:
        """The answers to a wave, in its order; those that are not known are asked for at once."""
        unknown = [ask for ask in wave if ask.index not in self.known]
        answers = dict[int, Completion]()
        if unknown:
            with ThreadPoolExecutor(len(unknown)) as pool:
                new = list(pool.map(lambda ask: self.subject.complete(ask, self.settings), unknown))
            answers = {completion.ask.index: completion for completion in new}
            if self.journal:
                for completion in new:
                    self.journal.append(completion.as_json())
        return [
            answers[ask.index] if ask.index in answers else Completion.from_json(ask, self.known[ask.index])
            for ask in wave
        ]
