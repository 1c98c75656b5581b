"""Models without weights, and several drafters as one: each says what it says it says, in laws that sum to one."""

import random
from collections import Counter
from typing import Any

import pytest
import torch
from hybrids import hybrid
from reading import chain, read_text
from tiny import tiny_model
from torch import Tensor

from multidraft.decoding.tree import MIN_COMPLETE_MASS
from multidraft.errors import AdviceError
from multidraft.models.corpus import SEARCHED, Corpus, read_texts
from multidraft.models.ensemble import MIN_CERTAINTY, LookupThenModel, Mixture, SideBySide, spread
from multidraft.models.lookups import LONG_MATCH, MAX_AWAY, MAX_CERTAINTY, Matches, size_class
from multidraft.models.ngram import MAX_FOLLOWERS, CountingReader, Lookup, NGram
from multidraft.models.prefix_models import TableModel, random_table
from multidraft.models.reader import Reader
from multidraft.models.scores import TokenScores
from multidraft.models.user_models import as_reader

EXACT = 1e-12
TEXT = [0, 1, 0, 0, 1, 1, 0]


@pytest.fixture(autouse=True)
def doubles(monkeypatch):
    """Drafters that count give float64, so that sums are exact."""
    monkeypatch.setattr(CountingReader, "dtype", torch.float64)


def table(vocabulary: int, seed: int) -> TableModel:
    return TableModel(random_table(vocabulary, 3, seed), vocabulary)


def scores_of_text(model: Reader, text: list[int], path: tuple[int, ...] = ()) -> list[TokenScores]:
    """What is said after a text of which all but the last token are kept, and after a path of pending tokens."""
    model = model.new(len(text))
    read_text(model, [text[:-1]])
    each = model.forward_each([[text[-1], *path]], [chain(1 + len(path))], "last")
    return [scores.by_token() for scores in each]


def law(model: Reader, text: list[int], path: tuple[int, ...] = (), vocabulary: int = 0) -> Tensor:
    """The distribution over all tokens."""
    [scores] = scores_of_text(model, text, path)
    return spread(scores, vocabulary or model.vocabulary)[0, -1].exp()


def test_a_node_s_prefix_is_what_was_kept_and_its_path():
    """Of a model whose probabilities spell the prefix out: its number in base 5 over 5 ** 6, and the rest."""

    def spelled(prefix: tuple[int, ...]) -> Tensor:
        number = sum(token * 5**i for i, token in enumerate(prefix)) / 5**6
        return torch.tensor([number, 1 - number, 0, 0, 0], dtype=torch.float64)

    model = TableModel(spelled, 5)
    logits = model.forward([[3, 1, 2], [4]], [[-1, 0, 1], [-1]], "last").logits
    assert torch.equal(logits, torch.stack([spelled((3, 1, 2)).log(), spelled((4,)).log()])[:, None])
    model.commit([[0, 1, 2], [0]])
    model.forward([[1], []], [[-1], []])
    parents = [-1, 1]  # one more node at the root, and one below it
    logits = model.forward([[2, 3], [2, 3]], [parents, [-1, -1]]).logits
    prefixes = [[(3, 1, 2, 2), (3, 1, 2, 2, 3)], [(4, 2), (4, 3)]]
    assert torch.equal(
        logits,
        torch.stack([torch.stack([spelled(tokens).log() for tokens in row_prefixes]) for row_prefixes in prefixes]),
    )
    model.commit([[1, 2], [0]])
    model.gather([1, 0])
    assert [row.kept for row in model.rows] == [[4, 2], [3, 1, 2, 2, 3]]


def test_a_random_table_is_a_distribution_that_depends_on_the_last_tokens():
    first_table, again = (random_table(5, depth=2, seed=3, concentration=0.01) for _ in range(2))
    prefixes = [(), (0,), (0, 0), (1, 0), (0, 1)]
    rows = torch.stack([first_table(prefix) for prefix in prefixes])
    assert torch.equal(rows, torch.stack([again(prefix) for prefix in reversed(prefixes)]).flip(0))
    assert torch.allclose(rows.sum(-1), torch.ones(5, dtype=torch.float64), rtol=0, atol=EXACT)
    assert len(set(map(tuple, rows.tolist()))) == 5
    assert first_table((4, 4, 1, 0)) is first_table((1, 0))
    assert not torch.equal(first_table(()), random_table(5, 2, seed=4)(()))


