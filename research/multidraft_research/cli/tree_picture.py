"""A step of a trace as a picture: the drafted tree in the colours of the terminal, as SVG.

The same step gives the same bytes: no fonts are embedded, and nothing has a random name.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

from multidraft.cli import terminal
from multidraft.errors import AdviceError

COLOURS = {  # of a box: what fills it, and what is around it
    "root": ("#e2e8f0", "#475569"),
    "accepted": ("#bbf7d0", "#15803d"),
    "rejected": ("#ffffff", "#94a3b8"),
    "recovered": ("#fde68a", "#b45309"),
    "bonus": ("#bae6fd", "#0369a1"),
}
LEGEND = {
    "accepted": "drafted and accepted",
    "rejected": "drafted, not taken",
    "recovered": "drawn anew, as the drafts were rejected",
    "bonus": "drawn after the last draft",
}
NUMBERS = "in a box: draft probability → target probability"
FONT = "ui-monospace, Menlo, Consolas, monospace"
CHARACTER, HEIGHT, MARGIN = 8.4, 40, 16  # the width of a character; of a box; around the picture
GAP, ROW = 44, 52  # between two levels, and from one row to the next
MAX_CHARACTERS, MAX_BOXES = 20, 400


@dataclass
class TokenBox:
    """A token with what it is drawn with, and the tokens below it."""

    text: str
    kind: str
    numbers: str = ""
    below: "list[TokenBox]" = field(default_factory=list)
    left: float = 0.0
    top: float = 0.0

    @property
    def width(self) -> float:
        """As wide as its text or its smaller numbers need."""
        return 16 + max(CHARACTER * len(self.text), 0.75 * CHARACTER * len(self.numbers))

    def all(self) -> "Iterator[TokenBox]":
        """This box and all below it."""
        yield self
        for box in self.below:
            yield from box.all()


def picture(pieces: dict[int, str], record: dict[str, Any], before: str) -> bytes:
    """The SVG of a step's record; `before` is the text that it continues."""
    if len(record["nodes"]) > MAX_BOXES:
        raise AdviceError(f"a tree of {len(record['nodes'])} nodes is no picture; draw a step of at most {MAX_BOXES}")
    root = boxes(pieces, record)
    bottom = place(root, levels(root), 0, 2.5 * MARGIN)
    return draw_picture(root, shorten(before.split("\n")[-1], 60), bottom)


def boxes(pieces: dict[int, str], record: dict[str, Any]) -> TokenBox:
    """The tree, with the step's last token below the end of the accepted path."""
    nodes, path = {node["node"]: node for node in record["nodes"]}, [0, *record["path"]]
    box_of_node = {0: TokenBox(name(pieces, nodes[0]["token"]), "root")}
    for number in sorted(nodes)[1:]:
        above, token = nodes[nodes[number]["above"]], nodes[number]["token"]
        place = above["drafted"].index(token)
        numbers = f"{above['draft'][place]:.2f} → {above['target'][place]:.2f}"
        box = TokenBox(name(pieces, token), "accepted" if number in path else "rejected", numbers)
        box_of_node[number] = box
        box_of_node[above["node"]].below.append(box)
    last = record["last"]
    box_of_node[path[-1]].below.append(TokenBox(name(pieces, last["token"]), last["kind"]))
    return box_of_node[0]


def name(pieces: dict[int, str], token: int) -> str:
    """A token with its white space visible."""
    return shorten(json.dumps(pieces[token], ensure_ascii=False)[1:-1].replace(" ", "␣"), MAX_CHARACTERS)


def shorten(text: str, characters: int) -> str:
    """A text that XML can hold, cut in front where it is long."""
    text = terminal.visible(text).encode(errors="replace").decode()
    return text if len(text) <= characters else f"…{text[1 - characters :]}"


def levels(root: TokenBox) -> list[float]:
    """Where the boxes of each level begin: behind the widest of the level before."""
    lefts, level = [float(MARGIN)], [root]
    while following := [below for box in level for below in box.below]:
        lefts.append(lefts[-1] + max(box.width for box in level) + GAP)
        level = following
    return lefts


