"""All studies of a pair as one page of HTML that needs nothing else: tables, pictures, settings, versions."""

import re
from base64 import b64encode
from collections.abc import Iterator
from html import escape
from typing import Any

from multidraft_research.studies.running.results import FINDINGS, Results

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #1c2126; max-width: 76rem; margin: 2rem auto; padding: 0 1rem }
h1 { line-height: 1.2 }
details { border-top: 1px solid #ccd3da; padding: .6rem 0 }
summary { font-size: 1.3rem; font-weight: 600; cursor: pointer }
figure { margin: 1rem 0 }
img { max-width: 100% }
.wide { overflow-x: auto }
table { border-collapse: collapse; margin: .6rem 0; font: 13px system-ui; font-variant-numeric: tabular-nums }
caption { text-align: left; font-weight: 600; padding: .3rem 0 }
th, td { padding: .18rem .7rem; text-align: right; white-space: nowrap }
th:first-child, td:first-child { text-align: left }
tr:nth-child(even) td { background: #f4f6f8 }
thead th { border-bottom: 1px solid #8a949e }
.printed table { color: #6b4a00 }
.printed tr:nth-child(even) td { background: #fdf6e7 }
.shown { color: #17693a }
.contradicted { color: #a3242f; font-weight: 600 }
.undecided, .equal { color: #6a727a }
"""
READING = (
    "Numbers are ratios of sums over prompts; what follows ± is their standard error over prompts. Findings are judged "
    "by the 95 % interval of the paired difference. Tables in brown are what the papers print, for other models and "
    "other hardware."
)
PLACES = re.compile(rb' (?:d|x|y)="[^"]*"|translate\([^)]*\)')
DECIMALS, INDENT = re.compile(rb"(\.\d\d)\d+"), re.compile(rb"\n\s+")
VERDICTS = ("shown", "contradicted", "undecided", "equal")


def page(title: str, facts: dict[str, Any], studies: dict[str, tuple[Results, bytes]]) -> str:
    """The page: what was found, and then each study, folded, with its picture in SVG."""
    contents = "".join(
        f'<li><a href="#{name}">{name}</a>: {escape(r.settings["about"])}</li>' for name, (r, _) in studies.items()
    )
    findings = [[name, *row] for name, (results, _) in studies.items() for row in results.findings]
    body = [f"<h1>{escape(title)}</h1>", table("Findings", ["study", *FINDINGS], findings), f"<p>{READING}</p>"]
    body += [table("Settings", ["", ""], [[name, str(v)] for name, v in facts.items()]), f"<ul>{contents}</ul>"]
    for name, (results, picture) in studies.items():
        body += section(name, results, picture)
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(body)}</body></html>\n'


def section(name: str, results: Results, picture: bytes) -> Iterator[str]:
    """One study."""
    yield f'<details id="{name}"><summary>{name}</summary>'
    yield f"<p>{escape(results.settings['about'])} ({escape(results.study.paper)})</p>"
    image = b64encode(shorter(picture)).decode()
    yield f'<figure><img alt="{name}" src="data:image/svg+xml;base64,{image}"></figure>'
    for title, head, rows in results.printed_tables():
        kind = "printed" if title.startswith("Printed") else "ours"
        yield f'<div class="wide {kind}">{table(title, head, rows)}</div>'
    yield "</details>"


def shorter(picture: bytes) -> bytes:
    """An SVG whose lines have two decimals of a point, which is all that can be seen.

    >>> shorter(b'<path d="M 0.123456 1" transform="scale(0.015625)"/>')
    b'<path d="M 0.12 1" transform="scale(0.015625)"/>'
    """
    return INDENT.sub(b"\n", PLACES.sub(lambda place: DECIMALS.sub(rb"\1", place[0]), picture))


def table(title: str, head: list[str], rows: list[list[str]]) -> str:
    """A table; what became of a finding has a colour."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = "".join(f"<tr>{''.join(map(entry, row))}</tr>" for row in rows)
    return f"<table><caption>{escape(title)}</caption><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table>"


def entry(text: str) -> str:
    """A cell."""
    return f'<td class="{text}">{text}</td>' if text in VERDICTS else f"<td>{escape(text)}</td>"
