"""Settings of learning from a dataset, in one validated place."""

from dataclasses import dataclass

from esper_env.config import check_range


@dataclass(frozen=True)
class OfflineConfig:
    """What every method needs.

    Attributes:
        epochs: passes over the dataset, at most.
        minibatch: episodes of one gradient step.
        learning_rate: of AdamW; it falls linearly to 0 over all epochs.
        held_out: share of the episodes that nothing is learnt from; the method is judged by them.
    """

    epochs: int = 60
    minibatch: int = 16
    learning_rate: float = 2e-3
    held_out: float = 0.1

    def __post_init__(self) -> None:
        for name in ("epochs", "minibatch"):
            check_range(name, getattr(self, name), 1, integer=True)
        check_range("learning_rate", self.learning_rate, 0, 1)
        check_range("held_out", self.held_out, 0, 0.9)


@dataclass(frozen=True)
class ImitationConfig(OfflineConfig):
    """Behaviour cloning.

    Attributes:
        patience: epochs without a lower held-out loss after which it stops.
    """

    patience: int = 15

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("patience", self.patience, 1, integer=True)


@dataclass(frozen=True)
class QLearningConfig(OfflineConfig):
    """Implicit Q-learning.

    Attributes:
        expectile: of the action values that V follows; 0.5 is their mean, near 1 the best that was recorded.
        inverse_temperature: logarithm of the weight, in the extraction, of an advantage of one standard deviation.
        most_weight: largest weight of a step in the extraction, before weights are divided by their mean.
        target_rate: share of the way that the target networks go in each gradient step.
        trace: lambda of the returns that Q learns from; 0 rests on V after one step, 1 on all that was recorded.
    """

    epochs: int = 10
    expectile: float = 0.9
    inverse_temperature: float = 5.0
    most_weight: float = 100.0
    target_rate: float = 0.05
    trace: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("expectile", self.expectile, 0.5, 0.999)
        check_range("inverse_temperature", self.inverse_temperature, 0, 1e4)
        check_range("most_weight", self.most_weight, 1, 1e6)
        check_range("target_rate", self.target_rate, 1e-6, 1)
        check_range("trace", self.trace, 0, 1)
