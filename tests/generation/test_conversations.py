"""Chat templates are programs: none runs for ever, writes without end, or ends in a traceback."""

import sys

import pytest
from serving import letters

from multidraft.errors import AdviceError
from multidraft.generation import text as conversations
from multidraft.generation.text import written

MESSAGES = [{"role": "user", "content": "ab"}]
ROUND = "{% for i in range(99999) %}"
ENDLESS = ROUND * 3 + "{% set x = i %}" + "{% endfor %}" * 3
WORDY = ROUND + "{{ '" + "a" * 1000 + "' }}" + "{% endfor %}"
BAD = {
    "seconds": ENDLESS,
    "too much": WORDY,
    "range": "{% for i in range(99999999) %}{% endfor %}",
    "division": "{{ 1 // 0 }}",
    "unsafe": "{{ messages.__class__.__mro__ }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "undefined": "{{ nothing.at.all }}",
    "says so": "{{ raise_exception('it says so') }}",
}


@pytest.mark.parametrize("reason", BAD)
def test_a_template_that_fails_is_one_line(monkeypatch, reason):
    monkeypatch.setattr(conversations, "SECONDS", 0.2)
    tokenizer, before = letters(4), sys.gettrace()
    tokenizer.chat_template = BAD[reason]
    with pytest.raises(AdviceError, match=reason):
        written(tokenizer, MESSAGES)
    assert sys.gettrace() is before


def test_one_that_does_not_is_written_as_it_says():
    tokenizer = letters(4)
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}c{% endfor %}"
    assert written(tokenizer, MESSAGES * 2) == [0, 1, 2] * 2
