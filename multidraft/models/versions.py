"""What differs between versions of transformers, 4.57 to the newest, and what is private there, in one place."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from packaging.version import Version
from torch import nn
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    __version__,
)
from transformers.generation import GenerationMixin

from multidraft.errors import AdviceError

BEFORE_5 = Version(__version__) < Version("5")

ATTENTION = "_attn_implementation_internal"  # a configuration's own field; its property writes into others as well

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


def body(model: PreTrainedModel) -> tuple[str, nn.Module]:
    """The model without its head, and its name in the model; before 5, gemma3_text has noted another name."""
    name = model.base_model_prefix if hasattr(model, model.base_model_prefix) else "model"
    return name, getattr(model, name, model)


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write the tokenizer under the class name that every version knows; 5 writes one that 4.57 does not."""
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    path.write_text(json.dumps(config, indent=2) + "\n")


class Builder(GenerationMixin):
    """Stands in for a model where transformers turns a configuration into processors; any target will do."""

    def __init__(self, vocabulary: int):
        self.config: Any = SimpleNamespace(is_encoder_decoder=False, vocab_size=vocabulary)
        self.config.get_text_config = lambda **_: self.config


def logits_processors(
    config: GenerationConfig,
    prompt: Sequence[int],
    vocabulary: int,
    extra: Sequence[LogitsProcessor],
    device: torch.device,
) -> LogitsProcessorList:
    """What `generate` would run for one prompt, in its order; `config` has all end-of-text tokens as a list."""
    ends, builder = config.eos_token_id, cast(Any, Builder(vocabulary))
    config._eos_token_tensor = torch.tensor(ends, device=device) if ends else None
    try:
        return builder._get_logits_processor(
            config,
            input_ids_seq_length=len(prompt),
            encoder_input_ids=torch.tensor([prompt], device=device),
            logits_processor=LogitsProcessorList(extra),
            device=device,
        )
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        what = " ".join(str(error).split())
        raise AdviceError(f"transformers takes no such settings: {what}; check them, or leave them out") from None
