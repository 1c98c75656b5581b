"""What a pair of published shapes could reach: tokens a step of a pair that was trained, over the shapes' step times.

No pair of these shapes is here. How often its drafts are accepted is unknown; the embedded and the trained pair say
what drafts of a small model are worth, and the shapes say what a step takes. The quotient is a bound where the real
pair's drafts are no better.
"""

from on_gpu.asked import Line

PAIRS = {"decode the embedded pair": "embedded", "decode the trained pair": "trained"}


def bounds(lines_by_piece: dict[str, list[Line]]) -> list[Line]:
    """A line a shape, tree, way and source of acceptance, from what the pieces have found."""
    steps = [line for name, lines in lines_by_piece.items() if name.startswith("steps of ") for line in lines]
    rates = [(source, line) for piece, source in PAIRS.items() for line in lines_by_piece.get(piece, [])]
    plain = {line["model"]: line["step"] for line in steps if (line["tree"], line["way"]) == ("plain", "recorded")}
    pairs = [(step, source, rate) for step in steps for source, rate in rates if fits(step, rate)]
    return [bound(step, source, rate, plain[step["model"]]) for step, source, rate in pairs]


def fits(step: Line, rate: Line) -> bool:
    """Whether both are of one tree; acceptance is taken where nothing was compiled, for it does not depend on that."""
    return rate["setting"].split(" ")[0] == step["tree"] and rate["way"] == "recorded" and bool(rate["tokens_a_pass"])


def bound(step: Line, source: str, rate: Line, plain: float) -> Line:
    """Tokens a second, and how many times what plain decoding of the shape makes."""
    speed = 1e3 * rate["tokens_a_pass"] / step["step"]
    line = dict(model=step["model"], tree=step["tree"], way=step["way"], accepted_as=source)
    line |= dict(temperature=rate["temperature"], tokens_a_pass=rate["tokens_a_pass"])
    return line | dict(tokens_a_second=round(speed, 1), over_plain=round(speed * plain / 1e3, 2))
