"""The models that names stand for, loaded and checked to fit each other; on the GPU where there is one."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple

from multidraft.cli.names import COPY, EMBEDDED, NUMBERED, OWN, SMOLLM2, Member, models_in, parse, usual
from multidraft.errors import AdviceError
from multidraft.zoo.pair import FOLDER, Pair, load_pair

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from multidraft.models.gguf.model import GGUF
    from multidraft.models.huggingface import Model

ENGINES = TRANSFORMERS, LLAMA_CPP = "transformers", "llama.cpp"
ENGINE = (
    "transformers or llama.cpp, for GGUF files and smollm2. Default: llama.cpp for files, transformers for smollm2."
)
TRUST = "Run code that a model's folder or its hub page brings along. Never without this."
PATIENCE = 4  # seconds for an answer of the hub, whatever it is


class Models(NamedTuple):
    """A target, whatever drafts for it (None: nothing), and their tokenizer."""

    target: "Model"
    draft: "Model | None"
    tokenizer: "PreTrainedTokenizerBase"


class Loader(NamedTuple):
    """How models are loaded: by which engine, and whether code of their own may run."""

    engine: str | None = None
    trust: bool = False

    def check(self) -> None:
        """Raise on an engine that does not exist."""
        if self.engine not in (None, *ENGINES):
            raise AdviceError(f"unknown --engine {self.engine!r}; use {' or '.join(ENGINES)}")


USUAL_WAY = Loader()


def load(target: str | None, draft: str | None, loader: Loader = USUAL_WAY) -> Models:
    """The named target with the named drafters."""
    target, draft = usual(target, draft)
    listed = parse(draft)
    names = models_in(listed)
    model, loaded, tokenizer = load_models(target, names, loader)
    models = dict(zip(names, loaded, strict=True))
    drafters = [mixed([models.get(name) or own(name, model) for name, _ in each], each) for each in listed]
    return Models(model, one_drafter(drafters), tokenizer)


def load_pretrained(target: str | None, draft: str | None, loader: Loader = USUAL_WAY) -> Pair:
    """Two models of Hugging Face, for what needs their weights; the embedded pair where both names are left out."""
    if (target is None) != (draft is None) and EMBEDDED not in (target, draft):
        given, missing = ("--target", "--draft") if draft is None else ("--draft", "--target")
        raise AdviceError(f"{given} comes without {missing}; pass both, or neither for the embedded pair")
    check_pretrained_names(loader, target, draft)
    found: Any = load_models(target or EMBEDDED, [draft or EMBEDDED], loader._replace(engine=TRANSFORMERS))
    return Pair(found[0], found[1][0], found[2])


def load_models(
    target: str, drafts: Sequence[str], loader: Loader = USUAL_WAY
) -> "tuple[Model, list[Model], PreTrainedTokenizerBase]":
    """A target, draft models and their tokenizer."""
    from multidraft.generation.inputs import check_vocabularies

    loader.check()
    silence()
    models: list[Model]
    if {target, *drafts} == {EMBEDDED}:
        pair = load_pair()
        models, tokenizer = [pair.target, *[pair.draft] * len(drafts)], pair.tokenizer
    else:
        names = [placed(target, "target", loader), *(placed(name, "draft", loader) for name in drafts)]
        models, tokenizer = load_named(names, loader.trust)
    check_loaded([target, *drafts], models, tokenizer)
    for draft in models[1:]:
        check_vocabularies(models[0], draft)
    return models[0], models[1:], tokenizer


def placed(name: str, role: str, loader: Loader) -> str:
    """The folder, hub name or GGUF file that a name stands for; a file for Hugging Face's engine has a folder."""
    if name == EMBEDDED:
        return str(FOLDER / role)
    engine = loader.engine
    if name == SMOLLM2:
        from multidraft.zoo import smollm2

        name, engine = str(smollm2.file(role)), engine or TRANSFORMERS
    if is_file(name) and engine == TRANSFORMERS:
        return dequantised(name)
    if not is_file(name) and engine == LLAMA_CPP:
        raise AdviceError(f"{name!r} is no GGUF file, which --engine llama.cpp needs; give one, or leave out --engine")
    return name


def dequantised(name: str) -> str:
    """The folder of a GGUF file's model as Hugging Face's engine reads it, made once and kept in the user's cache."""
    from multidraft.io.files import cache
    from multidraft.models.gguf.to_hugging_face import folder_of

    return str(folder_of(existing(name), cache()))


def load_named(names: Sequence[str], trust: bool) -> "tuple[list[Model], PreTrainedTokenizerBase]":
    """Models from folders, the hub or GGUF files; tokenizers first, because they are small and often wrong."""
    from multidraft.models.gguf.model import GGUF
    from multidraft.models.gguf.tokenizer import LlamaTokenizer
    from multidraft.models.loading import load_model, load_tokenizer

    files = {name: GGUF(existing(name)) for name in dict.fromkeys(names) if is_file(name)}
    settle(name for name in names if name not in files)
    settings = {"trust_remote_code": True} if trust else {}

    def tokenizer_of(name: str) -> "PreTrainedTokenizerBase":
        return LlamaTokenizer(files[name].weights) if name in files else load_tokenizer(name, **settings)

    tokenizer = tokenizer_of(names[0])
    for draft in names[1:]:
        if not has_part(draft, files.get(draft)):
            check_vocabularies(names[0], tokenizer, draft, tokenizer_of(draft))
    return [files[name] if name in files else load_model(name, **settings) for name in names], tokenizer


