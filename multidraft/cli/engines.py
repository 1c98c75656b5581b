"""The engines that read models, and how the models that a command line names are found, loaded and checked."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple

from multidraft.cli import terminal
from multidraft.errors import AdviceError
from multidraft.models.gguf import IK_LLAMA_CPP, LIBRARIES, hub
from multidraft.zoo import embedded_folder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from multidraft.models.user_models import HuggingFaceModel, Model

EMBEDDED, SMOLLM2 = "embedded", "smollm2"
PAIRS = (EMBEDDED, SMOLLM2)  # targets with a draft of the same name
TARGET_HELP = (
    "Folder, GGUF file, hub name, ORG/NAME:TYPE, `smollm2` or `embedded`. Default: smollm2 if installed, else embedded."
)
TRANSFORMERS = "transformers"
ENGINES = TRANSFORMERS, *LIBRARIES
ENGINE_HELP = (
    f"{TRANSFORMERS}, {' or '.join(LIBRARIES)}, for GGUF files and smollm2. Default: the faster of the last "
    f"two, measured once; for smollm2 {IK_LLAMA_CPP}, and to serve it {TRANSFORMERS}, which is faster for many."
)
LLAMA_LIB_HELP = "The folder of a build of llama.cpp, as its releases unpack. Default: where one is installed."
TRUST_HELP = "Run code that comes with a model's folder or hub page. It never runs without this."
HUB_SECONDS = 4  # to wait for the hub's answer


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


@cache
def small_draft() -> "HuggingFaceModel":
    """smollm2's small draft model, on transformers."""
    from multidraft.models.huggingface.loading import load_model

    return ready_model(load_model(resolve(SMOLLM2, "draft", DEFAULT_LOADER)), SMOLLM2)


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
