"""Vector semantics: rows are single environments with their seeds, in every autoreset mode."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from env_tools import (
    IDS,
    TINY,
    WAIT,
    any_actions,
    array,
    assert_close,
    assert_same,
    everywhere,
    leaves,
    legal_actions,
    play,
    settings_of,
    tiny,
)
from esper_env import HEADS, EsperEnv, EsperVectorEnv, Op, Stage
from esper_env.tasks import TASKS
from gymnasium.vector import AutoresetMode

MODES = ("next_step", "same_step", "disabled")
EXPLOSIVE = {
    "learning_rate": (0.01, 3.0),
    "max_rollbacks": 0,
    "horizon": 9,
    "training_steps": 1,
}  # episodes end at different times


class Singles:
    """Single environments stepped one by one under the autoreset protocol, by hand."""

    def __init__(self, n: int, mode: str, **settings: Any) -> None:
        self.envs, self.mode = [EsperEnv(**settings) for _ in range(n)], mode
        self.ended = [False] * n

    def reset(self, seed: int) -> list[tuple[Any, ...]]:
        return [env.reset(seed=seed + row) for row, env in enumerate(self.envs)]

    def step(self, actions: dict[str, np.ndarray]) -> list[dict[str, Any]]:
        return [self._step(row, {head: int(actions[head][row]) for head in HEADS}) for row in range(len(self.envs))]

    def _step(self, row: int, action: dict[str, int]) -> dict[str, Any]:
        env = self.envs[row]
        if self.ended[row]:
            self.ended[row] = False
            observation, info = env.reset()
            return {"obs": observation, "reward": 0.0, "terminated": False, "info": info}
        observation, reward, terminated, _, info = env.step(action)
        result = {"obs": observation, "reward": reward, "terminated": terminated, "info": info}
        if terminated and self.mode == "same_step":
            result |= {"final_obs": observation, "final_info": info}
            result["obs"], fresh = env.reset()
            result["info"] = {**info, **{key: fresh[key] for key in STATE_KEYS}}
        elif terminated and self.mode == "next_step":
            self.ended[row] = True
        elif terminated:
            result["obs"], fresh = env.reset()  # the test resets such rows by mask
            result["info"] = {**info, **{key: fresh[key] for key in STATE_KEYS}}
        return result


STATE_KEYS = ("action_mask", "action_mask_by_op", "metric", "committed_metric", "added_parameters", "seeds")


def row_of(infos: dict[str, Any], row: int) -> dict[str, Any]:
    """One row of a vector's infos, in the form of a single environment's."""
    hidden = ("final_obs", "final_info")
    return {
        key: row_of(value, row) if isinstance(value, dict) else array(value)[row]
        for key, value in infos.items()
        if not key.startswith("_") and key not in hidden
    }


def compare(env: EsperVectorEnv, singles: Singles, steps: int, tolerance: float) -> set[int]:
    """Step both, mostly legally; returns the steps at which some rows ended and others did not."""
    rng = np.random.default_rng(len(singles.envs))
    observation, infos = env.reset(seed=40)
    for row, (single, info) in enumerate(singles.reset(seed=40)):
        assert_close({"obs": observation[row], "info": row_of(infos, row)}, {"obs": single, "info": info}, tolerance)
    uneven = set()
    for number in range(steps):
        actions = legal_actions(env.current()[1], rng) if number % 4 else any_actions(env, rng)
        observation, reward, terminated, truncated, infos = env.step(actions)
        expected = singles.step(actions)
        if env.autoreset_mode is AutoresetMode.DISABLED and terminated.any():
            observation, fresh = env.reset(options={"reset_mask": terminated})
            infos = {**infos, **{key: fresh[key] for key in STATE_KEYS}}
        assert not truncated.any()
        uneven |= {number} if terminated.any() and not terminated.all() else set()
        for row, single in enumerate(expected):
            mine = {"obs": observation[row], "reward": reward[row], "terminated": terminated[row]}
            mine["info"] = row_of(infos, row)
            if "final_obs" in single:
                assert infos["_final_obs"][row]
                mine |= {"final_obs": infos["final_obs"][row], "final_info": row_of(infos["final_info"], row)}
            assert_close(mine, single, tolerance)
    return uneven


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n", [1, 3, 16])
def test_rows_are_single_environments_over_whole_episodes(n: int, mode: str) -> None:
    settings = {"task": TINY, "dtype": "float64", **EXPLOSIVE}
    env = EsperVectorEnv(n, autoreset_mode=mode, **settings)
    uneven = compare(env, Singles(n, mode, **settings), 16, 1e-8)
    assert n < 16 or len(uneven) > 3


@pytest.mark.parametrize("name", IDS)
def test_rows_of_the_registered_environments_are_single_environments(name: str) -> None:
    settings = settings_of(name) | {"horizon": 7, "training_steps": 1}
    env = EsperVectorEnv(3, dtype="float64", **settings)
    compare(env, Singles(3, "next_step", dtype="float64", **settings), 8, 1e-8)


@pytest.mark.parametrize("name", IDS)
def test_in_float32_the_first_step_agrees_to_rounding(name: str) -> None:
    settings = dict(gymnasium.spec(name).kwargs)
    rounding = 1e-5 * TASKS[settings["task"]].minibatches_per_step
    compare(EsperVectorEnv(3, **settings), Singles(3, "next_step", **settings), 1, rounding)


@pytest.mark.ledger("V3")
def test_two_environments_stepped_in_turn_equal_two_stepped_alone() -> None:
    one, two = (tiny(3, horizon=5) for _ in range(2))
    alone = [list(play(tiny(3, horizon=5), 8, seed=seed)) for seed in (1, 2)]
    for mine, theirs in zip(
        zip(play(one, 8, seed=1), play(two, 8, seed=2), strict=True), zip(*alone, strict=True), strict=True
    ):
        for a, b in zip(mine, theirs, strict=True):
            assert_same(dict(enumerate(a)), dict(enumerate(b)))


@pytest.mark.parametrize("mode", MODES)
def test_torch_output_is_numpy_output_as_tensors(mode: str) -> None:
    settings = {"autoreset_mode": mode, **EXPLOSIVE}
    plain, tensors = tiny(6, **settings), tiny(6, output="torch", **settings)
    rng = np.random.default_rng(0)
    results = plain.reset(seed=7), tensors.reset(seed=7)
    for _ in range(9):
        assert_as_tensors(*(dict(enumerate(result)) for result in results))
        actions = any_actions(plain, rng)
        results = plain.step(actions), tensors.step({head: torch.from_numpy(value) for head, value in actions.items()})
        ended = results[0][2]
        if mode == "disabled" and ended.any():
            for env in (plain, tensors):
                env.reset(options={"reset_mask": ended})


def assert_as_tensors(plain: dict[Any, Any], tensors: dict[Any, Any]) -> None:
    mine, theirs = leaves(plain), leaves(tensors)
    assert mine.keys() == theirs.keys()
    for path, value in mine.items():
        assert isinstance(theirs[path], torch.Tensor), path
        if path.endswith("/final_obs"):  # an object array with None where nothing ended
            for row in np.flatnonzero(mine[path.replace("final_obs", "_final_obs")]):
                np.testing.assert_array_equal(value[row], theirs[path][row])
        else:
            assert theirs[path].numpy().dtype == value.dtype
            np.testing.assert_array_equal(theirs[path].numpy(), value, err_msg=path)


def test_next_step_ignores_the_action_of_a_row_that_resets() -> None:
    env, twin = tiny(2, horizon=2), tiny(2, horizon=2)
    env.reset(seed=0), twin.reset(seed=0)
    for each in (env, twin):
        each.step(everywhere(WAIT, 2)), each.step(everywhere(WAIT, 2))
    filled = {head: np.array([2, 2]) for head in HEADS}
    result = env.step(filled)
    assert_same(dict(enumerate(result)), dict(enumerate(twin.step(everywhere(WAIT, 2)))))
    assert not result[-1]["invalid_action"].any()


@pytest.mark.parametrize("mode", MODES)
def test_metadata_says_the_mode_of_each_instance(mode: str) -> None:
    env = tiny(2, autoreset_mode=mode)
    assert env.metadata["autoreset_mode"] is AutoresetMode[mode.upper()]
    assert EsperVectorEnv.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP


def test_a_reset_mask_resets_its_rows_alone_and_the_options_stay_as_they_were() -> None:
    env = tiny(4, autoreset_mode="disabled", dtype="float64")
    observation, _ = env.reset(seed=0)
    observation, *_ = env.step(everywhere(WAIT, 4))
    mask = np.array([True, False, True, False])
    options = {"reset_mask": mask}
    after, _ = env.reset(seed=100, options=options)
    assert options == {"reset_mask": mask}
    assert mask.tolist() == [True, False, True, False]
    np.testing.assert_array_equal(after[~mask], observation[~mask])
    for row in (0, 2):
        single, _ = EsperEnv(task=TINY, horizon=12, dtype="float64").reset(seed=100 + row)
        np.testing.assert_allclose(after[row], single, atol=1e-6)
    assert env.simulation.state.step.tolist() == [0, 1, 0, 1]


def test_a_reset_mask_may_be_a_tensor() -> None:
    env = tiny(2, autoreset_mode="disabled", output="torch")
    env.reset(seed=0)
    env.step(everywhere(WAIT, 2))
    env.reset(options={"reset_mask": torch.tensor([False, True])})
    assert env.simulation.state.step.tolist() == [1, 0]


def test_seeds_may_be_one_number_or_a_list_or_none() -> None:
    env, twin = tiny(3), tiny(3)
    first, _ = env.reset(seed=5)
    for same in ([5, 6, 7], np.array([5, 6, 7]), (5, 6, 7), np.int64(5)):
        np.testing.assert_array_equal(twin.reset(seed=same)[0], first)
    second, _ = env.reset()  # None continues with the next episode of each row
    assert (second != first).any(axis=1).all()
    np.testing.assert_array_equal(twin.reset()[0], second)
    mixed, _ = env.reset(seed=[5, None, 7])
    np.testing.assert_array_equal(mixed[[0, 2]], first[[0, 2]])
    assert (mixed[1] != first[1]).any()
    unseeded = [tiny(1).reset()[0] for _ in range(2)]
    assert (unseeded[0] != unseeded[1]).any()


def test_equal_seeds_give_equal_episodes_and_unequal_ones_do_not() -> None:
    runs = [[result for _, *result in play(tiny(2, horizon=6), 8, seed=seed)] for seed in (3, 3, 4)]
    assert_same(
        {k: dict(enumerate(r)) for k, r in enumerate(runs[0])}, {k: dict(enumerate(r)) for k, r in enumerate(runs[1])}
    )
    assert not np.array_equal(runs[0][-1][0], runs[2][-1][0])


def test_results_share_no_memory_with_later_ones() -> None:
    env = tiny(3, horizon=4, autoreset_mode="same_step")
    kept = []
    for _, *result in play(env, 6):
        tree = {path: value for path, value in leaves(dict(enumerate(result))).items() if value.dtype != object}
        kept.append((tree, {path: value.copy() for path, value in tree.items()}))
    for tree, copy in kept:
        assert_same(tree, copy)


def test_neither_global_generator_is_read_or_moved() -> None:
    torch.manual_seed(0), np.random.seed(0)
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    for _ in play(tiny(2), 4, illegal=0.3):
        pass
    assert torch.equal(torch.random.get_rng_state(), before[0])
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])


@pytest.mark.ledger("Y29")
def test_info_tells_what_a_log_shows_of_the_hosts() -> None:
    env, germinated = tiny(4, horizon=10, autoreset_mode="disabled"), 0
    for actions, *_, infos in play(env, 10, seed=4, illegal=0.3):
        stage = env.state.stage.numpy()
        for name, count in infos["seeds"].items():
            np.testing.assert_array_equal(count, (stage == Stage[name.upper()]).sum(axis=1))
        np.testing.assert_array_equal(infos["executed_op"], np.where(infos["invalid_action"], 0, actions["op"]))
        germinated += (infos["executed_op"] == Op.GERMINATE).sum()
        np.testing.assert_array_equal(infos["added_parameters"], env.state.added)
    assert germinated > 3
    assert set(infos) - {f"_{key}" for key in infos} == {
        *("action_mask", "action_mask_by_op", "executed_op", "invalid_action", "rolled_back", "reward_terms"),
        *("detectors", "metric", "committed_metric", "added_parameters", "training_flops", "seeds"),
    }