def counted(text: list[int], run: list[int], vocabulary: int) -> Tensor:
    """Witten and Bell's estimate as their recursion has it, counting everything afresh; what was not seen has none."""
    lower = counted(text, run[1:], vocabulary) if run else torch.zeros(vocabulary).double()
    after = [text[i] for i in range(len(run), len(text)) if text[i - len(run) : i] == run]
    counts = torch.tensor([float(Counter(after)[token]) for token in range(vocabulary)]).double()
    kinds = len(set(after))
    return (counts + kinds * lower) / (len(after) + kinds) if after else lower


@pytest.mark.parametrize("order", [1, 2, 4])
def test_n_gram_counts_the_text_so_far(order):
    text = torch.randint(4, (40,), generator=torch.Generator().manual_seed(order)).tolist()
    for path in ((), (2, 3)):
        run = [*text, *path][len(text) + len(path) - order + 1 :] if order > 1 else []
        expected = counted(text[:-1], run, 4)
        assert torch.allclose(law(NGram(4, order), text, path), expected / expected.sum(), rtol=0, atol=EXACT)
        assert torch.allclose(
            scores_of_text(NGram(4, order), text, path)[0].logits.exp().sum(), expected.sum(), atol=EXACT
        )


def test_a_corpus_is_refined_by_the_text():
    corpus = [0, 1, 2, 0, 1, 3]
    unread, expected = law(NGram(5, 2, corpus), [1]), counted(corpus, [1], 5)
    assert torch.allclose(unread, expected / expected.sum(), rtol=0, atol=EXACT)
    read = law(NGram(5, 2, corpus), [1, 4, 1])
    assert read[4] > unread[4]
    assert read[2] > law(NGram(5, 2), [1, 4, 1])[2]


def test_n_gram_brings_few_tokens_of_a_large_vocabulary():
    text = [token for token in range(300) for _ in range(1 + token % 3)]
    [scores] = scores_of_text(NGram(49_152, 3), [*text, 0])
    assert scores.logits.shape[-1] <= 2 * MAX_FOLLOWERS
    assert law(NGram(49_152, 1), [*text, 0]).count_nonzero() == MAX_FOLLOWERS


def test_before_anything_was_seen_the_latest_token_comes_again():
    for model in (NGram(9), Lookup(9)):
        assert torch.equal(law(model, [5]), torch.eye(9).double()[5])


@pytest.mark.parametrize(
    ("text", "path", "token", "texts"),
    [
        ([7, 1, 2, 3, 8, 1, 2, 4, 9, 1, 2], (), 4, []),  # the latest of two
        ([7, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2], (), 3, []),  # a longer run counts more than a later one
        ([7, 1, 2, 3, 8, 1], (2,), 3, []),  # drafted tokens belong to the run
        ([5, 6], (), 5, []),  # nothing matches but the empty run
        ([5], (), 5, []),  # nothing was read
        ([5], (), 6, [[9, 5, 6]]),  # a corpus is known before the text
        ([7, 1, 2, 3, 8, 1, 2], (), 3, [[1, 2, 6]]),  # where the text has as long a run, the corpus is not asked
        ([7, 1, 2, 3, 8, 1, 2], (), 6, [[8, 1, 2, 6]]),  # where the corpus has a longer one, it is
        ([9, 4, 1], (2, 3, 4), 5, [[1, 2, 3, 4, 5]]),  # also along a path
        ([9, 4, 1], (2, 3), 6, [[1, 2, 3], [2, 3, 6]]),  # behind the end of a text nothing follows
        ([9, 1, 2, 3, 4, 7], (), 6, [[1, 2, 3, 4, 5, 6, 8]]),  # a copy of a corpus goes on behind a token replaced
    ],
)
def test_look_up(text, path, token, texts):
    model = Lookup(10, corpus=Corpus(texts))
    [scores] = scores_of_text(model, text, path)
    assert scores.logits.shape == (1, 1, 1)
    assert torch.equal(law(model, text, path), torch.eye(10).double()[token])


@pytest.mark.parametrize("seed", range(30))
def test_a_corpus_finds_the_longest_run_and_what_follows_it(seed):
    draw = random.Random(seed)
    texts = [[draw.randrange(2 + seed % 3) for _ in range(draw.randrange(40))] for _ in range(seed % 4)]
    for end in ([draw.randrange(3) for _ in range(length)] for length in range(1, SEARCHED + 1)):
        found = {
            length: {text[at] for text in texts for at in range(length, len(text)) if text[at - length : at] == run}
            for length in range(1, len(end) + 1)
            if (run := end[-length:])
        }
        longest = max((length for length in found if found[length]), default=0)
        _, length, token = Corpus(texts).find(end)
        assert length == longest
        assert not length or token in found[length]


