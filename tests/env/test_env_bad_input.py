"""Bad input: one clear error that names the field, the value and what is allowed; nothing is corrupted afterwards."""

from dataclasses import fields
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from env_tools import IDS, TINY, WAIT, any_actions, assert_same, batch, everywhere, play, tiny
from esper_env import HEADS, EsperEnv, EsperVectorEnv
from esper_env.config import EsperConfig

NUMBERS = {
    **{"horizon": (0, 1.5, "x"), "gamma": (-0.1, 1.1, float("nan")), "training_steps": (0, 2.0, None)},
    **{"warmup_steps": (-1, 0.5)},
    **{"holding_steps": (0, True), "prune_age": (0, -1), "embargo_steps": (-1, 0.5)},
    **{"collapse_loss": (0.5, float("inf")), "max_rollbacks": (-1, 1.0), "rollback_penalty": (-1.0, 101.0)},
    **{
        "reward_scale": (0.0, -1.0, float("nan")),
        "invalid_action_cost": (-0.1, 101),
        "rent": (-0.1, "0.1", (0.2, 0.1), (0.1,)),
    },
    **{"slot_rent": (-0.1, "0.1", None, (0.0, 101.0)), "budget": (-1, 1.5, (2, 1), (0.5, 2), "one", True)},
    **{"metric_weight": (-1.0,), "stage_weight": (-1.0,), "contribution_weight": (-1.0,)},
    **{"entanglement_weight": (-1.0,), "ratio_epsilon": (0.0, -0.0, -1e-3), "legitimate_age": (0, 0.5)},
    **{"holding_slope": (-1.0,), "holding_cap": (-1.0,), "shock_weight": (-1.0,), "loss_weight": (-1.0,)},
    **{"spike_loss": (0.5, float("inf")), "small_loss": (0.0, 1.5), "control_interval": (-1, 0.5)},
    **{"ransom_contribution": (-0.1, 1.1), "ransom_gain": (-0.1, 1.1), "churn_prunes": (0, 1.5)},
    **{"holding_limit": (0,), "plateau_tolerance": (-0.1, 1.1), "validation_samples": (0, 1.5)},
    **{"online_weight": (-1.0, 101.0), "phase_steps": (0, 1.5)},
}
PAIRS = {
    "live_units": ((0, 1), (3, 1), (1.0, 2.0), (1,), 2, (1, 6)),
    "learning_rate": ((-0.1, 0.1), (0.2, 0.1), (0.1, float("inf")), 0.1),
    "label_noise": ((0.0, 1.1), (0.5, 0.1), (0.0,)),
    "subset": ((0.0, 1.0), (0.5, 1.5), "all"),
    "phases": ((0, 1), (3, 2), (1.0, 2.0), 2),
    "phase_classes": ((0, 2), (3, 2), (2,)),
}
LISTS = {
    "lesion_weights": ((0.0, 0.0, 0.0), (1.0, 1.0), (-1.0, 1.0, 1.0), (1e308, 1e308, 1e308)),
    "stage_potential": ((0.0, 1.0), (0.0, 0.1, 0.3, 0.6, 1.0, -1.0), (0.0, 0.1, 0.3, 0.6, 1e308, 0.0)),
    "op_costs": ((0.0,) * 4, (0.0, 0.0, 0.0, 0.0, -0.1), (0.0, 0.0, 0.0, 0.0, 1e308), 0.1),
}
CHOICES = {
    "task": ("mnist", 3),
    "device": ("gpu", "meta", None, 5, "cuda:99", *([] if torch.cuda.is_available() else ["cuda"])),
    "threads": (0, -1, 1.5, "two", 100_000),
    "dtype": ("float16", None, torch.float32),
    "instances": ("held_out", None),
    "shapes": ("narrow", None),
    "measurements": ("some", None),
    "reward": ("dense", None, "Shaped"),
}
BAD = {**NUMBERS, **PAIRS, **LISTS, **CHOICES}


def test_every_argument_has_bad_values_here() -> None:
    assert set(BAD) == {field.name for field in fields(EsperConfig)}


@pytest.mark.ledger("R2", "Y10", "Y18")
@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in BAD.items() for value in values])
@pytest.mark.parametrize("make", [EsperEnv, EsperVectorEnv])
def test_a_bad_argument_fails_at_construction_and_says_which_and_why(make: Any, field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"(?s){field}.*(allowed|known): ") as caught:
        make(**{"task": TINY, field: value})
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("make", [EsperEnv, EsperVectorEnv])
def test_an_unknown_argument_is_told_in_pythons_words(make: Any) -> None:
    """Others look for these words: TorchRL's GymEnv passes `frameskip` and tries again without it."""
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'frameskip'"):
        make(task=TINY, frameskip=1)
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'frameskip'"):
        gymnasium.make("Esper-v0", frameskip=1)


