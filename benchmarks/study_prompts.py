"""Write the prompts of a full run of the studies: a sample of every file of prompts, and of text held out of training.

python benchmarks/study_prompts.py FOLDER CORPUS --of-each 2 --out prompts.jsonl
"""

import argparse
import json
from itertools import chain
from pathlib import Path
from random import Random

from multidraft_research.training.corpus import read_text, split
from multidraft_research.training.recipe import Recipe

SHORTEST, LONGEST = 40, 1500  # characters, which leaves room in the embedded pair's context
Prompt = dict[str, str]


def main() -> None:
    """Take as many of each source, by turns, so that the first prompts of the file are of all of them too."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="files of prompts, *.jsonl")
    parser.add_argument("corpus", type=Path, help="the text that the embedded pair was trained on")
    parser.add_argument("--of-each", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    sources = [*files(options.folder), held_out(options.corpus)]
    chosen = [Random(options.seed).sample(source, options.of_each) for source in sources]
    lines = [json.dumps(prompt, ensure_ascii=False) for prompt in chain.from_iterable(zip(*chosen, strict=True))]
    options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


def files(folder: Path) -> list[list[Prompt]]:
    """The prompts of each file; those that an earlier file has are left out, and a file of which nothing is left."""
    known: set[str] = set()
    sources = []
    for path in sorted(folder.glob("*.jsonl"), reverse=True):  # spec_bench, which is wider, before mt_bench
        prompts = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        new_prompts = [{key: p[key] for key in ("id", "task", "prompt")} for p in prompts if p["prompt"] not in known]
        known |= {prompt["prompt"] for prompt in new_prompts}
        sources.append([prompt for prompt in new_prompts if SHORTEST <= len(prompt["prompt"]) <= LONGEST])
    return [source for source in sources if source]


def held_out(corpus: Path) -> list[Prompt]:
    """The paragraphs of the part that the embedded pair has not seen."""
    paragraphs = split(read_text(corpus), Recipe().held_out)[1].split("\n")
    fits = [(number, text) for number, text in enumerate(paragraphs) if SHORTEST <= len(text) <= LONGEST]
    return [{"id": f"held_out/{number}", "task": "held_out", "prompt": text} for number, text in fits]


if __name__ == "__main__":
    main()
