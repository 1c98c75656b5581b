"""How many paths of all rows llama.cpp tells apart, with a library that only counts."""

import ctypes
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from multidraft.errors import AdviceError
from multidraft.models.gguf.memory import Memory

MOST = 256

pytestmark = pytest.mark.usefixtures("unchecked")  # nothing is of its kind here


def memory() -> Memory:
    library = MagicMock(llama_get_logits=ctypes.CFUNCTYPE(ctypes.c_void_p)(lambda: 0))
    library.most_sequences = library.llama_n_ctx.return_value = MOST
    for name in ("size", "get_size", "get_data", "set_data"):
        getattr(library, f"llama_state_{name}").return_value = 1
    return Memory(SimpleNamespace(library=library, numbers_of_token=1, pointer=None, family="tiny"), "f16")


@pytest.mark.parametrize("first", [1, 40, 100, MOST])
def test_all_paths_that_the_library_tells_apart_can_be_had_and_no_more(first: int) -> None:
    """They were doubled until they were too many: of 40, 80, 160 the next was 320, and 96 of them were refused."""
    sequence_memory = memory()
    sequence_memory.reserve(sequences=first)
    assert sorted(sequence_memory.borrow() for _ in range(MOST)) == list(range(MOST))
    with pytest.raises(AdviceError, match=f"tells {MOST} paths of all rows apart; use fewer rows"):
        sequence_memory.borrow()
    sequence_memory.drop(7)
    assert sequence_memory.borrow() == 7
