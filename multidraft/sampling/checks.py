"""The table of what every setting may be, by its name, for Python, the command line and the server. Without torch."""

from collections.abc import Callable, Mapping
from typing import Any

from multidraft.sampling.params import SETTINGS
from multidraft.sampling.ranges import FLAG, TOKEN_COUNT, Range

CHECKS: dict[str, Callable[..., None]] = {  # the last ones are not settings of sampling
    **{known.transformers: known.check for known in SETTINGS.values() if known.transformers is not None},
    **{name: known.check for name, known in SETTINGS.items()},
    "seed": Range(int, -(2**63), 2**63 - 1),
    "logprobs": Range(int, 0, 2**20),
    "measure": TOKEN_COUNT,
    "tune_budget": Range(float, 0, 86_400),
    "max_num_seqs": Range(int, 1, 4096),
    **dict.fromkeys("do_sample return_dict_in_generate compile synchronise".split(), FLAG),
}


def check(name: str, value: Any, called: str | None = None, vocabulary: int | None = None) -> None:
    """Raise AdviceError unless the setting may have this value; `called` is its name in the message.

    >>> check("top_p", 0, "--top-p")
    Traceback (most recent call last):
    ...
    multidraft.errors.AdviceError: --top-p is 0; use a number above 0, at most 1
    """
    CHECKS[name](called or name, value, vocabulary)


def check_all(settings: Mapping[str, Any], called: Callable[[str], str] = str) -> None:
    """Check the settings that are known and are not None; `called` gives their names in messages."""
    for name, value in settings.items():
        if value is not None and name in CHECKS:
            check(name, value, called(name))
