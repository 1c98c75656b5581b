"""The command `multidraft-judge`: whether a server is lossless, by what it reports and by what a reference knows.

With --measure it says instead how many tokens its chunks have, and how fast they come.

Where multidraft is installed, `multidraft judge` is the same function, which this package names as an entry point.
"""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from multidraft_judge.defaults import ALPHA, BUDGET_TOKENS, MAX_TOKENS, NUM_LOGPROBS, ROUNDING, TIMEOUT_SECONDS
from multidraft_judge.errors import AdviceError, one_line

if TYPE_CHECKING:
    from multidraft_judge.verdict import Verdict

NAME = "multidraft-judge"
ASKING, EVIDENCE, MEASURING, OUTPUT = "Requests", "Evidence", "Measuring", "Output"
FOR_A_VERDICT = (
    *("reference", "reference_model", "budget_tokens", "top_p", "top_k", "presence_penalty", "frequency_penalty"),
    *("logprobs", "alpha", "rounding", "reported", "forms", "plot"),
)
GUILTY, CANNOT_JUDGE, BROKEN, STOPPED, TERMINATED = 1, 2, 70, 130, 143  # exit codes
MAX_MESSAGE_CHARACTERS = 600
UsageError: Any = typer.BadParameter.__bases__[0]  # typer does not export it, and its home depends on the version
DTYPE_HELP = "float32: compute the model so, on a CPU. Default: as it is stored."
MODEL_HELP = "The same model, to be loaded here, which needs multidraft: a folder, a hub name, a GGUF file, smollm2."
NAME_HELP = "The model's name in requests. Default: the server's only one."
PROMPTS_HELP = 'File with one {"prompt"} a line, or {"turns"} as in Spec-Bench. Default: 24 of several kinds.'
TEMPERATURE_HELP = "0 for greedy texts only. Default: 1. With --measure it may be repeated; default: 0 and 1."
MEASURE_HELP = "Measure tokens a chunk and speed, in place of a verdict."
FORMS_HELP = "Ask for a JSON form in one wave of four: texts must have it, and end behind it."
REPORTED_HELP = "Which law's logarithms the server lists: sampled, temperature or raw. Default: as its kind does."


class Termination(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does, with its own exit code."""


def option(text: str, panel: str, *names: str, **settings: Any) -> Any:
    """An option with its help text, in a panel of the help page."""
    return typer.Option(*names, help=text, rich_help_panel=panel, **settings)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Print errors that a user can mend on one line of stderr, and end with the exit code for them."""
    try:
        yield
        sys.stdout.flush()
        return
    except AdviceError as error:
        line, code = str(error), CANNOT_JUDGE
    except KeyboardInterrupt as interrupt:
        line = "stopped; with --out the same command goes on"
        code = TERMINATED if isinstance(interrupt, Termination) else STOPPED
        if signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, terminate):  # of a program whose command this is
            raise KeyboardInterrupt(line) from None
    except OSError as error:
        with open(os.devnull, "w") as nowhere:  # what is still to be written would be tried again at the end
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        line, code = f"{error.filename or 'the output'} failed: {error.strerror or error}; check it", CANNOT_JUDGE
    except (typer.Exit, typer.Abort):
        raise
    except Exception:  # 1, Python's own code, is a verdict
        traceback.print_exc()
        line, code = "this is a fault of the program, not of your input; report it with the lines above", BROKEN
    say(line)
    raise typer.Exit(code)


def with_one_line_errors(command: Callable[..., None]) -> Callable[..., None]:
    """The command, whose errors are one line each."""

    @wraps(command)
    def wrapper(**values: Any) -> None:
        with one_line_errors():
            command(**values)

    return wrapper


def say(line: str) -> None:
    """Print an error on one line of limited length, without control characters, which a server may have sent."""
    typer.echo(f"{NAME}: {one_line(line)[:MAX_MESSAGE_CHARACTERS]}", err=True)