def test_a_corpus_is_read_from_a_file_or_a_folder(tmp_path, monkeypatch, caplog):
    files = {"a.txt": b"one", "below/b.py": b"two", ".git/c": b"hidden", "d.png": b"P\0N", "e.txt": b"\xff"}
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    assert read_texts(tmp_path) == ["one", "two"]
    assert "2 files are no text" in caplog.text
    assert read_texts(tmp_path / "a.txt") == ["one"]
    for name in ("d.png", "e.txt", "nowhere"):
        with pytest.raises(AdviceError, match="holds no text"):
            read_texts(tmp_path / name)
    monkeypatch.setattr("multidraft.models.corpus.MAX_BYTES", 5)
    with pytest.raises(AdviceError, match="has over 5 bytes of text; give a part of it"):
        read_texts(tmp_path)


def test_the_place_that_is_copied_goes_on_as_if_it_were_searched_for(monkeypatch):
    """What the corpus says along a text that copies it, with tokens replaced, is what a search at every token says."""
    text, right, said = [*range(9, 30), 3, *range(31, 60), *range(5), 7], Matches.place_elsewhere, []
    corpus = Corpus([range(60)])
    for follow in (right, lambda self, _, *where: right(self, None, *where)):
        monkeypatch.setattr(Matches, "place_elsewhere", follow)
        matches = Matches(SEARCHED, [corpus])
        matches.read(text)
        said.append((matches.tallies, [matches.situation((1, 2, 3, 4)[:count]).elsewhere for count in range(5)]))
    assert said[0] == said[1]


def guess(known: list[int], text: list[int], longest: int) -> tuple[int, int]:
    """What followed the longest end of a text that has occurred among the known tokens, and its length."""
    for length in range(min(longest, len(text)), -1, -1):
        end = text[len(text) - length :]
        places = [at for at in range(length, len(known)) if known[at - length : at] == end]
        if places:
            return known[places[-1]], length
    return text[-1], 0


def sayings(text: list[int], kept: int, longest: int) -> list[list[tuple[int, Any, int]]]:
    """By place, and for what comes next, what is guessed there, of which kind, by a run of how many tokens."""
    said, known, right = list[list[tuple[int, Any, int]]](), text[:kept], False
    copied = None  # the place that is copied, how many tokens were right, and how many came since it was left
    for end in range(len(text) + 1):
        before = text[:end]
        token, length = guess(known[:end], before, longest) if end and known[:end] else (None, 0)
        said.append([] if token is None else [(token, ("match", size_class(length), right), length)])
        if copied and copied[0] < len(known[:end]):
            said[-1].append((known[copied[0]], ("copy", copied[1], size_class(copied[2])), 1 + 2 * copied[1]))
        if end == len(text):
            break
        right, actual = token == text[end], text[end]
        if copied:
            place, copies, away = copied
            if place < len(known[:end]) and known[place] == actual:
                copied = None if copies == LONG_MATCH - 1 else (place + 1, copies + 1, away)
            else:
                copied = (place + 1, 0, 1) if copies else None if away == MAX_AWAY else (place, 0, away + 1)
        if not copied and said[-1] and not right and length >= LONG_MATCH:
            run = before[end - length :]
            copied = (1 + max(at for at in range(length, len(known[:end])) if known[at - length : at] == run), 0, 1)
    return said


def likeliest(text: list[int], kept: int, longest: int) -> tuple[int, float]:
    """The likeliest guess after a text, by going through its kept tokens from the beginning."""
    *said, last = sayings(text, kept, longest)
    tried = [(kind, token == text[place]) for place, guesses in enumerate(said[:kept]) for token, kind, _ in guesses]
    hits, trials = Counter(kind for kind, right in tried if right), Counter(kind for kind, _ in tried)
    likely = [
        (token, (hits[kind] + 2 * max(length**1.5, 0.01) / (length**1.5 + 4)) / (trials[kind] + 2))
        for token, kind, length in last
    ]
    token, chance = max(likely, key=lambda pair: pair[1], default=(text[-1], 0.01))
    return token, min(chance, 0.998)


def repetitive(seed: int) -> list[int]:
    """A text that copies itself, with tokens replaced, left out and put in."""
    draw, text = random.Random(seed), [0, 1, 2]
    while len(text) < 60:
        start = draw.randrange(len(text) - 2)
        text += [token if draw.random() < 0.9 else draw.randrange(6) for token in text[start : start + 12]]
        text += [draw.randrange(6)] * draw.randrange(2)
    return text


