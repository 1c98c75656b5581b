"""Text of tokens that come one by one; and chat templates are programs: none ends in a traceback."""

import pytest
import torch
from serving import letters
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from multidraft.errors import AdviceError
from multidraft.generation.stopping import StopSearch, TextReader
from multidraft.generation.templates import render
from multidraft.generation.text import (
    IncrementalDetokenizer,
    closing_texts,
    closing_token,
    encode_messages,
)
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


@pytest.mark.parametrize("stops", [["ab"], ["aab", "ba"], ["aaaaaaab"], ["b" * 30], ["<unk>", "a house"]])
def test_a_stop_string_is_found_where_the_text_holds_it_and_little_is_kept(stops):
    """Whatever tokens it comes in; what is kept of the text is shorter than the longest stop string."""
    tokenizer, generator = llama_like(), torch.Generator().manual_seed(1)
    for _ in range(30):
        tokens = (torch.tensor([98, 99, 0, 257, 259, 260])[torch.randint(6, (80,), generator=generator)]).tolist()
        search, reader, shown = StopSearch(tokenizer, [258], stops), TextReader(tokenizer, [258], stops), ""
        for count in range(1, len(tokens) + 1):
            raw = tokenizer.decode([258, *tokens[:count]])[3:]
            found, pieces = search.add(tokens[count - 1]), reader.add(tokens[count - 1], count)
            shown += "".join(piece for _, piece in pieces)
            places = [place for stop in stops if (place := raw.find(stop)) >= 0]
            assert (found is None) == (not places)
            assert found is None or found.start == min(places)
            assert len(search.tail) < max(map(len, stops))
            if places:
                assert shown == raw[: min(places)].replace("<unk>", "")
                assert reader.close() == []
                break
        else:
            assert shown + "".join(piece for _, piece in reader.close()) == raw.replace("<unk>", "")


def test_a_stop_string_is_matched_from_min_tokens_on_and_may_be_kept():
    tokenizer = llama_like()
    for keeps, expected in (False, "ab a"), (True, "ab ab"):
        reader = TextReader(tokenizer, [260], ["b"], min_tokens=2, keeps_stop=keeps)
        tokens = [98, 99, 257, 98, 99, 98]
        text = "".join(piece for token in tokens for _, piece in (reader.add(token, "") if not reader.stopped else []))
        assert text == expected


@pytest.mark.parametrize(("min_tokens", "expected"), [(1, ""), (2, "ab c"), (3, "ab c")])
def test_a_stop_string_may_begin_before_min_tokens_and_ends_behind_them(min_tokens: int, expected: str):
    """Its beginning was forgotten there, and the row went on."""
    reader = TextReader(llama_like(), [260], ["ab", "abc"], min_tokens=min_tokens)
    tokens = [98, 99, 257, 100]
    text = "".join(piece for token in tokens for _, piece in (reader.add(token, "") if not reader.stopped else []))
    assert text + "".join(piece for _, piece in reader.close()) == expected


def test_a_first_space_stays_behind_a_token_that_shows_nothing():
    """Where the tokens before it are no longer kept."""
    tokenizer = llama_like()
    tokenizer.add_special_tokens({"eos_token": "<end>"})
    tokens = [260] * 10 + [tokenizer.eos_token_id, 258, 258]
    reader = IncrementalDetokenizer(tokenizer, [260])
    assert "".join(reader.add(token) for token in tokens) == "a" * 10 + " the the"


@pytest.mark.parametrize("kind", ["special", "half", "byte", "space", "word"])
def test_little_is_decoded_for_each_token_whatever_a_model_writes(kind):
    """Else a long text of tokens that show nothing, or of halves of characters, takes quadratic time."""
    tokenizer, sizes = llama_like(), list[int]()
    tokenizer.add_special_tokens({"eos_token": "<end>"})
    token = {"special": tokenizer.eos_token_id, "half": 1 + 0xC3, "byte": 1 + 0x41, "space": 257, "word": 258}[kind]
    plainly = tokenizer.decode
    tokenizer.decode = lambda tokens, **settings: sizes.append(len(tokens)) or plainly(tokens, **settings)
    reader = TextReader(tokenizer, [258] * 20, ["zzz"])
    shown = [piece for _ in range(500) for _, piece in reader.add(token, "")] + [piece for _, piece in reader.close()]
    assert max(sizes) < 100
    assert "".join(shown) == {"special": "", "half": "\ufffd", "byte": "A", "space": " ", "word": " the"}[kind] * 500


