"""The table of verdicts by engine and version, and the environments of engines."""

import json
from pathlib import Path

import engine_environments
import judge_servers
import judged_table
import pytest
import servers
from engine_environments import constraints_without, engine_and_version, environment

from multidraft.errors import AdviceError

PLACE = {"date": "2026-11-27", "commit": "abc", "cpu": "one", "vectors": "AVX2", "threads": 1, "gpu": None}
BETS = [{"tokens": 900, "highest": 8.4}]
GUILTY = {"guilty": True, "reasons": ["its tokens are biased"], "tokens": 1619, "bets": BETS}
INNOCENT = {"guilty": False, "reasons": [], "tokens": 2010, "bets": [{"tokens": 1900, "highest": 0.25}]}
GREEDY = {"guilty": False, "reasons": [], "tokens": 512, "bets": [{"tokens": 0, "highest": 0.0}]}


def line(version: str, temperature: float, **kept: object) -> judged_table.Line:
    """A line of an engine's version."""
    return judged_table.line_of("toy", version, "none", PLACE | {"temperature": temperature} | kept)


def test_lines_say_what_was_found():
    innocent, guilty = line("1", 1.0, verdict=INNOCENT), line("1", 1.0, verdict=GUILTY)
    assert (innocent["verdict"], innocent["tokens"], innocent["evidence"]) == ("nothing found", 2010, "bets 10^0.2")
    assert (guilty["verdict"], guilty["tokens"], guilty["evidence"]) == ("guilty", 1619, "its tokens are biased")
    assert line("1", 0.0, verdict=GREEDY)["evidence"] == "no greedy token is unlikely"
    failed = line("1", 1.0, error="multidraft-judge: it gives no log-probabilities")
    assert (failed["verdict"], failed["evidence"]) == ("cannot be judged", "it gives no log-probabilities")
    assert failed["hardware"] == {"cpu": "one", "vectors": "AVX2", "threads": 1, "gpu": None}


def test_the_table_is_written_between_its_markers(tmp_path):
    page = tmp_path / judged_table.PAGE
    page.write_text(f"before\n{judged_table.BEGIN}\nold\n{judged_table.END}\nafter\n")
    lines = [line("1.10", 0.0, verdict=GREEDY), line("1.10", 1.0, verdict=GUILTY), line("1.9", 1.0, error="no")]
    for _ in range(2):  # lines that are there are not added again
        judged_table.add_lines(tmp_path, lines)
    assert judged_table.read_lines(tmp_path / judged_table.FILE) == lines
    assert page.read_text().splitlines() == [
        "before",
        judged_table.BEGIN,
        "",
        "| engine | version | drafts | T = 0 | T = 1 | day, commit |",
        "|---|---|---|---|---|---|",
        "| toy | 1.9 | none |  | cannot be judged | 2026-11-27, abc |",
        "| toy | 1.10 | none | nothing found (512) | **guilty** (1,619) | 2026-11-27, abc |",
        "",
        judged_table.END,
        "after",
    ]
    judged_table.add_lines(tmp_path, [line("1.10", 1.0, verdict=INNOCENT)])  # a later verdict takes the row's place
    assert "| nothing found (512) | nothing found (2,010) |" in page.read_text()
    assert len(judged_table.read_lines(tmp_path / judged_table.FILE)) == 4


def test_a_page_without_markers_is_refused(tmp_path):
    (tmp_path / judged_table.PAGE).write_text("nothing")
    with pytest.raises(AdviceError, match="has no table between"):
        judged_table.add_lines(tmp_path, [])


def test_an_environment_is_made_once(monkeypatch, tmp_path):
    commands: list[list[str]] = []
    monkeypatch.setattr(engine_environments, "run", lambda command, place: commands.append(command))
    for _ in range(2):
        programs = environment("xllamacpp", "1.2", tmp_path)
    assert programs == tmp_path / "engines" / "xllamacpp-1.2" / "bin"
    (_, install) = commands
    assert install[-1] == "xllamacpp==1.2"
    constraints = Path(install[install.index("-c") + 1]).read_text()
    assert "\ntorch==" in constraints
    assert "\nxllamacpp==" not in constraints
    assert "\nxllamacpp==" in constraints_without("transformers")  # so that there was something to leave out


def test_an_environment_that_cannot_be_made(tmp_path):
    """Pip's place is taken by false, which fails."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to("/bin/false")
    with pytest.raises(AdviceError, match=r"was not made \(nothing was said\); choose a version"):
        engine_environments.pip_install(tmp_path / "bin", ["x"], None)


@pytest.mark.parametrize("text", ["xllamacpp", "xllamacpp==", "other==1", "xllamacpp==1 --pre"])
def test_engines_that_are_none(text):
    with pytest.raises(AdviceError, match="use NAME==VERSION"):
        engine_and_version(text)


def test_ours_is_judged_as_it_is_installed(tmp_path):
    with pytest.raises(AdviceError, match="is installed here, not 0"):
        environment("multidraft", "0", tmp_path)


def test_the_command_adds_to_the_table(monkeypatch, tmp_path, capsys):
    """Verdicts that were kept become lines, and nothing is started."""
    named = [judge_servers.Subject(servers.Contestant("llama.cpp, ngram", [], {}), "toy", [])]
    monkeypatch.setattr(engine_environments, "run", lambda command, place: None)
    monkeypatch.setattr(judge_servers, "llama_servers", lambda python: iter(named))
    (tmp_path / "xllamacpp-1-2-ngram-0.json").write_text(
        json.dumps(PLACE | {"server": "xllamacpp 1.2, ngram", "temperature": 0.0, "error": "no"})
    )
    page = tmp_path / judged_table.PAGE
    page.write_text(f"{judged_table.BEGIN}\n{judged_table.END}\n")
    words = ["judge_servers.py", str(tmp_path), "--engine", "xllamacpp==1.2", "--temperature", "0"]
    monkeypatch.setattr("sys.argv", [*words, "--results", str(tmp_path)])
    judge_servers.main()
    assert "| xllamacpp | 1.2 | ngram | cannot be judged | 2026-11-27, abc |" in page.read_text()
    assert "| xllamacpp 1.2, ngram | 0 |" in capsys.readouterr().out
