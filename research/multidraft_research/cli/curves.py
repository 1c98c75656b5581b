"""`multidraft study curves`: the picture of the Lorenz rule at a real position."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from multidraft.cli import terminal
from multidraft_research.cli.capture import DEMO, SHIPPED, Source
from multidraft_research.cli.pretrained import DraftOption, TargetOption
from multidraft_research.studies import pictures

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from multidraft_research.studies.curves import PositionCase


def curves(
    out: Annotated[Path, Option(help="The picture to write: .svg, .png or .pdf.")],
    target: TargetOption = None,
    draft: DraftOption = None,
    prompts: Annotated[Path, Option(help="A file of prompts; the first one is used.", show_default=SHIPPED)] = DEMO,
    max_new_tokens: Annotated[int, Option(min=1, help="Positions to look for a telling one.")] = 64,
    drafts: Annotated[int, Option(min=1, max=1000, help="Drafts at a node.")] = 4,
    top_k: Annotated[int, Option(min=1, help="The draft is cut to its K most likely tokens.")] = 12,
    seed: Annotated[int, Option(min=0, max=2**32)] = 0,
    as_json: Annotated[bool, Option("--json", help="Print the numbers of the picture as JSON.")] = False,
) -> None:
    """Draw the Lorenz curve beside F, and the schedule that the rule makes of them, at a recorded position.

    Of the positions of a sampled continuation whose optimal acceptance rate lies between 0.6 and 0.8, it is the one
    where resets lose most of the target.
    """
    from multidraft_research.captures.capturing import Manner, capture
    from multidraft_research.studies.curves import draw, telling_case

    pictures.check(out, [prompts, target, draft])
    pair, [prompt] = Source(target, draft, prompts, 1).read()
    [recording] = capture(pair.target, pair.draft, [prompt.tokens], Manner(max_new_tokens, seed=seed))
    case = telling_case(recording, drafts, top_k)
    names = [piece(pair.tokenizer, token) for token in case.tokens]
    draw(case, names, out)
    if as_json:
        return terminal.print_json(as_data(case, names, out))
    terminal.note(f"wrote {out}: position {case.position} of prompt {prompt.id}, optimum {case.plan.optimum:.3f}")


def piece(tokenizer: "PreTrainedTokenizerBase", token: int) -> str:
    """A token that can be read in a legend, where a dollar sign would begin a formula."""
    text = str(tokenizer.decode([token]))
    return text.replace(" ", "␣").replace("\n", "↵").replace("$", r"\$")


def as_data(case: "PositionCase", names: list[str], out: Path) -> dict[str, object]:
    """All that the picture shows."""
    columns = {"target": case.target, "draft": case.draft, "phase_ends": case.ends, "draft_mass": case.plan.Q}
    return {
        "file": str(out),
        "position": case.position,
        "drafts": case.drafts,
        "optimal_acceptance_rate": float(case.plan.optimum),
        "tokens": names,
        "resets": case.resets,
        **{name: values[: case.size].tolist() for name, values in columns.items()},
    }
