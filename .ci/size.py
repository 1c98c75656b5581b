"""Print how large the parts of this repository are, and end with 1 where one is above its limit.

A limit is what stands, rounded up: who needs more raises it in the same change, and says why.
"""

import ast
import re
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT, TESTS = "multidraft", (ROOT / "tests", ROOT / "judge" / "tests")
UNCOUNTED = {"cli.md", "log.md"}  # a page that a command makes, and the log, which only grows


def lines(paths: Iterable[Path]) -> int:
    """Lines of some files."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def words(path: Path) -> int:
    """Words of a page, without code and tables."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.S | re.M)
    text = re.sub(r"^\|.*$|\]\([^)]*\)", "", text, flags=re.M)
    return sum(bool(re.search(r"\w", word)) for word in text.split())


def patches(path: Path) -> int:
    """How often a test file patches a name of ours: an attribute of something imported from here, or a dotted path."""
    nodes, ours = list(ast.walk(ast.parse(path.read_text(encoding="utf-8")))), {PROJECT}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PROJECT):
            ours |= {name.asname or name.name for name in node.names}
        elif isinstance(node, ast.Import):
            ours |= {name.asname or name.name for name in node.names if name.name.startswith(PROJECT)}
    calls = [
        node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args
    ]
    patched = [ast.unparse(call.args[0]) for call in calls if call.func.attr in ("setattr", "delattr", "setitem")]
    return sum(re.split(r"\W", what.strip("'"))[0].removesuffix("_research") in ours for what in patched)


def main() -> int:
    """The table; returns how many parts are above their limits."""
    core, decoding = sorted((ROOT / "multidraft").rglob("*.py")), ROOT / "multidraft" / "decoding"
    pages = [page for page in (ROOT / "docs").glob("*.md") if page.name not in UNCOUNTED] + [ROOT / "README.md"]
    step = [decoding / f"{name}.py" for name in ("step", "draft", "verify", "walks", "tree", "state")]
    rows = [
        ("core, lines", lines(core), 27_247),
        ("core, files", len(core), 175),
        ("decode step, lines in six files", lines(path for path in step if path.exists()), None),
        ("decoding, lines", lines(decoding.rglob("*.py")), None),
        ("research, lines", lines((ROOT / "research").rglob("*.py")), 11_320),
        ("judge, lines", lines((ROOT / "judge" / "multidraft_judge").rglob("*.py")), 3_765),
        ("tests, lines", lines(path for folder in TESTS for path in folder.rglob("*.py")), 32_975),
        ("tests, patches of our names", sum(patches(path) for folder in TESTS for path in folder.rglob("*.py")), 90),
        ("docs and README, written words", sum(map(words, pages)), 20_450),
    ]
    for name, size, limit in rows:
        note = "" if limit is None else f"  limit {limit:>6,}{'' if size <= limit else '  ABOVE'}"
        print(f"{name:<34}{size:>8,}{note}")
    return sum(limit is not None and size > limit for _, size, limit in rows)


if __name__ == "__main__":
    sys.exit(min(main(), 1))
