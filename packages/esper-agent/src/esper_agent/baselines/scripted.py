"""Scheduled controllers of Esper environments: small classes with SB3's `predict`, as references for learned agents."""

from itertools import product
from typing import Any

import numpy as np
from esper_env import HEADS, Op, Stage
from esper_env.config import TEMPI, EsperConfig
from esper_env.mdp.state import PRUNABLE
from numpy.typing import NDArray

from esper_agent.evaluation.episodes import Env, Flags, Ints

Floats = NDArray[np.float32]
Actions = dict[str, Ints]
Infos = dict[str, Any] | None

MEASURED = ("contribution", "contribution_known", "prospect", "prospect_known", "block_gradient", "seed_gradient")


class Baseline:
    """Waits; the others say what else they do.

    Args:
        env: The vector environment to be played; only its configuration and observation schema are read.
        blueprint: Which blueprint to plant.
        blend: How seeds join their blocks, by index.
        tempo: Which ramp to choose, by index.
    """

    def __init__(self, env: Env, blueprint: int = 2, blend: int = 0, tempo: int = 0) -> None:
        esper: Any = env.unwrapped
        self.config: EsperConfig = esper.config
        self.sizes: dict[str, int] = esper.head_sizes
        self.columns = {label: number for number, (label, _) in enumerate(esper.schema.columns())}
        self.slots: int = esper.schema.slots
        self.incubation = self.config.training_steps  # of a seed before it is advanced
        self.newborn = {"blueprint": blueprint, "blend": blend, "tempo": tempo}
        for head, value in self.newborn.items():
            require_value(head, value, self.sizes[head] - 1)

    def predict(
        self,
        observation: Floats,
        state: Any = None,
        episode_start: Flags | None = None,
        deterministic: bool = True,
        action_masks: Infos = None,
    ) -> tuple[Actions, Any]:
        """Actions for a batch of observations; `action_masks` is the environment's infos, as for the agent."""
        del deterministic
        begun = np.zeros(len(observation)) if episode_start is None else np.asarray(episode_start)
        if self.config.measurements == "full":
            return self.respond(observation, state, begun.astype(np.bool_), action_masks)
        last, state = state or (np.zeros_like(observation), None)
        recalled = self._recalled(observation, np.where(begun[:, None], 0, last))
        actions, state = self.respond(recalled, state, begun.astype(np.bool_), action_masks)
        return actions, (recalled, state)

    def _recalled(self, observation: Floats, last: Floats) -> Floats:
        """The observation, with what was not measured now as it was measured last."""
        recalled, unseen = observation.copy(), self.slot_field(observation, "looked_at") == 0
        for slot, name in product(range(self.slots), MEASURED):
            column = self.columns[f"slot{slot}.{name}"]
            recalled[unseen[:, slot], column] = last[unseen[:, slot], column]
        return recalled

    def respond(self, observation: Floats, state: Any, begun: Flags, infos: Infos) -> tuple[Actions, Any]:
        """Actions and the new state, for those that need more than the observation."""
        del begun, infos
        return self.act(observation, waiting(len(observation))), state

    def act(self, observation: Floats, actions: Actions) -> Actions:
        """Fill in the actions; those given are all WAIT."""
        del observation
        return actions

    # What an observation says

    def field(self, observation: Floats, name: str) -> Floats:
        """A global field, [n]."""
        return observation[:, self.columns[name]]

    def slot_field(self, observation: Floats, name: str) -> Floats:
        """A field of every slot, [n, slots]."""
        return observation[:, [self.columns[f"slot{slot}.{name}"] for slot in range(self.slots)]]

    def steps(self, share: Floats) -> Ints:
        """A share of the horizon in steps."""
        return np.rint(share * self.config.horizon).astype(np.int64)

    def step(self, observation: Floats) -> Ints:
        """How many steps were taken, [n]."""
        return self.steps(self.field(observation, "progress"))

    def in_stage(self, observation: Floats, *stages: Stage) -> Flags:
        """Which slots are in one of the stages, [n, slots]."""
        fields = [self.slot_field(observation, f"stage[{int(stage)}]") for stage in stages]
        return np.asarray(np.stack(fields).max(axis=0) > 0)

    def underway(self, observation: Floats) -> Flags:
        """Where a seed is that is not committed yet, [n, slots]."""
        return self.in_stage(observation, *PRUNABLE)

    def idle(self, observation: Floats) -> Flags:
        """Rows in which no seed is on its way, [n, 1]."""
        return np.asarray(~self.underway(observation).any(axis=1, keepdims=True))

    def may(self, observation: Floats, op: Op) -> Flags:
        """Where an operation other than WAIT is legal, [n, slots]."""
        if op is Op.GERMINATE:
            free = self.step(observation) >= self.config.warmup_steps
            if self.config.budget is not None:
                free &= self.field(observation, "seeds_left") > 0
            return self.in_stage(observation, Stage.DORMANT) & free[:, None]
        if op is Op.PRUNE:
            old = self.steps(self.slot_field(observation, "age")) >= self.config.prune_age
            return self.underway(observation) & old
        return self.slot_field(observation, "may_advance" if op is Op.ADVANCE else "may_fossilize") > 0

    def may_grow(self, observation: Floats) -> Flags:
        """Where a seed that is planted now can still be committed in time, [n, slots]."""
        path = self.incubation + TEMPI[self.newborn["tempo"]] + self.config.holding_steps
        in_time: Flags = self.step(observation) + path < self.config.horizon
        return self.may(observation, Op.GERMINATE) & in_time[:, None]

    # What to do about it

    def choose(self, actions: Actions, op: Op, slots: Flags, preference: Floats | None = None) -> None:
        """Where nothing is chosen yet, apply an operation to the first or most preferred of some slots, [n, slots]."""
        rows = (actions["op"] == Op.WAIT) & slots.any(axis=1)
        wish = slots if preference is None else np.where(slots, preference, -np.inf)
        actions["op"][rows] = op
        actions["slot"][rows] = wish.argmax(axis=1)[rows]
        if op is Op.GERMINATE:
            for head, value in self.newborn.items():
                actions[head][rows] = value

    def tend(self, observation: Floats, actions: Actions) -> None:
        """Commit and advance whatever may be."""
        self.choose(actions, Op.FOSSILIZE, self.may(observation, Op.FOSSILIZE))
        self.choose(actions, Op.ADVANCE, self.may(observation, Op.ADVANCE))


