"""Schedules: what is planted when, decided before the episode begins."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
from esper_env import HEADS, Op
from esper_env.config import TEMPI, EsperConfig

from esper_agent.baselines.scripted import Actions, Baseline, Floats, require_value
from esper_agent.evaluation.episodes import Env, Ints


@dataclass(frozen=True)
class Planting:
    """One seed of a schedule. It is germinated, advanced and committed in the first free steps from its own on."""

    step: int
    slot: int
    blueprint: int
    blend: int
    tempo: int
    incubation: int  # steps from germination to advance


def check_planting(planting: Planting, sizes: dict[str, int], config: EsperConfig) -> None:
    """Each field must be a value that the environment has."""
    require_value("planting.step", planting.step, config.horizon - 1, low=config.warmup_steps)
    require_value("planting.incubation", planting.incubation, config.horizon, low=config.training_steps)
    for head in HEADS[1:]:
        require_value(f"planting.{head}", getattr(planting, head), sizes[head] - 1)


def timetable(plantings: Sequence[Planting], sizes: dict[str, int], config: EsperConfig) -> Ints:
    """The schedule as one action per step, [horizon, heads]; what does not fit into the horizon is left out."""
    slots = [planting.slot for planting in plantings]
    if len(set(slots)) < len(slots):
        raise ValueError(f"the slots of a schedule are {slots}; allowed: each slot once")
    orders: dict[int, tuple[int, ...]] = {}
    for planting in sorted(plantings, key=lambda planting: planting.step):
        check_planting(planting, sizes, config)
        _enter(orders, planting, config)
    table = np.zeros((config.horizon, len(HEADS)), dtype=np.int64)
    for step in orders.keys() & set(range(config.horizon)):
        table[step] = orders[step]
    return table


def _enter(orders: dict[int, tuple[int, ...]], planting: Planting, config: EsperConfig) -> None:
    """Take the first free steps for the three operations of a planting."""

    def take(earliest: int, order: tuple[int, ...]) -> int:
        step = next(step for step in count(earliest) if step not in orders)
        orders[step] = order
        return step

    slot = planting.slot
    born = take(planting.step, (Op.GERMINATE, slot, planting.blueprint, planting.blend, planting.tempo))
    advanced = take(born + planting.incubation, (Op.ADVANCE, slot, 0, 0, 0))
    take(advanced + TEMPI[planting.tempo] + config.holding_steps, (Op.FOSSILIZE, slot, 0, 0, 0))


class Scheduled(Baseline):
    """Plays one of several timetables in each row, and waits where an order is illegal.

    Args:
        env: As for `Baseline`.
        schedules: The schedules to choose from.
    """

    def __init__(self, env: Env, schedules: Iterable[Sequence[Planting]]) -> None:
        super().__init__(env)
        self.timetables = np.stack([timetable(schedule, self.sizes, self.config) for schedule in schedules])

    def which(self, rows: int) -> Ints:
        """The number of the schedule that each row plays, [n]."""
        return np.zeros(rows, dtype=np.int64)

    def places(self, rows: int) -> Ints:
        """The slot that each row understands by the numbers in its schedule, [n, slots]."""
        return np.broadcast_to(np.arange(self.slots), (rows, self.slots))

    def act(self, observation: Floats, actions: Actions) -> Actions:
        """Look up the orders of this step."""
        rows = np.arange(len(observation))
        orders = self.timetables[self.which(len(rows)), self.time(observation)]
        orders[:, 1] = self.places(len(rows))[rows, orders[:, 1]]
        return self.obey(observation, actions, orders)

    def time(self, observation: Floats) -> Ints:
        """The step to look up, [n]; an episode that is over stays at its last."""
        return np.minimum(self.step(observation), self.config.horizon - 1)

    def obey(self, observation: Floats, actions: Actions, orders: Ints) -> Actions:
        """Carry out the orders, [n, heads], that are legal."""
        rows = np.arange(len(observation))
        may = np.stack([self.may(observation, op) for op in Op if op is not Op.WAIT])
        legal = (orders[:, 0] != Op.WAIT) & may[orders[:, 0] - 1, rows, orders[:, 1]]
        for number, head in enumerate(HEADS):
            actions[head][legal] = orders[legal, number]
        return actions


class FixedSchedule(Scheduled):
    """Plays one schedule in every row: an open loop, which sees of the observation only the time and what is legal.

    Args:
        env: As for `Baseline`.
        plantings: The schedule, each slot at most once. There is no order to prune: without looking, it only wastes.
    """

    def __init__(self, env: Env, plantings: Sequence[Planting]) -> None:
        super().__init__(env, [plantings])