@with_one_line_errors
def judge(
    context: typer.Context,
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Of an OpenAI-compatible server, as http://127.0.0.1:8000.")
    ],
    model: Annotated[str | None, option(NAME_HELP, ASKING)] = None,
    reference: Annotated[
        str | None, option("URL of the same model served without drafts, which scores the texts.", EVIDENCE)
    ] = None,
    reference_model: Annotated[str | None, option(MODEL_HELP, EVIDENCE)] = None,
    reference_dtype: Annotated[str | None, option(DTYPE_HELP, EVIDENCE)] = None,
    prompts: Annotated[Path | None, option(PROMPTS_HELP, ASKING)] = None,
    limit: Annotated[int | None, option("Only the first N prompts of the file.", ASKING, min=1)] = None,
    budget_tokens: Annotated[int, option("No more is asked for after so many tokens.", ASKING, min=1)] = BUDGET_TOKENS,
    max_tokens: Annotated[int, option("New tokens of a request.", ASKING, min=1)] = MAX_TOKENS,
    temperature: Annotated[list[float] | None, option(TEMPERATURE_HELP, ASKING, min=0)] = None,
    top_p: Annotated[float, option("As the server samples.", ASKING, min=0, max=1)] = 1.0,
    top_k: Annotated[int, option("As the server samples; 0 for all tokens.", ASKING, min=0)] = 0,
    presence_penalty: Annotated[float, option("Sent along, as by OpenAI's API.", ASKING, min=-2, max=2)] = 0.0,
    frequency_penalty: Annotated[float, option("Sent along, as by OpenAI's API.", ASKING, min=-2, max=2)] = 0.0,
    logprobs: Annotated[int, option("Likeliest tokens to ask for.", ASKING, min=1)] = NUM_LOGPROBS,
    timeout: Annotated[float, option("Seconds to wait for the server.", ASKING, min=0.001)] = TIMEOUT_SECONDS,
    api_key: Annotated[
        str | None, option("Sent as a bearer token.", ASKING, "--api-key", envvar="MULTIDRAFT_API_KEY")
    ] = None,
    alpha: Annotated[
        float, option("Probability that the bets convict an innocent server, at most.", EVIDENCE, min=0, max=1)
    ] = ALPHA,
    rounding: Annotated[
        float, option("Factor by which probabilities may be off: 0.01 for bfloat16.", EVIDENCE, min=0, max=1)
    ] = ROUNDING,
    reported: Annotated[str | None, option(REPORTED_HELP, EVIDENCE)] = None,
    forms: Annotated[bool, option(FORMS_HELP, EVIDENCE, "--forms")] = False,
    is_measured: Annotated[bool, option(MEASURE_HELP, MEASURING, "--measure")] = False,
    plain: Annotated[
        str | None, option("URL of the same model served without drafts, which is timed by turns.", MEASURING)
    ] = None,
    out: Annotated[Path | None, option("Folder for answers; the same command resumes there.", OUTPUT)] = None,
    plot: Annotated[Path | None, option("Draw the evidence over tokens: .svg, .png or .pdf.", OUTPUT)] = None,
    as_json: Annotated[bool, option("Print JSON, and progress on stderr.", OUTPUT, "--json")] = False,
) -> None:
    """Judge from outside whether a server is lossless. Exits with 0 if nothing is found, 1 if it is guilty,
    2 if it cannot be judged. With --measure there is no verdict: 0, or 2."""
    if limit is not None and prompts is None:
        raise AdviceError("--limit is for --prompts FILE; pass it, too, or leave it out")
    if is_measured:
        from multidraft_judge.measuring.report import measure_and_show

        check_measuring_options(context)
        measure_and_show(url, model, plain, prompts, limit, temperature, max_tokens, timeout, api_key, out, as_json)
        return
    if plain is not None:
        raise AdviceError("--plain is for --measure; pass it, too, or leave it out (a verdict takes --reference)")
    if temperature is not None and len(temperature) > 1:
        raise AdviceError("a verdict is on one temperature; give one, or --measure")
    if reference is not None and reference_model is not None:
        raise AdviceError("--reference and --reference-model are two references; give one")

    from multidraft_judge.evidence.laws import reported_law
    from multidraft_judge.judgement import judge as judge_subject
    from multidraft_judge.prompts import read_prompts
    from multidraft_judge.references.model import check_dtype, load_reference
    from multidraft_judge.terminal import progress_bar
    from multidraft_judge.verdict import check_picture

    check_dtype(reference_dtype, reference_model)
    if plot is not None:
        check_picture(plot)
    kind = reported_law(reported)
    texts = None if prompts is None else [prompt.text for prompt in read_prompts(prompts, limit)]
    source: Any = reference
    if reference_model is not None:
        source = load_reference(reference_model, logprobs, reference_dtype)
    with progress_bar("tokens", budget_tokens) as progress:
        verdict = judge_subject(
            url,
            model,
            reference=source,
            prompts=texts,
            budget_tokens=budget_tokens,
            alpha=alpha,
            temperature=temperature[0] if temperature else 1.0,
            top_p=top_p,
            top_k=top_k,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            max_tokens=max_tokens,
            num_logprobs=logprobs,
            rounding=rounding,
            reported=kind,
            forms=forms,
            timeout=timeout,
            api_key=api_key,
            out=out,
            progress=progress,
        )
    typer.echo(json.dumps(verdict.as_json(), indent=2)) if as_json else show(verdict)
    try:
        if plot is not None:
            verdict.draw(plot)
    except OSError as error:  # the verdict stands
        say(f"{plot} failed: {error.strerror or error}; check it")
    if verdict.guilty:
        raise typer.Exit(GUILTY)


def check_measuring_options(context: typer.Context) -> None:
    """Raise if an option was given that only a verdict takes."""
    for name in FOR_A_VERDICT:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            word = f"--{name.replace('_', '-')}"
            raise AdviceError(f"{word} is for a verdict, and --measure gives none; leave one of them out")


def show(verdict: "Verdict") -> None:
    """Print the verdict as a table."""
    from multidraft_judge.terminal import print_table

    print_table(["looked at", "tokens", "found"], verdict.rows())
    for reason in verdict.reasons:
        typer.echo(f"guilty: {reason}")
    if not verdict.guilty:
        typer.echo(f"nothing found in {verdict.tokens:,} tokens of {verdict.texts:,} texts")
    typer.echo(f"the bets find an innocent server guilty with probability {verdict.alpha:g} at most", err=True)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")
app.command()(judge)


def terminate(*_: object) -> None:
    """What SIGTERM does."""
    raise Termination


def main() -> None:
    """Run the command."""
    signal.signal(signal.SIGTERM, terminate)
    try:
        sys.exit(app(standalone_mode=False))
    except UsageError as error:
        say(f"{error.format_message().rstrip('.')}; see `{NAME} --help`")
        sys.exit(CANNOT_JUDGE)
