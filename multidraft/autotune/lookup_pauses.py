"""Pauses of look-ups that do not pay: over a fast target they take a twentieth of a step, even if they find nothing."""

MEMORY_STEPS, MIN_TRIED_STEPS, STEPS_PER_CHECK = 48, 24, 8  # steps with look-ups
FIRST_PAUSE, MAX_PAUSE = 32, 256  # steps without them


class LookupPauses:
    """Holds the tokens of steps with look-ups against those of plain steps in the same time, faded over 48 steps.

    While they are fewer, look-ups pause for 32 steps, and for twice as long each time that they have not paid again.
    """

    def __init__(self) -> None:
        self.pause, self.steps_left, self.tried = FIRST_PAUSE, 0, 0
        self.tokens = self.plain_tokens = 0.0

    def begin_step(self) -> bool:
        """Whether the step that begins has no look-ups."""
        is_pausing = self.steps_left > 0
        self.steps_left -= is_pausing
        return is_pausing

    def observe(self, tokens: float | int, plain_tokens: float | int) -> None:
        """Learn what a step with look-ups gave, and what plain steps give in its time."""
        fade = 1 - 1 / MEMORY_STEPS
        self.tokens, self.plain_tokens = self.tokens * fade + tokens, self.plain_tokens * fade + plain_tokens
        self.tried += 1
        if self.tried < MIN_TRIED_STEPS or self.tried % STEPS_PER_CHECK:
            return
        if self.tokens > self.plain_tokens:
            self.pause = FIRST_PAUSE
        else:
            self.steps_left, self.pause = self.pause, min(2 * self.pause, MAX_PAUSE)
