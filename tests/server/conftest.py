"""What holds in every test of the server."""

import logging
from collections.abc import Iterator

import pytest

FAULTS_ARE_MEANT = {"test_engine_faults"}


@pytest.fixture(autouse=True)
def no_turn_fails(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """An engine goes on after a fault of ours as well, and answers all the same: here it is an error."""
    yield
    if request.module.__name__ not in FAULTS_ARE_MEANT:
        faults = [entry for entry in caplog.get_records("call") if entry.name.endswith("server.engine")]
        assert not [entry.getMessage() for entry in faults if entry.levelno >= logging.ERROR]
