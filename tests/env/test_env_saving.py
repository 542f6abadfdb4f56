"""Saving: an episode interrupted at any step goes on bit for bit, in another process too."""

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from env_tools import IDS, TINY, assert_same, batch, leaves, legal_action, tiny
from esper_env import EsperEnv, EsperVectorEnv, Stage

RUGGED = {"learning_rate": (0.02, 3.0), "horizon": 14, "max_rollbacks": 3, "training_steps": 1}


def course(env: EsperVectorEnv, start: int, stop: int) -> dict[str, Any]:
    """Play on from step `start`: a legal choice that depends on the step and the present masks alone."""
    results = {}
    for number in range(start, stop):
        by_op = env.current()[1]["action_mask_by_op"]
        rng = np.random.default_rng(number)
        *result, infos = env.step(batch([legal_action(by_op, row, rng) for row in range(env.num_envs)]))
        kept = ("reward_terms", "action_mask_by_op", "rolled_back", "metric", "committed_metric")
        results[str(number)] = {**dict(zip("ortx", result, strict=True)), **{key: infos[key] for key in kept}}
    return results


@pytest.mark.parametrize("cut", [0, 1, 6, 13, 14, 20])
def test_an_interrupted_run_goes_on_bit_for_bit(cut: int) -> None:
    straight, before, after = (tiny(8, **RUGGED) for _ in range(3))
    straight.reset(seed=2), before.reset(seed=2)
    course(straight, 0, cut), course(before, 0, cut)
    after.load_state_dict(before.state_dict())
    assert_same(course(straight, cut, 24), course(after, cut, 24))
    assert_same(straight.state_dict(), after.state_dict())


def test_the_runs_above_pass_through_every_stage_and_through_rollbacks() -> None:
    env, stages, rolled_back = tiny(8, **RUGGED), set(), 0
    env.reset(seed=2)
    for number in range(20):
        (result,) = course(env, number, number + 1).values()
        rolled_back += result["rolled_back"].sum()
        stages |= set(env.simulation.state.stage.unique().tolist())
    assert stages == set(Stage)
    assert rolled_back > 5


CHILD = """
import sys, torch
sys.path[:0] = sys.argv[1].split(":")
from test_env_saving import course, RUGGED
from env_tools import tiny
env = tiny(8, **RUGGED)
env.load_state_dict(torch.load(sys.argv[2], weights_only=True))
results = course(env, int(sys.argv[3]), 18)
plain = {k: {n: torch.as_tensor(v) for n, v in r.items() if n in "ortx"} for k, r in results.items()}
torch.save({"results": plain, "state": env.state_dict()}, sys.argv[4])
"""


def test_another_process_continues_bit_for_bit_from_a_file_without_pickled_code(tmp_path: Path) -> None:
    env, cut = tiny(8, **RUGGED), 9
    env.reset(seed=2)
    course(env, 0, cut)
    torch.save(env.state_dict(), tmp_path / "saved.pt")
    here = course(env, cut, 18)
    here_and_above = ":".join(str(folder) for folder in Path(__file__).parents[:2])
    arguments = [here_and_above, str(tmp_path / "saved.pt"), str(cut), str(tmp_path / "there.pt")]
    subprocess.run([sys.executable, "-c", CHILD, *arguments], check=True, timeout=600)
    there = torch.load(tmp_path / "there.pt", weights_only=True)
    assert_same({k: {n: v for n, v in r.items() if n in "ortx"} for k, r in here.items()}, there["results"])
    assert_same(env.state_dict(), there["state"])


@pytest.mark.parametrize("name", IDS)
def test_every_registered_environment_resumes(name: str) -> None:
    straight, after = (gymnasium.make_vec(name, num_envs=2, training_steps=1).unwrapped for _ in range(2))
    straight.reset(seed=0)
    course(straight, 0, 4)
    after.load_state_dict(straight.state_dict())
    assert_same(course(straight, 4, 7), course(after, 4, 7))


def test_the_single_environment_resumes_and_shows_where_it_is() -> None:
    one, other = EsperEnv(task=TINY, horizon=4), EsperEnv(task=TINY, horizon=4)
    one.reset(seed=1)
    wait = dict.fromkeys(one.heads, 0)
    observation, *_ = one.step(wait)
    other.load_state_dict(one.state_dict())
    np.testing.assert_array_equal(other.row.current()[0][0], observation)
    for _ in range(3):
        assert_same(dict(enumerate(one.step(wait))), dict(enumerate(other.step(wait))))
    with pytest.raises(RuntimeError, match="over"):
        other.step(wait)
    assert_same(dict(enumerate(one.reset())), dict(enumerate(other.reset())))


