"""Text of tokens that come one by one; and chat templates are programs: none ends in a traceback."""

import pytest
import torch
from serving import letters
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from multidraft.errors import AdviceError
from multidraft.generation.text import IncrementalDetokenizer, encode_messages
from multidraft.zoo import load_pair

MESSAGES = [{"role": "user", "content": "ab"}]
BAD = {
    "5,000,000 characters": "{{ 'a' * 5000000 }}",
    "range": "{% for i in range(99999999) %}{% endfor %}",
    "division": "{{ 1 // 0 }}",
    "unsafe": "{{ messages.__class__.__mro__ }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "undefined": "{{ nothing.at.all }}",
    "says so": "{{ raise_exception('it says so') }}",
}


@pytest.mark.parametrize("reason", BAD)
def test_a_template_that_fails_is_one_line(reason):
    tokenizer = letters(4)
    tokenizer.chat_template = BAD[reason]
    with pytest.raises(AdviceError, match=reason):
        encode_messages(tokenizer, MESSAGES)


def test_one_that_does_not_is_written_as_it_says():
    tokenizer = letters(4)
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}c{% endfor %}"
    assert encode_messages(tokenizer, MESSAGES * 2) == [0, 1, 2] * 2


def test_pieces_hold_back_incomplete_characters_and_add_up_to_the_whole_decoding():
    tokenizer, generator = load_pair().tokenizer, torch.Generator().manual_seed(0)
    for text in ("日本語 😀 çà naïve\n\tthe", "plain words", "😀😀😀", ""):
        reader = IncrementalDetokenizer(tokenizer, tokenizer("the house")["input_ids"])
        assert "".join(reader.add(token) for token in tokenizer(text)["input_ids"]) == text
        assert reader.close() == ""
    for _ in range(50):  # any bytes
        tokens = torch.randint(1, 320, (40,), generator=generator).tolist()
        reader = IncrementalDetokenizer(tokenizer, tokenizer("the")["input_ids"])
        assert "".join(reader.add(token) for token in tokens) + reader.close() == tokenizer.decode(tokens)


def llama_like() -> PreTrainedTokenizerFast:
    """A tokenizer that writes unknown characters in bytes, and drops the first space, as Llama 2's does."""
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁the", "▁house", "a", "s"]
    tokenizer = Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


@pytest.mark.parametrize("text", ["日本語 😀 çà a", "the as", "😀" * 9])
def test_a_character_written_in_bytes_comes_whole_and_a_first_space_stays(text):
    tokenizer = llama_like()
    tokens = tokenizer(text)["input_ids"]
    reader = IncrementalDetokenizer(tokenizer, [258])
    pieces = [reader.add(token) for token in tokens]
    assert "".join(pieces) == f" {text}"
    assert reader.close() == ""
    reader = IncrementalDetokenizer(tokenizer, [258])
    assert "".join(reader.add(1 + byte) for byte in "日".encode()[:2]) == ""
    assert reader.close() == "\ufffd\ufffd"
