"""The embedded pair as GGUF files: the same tokens as llama.cpp's own, the target's law, and every way in."""

import copy
import json
import math
from collections import Counter
from functools import cache
from pathlib import Path

import llama_plain
import pytest
import torch
from commands import ends_with_advice, printed, run
from ggufs import CACHE_TYPE, pair_files, tiny_file, to_gguf
from multidraft_research.cli.pretrained import load_pretrained
from serving import served, service

import multidraft as md
from multidraft.autotune.plans import MeasuredPair
from multidraft.errors import AdviceError
from multidraft.generation.text import closing_token, text_ends
from multidraft.models.ensemble import Mixture, SideBySide
from multidraft.models.gguf import file, memory
from multidraft.models.gguf.file import LlamaTokenizer
from multidraft.models.ngram import NGram
from multidraft.sampling.grammar import Grammar, matcher_tokenizer
from multidraft.zoo import load_pair

TEXT = "Once upon a time there was a king who"
SAMPLES, ROWS, FALSE_ALARM = 768, 64, 1e-6
pytestmark = pytest.mark.usefixtures("unchecked")


@cache
def pair() -> tuple[md.GGUF, md.GGUF, LlamaTokenizer]:
    target, draft = (md.GGUF(path, cache_type=CACHE_TYPE) for path in pair_files())
    return target, draft, LlamaTokenizer(target.weights)


def decoded(*models: md.GGUF | None, **settings) -> list[list[int]]:
    prompts = [pair()[2](text)["input_ids"] for text in (TEXT, "It was")]
    tokens, _ = md.generate(*models, prompts, eos_token_id=[], max_new_tokens=24, **settings)
    return [row.tolist() for row in tokens]


def test_a_chat_ends_with_the_closing_token_of_the_template():
    """SmolLM2's first command, which takes this tokenizer, once ended in an error of transformers' base class."""
    target, _, tokenizer = pair()
    tokenizer = copy.copy(tokenizer)
    end = tokenizer.eos_token
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}" + end + "{% endfor %}"
    assert closing_token(tokenizer) == tokenizer.eos_token_id
    assert tokenizer.eos_token_id in text_ends(target, tokenizer, True)


def test_the_tokenizer_is_that_of_the_folder():
    ours, theirs = pair()[2], load_pair().tokenizer
    texts = [TEXT, "", "  two  spaces\n\n", "naïve 漢字 🙂 x=1<|endoftext|>", "it's 12,345.6"]
    for text in texts:
        tokens = theirs(text)["input_ids"]
        assert list(ours(text)["input_ids"]) == tokens
        for end in range(len(tokens) + 1):
            assert ours.decode(tokens[:end]) == theirs.decode(tokens[:end])
            plain, same = (tokenizer.decode(tokens[:end], skip_special_tokens=True) for tokenizer in (ours, theirs))
            assert plain == same
    assert ours.get_vocab() == theirs.get_vocab()
    assert (len(ours), ours.bos_token_id, ours.eos_token_id) == (len(theirs), theirs.bos_token_id, theirs.eos_token_id)


def test_grammars_know_its_tokens_as_those_of_the_folder():
    """Byte by byte, also of tokens that are parts of characters; those that are no text are marked."""
    ours, theirs = map(matcher_tokenizer, (pair()[2], load_pair().tokenizer))
    assert ours.vocab_size == theirs.vocab_size
    for token in range(theirs.vocab_size):
        assert ours.decode_bytes([token]) == theirs.decode_bytes([token])
        assert ours.is_special_token(token) == theirs.is_special_token(token)
    for text in (TEXT, '{"naïve": "漢字 🙂"}\n', ""):
        assert ours.tokenize_str(text) == theirs.tokenize_str(text)


def test_a_grammar_holds_for_a_file():
    target, draft, tokenizer = pair()
    schema = '{"enum": ["yes", 7]}'
    tokens, _ = md.generate(
        target, draft, [[5, 6], [7]], tree="2x1", max_new_tokens=30, grammar=Grammar(tokenizer, schema)
    )
    assert [json.loads(tokenizer.decode(row, skip_special_tokens=True)) in ("yes", 7) for row in tokens] == [True] * 2


