"""A referee for servers of language models: is what they emit drawn from the law that it should have?"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multidraft_judge.errors import AdviceError
    from multidraft_judge.judgement import judge
    from multidraft_judge.measuring.measurement import measure
    from multidraft_judge.measuring.rows import Measurement
    from multidraft_judge.prompts import Prompt
    from multidraft_judge.references.reference import Reference
    from multidraft_judge.verdict import Verdict

__all__ = ["AdviceError", "Measurement", "Prompt", "Reference", "Verdict", "judge", "measure"]
__version__ = "0.2.0"

HOMES = {"AdviceError": "errors", "Reference": "references.reference", "Verdict": "verdict", "judge": "judgement"}
HOMES |= {"Measurement": "measuring.rows", "Prompt": "prompts", "measure": "measuring.measurement"}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, so that `multidraft-judge --help` is quick."""
    if name not in HOMES:
        raise AttributeError(f"module 'multidraft_judge' has no attribute {name!r}")
    return getattr(import_module(f"multidraft_judge.{HOMES[name]}"), name)
