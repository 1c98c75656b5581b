"""What `--tree auto` chooses trees by: one plan for a run, whichever processes decode."""

from typing import TYPE_CHECKING

from multidraft.cli.decode import Job
from multidraft.cli.models import Models
from multidraft.cli.prompts import Prompt

if TYPE_CHECKING:
    from multidraft.autotune.controller import Limits
    from multidraft.autotune.identity import Subject
    from multidraft.autotune.profile import Profile

MEASURED = 32  # prompts with which a pair is measured


def limits(job: Job) -> "Limits | None":
    """Of the trees that are chosen; None where one is given."""
    from multidraft.generation.inputs import limits_of

    return limits_of(job.settings["tree"], job.settings["scheme"]) if job.drafts else None


def profile_of(pair: Models, job: Job, prompts: list[Prompt]) -> "Profile":
    """The profile of a job that chooses trees, measured with its prompts if there is none yet."""
    from multidraft.autotune.store import profile_for
    from multidraft.autotune.tuning import measure
    from multidraft.generation.inputs import plan_file

    own, settings = subject(pair, job, prompts), job.settings
    profile = profile_for(own, plan_file(settings["plan"], limits(job)))
    if not profile.known:
        measure(own, profile, settings["tune_budget"], [settings["temperature"]], [job.batch])
    return profile


def adopt(pair: Models, job: Job, text: str) -> None:
    """Let this process choose by a profile that another one has, in JSON."""
    from multidraft.autotune import store

    store.adopt(subject(pair, job, []), text)


def subject(pair: Models, job: Job, prompts: list[Prompt]) -> "Subject":
    """What is measured."""
    from multidraft.autotune.identity import Subject
    from multidraft.generation.inputs import as_drafter
    from multidraft.verification.registry import scheme

    draft = as_drafter(pair.draft)
    assert draft is not None  # trees are chosen only where there is one
    texts = [prompt.tokens for prompt in prompts[:MEASURED]]
    return Subject(pair.target, draft, scheme(job.settings["scheme"]), job.settings["walk"], texts)
