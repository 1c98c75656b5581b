"""How the draft of `smollm2` was made: `python -m multidraft_research.training.smollm2 --help`.

... write --out runs/draft/texts --part 0 --parts 2   # and --part 1 beside it; stop when there is enough
... read runs/draft/texts --conversations FILE       # texts that the target wrote before
... train runs/draft/texts --out runs/draft           # goes on where it was stopped
python examples/to_gguf.py runs/draft/draft draft.gguf --type q8_0
"""

import gzip
import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from platformdirs import user_cache_path
from tqdm import tqdm
from typer import Argument, Option, Typer

from multidraft.io import files
from multidraft.zoo import smollm2

if TYPE_CHECKING:
    from multidraft_research.training.small_draft import TokenSet
    from multidraft_research.training.texts import TopText
    from multidraft_research.training.writing import UserTurn

app = Typer(add_completion=False, no_args_is_help=True)
HELD_OUT = 60  # conversations at each end of a file, which are never trained on
ShardFolder = Annotated[Path, Argument(help="Folder of shards.")]


def records(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of JSON lines."""
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]


def prompts(prompt_records: list[dict[str, Any]], part: int, parts: int) -> "Iterator[UserTurn]":
    """Every second one is a user's turn that the model makes up."""
    from multidraft_research.training.writing import UserTurn

    for number in count(part, parts):
        if number % 2 or number // 2 >= len(prompt_records):
            yield UserTurn(number, f"self/{number}", None)
        else:
            yield UserTurn(number, prompt_records[number // 2]["id"], prompt_records[number // 2]["prompt"])


def choose(prompt_records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All short prompts, and some of the longer ones, which take more time to read than their answers to write."""
    sizes = [len(record["prompt"]) for record in prompt_records]
    steps = [1 if size < 350 else 4 if size < 900 else 16 if size < 2400 else len(prompt_records) for size in sizes]
    return [
        record for number, (record, step) in enumerate(zip(prompt_records, steps, strict=True)) if number % step == 0
    ]


@app.command()
def write(
    out: Annotated[Path, Option(help="Folder of shards.")],
    instructions: Annotated[Path, Option(help="Prompts as JSON lines (gz): id, prompt.")],
    part: Annotated[int, Option(min=0, help="Which of several writers this is, each in a thread of its own.")] = 0,
    parts: Annotated[int, Option(min=1)] = 1,
    rows: Annotated[int, Option(min=1)] = 64,
    seconds: Annotated[float, Option(min=0)] = float("inf"),
) -> None:
    """Let the target write, at T = 0, 0.7 and 1 by turns."""
    from multidraft_research.training import writing

    files.make_folder(out, "--out")
    prompt_records = choose(records(instructions))
    with tqdm(desc="tokens written", unit=" tokens") as bar:
        model = writing.as_bfloat16(smollm2.file("target"), out)
        writing.write(model, prompts(prompt_records, part, parts), out, f"p{part}", rows, seconds, bar.update)


@app.command()
def read(
    texts: ShardFolder,
    conversations: Annotated[Path, Option(help="JSON lines (gz) of user, assistant, ended, temperature.")],
) -> None:
    """Read what the target wrote before; the first and last 60 conversations are held out."""
    from multidraft.models.huggingface.loading import load_tokenizer
    from multidraft_research.training import conversations as written_before

    model, tokenizer, all_records = target(), load_tokenizer(str(folder())), records(conversations)
    held_out, training = all_records[:HELD_OUT] + all_records[-HELD_OUT:], all_records[HELD_OUT:-HELD_OUT]
    for chosen, place in ((held_out, texts / "held"), (training, texts)):
        place.mkdir(parents=True, exist_ok=True)
        for path in written_before.capture_texts(model, tokenizer, chosen, place, "g"):
            tqdm.write(str(path))


@app.command()
def train(
    texts: ShardFolder,
    out: Annotated[Path, Option(help="Folder for checkpoint, log and draft.")],
    size: Annotated[int, Option(min=1, help="Tokens that the draft has.")] = 8192,
    steps: Annotated[int, Option(min=1)] = 400,
    every: Annotated[int, Option(min=1, help="Steps from one look at the held-out texts to the next.")] = 50,
    mix: Annotated[float, Option(min=0, max=1, help="Share of the acceptance rate in the loss.")] = 0.0,
) -> None:
    """Distil the draft; run it again to go on."""
    from multidraft_research.training import small_draft
    from multidraft_research.training.texts import load_all

    files.make_folder(out, "--out")
    model, loaded, held = target(), load_all(texts), load_all(texts / "held")
    vocabulary = vocabulary_of(loaded, size, model.config.vocab_size, out / "target_ids.json")
    settings = small_draft.TrainingSettings(steps=steps, mix=mix)
    for step, loss, draft in small_draft.train(model, loaded, vocabulary, settings, out / "checkpoint.pt"):
        if step % every == 0 or step == steps:
            line = json.dumps({"step": step, "loss": loss} | small_draft.acceptance(draft, held, vocabulary))
            tqdm.write(line)
            with (out / "log.jsonl").open("a") as log:
                log.write(line + "\n")
            draft.save_pretrained(out / "draft")


def folder() -> Path:
    """Where the target is kept for Hugging Face's engine."""
    from multidraft.models.huggingface.from_gguf import folder_of

    return folder_of(smollm2.file("target"), user_cache_path("multidraft", appauthor=False))


def target() -> Any:
    """The target, on Hugging Face's engine."""
    from multidraft.models.huggingface.loading import load_model

    return load_model(str(folder()))


def vocabulary_of(texts: "list[TopText]", size: int, of: int, kept: Path) -> "TokenSet":
    """The draft's tokens, chosen once: texts that come later do not change them."""
    from multidraft_research.training.small_draft import TokenSet
    from multidraft_research.training.texts import frequent

    if not kept.exists():
        files.write(kept, json.dumps(frequent(texts, size, of)).encode())
    return TokenSet(json.loads(kept.read_text()), of)


if __name__ == "__main__":
    app()
