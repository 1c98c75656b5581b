"""`multidraft tune` names the tree that pays."""

import pytest
from multidraft_research.tuning.measuring import TreeLine
from multidraft_research.tuning.tree_speeds import tree_speeds, what_pays


def measured(tree: str, speeds: list[float], temperature: float = 0.0) -> TreeLine:
    """A line with these tokens in a second of each text."""
    line = TreeLine(temperature, tree, 1, 1.0, 20.0)
    line.turns, line.steps = [(round(speed), 1.0) for speed in speeds], len(speeds)
    line.tokens = line.speed = sum(speeds) / len(speeds)
    return line


@pytest.mark.parametrize(
    ("chain", "branched", "auto", "sentence"),
    [
        (
            [30, 60],
            [20, 40],
            [15, 30],
            "the tree that pays most is 1x1x1, 3.00 (3.00 to 3.00) times plain decoding; auto",
        ),
        ([20, 10], [11, 9], [20, 40], "only auto pays; the fastest other tree is 1x1x1, 1.00 (0.50 to 2.00) times"),
        ([9, 18], [5, 10], [8, 16], "no tree pays; the fastest is 1x1x1, 0.90 (0.90 to 0.90) times"),
        ([5, 10], [15, 10], [8, 16], "it is not sure that a tree pays; the fastest is 2x1, 0.83 (0.50 to 1.50) times"),
        ([20], [30], [10], "one text is too little to tell which tree pays; the fastest was 2x1, 3.00 times plain"),
    ],
)
def test_the_tree_that_pays_is_named(chain, branched, auto, sentence):
    """By the measured speed, and only where the whole interval over texts is above plain decoding."""
    speeds = {"none": [10.0, 20.0][: len(chain)], "1x1x1": chain, "2x1": branched, "auto": auto}
    lines = [measured(tree, values) for tree, values in speeds.items()]
    (group,) = tree_speeds(lines).values()
    assert what_pays(group).startswith(sentence)
    assert group[0].interval is None


def test_every_temperature_has_plain_decoding_of_its_own():
    lines = [
        measured(tree, [speed, speed], t) for t in (0.0, 1.0) for tree, speed in (("none", 10 + 10 * t), ("1", 30))
    ]
    assert {t: [s.times_plain for s in group] for t, group in tree_speeds(lines).items()} == {0: [1, 3], 1: [1, 1.5]}
    speed = tree_speeds(lines)[0.0][1]
    assert "turns" not in speed.as_dict(False)
    assert (speed.as_dict(False)["times_plain"], speed.as_dict(True)["times_plain"]) == (3, None)
    assert (speed.cells(False)[-1], speed.cells(True)[-1]) == ("3.00 (3.00 to 3.00)", "busy")
