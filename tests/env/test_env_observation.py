"""The observation: as declared, inside its bounds, alive in every field, and never a window on the instance."""

from dataclasses import MISSING, fields
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from env_tools import IDS, WAIT, act, any_actions, everywhere, legal_actions, play, tiny
from esper_env import EsperVectorEnv, Op, Stage
from esper_env.mdp.observation import View
from esper_env.mdp.state import State
from esper_env.population.evaluation import Evaluation
from esper_env.population.training import TrainingReport

MEASURED_AT_RESET = {"val_loss", "val_metric", "val_metric_best"}
MEASURED = MEASURED_AT_RESET | {
    *("train_loss", "train_loss_change", "val_loss_change", "val_metric_change", "metric_history", "plateau"),
    *("contribution", "prospect", "block_gradient", "block_gradient_share", "seed_gradient"),
}


def field_of(label: str) -> str:
    """`slot1.stage[2]` is a number of the field `stage`."""
    return label.split(".")[-1].split("[")[0]


def labels(env: EsperVectorEnv) -> list[str]:
    return [label for label, _ in env.simulation.schema.columns()]


def column(env: EsperVectorEnv, observation: np.ndarray, label: str) -> np.ndarray:
    return observation[:, labels(env).index(label)]


@pytest.mark.ledger("T2")
@pytest.mark.parametrize("name", IDS)
def test_observations_of_random_play_follow_the_schema_and_stay_in_their_box(name: str) -> None:
    env = gymnasium.make_vec(name, num_envs=4, horizon=9)
    schema = env.unwrapped.simulation.schema
    size = sum(f.size for f in schema.host_fields) + schema.slots * sum(f.size for f in schema.slot_fields)
    assert env.single_observation_space.shape == (size,)
    assert env.single_observation_space.dtype == np.float32
    rng = np.random.default_rng(0)
    observation, infos = env.reset(seed=1)
    for number in range(12):
        assert observation.dtype == np.float32
        assert env.observation_space.contains(observation)
        actions = legal_actions(infos, rng) if number % 3 else any_actions(env.unwrapped, rng)
        observation, *_, infos = env.step(actions)


@pytest.mark.ledger("T2")
def test_observations_stay_in_their_box_when_hosts_explode() -> None:
    env = tiny(16, learning_rate=(0.01, 30.0), max_rollbacks=3, horizon=10)
    rolled_back = 0
    for _, observation, *_, infos in play(env, 40, seed=0, illegal=0.2):
        assert env.observation_space.contains(observation)
        rolled_back += infos["rolled_back"].sum()
    assert rolled_back > 10


def test_no_field_is_constant_over_random_play() -> None:
    env = tiny(12, learning_rate=(0.02, 5.0), horizon=16)
    seen = np.concatenate([observation for _, observation, *_ in play(env, 48, seed=1, illegal=0.2)])
    by_number: dict[str, set[float]] = {}
    for place, label in enumerate(labels(env)):
        by_number.setdefault(label.split(".")[-1], set()).update(np.unique(seen[:, place]).tolist())
    constant = [label for label, values in by_number.items() if len(values) < 2]
    assert constant == []


def test_no_field_of_the_default_environment_is_constant_over_random_play() -> None:
    env = gymnasium.make_vec("Esper-v0", num_envs=16, horizon=16, max_rollbacks=1)
    seen, rng = [], np.random.default_rng(2)
    _, infos = env.reset(seed=0)
    env.unwrapped.simulation.population.lr[0] = 50.0  # one host explodes, so that `rollbacks` moves
    for number in range(15):
        actions = any_actions(env.unwrapped, rng) if number % 5 == 4 else legal_actions(infos, rng)
        observation, *_, infos = env.step(actions)
        seen.append(observation)
    values = np.concatenate(seen)
    names = labels(env.unwrapped)
    for name in {field_of(label) for label in names}:
        places = [place for place, label in enumerate(names) if field_of(label) == name]
        assert len(np.unique(values[:, places])) > 1, name


def test_the_table_for_readers_has_one_line_per_number_with_its_meaning() -> None:
    env = tiny()
    observation, _ = env.reset(seed=0)
    observation, *_ = env.step(everywhere(act(Op.GERMINATE, slot=1, blueprint=2, blend=1, tempo=2), 1))
    lines = env.describe_observation(observation[0]).splitlines()
    assert len(lines) == observation.shape[1]
    by_label = {line.split()[0]: line for line in lines}
    assert set(by_label) == set(labels(env))
    assert by_label["slot1.blueprint[2]"].split()[1] == "1.0000"
    assert by_label["slot1.blend[1]"].split()[1] == by_label["slot1.tempo"].split()[1] == "1.0000"
    assert by_label["slot0.tempo"].split()[1] == "0.0000"
    assert by_label["slot1.stage[1]"].split()[1] == "1.0000"
    assert "validation metric" in by_label["val_metric"]
    assert all(len(line.split()) > 2 for line in lines)


def test_at_reset_only_measured_behaviour_differs_between_instances() -> None:
    env = EsperVectorEnv(64, task="digits_mlp")
    observation, _ = env.reset(seed=0)
    assert len(np.unique(env.simulation.instance.live_units, axis=0)) > 5
    differing = {field_of(labels(env)[place]) for place in np.flatnonzero(np.ptp(observation, axis=0) > 0)}
    assert differing == MEASURED_AT_RESET


