"""The drafters that `--draft` names: `+` mixes them, `,` lists them."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from multidraft.cli import terminal
from multidraft.cli.engines import PAIRS, go_offline_without_hub
from multidraft.errors import AdviceError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from multidraft.models.corpus import Corpus
    from multidraft.models.user_models import Model

NONE = "none"
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
DRAFT_HELP = (
    f"As a target, or {BUILT_IN_HELP}, or a head: `{':FOLDER`, `'.join(HEADS)}:FOLDER`, or its hub name; "
    "`0.9*a+0.1*b` mixes; `copy+a` looks up the text first; `a,b` lists; `none` decodes plainly. Default: the target's "
    "own, else `lookup`."
)
CORPUS_HELP = "A text file, or a folder with all below it: what `lookup` and `copy` may draft from, beside the text."
BUILT_IN_NAME = re.compile(rf"({'|'.join(BUILT_IN)})(?::(\d+))?")
HEAD_NAME = re.compile(rf"({'|'.join(HEADS)}):.+")
WEIGHTED_NAME = re.compile(r"(?:(\d*\.?\d+)\*)?(.+)")
Member = tuple[str, float | None]  # a name, and its weight in a mixture if given


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


def index_texts(texts: list[str], tokenizer: "PreTrainedTokenizerBase") -> "Corpus":
    """The index over texts; says on stderr how much there is."""
    from multidraft.generation.text import encode_text
    from multidraft.models.corpus import Corpus

    corpus = Corpus([encode_text(tokenizer, text, special=False) for text in texts])
    terminal.note(f"the corpus has {len(texts):,} texts, {len(corpus.order):,} tokens")
    return corpus


def check_looks_up(option: str, draft: str) -> None:
    """Raise unless look-ups are among the drafters."""
    if not any(name.split(":")[0] in (LOOKUP, COPY) for mixture in parse(draft) for name, _ in mixture):
        raise AdviceError(f"{option} is for look-ups, and --draft is {draft!r}; write --draft lookup, or copy+NAME")


def built_in_drafter(name: str, target: "Model", corpus: "Corpus | None" = None) -> "Model":
    """Build a drafter that needs no draft model: n-grams, look-up, the target's first layers, or a head."""
    from multidraft.models.heads.drafters import head
    from multidraft.models.huggingface.loading import first_layers
    from multidraft.models.ngram import Lookup, NGram
    from multidraft.models.user_models import vocabulary_size

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
