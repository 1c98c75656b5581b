"""What differs between the versions of transformers that we work with, 4.57 to the newest, in one place."""

import json
from pathlib import Path

from packaging.version import Version
from transformers import PreTrainedTokenizerFast, __version__

BEFORE_5 = Version(__version__) < Version("5")

# Model types that are fit for trees now and were not before 5, where nothing in the model says so.
UNFIT = (
    {
        "moshi": "ignores explicit positions before transformers 5; update it",
        "recurrent_gemma": "has a recurrent state, which cannot be rolled back to a path of a tree; use another model",
        "xglm": "adds the cache's length to explicit positions before transformers 5; update it",
    }
    if BEFORE_5
    else {}
)


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the tokenizer under the class name that every version knows; 5 writes one that 4.57 does not."""
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    path.write_text(json.dumps(config, indent=2) + "\n")
