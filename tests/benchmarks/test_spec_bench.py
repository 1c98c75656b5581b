"""The benchmark on real prompts: a run that is stopped goes on, and tables say what the file says. No model."""

import json
from pathlib import Path

import pytest
import spec_bench

PACE = {"plain": 2.0, "ours": 1.0}  # seconds for ten tokens; translation takes drafts twice as well


@pytest.fixture
def measured(tmp_path, monkeypatch) -> Path:
    """A file that holds runs of two contestants, stopped once on the way."""
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "runs.jsonl"
    lines = [
        {"id": f"{task}/{n}", "task": task, "prompt": f"{task} {n}"} for task in ("qa", "translation") for n in (1, 2)
    ]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    calls: list[tuple[str, str]] = []

    def of(who: str):
        def decode(prompt: str, temperature: float, seed: int) -> dict:
            if len(calls) == 5:
                calls.append(("stop", ""))
                raise KeyboardInterrupt
            calls.append((who, prompt))
            pace = PACE[who] / (1 + (who == "ours" and "translation" in prompt))
            return dict(tokens=10, seconds=pace, passes=4, acceptance=0.5, optimum=0.75)

        return decode

    monkeypatch.setattr(spec_bench, "contestants", lambda *_: (str, {who: of(who) for who in PACE}))
    monkeypatch.setattr(spec_bench, "timed", lambda decode, *arguments: decode(*arguments) | dict(processor=1.0))
    command = [str(out), "--prompts", str(prompts), "--each", "2", "--temperature", "0"]
    with pytest.raises(SystemExit, match="the same command continues"):
        spec_bench.main(command)
    spec_bench.main(command)
    done = [run for run in calls if run[1] not in ("Say hello.", "")]
    assert len(done) == len(set(done)) == 2 * len(lines)  # nothing twice, but for the warm-up
    return out


def test_tables_say_what_was_measured(measured, tmp_path, capsys):
    capsys.readouterr()
    spec_bench.main(["--markdown", str(measured)])
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["T", "who", "tokens/s", "over plain", "qa", "translation", "tokens a pass", "accepted / optimum"]
    # Forty tokens: eight seconds plainly, three with drafts; all prompts of a task are alike.
    assert rows[3][:3] + rows[3][4:] == ["0", "ours", "13.3", "2.00", "4.00", "2.50", "0.50 / 0.75"]
    assert rows[3][3].startswith("2.67 (2.00-")
    spec_bench.main(["--markdown", str(measured), "--over", "ours"])
    assert "| 0 | plain | 5.0 | 0.38 (" in capsys.readouterr().out
    spec_bench.main(["--markdown", str(measured), "--processor"])
    assert "| 0 | ours | 10.0 | 1.00 (1.00-1.00) |" in capsys.readouterr().out
    spec_bench.main(["--show", str(measured), "--plot", str(tmp_path / "speed.svg")])
    assert "<svg" in (tmp_path / "speed.svg").read_text()


def test_an_unfinished_file_is_shown_as_far_as_it_goes(measured, tmp_path):
    """A temperature that has only begun, at which the other contestant has not had its turn; and nothing at all."""
    head, *runs = measured.read_text().splitlines()
    settings = json.dumps(json.loads(head) | {"temperatures": [0.0, 0.7, 1.0]})
    begun = next(json.dumps(json.loads(run) | {"temperature": 0.7}) for run in runs if '"ours"' in run)
    part, picture = tmp_path / "part.jsonl", tmp_path / "part.svg"
    part.write_text("\n".join([settings, *runs, begun]))
    spec_bench.main(["--show", str(part), "--plot", str(picture)])
    assert "<svg" in picture.read_text()
    part.write_text(settings)
    with pytest.raises(SystemExit, match="no runs to draw yet"):
        spec_bench.main(["--show", str(part), "--plot", str(picture)])


def test_what_cannot_be_shown_is_said(measured, tmp_path):
    with pytest.raises(SystemExit, match="has not been measured; there are plain, ours"):
        spec_bench.main(["--show", str(measured), "--over", "nobody"])
    (tmp_path / "other.jsonl").write_text('{"benchmark": "decode"}\n')
    with pytest.raises(SystemExit, match="holds no results"):
        spec_bench.main(["--show", str(tmp_path / "other.jsonl")])
