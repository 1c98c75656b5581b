"""Log-probabilities of tokens, and of the most likely ones beside them: of what a step has emitted, and of prompts."""

from collections import defaultdict
from dataclasses import replace
from itertools import islice

from jaxtyping import Float, Int
from torch import Tensor

from multidraft.decoding.record import Logprob, StepRecord
from multidraft.transfer import download, upload


def add_logprobs(record: StepRecord) -> None:
    """Note those of the tokens that rows have emitted which ask for them, each from its node; all in one copy."""
    groups = defaultdict[int, list[int]](list)
    for row, running in enumerate(record.targets.rows):
        if running.num_logprobs is not None and row not in record.faults:
            groups[running.num_logprobs].append(row)
    parts = list[Tensor]()
    for top, rows in groups.items():
        nodes = [(row, node) for row in rows for node in (0, *record.walk_results[row].path)]
        logs = record.targets.log_lines(nodes)
        parts += likeliest_logs(logs, [token for row in rows for token in record.emitted[row].tokens], top)
    copies = iter(download(*parts))
    for rows in groups.values():
        logprobs = iter(logprobs_of(next(copies), next(copies), next(copies)))
        for row in rows:
            emitted = record.emitted[row]
            record.emitted[row] = replace(emitted, logprobs=list(islice(logprobs, len(emitted.tokens))))


def top_logprobs(logs: Float[Tensor, "tokens vocabulary"], tokens: list[int], top: int) -> list[Logprob]:
    """Every token's logarithm in its line, and the largest of the line."""
    return logprobs_of(*download(*likeliest_logs(logs, tokens, top)))


def likeliest_logs(
    logs: Float[Tensor, "tokens vocabulary"], tokens: list[int], top: int
) -> tuple[Float[Tensor, " tokens"], Int[Tensor, "tokens top"], Float[Tensor, "tokens top"]]:
    """Every token's logarithm in its line, and the ids and values of the largest, where the lines are."""
    best = logs.topk(min(top, logs.shape[-1]), -1)
    return logs.gather(-1, upload(tokens, logs.device)[:, None])[:, 0], best.indices, best.values


def logprobs_of(
    chosen: Float[Tensor, " tokens"], ids: Int[Tensor, "tokens top"], values: Float[Tensor, "tokens top"]
) -> list[Logprob]:
    """The numbers as users get them."""
    pairs = [tuple(zip(*pair, strict=True)) for pair in zip(ids.tolist(), values.tolist(), strict=True)]
    return [Logprob(*pair) for pair in zip(chosen.tolist(), pairs, strict=True)]
