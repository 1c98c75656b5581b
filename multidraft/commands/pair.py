"""The two models that a command decodes with, by folder or hub name, checked to share one vocabulary."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from multidraft.commands.hub import settle
from multidraft.errors import AdviceError
from multidraft.zoo.pair import FOLDER, Pair, load_pair

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

EMBEDDED = "embedded"


def load(target: str | None, draft: str | None) -> Pair:
    """The named pair, or the embedded one where both names are left out; on the GPU where there is one."""
    if (target is None) != (draft is None) and EMBEDDED not in (target, draft):
        given, missing = ("--target", "--draft") if draft is None else ("--draft", "--target")
        raise AdviceError(f"{given} comes without {missing}; pass both, or neither for the embedded pair")
    model, drafts, tokenizer = load_models(target, [draft or EMBEDDED])
    return Pair(model, drafts[0], tokenizer)


def load_models(
    target: str | None, drafts: Sequence[str]
) -> "tuple[PreTrainedModel, list[PreTrainedModel], PreTrainedTokenizerBase]":
    """A target, draft models and their tokenizer, on the GPU where there is one; without a target's name, embedded."""
    import torch

    from multidraft.generation.inputs import vocabulary_of
    from multidraft.models import resized
    from multidraft.models.pretrained import check_runs, check_sizes

    silence()
    if {target or EMBEDDED, *drafts} == {EMBEDDED}:
        pair = load_pair()
        models, tokenizer = [pair.target, *[pair.draft] * len(drafts)], pair.tokenizer
    else:
        models, tokenizer = load_named(placed(target or EMBEDDED, "target"), [placed(name, "draft") for name in drafts])
    for name, model in zip([target or EMBEDDED, *drafts], models, strict=True):
        if torch.cuda.is_available():
            model.cuda()  # type: ignore[call-arg]  # a decorator of transformers hides self
        check_runs(model, name)
    check_sizes(tokenizer, models[0], target or EMBEDDED)
    sizes = [vocabulary_of(model) for model in models]
    for size in sizes[1:]:
        resized.check_sizes(sizes[0], size)
    return models[0], models[1:], tokenizer


def placed(name: str, role: str) -> str:
    """The folder of an embedded model, or the name as it is."""
    return str(FOLDER / role) if name == EMBEDDED else name


def load_named(target: str, drafts: Sequence[str]) -> "tuple[list[PreTrainedModel], PreTrainedTokenizerBase]":
    """Models from folders or the hub; tokenizers first, because they are small and often wrong."""
    from multidraft.models.pretrained import load_model, load_tokenizer

    names = [target, *drafts]
    settle(names)
    tokenizers = [load_tokenizer(name) for name in names]
    for draft, tokenizer in zip(drafts, tokenizers[1:], strict=True):
        check_vocabularies(target, tokenizers[0], draft, tokenizer)
    return [load_model(name) for name in names], tokenizers[0]


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
