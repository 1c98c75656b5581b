"""The two models that a command decodes with, by folder or hub name, checked to share one vocabulary."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multidraft.cli.hub import settle
from multidraft.errors import AdviceError
from multidraft.zoo.pair import FOLDER, Pair, load_pair

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from multidraft.models.huggingface import Model

EMBEDDED = "embedded"


def load(target: str | None, draft: str | None) -> Pair:
    """The named pair, or the embedded one where both names are left out; on the GPU where there is one."""
    if (target is None) != (draft is None) and EMBEDDED not in (target, draft):
        given, missing = ("--target", "--draft") if draft is None else ("--draft", "--target")
        raise AdviceError(f"{given} comes without {missing}; pass both, or neither for the embedded pair")
    check_pretrained_names(target, draft)
    model, drafts, tokenizer = load_models(target, [draft or EMBEDDED])
    loaded: Any = (model, drafts[0], tokenizer)  # Hugging Face's models, where no GGUF file is named
    return Pair(*loaded)


def load_models(target: str | None, drafts: Sequence[str]) -> "tuple[Model, list[Model], PreTrainedTokenizerBase]":
    """A target, draft models and their tokenizer, on the GPU where there is one; without a target's name, embedded."""
    from multidraft.models.huggingface import check_draft

    silence()
    models: list[Model]
    if {target or EMBEDDED, *drafts} == {EMBEDDED}:
        pair = load_pair()
        models, tokenizer = [pair.target, *[pair.draft] * len(drafts)], pair.tokenizer
    else:
        models, tokenizer = load_named(placed(target or EMBEDDED, "target"), [placed(name, "draft") for name in drafts])
    check_pretrained([target or EMBEDDED, *drafts], models, tokenizer)
    for draft in models[1:]:
        check_draft(models[0], draft)
    return models[0], models[1:], tokenizer


def placed(name: str, role: str) -> str:
    """The folder of an embedded model, or the name as it is."""
    return str(FOLDER / role) if name == EMBEDDED else name


def check_pretrained(names: Sequence[str], models: "list[Model]", tokenizer: "PreTrainedTokenizerBase") -> None:
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


def load_named(target: str, drafts: Sequence[str]) -> "tuple[list[Model], PreTrainedTokenizerBase]":
    """Models from folders, the hub or GGUF files; tokenizers first, because they are small and often wrong."""
    from multidraft.models.gguf.model import GGUF
    from multidraft.models.gguf.tokenizer import LlamaTokenizer
    from multidraft.models.loading import load_model, load_tokenizer

    names = [target, *drafts]
    files = {name: GGUF(name) for name in dict.fromkeys(names) if is_file(name)}
    settle(name for name in names if name not in files)
    tokenizers = [LlamaTokenizer(files[name].weights) if name in files else load_tokenizer(name) for name in names]
    for draft, tokenizer in zip(drafts, tokenizers[1:], strict=True):
        check_vocabularies(target, tokenizers[0], draft, tokenizer)
    return [files[name] if name in files else load_model(name) for name in names], tokenizers[0]


def is_file(name: str) -> bool:
    """Whether a name is of a GGUF file, and not of a folder or on the hub."""
    return name.lower().endswith(".gguf") or Path(name).expanduser().is_file()


def check_pretrained_names(*names: str | None) -> None:
    """Raise where a model is a GGUF file."""
    for name in names:
        if name and is_file(name):
            raise AdviceError(f"{name!r} is no folder; this command needs the weights of Hugging Face models")


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


def silence() -> None:
    """Keep the libraries' own notes and bars out of the output."""
    import warnings

    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging

    hub_logging.set_verbosity(hub_logging.CRITICAL)  # its retries without a network are many lines
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", module=r"transformers|torch|huggingface_hub")
