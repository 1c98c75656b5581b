"""Heads as drafters: which of the target's states are not used yet, and what a step leaves of a tree."""

import re
from abc import abstractmethod
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from multidraft.errors import AdviceError, quote
from multidraft.models.heads.head_files import WEIGHT_FILES, load_head
from multidraft.models.heads.networks import DFLASH, EAGLE3, KINDS, MEDUSA
from multidraft.models.heads.target import target_of
from multidraft.models.huggingface.compat import context, windows
from multidraft.models.huggingface.kv_cache import TreeCache
from multidraft.models.huggingface.loading import reason
from multidraft.models.huggingface.packed_view import view_of
from multidraft.models.reader import HiddenStates, Lists, Reader, Row, Scored, chain_parents, count_scored, digest
from multidraft.models.user_models import Model
from multidraft.transfer import concatenate, take, upload

Logits = Float[Tensor, "rows new columns"]
Laws = Float[Tensor, "rows levels columns"]
BlockMask = Float[Tensor, "rows 1 block slots"]
MAX_UNFUSED = 256  # of a row's tokens, whose states wait to be fused: those of a head that rests may never be
HEAD_NAME = re.compile(rf"({'|'.join(KINDS)}):(.+)")
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
HUB_FILES = ["config.json", *WEIGHT_FILES]
SHIPPED_HEADS = {"smollm2": Path(__file__).parents[2] / "zoo" / "smollm2_eagle3"}


@dataclass
class Observed:
    """What a head holds of a row: the target's states that it has observed, and how far it has used them."""

    states: Float[Tensor, "_ width"]  # the last ones that were observed, and are not used up
    unfused: HiddenStates = field(default_factory=list)  # those behind them, as they were observed
    unfused_count: int = 0  # tokens whose states these are
    count: int = 1  # tokens that may be read: the state before them was observed; nothing is before the first
    settled: int = 0  # kept tokens that are done with; those behind them are read again, beside the target's states
    first: int = 0  # pending tokens that are read beside states of the target, the root the last of them

    @property
    def used_count(self) -> int:
        """Tokens before which the state is used up."""
        return self.count - len(self.states) - self.unfused_count


def settled_count(row: Row, path: list[int]) -> int:
    """The tokens of a path that were read beside the target's states, and those that had waited for it."""
    if not path:
        return 0
    return len(row.kept) - row.memory.settled + sum(node < row.memory.first for node in path)


def pad_rows(rows: list[Tensor]) -> Shaped[Tensor, "rows longest *shape"]:
    """Rows as one tensor, filled up with zeros at their ends."""
    return rows[0][None] if len(rows) == 1 else pad_sequence(rows, batch_first=True)


def begin_tree(row: Row, new: int) -> bool:
    """Whether the last `new` pending tokens are the first ones: for some of those the states before were observed."""
    observed, is_first = row.memory, bool(new) and new == len(row.tokens)
    if is_first:
        observed.first = min(observed.count - len(row.kept), new)
        if observed.first < 1:
            raise AdviceError(f"a head needs the target's state before token {observed.count}; call observe first")
        if row.parents[: observed.first] != chain_parents(observed.first):
            raise AdviceError("a head reads a chain as far as it has observed states, down to a tree's one root")
    if -1 in row.parents[len(row.parents) - new + is_first :]:
        raise AdviceError("a head reads a tree below one root; nothing else may follow the kept tokens")
    return is_first


