"""`multidraft export-head`: a draft head as a folder that other engines read."""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument

from multidraft.cli import completion, terminal
from multidraft.cli import options as o
from multidraft.cli.drafter_names import HEAD_NAME
from multidraft.cli.engines import SMOLLM2, load_models, silence
from multidraft.errors import AdviceError, quote

HUB_NAMES = {SMOLLM2: "HuggingFaceTB/SmolLM2-135M-Instruct"}  # by which other engines find a target
WHOLE_HELP = "With the rows of the target's output layer, which vLLM and SGLang need; else only multidraft reads it."


def export_head(
    name: Annotated[str, Argument(help="The head: eagle3:smollm2, or KIND:FOLDER.", autocompletion=completion.heads)],
    out: Annotated[Path, o.option("Folder for the head, new or empty.", o.OUTPUT)],
    target: Annotated[
        str | None,
        o.option(
            "The head's target: a folder, a hub name, or smollm2. Default: what the head's files name.",
            o.MODELS,
            autocompletion=completion.targets,
        ),
    ] = None,
    whole: Annotated[bool, o.option(WHOLE_HELP, o.OUTPUT, "--whole/--without-output")] = True,
) -> None:
    """Write a draft head in the format that vLLM, SGLang and `speculators` read."""
    if not HEAD_NAME.fullmatch(name):
        raise AdviceError(f"{quote(name)} names no draft head; write eagle3:{SMOLLM2} or KIND:FOLDER")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise AdviceError(f"{str(out)!r} is not an empty folder; choose another --out")
    from multidraft.models.heads.configuration import target_name
    from multidraft.models.heads.drafters import folder_of, head
    from multidraft.models.heads.saving import save_head

    silence()
    target, published = target_of(name, target, target_name(folder_of(name.partition(":")[2])))
    model: Any = load_models(target, [])[0]
    module = head(name, model).module
    names = model.config.architectures or [type(model).__name__]
    try:
        save_head(module, out, published, names, whole=whole, dtype=model.dtype)
    except OSError as error:
        raise AdviceError(f"cannot write to {out} ({error.strerror}); choose another --out") from None
    terminal.note(f"{out} holds the head{'' if whole else ' without its output layer'}; its target is {target}")


def target_of(head: str, target: str | None, named: str | None) -> tuple[str, str]:
    """The target to load, and the name that the head's files give it; raises AdviceError where they name another."""
    if target is None:
        if named is None:
            raise AdviceError(f"the files of {head} do not say what target it is for; pass --target")
        target = next((ours for ours, published in HUB_NAMES.items() if published == named), named)
    published = HUB_NAMES.get(target, target)
    if named is not None and Path(published).name != Path(named).name:  # a folder may be a copy of what the hub has
        raise AdviceError(
            f"{head} is for {named}, and --target is {target}; leave --target out, or give a folder of that name"
        )
    return target, named or published
