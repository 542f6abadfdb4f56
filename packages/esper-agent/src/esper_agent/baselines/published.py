"""Baselines that grow by published criteria: where (GradMax, RigL, TINY, SENN, NORTH*) and when (AutoGrow and others).

The papers add neurons or layers; here a criterion chooses the slot or the time, and seeds are planted as by the others.
"""

from typing import Any

import numpy as np
from esper_env import EsperVectorEnv, Op

from esper_agent.baselines.scripted import Actions, Baseline, Floats, GrowOnPlateau, Infos, require_value, waiting
from esper_agent.evaluation.episodes import Env, Flags


class _Scored(GrowOnPlateau):
    """Grows when validation stalls, in the slot that a criterion of `EsperVectorEnv.slot_scores` likes best."""

    criterion: str

    def __init__(self, env: Env, patience: int = 2, ceiling: float = 0.8, **seed: int) -> None:
        super().__init__(env, patience, ceiling, **seed)
        esper = env.unwrapped
        assert isinstance(esper, EsperVectorEnv)
        self.esper = esper

    def preference(self, observation: Floats) -> Floats:
        """The criterion's scores, [n, slots]."""
        scores: Floats = getattr(self.esper.slot_scores(), self.criterion).float().cpu().numpy()
        if len(scores) != len(observation):
            raise ValueError(f"{type(self).__name__} got {len(observation)} observations for {len(scores)} rows")
        return scores


class GradMax(_Scored):
    """Where new weights would have the largest gradient: Evci et al., GradMax, 2022."""

    criterion = "gradmax"


class RigL(_Scored):
    """Where the largest gradient of a missing connection is: Evci et al., Rigging the Lottery, 2020."""

    criterion = "rigl"


class Tiny(_Scored):
    """Where the host lacks expressivity, by the gradient that its block cannot follow: Verbockhaven et al., 2024."""

    criterion = "tiny"


class Senn(_Scored):
    """Where the natural gradient gains most: Mitchell et al., Self-Expanding Neural Networks, 2023."""

    criterion = "senn"


class North(_Scored):
    """Where a block uses nearly all of its units, at any time: Maile et al., NORTH*, 2022.

    Args:
        env: As for `Baseline`.
        threshold: Least rank of a block's outputs as a share of its units.
        ceiling: As for `GrowOnPlateau`.
        **seed: Blueprint, blend and tempo, as for `Baseline`.
    """

    criterion = "north"

    def __init__(self, env: Env, threshold: float = 0.95, ceiling: float = 0.8, **seed: int) -> None:
        super().__init__(env, patience=0, ceiling=ceiling, **seed)
        self.threshold = threshold

    def may_grow(self, observation: Floats) -> Flags:
        """Only where the rank is high enough."""
        return super().may_grow(observation) & (self.preference(observation) >= self.threshold)


class GrowPeriodically(GrowOnPlateau):
    """Grows every few steps, where the gradient is largest.

    Args:
        env: As for `Baseline`.
        period: Steps from one planting to the next.
        ceiling: As for `GrowOnPlateau`.
        **seed: Blueprint, blend and tempo, as for `Baseline`.
    """

    def __init__(self, env: Env, period: int = 8, ceiling: float = 0.8, **seed: int) -> None:
        super().__init__(env, ceiling=ceiling, **seed)
        require_value("period", period, self.config.horizon, low=1)
        self.period = period

    def stalled(self, observation: Floats) -> Flags:
        """Rows in which it is time and the metric is below the ceiling, [n, 1]."""
        since = self.step(observation) - self.config.warmup_steps
        due: Flags = (since % self.period == 0) & (self.field(observation, "val_metric") < self.ceiling)
        return due[:, None]


class GrowWhenUnderfitting(GrowOnPlateau):
    """Grows while the host underfits: validation is hardly worse than training, and both are bad.

    Args:
        env: As for `Baseline`.
        gap: Largest validation loss minus training loss, both relative to a uniform guess.
        ceiling: As for `GrowOnPlateau`.
        **seed: Blueprint, blend and tempo, as for `Baseline`.
    """

    def __init__(self, env: Env, gap: float = 0.05, ceiling: float = 0.8, **seed: int) -> None:
        super().__init__(env, ceiling=ceiling, **seed)
        self.gap = gap

    def stalled(self, observation: Floats) -> Flags:
        """Rows that were trained and underfit, [n, 1]."""
        train, val, metric, known = (
            self.field(observation, name) for name in ("train_loss", "val_loss", "val_metric", "trained")
        )
        underfits: Flags = (known > 0) & (val - train <= self.gap) & (metric < self.ceiling)
        return underfits[:, None]


class AutoGrow(Baseline):
    """Grows periodically, slot after slot, until growth stops paying: Wen et al., AutoGrow, 2020.

    Its state is, for each row, the best validation metric at the last planting and whether it has stopped, [n, 2].

    Args:
        env: As for `Baseline`.
        period: Steps from one planting to the next.
        least: What the best validation metric must have risen since the last planting for another one.
        **seed: Blueprint, blend and tempo, as for `Baseline`.
    """

    def __init__(self, env: Env, period: int = 8, least: float = 0.02, **seed: int) -> None:
        super().__init__(env, **seed)
        require_value("period", period, self.config.horizon, low=1)
        self.period, self.least = period, least

    def respond(self, observation: Floats, state: Any, begun: Flags, infos: Infos) -> tuple[Actions, Any]:
        """Tend; when a period is over, stop for good or plant in the next slot."""
        del infos
        fresh = np.tile(np.array([-np.inf, 0.0]), (len(observation), 1))
        memory = fresh if state is None else np.where(begun[:, None], fresh, state)
        actions, best = waiting(len(observation)), self.field(observation, "val_metric_best")
        since = self.step(observation) - self.config.warmup_steps
        due = (since >= 0) & (since % self.period == 0)
        stopped = (memory[:, 1] > 0) | (due & (best - memory[:, 0] < self.least))
        self.choose(actions, Op.GERMINATE, self.may_grow(observation) & (due & ~stopped)[:, None])
        self.tend(observation, actions)
        planted = actions["op"] == Op.GERMINATE
        return actions, np.stack([np.where(planted, best, memory[:, 0]), stopped], axis=1)
