"""A library tried on a model, in a process of its own, which may die of it: `python -m multidraft.models.gguf.trial`.

It is asked by one line of JSON and answers by one. On a sample of the model it compares the library with plain
arithmetic, trees with paths, and a kept path and a copied row with a text that was read at once. Then it measures
passes of the model itself.
"""

import json
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float

from multidraft.errors import AdviceError
from multidraft.models.gguf import IK_LLAMA_CPP, sample
from multidraft.models.gguf.ik_llama import ik_llama
from multidraft.models.gguf.library import LIBRARY_LOG, GGUFLibrary, llama_cpp
from multidraft.models.gguf.model import GGUF
from multidraft.models.gguf.verdicts import SAID, WIDTHS
from multidraft.models.reader import Reader, chain_parents

TREE = (-1, 0, 0, 1, 1, 2, 2)  # parents: four ends of depth three
PATHS = ((0, 1, 3), (0, 1, 4), (0, 2, 5), (0, 2, 6))
TEXT_TOKENS, PROMPT_TOKENS, WIDEST, NEXT_TOKENS = 48, 200, 32, 4
MEASURED_SECONDS, MIN_ROUNDS, MAX_ROUNDS = 2.0, 2, 20
MAX_ERROR, MAX_DIFFERENCE = 0.2, 0.02  # of the logits' size: wrong kernels say something else altogether
MAX_OVER_ERROR = 2.0  # two kernels may differ by the errors of both: one may round what another does not


def main() -> None:
    """Answer one question."""
    LIBRARY_LOG.setLevel(logging.DEBUG)
    logging.basicConfig(format=f"{SAID}%(message)s")
    question = json.loads(sys.stdin.readline())
    torch.set_num_threads(question["threads"])
    path, name = Path(question["path"]), question["library"]
    milliseconds: dict[int, float] = {}
    try:
        library = ik_llama() if name == IK_LLAMA_CPP else llama_cpp(Path(name))
        if (fault := fault_of_sample(path, library)) is None:
            milliseconds = milliseconds_of_passes(path, library)
    except AdviceError as error:
        sys.exit(str(error).partition(";")[0])  # the advice is another; it may pass
    print(json.dumps({"fault": fault, "milliseconds": milliseconds}), flush=True)


def fault_of_sample(path: Path, library: GGUFLibrary) -> str | None:
    """What is wrong with a library's logits of a sample of a model; None if nothing is, or no sample can be cut."""
    matrices = sample.matrices(path)
    if not matrices:
        return None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sample.gguf"
        sample.write(matrices, file)
        return fault_of(GGUF(file, library=library), matrices)


def fault_of(model: GGUF, matrices: dict[str, sample.Corner]) -> str | None:
    """What is wrong with a model's logits, which are to be those of a sample."""
    text: list[int] = np.random.default_rng(1).integers(0, sample.WIDTH, TEXT_TOKENS + WIDEST).tolist()
    start, new = text[:TEXT_TOKENS], text[TEXT_TOKENS:]
    tree = reader_behind(model, start)
    together = tree.forward([new[: len(TREE)]], [list(TREE)]).logits[0].numpy()
    tree.commit([list(PATHS[-1])])
    kept = [*start, *(new[slot] for slot in PATHS[-1])]
    expected = sample.logits(matrices, text)
    at_once, after = chain_logits(model, [], text), chain_logits(model, kept, new[:NEXT_TOKENS])
    error, rounding = (error_of(found, expected) for found in (at_once, sample.logits(matrices, text, is_rounded=True)))
    if not error <= MAX_ERROR:
        return f"its logits are off by {error:.2f} of their size"
    copy, size = tree.fork(0, len(kept), sample.CONTEXT), float(np.abs(expected).max())
    differences = {
        "a long pass": chain_logits(model, start, new) - at_once[TEXT_TOKENS:],
        "a single token": chain_logits(model, text[:1], text[1:2]) - at_once[1:2],
        "a kept path": chain_on(tree, new[:NEXT_TOKENS]) - after,
        "a copied row": chain_on(copy, new[:NEXT_TOKENS]) - after,
    } | {
        f"the path {path} of a tree": together[list(path)] - chain_logits(model, start, [new[slot] for slot in path])
        for path in PATHS
    }
    allowed = max(MAX_DIFFERENCE, MAX_OVER_ERROR * max(error, rounding))
    for what, difference in differences.items():
        if not (share := float(np.abs(difference).max()) / size) <= allowed:
            return f"its logits of {what} are off by {share:.2f} of their size"
    return None


def error_of(logits: np.ndarray, expected: np.ndarray) -> float:
    """By how much logits are off, as a share of those expected."""
    return float(np.linalg.norm(logits - expected) / np.linalg.norm(expected))


def reader_behind(model: GGUF, text: Sequence[int]) -> GGUF:
    """A reader that has read a text."""
    reader = model.new(sample.CONTEXT)
    reader.forward([list(text)], [chain_parents(len(text))], "none")
    reader.commit([list(range(len(text)))])
    return reader


def chain_logits(model: GGUF, text: Sequence[int], new: Sequence[int]) -> Float[np.ndarray, "new vocabulary"]:
    """The logits of new tokens behind a text, which was read at once."""
    return chain_on(reader_behind(model, text), new)


def chain_on(reader: Reader, new: Sequence[int]) -> Float[np.ndarray, "new vocabulary"]:
    """The logits of new tokens behind what was kept."""
    logits: Float[np.ndarray, "new vocabulary"] = (
        reader.forward([list(new)], [chain_parents(len(new))]).logits[0].numpy()
    )
    return logits


def milliseconds_of_passes(path: Path, library: GGUFLibrary) -> dict[int, float]:
    """The shortest time of passes of a model over some tokens, behind a prompt: a GPU's first one compiles."""
    model = GGUF(path, library=library)
    generator = np.random.default_rng(1)
    reader = reader_behind(
        model, generator.integers(0, model.vocabulary, min(PROMPT_TOKENS, model.weights.context // 2)).tolist()
    )
    seconds: dict[int, list[float]] = {width: [] for width in WIDTHS}
    end = time.perf_counter() + MEASURED_SECONDS
    for done in range(MAX_ROUNDS):
        if done >= MIN_ROUNDS and time.perf_counter() > end:
            break
        for width, times in seconds.items():
            new = generator.integers(0, model.vocabulary, width).tolist()
            start = time.perf_counter()
            reader.forward([new], [chain_parents(width)])
            times.append(time.perf_counter() - start)
            reader.commit([[]])
    return {width: 1000 * min(times) for width, times in seconds.items()}


if __name__ == "__main__":
    main()
