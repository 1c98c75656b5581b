"""Look-ups along recorded answers: ours, and what other engines look up, by tokens a pass and by speed at given prices.

No model is run: a pass keeps the drafts that agree with the answer, and one token more. A pass over n drafts takes
1 + p n passes without; ours, which knows the price p, drafts as long as it pays. The others do by default, or as their
documentation advises, with

    transformers            what follows the first place of the last two tokens, or of the last one: ten drafts
    vLLM n-gram             the first place of two to five tokens, as many as occur: five drafts
    vLLM suffix             the likeliest chain by how often tokens followed a run: as many drafts as the run has tokens
    llama.cpp ngram-simple  the latest place of twelve tokens: 48 drafts
"""

from collections.abc import Callable, Iterator

from multidraft.models.lookups import Matches
from multidraft.models.ngram import MAX_RUN, History
from multidraft_research.studies.running.cells import Cell
from multidraft_research.studies.running.study import Captured, Finding, Panel, Study

ChainDraft = Callable[[list[int], float], list[int]]  # the chain that is drafted after a text, by the price of a token
PRICES, CHAIN, MARGIN = (0.02, 0.05, 0.1, 0.2), 16, 1.2  # and of ours: tokens at most, and reach over price at least
DEPTH, MIN_CHANCE = 24, 0.1  # of suffix decoding in vLLM: of a match with its chain, and of the chain
TOKENS, SPEED = "tokens a pass", "times plain"
OURS, PROMPT_LOOKUP = "ours", "transformers"
NGRAM, SUFFIX, SIMPLE = "vLLM n-gram", "vLLM suffix", "llama.cpp ngram-simple"


def longest_match() -> ChainDraft:
    """Our look-up: the likeliest token by match and record, for as long as a draft is likelier than it costs."""
    matches = Matches(MAX_RUN)

    def draft(text: list[int], price: float) -> list[int]:
        matches.read(text)
        drafts, reach = list[int](), 1.0
        while len(drafts) < CHAIN and (guess := matches.next_token(drafts)) is not None:
            reach *= guess[1]
            if reach <= MARGIN * price:
                break
            drafts.append(guess[0])
        return drafts

    return draft


def fixed_run(longest: int, shortest: int, drafts: int, latest: bool = False) -> Callable[[], ChainDraft]:
    """What follows the first or the latest occurrence of the last tokens, as many as occur between two numbers."""

    def draft(text: list[int], price: float) -> list[int]:
        for length in range(min(longest, len(text) - 1), shortest - 1, -1):
            run, places = text[-length:], range(length, len(text))
            for place in reversed(places) if latest else places:
                if text[place - 1] == run[-1] and text[place - length : place] == run:
                    return text[place : place + drafts]
        return []

    return lambda: draft


def suffix_decoding() -> ChainDraft:
    """SuffixDecoding (Oliaro et al., 2025) in one text, a chain as in vLLM.

    Behind every run that ends the text the most frequent token follows, and again, for as many tokens as the run has,
    and while the product of their shares is at least 0.1; of all such chains the one with the largest sum of products.
    """
    history = History(DEPTH - 1)

    def chain(run: tuple[int, ...]) -> tuple[float, list[int]]:
        drafts, chance, total = list[int](), 1.0, 0.0
        while len(drafts) < len(run) and (followers := history.followers.get((*run, *drafts))):
            token = max(followers, key=lambda token: followers[token])
            chance *= followers[token] / sum(followers.values())
            if chance < MIN_CHANCE:
                break
            drafts, total = [*drafts, token], total + chance
        return total, drafts

    def draft(text: list[int], price: float) -> list[int]:
        history.read(text)
        runs = [tuple(text[-length:]) for length in range(1, min(DEPTH, len(text)))]
        return max((chain(run) for run in runs if run in history.followers), default=(0.0, list[int]()))[1]

    return draft


KINDS: dict[str, Callable[[], ChainDraft]] = {
    OURS: longest_match,
    PROMPT_LOOKUP: fixed_run(2, 1, 10),
    NGRAM: fixed_run(5, 2, 5),
    SIMPLE: fixed_run(12, 12, 48, latest=True),
    SUFFIX: suffix_decoding,
}


def decode(draft: ChainDraft, prompt: list[int], answer: list[int], price: float) -> tuple[int, int]:
    """The passes that an answer takes, and the tokens that are drafted for it."""
    whole, count, passes, drafted = [*prompt, *answer], len(prompt), 0, 0
    while count < len(whole):
        drafts, right = draft(whole[:count], price)[: len(whole) - count - 1], 0
        while right < len(drafts) and drafts[right] == whole[count + right]:
            right += 1
        count, passes, drafted = count + right + 1, passes + 1, drafted + len(drafts)
    return passes, drafted


def measure(part: Captured) -> Iterator[Cell]:
    """Every kind at every price."""
    for name, begin in KINDS.items():
        for price in PRICES:
            passes, drafted = decode(begin(), [*part.prompt], [*part.answer], price)
            yield Cell(TOKENS, name, price, len(part.answer), passes)
            yield Cell(SPEED, name, price, len(part.answer), passes + price * drafted)


def faster(text: str, than: str) -> Finding:
    """That our look-up is faster than another where a drafted token takes a tenth of a pass."""
    return Finding(text, (SPEED, OURS, 0.1), (SPEED, than, 0.1))


STUDY = Study(
    paper="Prompt Lookup Decoding (Saxena, 2023); SuffixDecoding (Oliaro et al., 2025)",
    panels={
        TOKENS: Panel("tokens a pass", "price of a drafted token, in passes"),
        SPEED: Panel("times plain decoding", "price of a drafted token, in passes"),
    },
    on_capture=measure,
    findings=(
        faster("the longest match is faster than short runs", PROMPT_LOOKUP),
        faster("the longest match is faster than runs of twelve", SIMPLE),
        faster("the longest match is faster than counts", SUFFIX),
    ),
)
