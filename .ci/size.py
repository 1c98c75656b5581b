"""Print how large the parts of this repository are, and end with 1 where one is above its limit.

A limit is what stands, rounded up: who needs more raises it in the same change, and says why.
"""

import re
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
UNCOUNTED = {"cli.md", "log.md"}  # a page that a command makes, and the log, which only grows


def lines(paths: Iterable[Path]) -> int:
    """Lines of some files."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def words(path: Path) -> int:
    """Words of a page, without code and tables."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.S | re.M)
    text = re.sub(r"^\|.*$|\]\([^)]*\)", "", text, flags=re.M)
    return sum(bool(re.search(r"\w", word)) for word in text.split())


def main() -> int:
    """The table; returns how many parts are above their limits."""
    core, decoding = sorted((ROOT / "multidraft").rglob("*.py")), ROOT / "multidraft" / "decoding"
    pages = [page for page in (ROOT / "docs").glob("*.md") if page.name not in UNCOUNTED] + [ROOT / "README.md"]
    step = [decoding / f"{name}.py" for name in ("step", "draft", "verify", "walks", "tree", "state")]
    rows = [
        ("core, lines", lines(core), 27_830),
        ("core, files", len(core), 189),
        ("decode step, lines in six files", lines(path for path in step if path.exists()), None),
        ("decoding, lines", lines(decoding.rglob("*.py")), None),
        ("research, lines", lines((ROOT / "research").rglob("*.py")), 11_300),
        ("tests, lines", lines((ROOT / "tests").rglob("*.py")), 29_690),
        ("docs and README, written words", sum(map(words, pages)), 19_610),
    ]
    for name, size, limit in rows:
        note = "" if limit is None else f"  limit {limit:>6,}{'' if size <= limit else '  ABOVE'}"
        print(f"{name:<34}{size:>8,}{note}")
    return sum(limit is not None and size > limit for _, size, limit in rows)


if __name__ == "__main__":
    sys.exit(min(main(), 1))
