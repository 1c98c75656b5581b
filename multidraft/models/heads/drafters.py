"""Heads as drafters: what of the target's states has been heard and not used yet, and what a step leaves of a tree."""

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from multidraft.errors import AdviceError
from multidraft.models.base import Scored, check_nothing_pending, check_parents, check_path, check_rows
from multidraft.models.heads.dflash import DFlash
from multidraft.models.heads.eagle3 import Eagle3
from multidraft.models.heads.formats import KINDS, read_settings
from multidraft.models.heads.loading import load_head
from multidraft.models.heads.medusa import Medusa
from multidraft.models.huggingface import CausalLM, windows
from multidraft.models.kv_cache import TreeCache


@dataclass
class Row:
    """One row of a head: what it has kept and heard, and what is pending."""

    states: Float[Tensor, "_ width"]  # the last ones that were heard, and are not used up
    heard: int = 1  # tokens that may be read, because the state before them has been heard; nothing is before the first
    settled: int = 0  # kept tokens that are done with
    waiting: list[int] = field(default_factory=list)  # kept tokens behind these
    tokens: list[int] = field(default_factory=list)  # pending
    parents: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)  # of the pending ones, among the cache's or in depth
    first: int = 0  # pending tokens that were read beside states of the target

    def copy(self) -> "Row":
        """Another row that goes on by itself."""
        held: dict[str, Any] = {name: [*value] for name, value in vars(self).items() if isinstance(value, list)}
        return replace(self, **held)

    @property
    def used(self) -> int:
        """Tokens before which the state is used up."""
        return self.heard - len(self.states)

    def forget(self) -> None:
        """Nothing is pending any more."""
        self.tokens, self.parents, self.places, self.first = [], [], [], 0


class Head(ABC):
    """A head's module as a drafter of one target.

    The first tokens read after `keep` are a chain down to the root, as far as has been heard; others stand below it.
    """

    context: int | None = None

    def __init__(self, module: Any, capacity: int = 256):
        self.module, self.capacity, settings = module, capacity, module.settings
        self.hears: tuple[int, ...] = settings.layers
        self.vocabulary: int = settings.layer.vocab_size
        self.ids: Int[Tensor, " columns"] | None = module.ids
        self.columns: int = settings.drafted
        weight = next(module.parameters())
        self.device, self.dtype = weight.device, weight.dtype
        self.cache = TreeCache(getattr(settings.layer, "num_hidden_layers", 1), capacity)
        self.rows: list[Row] = []

    def fresh(self, capacity: int) -> "Head":
        return type(self)(self.module, capacity)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What tells it from other heads: a digest of its settings and of a few numbers of its weights."""
        some = [weight.detach().flatten()[:4].float().tolist() for weight in self.module.state_dict().values()]
        text = f"{self.module.settings} {some}"
        return {"digest": sha256(text.encode()).hexdigest()[:16], "dtype": str(self.dtype)}

    def fuse(self, states: Float[Tensor, "new layers width"]) -> Float[Tensor, "new hidden"]:
        """What the head makes of the target's states at a token."""
        return self.module.fuse(states.flatten(1)[None])[0]

    def begin(self, rows: int) -> None:
        """Settle the number of rows, if there are none; before the first token stand zeros."""
        if not self.rows:
            nothing = torch.zeros(1, self.module.settings.layer.hidden_size, dtype=self.dtype, device=self.device)
            self.rows = [Row(nothing) for _ in range(rows)]
        check_rows(rows, len(self.rows))
        self.cache.begin(rows)

    @torch.inference_mode()
    def hear(self, states: list[Float[Tensor, "_ layers width"]]) -> None:
        self.begin(len(states))
        counts = [len(own) for own in states]
        if any(counts):
            new = self.fuse(torch.cat(states).to(self.device, self.dtype)).split(counts)
            for row, own in zip(self.rows, new, strict=True):
                row.states, row.heard = torch.cat([row.states, own]), row.heard + len(own)

    @abstractmethod
    def forward(
        self, tokens: list[list[int]], parents: list[list[int]], scored: Scored = "all"
    ) -> Float[Tensor, "rows new columns"]: ...

    @abstractmethod
    def keep(self, chosen: list[list[int]]) -> None: ...

    def note(self, tokens: list[list[int]], parents: list[list[int]]) -> list[bool]:
        """Note new pending tokens; whether a row's are its first ones, of which some have been heard."""
        self.begin(len(tokens))
        are_first = [bool(new) and not row.tokens for row, new in zip(self.rows, tokens, strict=True)]
        for row, new, above, first in zip(self.rows, tokens, parents, are_first, strict=True):
            if first:
                row.first = min(row.heard - row.settled - len(row.waiting), len(new))
                if row.first < 1:
                    raise AdviceError(
                        f"a head needs the target's state before token {row.heard}; let it hear that first"
                    )
                if above[: row.first] != list(range(-1, row.first - 1)):
                    raise AdviceError("a head reads a chain as far as it has heard, down to a tree's one root")
            check_parents(above, len(row.tokens))
            if -1 in above[1 if first else 0 :]:
                raise AdviceError("a head reads a tree below one root; nothing else may follow the kept tokens")
            row.tokens, row.parents = row.tokens + new, row.parents + above
        return are_first

    @torch.inference_mode()
    def select(self, rows: list[int]) -> None:
        self.cache.select(rows)
        self.rows = [self.rows[row].copy() for row in rows]

    @torch.inference_mode()
    def join(self, other: Any) -> None:
        if other.module is not self.module:
            raise AdviceError("rows of two different heads cannot share a batch; start both with the same head")
        check_nothing_pending(*(len(row.tokens) for row in (*self.rows, *other.rows)))
        self.cache.add(other.cache, list(range(len(other.cache.lengths))), other.cache.lengths)
        self.rows = self.rows + other.rows

    @torch.inference_mode()
    def part(self, row: int, length: int, capacity: int) -> "Head":
        own, part = self.rows[row], self.fresh(capacity)
        if not 0 < length <= own.settled + len(own.waiting):
            raise AdviceError(f"cannot take {length} tokens of row {row}; take some that it has kept")
        part.cache.add(self.cache, [row], [min(length - 1, self.cache.lengths[row])])
        settled, states = min(length, own.settled), own.states[: max(length - own.used, 0)]
        part.rows = [Row(states, length, settled, own.waiting[: length - settled])]
        return part

    def none(self, count: int = 0) -> Float[Tensor, "rows count columns"]:
        """Logits of nothing."""
        return torch.zeros(len(self.rows), count, self.columns, dtype=self.dtype, device=self.device)


