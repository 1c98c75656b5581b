"""`judge`: ask a sampler, weigh its answers until it is guilty or the tokens are used up, and return the verdict."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from multidraft_judge.asking.client import Client
from multidraft_judge.asking.functions import Function
from multidraft_judge.asking.requests import Asking, Subject, ask_of, waves
from multidraft_judge.case import Case
from multidraft_judge.defaults import ALPHA, BUDGET_TOKENS, MAX_TOKENS, NUM_LOGPROBS, ROUNDING, TIMEOUT_SECONDS
from multidraft_judge.errors import AdviceError, check_integer, check_number, check_text, is_number, quote
from multidraft_judge.evidence.laws import Reported, Settings, reported_law
from multidraft_judge.evidence.observation import Ask
from multidraft_judge.journal import folder_of
from multidraft_judge.prompts import default_prompts, digest
from multidraft_judge.references.model import ModelReference
from multidraft_judge.references.reference import Reference
from multidraft_judge.references.server import ServerReference
from multidraft_judge.verdict import Verdict

REPEATS = 4  # requests with a seed that are made twice
FIRST_REPEAT = 10**9  # their indices
MAX_EMPTY_WAVES = 8
MAX_TEMPERATURE = 100


def judge(
    subject: str | Callable[[str, int], Any],
    model: str | None = None,
    *,
    reference: str | Reference | None = None,
    prompts: Sequence[str] | None = None,
    budget_tokens: int = BUDGET_TOKENS,
    alpha: float = ALPHA,
    temperature: float | int = 1.0,
    top_p: float | int = 1.0,
    top_k: int = 0,
    presence_penalty: float | int = 0.0,
    frequency_penalty: float | int = 0.0,
    max_tokens: int = MAX_TOKENS,
    num_logprobs: int = NUM_LOGPROBS,
    rounding: float = ROUNDING,
    reported: Reported | None = None,
    forms: bool = False,
    timeout: float | int = TIMEOUT_SECONDS,
    api_key: str | None = None,
    out: str | Path | None = None,
    progress: Callable[[int], object] | None = None,
    transport: Any = None,
) -> Verdict:
    """Whether tokens come from the law that a server, or a function, reports for them, and whether that is the model's.

    `subject` is the URL of an OpenAI-compatible server that serves `model`, by default its only one, or a function
    `sample(prompt, n)` that returns tokens and for each a mapping from tokens to log-probabilities. The bets find an
    innocent subject guilty with probability `alpha` at most; greedy tokens and single places have fixed bounds.
    `reference` is the URL of the same model served without drafts, or a `Reference`. With `forms` some answers have to
    have a JSON form. `rounding` is the factor by which probabilities may be off. Answers are kept in the folder `out`;
    what is there is not asked again. `progress` gets the number of tokens so far. Raises AdviceError if the subject
    cannot be judged.

    >>> def biased(prompt, n):
    ...     return ["a"] * n, [{"a": -0.01005, "b": -4.60517}] * n
    >>> verdict = judge(biased, budget_tokens=10_000)
    >>> verdict.guilty, verdict.reasons
    (True, ['its tokens are not drawn from the law that it reports'])
    """
    check(budget_tokens, alpha, temperature, top_p, top_k, max_tokens, num_logprobs, rounding, reported)
    texts = [prompt.text for prompt in default_prompts()] if prompts is None else list(prompts)
    if not texts:
        raise AdviceError("there are no prompts; give at least one")
    for text in texts:
        check_text(text, "a prompt")
    connect = partial(Client, num_logprobs=num_logprobs, timeout=float(timeout), api_key=api_key, transport=transport)
    asked: Subject
    listed: Reported
    if callable(subject):
        if forms:
            raise AdviceError("forms are asked for in requests, and a function takes none; leave them out")
        asked, name, listed = Function(subject), getattr(subject, "__name__", "function"), "sampled"
        plan = function_waves(texts, max_tokens)
    else:
        asked = connect(subject, model)
        name, listed, plan = asked.url, asked.dialect.reported, waves(texts, float(temperature), max_tokens, forms)
    penalties = {"presence_penalty": presence_penalty, "frequency_penalty": frequency_penalty}
    for penalty, value in penalties.items():
        check_number(value, penalty, -2, 2)
    settings = Settings(
        float(temperature), float(top_p), top_k, float(presence_penalty), float(frequency_penalty), reported or listed
    )
    settings.check()
    if isinstance(reference, str):
        reference = ServerReference(connect(reference, model))
        if isinstance(asked, Client):
            reference.check_prompts(asked, texts)
    if isinstance(reference, ModelReference):
        reference.reported = settings.reported  # it can list any
    if reference is not None:
        check_reference(reference, settings)
    asked_model = asked.model if isinstance(asked, Client) else model
    facts = {"model": asked_model, "prompts": digest(texts), "max_tokens": max_tokens, "logprobs": num_logprobs}
    facts |= vars(settings) | ({"forms": True} if forms else {})  # folders of runs without them are read as before
    asking = Asking(asked, settings, folder_of(out), {"judge": 1, "subject": name} | facts)
    case = Case(settings, alpha, rounding, reference)
    gather_evidence(case, asking, plan, budget_tokens, progress)
    case.close()
    case.check_open(name)
    repeats = repeat(asking, texts, max_tokens, float(temperature)) if isinstance(asked, Client) else {}
    return case.verdict(name, facts, repeats)


def gather_evidence(
    case: Case, asking: Asking, plan: Iterator[list[Ask]], budget: int, progress: Callable[[int], object] | None
) -> None:
    """Ask wave after wave, until the case is decided or the budget is used up."""
    empty = 0
    while case.tokens < budget and not case.reasons:
        before = case.tokens
        case.add(asking.answer(next(plan)))
        empty = 0 if case.tokens > before else empty + 1
        if empty == MAX_EMPTY_WAVES:
            raise AdviceError(f"{MAX_EMPTY_WAVES} waves of requests gave no token; check the prompts and the model")
        if progress is not None:
            progress(case.tokens)


def function_waves(prompts: Sequence[str], max_tokens: int) -> Iterator[list[Ask]]:
    """One call after another."""
    index = 0
    while True:
        prompt = prompts[index % len(prompts)]
        yield [Ask(index, prompt, max_tokens, streamed=False, reused=index >= len(prompts))]
        index += 1


def repeat(asking: Asking, prompts: Sequence[str], max_tokens: int, temperature: float) -> dict[str, int]:
    """Make some requests with a seed twice; servers need not give the same twice, so nothing follows by itself."""
    equal = 0
    for number in range(REPEATS):
        ask = replace(ask_of(prompts, number, max_tokens, temperature, 1), seed=number, reused=True)
        pair = [replace(ask, index=FIRST_REPEAT + 2 * number + twin) for twin in range(2)]
        first, second = (asking.answer([twin])[0] for twin in pair)
        equal += [token.text for token in first.tokens] == [token.text for token in second.tokens]
    return {"asked": REPEATS, "equal": equal}


def check(
    budget_tokens: int,
    alpha: float,
    temperature: float,
    top_p: float,
    top_k: int,
    max_tokens: int,
    num_logprobs: int,
    rounding: float,
    reported: str | None,
) -> None:
    """Raise AdviceError on a setting that is out of range."""
    for name, count, minimum in (
        ("budget_tokens", budget_tokens, 1),
        ("max_tokens", max_tokens, 1),
        ("logprobs", num_logprobs, 1),
        ("top_k", top_k, 0),
    ):
        check_integer(count, name, minimum)
    check_number(temperature, "temperature", 0, MAX_TEMPERATURE)
    check_number(top_p, "top_p", 0, 1, is_open=True)
    for name, value in (("alpha", alpha), ("rounding", rounding)):
        if not is_number(value) or not 0 < value < 1:
            raise AdviceError(f"{name} is {quote(value)}; use a number above 0 and below 1")
    reported_law(reported, "reported")


def check_reference(reference: Reference, settings: Settings) -> None:
    """Raise unless the reference lists the same kind of law as the subject."""
    if settings.penalties and isinstance(reference, ServerReference):
        raise AdviceError(
            "a server as the reference reads a text as a prompt, whose tokens these penalties do not count; leave the "
            "penalties out, or use --reference-model"
        )
    if reference.reported != settings.reported and not settings.is_plain:
        raise AdviceError(
            f"the server lists {settings.reported} log-probabilities, the reference {reference.reported} ones, which "
            "agree at temperature 1 without top-k and top-p only; leave these out"
        )
