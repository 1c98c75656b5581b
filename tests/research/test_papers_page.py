"""The page that goes through the papers: no empty cell, no command that there is not, nothing numbered left out."""

import re
from pathlib import Path

import pytest
import typer

from multidraft.cli.main import app

PAGE = (Path(__file__).parents[2] / "results" / "papers.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
NUMBERED = {  # everything that the papers number
    "Towards Optimal Multi-Draft Speculative Decoding": {
        "Table": "1 2 3",
        "Figure": "1 2 3",
        "Theorem": "3 4 5 6 7",
        "Lemma": "1",
        "Definition": "2",
    },
    "Multi-Candidate Speculative Decoding": {"Table": "1 2 3 4 5 6 7", "Figure": "1 2 3 4 5", "Algorithm": "1 2"},
    "SpecTr": {
        "Table": "1 2 3 4",
        "Figure": "1 2 3 4 5 6",
        "Algorithm": "1 2 3 4",
        "Theorem": "1 2",
        "Lemma": "1 2 3 4",
        "Definition": "1 2",
    },
    "Randomised Drafting": {
        "Figure": "1 2 3 4",
        "Algorithm": "1 2",
        "Lemma": "4.1 4.2 4.3 4.4 A.1 A.2 A.3 A.4",
    },
    "Global Resolution": {
        "Table": "1 2 3 4 5",
        "Figure": "1 2 3 4 5",
        "Algorithm": "1",
        "Theorem": "3.1 4.1 5.1 6.1 6.2 6.4 6.5 B.1 C.1 R.1",
        "Lemma": "6.3 6.6 F.1 G.1 I.1 J.1",
    },
}
NUMBER = r"(?:[A-Z]\.)?\d+(?:\.\d+)?"


def rows(section: str) -> list[list[str]]:
    """The cells of a table's rows, without its head."""
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def named(cells: list[str], kind: str) -> set[str]:
    """The numbers that first cells name of a kind: "Tables 2, 3 and 5", "Figures 4 to 6"."""
    names: set[str] = set()
    for cell in cells:
        for listed in re.findall(rf"{kind}s? ({NUMBER}(?:(?:, | and | to ){NUMBER})*)", cell):
            names |= set(re.findall(NUMBER, listed))
            for first, last in re.findall(r"(\d+) to (\d+)", listed):
                names |= {str(number) for number in range(int(first), int(last) + 1)}
    return names


@pytest.mark.parametrize("paper", NUMBERED)
def test_everything_that_a_paper_numbers_has_a_row_and_no_cell_is_empty(paper) -> None:
    table_rows = rows(SECTIONS[paper])
    first = [row[0].replace("Lemmas", "Lemma").replace("Theorems", "Theorem") for row in table_rows]
    for kind, numbers in NUMBERED[paper].items():
        assert named(first, kind) == set(numbers.split()), kind
    for row in table_rows:
        assert len(row) == 4, row
        assert all(row), row
        assert "not run" not in row[-1], row


def test_every_command_is_there() -> None:
    commands = typer.main.get_command(app)
    for words in set(re.findall(r"multidraft ([a-z]+(?: [a-z][a-z-]+)?)", PAGE)):
        name, *inner = words.split()
        assert commands.get_command(None, name) is not None, words
        if name == "study":
            assert inner[0] in commands.commands["study"].commands, words


def test_every_file_is_there() -> None:
    files = [path.as_posix() for path in Path(__file__).parents[2].glob("[mrt]*/**/*.py")]
    missing = [
        name for name in set(re.findall(r"`([a-z_/]+\.py)`", PAGE)) if not any(f.endswith(f"/{name}") for f in files)
    ]
    assert missing == []
