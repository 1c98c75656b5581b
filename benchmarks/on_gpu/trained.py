"""A pair larger than the embedded one, trained on the spot by the project's own code and left in a folder."""

import time
from dataclasses import replace
from pathlib import Path

from multidraft_research.training.evaluate import evaluate_pair
from multidraft_research.training.recipe import Recipe, Shape, train_pair

from multidraft.zoo import Pair, load_pair
from on_gpu.asked import Asked, Line, Skipped

LARGE = Recipe(
    target_steps=2400,
    draft_steps=2400,
    warmup=100,
    checkpoint_every=200,
    target=Shape(width=1024, layers=12, inner=2816, heads=16),  # 158 million parameters
    draft=Shape(width=512, layers=3, inner=1408, heads=8),  # 12 million, and few layers: each is a wait on a GPU
)
TINY = replace(LARGE, vocabulary=300, window=16, batch=2, target_steps=2, draft_steps=2, held_out=0.1)
TINY = replace(TINY, target=Shape(64, 2, 96, 2), draft=Shape(32, 1, 48, 1))
ROOT = Path(__file__).parents[2]


def measure(asked: Asked) -> list[Line]:
    """Train, or go on from the last checkpoint; bits per byte on text that was held out."""
    recipe, text, folder = TINY if asked.quick else LARGE, corpus_of(asked), folder_of(asked)
    start = time.perf_counter()
    for role in train_pair(text, folder, recipe):
        print(f"{role}: {folder / role}", flush=True)
    pair = load_pair(folder)
    scores = evaluate_pair(text, pair, recipe).as_dict()
    sizes = {role: getattr(pair, role).num_parameters() for role in ("target", "draft")}
    return [dict(parameters=sizes, seconds=round(time.perf_counter() - start, 1)) | scores]


def corpus_of(asked: Asked) -> Path:
    """The text to learn: this project's own pages with `quick`, which are always here."""
    if asked.quick:
        text = asked.out / "pages.txt"
        text.write_text("\n".join(page.read_text() for page in sorted((ROOT / "docs").glob("*.md"))))
        return text
    if asked.corpus is None:
        raise Skipped("there is no corpus; name one with --corpus FILE")
    return asked.corpus


def folder_of(asked: Asked) -> Path:
    """Where the pair is."""
    return asked.out / "pair"


def load(asked: Asked) -> Pair:
    """The pair on the device."""
    if not (folder_of(asked) / "draft" / "config.json").exists():
        raise Skipped("the pair has not been trained; see the piece that trains it")
    return on_device(load_pair(folder_of(asked)), asked)


def on_device(pair: Pair, asked: Asked) -> Pair:
    """Both models there."""
    return pair._replace(target=pair.target.to(asked.device), draft=pair.draft.to(asked.device))
