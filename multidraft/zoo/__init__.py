"""The embedded pair: a small target and a smaller draft in Hugging Face format, ready to decode.

It comes with a checkout. An installed copy has the drafters of SmolLM2 only.
"""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from multidraft.errors import AdviceError
from multidraft.zoo.smollm2 import INSTALL

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from multidraft.models.user_models import HuggingFaceModel

FOLDER = Path(__file__).parent


class Pair(NamedTuple):
    """Two models with one tokenizer."""

    target: "HuggingFaceModel"
    draft: "HuggingFaceModel"
    tokenizer: "PreTrainedTokenizerBase"


def has_embedded() -> bool:
    """Whether this copy has the embedded pair."""
    return (FOLDER / "target" / "config.json").is_file()


def embedded_folder(role: str) -> Path:
    """The folder of the embedded `target` or `draft`; raises AdviceError in an installed copy, which has neither."""
    if not has_embedded():
        raise AdviceError(
            "the embedded pair is only in a checkout of the project; use --target smollm2 --draft smollm2 "
            f"({INSTALL}), or your own models"
        )
    return FOLDER / role


def load_pair(folder: Path = FOLDER) -> Pair:
    """The embedded target and draft in evaluation mode, each in the dtype that it is stored in, and their tokenizer.

    `folder` may be the DIR of `multidraft train --out DIR`.
    """
    from multidraft.models.huggingface.loading import load_model, load_tokenizer

    if folder == FOLDER:
        embedded_folder("target")
    for role in ("target", "draft"):
        if not (folder / role / "config.json").exists():
            raise AdviceError(
                f"there is no model in {folder / role}; train a pair with `multidraft train`, "
                "or pass --target and --draft"
            )
    target, draft = (load_model(str(folder / role), local_files_only=True) for role in ("target", "draft"))
    return Pair(target, draft, load_tokenizer(str(folder / "target"), local_files_only=True))
