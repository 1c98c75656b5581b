"""The studies by name; without torch, because the command line's help shows them."""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multidraft_research.studies.running.study import Study


@dataclass(frozen=True)
class Listed:
    """Where a study is, what it measures, and whether it needs models or only a capture."""

    module: str
    about: str
    on_models: bool = False

    def study(self) -> "Study":
        """The study itself."""
        folder = "on_models" if self.on_models else "on_captures"
        return import_module(f"multidraft_research.studies.{folder}.{self.module}").STUDY


LISTED = {
    "acceptance": Listed("by_task", "Acceptance of every scheme beside the optimum of its drafts, task by task."),
    "temperature": Listed("temperature", "Acceptance of every scheme and its optimum against the temperature."),
    "drafts": Listed("drafts", "Acceptance of every scheme and its optimum against the number of drafts."),
    "candidates": Listed("candidates", "Acceptance against the number of candidates at a node, from 1 to 32."),
    "randomised": Listed("randomised", "Acceptance and throughput to be expected against the probability of drafting."),
    "top-k": Listed("top_k", "The optimum of i.i.d. drafts that are cut to the draft's most likely tokens."),
    "greedy-or-iid": Listed("greedy_or_iid", "The optimum of i.i.d. drafts beside that of greedy ones."),
    "target-temperature": Listed(
        "target_temperature", "The optimum, and Global Resolution's failures and time, where only the target is cooler."
    ),
    "multi-step-error": Listed(
        "multi_step_error", "How far several steps of Global Resolution are from the target's law, beside the bound."
    ),
    "lookups": Listed("lookups", "Look-ups of ours and of other engines along recorded answers, at prices of drafts."),
    "trees": Listed(
        "trees", "Whole trees at three temperatures: acceptance, block efficiency, speed, both walks.", True
    ),
    "configurations": Listed("configurations", "k-configurations of up to 32 candidates, and the monotone rule.", True),
    "verification": Listed("verification", "Ways to verify several candidates, and what tree attention saves.", True),
    "blocks": Listed("blocks", "K i.i.d. paths of L tokens: block efficiency and speed.", True),
    "latency": Listed("latency", "What passes over more tokens and more rows cost.", True),
    "randomised-speed": Listed("randomised_speed", "Measured speed against the probability of drafting.", True),
    "adaptive": Listed(
        "adaptive", "What trees that grow gain over the best fixed tree, by temperature and cost.", True
    ),
    "multi-step": Listed("multi_step", "Global Resolution on paths of several steps.", True),
}
