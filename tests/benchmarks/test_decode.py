"""The speed benchmark: a run that is stopped goes on, and a table says what the file says. No model, no clock."""

import json
from pathlib import Path
from types import SimpleNamespace

import contestants
import decode
import decode_table
import numpy as np
import pytest
from contestants import ASSISTED, DEFAULT, PLAIN, Case

from multidraft.errors import AdviceError

PACE = {PLAIN.who: 1.0, ASSISTED: 0.8, DEFAULT.who: 0.5}  # seconds for ten tokens
QUICK = ["--quick", "--temperature", "0", "1"]


class Paced:
    """Everyone decodes at a known pace, until Ctrl-C comes after `limit` runs."""

    def __init__(self) -> None:
        self.runs, self.limit = 0, None

    def __call__(self, pair, case, prompts, temperature, seed, options) -> dict:
        if self.runs == self.limit:
            raise KeyboardInterrupt
        self.runs += 1
        ours = {} if case.who == ASSISTED else dict(passes=4, accepted=6, draft=0.1, target=0.2)
        return dict(tokens=10, seconds=PACE[case.who]) | ours


@pytest.fixture(autouse=True)
def paced(monkeypatch) -> Paced:
    """In place of models."""
    pair = SimpleNamespace(target=None, draft=None, tokenizer=lambda text: {"input_ids": [1]})
    monkeypatch.setattr(decode, "load", lambda target, draft: pair)
    monkeypatch.setattr(decode, "commit", lambda: "0123abc")
    monkeypatch.setattr(decode, "prepare", lambda pair: None)
    monkeypatch.setattr(decode, "decode", runs := Paced())
    return runs


def ratios(path: Path) -> dict[tuple[float, Case], np.ndarray]:
    """Speed over plain decoding, by temperature and case."""
    rates = decode_table.rates_of(*decode_table.read(path))
    return {(rate.temperature, case): rate[case] / rate[PLAIN] for rate in rates for case in rate.cases}


def test_speeds_are_those_of_the_runs_in_a_table_between_marks_and_other_settings_do_not_go_into_the_file(
    tmp_path, capsys
):
    file, page = tmp_path / "runs.jsonl", tmp_path / "page.md"
    decode.main([str(file), *QUICK])
    speeds = ratios(file)
    assert {key[0] for key in speeds} == {0.0, 1.0}
    for (_, case), speed in speeds.items():
        assert speed == pytest.approx(1 / PACE[case.who]), "every resample of equal prompts is the same"
    assert "best over best: 1.60 (1.60 to 1.60)" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="temperatures"):
        decode.main([str(file), "--quick", "--temperature", "0.5"])
    page.write_text(f"before\n{decode_table.MARKS[0]}\nearlier numbers\n{decode_table.MARKS[1]}\nafter\n")
    decode.main(["--show", str(file), "--into", str(page), "--plot", str(tmp_path / "speed.svg")])
    text = page.read_text()
    assert (text.startswith("before\n<!--"), text.endswith("-->\nafter\n"), "earlier numbers" in text) == (
        True,
        True,
        False,
    )
    assert "| plain decoding, ours |  | 2.50 | 70% | 1 | 1 |" in text
    assert (tmp_path / "speed.svg").read_text().startswith("<?xml")
    with pytest.raises(AdviceError, match="add them"):
        decode_table.put_into(file, "text")


def test_a_stopped_run_goes_on_where_it_was(paced, tmp_path):
    file = tmp_path / "runs.jsonl"
    paced.limit = len(contestants.FEW) + 11  # the warm-up comes first
    with pytest.raises(SystemExit) as stopped:
        decode.main([str(file), *QUICK])
    assert stopped.value.code == 130
    assert {t for t, _ in ratios(file)} == {0.0}, "only turns that everyone has taken count"
    paced.limit = None
    decode.main([str(file), *QUICK])
    runs = [json.loads(line) for line in file.read_text().splitlines()[1:]]
    turns = {(run["temperature"], run["seed"], run["turn"], *run["case"]) for run in runs}
    assert len(runs) == len(turns) == 2 * 3 * len(contestants.FEW)


def test_intervals_are_over_prompts_not_over_runs():
    cases, turns = [PLAIN, DEFAULT], {}
    for seed in range(50):
        for prompt, slow in enumerate((1.0, 4.0)):
            turns[1.0, seed, prompt] = {PLAIN: dict(tokens=10, seconds=1.0), DEFAULT: dict(tokens=10, seconds=slow)}
    speed = decode_table.resampled(1.0, cases, turns)
    low, high = decode_table.interval(speed[DEFAULT] / speed[PLAIN])
    assert (low, high) == (0.25, 1.0), "two prompts say little, however often each is repeated"
