"""`multidraft study all`: every study on one pair, and all of it as one page to read and to mail."""

from typing import Any

from multidraft.commands import terminal
from multidraft.commands.study.measured import Asked, measured
from multidraft.commands.study.others import OTHERS
from multidraft.errors import outputs
from multidraft.planning.machine import commit, hardware, versions
from multidraft.studies.listed import LISTED

ABOUT = "All of the studies that follow the papers, on one pair, and a report of them in HTML."
REPORT = "report.html"


def everything(asked: Asked, as_json: bool) -> None:
    """Measure what is missing of every study; over a capture that was given, of those that need no models."""
    from multidraft.studies.running.report import page

    names = [name for name, listed in LISTED.items() if asked.capture is None or not listed.on_models]
    done = {name: measured(name, asked) for name in names}
    pair = " and ".join(str(done[names[0]].settings[role]) for role in ("target", "draft"))
    for name, measure in OTHERS.items():
        if results := measure(name, asked):
            done[name] = results
    shown = {name: (results, (asked.out / f"{name}.svg").read_bytes()) for name, results in done.items()}
    content = page(f"multidraft on {pair}", facts(asked), shown)
    outputs.write(asked.out / REPORT, content.encode())
    if as_json:
        return terminal.print_json({name: results.as_data() for name, results in done.items()})
    rows = [[name, one.finding.text, one.verdict] for name, results in done.items() for one in results.judged]
    terminal.print_table(["study", "what its paper reports", "on this pair"], rows)
    terminal.note(f"wrote {asked.out / REPORT}")


def facts(asked: Asked) -> dict[str, Any]:
    """What the numbers depend on."""
    given: dict[str, Any] = dict(asked.source.names) if asked.capture is None else {"capture": str(asked.capture)}
    given |= {"prompts": asked.source.prompts.name, "limit": asked.source.limit or "all of them"}
    given |= {"new tokens": asked.new_tokens, "seed": asked.seed, "commit": commit()}
    return given | hardware() | versions("scipy", "ortools")
