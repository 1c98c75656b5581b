"""`measure`: ask a server, and perhaps the same model without drafts, by turns, and say what their chunks show."""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from multidraft_judge.asking.client import Client
from multidraft_judge.defaults import MAX_TOKENS, TIMEOUT_SECONDS
from multidraft_judge.errors import AdviceError, check_integer, check_number, check_text
from multidraft_judge.journal import Journal, folder_of
from multidraft_judge.measuring.chunks import Answer, Chunk, Way, answer_of, ways_of
from multidraft_judge.measuring.estimates import Estimate, geometric_mean, mean_of_ratios, pooled_ratio
from multidraft_judge.prompts import Prompt, default_prompts, digest

TEMPERATURES = (0.0, 1.0)
MAX_TEMPERATURE = 100
JOURNAL = "measured.jsonl"
DRAFTS, PLAIN = "drafts", "plain"
NO_DRAFTS_SEEN = (
    "every chunk has one token: nothing is accepted, or the server sends the tokens of a step one by one or holds "
    "them back, which looks the same from outside"
)
HEADS = (
    *("T", "task", "prompts", "tokens / chunks", "tokens a chunk, pooled", "mean of prompts' ratios"),
    "tokens a second",
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


def measure(
    url: str,
    model: str,
    *,
    plain: str | None = None,
    prompts: Sequence[str | Prompt] | None = None,
    temperatures: Sequence[float] = TEMPERATURES,
    max_tokens: int = MAX_TOKENS,
    timeout: float = TIMEOUT_SECONDS,
    api_key: str | None = None,
    out: str | Path | None = None,
    progress: Callable[[int], object] | None = None,
    transport: Any = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Measurement:
    """Tokens a chunk of a server's streams, and how many times as fast as the server `plain` it writes them.

    Requests are alone, one after another, the two servers by turns. `prompts` are texts, or `Prompt`s with tasks.
    Answers are kept in the folder `out`; what is there is not asked again. `progress` gets the number of answers.
    Raises AdviceError if a server does not say how many tokens its chunks have.
    """
    asked = [prompt if isinstance(prompt, Prompt) else Prompt(prompt) for prompt in prompts or default_prompts()]
    check(asked, temperatures, max_tokens)
    connect = partial(Client, timeout=float(timeout), api_key=api_key, transport=transport)
    clients = {DRAFTS: connect(url, model)} | ({} if plain is None else {PLAIN: connect(plain, model)})
    header = {"measure": 1, "model": model, "max_tokens": max_tokens, "prompts": digest([p.text for p in asked])}
    header |= {name: client.url for name, client in clients.items()}
    folder = folder_of(out)
    journal = None if folder is None else Journal(folder / JOURNAL, header)
    known = {key_of(record): record for record in (journal.records if journal else [])}
    servers = {name: Server(client, max_tokens, clock) for name, client in clients.items()}
    for done, (temperature, index, name) in enumerate(
        [(t, i, name) for t in temperatures for i in range(len(asked)) for name in servers], 1
    ):
        key = (name, float(temperature), index)
        if key not in known:
            answer, way = servers[name].answer(asked[index].text, float(temperature))
            chunks = [list(chunk) for chunk in answer.chunks]
            record = {"server": name, "temperature": float(temperature), "prompt": index, "counted_by": way}
            known[key] = record | {"chunks": chunks, "text": answer.text}
            if journal:
                journal.append(known[key])
        if progress is not None:
            progress(done)
    answers = {key: Answer([Chunk(*chunk) for chunk in record["chunks"]]) for key, record in known.items()}
    rows = rows_of(answers, asked, [float(t) for t in temperatures], max_tokens, clients[DRAFTS].url)
    ways = {name: known[name, float(temperatures[0]), 0]["counted_by"] for name in servers}
    plain_url = clients[PLAIN].url if plain is not None else None
    return Measurement(clients[DRAFTS].url, plain_url, model, max_tokens, ways, rows, notes_on(rows))


Key = tuple[str, float, int]  # the server, the temperature, the prompt's index


def key_of(record: dict[str, Any]) -> Key:
    """What a record of the journal answers."""
    return record["server"], record["temperature"], record["prompt"]


def check(prompts: Sequence[Prompt], temperatures: Sequence[float], max_tokens: int) -> None:
    """Raise AdviceError on a setting that is out of range."""
    if not prompts:
        raise AdviceError("there are no prompts; give at least one")
    for prompt in prompts:
        check_text(prompt.text, "a prompt")
    if not temperatures or len(set(temperatures)) < len(temperatures):
        raise AdviceError(f"temperatures are {list(temperatures)}; give at least one, each once")
    for temperature in temperatures:
        check_number(temperature, "temperature", 0, MAX_TEMPERATURE)
    check_integer(max_tokens, "max_tokens", 2)


class Server:
    """A server that is asked for streams; its first answer warms it up and shows how its tokens can be counted."""

    def __init__(self, client: Client, max_tokens: int, clock: Callable[[], float]):
        self.client, self.max_tokens, self.clock = client, max_tokens, clock
        self.way: Way | None = None

    def answer(self, prompt: str, temperature: float) -> tuple[Answer, str]:
        """An answer, and the way in which its tokens were counted."""
        if self.way is None:
            self.way = self.find_way(prompt)
        answer = self.ask(prompt, temperature, self.way)
        if answer is None:
            raise AdviceError(f"{self.client.url} has stopped saying how many tokens a chunk has; ask it again")
        return answer, self.way.name

    def find_way(self, prompt: str) -> Way:
        """The first way that counts the tokens of an answer."""
        ways = ways_of(self.client.dialect.name)
        for way in ways:
            try:
                if self.ask(prompt, 0.0, way) is not None:
                    return way
            except AdviceError:  # some servers refuse fields that they do not know
                if way is ways[-1]:
                    raise
        raise AdviceError(
            f"{self.client.url} does not say how many tokens a chunk has, neither by usage nor by log-probabilities; "
            "measure another server"
        )

    def ask(self, prompt: str, temperature: float, way: Way) -> Answer | None:
        """One streamed answer, which may end by itself; None if the way cannot count its tokens."""
        fields = {name: value for name, value in self.client.dialect.fields.items() if name != "ignore_eos"}
        body = {"model": self.client.model, "prompt": prompt, "max_tokens": self.max_tokens}
        body |= fields | {"temperature": temperature} | way.fields
        with closing(self.client.events(body)) as events:  # type: ignore[type-var]
            return answer_of(((self.clock(), event) for event in events), way)


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
