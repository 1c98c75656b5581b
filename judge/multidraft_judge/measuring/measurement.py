"""`measure`: ask a server, and perhaps the same model without drafts, by turns, and say what their chunks show."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from multidraft_judge.asking.client import Client
from multidraft_judge.defaults import MAX_TOKENS, TIMEOUT_SECONDS
from multidraft_judge.errors import AdviceError, check_integer, check_number, check_text
from multidraft_judge.journal import Journal, Record, folder_of
from multidraft_judge.measuring.chunks import Answer, Chunk
from multidraft_judge.measuring.rows import DRAFTS, PLAIN, Key, Measurement, notes_on, rows_of
from multidraft_judge.measuring.server import Server
from multidraft_judge.prompts import Prompt, default_prompts, digest

TEMPERATURES = (0.0, 1.0)
MAX_TEMPERATURE = 100
JOURNAL = "measured.jsonl"


def measure(
    url: str,
    model: str | None = None,
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
    all_prompts = default_prompts() if prompts is None else prompts
    asked = [prompt if isinstance(prompt, Prompt) else Prompt(prompt) for prompt in all_prompts]
    check(asked, temperatures, max_tokens)
    urls = {DRAFTS: url} | ({} if plain is None else {PLAIN: plain})
    servers = {
        name: Server(Client(address, model, 1, float(timeout), api_key, transport), max_tokens, clock)
        for name, address in urls.items()
    }
    addresses, model = {name: server.client.url for name, server in servers.items()}, servers[DRAFTS].client.model
    facts = {"measure": 1, "model": model, "max_tokens": max_tokens, "prompts": digest([p.text for p in asked])}
    keys = [(name, float(t), index) for t in temperatures for index in range(len(asked)) for name in servers]
    records = ask_for(keys, servers, asked, folder_of(out), facts | addresses, progress)
    answers = {key: Answer([Chunk(*chunk) for chunk in record["chunks"]]) for key, record in records.items()}
    rows = rows_of(answers, asked, [float(t) for t in temperatures], max_tokens, addresses[DRAFTS])
    ways = {name: records[name, float(temperatures[0]), 0]["counted_by"] for name in servers}
    return Measurement(addresses[DRAFTS], addresses.get(PLAIN), model, max_tokens, ways, rows, notes_on(rows))


def ask_for(
    keys: Sequence[Key],
    servers: dict[str, Server],
    prompts: Sequence[Prompt],
    folder: Path | None,
    header: Record,
    progress: Callable[[int], object] | None,
) -> dict[Key, Record]:
    """The record of each answer; those that the folder does not have are asked for, one after another."""
    journal = None if folder is None else Journal(folder / JOURNAL, header)
    kept = journal.records if journal else []
    known: dict[Key, Record] = {(record["server"], record["temperature"], record["prompt"]): record for record in kept}
    for done, key in enumerate(keys, 1):
        name, temperature, index = key
        if key not in known:
            answer, way = servers[name].answer(prompts[index].text, temperature)
            chunks = [list(chunk) for chunk in answer.chunks]
            facts = {"server": name, "temperature": temperature, "prompt": index, "counted_by": way}
            known[key] = facts | {"chunks": chunks, "text": answer.text}
            if journal:
                journal.append(known[key])
        if progress is not None:
            progress(done)
    return {key: known[key] for key in keys}


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