@pytest.mark.parametrize("longest", [1, 3, 1000])
def test_the_likeliest_guess_is_of_the_kind_that_was_most_often_right(longest):
    """Matches, and places where a copy goes on after tokens were replaced; also where the text goes on with a path."""
    text, seen, kinds = repetitive(longest), set(), set()
    for end in range(1, len(text) + 1):
        for path in ((), tuple(text[end : end + 3]), (5, 0)):
            whole = [*text[:end], *path]
            token, chance = likeliest(whole, end - 1, longest)
            [scores] = scores_of_text(Lookup(9, longest), text[:end], path)
            assert (scores.ids.item(), scores.logits.exp().item()) == (token, pytest.approx(chance, abs=EXACT))
            seen.add(round(chance, 6))
            kinds |= {kind[0] for _, kind, _ in sayings(whole, end - 1, longest)[-1]}
    assert len(seen) > 8
    assert 0 < min(seen) < max(seen) < 1
    assert kinds == ({"match", "copy"} if longest >= LONG_MATCH else {"match"})


def test_a_text_of_one_token_again_and_again_is_read_in_a_moment():
    """And is not said to be certain: a law that sums to one would count as a model's."""
    matches = Matches(1000)
    matches.read([5] * 5000)
    assert matches.next_token([5, 5]) == (5, MAX_CERTAINTY)
    assert MAX_CERTAINTY < MIN_COMPLETE_MASS
    assert len(matches.length) <= 2 * 5000


# Several drafters as one


def confident(laws: Tensor) -> Tensor:
    """Weights that depend on the prefix: more for the member that is surer of itself."""
    return laws.amax(-1).exp() / laws.amax(-1).exp().sum(-1, keepdim=True)


def test_mixture_is_the_weighted_sum():
    members = [table(4, 2), NGram(4), Lookup(4)]
    laws = torch.stack([law(member, TEXT) for member in members])
    weights = torch.tensor([0.5, 0.5, 0.0]).double()
    assert torch.allclose(law(Mixture(members, weights.tolist()), TEXT), weights @ laws, rtol=0, atol=EXACT)
    by_prefix = confident(laws.log())
    assert torch.allclose(law(Mixture(members, confident), TEXT), by_prefix @ laws, rtol=0, atol=EXACT)


@pytest.mark.parametrize("text", [TEXT, [0, 1, 2], [3]])
def test_copying_trusts_a_match_as_far_as_it_is_certain(text):
    copied, other = Lookup(4), table(4, 2)
    sure = scores_of_text(copied, text)[0].logits.exp().item()
    share = sure if sure < MIN_CERTAINTY else 1.0
    got = law(LookupThenModel([copied, other]), text)
    assert torch.allclose(got, share * law(copied, text) + (1 - share) * law(other, text), rtol=0, atol=EXACT)
    assert got.sum() == pytest.approx(1, abs=EXACT)
    [scores] = scores_of_text(LookupThenModel([copied, other]), text)
    assert scores.logits.exp().sum() == pytest.approx(1 if sure < MIN_CERTAINTY else sure, abs=EXACT)


@pytest.mark.parametrize("kind", [LookupThenModel])
def test_copying_asks_the_other_where_it_is_unsure_and_lets_it_catch_up(kind):
    """Growing texts and trees, with turns in which it only looks up: it says what it would after reading all afresh."""
    draw, copied, other = random.Random(0), Lookup(4), table(4, 2)
    model, text, was_asked = kind([copied, other]).new(99), [0], set[bool]()
    for turn in range(24):
        new_tokens, parents = [text[-1], *(draw.randrange(4) for _ in range(3))], [-1, 0, 0, 1]
        lookup_only = turn % 6 in (1, 4, 5)
        root, others = (
            model.forward([new_tokens[:1]], [parents[:1]], "last", lookup_only).by_token(),
            model.forward([new_tokens[1:]], [parents[1:]], "all", lookup_only).by_token(),
        )
        lines = torch.cat([spread(scores, 4)[0].exp() for scores in (root, others)])
        for line, path in zip(lines, [(), (1,), (2,), (1, 3)], strict=True):
            tokens = tuple(new_tokens[node] for node in path)
            expected = law(copied if lookup_only else LookupThenModel([copied, other]), text, tokens)
            assert torch.allclose(line, expected, rtol=0, atol=EXACT)
            was_asked.add(int((line > 0).sum()) > 1)
        kept = [0] if turn % 2 else [0, 1, 3]
        model.commit([kept])
        text = [*text[:-1], *(new_tokens[node] for node in kept), draw.randrange(4)]
    assert was_asked == {False, True}


