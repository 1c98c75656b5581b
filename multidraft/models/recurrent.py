"""Trees as their paths: right for every causal model that transformers decodes in batches, whatever it remembers.

A recurrent state cannot be masked, and some models see positions in ways of their own. Here a tree is read level by
level: the nodes of a level are rows of a batch, each of which begins from a copy of what the model remembered behind
its parent. What it remembers behind each node stays until the walk has chosen. A level takes a pass, and memory for the
whole of each node's past; rows of a decoding batch share passes while their sequences are equally long.
"""

from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from multidraft.models import base, compat
from multidraft.models.base import Scored
from multidraft.models.passes import packed

State = tuple[Any, int]  # what a model remembered after a pass (None: it had read nothing), and a row of that pass
ROOT = -1  # the node that all kept tokens end in


@dataclass
class Row:
    """One sequence: its kept tokens, its pending tree, and the states that are held, by node."""

    text: list[int] = field(default_factory=list)
    states: dict[int, State] = field(default_factory=lambda: {ROOT: (None, 0)})
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)

    def path(self, node: int) -> list[int]:
        """The pending nodes that lead to one, its own included."""
        path = list[int]()
        while node != ROOT:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    def beyond(self, node: int) -> list[int]:
        """The end of the path to a node: what stands behind the last state that is held."""
        path = self.path(node)
        return path[max((place for place, node in enumerate(path, 1) if node in self.states), default=0) :]

    def spelled(self, nodes: list[int]) -> list[int]:
        """Their tokens."""
        return [self.tokens[node] for node in nodes]


class Reading(NamedTuple):
    """Some tokens that follow each other in a row, and what they follow."""

    row: int
    node: int  # the last one
    tokens: list[int]
    first: int  # position
    memory: Any
    place: int