def test_during_play_instances_show_only_through_what_is_measured() -> None:
    """The same actions on different instances, at learning rates that ruin no row."""
    env = tiny(16, horizon=14, learning_rate=(0.05, 0.1))
    env.reset(seed=0)
    script = [act(Op.GERMINATE, slot=1, blueprint=1), WAIT, act(Op.ADVANCE, slot=1), act(Op.GERMINATE), *[WAIT] * 3]
    for action in [*script, act(Op.FOSSILIZE, slot=1), act(Op.PRUNE)]:
        observation, *_, infos = env.step(everywhere(action, 16))
        assert not infos["invalid_action"].any()
        differing = {field_of(labels(env)[place]) for place in np.flatnonzero(np.ptp(observation, axis=0) > 0)}
        assert differing <= MEASURED


def test_the_observation_reads_the_state_and_nothing_of_the_instance() -> None:
    assert {field.name for field in fields(View)} & {"instance", "population", "lesions", "lr"} == set()
    env = tiny(4)
    for _, observation, *_ in play(env, 5):
        simulation = env.simulation
        simulation.instance.live_units[:] = 1
        simulation.instance.lr.fill_(123.0)
        simulation.instance.label_noise.fill_(0.9)
        shown = simulation.observation().numpy()
        np.testing.assert_array_equal(shown, observation)


@pytest.mark.ledger("X11")
def test_before_training_is_measured_its_fields_are_zero_and_flagged() -> None:
    env = tiny(2)
    observation, _ = env.reset(seed=0)
    missing = ["trained", *(f"metric_history_known[{k}]" for k in range(4))]
    missing += [f"slot{slot}.{flag}" for slot in range(3) for flag in ("contribution_known", "prospect_known")]
    hidden = [
        "train_loss",
        "train_loss_change",
        "slot0.block_gradient",
        "slot1.block_gradient_share",
        "metric_history[0]",
    ]
    for label in missing + hidden:
        assert (column(env, observation, label) == 0.0).all(), label
    observation, *_ = env.step(everywhere(act(Op.GERMINATE, slot=2), 2))
    known = ["trained", "metric_history_known[0]", "slot2.contribution_known", "slot2.prospect_known"]
    for label in known:
        assert (column(env, observation, label) == 1.0).all(), label
    for label in ("train_loss", "slot0.block_gradient", "slot2.seed_gradient", "metric_history[0]"):
        assert (column(env, observation, label) > 0.0).all(), label
    assert (column(env, observation, "metric_history_known[1]") == 0.0).all()


@pytest.mark.ledger("X11")
def test_a_change_is_reported_only_between_two_measured_steps() -> None:
    """The first step is rolled back, so the second has no measured predecessor."""
    env = tiny(1)
    env.reset(seed=0)
    env.simulation.population.body.values[0] = float("nan")
    observation, *_, infos = env.step(everywhere(WAIT, 1))
    assert infos["rolled_back"].all()
    assert column(env, observation, "trained") == 0.0
    observation, *_ = env.step(everywhere(WAIT, 1))
    assert column(env, observation, "trained") == 1.0
    assert column(env, observation, "train_loss_change") == 0.0
    observation, *_ = env.step(everywhere(WAIT, 1))
    assert column(env, observation, "train_loss_change") != 0.0


@pytest.mark.ledger("X11")
def test_flags_say_where_a_seed_was_measured() -> None:
    env = tiny(6, horizon=30)
    for _, observation, *_ in play(env, 29, seed=4):
        stage = env.simulation.state.stage.numpy()
        empty = np.isin(stage, (Stage.DORMANT, Stage.EMBARGOED))
        for slot in range(3):
            known = column(env, observation, f"slot{slot}.contribution_known")
            np.testing.assert_array_equal(known == 1.0, ~empty[:, slot])
            prospect_known = column(env, observation, f"slot{slot}.prospect_known")
            np.testing.assert_array_equal(prospect_known == 1.0, stage[:, slot] == Stage.TRAINING)
            for value, flag in (("contribution", known), ("prospect", prospect_known), ("size", known)):
                assert (column(env, observation, f"slot{slot}.{value}")[flag == 0.0] == 0.0).all()


@pytest.mark.ledger("X11")
@pytest.mark.parametrize("record", [Evaluation, TrainingReport, State])
def test_measurements_have_no_default(record: Any) -> None:
    assert all(field.default is MISSING and field.default_factory is MISSING for field in fields(record))


@pytest.mark.ledger("R12")
@pytest.mark.parametrize("name", IDS)
def test_a_seed_with_alpha_zero_contributes_exactly_zero_and_is_marked_as_measured(name: str) -> None:
    grown, plain = (gymnasium.make_vec(name, num_envs=2, warmup_steps=0).unwrapped for _ in range(2))
    grown.reset(seed=0), plain.reset(seed=0)
    for action in (act(Op.GERMINATE, slot=1, blueprint=1), WAIT):
        observation, *_ = grown.step(everywhere(action, 2))
        plain.step(everywhere(WAIT, 2))
        assert (column(grown, observation, "slot1.contribution") == 0.0).all()
        known = column(grown, observation, "slot1.contribution_known") == 1.0
        np.testing.assert_array_equal(known, grown.state.looked_at[:, 1])
        for measured in ("loss", "metric", "train_loss", "block_grad"):
            mine, theirs = (getattr(env.simulation.state, measured) for env in (grown, plain))
            assert torch.equal(mine, theirs), measured