class Forgetful(LookupThenModel):
    """Wrong: what was kept while the other was not asked is forgotten."""

    def unread(self, row: int) -> int:
        return 0


def test_the_comparison_catches_an_other_that_has_missed_tokens():
    with pytest.raises(AssertionError):
        test_copying_asks_the_other_where_it_is_unsure_and_lets_it_catch_up(Forgetful)


@pytest.mark.parametrize("kind", [Lookup(5), NGram(5), LookupThenModel([Lookup(5), table(5, 1)])])
def test_what_a_row_keeps_without_a_pass_is_as_if_it_was_read(kind):
    readers = kind.new(20), kind.new(20)
    for reader in readers:
        read_text(reader, [[1, 2], [3, 1, 3]])
    readers[0].keep(1, [4, 1, 3, 4])
    Reader.keep(readers[1], 1, [4, 1, 3, 4])
    (kept, ids), (expected, expected_ids) = (reader.forward([[0], [1]], [[-1], [-1]]).by_token() for reader in readers)
    assert torch.equal(kept, expected)
    assert torch.equal(ids, expected_ids)
    assert [row.kept for row in readers[0].rows] == [[1, 2], [3, 1, 3, 4, 1, 3, 4]]


def test_a_row_that_is_not_asked_hands_nothing_on_beside_rows_that_are():
    """What it has missed was read at every level, and a head cannot read it twice."""
    model = LookupThenModel([Lookup(10), table(10, 2)])
    read_text(model, [[9, 4, 5]])
    model.catch_up({0: 1})
    model.forward([[6, 7]], [[-1, 0]], "none")
    assert model.queue(0, 0) == ([], [])
    assert model.queue(0, 4) == ([4, 5, 6, 7], [-1, 0, 1, 2])


def test_members_are_cut_to_their_most_likely_tokens_and_tokens_are_distinct():
    flat = TableModel(lambda prefix: torch.arange(1, 601).double() / (300 * 601), 600)
    [scores] = scores_of_text(Mixture([flat, Lookup(600)], [0.5, 0.5]), TEXT)
    drawn = scores.ids[scores.logits > -torch.inf].tolist()
    assert len(set(drawn)) == len(drawn) == 257
    assert set(drawn) - set(range(344, 600)) == {guess(TEXT[:-1], TEXT, 3)[0]}
    assert scores.logits.exp().sum() == pytest.approx(1, abs=EXACT)


def test_the_comparison_catches_a_sum_that_forgets_a_token_said_twice(monkeypatch):
    """Wrong: of columns of one token, the last one counts."""
    monkeypatch.setattr(torch.Tensor, "scatter_add", lambda self, *given: self.scatter(*given))
    with pytest.raises(AssertionError):
        test_copying_trusts_a_match_as_far_as_it_is_certain(TEXT)


def test_several_answer_one_by_one_and_some_in_few_columns():
    members = [table(4, 2), Lookup(4), Mixture([table(4, 3), NGram(4)])]
    several = scores_of_text(SideBySide(members), TEXT)
    assert len(several) == 3
    for scores, member in zip(several, members, strict=True):
        assert torch.equal(spread(scores, 4)[0, 0].exp(), law(member, TEXT))


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (lambda: SideBySide([]), "pass at least one"),
        (lambda: Mixture([table(4, 1), table(9, 1)]), "of vocabularies .4, 9. do not fit"),
        (lambda: Mixture([table(4, 1), table(4, 2)], [0.5]), "make no mixture of 2 drafters"),
        (lambda: Mixture([table(4, 1)], [float("nan")]), "make no mixture"),
        (lambda: LookupThenModel([table(4, 1), Lookup(4)]), "LookupThenModel mixes two drafters"),
        (lambda: NGram(4, 0), "use at least 1"),
        (lambda: Lookup(4, 0), "use at least 1"),
    ],
)
def test_advice(make, advice):
    with pytest.raises(AdviceError, match=advice):
        make()


# Rows that come, leave and are copied


def gguf(_: int) -> Reader:
    from ggufs import CACHE_TYPE, tiny_file  # skips where no library for GGUF files is installed

    from multidraft.models.gguf.model import GGUF

    return GGUF(tiny_file("llama"), cache_type=CACHE_TYPE)


