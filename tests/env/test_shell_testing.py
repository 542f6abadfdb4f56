"""The conformance checks: Esper's ids and Gymnasium's own vector pass, and every check fails on its kind of fault."""

import re
from collections.abc import Callable
from typing import Any

import esper_env  # noqa: F401 (registers the ids)
import gymnasium
import numpy as np
import pytest
from env_tools import IDS, settings_of
from esper_env.testing import CHECKS, check_vector_env
from esper_env.testing.playing import Subject
from esper_env.wrappers import VectorDiscreteActions, VectorMaskInObservation, VectorMultiDiscreteActions
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

LENGTH = 3


class Walk(gymnasium.Env[Any, Any]):
    """A walk of a few steps from a random place; action 0 is illegal at even steps."""

    observation_space = spaces.Box(-10, 10, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.place, self.time = self.np_random.uniform(), 0
        self.length = LENGTH + int(self.np_random.integers(3))  # rows end at different times
        return self.look(), self.info()

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place += int(action) - 1
        self.time += 1
        return self.look(), float(self.place), self.time == self.length, False, self.info()

    def look(self) -> Any:
        return np.array([self.place, self.time], dtype=np.float32)

    def info(self) -> dict[str, Any]:
        return {"action_mask": np.array([self.time % 2, 1, 1], dtype=np.int8)}


class Walks(VectorEnv[Any, Any, Any]):
    """N walks; `fault` names the one rule that it breaks."""

    def __init__(self, n: int, mode: str, fault: str = "") -> None:
        self.num_envs, self.mode, self.fault = n, mode, fault
        self.rows = [Walk() for _ in range(n)]
        self.metadata = {"autoreset_mode": mode if fault == "mode as text" else AutoresetMode[mode.upper()]}
        self.single_observation_space, self.single_action_space = Walk.observation_space, Walk.action_space
        self.observation_space = batch_space(Walk.observation_space, n + (fault == "wrong batch"))
        self.action_space = batch_space(Walk.action_space, n)
        self.over = np.zeros(n, dtype=bool)
        self.buffer = np.zeros((n, 2), dtype=np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        options = options or {}
        mask = options.pop("reset_mask", None) if self.fault == "pops the mask" else options.get("reset_mask")
        if mask is None or self.fault == "ignores the mask":
            mask = np.ones(self.num_envs, dtype=bool)
        if self.fault == "resets nothing" and "reset_mask" in options:
            mask = np.zeros_like(mask)
        if seed is None or isinstance(seed, int):
            step = 2 if self.fault == "sparse seeds" else 1
            seeds = [None if seed is None else seed + step * row for row in range(self.num_envs)]
        else:
            seeds = [*seed]
        if self.fault == "repeats itself" and seed is None:
            seeds = [7] * self.num_envs
        if self.fault == "ignores the seed":
            seeds = [None] * self.num_envs
        for row in np.flatnonzero(mask):
            self.rows[row].reset(seed=seeds[row])
        self.over &= ~mask
        return self.look(), self.infos()

    def look(self) -> Any:
        self.buffer[:] = np.stack([row.look() for row in self.rows])
        return self.buffer if self.fault == "returns its buffer" else self.buffer.copy()

    def infos(self) -> dict[str, Any]:
        mask = np.stack([row.info()["action_mask"] for row in self.rows])
        if self.fault == "no legal value":
            mask[0] = 0
        return {"action_mask": mask.astype(bool) if self.fault == "boolean mask" else mask}

    def step(self, actions: Any) -> tuple[Any, ...]:
        results = [self.step_row(row, int(actions[row])) for row in range(self.num_envs)]
        rewards = np.array([reward for reward, _ in results], dtype=int if self.fault == "integer rewards" else float)
        ended = np.array([over for _, over in results])
        infos, final = self.infos(), self.look()
        self.over = ended.copy()
        if self.mode == "same_step" and ended.any():
            infos = self.autoreset(ended, final)
        truncated = ended if self.fault == "shares its flags" else np.zeros_like(ended)
        return self.look(), rewards, ended if truncated is ended else ended.copy(), truncated, infos

    def step_row(self, row: int, action: int) -> tuple[float, bool]:
        walk = self.rows[row]
        if self.over[row] and self.mode == "next_step" and self.fault != "late reset":
            walk.reset()
            walk.place += action if self.fault == "acts at the reset" else 0
            return (1.0 if self.fault == "rewards the reset" else 0.0), False
        if self.over[row] and self.fault == "late reset":
            return 0.0, False
        _, reward, over, _, _ = walk.step(action if self.fault != "mixes rows" else (action + row) % 3)
        return reward, over

    def autoreset(self, ended: Any, final: Any) -> dict[str, Any]:
        last, rows = self.infos(), np.full(self.num_envs, None, dtype=object)
        for row in np.flatnonzero(ended):
            rows[row] = final[row].astype(float if self.fault == "final in double precision" else np.float32)
            if self.fault != "keeps the final observation":
                self.rows[row].reset()
        self.over[:] = False
        marks = np.zeros_like(ended) if self.fault == "marks nothing" else ended.copy()
        last["_action_mask"] = np.ones_like(ended) if self.fault == "final_info of all rows" else ended.copy()
        infos = {"final_obs": rows, "_final_obs": marks, "final_info": last, "_final_info": ended.copy()}
        if self.fault == "forgets final_info":
            del infos["final_info"]
        return self.infos() | infos

    def close(self, **_: Any) -> None:
        if self.fault == "closes once" and getattr(self, "was_closed", False):
            raise RuntimeError("closed already")
        self.was_closed = True


FAULTS = {
    "mode as text": ("check_spaces", "autoreset_mode"),
    "wrong batch": ("check_spaces", "observation_space is not batch_space"),
    "integer rewards": ("check_spaces", "rewards is array"),
    "rewards the reset": ("check_next_step", "is rewarded 1.0 for its reset"),
    "acts at the reset": ("check_next_step", "depends on the action"),
    "late reset": ("check_next_step", "was not reset in the step after its end"),
    "keeps the final observation": ("check_same_step", "returned its final observation"),
    "final in double precision": ("check_same_step", "is not in single_observation_space"),
    "marks nothing": ("check_same_step", "does not mark the ended rows"),
    "final_info of all rows": ("check_same_step", "final_info: _action_mask"),
    "forgets final_info": ("check_same_step", "has no 'final_info'"),
    "pops the mask": ("check_disabled", "changed the caller's options"),
    "ignores the mask": ("check_disabled", ", which changed"),
    "resets nothing": ("check_disabled", ", which was not reset"),
    "sparse seeds": ("check_seeding", "seed=1 and seed="),
    "repeats itself": ("check_seeding", "repeats the episode before"),
    "ignores the seed": ("check_seeding", "the same seed gives another observation"),
    "mixes rows": ("check_rows", "row 1 is rewarded"),
    "returns its buffer": ("check_copies", "a later step changed what was returned before"),
    "shares its flags": ("check_copies", "share memory"),
    "no legal value": ("check_masks", "without a legal value"),
    "boolean mask": ("check_masks", "expected int8"),
    "closes once": ("check_close", "closing twice raises"),
}


def subject(make: Callable[[int, str], Any], single: Callable[[], Any] | None = Walk) -> Subject:
    return Subject(make, single, num_envs=3, max_steps=10, seed=1, tolerance=1e-6)


def test_a_right_vector_environment_passes() -> None:
    check_vector_env(Walks, Walk)


def test_gymnasiums_own_vector_passes_all_but_its_known_fault() -> None:
    def make(n: int, mode: str) -> Any:
        return gymnasium.vector.SyncVectorEnv([Walk] * n, autoreset_mode=AutoresetMode[mode.upper()])

    for check in CHECKS:
        if check.__name__ == "check_disabled":
            with pytest.raises(AssertionError, match="changed the caller's options"):
                check(subject(make))
        else:
            check(subject(make))


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found_by_its_check(fault: str) -> None:
    name, message = FAULTS[fault]
    check = next(check for check in CHECKS if check.__name__ == name)
    with pytest.raises(AssertionError, match=re.escape(message)):
        check(subject(lambda n, mode: Walks(n, mode, fault)))


def test_every_check_can_fail() -> None:
    assert {name for name, _ in FAULTS.values()} == {check.__name__ for check in CHECKS}


def test_an_environment_that_never_ends_is_reported() -> None:
    with pytest.raises(AssertionError, match="no episode ended within max_steps=2"):
        check_vector_env(Walks, Walk, max_steps=2)


@pytest.mark.parametrize("name", IDS)
def test_every_id_conforms(name: str) -> None:
    settings = {"horizon": 2, "dtype": "float64", "task": settings_of(name)["task"]}
    check_vector_env(
        lambda n, mode: gymnasium.make_vec(name, n, autoreset_mode=mode, **settings),
        lambda: gymnasium.make(name, disable_env_checker=True, **settings),
        num_envs=2,
        max_steps=4,
    )


@pytest.mark.parametrize("wrapper", [VectorMultiDiscreteActions, VectorDiscreteActions, VectorMaskInObservation])
def test_wrapped_vectors_conform(wrapper: Callable[[Any], Any]) -> None:
    def make(n: int, mode: str) -> Any:
        return wrapper(gymnasium.make_vec("Esper-v0", n, autoreset_mode=mode, horizon=1))

    check_vector_env(make, num_envs=2, max_steps=3)
