"""What was measured, as rows by temperature and task, and what has to be said of them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from multidraft_judge.errors import AdviceError
from multidraft_judge.measuring.chunks import Answer
from multidraft_judge.measuring.estimates import Estimate, geometric_mean, mean_of_ratios, pooled_ratio
from multidraft_judge.prompts import Prompt

DRAFTS, PLAIN = "drafts", "plain"
Key = tuple[str, float, int]  # the server, the temperature, the prompt's index
HEADS = (
    *("T", "task", "prompts", "tokens / chunks", "tokens a chunk, pooled", "mean of prompts' ratios"),
    "tokens a second",
)
NO_DRAFTS_SEEN = (
    "every chunk has one token: nothing is accepted, or the server sends the tokens of a step one by one or holds "
    "them back, which looks the same from outside"
)
PLAIN_IN_CHUNKS = "the plain server's chunks have several tokens, so chunks are not steps there, and perhaps not here"


@dataclass(frozen=True)
class Row:
    """What was measured at one temperature, for one task or for all."""

    temperature: float
    task: str | None  # None for all
    prompts: int
    tokens: int  # in chunks that count
    chunks: int
    pooled: Estimate  # tokens of all prompts / chunks of all prompts
    mean_of_ratios: Estimate  # over prompts
    tokens_per_second: Estimate | None  # geometric mean over prompts
    times_plain: Estimate | None  # geometric mean of prompts' ratios
    plain_pooled: Estimate | None  # of the plain server: 1 where a chunk is a step


@dataclass(frozen=True)
class Measurement:
    """Tokens a chunk by temperature and task, and the speed beside plain decoding."""

    subject: str
    plain: str | None
    model: str
    max_tokens: int
    counted_by: dict[str, str]  # by server
    rows: list[Row]
    notes: list[str]

    def as_json(self) -> dict[str, Any]:
        """All of it, for `--json`."""
        return asdict(self) | {"interval": "95 %, jackknife over prompts with Student's t"}

    @property
    def heads(self) -> list[str]:
        """What the columns of the table hold."""
        return [*HEADS, *((["times plain", "plain: tokens a chunk"]) if self.plain else [])]

    def cells(self) -> list[list[str]]:
        """The table for people."""
        return [self.cells_of(row) for row in self.rows]

    def cells_of(self, row: Row) -> list[str]:
        """The line of a row."""
        numbers = [row.tokens_per_second, *([row.times_plain, row.plain_pooled] if self.plain else [])]
        return [
            f"{row.temperature:g}",
            row.task or "all",
            f"{row.prompts:,}",
            f"{row.tokens:,} / {row.chunks:,}",
            str(row.pooled),
            str(row.mean_of_ratios),
            *("" if number is None else str(number) for number in numbers),
        ]


def rows_of(
    answers: dict[Key, Answer], prompts: Sequence[Prompt], temperatures: Sequence[float], max_tokens: int, url: str
) -> list[Row]:
    """The rows at each temperature: all prompts, then each task if there are several."""
    largest = {
        name: max((answer.largest for key, answer in answers.items() if key[0] == name), default=0)
        for name in (DRAFTS, PLAIN)
    }
    tasks = list(dict.fromkeys(prompt.task for prompt in prompts if prompt.task is not None))
    rows = list[Row]()
    for temperature in temperatures:
        for task in [None, *(tasks if len(tasks) > 1 else [])]:
            chosen = [i for i, prompt in enumerate(prompts) if task in (None, prompt.task)]
            drafts, plain = (
                {i: answers[name, temperature, i] for i in chosen if (name, temperature, i) in answers}
                for name in (DRAFTS, PLAIN)
            )
            pairs = counts(drafts, max_tokens, largest[DRAFTS])
            if pairs:
                plain_pairs = counts(plain, max_tokens, largest[PLAIN])
                rows.append(row_of(temperature, task, pairs, plain_pairs, drafts, plain))
    if not rows:
        raise AdviceError(
            f"no answer of {url} has a whole chunk after the first one; give longer prompts or a larger --max-tokens, "
            "or a server that streams"
        )
    return rows


def counts(answers: dict[int, Answer], max_tokens: int, largest: int) -> list[tuple[float, float]]:
    """Tokens and chunks of each answer, as far as they count."""
    whole = [answer.whole_chunks(max_tokens, largest) for answer in answers.values()]
    return [(float(sum(chunk.tokens for chunk in chunks)), float(len(chunks))) for chunks in whole if chunks]


def row_of(
    temperature: float,
    task: str | None,
    pairs: list[tuple[float, float]],
    plain_pairs: list[tuple[float, float]],
    drafts: dict[int, Answer],
    plain: dict[int, Answer],
) -> Row:
    """The row of these answers."""
    speeds = {i: speed for i, answer in drafts.items() if (speed := answer.tokens_per_second) is not None}
    plain_speeds = {i: speed for i, answer in plain.items() if (speed := answer.tokens_per_second) is not None}
    ratios = [speed / plain_speeds[i] for i, speed in speeds.items() if i in plain_speeds]
    return Row(
        temperature,
        task,
        len(pairs),
        int(sum(tokens for tokens, _ in pairs)),
        int(sum(chunks for _, chunks in pairs)),
        pooled_ratio(pairs),
        mean_of_ratios(pairs),
        geometric_mean(list(speeds.values())) if speeds else None,
        geometric_mean(ratios) if ratios else None,
        pooled_ratio(plain_pairs) if plain_pairs else None,
    )


def notes_on(rows: Sequence[Row]) -> list[str]:
    """What has to be said of the rows so that nobody reads too much out of them."""
    notes = [NO_DRAFTS_SEEN] if all(row.tokens == row.chunks for row in rows) else []
    is_plain_in_chunks = any(row.plain_pooled is not None and row.plain_pooled.value > 1 for row in rows)
    return notes + ([PLAIN_IN_CHUNKS] if is_plain_in_chunks else [])
