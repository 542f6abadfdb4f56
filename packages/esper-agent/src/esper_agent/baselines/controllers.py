"""Scripted controllers of Esper environments: small classes with SB3's `predict`, as references for learned agents."""

from typing import Any

import numpy as np
from esper_env import HEADS, Op, Stage
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Actions = dict[str, Ints]


class Controller:
    """Waits; the others say what else they do.

    Args:
        env: The vector environment to be controlled; only its observation schema is read.
        blueprint: Which blueprint to plant.
        tempo: Which ramp to choose, by index.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], blueprint: int = 2, tempo: int = 0) -> None:
        schema = env.unwrapped.simulation.schema  # type: ignore[attr-defined]
        self.columns = {label: number for number, (label, _) in enumerate(schema.columns())}
        self.slots, self.blueprint, self.tempo = schema.slots, blueprint, tempo

    def predict(
        self,
        observation: Floats,
        state: Any = None,
        episode_start: NDArray[np.bool_] | None = None,
        deterministic: bool = True,
        action_masks: dict[str, Any] | None = None,
    ) -> tuple[Actions, Any]:
        """Actions for a batch of observations; `action_masks` is the environment's infos, as for the agent."""
        del episode_start, deterministic, action_masks
        actions = {head: np.zeros(len(observation), dtype=np.int64) for head in HEADS}
        return self.act(observation, actions), state

    def act(self, observation: Floats, actions: Actions) -> Actions:
        """Fill in the actions; those given are all WAIT."""
        del observation
        return actions

    def field(self, observation: Floats, name: str) -> Floats:
        """A global field, [n]."""
        return observation[:, self.columns[name]]

    def slot_field(self, observation: Floats, name: str) -> Floats:
        """A field of every slot, [n, slots]."""
        return observation[:, [self.columns[f"slot{slot}.{name}"] for slot in range(self.slots)]]

    def in_stage(self, observation: Floats, stage: Stage) -> NDArray[np.bool_]:
        """Which slots are in a stage, [n, slots]."""
        return self.slot_field(observation, f"stage[{int(stage)}]") > 0

    def choose(self, actions: Actions, op: Op, slots: NDArray[np.bool_]) -> None:
        """Where nothing is chosen yet, apply an operation to the first of the given slots, [n, slots]."""
        rows = (actions["op"] == Op.WAIT) & slots.any(axis=1)
        actions["op"][rows] = op
        actions["slot"][rows] = slots.argmax(axis=1)[rows]
        if op is Op.GERMINATE:
            actions["blueprint"][rows], actions["tempo"][rows] = self.blueprint, self.tempo

    def tend(self, observation: Floats, actions: Actions) -> None:
        """Commit and advance whatever may be."""
        self.choose(actions, Op.FOSSILIZE, self.slot_field(observation, "may_fossilize") > 0)
        self.choose(actions, Op.ADVANCE, self.slot_field(observation, "may_advance") > 0)

    def idle(self, observation: Floats) -> NDArray[np.bool_]:
        """Rows in which no seed is on its way, [n, 1]."""
        underway = [self.in_stage(observation, stage) for stage in (Stage.TRAINING, Stage.BLENDING, Stage.HOLDING)]
        idle: NDArray[np.bool_] = ~np.logical_or.reduce(underway).any(axis=1, keepdims=True)
        return idle


class NeverGrow(Controller):
    """Lets the host train as it is."""


class GrowEverything(Controller):
    """Plants a seed in every slot as soon as it can, and commits them all."""

    def act(self, observation: Floats, actions: Actions) -> Actions:
        """Tend first, then plant."""
        self.choose(actions, Op.GERMINATE, self.in_stage(observation, Stage.DORMANT))
        self.tend(observation, actions)
        return actions


class PlateauRule(Controller):
    """Grows when validation stalls: one seed at a time, from the first slot to the last, and commits it.

    Args:
        env: As for `Controller`.
        patience: How long a plateau must last, as a share of the horizon.
        blueprint: As for `Controller`.
        tempo: As for `Controller`.
    """

    def __init__(
        self, env: VectorEnv[Any, Any, Any], patience: float = 0.06, blueprint: int = 2, tempo: int = 0
    ) -> None:
        super().__init__(env, blueprint, tempo)
        self.patience = patience

    def act(self, observation: Floats, actions: Actions) -> Actions:
        """Tend first; plant only while nothing is on its way."""
        self.tend(observation, actions)
        stalled = (self.field(observation, "plateau") >= self.patience)[:, None] & self.idle(observation)
        self.choose(actions, Op.GERMINATE, self.in_stage(observation, Stage.DORMANT) & stalled)
        return actions


class RandomLegal(Controller):
    """Draws a legal operation, then legal arguments, uniformly.

    Args:
        env: As for `Controller`.
        seed: Of its own generator.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], seed: int = 0) -> None:
        super().__init__(env)
        self.generator = np.random.default_rng(seed)

    def predict(
        self,
        observation: Floats,
        state: Any = None,
        episode_start: NDArray[np.bool_] | None = None,
        deterministic: bool = True,
        action_masks: dict[str, Any] | None = None,
    ) -> tuple[Actions, Any]:
        """Needs `action_masks`, which is the environment's infos."""
        del episode_start, deterministic
        if action_masks is None:
            raise ValueError("RandomLegal needs action_masks, which is the environment's infos")
        tables: dict[str, NDArray[np.int8]] = action_masks["action_mask_by_op"]
        rows, op = np.arange(len(observation)), self._draw(tables["op"][:, 0])
        return {"op": op} | {head: self._draw(tables[head][rows, op]) for head in HEADS if head != "op"}, state

    def _draw(self, mask: NDArray[np.int8]) -> Ints:
        """One of the legal values of each row."""
        reached = mask.cumsum(axis=1) > self.generator.random((len(mask), 1)) * mask.sum(axis=1, keepdims=True)
        drawn: Ints = reached.argmax(axis=1)
        return drawn