def has_part(name: str, file: "GGUF | None") -> bool:
    """Whether a draft model has a part of its target's vocabulary, and so no tokenizer of its own."""
    if file is not None:
        return not file.weights.pieces
    config = Path(name).expanduser() / "config.json"
    return config.is_file() and "target_ids" in config.read_text(encoding="utf-8", errors="replace")


def is_file(name: str) -> bool:
    """Whether a name is of a GGUF file, and not of a folder or on the hub."""
    return name.lower().endswith(".gguf") or Path(name).expanduser().is_file()


def existing(name: str) -> Path:
    """The path of a GGUF file that is there."""
    path = Path(name).expanduser()
    if not path.is_file():
        raise AdviceError(f"there is no file {name!r}; check the path")
    return path


def check_pretrained_names(loader: Loader, *names: str | None) -> None:
    """Raise where a model is a GGUF file that nobody has asked to dequantise."""
    for name in names:
        if name and is_file(name) and loader.engine != TRANSFORMERS:
            raise AdviceError(f"{name!r} is no folder; this command needs the weights of Hugging Face models")


def check_loaded(names: Sequence[str], models: "list[Model]", tokenizer: "PreTrainedTokenizerBase") -> None:
    """Move Hugging Face models to the GPU, and raise unless they run and the first one's tokenizer fits."""
    import torch
    from transformers import PreTrainedModel

    from multidraft.models.loading import check_runs, check_sizes

    for name, model in zip(names, models, strict=True):
        if not isinstance(model, PreTrainedModel):
            continue
        if torch.cuda.is_available():
            model.cuda()  # type: ignore[call-arg]  # a decorator of transformers hides self
        check_runs(model, name)
        if model is models[0]:
            check_sizes(tokenizer, model, name)


def check_vocabularies(
    target: str, first: "PreTrainedTokenizerBase", draft: str, second: "PreTrainedTokenizerBase"
) -> None:
    """Raise unless every piece has the same id in both: equal sizes alone prove nothing."""
    ours, theirs = first.get_vocab(), second.get_vocab()
    if ours == theirs:
        return
    piece = min((p for p in ours.keys() | theirs.keys() if ours.get(p) != theirs.get(p)), key=lambda p: (len(p), p))
    raise AdviceError(
        f"the tokenizers of {target!r} and {draft!r} differ: {piece!r} is {ours.get(piece, 'absent')} in the first and "
        f"{theirs.get(piece, 'absent')} in the second; choose a draft model that has the target's tokenizer"
    )


def own(name: str, target: "Model") -> "Model":
    """A drafter that is made of the text, or of the target."""
    from multidraft.generation.inputs import vocabulary_of
    from multidraft.models.early_exit import first_layers
    from multidraft.models.ngram import Lookup, NGram

    match = NUMBERED.fullmatch("lookup" if name == COPY else name)
    assert match is not None  # `load` asks for no other
    number = int(match[2] or OWN[match[1]] or 0)
    if match[1] == "layers":
        return first_layers(target, number)
    return {"ngram": NGram, "lookup": Lookup}[match[1]](vocabulary_of(target), number)


def mixed(members: "list[Model]", named: list[Member]) -> "Model":
    """One drafter of them all: copying first where it is named so, else in equal parts where no weight is given."""
    from multidraft.models.ensemble import Copying, Mixture

    if len(members) == 1:
        return members[0]
    if named[0][0] == COPY:
        return Copying(members)
    given = [weight for _, weight in named if weight is not None]
    return Mixture(members, given or None)


def one_drafter(drafters: "list[Model]") -> "Model | None":
    """The drafters side by side; None where there are none."""
    from multidraft.models.ensemble import Several

    return Several(drafters) if len(drafters) > 1 else drafters[0] if drafters else None


def silence() -> None:
    """Keep the libraries' own notes and bars out of the output."""
    import warnings

    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging

    hub_logging.set_verbosity(hub_logging.CRITICAL)  # its retries without a network are many lines
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", module=r"transformers|torch|huggingface_hub")


def settle(names: Iterable[str]) -> None:
    """Take only models that were fetched before where the hub does not answer: its client would try for a minute."""
    if all(Path(name).expanduser().is_dir() for name in names):
        return
    from huggingface_hub import constants

    if not constants.HF_HUB_OFFLINE and not answers():
        constants.HF_HUB_OFFLINE = True


def answers() -> bool:
    """Whether the hub answers in time; in a thread, because looking up a name heeds no time limit."""
    heard: list[bool] = []
    thread = Thread(target=lambda: heard.append(asked()), daemon=True)
    thread.start()
    thread.join(PATIENCE + 1)
    return heard == [True]


def asked() -> bool:
    """Whether a request is answered, through whatever proxy the hub's client uses."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=PATIENCE)
    except Exception:  # the client's kinds of errors depend on its version
        return False
    return True
