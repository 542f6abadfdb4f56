"""Learning from records: losses against references, a toy with an exact solution, resuming, and the commands."""

import itertools
import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from esper_agent.algorithm.pull import Pull
from esper_agent.cli import main
from esper_agent.networks.action_spec import ActionSpec
from esper_agent.networks.distribution import flat_index
from esper_agent.offline.config import ImitationConfig, QLearningConfig
from esper_agent.offline.dataset import Recorded, load_recorded
from esper_agent.offline.q_learning import expectile_loss, greedy, of_actions, td_targets, terms
from esper_agent.offline.sequences import EpisodeBatch, as_sequences
from esper_agent.offline.training import OfflineLearning, OfflinePlan, resume_offline, split, start_offline
from esper_agent.ppo import FactoredRecurrentPPO
from esper_agent.runs.directory import RunConfig, RunDirectory, RunError
from esper_agent.runs.stopping import Interrupted
from esper_agent.runs.training import adopt, load_agent
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from offline_tools import recorded

TINY = {"encoder_sizes": [16], "lstm_size": 16, "head_hidden": 16, "entity_size": 8}
pytestmark = pytest.mark.usefixtures("datasets")
PLANS = {
    "imitate": ImitationConfig(epochs=4, minibatch=4, held_out=0.25),
    "iql": QLearningConfig(epochs=4, minibatch=4, held_out=0.25),
}


def quiet(_: str) -> None:
    """Say nothing."""


class TwoDoors(gymnasium.Env[Any, Any]):
    """First door: the left pays 0, the right 0.2. Second door: the left pays 1, the right 0. Then it is over."""

    observation_space = spaces.Discrete(3)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.door = 0
        return 0, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        reward = (0.0, 0.2)[action] if self.door == 0 else (1.0, 0.0)[action]
        self.door += 1
        return self.door, reward, self.door == 2, False, {}


def through_the_doors(*paths: tuple[int, int]) -> Recorded:
    """Episodes that take these actions at the two doors."""
    episodes = [
        SimpleNamespace(
            observations=np.array([0, 1, 2]),
            actions=np.array(path),
            rewards=np.array([(0.0, 0.2)[path[0]], (1.0, 0.0)[path[1]]]),
            terminations=np.array([False, True]),
            infos=None,
        )
        for path in paths
    ]
    return Recorded("toy", "TwoDoors", {}, TwoDoors.observation_space, TwoDoors.action_space, episodes, {})


def play(model: FactoredRecurrentPPO) -> float:
    """What the agent is paid for both doors."""
    env, state, total = TwoDoors(), None, 0.0
    observation, _ = env.reset()
    for _ in range(2):
        action, state = model.predict(observation, state, deterministic=True)
        observation, reward, *_ = env.step(int(action))
        total += reward
    return total


LEFT_RIGHT_MIX = through_the_doors(*[(0, 0)] * 8, *[(1, 1)] * 32)  # the best path, right then left, is not recorded
EXPECTILE = 0.9


def learnt(method: str, config: Any) -> OfflineLearning:
    model = FactoredRecurrentPPO(TwoDoors(), seed=0, **TINY)
    learning = OfflineLearning(model, OfflinePlan(method, "toy", config), LEFT_RIGHT_MIX, seed=0)
    while not learning.finished:
        learning.learn_epoch()
    learning.conclude()
    return learning


def test_implicit_q_learning_finds_the_exact_values_and_a_path_that_nobody_took() -> None:
    config = QLearningConfig(
        epochs=120, minibatch=20, held_out=0, expectile=EXPECTILE, trace=0.0, learning_rate=0.01, target_rate=0.1
    )
    learning = learnt("iql", config)
    # A fifth of the records gain 1 at the second door, the others 0: t p (1 - v) = (1 - t) (1 - p) v.
    second = EXPECTILE * 0.2 / (EXPECTILE * 0.2 + (1 - EXPECTILE) * 0.8)
    gamma, units = learning.model.gamma, learning.model.policy.values
    exact = {(0, 0): gamma * second, (0, 1): 0.2 + gamma * second, (1, 0): 1.0, (1, 1): 0.0}
    data, method = learning.train, learning.method
    entries = units.denormalize(torch.stack([terms(net, data.batch) for net in method.targets]).mean(0))  # type: ignore[attr-defined]
    for (door, action), value in exact.items():
        assert float(entries[0, action, 0, door]) == pytest.approx(value, abs=0.1), (door, action)
    assert play(learning.model) == pytest.approx(1.2)


def test_cloning_the_same_records_plays_what_most_of_them_did() -> None:
    learning = learnt("imitate", ImitationConfig(epochs=60, minibatch=20, held_out=0, learning_rate=0.01))
    assert play(learning.model) == pytest.approx(0.2)
    evaluation = learning.model.learner.evaluate(learning.train.batch)
    assert evaluation.distribution.p[0, 1, 0, :2].tolist() == pytest.approx([0.8, 0.8], abs=0.05)