class Paths:
    """A model whose trees are read as paths. It keeps what the model remembers, and leaves `model` as it was."""

    def __init__(self, model: PreTrainedModel):
        compat.check_supported(model)
        self.model, self.device, self.tokens = model, compat.home(model), compat.vocabulary_of(model)
        self.vocabulary, self.ids = self.tokens.size, self.tokens.ids
        self.context, self.continues = compat.context(compat.text_config(model)), compat.continues(model)
        self.memory = next(name for name in compat.MEMORIES if name in compat.called(model))
        self.rows: list[Row] = []  # none before the first forward

    def new(self, capacity: int) -> "Paths":
        return Paths(self.model)

    @torch.inference_mode()
    def forward(
        self, tokens: list[list[int]], parents: list[list[int]], scored: Scored = "all"
    ) -> Float[Tensor, "rows new columns"]:
        self.rows = self.rows or [Row() for _ in tokens]
        base.check_rows(len(tokens), len(self.rows))
        for row, above in zip(self.rows, parents, strict=True):
            base.check_parents(above, len(row.parents))
        firsts = [len(row.tokens) for row in self.rows]
        for row, new, above in zip(self.rows, tokens, parents, strict=True):
            row.tokens, row.parents = row.tokens + self.tokens.encode(new), row.parents + above
        last_logits = self.read([path for row, first in enumerate(firsts) for path in self.split(row, first, scored)])
        counts = [base.count_scored(scored, len(new)) for new in tokens]
        logits = torch.zeros(
            len(tokens), max(counts, default=0), self.tokens.columns, dtype=self.model.dtype, device=self.device
        )
        for index, (row, count) in enumerate(zip(self.rows, counts, strict=True)):
            for place, node in enumerate(range(len(row.tokens) - count, len(row.tokens))):
                logits[index, place] = last_logits[index, node][: self.tokens.columns]
        return logits

    def split(self, row: int, first: int, scored: Scored) -> list[tuple[int, list[int]]]:
        """New nodes as paths that take a pass each: one by one, unless they are a chain whose laws nobody asks for.

        Before them come paths to the nodes that they follow, where those have no state.
        """
        tree = self.rows[row]
        nodes, above = list(range(first, len(tree.tokens))), tree.parents[first:]
        paths = [tree.beyond(parent) for parent in sorted({parent for parent in above if parent < first})]
        is_chain = scored != "all" and above[1:] == nodes[:-1]
        return [(row, path) for path in [*paths, *([nodes] if is_chain else [[node] for node in nodes])] if path]

    def read(self, paths: list[tuple[int, list[int]]]) -> dict[tuple[int, int], Float[Tensor, " vocabulary"]]:
        """The logits behind the last node of each path, whose state is held from then on."""
        logits, held = dict[tuple[int, int], Tensor](), [row.states for row in self.rows]
        while paths:
            groups = dict[tuple[int, int], list[Reading]]()
            ready = [path for path in paths if self.rows[path[0]].parents[path[1][0]] in held[path[0]]]
            for reading in [self.reading(*path) for path in ready]:
                groups.setdefault((id(reading.memory), len(reading.tokens)), []).append(reading)
            paths = [path for path in paths if path not in ready]
            for group in groups.values():
                logits |= self.read_together(group)
        return logits

    def reading(self, row: int, nodes: list[int]) -> Reading:
        """A path that follows a state, or all of its row's text where the model cannot go on with several tokens."""
        tree, end = self.rows[row], nodes[-1]
        path, (memory, place) = tree.path(end), tree.states[tree.parents[nodes[0]]]
        if len(nodes) > 1 and not self.continues:
            return Reading(row, end, tree.text + tree.spelled(path), 0, None, 0)
        return Reading(row, end, tree.spelled(nodes), len(tree.text) + len(path) - len(nodes), memory, place)

    def read_together(self, group: list[Reading]) -> dict[tuple[int, int], Float[Tensor, " vocabulary"]]:
        """One pass over paths that are equally long, and follow what was remembered after one and the same pass."""
        tokens = torch.tensor([reading.tokens for reading in group], device=self.device)
        positions = group[0].first + torch.arange(tokens.shape[1], device=self.device).expand_as(tokens)
        places = torch.tensor([reading.place for reading in group])
        before = None if group[0].memory is None else gathered(group[0].memory, places)
        inputs = {
            "position_ids": positions if self.context is None else positions.clamp(max=self.context - 1),
            "logits_to_keep": 1,
            self.memory: before,
        }
        accepted = {name: value for name, value in inputs.items() if name in compat.called(self.model)}
        with packed(self.model):
            output = self.model(input_ids=tokens, use_cache=True, **accepted)
        for index, reading in enumerate(group):
            self.rows[reading.row].states[reading.node] = getattr(output, self.memory), index
        return {(reading.row, reading.node): output.logits[index, -1] for index, reading in enumerate(group)}

    @torch.inference_mode()
    def commit(self, chosen: list[list[int]]) -> None:
        base.check_paths(chosen, [row.parents for row in self.rows])
        behind = [row.beyond(path[-1] if path else ROOT) for row, path in zip(self.rows, chosen, strict=True)]
        self.read([(row, path) for row, path in enumerate(behind) if path])
        ends = [row.states[path[-1] if path else ROOT] for row, path in zip(self.rows, chosen, strict=True)]
        let_go_of_others(ends, [index for index, path in enumerate(chosen) if path])
        rows = zip(self.rows, chosen, ends, strict=True)
        self.rows = [Row(row.text + row.spelled(path), {ROOT: end}) for row, path, end in rows]

    def gather(self, rows: list[int]) -> None:
        self.rows = [replace(self.rows[row], states=dict(self.rows[row].states)) for row in rows]

    def extend(self, other: Any) -> None:
        base.check_same(self.model, other.model)
        base.check_nothing_pending(*(len(row.tokens) for row in self.rows + other.rows))
        self.rows = self.rows + other.rows

    def fork(self, row: int, length: int, capacity: int) -> "Paths":
        old, fork = self.rows[row], self.new(capacity)
        base.check_part(row, length, len(old.text))
        fork.rows = [Row(old.text, {ROOT: old.states[ROOT]})]
        if length < len(old.text):  # what it remembered there is gone, so it reads again
            fork.rows = [Row(tokens=old.text[:length], parents=list(range(-1, length - 1)))]
            fork.commit([list(range(length))])
        return fork


def let_go_of_others(states: list[State], rows: list[int]) -> None:
    """Let go of what passes remembered beside the states of these rows."""
    shared = dict[int, list[int]]()
    for row in rows:
        shared.setdefault(id(states[row][0]), []).append(row)
    for group in shared.values():
        memory = gathered(states[group[0]][0], torch.tensor([states[row][1] for row in group]))
        for place, row in enumerate(group):
            states[row] = memory, place


def gathered(memory: Any, rows: Int[Tensor, " rows"]) -> Any:
    """A copy of these rows of what a model remembers, whatever it is made of; rows are a tensor's first dimension."""
    if isinstance(memory, Tensor):
        return memory.index_select(0, rows.to(memory.device)) if memory.dim() else memory
    if isinstance(memory, list | tuple):
        return type(memory)(gathered(part, rows) for part in memory)
    if isinstance(memory, dict):
        return {name: gathered(part, rows) for name, part in memory.items()}
    if not hasattr(memory, "__dict__") or isinstance(memory, type | PretrainedConfig):
        return memory
    copied = copy(memory)
    copied.__dict__ = gathered(vars(memory), rows)
    return copied