def test_a_saved_state_is_tensors_and_plain_values_that_later_steps_leave_alone() -> None:
    env = tiny(4, **RUGGED)
    env.reset(seed=0)
    course(env, 0, 5)
    saved = env.state_dict()
    copy = {path: value.clone() if isinstance(value, torch.Tensor) else value for path, value in leaves(saved).items()}
    course(env, 5, 9)
    assert_same(leaves(saved), copy)
    allowed = (torch.Tensor, str, int, float, bool, list, type(None))
    assert all(isinstance(value, allowed) for value in leaves(saved).values())
    assert all(isinstance(key, str) for path in leaves(saved) for key in path.split("/"))


def test_loading_copies_so_that_one_saved_state_serves_many_times() -> None:
    env, saved_from = tiny(4, **RUGGED), tiny(4, **RUGGED)
    saved_from.reset(seed=0)
    course(saved_from, 0, 5)
    saved = saved_from.state_dict()
    runs = []
    for _ in range(2):
        env.load_state_dict(saved)
        runs.append(course(env, 5, 9))
    assert_same(*runs)


DIFFERENT = {
    "task": "digits_mlp",
    "horizon": 13,
    "dtype": "float64",
    "learning_rate": (0.1, 0.2),
    "lesion_weights": (1.0, 0.0, 0.0),
    "reward": "sparse",
    "instances": "test",
}


@pytest.mark.parametrize("field", [*DIFFERENT, "num_envs"])
def test_a_state_of_an_environment_with_other_arguments_is_refused_and_changes_nothing(field: str) -> None:
    saved_from, env = tiny(4, **RUGGED), tiny(**{"n": 4, **RUGGED})
    other = tiny(5, **RUGGED) if field == "num_envs" else tiny(4, **{**RUGGED, field: DIFFERENT[field]})
    for each in (saved_from, env, other):
        each.reset(seed=0)
    before = other.state_dict()
    with pytest.raises(ValueError, match=f"the saved environment has {field}=.*; this one has "):
        other.load_state_dict(saved_from.state_dict())
    assert_same(other.state_dict(), before)
    env.load_state_dict(saved_from.state_dict())


CHANGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "one row": lambda tensor: tensor[:1],
    "stretched": lambda tensor: tensor[:1].expand(1 << 32, *tensor.shape[1:]),
    "other type": lambda tensor: tensor.to(torch.int16),
    "no tensor": lambda tensor: tensor.tolist(),
    "nothing": lambda _: None,
}


def changed(saved: dict[str, Any], place: str, change: Callable[[torch.Tensor], Any]) -> dict[str, Any]:
    """A saved state with one tensor replaced."""
    _, *parents, last = place.split("/")
    copied: dict[str, Any] = copy.deepcopy(saved)
    owner = copied
    for parent in parents:
        owner = owner[parent]
    owner[last] = change(owner[last])
    return copied


@pytest.fixture
def played() -> EsperVectorEnv:
    """An environment in which seeds grow."""
    env = tiny(8, **RUGGED)
    env.reset(seed=2)
    course(env, 0, 9)
    return env


@pytest.mark.ledger("Y6")
@pytest.mark.parametrize("change", CHANGES)
def test_a_state_of_another_shape_or_type_is_refused_and_changes_nothing(played: EsperVectorEnv, change: str) -> None:
    saved, other = played.state_dict(), tiny(8, **RUGGED)
    before = other.state_dict()
    tensors = {place: leaf for place, leaf in leaves(saved).items() if isinstance(leaf, torch.Tensor)}
    for place, tensor in tensors.items():
        if change != "one row" or len(tensor) > 1:
            with pytest.raises(ValueError, match="the saved environment"):
                other.load_state_dict(changed(saved, place, CHANGES[change]))
    assert_same(other.state_dict(), before)
    assert any("/seeds/" in place for place in tensors)


@pytest.mark.ledger("Y6")
@pytest.mark.parametrize("part", ["/simulation", "/simulation/snapshot"])
@pytest.mark.parametrize(
    ("name", "value"),
    [("census/blueprint", 99), ("census/blueprint", -2), ("census/blend", 3), ("state/stage", 6), ("state/last_op", 5)],
)
def test_a_state_with_values_that_mean_nothing_is_refused(
    played: EsperVectorEnv, part: str, name: str, value: int
) -> None:
    saved = played.state_dict()
    with pytest.raises(ValueError, match=rf"{name.replace('/', '.')} holds {value}; allowed"):
        played.load_state_dict(changed(saved, f"{part}/{name}", lambda tensor: torch.full_like(tensor, value)))
    assert_same(played.state_dict(), saved)


@pytest.mark.ledger("Y6")
def test_a_census_without_its_seeds_is_refused(played: EsperVectorEnv) -> None:
    saved = played.state_dict()
    saved["simulation"]["seeds"].popitem()
    with pytest.raises(ValueError, match=r"environment\.seeds is a dictionary"):
        played.load_state_dict(saved)
