"""What `--draft` names: models, counts of the text itself, the target's first layers; mixed by `+`, listed by `,`."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from multidraft.cli.pair import EMBEDDED, load_models
from multidraft.errors import AdviceError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from multidraft.models.huggingface import Model


class Own(NamedTuple):
    """A drafter that needs no model of its own: how it is made of a target and a number, which may be left out."""

    make: "Callable[[Model, int], Model]"
    number: int | None = None  # where none is written


def ngram(target: "Model", order: int) -> "Model":
    """An n-gram model of the text."""
    from multidraft.generation.inputs import vocabulary_of
    from multidraft.models.ngram import NGram

    return NGram(vocabulary_of(target), order)


def lookup(target: "Model", longest: int) -> "Model":
    """What followed the same tokens before."""
    from multidraft.generation.inputs import vocabulary_of
    from multidraft.models.ngram import Lookup

    return Lookup(vocabulary_of(target), longest)


def layers(target: "Model", count: int) -> "Model":
    """The target's first layers."""
    from multidraft.models.early_exit import first_layers

    return first_layers(target, count)


OWN = {"ngram": Own(ngram, 3), "lookup": Own(lookup, 3), "layers": Own(layers)}
WRITTEN = ", ".join(f"{name}:2" if own.number is None else f"{name}[:{own.number}]" for name, own in OWN.items())
HELP = f"Folder, hub name, GGUF file, {WRITTEN}; 0.9*a+0.1*b mixes; a,b lists. Default: embedded."
NUMBERED = re.compile(rf"({'|'.join(OWN)})(?::(\d+))?")
WEIGHTED = re.compile(r"(?:(\d*\.?\d+)\*)?(.+)")
MOST = 1000  # tokens or layers; far more than any drafter looks at
Member = tuple[str, float | None]  # a name, and its weight in a mixture where one is given


class Models(NamedTuple):
    """A target, whatever drafts for it, and their tokenizer."""

    target: "Model"
    draft: "Model"
    tokenizer: "PreTrainedTokenizerBase"


def parse(text: str | None) -> list[list[Member]]:
    """The drafters that a text lists, each by the members that it mixes.

    >>> parse("0.9*embedded+0.1*ngram:4,lookup")
    [[('embedded', 0.9), ('ngram:4', 0.1)], [('lookup', None)]]
    """
    if text is None:
        return [[(EMBEDDED, None)]]
    if text and Path(text).expanduser().exists():
        return [[(text, None)]]
    mixtures = [[member(name.strip(), text) for name in mixture.split("+")] for mixture in text.split(",")]
    return list(map(check_weights, mixtures))


def member(name: str, text: str) -> Member:
    """One name, with its weight in front of a star."""
    match = WEIGHTED.fullmatch(name)
    if match is None or "*" in match[2] or (match[2] in OWN and OWN[match[2]].number is None):
        raise AdviceError(f"--draft {text!r} does not parse; write ngram, layers:2, 0.9*NAME+0.1*ngram or NAME,ngram")
    number = NUMBERED.fullmatch(match[2])
    if number and number[2] and not 1 <= int(number[2][:9]) <= MOST:
        raise AdviceError(f"--draft {text!r}: {match[2]} is out of range; use at least 1 and at most {MOST}")
    return match[2], float(match[1]) if match[1] else None


def check_weights(mixture: list[Member]) -> list[Member]:
    """The mixture, if every member has a weight and they sum to 1, or none has."""
    from multidraft.models.ensemble import check_weights

    given = [weight for _, weight in mixture if weight is not None]
    if given:
        check_weights(given, len(mixture))
    return mixture


def load(target: str | None, draft: str | None) -> Models:
    """The named target with the named drafters, or the embedded ones where names are left out."""
    listed = parse(draft)
    names = list(dict.fromkeys(name for mixture in listed for name, _ in mixture if not NUMBERED.fullmatch(name)))
    check(target, draft, names)
    model, loaded, tokenizer = load_models(target, names)
    models = dict(zip(names, loaded, strict=True))
    drafters = [
        mixed([models.get(name) or own(name, model) for name, _ in mixture], [weight for _, weight in mixture])
        for mixture in listed
    ]
    return Models(model, one_drafter(drafters), tokenizer)


def check(target: str | None, draft: str | None, names: list[str]) -> None:
    """Raise unless draft models come with a target of their own kind."""
    if target not in (None, EMBEDDED) and draft is None:
        raise AdviceError("--target comes without --draft; pass both, or neither for the embedded pair")
    if target not in (None, EMBEDDED) and EMBEDDED in names:
        raise AdviceError("the embedded draft model is for the embedded target; name another, or leave out --target")
    if target is None and set(names) - {EMBEDDED}:
        raise AdviceError("--draft comes without --target; pass both, or neither for the embedded pair")


def own(name: str, target: "Model") -> "Model":
    """A drafter that is made from the text, or from the target."""
    match = NUMBERED.fullmatch(name)
    assert match is not None  # `load` asks for no other
    kind = OWN[match[1]]
    return kind.make(target, int(match[2] or kind.number or 0))


def mixed(members: "list[Model]", weights: list[float | None]) -> "Model":
    """One drafter of them all, in equal parts where no weight is given."""
    from multidraft.models.ensemble import Mixture

    if len(members) == 1:
        return members[0]
    given = [weight for weight in weights if weight is not None]
    return Mixture(members, given or None)


def one_drafter(drafters: "list[Model]") -> "Model":
    """The drafters side by side."""
    from multidraft.models.ensemble import Several

    return Several(drafters) if len(drafters) > 1 else drafters[0]
