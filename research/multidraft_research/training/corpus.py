"""Text in, tokens out: the corpus that the embedded pair learns from, its held-out part and its tokenizer."""

import gzip
import json
import re
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from multidraft.errors import AdviceError

END_OF_TEXT = "<|endoftext|>"
BETWEEN_BOOKS = re.compile(r"\n{4,}")


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, gzipped or not."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            return file.read()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise AdviceError(f"cannot read the corpus {path} ({reason}); give a UTF-8 text file, or one in .gz") from None


def split(text: str, held_out: float) -> tuple[str, str]:
    """Cut off the last `held_out` share of the text, at a line break, for evaluation."""
    cut = text.find("\n", int(len(text) * (1 - held_out))) + 1
    if not 0 < cut < len(text):
        raise AdviceError("the corpus has no line break where its held-out part should begin; use more text")
    return text[:cut], text[cut:]


def train_tokenizer(text: str, vocabulary: int, context: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with `vocabulary` pieces, the first of which is the end of text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    special = dict.fromkeys(("bos_token", "eos_token", "pad_token"), END_OF_TEXT)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=context, **special)


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> Int[Tensor, " tokens"]:
    """Token ids of the text, with an end-of-text token where a new book begins."""
    books = tokenizer.backend_tokenizer.encode_batch_fast(BETWEEN_BOOKS.split(text))
    end = [tokenizer.eos_token_id]
    ids = np.concatenate([np.array(end + book.ids, dtype=np.int32) for book in books])
    return torch.from_numpy(ids)


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write the tokenizer under the class name that every version knows; 5 writes one that 4.57 does not."""
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    path.write_text(json.dumps(config, indent=2) + "\n")
