"""A reward or an observation that is not a number does not end learning."""

import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from esper_agent import FactoredRecurrentPPO
from esper_agent.algorithm.quarantine import NonFiniteError
from esper_agent.algorithm.rollout_buffer import RolloutBuffer
from esper_agent.cli import main
from esper_agent.runs.directory import RunDirectory
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.logger import KVWriter, Logger
from toy_envs import MaskedHeads
from update_tools import SMALL, collect, make_model


class Poisoned(MaskedHeads):
    """Gives one number that is none at each of the given steps, in row 2 (which truncates nothing) or row 3."""

    def __init__(self, num_envs: int = 6, **options: Any) -> None:
        self.poison, self.where, self.row, self.at = math.nan, "reward", 2, (5,)
        super().__init__(num_envs, **options)
        self.steps = 0

    def step(self, actions: Any) -> Any:
        observations, rewards, terminated, truncated, infos = super().step(actions)
        self.steps += 1
        if self.steps in self.at:
            if self.where == "reward":
                rewards[self.row] = self.poison
            else:
                observations[self.row, 1] = self.poison
        return observations, rewards, terminated, truncated, infos


def poisoned(where: str, poison: float, at: tuple[int, ...] = (5,), **options: Any) -> Poisoned:
    env = Poisoned(**options)
    env.where, env.poison, env.at = where, poison, at
    return env


class Capture(KVWriter):
    """Keeps everything that is logged."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:  # noqa: ARG002
        self.rows.append(dict(key_values))


def numbers(model: FactoredRecurrentPPO) -> list[torch.Tensor]:
    """Parameters, running moments and the optimiser's moments."""
    moments = [part for state in model.learner.optimizer.state_dict().values() for part in state.values()]
    return [*model.policy.state_dict().values(), *moments, *model.collector.state]


@pytest.mark.ledger("Y1")
@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["reward", "observation"])
def test_learning_goes_on_after_one_number_that_is_none(
    where: str, poison: float, mode: AutoresetMode, capsys: pytest.CaptureFixture[str]
) -> None:
    model, capture = make_model(poisoned(where, poison, (5, 40), mode=mode), target_kl=1e9), Capture()
    model.set_logger(Logger(None, [capture]))
    model.learn(6 * 24 * 3)
    assert [row["train/minibatches"] for row in capture.rows] == [6, 6, 6]
    assert [row["train/quarantined"] for row in capture.rows] == [1, 2, 2]
    assert all(part.isfinite().all() for part in numbers(model) if part.is_floating_point())
    assert all(row["train/nonfinite"] == 0 for row in capture.rows)
    console = capsys.readouterr().err
    assert console.count("non-finite rewards or observations") == 1
    assert "beyond 100 the training stops" in console


@pytest.mark.ledger("Y1")
@pytest.mark.parametrize("where", ["reward", "observation"])
def test_a_quarantined_transition_is_in_no_moment_no_advantage_and_no_loss(where: str) -> None:
    """Whatever else the bad step says, nothing that is learnt changes."""
    trained = []
    for filler in (0.0, 7.0):
        env = poisoned(where, math.nan, (7,))
        model = make_model(env)
        batch = collect(model)
        bad = ~model.buffer.decisions
        at = [(6, 2)] if where == "reward" else [(6, 2), (7, 2)]  # the step into the observation, and the one from it
        assert bad.nonzero().tolist() == [list(place) for place in at]
        assert len(batch.decided) == 6 * 24 - len(at)
        model.buffer.rewards[bad] = filler
        model.update()
        trained.append([part.clone() for part in model.policy.state_dict().values()])
    assert all(torch.equal(first, second) for first, second in zip(*trained, strict=True))


@pytest.mark.ledger("Y1")
def test_the_steps_before_a_quarantined_one_rest_on_its_value() -> None:
    buffer = RolloutBuffer(
        4, 1, 4, 6, make_model().action_spec, (torch.zeros(1, 1, 2), torch.zeros(1, 1, 2))
    )  # only its shapes are used
    values, after = torch.tensor([[1.0], [2.0], [3.0], [4.0]]), torch.tensor([[2.0], [3.0], [4.0], [5.0]])
    buffer.rewards[:] = 1.0
    buffer.decisions[:] = torch.tensor([[True], [True], [False], [True]])
    model = make_model()
    advantages = model.learner._advantages(buffer, values, after, 0.9)
    gamma = model.gamma
    second = 1 + gamma * 3 - 2
    assert advantages[:, 0].tolist() == pytest.approx(
        [1 + gamma * 2 - 1 + gamma * 0.9 * second, second, 0.0, 1 + gamma * 5 - 4]
    )


@pytest.mark.ledger("Y1")
def test_an_episode_whose_truncated_end_is_no_number_teaches_nothing_at_its_end() -> None:
    class BadEnd(MaskedHeads):
        def step(self, actions: Any) -> Any:
            result = super().step(actions)
            for row in np.flatnonzero(result[3]):
                result[4]["final_obs"][row][0] = np.nan
            return result

    model = make_model(BadEnd(6))
    collect(model)
    assert (~model.buffer.decisions).equal(model.buffer.truncated)
    assert model.buffer.truncated.any()
    model.update()
    assert all(part.isfinite().all() for part in numbers(model) if part.is_floating_point())


@pytest.mark.ledger("Y1")
def test_more_than_the_declared_number_stops_the_training() -> None:
    model = make_model(poisoned("reward", math.nan, tuple(range(1, 100))), max_nonfinite=30)
    with pytest.raises(NonFiniteError, match=r"in 48 transitions; allowed: 30 \(max_nonfinite\)"):
        model.learn(6 * 24 * 4)
    assert model.learner.counters.rollouts == 1
    alone = make_model(poisoned("reward", math.nan, tuple(range(1, 100)), num_envs=3), n_minibatches=1)
    alone.env.row = slice(None)
    with pytest.raises(NonFiniteError, match="others to learn from"):
        alone.learn(3 * 24)


@pytest.mark.ledger("Y1")
def test_a_run_that_stops_for_it_fails_in_one_line_and_keeps_its_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gymnasium.register(
        "Poisoned-v0",
        vector_entry_point=lambda num_envs: poisoned("reward", math.nan, (30, 31, 55, 56), num_envs=num_envs),
    )
    try:
        small = [f"--set={name}={value}" for name, value in SMALL.items() if name != "encoder_sizes"]
        arguments = ["train", "Poisoned-v0", "--run-dir", str(tmp_path / "run"), "--n-envs", "6", "--no-progress"]
        limits = ["--checkpoint-every", "1", "--total-timesteps", str(6 * 24 * 9), "--set", "max_nonfinite=3"]
        assert main([*arguments, *limits, *small]) == 1
    finally:
        del gymnasium.registry["Poisoned-v0"]
    console = capsys.readouterr().err
    assert console.count("esper-agent: warning: non-finite") == 1
    assert console.strip().splitlines()[-1].startswith("esper-agent: error: non-finite rewards or observations in 4")
    assert RunDirectory(tmp_path / "run").latest_checkpoint().name == f"step_{6 * 24 * 2:012d}.ckpt"
