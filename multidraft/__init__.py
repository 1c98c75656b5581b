"""Multi-draft speculative decoding: faster generation whose output has exactly the target model's distribution."""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from multidraft.auditing import audit
    from multidraft.decoding.tree import Tree
    from multidraft.errors import AdviceError
    from multidraft.generation.generate import generate
    from multidraft.generation.text import text_ends
    from multidraft.models.gguf.model import GGUF
    from multidraft.models.heads.drafters import head
    from multidraft.models.huggingface.weight_marks import weights_changed
    from multidraft.sampling.grammar import Grammar
    from multidraft.sampling.params import SamplingParams
    from multidraft.tensor_trees.sglang import verify_tree
    from multidraft.verification.optimum import optimal_acceptance_rate
    from multidraft.verification.registry import scheme, schemes

    judge: Callable[..., Any]  # of the package multidraft-judge

__all__ = [
    "GGUF",
    "AdviceError",
    "Grammar",
    "SamplingParams",
    "Tree",
    "audit",
    "generate",
    "head",
    "judge",
    "optimal_acceptance_rate",
    "register",
    "scheme",
    "schemes",
    "text_ends",
    "verify_tree",
    "weights_changed",
]
__version__ = "0.2.0"

# Idle threads of OpenMP spin, by default for milliseconds: where another process wants a core, a pass can take a
# hundred times as long. This is read when torch is loaded; where torch was imported first, `generate` says so on a busy
# machine, and nothing is set.
if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")

HOMES = {  # no public name may be a module's name too: importing the module would take its place
    "AdviceError": "errors",
    "GGUF": "models.gguf.model",
    "Grammar": "sampling.grammar",
    "SamplingParams": "sampling.params",
    "Tree": "decoding.tree",
    "audit": "auditing",
    "generate": "generation.generate",
    "head": "models.heads.drafters",
    "optimal_acceptance_rate": "verification.optimum",
    "register": "verification.registry",
    "scheme": "verification.registry",
    "schemes": "verification.registry",
    "text_ends": "generation.text",
    "verify_tree": "tensor_trees.sglang",
    "weights_changed": "models.huggingface.weight_marks",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: `multidraft --help` should not wait for torch and transformers."""
    if name == "judge":  # of a package of its own, which knows nothing of this one
        from multidraft.errors import judge_package

        return judge_package().judge
    if name not in HOMES:
        raise AttributeError(f"module 'multidraft' has no attribute {name!r}")
    return getattr(import_module(f"multidraft.{HOMES[name]}"), name)


def __dir__() -> list[str]:
    """The public names, for those who look what there is."""
    return [*__all__, "__version__"]
