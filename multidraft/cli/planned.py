"""What `--tree auto` chooses trees by: one plan for a run, whichever processes decode."""

from typing import TYPE_CHECKING

from multidraft.cli.decode import Job
from multidraft.cli.models import Models
from multidraft.cli.prompts import Prompt

if TYPE_CHECKING:
    from multidraft.autotune.auto import Limits
    from multidraft.autotune.pair_plan import PairPlan
    from multidraft.autotune.subject import Subject

MEASURED = 32  # prompts after which a pair is measured


def limits(job: Job) -> "Limits | None":
    """Of the trees that are chosen; None where one is given, or nothing drafts."""
    from multidraft.generation.inputs import limits_of

    return limits_of(job.settings["tree"], job.settings["scheme"])


def plan_of(pair: Models, job: Job, prompts: list[Prompt]) -> "PairPlan":
    """The plan of a job that chooses trees, measured after its prompts if there is none yet."""
    from multidraft.autotune.keeping import plan_for
    from multidraft.generation.inputs import plan_file

    return plan_for(subject(pair, job, prompts), plan_file(job.settings["plan"], limits(job)))


def adopt(pair: Models, job: Job, plan: str) -> None:
    """Let this process choose by a plan that another one has, in JSON."""
    from multidraft.autotune import keeping

    keeping.adopt(subject(pair, job, []), plan)


def subject(pair: Models, job: Job, prompts: list[Prompt]) -> "Subject":
    """What is measured."""
    from multidraft.autotune.subject import Subject
    from multidraft.generation.inputs import as_drafter
    from multidraft.verification.registry import scheme

    draft = as_drafter(pair.draft)
    assert draft is not None  # a command always has one
    texts = [prompt.tokens for prompt in prompts[:MEASURED]]
    return Subject(pair.target, draft, texts, scheme(job.settings["scheme"]), job.settings["walk"])
