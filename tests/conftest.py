"""What all tests share: others' modules imported in time, and how often type hints are checked.

Whatever is first imported while the hook that checks hints imports a module of ours would be compiled anew, in every
process.
"""

import gc
import os
from zlib import crc32

os.environ.setdefault("GOMP_SPINCOUNT", "3000")  # torch comes before multidraft here, which would say so

import jaxtyping
import pytest
import scipy.stats  # noqa: F401
import torch
from transformers import (  # noqa: F401
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaForCausalLM,
    LogitsProcessorList,
)

ONE_IN = 8


def pytest_collection_finish() -> None:
    """Looking for garbage among a million objects of libraries was a third of an enumeration's time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests that are marked for a GPU need one."""
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a GPU")


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


@pytest.fixture(autouse=True, scope="session")
def plans_are_made_up(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test measures costs: plans are made up, also for processes, and kept in a folder of their own.

    With MULTIDRAFT_TEST_PLANS=fresh, here or in a test, they are measured as on a new machine: a kept plan hides what a
    fresh one does.
    """
    import psutil
    from plans import made_up  # not before the hook that checks hints

    from multidraft.autotune import plans
    from multidraft.autotune.plans import MeasuredPair
    from multidraft.generation import DEFAULT_SCHEME
    from multidraft.models.user_models import as_reader
    from multidraft.verification.registry import scheme
    from multidraft.zoo import load_pair

    psutil.getloadavg = lambda: (0.0, 0.0, 0.0)  # else nothing is kept, and no ratio shown
    os.environ["MULTIDRAFT_PAIR"] = "embedded"  # whatever is installed
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    is_fresh, measured = (lambda: os.environ.get("MULTIDRAFT_TEST_PLANS") == "fresh"), plans.fresh
    if is_fresh():
        return
    plans.fresh = lambda identity: (measured if is_fresh() else made_up)(identity)
    pair = load_pair()
    plans.save(made_up(MeasuredPair(as_reader(pair.target), as_reader(pair.draft), scheme(DEFAULT_SCHEME)).identity))
