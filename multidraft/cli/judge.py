"""`multidraft judge`: whether a server's tokens have the law that it reports, and whether that is the model's."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from multidraft.cli import options as o
from multidraft.cli import terminal
from multidraft.cli.prompts import read_prompts
from multidraft.errors import AdviceError
from multidraft.io import files
from multidraft.judging import ALPHA, BUDGET_TOKENS, MAX_TOKENS, NUM_LOGPROBS, ROUNDING, TIMEOUT_SECONDS

if TYPE_CHECKING:
    from multidraft.judging.reference import Reference
    from multidraft.judging.verdict import Verdict

ASKING, EVIDENCE = "Requests", "Evidence"
REFERENCE_HELP = "URL of the same model served without drafts, which scores the texts."
MODEL_HELP = "The same model, to be loaded here: a folder, a hub name, a GGUF file, smollm2 or embedded."
REPORTED_HELP = "Which law's logarithms the server lists: sampled, temperature or raw. Default: as its kind does."


def judge(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Of an OpenAI-compatible server, as http://127.0.0.1:8000.")
    ],
    model: Annotated[str, o.option("The model's name in requests.", ASKING)],
    reference: Annotated[str | None, o.option(REFERENCE_HELP, EVIDENCE)] = None,
    reference_model: Annotated[str | None, o.option(MODEL_HELP, EVIDENCE)] = None,
    prompts: Annotated[Path | None, o.option(o.FILE_HELP + " Default: 24 of several kinds.", ASKING)] = None,
    limit: o.Limit = None,
    budget_tokens: Annotated[int, o.option("Tokens to ask for at most.", ASKING, min=1)] = BUDGET_TOKENS,
    max_tokens: Annotated[int, o.option("New tokens of a request.", ASKING, min=1)] = MAX_TOKENS,
    temperature: Annotated[float, o.option("0 for greedy texts only.", ASKING, min=0)] = 1.0,
    top_p: Annotated[float, o.option("As the server samples.", ASKING, min=0, max=1)] = 1.0,
    top_k: Annotated[int, o.option("As the server samples; 0 for all tokens.", ASKING, min=0)] = 0,
    presence_penalty: Annotated[float, o.option("Sent along, as by OpenAI's API.", ASKING, min=-2, max=2)] = 0.0,
    frequency_penalty: Annotated[float, o.option("Sent along, as by OpenAI's API.", ASKING, min=-2, max=2)] = 0.0,
    logprobs: Annotated[int, o.option("Likeliest tokens to ask for.", ASKING, min=1)] = NUM_LOGPROBS,
    timeout: Annotated[float, o.option("Seconds to wait for the server.", ASKING, min=0.001)] = TIMEOUT_SECONDS,
    api_key: Annotated[
        str | None, o.option("Sent as a bearer token.", ASKING, "--api-key", envvar="MULTIDRAFT_API_KEY")
    ] = None,
    alpha: Annotated[
        float, o.option("Probability that the bets convict an innocent server, at most.", EVIDENCE, min=0, max=1)
    ] = ALPHA,
    rounding: Annotated[
        float, o.option("Factor by which probabilities may be off: 0.01 for bfloat16.", EVIDENCE, min=0, max=1)
    ] = ROUNDING,
    reported: Annotated[str | None, o.option(REPORTED_HELP, EVIDENCE)] = None,
    out: Annotated[Path | None, o.option("Folder for answers; the same command resumes there.", o.OUTPUT)] = None,
    plot: Annotated[Path | None, o.option("Draw the evidence over tokens: .svg, .png or .pdf.", o.OUTPUT)] = None,
    as_json: o.JsonFlag = False,
) -> None:
    """Judge from outside whether a server is lossless. Exits with 0 if nothing is found, 1 if it is guilty,
    2 if it cannot be judged."""
    if reference is not None and reference_model is not None:
        raise AdviceError("--reference and --reference-model are two references; give one")
    if plot is not None:
        files.check_picture(plot, [prompts])
    if limit is not None and prompts is None:
        raise AdviceError("--limit is for --prompts FILE; pass it, too, or leave it out")
    texts = None if prompts is None else [entry.text for entry in read_prompts(None, prompts, limit)]

    from tqdm import tqdm

    import multidraft as md

    source = reference if reference_model is None else load_reference(reference_model, logprobs)
    with tqdm(total=budget_tokens, desc="judging", unit="token", leave=False, delay=1) as bar:
        verdict = md.judge(
            url,
            model,
            reference=source,
            prompts=texts,
            budget_tokens=budget_tokens,
            alpha=alpha,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            max_tokens=max_tokens,
            num_logprobs=logprobs,
            rounding=rounding,
            reported=kind_of(reported),
            timeout=timeout,
            api_key=api_key,
            out=out,
            progress=lambda tokens: bar.update(min(tokens, budget_tokens) - bar.n),
        )
    if plot is not None:
        verdict.draw(plot)
    terminal.print_json(verdict.as_json()) if as_json else show(verdict)
    if verdict.guilty:
        raise typer.Exit(1)


def kind_of(name: str | None) -> Literal["sampled", "temperature", "raw"] | None:
    """One of the kinds of listed laws."""
    match name:
        case None | "sampled" | "temperature" | "raw":
            return name
    raise AdviceError(f"--reported is {name!r}; use sampled, temperature or raw")


def load_reference(name: str, num_logprobs: int) -> "Reference":
    """A model in this process."""
    from multidraft.cli.models import NONE, load
    from multidraft.judging.dialects import judged_logprobs
    from multidraft.judging.reference_model import ModelReference

    models = load(name, NONE)
    return ModelReference(models.target, models.tokenizer, top=judged_logprobs(num_logprobs))


def show(verdict: "Verdict") -> None:
    """Print the verdict as a table."""
    terminal.print_table(["looked at", "tokens", "found"], verdict.rows())
    for reason in verdict.reasons:
        terminal.show(f"guilty: {reason}\n")
    if not verdict.guilty:
        terminal.show(f"nothing found in {verdict.tokens:,} tokens of {verdict.texts:,} texts\n")
    terminal.note(f"the bets find an innocent server guilty with probability {verdict.alpha:g} at most")
