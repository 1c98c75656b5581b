"""From `tree="auto"` to the shape that decides, and the threads that go with it."""

from dataclasses import replace
from pathlib import Path

from multidraft.catalogue import Scheme
from multidraft.decoding.state import Plan
from multidraft.models.causal_lm import Model
from multidraft.planning.auto import Auto, Limits
from multidraft.planning.keeping import plan_for
from multidraft.planning.subject import Subject


def can_choose(scheme: Scheme) -> bool:
    """Whether a scheme takes every number of drafts, in a time that does not depend on the vocabulary's sets."""
    law = scheme.law
    return not (law.several or law.fixed_drafts or law.draft_probability < 1 or scheme.entry.small)


def steered(
    plan: Plan, target: Model, draft: Model, prompts: list[list[int]], limits: Limits, file: Path | None
) -> tuple[Plan, int]:
    """The plan with a shape that decides, and the number of threads with which it was measured."""
    found = plan_for(Subject(target, draft, prompts, plan.scheme, plan.walk), file)
    tempers = not plan.scheme.law.repeats and plan.sampling.for_draft is None
    return replace(plan, tree=Auto(found, plan.sampling.temperature, limits, tempers)), found.threads
