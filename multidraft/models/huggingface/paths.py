"""Trees as their paths: right for every causal model that transformers decodes in batches, whatever it remembers.

A recurrent state cannot be masked, and some models see positions in ways of their own. Here a tree is read level by
level: the nodes of a level are rows of a batch, each of which begins from a copy of what the model remembered behind
its parent. What it remembers behind each node stays until the walk has chosen. A level takes a pass, and memory for the
whole of each node's past; rows of a decoding batch share passes while their sequences are equally long.
"""

from collections.abc import Sequence
from copy import copy
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from multidraft.errors import AdviceError
from multidraft.models.huggingface import compat
from multidraft.models.huggingface.model_reader import HuggingFaceReader
from multidraft.models.reader import NO_HIDDEN_STATES, ROOT, Lists, Row, Scored, count_scored
from multidraft.transfer import upload

PassState = tuple[Any, int]  # what a model remembered after a pass (None: it had read nothing), and a row of that pass
NodeStates = dict[int, PassState]  # of a row, by node, where they are held


def unread(row: Row, node: int) -> list[int]:
    """The end of the path to a node: what stands behind the last state that is held."""
    path = row.path(node)
    return path[max((place for place, step in enumerate(path, 1) if step in row.memory), default=0) :]


def node_tokens(row: Row, nodes: list[int]) -> list[int]:
    """The tokens of pending nodes."""
    return [row.tokens[node] for node in nodes]


class Reading(NamedTuple):
    """Some tokens that follow each other in a row, and what they follow."""

    row: int
    node: int  # the last one
    tokens: list[int]
    first: int  # position
    memory: Any
    place: int


class Paths(HuggingFaceReader):
    """A model whose trees are read as paths; it keeps what the model remembers."""

    def __init__(self, model: PreTrainedModel):
        super().__init__(model)
        self.continues = compat.continues(model)

    def new(self, capacity: int) -> "Paths":
        return Paths(self.model)

    def with_hidden_states(self, layers: Sequence[int]) -> "Paths":
        raise AdviceError(NO_HIDDEN_STATES.format("that is read as paths"))

    def _begin(self, rows: int) -> list[NodeStates]:
        return [{ROOT: (None, 0)} for _ in range(rows)]

    @torch.inference_mode()
    def _read(self, tokens: Lists, parents: Lists, scored: Scored) -> Float[Tensor, "rows new columns"]:
        firsts = [len(row.tokens) - len(new) for row, new in zip(self.rows, tokens, strict=True)]
        last_logits = self.read([path for row, first in enumerate(firsts) for path in self.split(row, first, scored)])
        counts = [count_scored(scored, len(new)) for new in tokens]
        dtype = next((line.dtype for line in last_logits.values()), self.model.dtype)  # a head may have its own
        shape = len(tokens), max(counts, default=0), self.tokens.columns
        logits = torch.zeros(shape, dtype=dtype, device=self.device)
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
        paths = [unread(tree, parent) for parent in sorted({parent for parent in above if parent < first})]
        is_chain = scored != "all" and above[1:] == nodes[:-1]
        return [(row, path) for path in [*paths, *([nodes] if is_chain else [[node] for node in nodes])] if path]

    def read(self, paths: list[tuple[int, list[int]]]) -> dict[tuple[int, int], Float[Tensor, " vocabulary"]]:
        """The logits behind the last node of each path, whose state is held from then on."""
        logits, held = dict[tuple[int, int], Tensor](), [row.memory for row in self.rows]
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
        path, (memory, place) = tree.path(end), tree.memory[tree.parents[nodes[0]]]
        if len(nodes) > 1 and not self.continues:
            return Reading(row, end, tree.kept + node_tokens(tree, path), 0, None, 0)
        return Reading(row, end, node_tokens(tree, nodes), len(tree.kept) + len(path) - len(nodes), memory, place)

    def read_together(self, group: list[Reading]) -> dict[tuple[int, int], Float[Tensor, " vocabulary"]]:
        """One pass over paths that are equally long, and follow what was remembered after one and the same pass."""
        tokens = upload([reading.tokens for reading in group], self.device)
        positions = group[0].first + torch.arange(tokens.shape[1], device=self.device).expand_as(tokens)
        places = torch.tensor([reading.place for reading in group])
        before = None if group[0].memory is None else gather_memory(group[0].memory, places)
        inputs = {
            "position_ids": positions if self.context is None else positions.clamp(max=self.context - 1),
            "logits_to_keep": 1,
            self.memory_name: before,
        }
        accepted = {name: value for name, value in inputs.items() if name in compat.forward_arguments(self.model)}
        output = self.view(input_ids=tokens, use_cache=True, **accepted)
        for index, reading in enumerate(group):
            self.rows[reading.row].memory[reading.node] = getattr(output, self.memory_name), index
        return {(reading.row, reading.node): output.logits[index, -1] for index, reading in enumerate(group)}

    @torch.inference_mode()
    def _commit(self, paths: Lists) -> None:
        last_nodes = [path[-1] if path else ROOT for path in paths]
        missing = [unread(row, node) for row, node in zip(self.rows, last_nodes, strict=True)]
        self.read([(row, path) for row, path in enumerate(missing) if path])
        ends = [row.memory[node] for row, node in zip(self.rows, last_nodes, strict=True)]
        let_go_of_others(ends, [index for index, path in enumerate(paths) if path])
        for row, end in zip(self.rows, ends, strict=True):
            row.memory = {ROOT: end}

    def _copy(self, row: Row) -> NodeStates:
        return dict(row.memory)

    def _fork(self, fork: "Paths", row: int, length: int) -> None:
        self.share_view(fork)
        if length < len(self.rows[row].kept):  # what the model remembered there is gone
            fork.read_again()
        else:
            fork.rows[0].memory = {ROOT: self.rows[row].memory[ROOT]}


def let_go_of_others(states: list[PassState], rows: list[int]) -> None:
    """Let go of what passes remembered beside the states of these rows."""
    shared = dict[int, list[int]]()
    for row in rows:
        shared.setdefault(id(states[row][0]), []).append(row)
    for group in shared.values():
        memory = gather_memory(states[group[0]][0], torch.tensor([states[row][1] for row in group]))
        for place, row in enumerate(group):
            states[row] = memory, place


def gather_memory(memory: Any, rows: Int[Tensor, " rows"]) -> Any:
    """A copy of these rows of what a model remembers, whatever it is made of; rows are a tensor's first dimension."""
    if isinstance(memory, Tensor):
        return memory.index_select(0, upload(rows, memory.device)) if memory.dim() else memory
    if isinstance(memory, list | tuple):
        return type(memory)(gather_memory(part, rows) for part in memory)
    if isinstance(memory, dict):
        return {name: gather_memory(part, rows) for name, part in memory.items()}
    if not hasattr(memory, "__dict__") or isinstance(memory, type | PretrainedConfig):
        return memory
    copied = copy(memory)
    copied.__dict__ = gather_memory(vars(memory), rows)
    return copied