EOS, REFUSAL = "</s>", "{{ raise_exception('no') }}{% endif %}"
PARTS = "{% for part in m.content %}{{ part.text }}{% endfor %}"
TURNS = "{% for m in messages %}<|user|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
CLOSINGS = {  # templates, and the token behind an answer
    "none behind the last answer": ("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if not loop.last %}"
                                    "<|end|>{% endif %}{% endfor %}", "<|end|>"),
    "only the next turn's begin": ("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}", "<|user|>"),
    "another one behind earlier answers": ("{% for m in messages %}{{ m.content }}{{ '<|return|>' if loop.last else "
                                           "'<|end|>' }}{% endfor %}", "<|return|>"),
    "space, then the end": ("{% for m in messages %}{{ m.content }} \n</s>{% endfor %}", EOS),
    "added, and not special": ("{% for m in messages %}{{ m.content }}\n\n<|im_end|>{% endfor %}", "<|im_end|>"),
    "text alone": ("{% for m in messages %}### {{ m.role }}:\n{{ m.content }}\n\n{% endfor %}", None),
    "answers are not rendered": ("{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}</s>{% endif %}"
                                 "{% endfor %}", None),
    "roles that alternate": ("{% if messages | length != 2 %}{{ raise_exception('no') }}{% endif %}x</s>"
                             "{{ messages[1].content }}{{ eos_token }}", EOS),
    "no conversation at all": ("{{ raise_exception('no') }}", None),
    "a system message is demanded": ("{% if messages[0].role != 'system' %}" + REFUSAL + TURNS, "<|im_end|>"),
    "the last message is a question": ("{% if messages[-1].role != 'user' %}" + REFUSAL + TURNS, "<|im_end|>"),
    "capitals": (TURNS.replace("m.content", "m.content | upper"), "<|im_end|>"),
    "words with capitals": (TURNS.replace("m.content", "m.content | trim | title"), "<|im_end|>"),
    "content in parts": (TURNS.replace("{{ m.content }}", PARTS), "<|im_end|>"),
    "parts, but of systems": (TURNS.replace("{{ m.content }}", "{% if m.role == 'system' %}{{ m.content }}{% else %}"
                                            + PARTS + "{% endif %}"), "<|im_end|>"),
    "another marker before it": (TURNS.replace("<|im_end|>", "<|return|><|im_end|>"), "<|im_end|>"),
    "the text's end before another marker": (TURNS.replace("<|im_end|>", "</s><|end|>"), EOS),
    "the text's end behind the last answer": (TURNS + "{{ eos_token }}", "<|im_end|>"),
    "the next answer always begins": (TURNS + "<|user|>assistant\n", "<|im_end|>"),
    "it begins with two markers": (TURNS.replace("{{ m.role }}", "{{ '<|end|>' if m.role == 'user' else '<|return|>' "
                                                 "}}") + "<|user|><|return|>", "<|im_end|>"),
    "the same, and a system message": ("<|user|>system\nHi<|im_end|>\n" + TURNS + "<|user|>assistant\n", "<|im_end|>"),
}  # fmt: skip


@pytest.mark.parametrize("kind", CLOSINGS)
def test_the_token_behind_an_answer_is_the_template_s(kind):
    tokenizer = llama_like()
    tokenizer.add_special_tokens({"eos_token": EOS, "additional_special_tokens": ["<|end|>", "<|user|>", "<|return|>"]})
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in ("<|im_end|>", "\n\n")])
    tokenizer.chat_template, closing = CLOSINGS[kind]
    token = closing_token(tokenizer)
    assert (None if token is None else tokenizer.convert_ids_to_tokens(token)) == closing


def test_a_token_that_comes_later_ends_answers_from_then_on():
    tokenizer = llama_like()
    tokenizer.chat_template = TURNS
    assert closing_token(tokenizer) is None
    assert closing_texts(tokenizer) == ["<|im_end|>"]
    tokenizer.add_tokens([AddedToken("<|im_end|>", normalized=False)])
    assert tokenizer.convert_ids_to_tokens(closing_token(tokenizer)) == "<|im_end|>"
    assert closing_texts(tokenizer) == []


CONTENTS = {  # what a template makes of a text, and of two parts
    "texts": ("{{ m.content }}", "ab", "ab"),
    "parts": (PARTS, "ab", "ab"),
    "both": ("{% if m.content is string %}{{ m.content }}{% else %}{{ m.content | map(attribute='text') | join('+') }}"
             "{% endif %}", "ab", "a+b"),
    "no texts": ("{% if m.content is string %}" + REFUSAL + PARTS, "ab", "ab"),
    "parts by their kind": ("{% for p in m.content | selectattr('type', 'equalto', 'text') %}{{ p['text'] }}"
                            "{% endfor %}", "ab", "ab"),
    "as JSON": ("{{ m.content | tojson }}", '"ab"', '"ab"'),
    "not at all": ("x", "x", "x"),
}  # fmt: skip


@pytest.mark.parametrize("kind", CONTENTS)
@pytest.mark.parametrize("role", ["user", "tool", "developer"])
def test_content_comes_as_the_template_reads_it(kind, role):
    tokenizer, (content, text, parts) = llama_like(), CONTENTS[kind]
    tokenizer.chat_template = "{% for m in messages %}" + content + "{% endfor %}"
    messages = [{"role": role, "content": "ab"}]
    assert render(tokenizer, messages) == text
    assert messages == [{"role": role, "content": "ab"}]
    assert render(tokenizer, [{"role": role, "content": [{"type": "text", "text": word} for word in "ab"]}]) == parts
