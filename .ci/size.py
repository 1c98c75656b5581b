"""Print how large the parts of this repository are, beside the limits that it has set itself."""

import re
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
MADE = {"cli.md", "log.md"}  # a page that is made, and the log, which only grows


def lines(paths: Iterable[Path]) -> int:
    """Lines of some files."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def words(path: Path) -> int:
    """Words of a page, without code and tables."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.S | re.M)
    text = re.sub(r"^\|.*$|\]\([^)]*\)", "", text, flags=re.M)
    return sum(bool(re.search(r"\w", word)) for word in text.split())


def main() -> None:
    """The table."""
    core, decoding = sorted((ROOT / "multidraft").rglob("*.py")), ROOT / "multidraft" / "decoding"
    pages = [page for page in (ROOT / "docs").glob("*.md") if page.name not in MADE] + [ROOT / "README.md"]
    step = [decoding / f"{name}.py" for name in ("step", "draft", "verify", "walks", "tree", "state")]
    rows = [
        ("core, lines", lines(core), 15_000),
        ("core, files", len(core), 100),
        ("decode step, lines in six files", lines(path for path in step if path.exists()), None),
        ("decoding, lines", lines(decoding.rglob("*.py")), None),
        ("research, lines", lines((ROOT / "research").rglob("*.py")), None),
        ("tests, lines", lines((ROOT / "tests").rglob("*.py")), 10_000),
        ("docs and README, written words", sum(map(words, pages)), 18_000),
    ]
    for name, size, limit in rows:
        told = "" if limit is None else f"  limit {limit:>6,}{'' if size <= limit else '  ABOVE'}"
        print(f"{name:<34}{size:>8,}{told}")


if __name__ == "__main__":
    main()
