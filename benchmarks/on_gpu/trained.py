"""A pair larger than the embedded one, trained on the spot by the project's own code and left in a folder."""

import time
from dataclasses import replace
from pathlib import Path

from multidraft_research.training.evaluate import evaluate_pair
from multidraft_research.training.recipe import Recipe, Shape, train_pair

from multidraft.zoo import Pair, load_pair
from on_gpu.asked import Line, PieceOptions, Skipped

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


def measure(piece_options: PieceOptions) -> list[Line]:
    """Train, or go on from the last checkpoint; bits per byte on text that was held out."""
    recipe, text, folder = TINY if piece_options.quick else LARGE, corpus_of(piece_options), folder_of(piece_options)
    start = time.perf_counter()
    for role in train_pair(text, folder, recipe):
        print(f"{role}: {folder / role}", flush=True)
    pair = load_pair(folder)
    scores = evaluate_pair(text, pair, recipe).as_dict()
    sizes = {role: getattr(pair, role).num_parameters() for role in ("target", "draft")}
    return [dict(parameters=sizes, seconds=round(time.perf_counter() - start, 1)) | scores]


def corpus_of(piece_options: PieceOptions) -> Path:
    """The text to learn: this project's own pages with `quick`, which are always here."""
    if piece_options.quick:
        text = piece_options.out / "pages.txt"
        text.write_text("\n".join(page.read_text() for page in sorted((ROOT / "docs").glob("*.md"))))
        return text
    if piece_options.corpus is None:
        raise Skipped("there is no corpus; name one with --corpus FILE")
    return piece_options.corpus


def folder_of(piece_options: PieceOptions) -> Path:
    """Where the pair is."""
    return piece_options.out / "pair"


def load(piece_options: PieceOptions) -> Pair:
    """The pair on the device."""
    if not (folder_of(piece_options) / "draft" / "config.json").exists():
        raise Skipped("the pair has not been trained; see the piece that trains it")
    return on_device(load_pair(folder_of(piece_options)), piece_options)


def on_device(pair: Pair, piece_options: PieceOptions) -> Pair:
    """Both models there."""
    return pair._replace(target=pair.target.to(piece_options.device), draft=pair.draft.to(piece_options.device))