class Head(Reader):
    """A head's module as a drafter of one target.

    The first tokens read after `commit` are a chain down to the root, as far as states were observed; others follow it.
    """

    outputs: Tensor | None = None  # of the module for the tree, (rows, places, width)

    def __init__(self, module: Any, capacity: int = 256):
        self.module = self.source = module
        self.capacity, settings = capacity, module.settings
        self.hidden_layers = settings.layers
        self.vocabulary, self.ids = settings.layer.vocab_size, module.ids
        self.ids = self.ids if self.ids is None else self.ids.cpu()  # where columns become tokens
        self.windows = windows(settings.layer)
        self.context = None if settings.kind == MEDUSA else context(settings.layer)
        weight = next(module.parameters())
        self.device, self.dtype = weight.device, weight.dtype
        self.cache = TreeCache(settings.layer.num_hidden_layers, capacity)

    def new(self, capacity: int) -> "Head":
        return type(self)(self.module, capacity)

    @cached_property
    def view(self) -> Any:
        """The module's view, made when it is first read through; a fork goes on with it."""
        return view_of(self.module)

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """What tells it from other heads: a digest of its settings and of a few numbers of its weights."""
        sample = [weight.detach().flatten()[:4].float().tolist() for weight in self.module.state_dict().values()]
        layer = {k: v for k, v in self.module.settings.layer.to_dict().items() if k != "transformers_version"}
        text = f"{vars(self.module.settings) | {'layer': layer}} {sample}"
        return {"digest": digest(text), "dtype": str(self.dtype)}

    def _begin(self, rows: int) -> list[Observed]:
        """Zeros stand before the first token."""
        self.cache.begin(rows)
        nothing = torch.zeros(1, self.module.settings.layer.hidden_size, dtype=self.dtype, device=self.device)
        return [Observed(nothing) for _ in range(rows)]

    @torch.inference_mode()
    def observe(self, states: HiddenStates) -> None:
        self.begin(len(states))
        for row, new in zip(self.rows, states, strict=True):
            observed, count = row.memory, new.shape[0]  # `len` of a tensor takes ten times as long
            if self.context is not None and observed.count + count > self.context:  # beyond it nothing is read
                new = new[: max(self.context - observed.count, 0)]
                count = new.shape[0]
            if count:
                observed.unfused = [*observed.unfused, new]
                observed.unfused_count, observed.count = observed.unfused_count + count, observed.count + count
        if any(row.memory.unfused_count > MAX_UNFUSED for row in self.rows):
            self.fuse()

    def observed_state(self, row: int, token: int) -> Float[Tensor, "1 layers width"] | None:
        observed = self.rows[row].memory
        place = token - (observed.count - 1 - observed.unfused_count)  # among those that wait
        for part in observed.unfused if place >= 0 else ():
            if place < len(part):
                return part[place : place + 1].clone()  # of what may be a whole pass
            place -= len(part)
        return None

    def fuse(self) -> None:
        """Make one state of those of several layers; while no drafts are asked for, that is put off."""
        rows = [row.memory for row in self.rows if row.memory.unfused]
        if not rows:
            return
        new = [concatenate(observed.unfused) for observed in rows]
        states = concatenate(new).flatten(1).to(self.device, self.dtype)
        fused = self.view.fuse(states[None])[0].split(list(map(len, new)))
        for observed, part in zip(rows, fused, strict=True):
            observed.states, observed.unfused, observed.unfused_count = torch.cat([observed.states, part]), [], 0

    @torch.inference_mode()
    def _read(self, tokens: Lists, parents: Lists, scored: Scored) -> Logits:
        are_first = [begin_tree(row, len(new)) for row, new in zip(self.rows, tokens, strict=True)]
        counts = [count_scored(scored, len(new)) for new in tokens]
        self.fuse()
        self.read_tree(are_first, any(counts))
        if not any(counts):
            columns = self.module.settings.drafted
            return torch.zeros(len(tokens), 0, columns, dtype=self.dtype, device=self.device)
        ends = [len(row.tokens) for row in self.rows]
        asked = [range(end - count, end) for end, count in zip(ends, counts, strict=True)]
        rows = [[self.place(index, token) for token in tokens] for index, tokens in enumerate(asked)]
        places = pad_rows([torch.tensor(row, dtype=torch.int64) for row in rows])
        assert self.outputs is not None
        return self.logits(self.outputs.take_along_dim(upload(places, self.outputs.device)[..., None], 1))

    @abstractmethod
    def read_tree(self, are_first: list[bool], scores: bool) -> None:
        """Read all pending tokens, as far as that is needed, which `scores` says."""

    @abstractmethod
    def place(self, index: int, token: int) -> int:
        """The place in `outputs` of a row's pending token."""

    def logits(self, outputs: Tensor) -> Logits:
        """The logits of outputs, which are logits already unless a head works on states."""
        return outputs

    @torch.inference_mode()
    def _commit(self, paths: Lists) -> None:
        self.forget(paths)
        self.outputs = None
        for row, path in zip(self.rows, paths, strict=True):
            row.memory.settled, row.memory.first = row.memory.settled + settled_count(row, path), 0

    @abstractmethod
    def forget(self, paths: Lists) -> None:
        """Let go of what was read of the tree, but for what the module remembers of these paths."""

    @torch.inference_mode()
    def reserve(self, rows: int, capacity: int) -> None:
        self.cache.storage.reserve(rows, capacity)

    @torch.inference_mode()
    def _gather(self, rows: list[int]) -> None:
        self.cache.gather(rows)
        self.outputs = None if self.outputs is None else self.outputs[rows]

    def _copy(self, row: Row) -> Observed:
        return copy(row.memory)

    @torch.inference_mode()
    def _extend(self, other: "Head") -> None:
        self.cache.extend(other.cache, 0, other.cache.lengths)

    @torch.inference_mode()
    def _fork(self, fork: "Head", row: int, length: int) -> None:
        fork.view = self.view
        fork.cache.extend(self.cache, row, [min(length - 1, self.cache.lengths[row])])
        old = self.rows[row].memory
        count = min(length, old.count)  # of a text longer than its context not all are read
        held = max(count - old.used_count, 0)
        states, waiting = old.states[:held], max(held - len(old.states), 0)
        unfused = [torch.cat([*old.unfused])[:waiting]] if waiting else []  # a copy: they are parts of whole passes
        fork.rows[0].memory = Observed(states, unfused, waiting, count, min(count, old.settled))