def place(box: TokenBox, lefts: list[float], depth: int, top: float) -> float:
    """Put a box in the middle of those below it; return where the next row begins."""
    box.left, next_top = lefts[depth], top
    for below in box.below:
        next_top = place(below, lefts, depth + 1, next_top)
    box.top = (box.below[0].top + box.below[-1].top) / 2 if box.below else top
    return max(next_top, top + ROW)


def draw_picture(root: TokenBox, before: str, bottom: float) -> bytes:
    """The picture, with a legend below the tree."""
    all_boxes, below = list(root.all()), bottom + MARGIN
    legend = [*LEGEND.items(), ("", NUMBERS)]
    kinds = {box.kind for box in all_boxes}
    legend = [(kind, text) for kind, text in legend if kind in {*kinds, ""}]
    texts = [before, NUMBERS, *LEGEND.values()]
    width = max(*(box.left + box.width for box in all_boxes), 2 * MARGIN + CHARACTER * max(map(len, texts))) + MARGIN
    height = below + 20 * len(legend) + MARGIN / 2
    size: dict[str, Any] = dict(viewBox=f"0 0 {width:.0f} {height:.0f}", width=f"{width:.0f}", height=f"{height:.0f}")
    svg = element(None, "svg", xmlns="http://www.w3.org/2000/svg", **size, font_family=FONT)
    element(svg, "rect", width="100%", height="100%", rx=8, fill="#f8fafc")
    element(svg, "text", before, x=MARGIN, y=1.6 * MARGIN, fill="#475569", font_size=14)
    for box in all_boxes:
        for child in box.below:
            draw_edge(svg, box, child)
    for box in all_boxes:
        draw_box(svg, box)
    for row, (kind, text) in enumerate(legend):
        y = below + 20 * row
        if kind:
            fill, border = COLOURS[kind]
            element(svg, "rect", x=MARGIN, y=y, width=12, height=12, rx=3, fill=fill, stroke=border)
        element(svg, "text", text, x=MARGIN + 20 * bool(kind), y=y + 11, fill="#475569", font_size=12)
    return ElementTree.tostring(svg, encoding="utf-8") + b"\n"


def draw_edge(svg: ElementTree.Element, box: TokenBox, child: TokenBox) -> None:
    """A curve from a box to one below it: thick along the tokens that are emitted."""
    start, end, y, y_end = box.left + box.width, child.left, box.top + HEIGHT / 2, child.top + HEIGHT / 2
    middle, is_emitted = (start + end) / 2, child.kind != "rejected"
    path = f"M{start:.1f} {y:.1f}C{middle:.1f} {y:.1f} {middle:.1f} {y_end:.1f} {end:.1f} {y_end:.1f}"
    element(svg, "path", d=path, fill="none", stroke=COLOURS[child.kind][1], stroke_width=2.5 if is_emitted else 1.2)


def draw_box(svg: ElementTree.Element, box: TokenBox) -> None:
    """A token, and its numbers below it."""
    fill, border = COLOURS[box.kind]
    size: dict[str, Any] = dict(x=f"{box.left:.1f}", y=f"{box.top:.1f}", width=f"{box.width:.1f}", height=HEIGHT)
    element(svg, "rect", **size, rx=6, fill=fill, stroke=border, stroke_width=1.5)
    place: dict[str, Any] = dict(x=f"{box.left + box.width / 2:.1f}", text_anchor="middle")
    baseline = box.top + (17 if box.numbers else 25)
    element(svg, "text", box.text, **place, y=f"{baseline:.1f}", fill="#0f172a", font_size=14)
    if box.numbers:
        element(svg, "text", box.numbers, **place, y=f"{box.top + 33:.1f}", fill="#475569", font_size=10.5)


def element(parent: ElementTree.Element | None, tag: str, text: str = "", **attributes: Any) -> ElementTree.Element:
    """An element in its parent; underscores of attributes stand for hyphens."""
    strings = {name.replace("_", "-"): str(value) for name, value in attributes.items()}
    node = ElementTree.Element(tag, strings) if parent is None else ElementTree.SubElement(parent, tag, strings)
    node.text = text or None
    return node
