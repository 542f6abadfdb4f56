"""The planner: it plays many plans in copies of each instance and keeps the best, which no participant could do."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from esper_env import HEADS, Blend, EsperVectorEnv
from esper_env.config import TEMPI, check_range

from esper_agent.baselines.schedules import Planting, Scheduled, timetable
from esper_agent.baselines.scripted import Actions, Baseline, Infos, waiting
from esper_agent.baselines.scripted import Floats as Observations
from esper_agent.evaluation.episodes import Env, Flags, Floats, Ints

Plan = tuple[Planting, ...]
LONGER_INCUBATION = (1, 3)  # steps that a refinement adds
SHIFTS = (-3, -1, 1, 3)  # steps by which a refinement moves a planting


class Planner(Scheduled):
    """Finds the plan with the highest return for each instance by playing it: the upper reference.

    At the beginning of an episode it tries nothing, one seed of every blueprint in every slot at several times, and
    seeds of one blueprint everywhere. Then, as long as it helps and at most `rounds` times, it tries what differs from
    the best plan so far in one thing: a seed more or less, or another field of one of its seeds. Plans are open loops
    that commit every seed. Its state is the timetable of every row, [n, horizon, heads].

    Args:
        env: The environment that is played, whose rows are copied.
        rounds: How often the best plan is refined.
        times: When the single seeds of the first round are planted, as shares of the horizon after the warm-up.
        rows: How many plans are played side by side.
    """

    def __init__(self, env: Env, rounds: int = 3, times: Sequence[float] = (0.0, 0.1, 0.3), rows: int = 256) -> None:
        super().__init__(env, [()])
        check_range("rounds", rounds, 0, integer=True)
        check_range("times", tuple(times), 0, 1)
        check_range("rows", rows, 1, integer=True)
        esper = env.unwrapped
        assert isinstance(esper, EsperVectorEnv)
        self.esper, self.rounds, self.times, self.rows = esper, rounds, tuple(times), rows

    def respond(self, observation: Observations, state: Any, begun: Flags, infos: Infos) -> tuple[Actions, Any]:
        """Plan where an episode begins, and follow the plans."""
        del infos
        rows = np.arange(len(observation))
        fresh = rows if state is None else np.flatnonzero(begun)
        plans = np.zeros((len(rows), self.config.horizon, len(HEADS)), np.int64) if state is None else state.copy()
        for row, plan in zip(fresh, self.plan(fresh), strict=True):
            plans[row] = timetable(plan, self.sizes, self.config)
        orders = plans[rows, self.time(observation)]
        return self.obey(observation, waiting(len(rows)), orders), plans

    def plan(self, rows: Ints) -> list[Plan]:
        """The best plan that is found for each of some rows of the environment, from where they are now."""
        plans: list[Plan] = [()] * len(rows)
        value, tries = np.full(len(rows), -np.inf), [self.first_plans()] * len(rows)
        for _ in range(self.rounds + 1):
            rose = self._improve(rows, tries, plans, value)
            tries = [self.refinements(plan) if better else [] for plan, better in zip(plans, rose, strict=True)]
        return plans

    def first_plans(self) -> list[Plan]:
        """Nothing, one seed of every blueprint in every slot at several times, and one in every slot."""
        steps = [self.config.warmup_steps + round(share * self.config.horizon) for share in self.times]
        kinds, slots = range(self.sizes["blueprint"]), range(self.slots)
        single = [(self._planting(step, slot, kind),) for step in steps for slot in slots for kind in kinds]
        everywhere = [tuple(self._planting(steps[0] + slot, slot, kind) for slot in slots) for kind in kinds]
        return [(), *filter(self._fits, dict.fromkeys(single + everywhere))]

    def refinements(self, plan: Plan) -> list[Plan]:
        """What differs from a plan in one thing."""
        taken, first = {one.slot for one in plan}, self.config.warmup_steps
        free = [slot for slot in range(self.slots) if slot not in taken]
        more = [(*plan, self._planting(first, slot, kind)) for slot in free for kind in range(self.sizes["blueprint"])]
        fewer = [(*plan[:place], *plan[place + 1 :]) for place in range(len(plan))]
        variants = [(place, other) for place, one in enumerate(plan) for other in self._variants(one)]
        changed = [(*plan[:place], other, *plan[place + 1 :]) for place, other in variants]
        return list(filter(self._fits, more + fewer + changed))

    def _variants(self, one: Planting) -> Iterator[Planting]:
        for head in ("blueprint", "blend", "tempo"):
            others = set(range(self.sizes[head])) - {getattr(one, head)}
            yield from (replace(one, **{head: value}) for value in sorted(others))
        yield from (replace(one, incubation=one.incubation + longer) for longer in LONGER_INCUBATION)
        yield from (replace(one, step=one.step + shift) for shift in SHIFTS)

    def _planting(self, step: int, slot: int, blueprint: int) -> Planting:
        return Planting(step, slot, blueprint, int(Blend.ADD), 0, self.config.training_steps)

    def _fits(self, plan: Plan) -> bool:
        """Whether every seed may be planted when it is, and committed before the end."""
        first, last = self.config.warmup_steps, self.config.horizon - self.config.holding_steps - 1
        return all(first <= one.step <= last - one.incubation - TEMPI[one.tempo] for one in plan)

    def _improve(self, rows: Ints, tries: Sequence[Sequence[Plan]], plans: list[Plan], value: Floats) -> Flags:
        """Replace plans and their returns by what is better among each row's tries; which were, [n]."""
        owner, before = np.repeat(np.arange(len(rows)), [len(own) for own in tries]), value.copy()
        every = [plan for own in tries for plan in own]
        for place, plan, reached in zip(owner, every, self._returns(rows[owner], every), strict=True):
            if reached > value[place]:
                plans[place], value[place] = plan, reached
        return value > before

    def _returns(self, rows: Ints, plans: Sequence[Plan]) -> Floats:
        """The discounted return of playing each plan in a copy of its row, [plans]."""
        if not plans:
            return np.zeros(0)
        size = min(self.rows, len(plans))
        workshop = EsperVectorEnv(size, **asdict(self.config))
        starts = range(0, len(plans), size)
        parts = [slice(start, start + size) for start in starts]
        return np.concatenate([_continuations(workshop, self.esper, rows[part], plans[part]) for part in parts])


class _EachItsOwn(Scheduled):
    """Plays schedule i in row i, and waits in the rows beyond."""

    def which(self, rows: int) -> Ints:
        return np.minimum(np.arange(rows), len(self.timetables) - 1)


def _continuations(workshop: EsperVectorEnv, source: EsperVectorEnv, rows: Ints, plans: Sequence[Plan]) -> Floats:
    """The discounted return of playing each plan in a copy of its row to the end of the episode, [plans]."""
    player: Baseline = _EachItsOwn(workshop, plans)
    filled = np.resize(rows, workshop.num_envs)  # rows beyond the plans repeat them, and are not counted
    workshop.branch(filled.tolist(), range(workshop.num_envs), source=source)
    total, discount, over = np.zeros(len(filled)), 1.0, np.zeros(len(filled), dtype=np.bool_)
    observation, _ = workshop.current()
    while not over.all():
        actions, _ = player.predict(observation)
        observation, reward, ended, _, _ = workshop.step(actions)
        total += np.where(over, 0.0, reward * discount)
        over, discount = over | ended, discount * workshop.gamma
    return total[: len(plans)]
