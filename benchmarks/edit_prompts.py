"""Prompts that ask for edits of functions, made of this project's own code: python edit_prompts.py edits.jsonl.

A model that answers copies nearly all of a function, which is what people use code models for, and what look-ups are
good at. Functions are those of the core with the most lines up to a limit, one a file, in the order of their files.
"""

import argparse
import ast
import json
from collections.abc import Iterator
from pathlib import Path

CORE = Path(__file__).parents[1] / "multidraft"
FEWEST_LINES, MOST_LINES = 12, 40  # of a function
EDITS = (  # by turns; what is asked for leaves most of a function as it is
    "Rename this function to new_{name} and change nothing else.",
    "Add a line `logging.debug({name!r})` at the beginning of this function's body and change nothing else.",
    "Add type hints of your choice to all local variables of this function and change nothing else.",
    "Replace the docstring of this function by one of a single line and change nothing else.",
)


def functions() -> Iterator[str]:
    """The source of a function of each file that has one of the right length."""
    for path in sorted(CORE.rglob("*.py")):
        text = path.read_text()
        found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef) and node.args.args]
        sizes = {node.end_lineno - node.lineno: node for node in found if node.end_lineno is not None}
        if fitting := [size for size in sizes if FEWEST_LINES <= size < MOST_LINES]:
            yield ast.unparse(sizes[max(fitting)])


def prompts(count: int) -> Iterator[dict[str, str]]:
    """So many prompts, spread over the files."""
    every = list(functions())
    for index in range(count):
        source = every[index * len(every) // count]
        name = source.split("(")[0].split()[-1]
        edit = EDITS[index % len(EDITS)].format(name=name)
        text = f"{edit} Answer with the whole function only.\n```python\n{source}\n```"
        yield {"id": f"edit/{index}", "task": "edits", "prompt": text}


def main() -> None:
    """Write the prompts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--count", type=int, default=16)
    options = parser.parse_args()
    options.file.write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts(options.count)))


if __name__ == "__main__":
    main()