class Slots:
    """Which slots of the cache hold what was read of a row's tree: a chain beside the target's states, then the rest.

        kept        5 3 8 2     two are settled, and 8 and 2 are read again, beside the target's states
        pending     7 1 4       the first, 7, is read beside one too, the others beside the head's own
        read        8 2 7 1 4   of which 8, 2 and 7 are the chain
        place       0 1 2 3 4   so a pending token's is its number and 2: `behind`

    The text's first token has no state before it: it is left out of the chain, unless it is all of it.
    """

    def __init__(self, row: Row, slots: list[int]):
        self.row, self.slots = row, slots  # those that were read so far, by place
        self.waiting = row.kept[row.memory.settled :]
        self.left_out = int(not row.kept and row.memory.first > 1)
        self.behind = len(self.waiting) - self.left_out

    def slot(self, token: int) -> int:
        """The slot of a pending token."""
        return self.slots[max(token + self.behind, 0)]

    @property
    def is_read(self) -> bool:
        """Whether all of the tree was read."""
        return not self.row.tokens or len(self.slots) == len(self.row.tokens) + self.behind

    @property
    def chain(self) -> list[int]:
        """The tokens of the chain."""
        return [*self.waiting, *self.row.tokens[: self.row.memory.first]][self.left_out :]

    @property
    def level(self) -> range:
        """The pending tokens that can be read next: those whose parents were read."""
        row, start = self.row, len(self.slots) - self.behind if self.row.tokens else 0
        end = next((node for node in range(start, len(row.tokens)) if row.parents[node] >= start), len(row.tokens))
        return range(start, end)