def test_the_cross_entropy_counts_the_heads_that_the_op_uses_and_no_others() -> None:
    recorded("esper/ce-v0", "random", episodes=4)
    model = FactoredRecurrentPPO("Esper-v0", n_envs=2, seed=0, **TINY)
    plan = OfflinePlan("imitate", "esper/ce-v0", ImitationConfig(held_out=0))
    learning = OfflineLearning(model, plan, load_recorded("esper/ce-v0"), seed=0)
    data, total, steps = learning.train, 0.0, 0
    with torch.no_grad():
        distribution = model.learner.evaluate(data.batch).distribution
    for episode, time in itertools.product(range(4), range(12)):
        op, *arguments = data.batch.actions[:, episode, time].tolist()
        total += float(distribution.log_p[0, op, episode, time])
        used = {0: 0, 1: 4}.get(op, 1)  # waiting uses no other head, growing all four, the rest the slot alone
        for head, value in enumerate(arguments[:used]):
            total += float(distribution.log_p[1 + op * 4 + head, value, episode, time])
        steps += 1
    _, measured = learning.method.loss(data)
    assert float(measured["policy_loss"]) == pytest.approx(-total / steps, rel=1e-4)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_the_greedy_action_is_the_best_of_all_legal_joint_actions(seed: int, by_op: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    spec = ActionSpec("dict", ("op", "slot", "kind"), (3, 2, 4), by_op=by_op, masked=True)
    entries = torch.randn(spec.cells, spec.width, 1, generator=generator)
    legal = (torch.rand(spec.cells, spec.width, 1, generator=generator) < 0.6) & spec.padding_mask()[..., None]
    legal[:, 0] = True
    scores = entries + torch.where(legal, 0.0, -1e4)
    best, value = greedy(spec, scores)
    everything = torch.tensor(list(itertools.product(*map(range, spec.sizes)))).T
    values = of_actions(scores.expand(-1, -1, everything.shape[1]), flat_index(spec, everything))
    assert float(value) == pytest.approx(float(values.max()), rel=1e-5)
    assert best[:, 0].tolist() == everything[:, values.argmax()].tolist()


@given(st.floats(0.5, 0.99), st.floats(0.05, 0.95))
def test_the_expectile_loss_is_least_at_the_expectile(expectile: float, share: float) -> None:
    value = torch.tensor(expectile * share / (expectile * share + (1 - expectile) * (1 - share)), requires_grad=True)
    loss = share * expectile_loss(1 - value, expectile) + (1 - share) * expectile_loss(0 - value, expectile)
    loss.backward()
    assert value.grad is not None
    assert float(value.grad) == pytest.approx(0.0, abs=1e-4)


def cut_and_ended(rewards: torch.Tensor) -> EpisodeBatch:
    """Two episodes of two steps and one more observation: the first ended, the second was cut."""
    steps = torch.tensor([[True, True, False]] * 2)
    terminated = torch.tensor([[False, True, False], [False, False, False]])
    return EpisodeBatch(None, steps, rewards, terminated, rewards)  # type: ignore[arg-type]


def test_targets_rest_on_the_value_after_a_cut_and_on_nothing_after_an_end() -> None:
    rewards, values = torch.tensor([[1.0, 2.0, 0.0]] * 2), torch.tensor([[5.0, 6.0, 7.0]] * 2)
    one_step = td_targets(cut_and_ended(rewards), values, 0.5, 0.0)
    assert one_step[:, :2].tolist() == [[1 + 3, 2], [1 + 3, 2 + 3.5]]
    whole = td_targets(cut_and_ended(rewards), values, 0.5, 1.0)
    assert whole[:, :2].tolist() == [[1 + 1, 2], [1 + 0.5 * 5.5, 2 + 3.5]]
    mixed = td_targets(cut_and_ended(rewards), values, 0.5, 0.5)
    assert mixed[0, 0] == 1 + 0.5 * (0.5 * 6 + 0.5 * 2)


@pytest.mark.parametrize(
    "change", [{"memory": "none"}, {"normalize_values": False}, {"masks": "marginal"}, {"masks": "none"}]
)
@pytest.mark.parametrize("method", PLANS)
def test_every_kind_of_agent_learns_from_records(method: str, change: dict[str, Any]) -> None:
    recorded("esper/kinds-v0", "random", "oracle", episodes=4)
    model = FactoredRecurrentPPO("Esper-v0", n_envs=2, seed=0, **TINY, **change)
    plan = OfflinePlan(method, "esper/kinds-v0", PLANS[method])
    learning = OfflineLearning(model, plan, load_recorded("esper/kinds-v0"), seed=0)
    metrics, judged = learning.learn_epoch()
    assert metrics["minibatches"] == 1
    assert np.isfinite([metrics["loss"], judged["loss"]]).all()
    assert not learning.events(metrics)


def test_held_out_episodes_are_apart_from_those_that_are_learnt_from() -> None:
    model = FactoredRecurrentPPO(TwoDoors(), seed=0, **TINY)
    data = as_sequences(LEFT_RIGHT_MIX, model)
    train, held_out = split(data, 0.25, seed=3)
    seen = torch.cat([train.batch.index[:, 0], held_out.batch.index[:, 0]])
    assert (train.count, held_out.count) == (30, 10)
    assert seen.sort().values.tolist() == data.batch.index[:, 0].tolist()


@pytest.mark.parametrize("method", PLANS)
def test_a_stopped_run_goes_on_as_if_it_had_not_stopped(tmp_path: Path, method: str) -> None:
    recorded("esper/few-v0", "random", "oracle", episodes=12)
    plan, config = OfflinePlan(method, "esper/few-v0", PLANS[method]), RunConfig("", n_envs=2, agent=TINY)
    whole, broken = RunDirectory(tmp_path / "whole"), RunDirectory(tmp_path / "broken")
    start_offline(whole, plan, config, quiet)

    def stop(learning: OfflineLearning) -> None:
        if learning.epoch == 2:
            raise KeyboardInterrupt

    config = RunConfig("", n_envs=2, agent=TINY, checkpoint_every=1)
    with pytest.raises(KeyboardInterrupt):
        start_offline(broken, plan, config, quiet, stop)
    assert len(broken.checkpoints()) == 1  # after the first epoch
    resume_offline(broken, method, quiet)
    rows = [[row["train/loss"] for row in run.metrics()] for run in (whole, broken)]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 4
    agents = [load_agent(run.read_config(), run.latest_checkpoint()) for run in (whole, broken)]
    ours, theirs = (agent.policy.state_dict() for agent in agents)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    other = "iql" if method == "imitate" else "imitate"
    with pytest.raises(RunError, match=f"holds a run of {method}"):
        resume_offline(broken, other, quiet)


def test_the_policy_with_the_lowest_held_out_loss_is_kept() -> None:
    recorded("esper/keep-v0", "random", episodes=8)
    model = FactoredRecurrentPPO("Esper-v0", n_envs=2, seed=0, **TINY)
    config = ImitationConfig(epochs=40, minibatch=2, held_out=0.25, patience=4, learning_rate=0.02)
    learning = OfflineLearning(model, OfflinePlan("imitate", "x", config), load_recorded("esper/keep-v0"), seed=0)
    losses = []
    while not learning.finished:
        losses.append(learning.learn_epoch()[1]["loss"])
    assert len(losses) < 40  # random play cannot be foretold: more learning makes it worse
    assert len(losses) == losses.index(min(losses)) + 1 + 4
    learning.conclude()
    assert learning.method.judge(learning.held_out)["loss"] == pytest.approx(min(losses), rel=1e-5)


def test_the_commands_lead_from_a_record_to_a_fine_tuned_agent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded("esper/told-v0", "oracle", episodes=24)
    clone, tuned = tmp_path / "clone", tmp_path / "tuned"
    small = [part for name, value in TINY.items() for part in ("--set", f"{name}={json.dumps(value)}")]
    assert main(["imitate", "esper/told-v0", "--run-dir", str(clone), "--epochs", "6", *small]) == 0
    out = capsys.readouterr().out
    assert "accuracy by head: op " in out
    assert "GERMINATE" in out
    run = RunDirectory(clone)
    assert run.read_config().env == {"horizon": 12}
    rows = run.metrics()
    assert rows[-1]["held_out/loss"] < rows[0]["held_out/loss"]
    assert {"train/entropy/op", "train/grad_norm_pre", "held_out/recall/1"} <= set(rows[-1])
    assert main(["evaluate", str(clone), "--episodes", "2"]) == 0
    assert "oracle" in capsys.readouterr().out
    assert main(["train", "--resume", "--run-dir", str(clone)]) == 1
    assert "learns from a dataset" in capsys.readouterr().err
    options = ["--from", str(clone), "--pull", "0.5", "--n-envs", "4", "--total-timesteps", "240", "--no-progress"]
    assert main(["train", "--run-dir", str(tuned), *options]) == 0
    assert RunDirectory(tuned).read_config().env_id == "Esper-v0"
    pulls = [row["train/pull"] for row in RunDirectory(tuned).metrics()]
    assert pulls[0] < 0.1
    assert main(["train", "--resume", "--run-dir", str(tuned), "--no-progress"]) == 0


def test_a_fine_tuned_agent_begins_with_the_policy_values_and_units_of_its_start(tmp_path: Path) -> None:
    recorded("esper/start-v0", "oracle", episodes=8)
    run, plan = RunDirectory(tmp_path / "run"), OfflinePlan("imitate", "esper/start-v0", PLANS["imitate"])
    start_offline(run, plan, RunConfig("", n_envs=2, agent=TINY), quiet)
    clone = load_agent(run.read_config(), run.latest_checkpoint())
    model = FactoredRecurrentPPO("Esper-v0", n_envs=2, seed=5, n_steps=10, **TINY)
    adopt(model, run.latest_checkpoint(), pull=0.0)
    before = model.policy.state_dict()
    assert all(torch.equal(value, before[name]) for name, value in clone.policy.state_dict().items())
    known = int(model.policy.values.moments.updates)
    model.learn(20)
    assert int(model.policy.values.moments.updates) == known + 1  # once for the rollout; the units were not begun anew
    with pytest.raises(Exception, match="does not fit"):
        adopt(FactoredRecurrentPPO("Esper-v0", n_envs=2, seed=5), run.latest_checkpoint(), pull=0.0)


def test_the_pull_is_the_divergence_of_the_joint_policy_and_fades() -> None:
    recorded("esper/pull-v0", "random", episodes=2)
    model = FactoredRecurrentPPO("Esper-v0", n_envs=2, seed=0, **TINY)
    data = as_sequences(load_recorded("esper/pull-v0"), model)
    pull = Pull(model.policy, 0.5)
    assert float(pull(model.learner.evaluate(data.batch), data.batch).detach().abs().max()) < 1e-5
    with torch.no_grad():
        model.policy.decoder.heads["op"].bias.add_(torch.tensor([1.0, 0.0, -1.0, 0.0, 0.0]))
        model.policy.decoder.heads["slot"].bias[0] += 0.7
    evaluation = model.learner.evaluate(data.batch)
    start = pull.start(data.batch.observations, data.batch.state, data.batch.starts, 0, data.batch.legality.penalty)
    expected = divergence(start.distribution, evaluation.distribution)
    assert pull(evaluation, data.batch)[0, 3].item() == pytest.approx(expected, rel=1e-4)
    model.learner.pull = pull
    assert [model.learner.settings(left).pull for left in (1.0, 0.5, 0.0)] == [0.5, 0.25, 0.0]


def divergence(one: Any, other: Any) -> float:
    """KL at step 3 of the first episode, by a sum over all joint actions."""
    total = 0.0
    for action in itertools.product(*map(range, one.spec.sizes)):
        chosen = torch.tensor(action)[:, None, None].expand(-1, *one.scores.shape[2:])
        p, q = (float(each.log_prob(chosen)[0, 3].detach()) for each in (one, other))
        total += float(np.exp(p)) * (p - q)
    return total


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["esper/nothing-v0"], "there is no dataset esper/nothing-v0"),
        (["nothing"], "dataset is 'nothing'; allowed"),
        (["esper/bad-v0", "--epochs", "0"], "epochs is 0; allowed"),
        (["esper/bad-v0", "--held-out", "1.5"], "held_out is 1.5; allowed"),
        (["esper/bad-v0", "--set", "lstm_size=0"], "lstm_size is 0; allowed"),
    ],
)
def test_bad_wishes_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    recorded("esper/bad-v0", "random", episodes=2)
    assert main(["iql", *options, "--run-dir", str(tmp_path / "run")]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_run_refuses_another_dataset_of_the_same_name(datasets: Path, tmp_path: Path) -> None:
    recorded("esper/same-v0", "random", episodes=4)
    run, plan = RunDirectory(tmp_path / "run"), OfflinePlan("imitate", "esper/same-v0", PLANS["imitate"])
    start_offline(run, plan, RunConfig("", n_envs=2, agent=TINY), quiet)
    (datasets / "esper" / "same-v0").rename(datasets / "esper" / "kept-v0")
    recorded("esper/same-v0", "random", episodes=4, seed=9)
    with pytest.raises(RunError, match="its hash differs"):
        resume_offline(run, "imitate", quiet)


def test_a_signal_saves_and_the_run_goes_on(tmp_path: Path) -> None:
    recorded("esper/signal-v0", "random", episodes=6)
    run, plan = RunDirectory(tmp_path / "run"), OfflinePlan("imitate", "esper/signal-v0", PLANS["imitate"])

    def send(learning: OfflineLearning) -> None:
        if learning.epoch == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        start_offline(run, plan, RunConfig("", n_envs=2, agent=TINY), quiet, send)
    resume_offline(run, "imitate", quiet)
    assert len(run.metrics()) == 4
