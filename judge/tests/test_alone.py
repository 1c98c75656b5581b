"""The package by itself: it judges where neither PyTorch nor multidraft can be imported."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys

for absent in ("torch", "transformers", "multidraft", "matplotlib", "jaxtyping"):
    sys.modules[absent] = None  # importing it raises ImportError
import random
import multidraft_judge

def sample(prompt, n, rng=random.Random(0), law=(0.5, 0.5)):
    return rng.choices("ab", law, k=n), [{"a": -0.6931471805599453, "b": -0.6931471805599453}] * n

assert not multidraft_judge.judge(sample, budget_tokens=2000).guilty  # false alarm with odds of 1e-6 at most
assert multidraft_judge.judge(lambda prompt, n: sample(prompt, n, law=(0.7, 0.3)), budget_tokens=2000).guilty
"""


def test_without_torch_it_judges():
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, timeout=60)


def test_what_a_model_as_reference_needs_is_said(tmp_path: Path):
    absent = "import sys; sys.modules['multidraft'] = None; from multidraft_judge.command import main; main()"
    words = ["http://127.0.0.1:1", "--model", "x", "--reference-model", "embedded"]
    result = subprocess.run([sys.executable, "-c", absent, *words], capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert (
        result.stderr
        == "multidraft-judge: this needs multidraft; install its wheel, or `pip install .` in its checkout\n"
    )
