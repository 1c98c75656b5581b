"""Seven families' special tokens and chat templates on tiny tokenizers, and a model that writes a given answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import GenerationConfig, PreTrainedTokenizerFast

from multidraft.models.prefix_models import TableModel

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THOUGHT = "<think>\n\n</think>\n\n"
QWEN3 = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.last %}"
    + THOUGHT
    + "{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is false %}" + THOUGHT + "{% endif %}{% endif %}"
)
SMOLLM2 = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are SmolLM.<|im_end|>\n{% endif %}" + CHATML
)  # with a system prompt of its own
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}"
    "<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
PHI = "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}" + (
    "{% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content }}{{ eos_token }}"
    "{% elif m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %}{{ raise_exception('roles alternate') }}"
    "{% endif %}{% endfor %}"
)


@dataclass(frozen=True)
class Family:
    """A template, its special tokens, and those of them with a role."""

    template: str
    special: str
    eos: str
    closing: str  # behind an answer
    bos: str | None = None
    added: str = ""  # tokens that are shown
    pieces: bool = False  # as in SentencePiece, in place of bytes
    first_space: bool = False  # where a text begins, SentencePiece writes one

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """A new tokenizer: of pieces with bytes for what has none, or of bytes alone."""
        tokenizer = of_pieces(self.first_space) if self.pieces else of_bytes()
        names = dict.fromkeys(["<unused>", *([self.bos] if self.bos else []), self.eos, *self.special.split()])
        tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
        tokenizer.add_tokens(self.added.split())
        if self.bos:
            first = [(self.bos, tokenizer.token_to_id(self.bos))]
            tokenizer.post_processor = processors.TemplateProcessing(
                single=f"{self.bos} $A", pair=f"{self.bos} $A $B", special_tokens=first
            )
        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=self.bos, eos_token=self.eos)
        fast.chat_template = self.template
        return fast


FAMILIES = {
    "Llama 3": Family(
        LLAMA3, "<|start_header_id|> <|end_header_id|> <|eot_id|>", "<|end_of_text|>", "<|eot_id|>", "<|begin_of_text|>"
    ),
    "Qwen 2.5": Family(CHATML, "<|im_start|> <|im_end|>", "<|endoftext|>", "<|im_end|>"),
    "Qwen 3": Family(QWEN3, "<|im_start|> <|im_end|>", "<|endoftext|>", "<|im_end|>", added="<think> </think>"),
    "Gemma 3": Family(GEMMA, "<start_of_turn> <end_of_turn>", "<eos>", "<end_of_turn>", "<bos>", pieces=True),
    "SmolLM2": Family(SMOLLM2, "<|im_start|> <|im_end|>", "<|im_end|>", "<|im_end|>"),
    "Phi": Family(
        PHI, "<|user|> <|assistant|> <|system|> <|end|>", "<|endoftext|>", "<|end|>", pieces=True, first_space=True
    ),
    "Mistral": Family(MISTRAL, "[INST] [/INST]", "</s>", "</s>", "<s>", pieces=True, first_space=True),
}


def of_bytes() -> Tokenizer:
    """A token for each byte, and one for a common word."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate([*letters, "Hi"])}, [("H", "i")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def of_pieces(first_space: bool) -> Tokenizer:
    """Pieces for letters and a word, and bytes for all else."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"Hiuserabc", "▁H", "▁Hi"]
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    merges = [("▁", "H"), ("▁H", "i")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    parts = [normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), *parts] if first_space else parts)
    ends = [decoders.Strip(" ", 1, 0)] if first_space else []
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *ends])
    return tokenizer


def writer(tokenizer: PreTrainedTokenizerFast, answer: Sequence[int], noise: float = 0) -> TableModel:
    """A model that writes this answer, as far as it has come, and then its last token for ever.

    By its configuration the text ends with another token than those of tokenizer and template.
    """
    vocabulary = len(tokenizer)
    laws = torch.eye(vocabulary, dtype=torch.float64) * (1 - noise) + noise / vocabulary

    def next_token(prefix: tuple[int, ...]) -> torch.Tensor:
        counts = range(min(len(answer), len(prefix)), 0, -1)
        count = next((count for count in counts if prefix[-count:] == tuple(answer[:count])), 0)
        return laws[answer[min(count, len(answer) - 1)]]

    model: Any = TableModel(next_token, vocabulary)
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.convert_tokens_to_ids("<unused>"))
    return model
