"""Values that a shell completes after `--scheme`, `--target` and `--draft`; folders and files it completes itself."""

from multidraft.cli.drafter_names import BUILT_IN, COPY, HEADS, NONE
from multidraft.cli.engines import PAIRS, SMOLLM2
from multidraft.verification.names import SCHEME_NAMES, installed_names

DRAFTERS = [NONE, *(name for name, number in BUILT_IN.items() if number), "layers:", *(f"{name}:" for name in HEADS)]


def schemes(incomplete: str) -> list[str]:
    """Names of schemes, also those of installed packages."""
    return matching([*SCHEME_NAMES, *(installed_names() or [])], incomplete)


def targets(incomplete: str) -> list[str]:
    """Targets that come with the package."""
    return matching(list(PAIRS), incomplete)


def drafts(incomplete: str) -> list[str]:
    """Drafters with and without a model."""
    return matching([*DRAFTERS, *PAIRS, f"{COPY}+{HEADS[0]}:{SMOLLM2}", f"{HEADS[0]}:{SMOLLM2}"], incomplete)


def heads(incomplete: str) -> list[str]:
    """Draft heads."""
    return matching([f"{HEADS[0]}:{SMOLLM2}", *(f"{name}:" for name in HEADS)], incomplete)


def matching(names: list[str], incomplete: str) -> list[str]:
    """Names that begin so."""
    return [name for name in names if name.startswith(incomplete)]
