"""`multidraft export-head`: a draft head as a folder that other engines read."""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument

from multidraft.cli import completion, terminal
from multidraft.cli import options as o
from multidraft.cli.models import HEAD_NAME, SMOLLM2, load_models, silence
from multidraft.errors import AdviceError, shown

HUB_NAMES = {SMOLLM2: "HuggingFaceTB/SmolLM2-135M-Instruct"}  # by which other engines find a target
WHOLE_HELP = "With the rows of the target's output layer, which vLLM and SGLang need; else only multidraft reads it."


def export_head(
    name: Annotated[str, Argument(help="The head: eagle3:smollm2, or KIND:FOLDER.", autocompletion=completion.heads)],
    out: Annotated[Path, o.option("Folder for the head, new or empty.", o.OUTPUT)],
    target: Annotated[
        str,
        o.option("The head's target: a folder, a hub name, or smollm2.", o.MODELS, autocompletion=completion.targets),
    ] = SMOLLM2,
    whole: Annotated[bool, o.option(WHOLE_HELP, o.OUTPUT, "--whole/--without-output")] = True,
) -> None:
    """Write a draft head in the format that vLLM, SGLang and `speculators` read."""
    if not HEAD_NAME.fullmatch(name):
        raise AdviceError(f"{shown(name)} names no draft head; write eagle3:{SMOLLM2} or KIND:FOLDER")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise AdviceError(f"{str(out)!r} is not an empty folder; choose another --out")
    from multidraft.models.heads.drafters import head
    from multidraft.models.heads.saving import save_head

    silence()
    model: Any = load_models(target, [])[0]
    module = head(name, model).module
    names = model.config.architectures or [type(model).__name__]
    try:
        save_head(module, out, HUB_NAMES.get(target, target), names, whole=whole, dtype=model.dtype)
    except OSError as error:
        raise AdviceError(f"cannot write to {out} ({error.strerror}); choose another --out") from None
    terminal.note(f"{out} holds the head{'' if whole else ' without its output layer'}; its target is {target}")