@pytest.mark.parametrize(
    ("drafter", "tree"), [("file", "4x2x2x1"), ("file", "auto"), ("several", "3x1"), ("hugging face", "2x1x1")]
)
def test_greedy_output_is_the_library_s_own(drafter, tree):
    """With any drafter; of one model twice, its memory has rows of both."""
    target, draft, tokenizer = pair()
    theirs = [llama_plain.decode(target, tokenizer(text)["input_ids"], 24) for text in (TEXT, "It was")]
    mixture = Mixture([draft, NGram(target.vocabulary, 2)])
    drafters = {"file": draft, "several": [draft, draft, mixture], "hugging face": load_pair().draft}
    scheme = "distinct:recursive_rejection" if drafter == "several" else "anchored:lorenz"
    assert decoded(target, drafters[drafter], temperature=0, scheme=scheme, tree=tree) == theirs
    assert decoded(target, None, temperature=0) == theirs


def law_of_two(model: md.GGUF, prompt: list[int], temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """What the first and the second new token are, by the model's own logits: all tokens side by side."""
    size, length = model.vocabulary, len(prompt)
    parents = [*range(-1, length - 1), *[length - 1] * size]
    logits = model.new(1).forward([prompt + list(range(size))], [parents]).logits[0, length - 1 :]
    laws = (logits.double() / temperature).softmax(-1)
    return laws[0], laws[0] @ laws[1:]


def distance(temperature: float, scheme: str) -> float:
    """How far the first two tokens of samples are from their laws, in total variation."""
    target, draft, prompt = md.GGUF(tiny_file("llama")), md.GGUF(tiny_file("llama", num_hidden_layers=1)), [3, 1, 4]
    counters = [Counter[int](), Counter[int]()]
    for seed in range(SAMPLES // ROWS):
        settings = dict(temperature=temperature, scheme=scheme, tree="2x1", measure=False, max_new_tokens=2)
        rows, _ = md.generate(
            target, draft, [prompt] * ROWS, generator=torch.Generator().manual_seed(seed), eos_token_id=[], **settings
        )
        for row in rows:
            for place, counts in enumerate(counters):
                counts[int(row[place])] += 1
    laws = law_of_two(target, prompt, 0.15)
    return max(
        sum(abs(counts[token] / SAMPLES - float(share)) for token, share in enumerate(law)) / 2
        for counts, law in zip(counters, laws, strict=True)
    )


BOUND = math.sqrt(61 / SAMPLES) / 2 + math.sqrt(math.log(2 / FALSE_ALARM) / (2 * SAMPLES))


@pytest.mark.parametrize("scheme", ["anchored:lorenz", pytest.param("iid:recursive_rejection", marks=pytest.mark.slow)])
def test_samples_have_the_law_of_the_logits(scheme):
    """False alarm with odds of one in a million: the mean distance is at most sqrt(cells / count) / 2 (McDiarmid)."""
    assert distance(0.15, scheme) < BOUND


def test_a_biased_twin_is_caught():
    assert distance(0.4, "anchored:lorenz") > BOUND


def test_the_command_line_decodes_records_and_replays(tmp_path):
    target, draft = pair_files()
    call = ["generate", "--target", target, "--draft", draft, "--prompt", TEXT, "--max-new-tokens", 12]
    assert printed(*call, "--tree", "2x1x1", "--trace", tmp_path / "t.jsonl", "--stop", "zzz")["records"][0]["text"]
    assert run("replay", tmp_path / "t.jsonl").exit_code == 0


def test_a_server_answers_as_generate_does():
    target, draft, tokenizer = pair()
    with served(service(target, draft, tokenizer)) as client:
        body = dict(model="toy", prompt=TEXT, max_tokens=16, temperature=0, stop=["\n\n\n"])
        answer = client.post("/v1/completions", json=body | {"n": 2}).json()
        chat = dict(model="toy", messages=[{"role": "user", "content": "Hello"}], max_tokens=4)
        assert client.post("/v1/chat/completions", json=chat).json()["choices"][0]["message"]["content"]
    text = tokenizer.decode(decoded(target, None, temperature=0)[0][:16])
    assert [choice["text"] for choice in answer["choices"]] == [text] * 2


@pytest.mark.parametrize("kind", ["q8_0", "f16"])
def test_quantised_weights_decode_as_the_library_does(kind):
    """The logits of a tree and those of one token differ by rounding, so only the first tokens are surely the same."""
    target, draft = map(md.GGUF, pair_files(kind))
    theirs = llama_plain.decode(target, pair()[2](TEXT)["input_ids"], 4)
    assert decoded(target, draft, temperature=0, tree="2x1x1")[0][:4] == theirs


def test_plans_tell_files_apart():
    files = pair_files()[0], tiny_file("llama"), pair_files()[0]
    known = [
        MeasuredPair(md.GGUF(file, CACHE_TYPE), pair()[1], md.scheme("iid:lorenz")).identity["target"] for file in files
    ]
    assert known[0]["kind"] == "GGUF"
    assert known[0] == known[2] != known[1]


@pytest.mark.parametrize("count", [1, 100])
def test_vocabularies_are_compared_token_by_token(count, tmp_path):
    """A few that are swapped are never drafted; many are two tokenizers."""
    tokenizer = load_pair().tokenizer
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    words = state["model"]["vocab"]
    names = {token: word for word, token in words.items()}
    for place in range(40, 40 + 2 * count, 2):
        words[names[place]], words[names[place + 1]] = place + 1, place
    tokenizer._tokenizer = tokenizer.backend_tokenizer.from_str(json.dumps(state))
    to_gguf.write(load_pair().draft, tmp_path / "other.gguf", "f16", tokenizer)
    call = ["generate", "--target", pair_files()[0], "--draft", tmp_path / "other.gguf", "--prompt", "a"]
    call += ["--max-new-tokens", "4", "--temperature", "0"]
    draft = md.GGUF(tmp_path / "other.gguf")
    if count > 1:
        ends_with_advice(run(*call), "differ: token 40 is")
        with pytest.raises(AdviceError, match="the vocabularies of target and draft differ: token 40 is"):
            md.generate(pair()[0], draft, [[1, 2]])
        return
    assert "2 of the draft's tokens are not the target's (token 40 is" in run(*call).stderr
    expected, _ = md.generate(pair()[0], None, [[1, 2]], temperature=0, max_new_tokens=8)
    with pytest.warns(UserWarning, match="never drafted"):
        tokens, _ = md.generate(pair()[0], SideBySide([draft, draft]), [[1, 2]], temperature=0, max_new_tokens=8,
                                scheme="distinct:recursive_rejection", tree="2x1")  # fmt: skip
    assert draft.undrafted_columns.tolist() == [40, 41]
    assert tokens[0].equal(expected[0])


def test_broken_files_get_one_line(tmp_path, monkeypatch):
    whole, path = tiny_file("llama").read_bytes(), tmp_path / "broken.gguf"

    def refused(path: Path) -> str:
        with pytest.raises(AdviceError, match=r"^[^\n]*; [^\n]*$") as caught:
            md.GGUF(path)
        return str(caught.value)

    assert "cannot read the model" in refused(path)
    for content, message in (
        (b"", "is no GGUF file"),
        (b"<html>not found</html>", "is no GGUF file"),
        (whole[:700], "is cut short or damaged"),
        (whole[:2000], "tensor 'token_embd.weight' data is not within the file bounds"),
        (whole[:-3], "data is not within the file bounds; get the file again"),
        (whole[:4] + b"\xff" * 3000, "is cut short or damaged"),
        (whole.replace(b"blk.1.attn_q", b"blk.1.attn_x"), "'blk.1.attn_q.weight' not found"),
        (whole.replace(b"llama", b"llamb"), "'llamb'"),
    ):
        path.write_bytes(content)
        assert message in refused(path)
    monkeypatch.setattr(file, "available", lambda device: 1000)
    assert "of memory and 0.0 MiB are free" in refused(tiny_file("llama"))
    monkeypatch.undo()
    loaded = md.GGUF(tiny_file("llama"))
    monkeypatch.setattr(memory, "available", lambda device: 1000)
    with pytest.raises(AdviceError, match="the keys and values of 256 tokens of llama take"):
        md.generate(loaded, None, [[1, 2]])


def test_settings_and_misuse_get_advice(tmp_path):
    with pytest.raises(AdviceError, match="cache_type is 'q9'"):
        md.GGUF(tiny_file("llama"), cache_type="q9")
    with pytest.raises(AdviceError, match="gpu_layers is -1"):
        md.GGUF(tiny_file("llama"), gpu_layers=-1)
    with pytest.raises(AdviceError, match="has no tokenizer"):
        LlamaTokenizer(md.GGUF(tiny_file("llama")).weights)
    target, draft = pair_files()
    ends_with_advice(run("generate", "--prompt", "a", "--draft", "layers:2", "--target", target), "; ")
    with pytest.raises(AdviceError, match="no folder; this command needs the weights of Hugging Face models"):
        load_pretrained(str(target), str(draft))