HUGGING_FACE = {"model": ("llama", "gpt2"), "gated delta nets": ("qwen3_5", "qwen3_next"), "paths": ("mamba2", "bamba")}
READERS = {
    "llama.cpp": gguf,
    "table": lambda _: table(5, 1),
    "counts": lambda _: NGram(5, 3),
    "look-up": lambda _: Lookup(5),
    "look-up in a corpus": lambda _: Lookup(5, corpus=[4, 2, 2, 0, 1, 4, 1]),
    "several": lambda _: SideBySide([tiny_model("llama"), NGram(61, 3)]),
    "mixture": lambda _: Mixture([tiny_model("llama"), NGram(61, 3)]),
    "copying": lambda _: LookupThenModel([Lookup(61), tiny_model("llama")]),
}


def make_reader(kind: str, which: int = 0) -> Reader:
    """A reader of some kind, and another one."""
    if kind not in HUGGING_FACE:
        return READERS[kind](which)
    return as_reader((tiny_model if kind == "model" else hybrid)(HUGGING_FACE[kind][which]))


TEXTS = [[0, 3, 1, 4, 2, 2, 0, 1, 3, 3], [3, 3, 1, 3, 3, 0, 3, 3, 1, 4, 3, 1]]


def heard(model: Reader, tokens: list[list[int]], row: int) -> Tensor:
    """What is said of one row behind chains of tokens, which are forgotten."""
    each = model.forward_each(tokens, [chain(len(row_tokens)) for row_tokens in tokens])
    model.commit([[]] * len(tokens))
    laws = [spread(scores.by_token(), model.vocabulary)[row, : len(tokens[row])].double() for scores in each]
    return torch.stack(laws).exp()


@pytest.mark.parametrize("kind", [*HUGGING_FACE, *READERS])
def test_rows_and_parts_read_on_as_ones_that_have_read_nothing_else(kind):
    model = make_reader(kind)
    whole, short, late = (model.new(30) for _ in range(3))
    read_text(whole, TEXTS)
    read_text(late, [TEXTS[0][:3]])
    part = whole.fork(1, 6, 20)
    read_text(short, [TEXTS[1][:6]])
    new_tokens = [[3, 1, 0], [1, 2], [4]]
    expected = heard(short, [new_tokens[0]], 0)
    assert torch.allclose(heard(part, [new_tokens[0]], 0), expected, atol=1e-5)
    before = [heard(whole, new_tokens[:2], row) for row in range(2)]
    whole.extend(late)
    whole.gather([2, 1, 0, 1])
    for row, old in ((2, 0), (1, 1), (3, 1)):
        got = heard(whole, [new_tokens[2], new_tokens[1], new_tokens[0], new_tokens[1]], row)
        assert torch.allclose(got, before[old], atol=1e-5)
    whole.gather([0])
    first = model.new(30)
    read_text(first, [TEXTS[0][:3]])
    assert torch.allclose(heard(whole, [new_tokens[0]], 0), heard(first, [new_tokens[0]], 0), atol=1e-5)
    read_text(part, [TEXTS[1][6:]])
    read_text(short, [TEXTS[1][6:]])
    assert torch.allclose(heard(part, [new_tokens[0]], 0), heard(short, [new_tokens[0]], 0), atol=1e-5)


@pytest.mark.parametrize("kind", [*HUGGING_FACE, *READERS])
def test_misuse_gets_advice(kind):
    model = make_reader(kind).new(20)
    read_text(model, TEXTS)
    model.forward_each([[1, 2], [3]], [[-1, 0], [-1]])
    for chosen, advice in (([[1], []], "no path of the tree"), ([[0]], "1 rows for a reader of 2")):
        with pytest.raises(AdviceError, match=advice):
            model.commit(chosen)
    with pytest.raises(AdviceError, match="pending token 2 has parent 2"):
        model.forward_each([[1], [1]], [[2], [0]])
    with pytest.raises(AdviceError, match="1 rows for a reader of 2"):
        model.forward_each([[1]], [[-1]])
    other = model.new(20)
    read_text(other, TEXTS)
    with pytest.raises(AdviceError, match="tokens are pending"):
        other.extend(model)
    if kind in (*HUGGING_FACE, "llama.cpp"):
        with pytest.raises(AdviceError, match="rows of two different models"):
            model.extend(make_reader(kind, 1))
        with pytest.raises(AdviceError, match="cannot take 11 tokens of row 0"):
            model.fork(0, 11, 20)
