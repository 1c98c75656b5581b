"""The two models that a command decodes with, by folder or hub name, checked to share one vocabulary."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multidraft.commands.hub import settle
from multidraft.errors import AdviceError
from multidraft.zoo.pair import Pair, load_pair

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

EMBEDDED = "embedded"


def load(target: str | None, draft: str | None) -> Pair:
    """The named pair, or the embedded one where both names are left out; on the GPU where there is one."""
    if (target is None) != (draft is None):
        given, missing = ("--target", "--draft") if draft is None else ("--draft", "--target")
        raise AdviceError(f"{given} comes without {missing}; pass both, or neither for the embedded pair")
    model, drafts, tokenizer = load_models(target, [draft or EMBEDDED])
    return Pair(model, drafts[0], tokenizer)


def load_models(
    target: str | None, drafts: Sequence[str]
) -> "tuple[PreTrainedModel, list[PreTrainedModel], PreTrainedTokenizerBase]":
    """A target, draft models and their tokenizer, on the GPU where there is one; without a target's name, embedded."""
    import torch

    silence()
    if target is None:
        pair = load_pair()
        models, tokenizer = [pair.target, *[pair.draft] * len(drafts)], pair.tokenizer
    else:
        models, tokenizer = load_named(target, drafts)
    if torch.cuda.is_available():
        for model in models:
            model.cuda()  # type: ignore[call-arg]  # a decorator of transformers hides self
    return models[0], models[1:], tokenizer


def load_named(target: str, drafts: Sequence[str]) -> "tuple[list[PreTrainedModel], PreTrainedTokenizerBase]":
    """Models from folders or the hub; tokenizers first, because they are small and often wrong."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    names = [target, *drafts]
    settle(names)
    tokenizers = [pretrained(AutoTokenizer, name, "tokenizer") for name in names]
    for draft, tokenizer in zip(drafts, tokenizers[1:], strict=True):
        check_vocabularies(target, tokenizers[0], draft, tokenizer)
    return [pretrained(AutoModelForCausalLM, name, "model", dtype="auto").eval() for name in names], tokenizers[0]


def pretrained(kind: Any, name: str, what: str, **settings: object) -> Any:
    """`from_pretrained` whose failures say what to do in one line."""
    folder = Path(name).expanduser()
    if not folder.is_dir() and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise AdviceError(f"there is no folder {name!r}; check the path, or give a hub name such as owner/model")
    if folder.is_dir() and not (folder / "config.json").exists():
        raise AdviceError(f"folder {name!r} has no config.json; give one that `save_pretrained` has written")
    try:
        return kind.from_pretrained(str(folder) if folder.is_dir() else name, **settings)
    except (OSError, ValueError, KeyError, ImportError) as error:
        reason = str(error).strip().split("\n")[0].rstrip(".: ") or type(error).__name__
        advice = "no such folder is here, so the hub was asked: check the name and the network"
        if folder.is_dir():
            advice = "a folder needs config.json, safetensors and tokenizer.json"
        raise AdviceError(f"cannot load a {what} from {name!r}: {reason}; {advice}") from None


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
