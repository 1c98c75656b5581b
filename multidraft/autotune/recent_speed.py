"""The speed of the last steps, which decides what a second is worth, and whether drafts have lost."""

import math

from multidraft.decoding.policy import StepForecast

MEMORY_STEPS = 32.0  # over which steps fade by a factor e
FADE_PER_STEP = math.exp(-1 / MEMORY_STEPS)
MAX_SLOWDOWN = 1.5  # of steps against their forecast: beyond it, older measurements are not compared with them


class RecentSpeed:
    """Sums over the last steps; older ones count less. Steps without drafts may be counted, and added later."""

    def __init__(self) -> None:
        self.tokens = self.seconds = 0.0  # that came; that such steps take
        self.gained = 0.0  # tokens beyond those of plain steps that take as long
        self.stake = 0.0  # tokens that the dearest of the look-ups loses if it is wrong
        self.measured_seconds = self.forecast_seconds = 0.0
        self.counted_steps, self.counted_seconds = 0, 0.0  # of the latest, which were only counted; what they took

    @property
    def is_as_forecast(self) -> bool:
        """Whether steps take not much longer than they took when costs were measured."""
        return self.measured_seconds <= MAX_SLOWDOWN * self.forecast_seconds

    def begin(self, forecast: StepForecast, steps: int) -> None:
        """Take the speed to be that of so many steps."""
        self.tokens, self.seconds = steps * forecast.tokens, steps * forecast.seconds

    def compare(self, measured: float, forecast: float) -> None:
        """A step has taken so many seconds, and was to take those."""
        self.measured_seconds = self.measured_seconds * FADE_PER_STEP + measured
        self.forecast_seconds = self.forecast_seconds * FADE_PER_STEP + forecast

    def add(self, tokens: int, seconds: float) -> None:
        """A step has brought tokens; such steps take so many seconds."""
        self.tokens, self.seconds = self.tokens * FADE_PER_STEP + tokens, self.seconds * FADE_PER_STEP + seconds

    def add_gain(self, tokens: int, plain_tokens: float, stake: float) -> None:
        """A step has brought tokens where plain ones would have brought others, with so many of these at stake."""
        self.gained = self.gained * FADE_PER_STEP + tokens - plain_tokens
        self.stake = max(self.stake * FADE_PER_STEP, stake)

    def count_plain(self, seconds: float) -> None:
        """A step without drafts has taken so many seconds."""
        self.counted_steps, self.counted_seconds = self.counted_steps + 1, self.counted_seconds + seconds

    def add_counted(self, rows: int, forecast: float | None) -> None:
        """Add the steps that were counted, all of so many rows, of which each was to take so many seconds.

        Where that is not known any more, they are left out.
        """
        count, fade = self.counted_steps, FADE_PER_STEP**self.counted_steps
        if count and forecast is not None:
            self.measured_seconds = self.measured_seconds * fade + self.counted_seconds
            self.forecast_seconds = self.forecast_seconds * fade + count * forecast
            self.tokens, self.seconds = self.tokens * fade + count * rows, self.seconds * fade + count * forecast
            self.gained, self.stake = self.gained * fade, self.stake * fade
        self.counted_steps, self.counted_seconds = 0, 0.0