def waiting(rows: int) -> Actions:
    """WAIT in every row."""
    return {head: np.zeros(rows, dtype=np.int64) for head in HEADS}


def require_value(name: str, value: int, high: int, low: int = 0) -> None:
    """One clear error for a value out of its range."""
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}; allowed: {low} to {high}")


class NeverGrow(Baseline):
    """Lets the host train as it is."""


class GrowEverything(Baseline):
    """Plants a seed in every slot as soon as it can, and commits them all."""

    def act(self, observation: Floats, actions: Actions) -> Actions:
        """Plant first, then tend."""
        self.choose(actions, Op.GERMINATE, self.may_grow(observation))
        self.tend(observation, actions)
        return actions


class GrowOnPlateau(Baseline):
    """Grows when validation stalls: one seed at a time, where the gradient is largest, and commits it.

    Args:
        env: As for `Baseline`.
        patience: How many steps a plateau must last.
        ceiling: A host whose validation metric has reached this needs no seed.
        **seed: Blueprint, blend and tempo, as for `Baseline`.
    """

    def __init__(self, env: Env, patience: int = 2, ceiling: float = 0.8, **seed: int) -> None:
        super().__init__(env, **seed)
        self.patience, self.ceiling = patience, ceiling

    def act(self, observation: Floats, actions: Actions) -> Actions:
        """Tend first; plant only while nothing is on its way."""
        self.tend(observation, actions)
        places = self.may_grow(observation) & self.stalled(observation) & self.idle(observation)
        if places.any():
            self.choose(actions, Op.GERMINATE, places, self.preference(observation))
        return actions

    def preference(self, observation: Floats) -> Floats:
        """Which slots come first, [n, slots]."""
        return self.slot_field(observation, "block_gradient")

    def stalled(self, observation: Floats) -> Flags:
        """Rows in which validation stalls below the ceiling, [n, 1]."""
        waited = self.steps(self.field(observation, "plateau")) >= self.patience
        stalled: Flags = waited & (self.field(observation, "val_metric") < self.ceiling)
        return stalled[:, None]


class RandomLegal(Baseline):
    """Draws a legal operation, then legal arguments, uniformly.

    Args:
        env: As for `Baseline`.
        seed: Of its own generator.
    """

    def __init__(self, env: Env, seed: int = 0) -> None:
        super().__init__(env)
        self.generator = np.random.default_rng(seed)

    def respond(self, observation: Floats, state: Any, begun: Flags, infos: Infos) -> tuple[Actions, Any]:
        """Draw from the masks."""
        del begun
        if infos is None:
            raise ValueError("RandomLegal needs action_masks, which is the environment's infos")
        tables: dict[str, NDArray[np.int8]] = infos["action_mask_by_op"]
        rows, op = np.arange(len(observation)), self._draw(tables["op"][:, 0])
        return {"op": op} | {head: self._draw(tables[head][rows, op]) for head in HEADS if head != "op"}, state

    def _draw(self, mask: NDArray[np.int8]) -> Ints:
        """One of the legal values of each row."""
        reached = mask.cumsum(axis=1) > self.generator.random((len(mask), 1)) * mask.sum(axis=1, keepdims=True)
        drawn: Ints = reached.argmax(axis=1)
        return drawn