def test_a_missing_task_is_named() -> None:
    with pytest.raises(TypeError, match="task"):
        EsperVectorEnv(2)


@pytest.mark.parametrize("field_value", [("num_envs", 0), ("num_envs", 1.5), ("num_envs", True), ("output", "jax")])
def test_a_bad_argument_of_the_vector_names_itself(field_value: tuple[str, Any]) -> None:
    field, value = field_value
    with pytest.raises(ValueError, match=rf"{field} is {value!r}; allowed: "):
        EsperVectorEnv(**{"task": TINY, "num_envs": 2, field: value})


def test_a_bad_mode_names_itself() -> None:
    with pytest.raises(ValueError, match="autoreset_mode is 'later'; allowed: next_step, same_step, disabled"):
        tiny(autoreset_mode="later")
    with pytest.raises(ValueError, match="render_mode"):
        tiny(render_mode="human")


def test_an_environment_that_ends_at_once_is_allowed() -> None:
    env = EsperEnv(task=TINY, horizon=1)
    env.reset(seed=0)
    assert env.step(WAIT)[2] is True


BAD_ACTIONS = {
    "not a dict": [0, 0, 0, 0, 0],
    "nothing": None,
    "a missing head": {head: np.zeros(2, dtype=int) for head in HEADS[1:]},
    "an extra head": {**everywhere(WAIT, 2), "colour": np.zeros(2, dtype=int)},
    "keys of mixed types": {**everywhere(WAIT, 2), 3: np.zeros(2, dtype=int)},
    "fractions": {**everywhere(WAIT, 2), "slot": np.zeros(2)},
    "truth values": {**everywhere(WAIT, 2), "slot": np.zeros(2, dtype=bool)},
    "words": {**everywhere(WAIT, 2), "op": ["WAIT", "WAIT"]},
    "None": {**everywhere(WAIT, 2), "op": None},
    "ragged rows": {**everywhere(WAIT, 2), "op": [None, 1]},
    "too few rows": {**everywhere(WAIT, 2), "tempo": np.zeros(1, dtype=int)},
    "too many rows": {**everywhere(WAIT, 2), "tempo": np.zeros(3, dtype=int)},
    "a matrix": {**everywhere(WAIT, 2), "tempo": np.zeros((2, 1), dtype=int)},
    "a tensor of fractions": {**everywhere(WAIT, 2), "blend": torch.zeros(2)},
    "a tensor of the wrong shape": {**everywhere(WAIT, 2), "blend": torch.zeros(1, 2, dtype=torch.int64)},
}


@pytest.mark.parametrize("name", BAD_ACTIONS)
def test_a_malformed_action_raises_before_anything_happens(name: str) -> None:
    env, twin = tiny(2), tiny(2)
    for each in (env, twin):
        each.reset(seed=0)
    with pytest.raises(TypeError, match=r"an action is a dict with the keys|must hold 2 integer\(s\); got"):
        env.step(BAD_ACTIONS[name])
    assert_same(env.state_dict(), twin.state_dict())


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint16, np.int64, np.uint64])
def test_actions_of_any_integer_type_are_taken(dtype: Any) -> None:
    env = tiny(2)
    env.reset(seed=0)
    env.step({head: np.zeros(2, dtype=dtype) for head in HEADS})
    env.step({head: [0, 0] for head in HEADS})
    env.step({head: torch.zeros(2, dtype=torch.int32) for head in HEADS})


def test_a_matrix_whose_size_happens_to_fit_is_not_taken_for_rows() -> None:
    env = tiny(4)
    env.reset(seed=0)
    with pytest.raises(TypeError, match=r"action\['slot'\] must hold 4 integer"):
        env.step({**everywhere(WAIT, 4), "slot": np.zeros((2, 2), dtype=int)})


def test_the_single_environment_takes_plain_and_numpy_integers_only() -> None:
    env = EsperEnv(task=TINY)
    env.reset(seed=0)
    env.step(WAIT)
    env.step({head: np.int64(0) for head in HEADS})
    for bad in (0, [0] * 5, {**WAIT, "op": 0.0}, {**WAIT, "op": [0, 0]}, {**WAIT, "op": "WAIT"}):
        with pytest.raises(TypeError):
            env.step(bad)


