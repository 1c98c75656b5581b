"""What all tests share: others' modules imported in time, and how often type hints are checked.

Whatever is first imported while the hook that checks hints imports a module of ours would be compiled anew, in every
process.
"""

from zlib import crc32

import jaxtyping
import pytest
import scipy.stats  # noqa: F401
from transformers import (  # noqa: F401
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaForCausalLM,
    LogitsProcessorList,
)

ONE_IN = 8


@pytest.fixture
def unchecked(monkeypatch) -> None:
    """Type hints are not checked, as for a user."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture(autouse=True)
def hints_of_some_cases(request) -> None:
    """Checking hints is most of the time of an enumeration: of many cases, the first and one in eight are checked."""
    case = getattr(request.node, "callspec", None)
    if case and any(case.indices.values()) and crc32(request.node.nodeid.encode()) % ONE_IN:
        request.getfixturevalue("unchecked")