class EagleDrafter(Head):
    """EAGLE-3: a level of the tree a pass; below the root it reads its own states, and again the target's once kept.

    Token i is read beside the target's states at token i - 1, so that the text's first one is not read at all, unless
    it is the root.
    """

    def read_tree(self, are_first: list[bool], scores: bool) -> None:
        while not all(slots.is_read for slots in map(self.slots, range(len(self.rows)))):
            new = [self.readable(index) for index in range(len(self.rows))]
            positions = upload(self.cache.append([above for _, above, _ in new], False), self.device)
            tokens = upload(pad_rows([torch.tensor(tokens, dtype=torch.int64) for tokens, _, _ in new]), self.device)
            states = pad_rows([beside for _, _, beside in new])
            masks = self.cache.masks(self.windows, self.dtype, self.device)
            outputs = self.view(tokens, states, positions, masks, self.cache.cache)
            self.outputs = outputs if self.outputs is None else torch.cat([self.outputs, outputs], 1)

    def slots(self, index: int) -> Slots:
        """The slots of a row's tree."""
        return Slots(self.rows[index], self.cache.slots[index])

    def readable(self, index: int) -> tuple[list[int], list[int], Float[Tensor, "new hidden"]]:
        """What a row can read next, an observed chain or a level of the tree: tokens, parents in the cache, states."""
        row, slots = self.rows[index], self.slots(index)
        states = row.memory.states
        if row.memory.first and not slots.slots:
            chain, first = slots.chain, slots.left_out
            return chain, chain_parents(len(chain)), states[first : first + len(chain)]
        above = [row.parents[node] for node in slots.level]
        beside = states[:0] if self.outputs is None else take(self.outputs[index], [slots.slot(node) for node in above])
        return [row.tokens[node] for node in slots.level], [node + slots.behind for node in above], beside

    def place(self, index: int, token: int) -> int:
        return self.slots(index).slot(token)

    def logits(self, outputs: Tensor) -> Logits:
        return self.view.logits(outputs)

    def forget(self, paths: Lists) -> None:
        rows = list(zip(self.rows, paths, strict=True))
        self.cache.commit([list(range(settled_count(row, path) - (not row.kept))) for row, path in rows])
        for row, path in rows:
            row.memory.states = row.memory.states[settled_count(row, path) :]


class Marginal(Head):
    """A head that drafts all levels at once, with one law for every node of a level: it does not see the path.

    Below its last level a tree goes on with that one's law.
    """

    @abstractmethod
    def draft(self, roots: list[int | None]) -> Laws:
        """The laws of the tokens that follow roots, as logits; of rows without one whatever it may be."""

    def read_tree(self, are_first: list[bool], scores: bool) -> None:
        if scores and any(are_first):
            pairs = zip(self.rows, are_first, strict=True)
            laws = self.draft([row.tokens[row.memory.first - 1] if first else None for row, first in pairs])
            news = upload(are_first, self.device)[:, None, None]
            self.outputs = laws if self.outputs is None else torch.where(news, laws, self.outputs)

    def place(self, index: int, token: int) -> int:
        assert self.outputs is not None
        row = self.rows[index]
        below_root = max(row.depths[token] - row.memory.first, 0)
        return min(below_root, self.outputs.shape[1] - 1)

    def forget(self, paths: Lists) -> None:
        for row in self.rows:
            row.memory.first = len(row.tokens)  # nothing has to be read again


class BlockDrafter(Marginal):
    """DFlash: keys and values of the target's states stay, those of the block that it drafts do not."""

    def draft(self, roots: list[int | None]) -> Laws:
        self.remember()
        chain = chain_parents(self.module.settings.block)
        positions = upload(self.cache.append([[] if root is None else chain for root in roots], False), self.device)
        block = self.module.block(upload([root or 0 for root in roots], self.device))
        masks = self.cache.masks(self.windows, self.dtype, self.device)
        masks = {kind: self.around(mask, self.windows[kind]) for kind, mask in masks.items()}
        logits = self.view.logits(self.view(block, positions, masks, self.cache.cache))
        self.cache.commit([[] for _ in roots])
        return logits if self.module.settings.from_anchor else logits[:, 1:]

    def remember(self) -> None:
        """Take in the states observed since the last time; what stands before a text's first token is nothing."""
        states = [row.memory.states[row.memory.used_count == 0 :] for row in self.rows]
        if any(map(len, states)):
            positions = upload(self.cache.append([chain_parents(len(new)) for new in states], False), self.device)
            self.view.remember(pad_rows(states), positions, self.cache.cache)
            self.cache.commit([list(range(len(new))) for new in states])
        for row in self.rows:
            row.memory.states = row.memory.states[len(row.memory.states) :]

    def around(self, mask: BlockMask, window: int | None) -> BlockMask:
        """The mask of a chain, made one of a block whose tokens see those behind them too."""
        size, settings = mask.shape[2], self.module.settings
        if window and settings.causal_window:
            return mask
        places = torch.arange(size, device=mask.device)
        far = (places[:, None] - places).abs() >= (window or size)
        block_mask = mask.new_zeros(size, size).masked_fill(far, torch.finfo(mask.dtype).min)
        return torch.cat([mask[..., :-size], block_mask.expand(len(mask), 1, size, size)], -1)


