"""An exponential moving average that is unbiased from its first value on."""

import math


class MovingAverage:
    """Bias-corrected exponential moving average; non-finite values are counted and left out."""

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.weighted_sum = 0.0
        self.weight = 0.0
        self.rejected = 0

    def update(self, value: float) -> None:
        """Take in one value."""
        if not math.isfinite(value):
            self.rejected += 1
            return
        self.weighted_sum = self.decay * self.weighted_sum + (1 - self.decay) * value
        self.weight = self.decay * self.weight + (1 - self.decay)

    @property
    def mean(self) -> float:
        """The average so far; NaN before the first finite value."""
        return self.weighted_sum / self.weight if self.weight else math.nan

    def state_dict(self) -> dict[str, float | int]:
        """The state, for checkpoints."""
        return {"weighted_sum": self.weighted_sum, "weight": self.weight, "rejected": self.rejected}

    def load_state_dict(self, state: dict[str, float | int]) -> None:
        """Take over a saved state."""
        self.weighted_sum = float(state["weighted_sum"])
        self.weight = float(state["weight"])
        self.rejected = int(state["rejected"])