def test_stepping_before_reset_and_after_the_end_raises() -> None:
    env = EsperEnv(task=TINY, horizon=2)
    with pytest.raises(RuntimeError, match=r"reset\(\) before step"):
        env.step(WAIT)
    env.reset(seed=0)
    env.step(WAIT), env.step(WAIT)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"the episode is over; call reset\(\)"):
            env.step(WAIT)
    env.reset()
    env.step(WAIT)


def test_a_vector_without_autoreset_refuses_ended_rows_by_name() -> None:
    env = tiny(3, horizon=2, autoreset_mode="disabled")
    with pytest.raises(RuntimeError, match=r"reset\(\) before step"):
        env.step(everywhere(WAIT, 3))
    env.reset(seed=0)
    env.step(everywhere(WAIT, 3))
    env.reset(options={"reset_mask": np.array([True, False, True])})
    env.step(everywhere(WAIT, 3))
    with pytest.raises(RuntimeError, match=r"rows \[1\] are over.*reset_mask"):
        env.step(everywhere(WAIT, 3))


BAD_RESETS: dict[str, dict[str, Any]] = {
    "seeds for other rows": {"seed": [1, 2]},
    "a fraction as seed": {"seed": 1.5},
    "a word as seed": {"seed": [1, 2, "three"]},
    "a negative seed": {"seed": -4},
    "a mask of integers": {"options": {"reset_mask": np.array([1, 0, 1])}},
    "a list as mask": {"options": {"reset_mask": [True, False, True]}},
    "a mask for other rows": {"options": {"reset_mask": np.array([True, False])}},
    "a matrix as mask": {"options": {"reset_mask": np.ones((3, 1), dtype=bool)}},
    "an empty mask": {"options": {"reset_mask": np.zeros(3, dtype=bool)}},
}


@pytest.mark.parametrize("name", BAD_RESETS)
def test_a_bad_reset_raises_and_changes_nothing(name: str) -> None:
    env, twin = tiny(3), tiny(3)
    for each in (env, twin):
        each.reset(seed=5)
        each.step(everywhere(WAIT, 3))
    with pytest.raises((ValueError, TypeError, gymnasium.error.Error), match=r"[Ss]eed|reset_mask") as caught:
        env.reset(**BAD_RESETS[name])
    assert str(caught.value)
    assert_same(env.state_dict(), twin.state_dict())


def test_after_every_kind_of_refusal_play_goes_on_as_if_nothing_had_been_asked() -> None:
    plain, abused, rng = tiny(2, horizon=8), tiny(2, horizon=8), np.random.default_rng(0)
    abused.reset(seed=6)
    insults = [lambda bad=bad: abused.step(bad) for bad in BAD_ACTIONS.values()]
    insults += [
        lambda: abused.reset(seed=[1]),
        lambda: abused.step({**any_actions(abused, rng), "op": np.array([9, 0])}),
    ]
    for number, (actions, *result) in enumerate(play(plain, 12, seed=6, illegal=0.3)):
        with pytest.raises((TypeError, ValueError)):
            insults[number % len(insults)]()
        assert_same(dict(enumerate(result)), dict(enumerate(abused.step(actions))))


@pytest.mark.parametrize("name", IDS)
def test_the_registered_environments_check_their_arguments_too(name: str) -> None:
    with pytest.raises(ValueError, match=r"reward is 'dense'; allowed: shaped, sparse, contribution, stream, loss"):
        gymnasium.make(name, reward="dense")
    with pytest.raises(ValueError, match=r"reward is 'dense'; allowed: shaped, sparse, contribution, stream, loss"):
        gymnasium.make_vec(name, num_envs=2, reward="dense")


def test_lists_from_json_serve_as_tuples() -> None:
    env = tiny(lesion_weights=[0, 1, 0], live_units=[1, 2])
    assert env.simulation.config.lesion_weights == (0, 1, 0)
    assert env.simulation.config.live_units == (1, 2)


def test_a_description_of_something_else_raises() -> None:
    env = tiny()
    observation, _ = env.reset(seed=0)
    with pytest.raises(ValueError, match=r"an observation has shape \(\d+,\); got"):
        env.describe_observation(observation)
    with pytest.raises(IndexError, match="row is 1; allowed: 0 to 0"):
        env.export_host(1)
    assert batch([(0, 0, 0, 0, 0)])["op"].tolist() == [0]
