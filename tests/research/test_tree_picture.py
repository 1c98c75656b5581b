"""`multidraft replay --svg`: a step's tree as a picture, the same bytes for the same step."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from commands import ends_with_advice, run
from multidraft_research.cli.tree_picture import COLOURS, MAX_BOXES, picture

import multidraft as md
from multidraft.decoding.trace import FORMAT_VERSION

SVG = "{http://www.w3.org/2000/svg}"
PIECES = {0: " a", 1: "<b>\x1b[31m", 2: "\ud800&", 3: "\n", 4: "x" * 50}
RECORD: dict[str, Any] = {  # two drafts, of which the first is accepted with the one below it, then a bonus token
    "record": "step",
    "row": 0,
    "step": 0,
    "nodes": [
        {
            "node": 0,
            "above": -1,
            "token": 0,
            "drafted": [1, 2],
            "draft": [0.5, 0.25],
            "target": [0.75, 0.125],
            "numbers": [],
        },
        {"node": 1, "above": 0, "token": 1, "drafted": [4], "draft": [1.0], "target": [0.5], "numbers": []},
        {"node": 2, "above": 0, "token": 2},
        {"node": 3, "above": 1, "token": 4},
    ],
    "walk": [],
    "path": [1, 3],
    "last": {"token": 3, "kind": "bonus", "number": 0.5, "from": 0.0, "to": 1.0, "of": 1.0},
}


def parts(content: bytes) -> tuple[list[str], list[str]]:
    """The texts of a picture, and what fills its boxes."""
    root = ElementTree.fromstring(content)  # which raises where it is no XML
    texts = [text.text or "" for text in root.iter(f"{SVG}text")]
    return texts, [box.get("fill", "") for box in root.iter(f"{SVG}rect") if box.get("height") == "40"]


def test_every_token_is_a_box_in_the_colour_of_what_became_of_it() -> None:
    content = picture(PIECES, RECORD, "before")
    texts, fills = parts(content)
    kinds = ["root", "accepted", "accepted", "bonus", "rejected"]  # from the root down, first drafts first
    assert fills == [COLOURS[kind][0] for kind in kinds]
    assert texts[:8] == ["before", "␣a", "<b>\\u001b[31m", "0.50 → 0.75", f"…{'x' * 19}", "1.00 → 0.50", "\\n", "?&"]
    assert "drawn after the last draft" in texts
    assert "drawn anew, as the drafts were rejected" not in texts, "the legend has what is there"
    assert content == picture(PIECES, RECORD, "before")


def test_boxes_do_not_overlap() -> None:
    root = ElementTree.fromstring(picture(PIECES, RECORD, ""))
    boxes = [box for box in root.iter(f"{SVG}rect") if box.get("height") == "40"]
    places = [[float(box.get(name, "")) for name in ("x", "y", "width", "height")] for box in boxes]
    for index, (x, y, width, height) in enumerate(places):
        for left, top, _, _ in places[index + 1 :]:
            assert left >= x + width or abs(top - y) >= height


def write_trace(path: Path, steps: int) -> None:
    """A trace of so many steps that are all the same."""
    pieces = {str(token): text for token, text in PIECES.items() if token != 2} | {"2": "b"}
    sampling = {"temperature": 1.0, "processors": []}
    lines = [
        {"record": "trace", "format": FORMAT_VERSION},
        {"record": "generation", "first_row": 0, "scheme": "top:naive", "settings": {}, "tree": "Auto()"}
        | {"walk": "deferred", "sampling": sampling, "draft_sampling": sampling, "prompts": [[3, 0]], "pieces": pieces},
        *(RECORD | {"step": step, "pieces": {}} for step in range(steps)),
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_command_draws_one_step(tmp_path: Path) -> None:
    trace, file = tmp_path / "trace.jsonl", tmp_path / "tree.svg"
    write_trace(trace, 2)
    assert run("replay", trace, "--step", 0, "--svg", file).exit_code == 0
    assert "<b>\\u001b[31m" in parts(file.read_bytes())[0]
    ends_with_advice(run("replay", trace, "--svg", file), "--svg draws one step, not 2")
    ends_with_advice(run("replay", trace, "--step", 0, "--svg", tmp_path / "no" / "tree.svg"), "no folder")
    ends_with_advice(run("replay", trace, "--step", 0, "--svg", trace), "an input")


def test_a_tree_that_is_no_picture_is_refused() -> None:
    nodes = [*RECORD["nodes"], *({"node": 4 + n, "above": 0, "token": 2} for n in range(MAX_BOXES))]
    with pytest.raises(md.AdviceError, match="no picture"):
        picture(PIECES, RECORD | {"nodes": nodes}, "")