class EagleDrafter(Head):
    """EAGLE-3: a level of the tree a pass; below the root it reads its own states, and again the target's once kept.

    Token i is read beside the target's states at token i - 1, so that the text's first one is not read at all, unless
    it is the root.
    """

    def __init__(self, module: Eagle3, capacity: int = 256):
        super().__init__(module, capacity)
        self.windows = windows(module.config)
        self.noted: list[Float[Tensor, "rows new hidden"]] = []  # its own states, pass by pass

    @torch.inference_mode()
    def forward(
        self, tokens: list[list[int]], parents: list[list[int]], scored: Scored = "all"
    ) -> Float[Tensor, "rows new columns"]:
        self.note(tokens, parents)
        while any(len(row.places) < len(row.tokens) for row in self.rows):
            self.read()
        counts = [min(len(new), {"all": len(new), "last": 1, "none": 0}[scored]) for new in tokens]
        if not any(counts):
            return self.none()
        slots = torch.zeros(len(tokens), max(counts), dtype=torch.int64)
        for line, row, pending, count in zip(slots, self.rows, self.cache.pending, counts, strict=True):
            own = row.places[len(row.places) - count :]
            line[:count] = torch.tensor([pending.slots[max(place, 0)] for place in own], dtype=torch.int64)
        return self.module.logits(torch.cat(self.noted, 1)[torch.arange(len(tokens))[:, None], slots])

    def read(self) -> None:
        """One pass over what can be read now: chains that have been heard, or a level of a tree."""
        noted = torch.cat(self.noted, 1) if self.noted else None
        own = [self.readable(index, noted) for index in range(len(self.rows))]
        positions = self.cache.append([above for _, above, _ in own], False).to(self.device)
        read = torch.nn.utils.rnn.pad_sequence([tokens for tokens, _, _ in own], batch_first=True).to(self.device)
        states = torch.nn.utils.rnn.pad_sequence([beside for _, _, beside in own], batch_first=True)
        masks = self.cache.masks(self.windows, self.dtype, self.device)
        mask: Any = masks if len(masks) > 1 else next(iter(masks.values()))
        self.noted.append(self.module(read, states, positions, mask, self.cache.cache))

    def readable(
        self, index: int, noted: Tensor | None
    ) -> tuple[Int[Tensor, " new"], list[int], Float[Tensor, "new hidden"]]:
        """What a row reads next: tokens, their parents in the cache, and the states beside them."""
        row, pending, start = self.rows[index], self.cache.pending[index], len(self.rows[index].places)
        if row.first and not start:
            begins = int(row.settled == 0 and not row.waiting and row.first > 1)
            read = torch.tensor([*row.waiting, *row.tokens[: row.first]][begins:])
            row.places = [len(row.waiting) - begins + place for place in range(row.first)]
            return read, list(range(-1, len(read) - 1)), row.states[begins : begins + len(read)]
        count = next((i for i, above in enumerate(row.parents[start:]) if above >= start), len(row.tokens) - start)
        above = [row.places[parent] for parent in row.parents[start : start + count]]
        row.places += range(len(pending.parents), len(pending.parents) + count)
        beside = row.states[:0] if noted is None else noted[index, [pending.slots[place] for place in above]]
        return torch.tensor(row.tokens[start : start + count], dtype=torch.int64), above, beside

    @torch.inference_mode()
    def keep(self, chosen: list[list[int]]) -> None:
        check_rows(len(chosen), len(self.rows))
        for path, row in zip(chosen, self.rows, strict=True):
            check_path(path, row.parents)
        self.cache.keep([self.kept(path, row) for path, row in zip(chosen, self.rows, strict=True)])
        for path, row in zip(chosen, self.rows, strict=True):
            if path:
                first = sum(token < row.first for token in path)
                row.states = row.states[len(row.waiting) + first :]
                row.settled += len(row.waiting) + first
                row.waiting = [row.tokens[token] for token in path[first:]]
            row.forget()
        self.noted = []

    def select(self, rows: list[int]) -> None:
        super().select(rows)
        self.noted = [each[rows] for each in self.noted]

    def kept(self, path: list[int], row: Row) -> list[int]:
        """The places in the cache whose keys and values stay: what was read beside the target's states."""
        places = [row.places[token] for token in path if token < row.first]
        if row.settled == 0 and not row.waiting:  # the text's first token has none
            places = [place for place in places if place >= 0] if row.first > 1 else []
        return [*range(len(row.waiting)), *places] if path else []


