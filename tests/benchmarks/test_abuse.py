"""The server under abuse, in short: its promises hold, but for how fast it answers, which no test can say."""

import pytest
from abuse import ABUSES, ENDS, QUICK, run


@pytest.mark.slow
def test_no_promise_is_broken(tmp_path):
    for part in run([*ABUSES, *ENDS], QUICK, tmp_path):
        assert sum(part.answers.values()) > 0
        assert [broken for broken in part.broken if not broken.startswith("/health took")] == [], part.name
