"""What all tests share: others' modules imported in time, which cases are slow, and how often type hints are checked.

Whatever is first imported while the hook that checks hints imports a module of ours would be compiled anew, in every
process.
"""

import gc
import os
from collections import Counter
from pathlib import Path
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

MANY = 4  # cases of one test
ONE_IN = 4  # of so many run by default, all by `make test-slow`
HINTS_ONE_IN = 32


def is_sample(case: pytest.Function, one_in: int) -> bool:
    """Whether a test's case is the first, or one of every so many."""
    return not any(case.callspec.indices.values()) or crc32(case.nodeid.encode()) % one_in == 0


def whole_test(case: pytest.Function) -> str:
    """The test that a case is of."""
    return case.nodeid.split("[")[0]


@pytest.hookimpl(tryfirst=True)  # before the slow ones are left out
def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Of a test with many cases most are slow."""
    ours = [item for item in items if Path(__file__).parent in item.path.parents and hasattr(item, "callspec")]
    cases = [item for item in ours if not item.get_closest_marker("slow")]
    counts = Counter(map(whole_test, cases))
    for case in cases:
        if counts[whole_test(case)] > MANY and not is_sample(case, ONE_IN):
            case.add_marker(pytest.mark.slow)


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
    """Checking hints is most of the time of an enumeration: of a test's cases, the first and few others are checked."""
    if hasattr(request.node, "callspec") and not is_sample(request.node, HINTS_ONE_IN):
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
