"""Saving and loading: a resumed run is the same run, bit for bit, wherever it was cut."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from esper_agent import FactoredRecurrentPPO
from esper_agent.algorithm.checkpoint import CheckpointError, save_checkpoint
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import LinearSchedule
from toy_envs import MaskedHeads, MockGrowth, hidden_cartpole_vector

SMALL: dict[str, Any] = {"n_steps": 16, "sequence_length": 8, "encoder_sizes": (8,), "lstm_size": 8, "head_hidden": 8}


def make_model(env: Any = None, **changes: Any) -> FactoredRecurrentPPO:
    return FactoredRecurrentPPO(env or MaskedHeads(4), seed=0, **{**SMALL, **changes})


def flatten(tree: Any, path: str = "") -> dict[str, Any]:
    if isinstance(tree, dict):
        return {k: v for key, part in tree.items() for k, v in flatten(part, f"{path}/{key}").items()}
    if isinstance(tree, list):
        return {k: v for key, part in enumerate(tree) for k, v in flatten(part, f"{path}/{key}").items()}
    return {path: tree}


def assert_same_state(first: FactoredRecurrentPPO, second: FactoredRecurrentPPO) -> None:
    ours, theirs = flatten(first.state_dict()), flatten(second.state_dict())
    assert set(ours) == set(theirs)
    for name, value in ours.items():
        same = torch.equal(value, theirs[name]) if isinstance(value, torch.Tensor) else value == theirs[name]
        assert same, name


class SaveAt(BaseCallback):
    """Saves once, at a step."""

    def __init__(self, step: int, path: Path) -> None:
        super().__init__()
        self.step, self.path = step, path

    def _on_step(self) -> bool:
        if self.num_timesteps == self.step:
            self.model.save(self.path)
        return True


@pytest.mark.ledger("X13")
@pytest.mark.parametrize("cut", [4, 64, 92, 128, 252])
@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_a_run_cut_at_any_step_continues_bit_for_bit(cut: int, mode: AutoresetMode, tmp_path: Path) -> None:
    path = tmp_path / "cut.ckpt"
    straight = make_model(MaskedHeads(4, mode=mode), learning_rate=LinearSchedule(1e-2, 1e-4, 1.0))
    straight.learn(256, SaveAt(cut, path))
    resumed = FactoredRecurrentPPO.load(path, MaskedHeads(4, mode=mode))
    resumed.restore(path)
    assert resumed.num_timesteps == cut
    resumed.learn(256 - cut, reset_num_timesteps=False)
    assert_same_state(straight, resumed)


def test_restoring_goes_on_in_mid_episode_and_loading_begins_anew(tmp_path: Path) -> None:
    model, restored = make_model(MockGrowth(4)), make_model(MockGrowth(4))
    model.learn(128)
    model.save(tmp_path / "m.ckpt")
    restored.restore(tmp_path / "m.ckpt")
    loaded = FactoredRecurrentPPO.load(tmp_path / "m.ckpt", MockGrowth(7))
    assert loaded.collector.starts.all()
    assert loaded.num_timesteps == model.num_timesteps
    for each in (model, restored, loaded):
        each.learn(128, reset_num_timesteps=False)
    assert_same_state(model, restored)


def test_an_environment_that_cannot_be_saved_starts_anew(tmp_path: Path) -> None:
    model = make_model(hidden_cartpole_vector(4))
    model.learn(128)
    model.save(tmp_path / "m.ckpt")
    loaded = FactoredRecurrentPPO.load(tmp_path / "m.ckpt", hidden_cartpole_vector(4))
    assert loaded.collector.starts.all()
    assert loaded.buffer.position == 0
    observation = np.zeros((3, 2), np.float32)
    ours, theirs = model.predict(observation, deterministic=True), loaded.predict(observation, deterministic=True)
    assert np.array_equal(ours[0], theirs[0])
    assert all(np.array_equal(a, b) for a, b in zip(ours[1], theirs[1], strict=True))
    loaded.learn(64, reset_num_timesteps=False)
    assert loaded.num_timesteps == 192


def test_schedules_survive_and_functions_must_be_given_again(tmp_path: Path) -> None:
    model = make_model(learning_rate=LinearSchedule(0.1, 0.0, 0.5), ent_coef={"op": 0.1, "slot": 0.2, "blueprint": 0.3})
    model.save(tmp_path / "a.ckpt")
    loaded = FactoredRecurrentPPO.load(tmp_path / "a.ckpt", MaskedHeads(4))
    assert loaded.learner.learning_rate(0.75) == model.learner.learning_rate(0.75) == 0.05
    assert loaded.learner.entropy.coefs(1.0) == {"op": 0.1, "slot": 0.2, "blueprint": 0.3}
    make_model(clip_range=lambda remaining: remaining).save(tmp_path / "b.ckpt")
    with pytest.raises(ValueError, match="clip_range was saved as a function; pass clip_range="):
        FactoredRecurrentPPO.load(tmp_path / "b.ckpt", MaskedHeads(4))
    loaded = FactoredRecurrentPPO.load(tmp_path / "b.ckpt", MaskedHeads(4), clip_range=0.3)
    assert loaded.learner.settings(0.0).clip_range == 0.3


def test_the_state_of_another_network_changes_nothing(tmp_path: Path) -> None:
    make_model(lstm_size=12).save(tmp_path / "wide.ckpt")
    model = make_model()
    before = flatten(model.state_dict())
    with pytest.raises(CheckpointError, match=r"the saved parameter .* has shape"):
        model.restore(tmp_path / "wide.ckpt")
    after = flatten(model.state_dict())
    assert all(
        torch.equal(value, after[name]) if isinstance(value, torch.Tensor) else value == after[name]
        for name, value in before.items()
    )


def test_the_optimiser_of_another_network_changes_nothing(tmp_path: Path) -> None:
    model = make_model()
    model.learn(64)
    state = model.state_dict()
    moments = state["optimizer"]
    last = str(len(moments) - 1)
    for damaged in ({**moments, "0": moments[last]}, {"0": moments["0"]}):
        fresh = make_model()
        before = {name: value.clone() for name, value in fresh.policy.state_dict().items()}
        save_checkpoint(tmp_path / "damaged.ckpt", {**state, "optimizer": damaged})
        with pytest.raises(CheckpointError, match="the saved"):
            fresh.restore(tmp_path / "damaged.ckpt")
        assert all(torch.equal(value, before[name]) for name, value in fresh.policy.state_dict().items())


@pytest.mark.ledger("V2", "V5")
def test_precision_and_compilation_are_on_record() -> None:
    state = make_model().state_dict()
    assert state["config"]["precision"] == "float32"
    assert state["compiled"] is False
