"""Paired play: the same instance, initial weights and data order for every policy; what an episode is worth."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from baseline_tools import Env, quick_env
from esper_agent.baselines.scripted import Actions, Baseline, Floats, GrowEverything, GrowOnPlateau, NeverGrow
from esper_agent.evaluation.paired import GrowthEpisodes, play
from esper_env import HEADS, Op

ROWS = 4


@pytest.fixture
def env() -> Env:
    return quick_env("Esper-v0", ROWS, horizon=10)


class Curious(Baseline):
    """Never grows, and remembers what it saw first and the instances that it met."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.env = env
        self.seen: list[Floats] = []

    def act(self, observation: Floats, actions: Actions) -> Actions:
        self.seen.append(observation.copy())
        self.instance = self.env.unwrapped.simulation.instance  # type: ignore[attr-defined]
        self.met = (self.instance.key.clone().numpy(), self.instance.live_units.copy())
        return actions


class CuriousGrower(Curious):
    """The same, but it grows from the fourth step on."""

    def act(self, observation: Floats, actions: Actions) -> Actions:
        super().act(observation, actions)
        if len(self.seen) > 3:
            self.choose(actions, Op.GERMINATE, self.may(observation, Op.GERMINATE))
        return actions


def test_all_share_instance_weights_and_data_order_until_they_act_differently(env: Env) -> None:
    waits, grows = Curious(env), CuriousGrower(env)
    play(waits, env, seed=5)
    play(grows, env, seed=5)
    for ours, theirs in zip(waits.met, grows.met, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for step in range(4):
        np.testing.assert_array_equal(waits.seen[step], grows.seen[step])
    assert not np.array_equal(waits.seen[4], grows.seen[4])


def test_playing_again_gives_the_same_and_other_seeds_give_something_else(env: Env) -> None:
    first = play(NeverGrow(env), env, seed=5)
    play(GrowEverything(env), env, seed=5)
    again = play(NeverGrow(env), env, seed=5)
    for name, values in vars(first).items():
        np.testing.assert_array_equal(values, vars(again)[name])
    assert not np.array_equal(first.test_accuracy, play(NeverGrow(env), env, seed=50).test_accuracy)


def test_a_list_of_seeds_names_the_instance_of_each_row() -> None:
    env = quick_env("Esper-v0", ROWS, horizon=10, dtype="float64")  # no answer hangs on rounding
    forward, backward = (play(GrowOnPlateau(env), env, seeds) for seeds in ([5, 6, 7, 8], [8, 7, 6, 5]))
    np.testing.assert_allclose(forward.test_accuracy, backward.test_accuracy[::-1], atol=1e-6)
    np.testing.assert_allclose(forward.test_accuracy, play(GrowOnPlateau(env), env, 5).test_accuracy, atol=1e-6)


def test_shaping_drops_out_of_the_discounted_return_but_for_the_first_potential() -> None:
    def played(reward: str) -> tuple[GrowthEpisodes, Any]:
        env = quick_env("Esper-v0", ROWS, horizon=10, reward=reward)
        env.reset(seed=5)
        potential = env.unwrapped.simulation.state.potential.clone().numpy()  # type: ignore[attr-defined]
        return play(GrowEverything(env), env, seed=5), potential

    (shaped, first), (sparse, _) = played("shaped"), played("sparse")
    np.testing.assert_allclose(shaped.discounted_return, sparse.discounted_return - first, atol=1e-9)
    assert np.abs(shaped.episode_return - (sparse.episode_return - first)).min() > 0.01


def test_compute_counts_the_parameters_of_every_step(env: Env) -> None:
    assert (play(NeverGrow(env), env, seed=5).compute == 1.0).all()
    grown = play(GrowEverything(env, blueprint=0), env, seed=5)
    # Three seeds, one per step from the first step on; all are there from the third of ten steps on.
    assert (grown.compute < 1.0 + grown.added_parameters).all()
    assert (grown.compute > 1.0 + 0.8 * grown.added_parameters).all()


def alone(seed: int, **settings: Any) -> tuple[float, float, int]:
    """Return, committed validation accuracy and length of an episode without growth in a single environment."""
    env = gymnasium.make("Esper-v0", instances="test", **settings)
    env.reset(seed=seed)
    total, steps, over, info = 0.0, 0, False, {}
    while not over:
        _, reward, over, _, info = env.step(dict.fromkeys(HEADS, 0))
        total, steps = total + float(reward), steps + 1
    return total, info["committed_metric"], steps


def test_rows_that_end_in_ruin_count_up_to_their_end() -> None:
    settings: dict[str, Any] = {"horizon": 8, "learning_rate": (0.1, 3.0), "max_rollbacks": 0, "collapse_loss": 1.3}
    settings["dtype"] = "float64"  # learning as fast as this is chaotic
    env = quick_env("Esper-v0", 6, **settings)
    episodes = play(NeverGrow(env), env, seed=0)
    returns, accuracies, lengths = zip(*(alone(seed, **settings) for seed in range(6)), strict=True)
    assert len(set(lengths)) > 1
    np.testing.assert_allclose(episodes.episode_return, returns, atol=1e-4)
    np.testing.assert_allclose(episodes.val_accuracy, accuracies, atol=1e-4)
    assert (episodes.compute == 1.0).all()