class Marginal(Head):
    """A head that drafts all levels at once, with one law for every node of a level: it does not see the path.

    Below its last level a tree goes on with that one's law.
    """

    said: Float[Tensor, "rows levels columns"] | None = None

    @abstractmethod
    def draft(self, roots: list[int | None]) -> Float[Tensor, "rows levels columns"]:
        """The laws of the tokens that follow roots, as logits; of rows without one whatever it may be."""

    @torch.inference_mode()
    def forward(
        self, tokens: list[list[int]], parents: list[list[int]], scored: Scored = "all"
    ) -> Float[Tensor, "rows new columns"]:
        are_first = self.note(tokens, parents)
        for row in self.rows:
            for index in range(len(row.places), len(row.tokens)):
                row.places.append(0 if index < row.first else row.places[row.parents[index]] + 1)
        if scored == "none" or not any(tokens):
            return self.none()
        if any(are_first):
            pairs = zip(self.rows, are_first, strict=True)
            said = self.draft([row.tokens[row.first - 1] if first else None for row, first in pairs])
            news = torch.tensor(are_first, device=self.device)[:, None, None]
            self.said = said if self.said is None else torch.where(news, said, self.said)
        assert self.said is not None
        width = 1 if scored == "last" else max(map(len, tokens))
        depths = torch.zeros(len(tokens), width, dtype=torch.int64)
        for line, row, new in zip(depths, self.rows, tokens, strict=True):
            own = row.places[len(row.places) - min(len(new), width) :] if new else []
            line[: len(own)] = torch.tensor(own, dtype=torch.int64)
        return self.said[torch.arange(len(tokens))[:, None], depths.clamp(max=self.said.shape[1] - 1)]

    @torch.inference_mode()
    def keep(self, chosen: list[list[int]]) -> None:
        check_rows(len(chosen), len(self.rows))
        for path, row in zip(chosen, self.rows, strict=True):
            check_path(path, row.parents)
            row.settled += len(path)
            row.forget()
        self.said = None

    def select(self, rows: list[int]) -> None:
        super().select(rows)
        self.said = None if self.said is None else self.said[rows]