class MedusaDrafter(Marginal):
    """Medusa: the state before the root is all that the heads see."""

    def draft(self, roots: list[int | None]) -> Laws:
        for row in self.rows:  # those before the root's are of no more use
            observed = row.memory
            observed.states = observed.states[max(observed.settled + observed.first - 1 - observed.used_count, 0) :]
        return self.view(torch.stack([row.memory.states[0] for row in self.rows])).transpose(0, 1)


DRAFTERS: dict[str, type[Head]] = {EAGLE3: EagleDrafter, DFLASH: BlockDrafter, MEDUSA: MedusaDrafter}


def drafter(module: Any) -> Head:
    """A head's module as a drafter that has read nothing."""
    return DRAFTERS[module.settings.kind](module)


def check_runs(reader: Head, name: str) -> None:
    """Raise unless a head reads two tokens beside a state of ones to logits that are numbers."""
    states = torch.ones(1, len(reader.hidden_layers), reader.module.settings.target_width)
    try:
        reader.observe([states])
        logits = reader.forward([[0, 0]], [[-1, 0]]).logits
    except Exception as error:  # whatever a configuration that makes no sense may lead to
        raise AdviceError(f"the head {name!r} cannot read a token: {reason(error)}; get its files again") from None
    if not bool(logits.isfinite().all()):
        raise AdviceError(f"the head {name!r} gives logits that are no numbers; get its files again")


def folder_of(name: str) -> Path:
    """The folder of a head: a shipped one's, one of this machine, or a copy of the hub's; raises AdviceError."""
    folder = SHIPPED_HEADS.get(name) or Path(name).expanduser()
    if folder.is_dir():
        return folder
    if not HUB_NAME.fullmatch(name):
        raise AdviceError(f"there is no folder {name!r}; give one with a head's config.json and weights, or a hub name")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=HUB_FILES))
    except Exception as error:  # the client's kinds of errors depend on its version
        advice = "no such folder is here, so the hub was asked: check the name and the network"
        raise AdviceError(f"the head {name!r} cannot be had: {reason(error)}; {advice}") from None


def head(name: str, target: Model) -> Head:
    """The draft head that a name such as `eagle3:FOLDER`, `dflash:FOLDER` or `medusa:FOLDER` stands for.

    In place of FOLDER a hub name may stand, such as owner/head. It drafts for this target alone, a Hugging Face model
    or a GGUF file of a Llama or Qwen.
    `eagle3:smollm2` is the one that is shipped, for SmolLM2. Raises AdviceError where the files are of no head, of one
    of another kind, or of one for another target; it says what differs.
    """
    match = HEAD_NAME.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        raise AdviceError(f"{quote(name)} names no draft head; write {', '.join(f'{kind}:FOLDER' for kind in KINDS)}")
    parts = target_of(target)  # which is refused before anything is fetched
    module: Any = load_head(folder_of(match[2]), parts)
    kind = module.settings.kind
    if kind != match[1]:
        raise AdviceError(f"{match[2]!r} holds a head of kind {kind}, not {match[1]}; write {kind}:{match[2]}")
    check_runs(drafter(module).new(8), match[2])
    return drafter(module)
