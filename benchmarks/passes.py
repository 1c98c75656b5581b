"""Passes over few tokens on a CPU: with packed weights, and by transformers alone, by turns.

    python benchmarks/passes.py --threads 2
    python benchmarks/passes.py FOLDER --rows 16 --new 1 --context 1000 --dtype float32 --json

Rows have from half to all of the context, as in a server. Both ways read over the same kind of cache; transformers' is
its model as it is, with `sdpa`. Without a folder, SmolLM2's is read.
"""

import time
from functools import partial
from pathlib import Path
from statistics import median

import torch
from pass_cases import parser_of, show
from platformdirs import user_cache_path
from transformers import PreTrainedModel

from multidraft.models.huggingface.from_gguf import folder_of
from multidraft.models.huggingface.loading import load_model
from multidraft.models.huggingface.masks import CausalLM
from multidraft.models.reader import chain_parents
from multidraft.zoo import smollm2

ROUNDS = 20


def with_texts(model: PreTrainedModel, rows: int, context: int, is_ours: bool) -> CausalLM:
    """A reader that has read random texts, the longest of this length, through our view of the model or itself."""
    reader, random = CausalLM(model, 2 * context), torch.Generator().manual_seed(0)
    reader.view = reader.view if is_ours else model
    lengths = [context - row * context // (2 * rows) for row in range(rows)]
    size = (1, context)
    texts = [torch.randint(model.config.vocab_size, size, generator=random)[0, :length].tolist() for length in lengths]
    reader.forward(texts, [chain_parents(length) for length in lengths], "none")
    reader.commit([list(range(length)) for length in lengths])
    return reader


def milliseconds(reader: CausalLM, new: int) -> float:
    """A pass over a chain of so many tokens in each row, which is forgotten."""
    rows = len(reader.rows)
    start = time.perf_counter()
    reader.forward([list(range(new))] * rows, [chain_parents(new)] * rows)
    seconds = time.perf_counter() - start
    reader.commit([[]] * rows)
    return 1e3 * seconds


def compared(model: PreTrainedModel, rows: int, new: int, context: int) -> dict[str, float | int]:
    """The median pass of each way."""
    ways = [(with_texts(model, rows, context, is_ours), list[float]()) for is_ours in (True, False)]
    for _ in range(ROUNDS + 1):
        for reader, times in ways:
            times.append(milliseconds(reader, new))
    ours, theirs = (median(times[1:]) for _, times in ways)
    return dict(rows=rows, new=new, context=context, ours=ours, transformers=theirs, ratio=ours / theirs)


def main() -> None:
    """Compare, and print a table or JSON."""
    parser = parser_of(__doc__, [300])
    parser.add_argument("folder", nargs="?", type=Path, help="a model's, as transformers reads it")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    folder = options.folder or folder_of(smollm2.file("target"), user_cache_path("multidraft", appauthor=False))
    model = load_model(str(folder)).to(getattr(torch, options.dtype))
    show(options, "passes", partial(compared, model))


if __name__ == "__main__":
    main()
