"""Two models: of Hugging Face for what needs their weights, GGUF files too for what needs their logits."""

from typing import Annotated, Any

from typer import Option

from multidraft.cli import completion
from multidraft.cli.engines import DEFAULT_LOADER, EMBEDDED, TRANSFORMERS, Loader, is_file, load_models
from multidraft.errors import AdviceError
from multidraft.models.gguf.hub import look_up
from multidraft.zoo import Pair

TargetOption = Annotated[
    str | None,
    Option(help="Target model: a folder, hub name or GGUF file. Default: embedded.", autocompletion=completion.targets),
]
DraftOption = Annotated[
    str | None,
    Option(help="Draft model: a folder, hub name or GGUF file. Default: embedded.", autocompletion=completion.drafts),
]


def load_pretrained(target: str | None, draft: str | None, loader: Loader = DEFAULT_LOADER) -> Pair:
    """The Hugging Face models of two names; the embedded pair where both are left out."""
    check_pretrained_names(loader, target, draft)
    return load_pair(target, draft, TRANSFORMERS)


def load_pair(target: str | None, draft: str | None, engine: str | None = None) -> Pair:
    """The models of two names, GGUF files by a library unless said; the embedded pair where both are left out."""
    if (target is None) != (draft is None) and EMBEDDED not in (target, draft):
        present, missing = ("--target", "--draft") if draft is None else ("--draft", "--target")
        raise AdviceError(f"{present} comes without {missing}; pass both, or neither for the embedded pair")
    engine = engine or (None if is_gguf(target) or is_gguf(draft) else TRANSFORMERS)
    pair: Any = load_models(target or EMBEDDED, [draft or EMBEDDED], DEFAULT_LOADER._replace(engine=engine))
    return Pair(pair[0], pair[1][0], pair[2])


def is_gguf(name: str | None) -> bool:
    """Whether a name is that of a GGUF file, here or on the hub."""
    return name is not None and (is_file(name) or look_up(name) is not None)


def check_pretrained_names(loader: Loader, *names: str | None) -> None:
    """Raise where a model is a GGUF file that nobody has asked to dequantise."""
    for name in names:
        if loader.engine != TRANSFORMERS and is_gguf(name):
            raise AdviceError(f"{name!r} is no folder; this command needs the weights of Hugging Face models")
