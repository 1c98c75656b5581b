"""A record of everything that a generation draws and decides, with the random numbers that it used.

Records are plain dictionaries, for JSON. A "generation" says how its rows are decoded and gives their prompts; then
comes one "step" for every row and step; the "end" gives the tokens that were returned (docs/metrics.md). In a file each
is a line, complete as soon as it is written.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from multidraft.decoding.policy import TreePolicy
from multidraft.decoding.record import CoinFlip, StepRecord, Visit
from multidraft.decoding.state import DecodeConfig
from multidraft.io import journal
from multidraft.sampling.settings import Sampling

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

OnTraceRecord = Callable[[dict[str, Any]], None]
FORMAT_VERSION = 2


class TraceWriter:
    """Passes on what happens, in records."""

    def __init__(self, write: OnTraceRecord):
        self.write, self.steps = write, dict[int, int]()

    def begin(
        self, config: DecodeConfig, policy: TreePolicy, sampling: list[Sampling], prompts: list[list[int]]
    ) -> None:
        """Say what is going to happen."""
        self.steps = dict.fromkeys(range(len(prompts)), 0)
        described = describe(config, policy, sampling[0])
        self.write({"record": "generation", "first_row": 0} | described | {"prompts": prompts})

    def add(self, record: StepRecord, rows: list[int]) -> None:
        """One step of these rows."""
        for index, row in enumerate(rows):
            if index not in record.faults:
                self.write({"record": "step", "row": row, "step": self.steps[row]} | describe_step(record, index))
                self.steps[row] += 1

    def end(self, tokens: list[list[int]]) -> None:
        """Say what is returned: what the last step had to cut is missing from it."""
        self.write({"record": "end", "tokens": tokens})


def describe(config: DecodeConfig, policy: TreePolicy, sampling: Sampling) -> dict[str, Any]:
    """How rows are decoded; the settings are those of the first."""
    law, shape = config.scheme.law, policy.limits.shape
    settings = {name: getattr(law, name) for name in law.settings()} | dict(config.scheme.settings)
    return {
        "scheme": config.scheme.name,
        "settings": {name: json_value(value) for name, value in settings.items()},
        "tree": {"parents": list(shape.parents), "drafts": list(shape.drafts)} if shape else repr(policy),
        "walk": json_value(config.walk),
        "sampling": describe_sampling(sampling),
        "draft_sampling": describe_sampling(sampling.for_draft or sampling),
    }


def describe_sampling(sampling: Sampling) -> dict[str, Any]:
    """How logits become distributions; processors by their names."""
    processors = [
        processor for part in (sampling.before, sampling.after) if part is not None for processor in part.listed
    ]
    numbers = {name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p", "min_p")}
    return numbers | {"processors": list(dict.fromkeys(type(processor).__name__ for processor in processors))}


def json_value(value: object) -> object:
    """A value that JSON has; of a function, what it looks like."""
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def describe_step(record: StepRecord, index: int) -> dict[str, Any]:
    """One row's tree, its walk, and what it emits: the last token with its share of what it was drawn from."""
    emitted, walk_result = record.emitted[index], record.walk_results[index]
    weights = record.targets.last_weights(index, walk_result)
    cumulative, token = weights.cumsum(-1, dtype=torch.float64), emitted.tokens[-1]
    share = {"from": float(cumulative[token - 1]) if token > 0 else 0.0, "to": float(cumulative[token])}
    last = {"token": token, "kind": emitted.kinds[-1], "number": record.numbers[index]}
    return {
        "nodes": [describe_node(record, index, node) for node in range(len(record.trees[index]))],
        "walk": [describe_event(event) for event in record.events[index]],
        "path": walk_result.path,
        "last": last | share | {"of": float(cumulative[-1])},
    }


def describe_node(record: StepRecord, index: int, node: int) -> dict[str, Any]:
    """A node's token and the node above; what was drafted there, its probabilities, and the numbers that drew it."""
    tree = record.trees[index]
    described = {"node": node, "above": tree.parents[node], "token": tree.tokens[node]}
    if not tree.has_drafts(node):
        return described
    probs, places = tree.laws[node].probabilities, [place for place in tree.places[node] if place >= 0]
    lines = [probs if probs.ndim == 1 else probs[position % len(probs)] for position in range(len(places))]
    drafted = [token for token in tree.tuples[node] if token >= 0]
    target = record.targets.at([(index, node)])[0].probabilities
    return described | {
        "drafted": drafted,
        "draft": [float(line[place]) for line, place in zip(lines, places, strict=True)],
        "target": [float(target[token]) for token in drafted],
        "numbers": [tree.numbers[node]],
    }


def describe_event(event: Visit | CoinFlip) -> dict[str, Any]:
    """A verdict that the walk asked for, or a coin that it threw."""
    if isinstance(event, CoinFlip):
        return {"coin": float(event.probability), "number": event.number, "yes": event.yes}
    masses = [list(child) for child in event.verdict.children]
    verdict = {"accept_masses": masses, "residual_mass": event.verdict.residual_mass}
    return {"node": event.node, "weight": float(event.weight)} | verdict


class TraceFile:
    """A trace that is written as it comes. Every line brings the text of the tokens that are new in it."""

    def __init__(self, path: Path, tokenizer: "PreTrainedTokenizerBase", settings: dict[str, Any]):
        self.writer, self.tokenizer = journal.Writer(path), tokenizer
        self.known: set[int] = set()
        self.next_row = self.first_row = 0
        self.writer.write({"record": "trace", "format": FORMAT_VERSION} | settings)

    def __call__(self, record: dict[str, Any]) -> None:
        """One record; rows are counted on from one generation to the next."""
        if record["record"] == "generation":
            self.first_row, self.next_row = self.next_row, self.next_row + len(record["prompts"])
            record = record | {"first_row": self.first_row}
        elif "row" in record:
            record = record | {"row": self.first_row + record["row"]}
        new_tokens = sorted(tokens_in(record) - self.known)
        self.known |= set(new_tokens)
        self.writer.write(record | {"pieces": {token: self.piece(token) for token in new_tokens}})

    def piece(self, token: int) -> str:
        """A token's text, or its name where it is only part of a character."""
        text = str(self.tokenizer.decode([token]))
        return text if text.strip("\ufffd") else str(self.tokenizer.convert_ids_to_tokens(token))


def tokens_in(record: dict[str, Any]) -> set[int]:
    """Every token that a record names."""
    last = [[record["last"]["token"]]] if "last" in record else []
    lists = [*record.get("prompts", ()), *record.get("tokens", ()), *last]
    lists += [[node["token"], *node.get("drafted", ())] for node in record.get("nodes", ())]
    return {token for tokens in lists for token in tokens}
