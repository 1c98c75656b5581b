"""State machines of Hypothesis, run the same way each time: their examples are generated, not shrunk or kept."""

from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


def run_lives(machine: type[RuleBasedStateMachine], lives: int, steps: int, **attributes: Any) -> None:
    """Run a machine with these class attributes so many times, each for up to so many steps."""
    run_state_machine_as_test(
        type("Life", (machine,), attributes),
        settings=settings(
            max_examples=lives,
            stateful_step_count=steps,
            phases=[Phase.generate],
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
