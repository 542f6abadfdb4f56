"""Small environments that the agent's tests and benchmarks train in."""

from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space


class HideVelocities(gymnasium.ObservationWrapper[Any, Any, Any]):
    """CartPole that shows positions only: the policy has to remember where things were."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        space = env.observation_space
        assert isinstance(space, spaces.Box)
        self.observation_space = spaces.Box(space.low[[0, 2]], space.high[[0, 2]], dtype=np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[[0, 2]]


def make_hidden_cartpole() -> gymnasium.Env[Any, Any]:
    return HideVelocities(gymnasium.make("CartPole-v1"))


def hidden_cartpole_vector(n: int, mode: AutoresetMode = AutoresetMode.SAME_STEP) -> SyncVectorEnv:
    return SyncVectorEnv([make_hidden_cartpole] * n, autoreset_mode=mode)


class ToyVectorEnv(VectorEnv[Any, Any, Any]):
    """What the vector environments below share: spaces, autoreset in the same or the next step, and saving.

    A subclass keeps its state in arrays with one row per environment (`fields`), and says how rows begin (`begin`),
    act (`advance`), look (`observe`) and what is legal (`masks`).

    Args:
        num_envs: rows.
        mode: autoreset mode.
        output: "numpy" or "torch".
    """

    observation_size: int
    sizes: ClassVar[dict[str, int]]
    fields: tuple[str, ...] = ("age",)
    horizon: int

    def __init__(self, num_envs: int = 1, mode: AutoresetMode = AutoresetMode.SAME_STEP, output: str = "numpy") -> None:
        self.num_envs, self.output = num_envs, output
        self.metadata = {"autoreset_mode": mode}
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (self.observation_size,), np.float32)
        self.single_action_space = self.make_action_space()
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def make_action_space(self) -> spaces.Space[Any]:
        return spaces.Dict({name: spaces.Discrete(n) for name, n in self.sizes.items()})

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.age = np.zeros(self.num_envs, dtype=np.int64)
        self.over = np.zeros(self.num_envs, dtype=bool)
        self.begin(np.ones(self.num_envs, dtype=bool))
        return self._out(self.observe()), self._out(self.masks())

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        actions = self._in(actions)
        late = self.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
        acting = ~self.over if late else np.ones(self.num_envs, dtype=bool)
        before = {name: getattr(self, name).copy() for name in self.fields}
        reward = np.where(acting, self.advance(actions), 0.0)
        self.age += 1
        infos: dict[str, Any] = {}
        if late:
            for name, value in before.items():  # a row that only resets ignores its action
                getattr(self, name)[~acting] = value[~acting]
            self.age[~acting] = 0
            self.begin(~acting)
            self.over = acting & (self.age >= self.horizon)
            terminated = self.over
        else:
            terminated = self.age >= self.horizon
            if terminated.any():
                infos = {"final_obs": np.empty(self.num_envs, dtype=object), "_final_obs": terminated}
                for row in np.flatnonzero(terminated):
                    infos["final_obs"][row] = self.observe()[row].copy()
            self.age[terminated] = 0
            self.begin(terminated)
        ended, truncated = self.endings(terminated)
        result = (self._out(self.observe()), *map(self._out, (reward, ended, truncated)))
        return *result, {**infos, **self._out(self.masks())}

    def endings(self, over: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which ends are terminations, and which truncations."""
        return over, np.zeros_like(over)

    def begin(self, rows: np.ndarray) -> None:
        """Draw what an episode draws, for these rows."""

    def masks(self) -> dict[str, Any]:
        return {}

    def advance(self, actions: Any) -> np.ndarray:
        raise NotImplementedError

    def observe(self) -> np.ndarray:
        raise NotImplementedError

    def _in(self, actions: Any) -> Any:
        if isinstance(actions, dict):
            return {name: self._in(part) for name, part in actions.items()}
        return np.asarray(actions)

    def _out(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._out(part) for name, part in value.items()}
        return torch.from_numpy(value.copy()) if self.output == "torch" else value.copy()

    def state_dict(self) -> dict[str, Any]:
        arrays = {name: torch.from_numpy(getattr(self, name).copy()) for name in (*self.fields, "over")}
        return {"arrays": arrays, "generator": self.np_random.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state["arrays"].items():
            setattr(self, name, value.numpy().copy())
        self.np_random.bit_generator.state = state["generator"]


def by_op_masks(sizes: dict[str, int], op: np.ndarray, tables: dict[str, np.ndarray]) -> dict[str, Any]:
    """Both forms of masks from the op mask [N, ops] and bool tables [N, ops, n] of the other heads."""
    op_head, *arguments = sizes
    marginal = {op_head: op.astype(np.int8)}
    by_op = {op_head: np.repeat(op[:, None], op.shape[1], axis=1).astype(np.int8)}
    for name in arguments:
        by_op[name] = tables[name].astype(np.int8)
        marginal[name] = (tables[name] & op[:, :, None]).any(1).astype(np.int8)
    return {"action_mask": marginal, "action_mask_by_op": by_op}


class Countdown(ToyVectorEnv):
    """Pays 1 at every step whatever is done, for ten steps; time is observed."""

    observation_size, horizon = 1, 10
    heads = ("action",)

    def make_action_space(self) -> spaces.Space[Any]:
        return spaces.Discrete(2)

    def advance(self, actions: Any) -> np.ndarray:
        return np.ones(len(actions))

    def observe(self) -> np.ndarray:
        return (self.age / self.horizon)[:, None].astype(np.float32)


class MaskedHeads(ToyVectorEnv):
    """Three heads with random legality per op; pays for the op that the observation marks. Some ends are truncations.

    Args:
        horizon: steps of an episode, give or take none.
        **options: of `ToyVectorEnv`.
    """

    observation_size = 6
    sizes: ClassVar[dict[str, int]] = {"op": 3, "slot": 4, "blueprint": 2}
    heads = ("op", "slot", "blueprint")
    fields = ("age", "look")

    def __init__(self, num_envs: int = 1, horizon: int = 7, **options: Any) -> None:
        self.horizon = horizon
        super().__init__(num_envs, **options)

    def begin(self, rows: np.ndarray) -> None:
        if rows.all():
            self.look = self.np_random.normal(size=(self.num_envs, 6)).astype(np.float32)
        # Ages differ, so that episodes end at different times.
        self.age[rows] = np.flatnonzero(rows) % self.horizon if rows.all() else 0

    def advance(self, actions: Any) -> np.ndarray:
        reward = (actions["op"] == self.look[:, :3].argmax(1)) + 0.1 * actions["slot"]
        self.look = self.np_random.normal(size=(self.num_envs, 6)).astype(np.float32)
        return reward

    def endings(self, over: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        truncated = over & (np.arange(self.num_envs) % 2 == 1)
        return over & ~truncated, truncated

    def observe(self) -> np.ndarray:
        return self.look

    def masks(self) -> dict[str, Any]:
        # Legality is a function of what is observed, so that a restored environment has the same masks.
        op = np.stack([np.ones(self.num_envs, dtype=bool), self.look[:, 3] > -0.5, self.look[:, 4] > -0.5], 1)
        slot = np.zeros((self.num_envs, 3, 4), dtype=bool)
        slot[:, :, 0] = True
        slot[:, 1:, 1:] = self.look[:, None, :3] > 0
        blueprint = np.zeros((self.num_envs, 3, 2), dtype=bool)
        blueprint[:, :, 0] = True
        blueprint[:, 2, 1] = True
        return by_op_masks(self.sizes, op, {"slot": slot, "blueprint": blueprint})


class OpDependentSlot(ToyVectorEnv):
    """A bandit whose two good ops want different slots, and only one of them is legal at a time.

    The best return is 1. Heads that do not see the op fit one op's slot and fall back on op 0: 0.6 at most.
    """

    observation_size, horizon = 1, 1
    sizes: ClassVar[dict[str, int]] = {"op": 3, "slot": 3}
    heads = ("op", "slot")
    optimum = 1.0

    def advance(self, actions: Any) -> np.ndarray:
        op, slot = actions["op"], actions["slot"]
        right = np.where(op == 1, 1, 2)
        return np.where(op == 0, 0.2, np.where(slot == right, 1.0, -1.0))

    def observe(self) -> np.ndarray:
        return np.zeros((self.num_envs, 1), dtype=np.float32)

    def masks(self) -> dict[str, Any]:
        op = np.ones((self.num_envs, 3), dtype=bool)
        banned = self.np_random.integers(1, 3, self.num_envs)
        op[np.arange(self.num_envs), banned] = False
        slot = np.ones((self.num_envs, 3, 3), dtype=bool)
        slot[:, 0, 1:] = False
        return by_op_masks(self.sizes, op, {"slot": slot})


class TMaze(ToyVectorEnv):
    """A corridor of twenty steps: the sign at its start says which way to turn at its end."""

    observation_size, horizon = 3, 21
    fields = ("age", "sign")
    optimum = 1.0

    def make_action_space(self) -> spaces.Space[Any]:
        return spaces.Discrete(2)

    def begin(self, rows: np.ndarray) -> None:
        drawn = self.np_random.integers(0, 2, self.num_envs)
        self.sign = np.where(rows, drawn, getattr(self, "sign", drawn))

    def advance(self, actions: Any) -> np.ndarray:
        return np.where(self.age == self.horizon - 1, np.where(actions == self.sign, 1.0, -1.0), 0.0)

    def observe(self) -> np.ndarray:
        first, last = self.age == 0, self.age == self.horizon - 1
        return np.stack([np.where(first, 2.0 * self.sign - 1, 0.0), first, last], 1).astype(np.float32)


class MockGrowth(ToyVectorEnv):
    """Growth without networks: one of three slots lacks capacity, and only a look at its neighbours tells which.

    Ops: WAIT, GERMINATE (slot, blueprint), ADVANCE (slot), FOSSILIZE (slot), PRUNE (slot). A seed goes dormant ->
    training -> holding -> fossilised, one op at a time. At the end a fossilised seed of the fitting blueprint in the
    lacking slot earns 1, any other fossilised seed costs 0.1. The best return is 1: germinate, advance, fossilise.
    """

    observation_size, horizon = 3 + 3 + 12 + 1, 8
    sizes: ClassVar[dict[str, int]] = {"op": 5, "slot": 3, "blueprint": 2}
    heads = ("op", "slot", "blueprint")
    fields = ("age", "lacking", "wanted", "stage", "planted")
    gamma = 0.99
    optimum = 1.0

    def begin(self, rows: np.ndarray) -> None:
        lacking = self.np_random.integers(0, 3, self.num_envs)
        wanted = self.np_random.integers(0, 2, self.num_envs)
        if rows.all():
            self.lacking, self.wanted = lacking, wanted
            self.stage = np.zeros((self.num_envs, 3), dtype=np.int64)
            self.planted = np.zeros((self.num_envs, 3), dtype=np.int64)
        self.lacking, self.wanted = np.where(rows, lacking, self.lacking), np.where(rows, wanted, self.wanted)
        self.stage[rows], self.planted[rows] = 0, 0

    def advance(self, actions: Any) -> np.ndarray:
        rows = np.arange(self.num_envs)
        op, slot = actions["op"], actions["slot"]
        stage = self.stage[rows, slot]
        germinate, advance = (op == 1) & (stage == 0), (op == 2) & (stage == 1)
        fossilize, prune = (op == 3) & (stage == 2), (op == 4) & (stage > 0) & (stage < 3)
        self.planted[rows[germinate], slot[germinate]] = actions["blueprint"][germinate]
        self.stage[rows, slot] = np.select([germinate, advance, fossilize, prune], [1, 2, 3, 0], stage)
        return np.where(self.age == self.horizon - 1, self._worth(), 0.0)

    def _worth(self) -> np.ndarray:
        committed = self.stage == 3
        fits = (np.arange(3) == self.lacking[:, None]) & (self.planted == self.wanted[:, None])
        return (committed & fits).sum(1) - 0.1 * (committed & ~fits).sum(1)

    def observe(self) -> np.ndarray:
        marks = np.eye(3)[self.lacking] * np.where(self.wanted == 1, 1.0, -1.0)[:, None]
        stages = np.eye(4)[self.stage].reshape(self.num_envs, 12)
        progress = (self.age / self.horizon)[:, None]
        return np.concatenate([marks, self.planted, stages, progress], 1).astype(np.float32)

    def masks(self) -> dict[str, Any]:
        none, training, holding = (self.stage == stage for stage in (0, 1, 2))
        slot = np.zeros((self.num_envs, 5, 3), dtype=bool)
        slot[:, 0, 0] = True
        slot[:, 1], slot[:, 2], slot[:, 3], slot[:, 4] = none, training, holding, training | holding
        op = slot.any(2)
        slot[~op] = np.array([True, False, False])
        blueprint = np.zeros((self.num_envs, 5, 2), dtype=bool)
        blueprint[:, :, 0] = True
        blueprint[:, 1, 1] = True
        return by_op_masks(self.sizes, op, {"slot": slot, "blueprint": blueprint})