class BlockDrafter(Marginal):
    """DFlash: keys and values of the target's states stay, those of the block that it drafts do not."""

    def __init__(self, module: DFlash, capacity: int = 256):
        super().__init__(module, capacity)
        self.windows = windows(module.config)

    def draft(self, roots: list[int | None]) -> Float[Tensor, "rows levels columns"]:
        self.remember()
        chain = list(range(-1, self.module.settings.block - 1))
        positions = self.cache.append([[] if root is None else chain for root in roots], False).to(self.device)
        block = self.module.block(torch.tensor([root or 0 for root in roots], device=self.device))
        masks = self.cache.masks(self.windows, self.dtype, self.device)
        masks = {kind: self.around(mask, self.windows[kind]) for kind, mask in masks.items()}
        mask: Any = masks if len(masks) > 1 else next(iter(masks.values()))
        said = self.module.logits(self.module(block, positions, mask, self.cache.cache))
        self.cache.keep([[] for _ in roots])
        return said if self.module.settings.from_anchor else said[:, 1:]

    def remember(self) -> None:
        """Take in what has been heard since the last time; what stands before a text's first token is nothing."""
        states = [row.states[row.used == 0 :] for row in self.rows]
        if any(map(len, states)):
            positions = self.cache.append([list(range(-1, len(own) - 1)) for own in states], False).to(self.device)
            padded = torch.nn.utils.rnn.pad_sequence(states, batch_first=True)
            self.module.remember(padded, positions, self.cache.cache)
            self.cache.keep([list(range(len(own))) for own in states])
        for row in self.rows:
            row.states = row.states[len(row.states) :]

    def around(
        self, mask: Float[Tensor, "rows 1 block slots"], window: int | None
    ) -> Float[Tensor, "rows 1 block slots"]:
        """The mask of a chain, made one of a block whose tokens see those behind them too."""
        size, settings = mask.shape[2], self.module.settings
        if window and settings.causal_window:
            return mask
        places = torch.arange(size, device=mask.device)
        far = (places[:, None] - places).abs() >= (window or size)
        own = mask.new_zeros(size, size).masked_fill(far, torch.finfo(mask.dtype).min)
        return torch.cat([mask[..., :-size], own.expand(len(mask), 1, size, size)], -1)


class MedusaDrafter(Marginal):
    """Medusa: the state before the root is all that the heads see."""

    def fuse(self, states: Float[Tensor, "new layers width"]) -> Float[Tensor, "new hidden"]:
        return states[:, -1]

    def draft(self, roots: list[int | None]) -> Float[Tensor, "rows levels columns"]:
        for row in self.rows:  # those before the root's are of no more use
            row.states = row.states[max(row.settled + row.first - 1 - row.used, 0) :]
        return self.module(torch.stack([row.states[0] for row in self.rows])).transpose(0, 1)


NAMED = re.compile(rf"({'|'.join(KINDS)}):(.+)")
SHIPPED = {"smollm2": Path(__file__).parents[2] / "zoo" / "smollm2_eagle3"}
DRAFTERS: dict[type, type[Head]] = {Eagle3: EagleDrafter, DFlash: BlockDrafter, Medusa: MedusaDrafter}


def drafter(module: Any) -> Head:
    """A head's module as a drafter that has read nothing."""
    return DRAFTERS[type(module)](module)


def head(name: str, target: Any) -> Head:
    """The draft head that a name such as `eagle3:FOLDER`, `dflash:FOLDER` or `medusa:FOLDER` stands for.

    It drafts for this target alone, a Hugging Face model. `eagle3:smollm2` is the one that is shipped, for SmolLM2.
    Raises AdviceError where the files are of no head, of one of another kind, or of one for another target; it says
    what differs.
    """
    match = NAMED.fullmatch(name)
    if match is None:
        raise AdviceError(f"{name!r} names no draft head; write {', '.join(f'{kind}:FOLDER' for kind in KINDS)}")
    target = target.model if isinstance(target, CausalLM) else target
    if not isinstance(target, PreTrainedModel):
        raise AdviceError(
            f"a draft head reads hidden states, which a target of {type(target).__name__} does not tell; use a Hugging "
            "Face model, for a GGUF file with --engine transformers"
        )
    folder = SHIPPED.get(match[2]) or Path(match[2]).expanduser()
    if not folder.is_dir():
        raise AdviceError(f"there is no folder {match[2]!r}; give one with a head's config.json and weights")
    config = target.config.get_text_config(decoder=True)
    kind = read_settings(folder, config).kind
    if kind != match[1]:
        raise AdviceError(f"{match[2]!r} holds a head of kind {kind}, not {match[1]}; write {kind}:{match[2]}")
    return drafter(load_head(folder, target))
