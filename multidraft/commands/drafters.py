"""What `--draft` names: models, counts of the text itself, the target's first layers; mixed by `+`, listed by `,`."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from multidraft.commands.pair import EMBEDDED, load_models
from multidraft.errors import AdviceError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from multidraft.models import LanguageModel

    Drafter = PreTrainedModel | LanguageModel

HELP = "Draft model: folder, hub name, ngram[:3], lookup[:3], layers:2; a+b mixes, a,b is a list. Default: embedded."
OWN = re.compile(r"(ngram|lookup|layers)(?::(\d+))?")  # drafters that need no model of their own


class Models(NamedTuple):
    """A target, whatever drafts for it, and their tokenizer."""

    target: "PreTrainedModel"
    draft: "Drafter"
    tokenizer: "PreTrainedTokenizerBase"


def parse(text: str | None) -> list[list[str]]:
    """The drafters that a text lists, each by the names of those that it mixes.

    >>> parse("embedded+ngram:4,lookup")
    [['embedded', 'ngram:4'], ['lookup']]
    """
    if text is None or Path(text).expanduser().is_dir():
        return [[text or EMBEDDED]]
    listed = [[name.strip() for name in mixture.split("+")] for mixture in text.split(",")]
    names = [name for mixture in listed for name in mixture]
    if "" in names or "layers" in names:
        raise AdviceError(f"--draft {text!r} does not parse; write names as in ngram, layers:2, ngram+lookup or a,b")
    return listed


def load(target: str | None, draft: str | None) -> Models:
    """The named target with the named drafters, or the embedded ones where names are left out."""
    listed = parse(draft)
    names = list(dict.fromkeys(name for mixture in listed for name in mixture if not OWN.fullmatch(name)))
    check(target, draft, names)
    model, loaded, tokenizer = load_models(target, names)
    models = dict(zip(names, loaded, strict=True))
    drafters = [mixed([models.get(name) or own(name, model) for name in mixture]) for mixture in listed]
    return Models(model, together(drafters), tokenizer)


def check(target: str | None, draft: str | None, names: list[str]) -> None:
    """Raise unless draft models come with a target of their own kind."""
    if target is not None and draft is None:
        raise AdviceError("--target comes without --draft; pass both, or neither for the embedded pair")
    if target is not None and EMBEDDED in names:
        raise AdviceError("the embedded draft model is for the embedded target; name another, or leave out --target")
    if target is None and set(names) - {EMBEDDED}:
        raise AdviceError("--draft comes without --target; pass both, or neither for the embedded pair")


def own(name: str, target: "PreTrainedModel") -> "Drafter":
    """A drafter that is made from the text, or from the target."""
    from multidraft.generation import vocabulary_of
    from multidraft.models.early_exit import first_layers
    from multidraft.models.ngram import Lookup, NGram

    match = OWN.fullmatch(name)
    assert match is not None  # `load` asks for no other
    kind, number = match.groups(default="3")
    if kind == "layers":
        return first_layers(target, int(number))
    return (NGram if kind == "ngram" else Lookup)(vocabulary_of(target), int(number))


def mixed(members: "list[Drafter]") -> "Drafter":
    """One drafter of them all, in equal parts."""
    from multidraft.models.several import Mixture

    return Mixture(members) if len(members) > 1 else members[0]


def together(drafters: "list[Drafter]") -> "Drafter":
    """The drafters side by side."""
    from multidraft.models.several import Several

    return Several(drafters) if len(drafters) > 1 else drafters[0]
