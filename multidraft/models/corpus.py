"""Texts that drafts may be copied from: read, and an index over their tokens that finds where a run occurs in them."""

import logging
import os
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multidraft.errors import AdviceError
from multidraft.verification.loops import compile_loop

NOTES = logging.getLogger("multidraft")
SEARCHED = 32  # tokens, the last ones of a text, that are looked for
SEPARATOR = -1  # before and behind each text
MAX_BYTES = 2**25  # of files: some eight million tokens, whose index takes half a minute to make and 64 MB
PEEK_BYTES = 2**13  # of a file, in which one that is no text mostly shows it


class Corpus:
    """Texts, and their places sorted by the tokens before them, read backwards from the latest: a suffix array.

    Two numbers of four bytes a token. The longest run that ends a text is beside the place where a binary search ends.
    """

    def __init__(self, texts: Sequence[Sequence[int]]):
        end = np.array([SEPARATOR], np.int32)
        self.tokens = np.concatenate([end, *(part for text in texts for part in (np.asarray(text, np.int32), end))])
        self.order = sorted_places(self.tokens)
        self.text = memoryview(self.tokens.data)  # of Python's integers

    def __bool__(self) -> bool:
        return len(self.order) > 0

    def __deepcopy__(self, memo: dict[int, Any]) -> "Corpus":
        return self

    def find(self, end: list[int]) -> tuple[int, int, int]:
        """A place behind the longest run that ends a text, the run's length, and the token that follows."""
        return longest_run(self.tokens, self.order, np.frombuffer(array("i", end), np.int32))  # faster than np.array


def sorted_places(tokens: NDArray[np.int32]) -> NDArray[np.int32]:
    """The places of tokens, sorted by the last tokens before each (Manber and Myers, 1990)."""
    keys, span = np.concatenate([[0], tokens[:-1] + 1]).astype(np.int64), 1  # which tell `span` tokens before apart
    while span < SEARCHED:
        pairs = keys * (keys.max() + 1)
        pairs[span:] += keys[:-span]
        keys, span = np.unique(pairs, return_inverse=True)[1], 2 * span
    order = np.argsort(keys, kind="stable")
    return order[tokens[order] != SEPARATOR].astype(np.int32)


@compile_loop
def longest_run(tokens, order, end):
    """A place behind the longest run that ends a text, its length, and the token that follows: by a binary search."""
    low, high, low_length, high_length = 0, order.size, 0, 0
    while low < high:
        middle, length = (low + high) // 2, min(low_length, high_length)
        last = order[middle] - 1
        while length < end.size and tokens[last - length] == end[end.size - 1 - length]:
            length += 1
        if length < end.size and tokens[last - length] < end[end.size - 1 - length]:
            low, low_length = middle + 1, length
        else:
            high, high_length = middle, length
    if not low_length and not high_length:
        return 0, 0, SEPARATOR
    place = order[low - 1] if low_length > high_length else order[low]  # the longest run is before one of these two
    return place, max(low_length, high_length), tokens[place]


def read_texts(path: Path) -> list[str]:
    """The texts in a file, or in a folder and those below it; how many other files there are goes to the log.

    A text is UTF-8 without NUL; hidden folders are left out. Raises AdviceError where there is none, or too much.
    """
    texts, others, room = list[str](), 0, MAX_BYTES
    for file in [path] if path.is_file() else sorted(files_below(path)):
        with suppress(OSError, UnicodeDecodeError), file.open("rb") as opened:
            content = opened.read(PEEK_BYTES)
            if b"\0" not in content and b"\0" not in (content := content + opened.read(room)):
                room -= len(content)
                if room < 0:
                    raise AdviceError(f"--corpus {str(path)!r} has over {MAX_BYTES:,} bytes of text; give a part of it")
                texts.append(content.decode("utf-8-sig"))
                continue
        others += 1
    if not any(texts):
        raise AdviceError(f"--corpus {str(path)!r} holds no text (UTF-8 without NUL); give a file or folder that does")
    if others:
        NOTES.warning("%s: %d files are no text, and left out", path, others)
    return texts


def files_below(folder: Path) -> Iterator[Path]:
    """The files in a folder and in those below it that are not hidden."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (file for name in names if (file := Path(place, name)).is_file())
