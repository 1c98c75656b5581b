"""From `tree="auto"` to the shape that decides, and the threads that go with it."""

from dataclasses import replace
from pathlib import Path

from multidraft.autotune.auto import Auto, Limits
from multidraft.autotune.foresight import pays
from multidraft.autotune.keeping import plan_for
from multidraft.autotune.subject import Subject
from multidraft.decoding.state import Plan
from multidraft.decoding.tree import NO_DRAFTS
from multidraft.verification.scheme import Scheme


def can_choose(scheme: Scheme) -> bool:
    """Whether a scheme takes every number of drafts, in a time that does not depend on the vocabulary's sets."""
    law = scheme.law
    return not (law.several or law.fixed_drafts or law.draft_probability < 1 or scheme.entry.small)


def steered(
    plan: Plan,
    subject: Subject,
    limits: Limits,
    file: Path | None = None,
    budgets: list[int] | None = None,
) -> tuple[Plan, int]:
    """The plan with a shape that decides, and the number of threads with which it was measured.

    Where drafts would not make it quicker to give the subject's prompts so many tokens each, there are none.
    """
    found, temperature = plan_for(subject, file), plan.sampling.temperature
    tempers = not plan.scheme.law.repeats and plan.sampling.for_draft is None
    auto = Auto(found, temperature, limits, tempers)
    if budgets and not pays(found, temperature, [len(prompt) for prompt in subject.prompts], budgets, auto.allowed):
        return replace(plan, tree=NO_DRAFTS), found.threads
    return replace(plan, tree=auto), found.threads
