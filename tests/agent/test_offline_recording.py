"""Recorded datasets: Minari reads them without us, they hold what was played, and playing them again gives the same."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
import pytest
import torch
from esper_agent.cli import main
from esper_agent.evaluation.episodes import play_episodes
from esper_agent.offline.dataset import load_recorded, require_fit
from esper_agent.offline.recording import Recording, find_player, make_env, record, shares
from esper_agent.offline.sequences import as_sequences
from esper_agent.ppo import FactoredRecurrentPPO
from esper_agent.runs.directory import RunConfig, RunDirectory, RunError
from esper_agent.runs.training import start_run
from hypothesis import given
from hypothesis import strategies as st
from offline_tools import QUICK, recorded

pytestmark = pytest.mark.usefixtures("datasets")


def test_minari_reads_every_part_of_a_recorded_dataset() -> None:
    digest = recorded("esper/two-v0", "random", "plateau", episodes=6, seed=5)
    dataset = minari.load_dataset("esper/two-v0")
    assert (dataset.total_episodes, dataset.total_steps) == (6, 6 * 12)
    about = dataset.storage.metadata["esper"]
    assert about["sha256"] == digest
    assert [(one["policy"], one["episodes"]) for one in about["policies"]] == [("random", 3), ("plateau", 3)]
    assert {"esper-env", "esper-agent", "torch", "minari"} <= set(about["versions"])
    told = list(dataset.storage.get_episode_metadata(range(6)))
    assert [(one["seed"], one["policy"]) for one in told] == [
        (5 + i, "random" if i < 3 else "plateau") for i in range(6)
    ]
    episode = dataset[0]
    assert episode.observations.shape == (13, *dataset.observation_space.shape)
    assert {name: part.shape for name, part in episode.actions.items()} == dict.fromkeys(dataset.action_space, (12,))
    assert episode.terminations.tolist() == [False] * 11 + [True]
    assert set(episode.infos["action_mask"]) == set(episode.infos["action_mask_by_op"]) == set(dataset.action_space)
    terms = sum(episode.infos["reward_terms"].values())
    assert np.allclose(terms[1:], episode.rewards, atol=1e-6)


def test_the_recovered_environment_plays_a_recorded_episode_again() -> None:
    recorded("esper/again-v0", "random", episodes=4, seed=3)
    dataset = minari.load_dataset("esper/again-v0")
    env, episode = dataset.recover_environment(), dataset[2]
    observation, info = env.reset(seed=episode_seed(dataset, 2))
    for time in range(12):
        assert np.allclose(observation, episode.observations[time], atol=1e-5)
        for name, mask in info["action_mask_by_op"].items():
            assert np.array_equal(mask, episode.infos["action_mask_by_op"][name][time])
        action = {name: int(column[time]) for name, column in episode.actions.items()}
        observation, reward, *_, info = env.step(action)
        assert np.isclose(reward, episode.rewards[time], atol=1e-5)


def episode_seed(dataset: Any, index: int) -> int:
    return int(next(iter(dataset.storage.get_episode_metadata([index])))["seed"])


def test_recorded_returns_are_those_of_plain_play() -> None:
    recorded("esper/plain-v0", "plateau", episodes=4, seed=7)
    recording = Recording("Esper-v0", "esper/x-v0", (("plateau", 1.0),), rows=4, env=QUICK)
    env = make_env(recording)
    played = play_episodes(find_player("plateau", recording, env), env, seed=7)
    sums = [episode.rewards.sum() for episode in load_recorded("esper/plain-v0").episodes]
    assert np.allclose(sums, played.episode_return)


def test_the_same_command_records_the_same_hash_and_another_seed_another() -> None:
    assert recorded("esper/a-v0", "random") == recorded("esper/b-v0", "random", seed=0)
    assert recorded("esper/c-v0", "random", seed=1) != recorded("esper/d-v0", "random")


def test_the_rows_do_not_change_what_is_recorded_of_a_rule() -> None:
    recorded("esper/narrow-v0", "plateau", episodes=5, rows=2)
    recorded("esper/wide-v0", "plateau", episodes=5, rows=5)
    narrow, wide = (load_recorded(f"esper/{name}-v0").episodes for name in ("narrow", "wide"))
    for one, other in zip(narrow, wide, strict=True):
        assert all(np.array_equal(one.actions[head], other.actions[head]) for head in one.actions)
        assert np.allclose(one.rewards, other.rewards, atol=1e-5)


def test_the_planner_the_oracle_and_a_trained_agent_can_be_recorded(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    config = RunConfig("Esper-v0", n_envs=4, total_timesteps=48, env=QUICK, agent={"n_steps": 12})
    start_run(run, config, progress_bar=False)
    record(Recording("Esper-v0", "esper/three-v0", (("oracle", 2.0), (str(run.path), 1.0)), 3, rows=2, env=QUICK))
    record(Recording("Esper-v0", "esper/planner-v0", (("planner", 1.0),), 1, rows=1, env={"horizon": 6}))
    assert len(load_recorded("esper/three-v0").episodes) == 3
    assert len(load_recorded("esper/planner-v0").episodes) == 1


@given(st.integers(1, 500), st.lists(st.floats(0.01, 100.0), min_size=1, max_size=6))
def test_shares_sum_to_the_total_and_are_off_by_less_than_one(total: int, weights: list[float]) -> None:
    counts = shares(total, weights)
    exact = total * np.array(weights) / sum(weights)
    assert sum(counts) == total
    assert np.all(np.abs(counts - exact) < 1)


def test_an_interrupted_recording_leaves_no_dataset(datasets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("esper_agent.offline.recording.update_hash", stop)
    with pytest.raises(KeyboardInterrupt):
        recorded("esper/half-v0", "random")
    assert [path.name for path in (datasets / "esper").iterdir()] == ["namespace_metadata.json"]


def test_sequences_hold_the_episodes_and_score_every_recorded_action_as_legal() -> None:
    recorded("esper/read-v0", "random", "oracle", episodes=6)
    dataset = load_recorded("esper/read-v0")
    model = FactoredRecurrentPPO("Esper-v0", n_envs=2, seed=0)
    data = as_sequences(dataset, model)
    assert data.steps.sum() == data.batch.decisions.sum() == 6 * 12
    log_p = model.learner.evaluate(data.batch).distribution.entry_log_prob(data.batch.entries).sum(0)
    assert (log_p[data.steps] > -50).all()  # an illegal value would have -10,000
    last = dataset.episodes[3]
    discounts = model.gamma ** np.arange(12)
    assert np.isclose(float(data.returns[3, 0]), float(last.rewards @ discounts), rtol=1e-5)
    assert torch.equal(data.batch.observations[3, 12], torch.from_numpy(last.observations[12]))
    slot = data.batch.actions[1, 3, :12].numpy()
    used = last.actions["op"] != 0
    assert np.array_equal(slot[used], last.actions["slot"][used])


def test_reading_leaves_a_dataset_as_it_was(datasets: Path) -> None:
    recorded("esper/kept-v0", "random", episodes=2)
    files = sorted(datasets.rglob("*.*"))
    before = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()]
    for file in files:
        file.chmod(0o444 if file.is_file() else 0o555)
    as_sequences(load_recorded("esper/kept-v0"), FactoredRecurrentPPO("Esper-v0", n_envs=2, seed=0))
    assert before == [hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()]
    for file in files:
        file.chmod(0o755)


def edit_metadata(datasets: Path, name: str, **changes: Any) -> None:
    file = datasets / name / "data" / "metadata.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("absent", "there is no dataset esper/absent-v0"),
        ("name", "dataset is 'Mixed'; allowed"),
        ("empty", "is empty"),
        ("cut", "cannot be read"),
        ("version", "does not support"),
        ("unregistered", "which is not registered"),
        ("steps", "incomplete"),
        ("garbled", "cannot be read"),
    ],
)
def test_bad_datasets_are_refused_in_one_line(datasets: Path, fault: str, said: str) -> None:
    name = "Mixed" if fault == "name" else f"esper/{fault}-v0"
    if fault not in ("absent", "name"):
        recorded(name, "random", episodes=2)
    data = datasets / "esper" / f"{fault}-v0" / "data" / "main_data.hdf5"
    if fault == "empty":
        edit_metadata(datasets, name, total_episodes=0, total_steps=0)
    elif fault == "cut":
        data.write_bytes(data.read_bytes()[: data.stat().st_size // 2])
    elif fault == "version":
        edit_metadata(datasets, name, minari_version="9.9.9")
    elif fault == "unregistered":
        spec = json.loads((data.parent / "metadata.json").read_text())["env_spec"].replace("Esper-v0", "Other-v0")
        edit_metadata(datasets, name, env_spec=spec)
    elif fault == "steps":
        edit_metadata(datasets, name, total_steps=999)
    elif fault == "garbled":
        (data.parent / "metadata.json").write_text("{")
    with pytest.raises(RunError, match=said) as caught:
        load_recorded(name)
    assert "\n" not in str(caught.value)


def test_a_dataset_without_masks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper_agent.offline.episodes.INFOS", ("metric",))
    recorded("esper/unmasked-v0", "random", episodes=2)
    dataset, model = load_recorded("esper/unmasked-v0"), FactoredRecurrentPPO("Esper-v0", n_envs=2, seed=0)
    with pytest.raises(RunError, match="no action_mask in its infos"):
        as_sequences(dataset, model)


@pytest.mark.parametrize(("env_id", "said"), [("Esper-Deep-v0", "observations"), ("Esper-CNN-v0", "blueprints")])
def test_a_dataset_of_other_slots_or_blueprints_is_refused(env_id: str, said: str) -> None:
    recorded("esper/mine-v0", "random", episodes=2)
    env = gymnasium.make_vec(env_id, num_envs=1)
    with pytest.raises(RunError, match=f"^{said} of the dataset"):
        require_fit(load_recorded("esper/mine-v0"), env)
    require_fit(load_recorded("esper/mine-v0"), gymnasium.make_vec("Esper-v0", num_envs=1))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--env", "CartPole-v1", "--policy", "random"], "cannot record in CartPole-v1"),
        (["--env", "Esper-v9", "--policy", "random"], "cannot record in Esper-v9"),
        (["--env", "Esper-v0", "--policy", "nobody"], "agent is 'nobody'; allowed: ours"),
        (["--env", "Esper-v0", "--policy", "ours"], "policy 'ours' cannot be recorded"),
        (["--env", "Esper-v0", "--policy", "random=0"], "each with a weight above 0"),
        (["--env", "Esper-v0", "--policy", "random", "--episodes", "0"], "episodes is 0; allowed"),
    ],
)
def test_recording_refuses_bad_wishes_in_one_line(
    datasets: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    assert main(["record", *options, "--out", "esper/no-v0"]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (datasets / "esper" / "no-v0").exists()


def test_a_dataset_is_not_overwritten() -> None:
    recorded("esper/first-v0", "random", episodes=2)
    with pytest.raises(RunError, match="is there already"):
        recorded("esper/first-v0", "random", episodes=2)


def test_record_and_minaris_own_commands_work_together(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--env", "Esper-v0", "--policy", "random=3", "--policy", "never", "--episodes", "4", "--rows", "2"]
    assert main(["record", *options, "--env-set", "horizon=4", "--out", "esper/shown-v0"]) == 0
    assert "sha256: " in capsys.readouterr().out
    for command in (["list", "local"], ["show", "esper/shown-v0"]):
        told = subprocess.run(
            [Path(sys.executable).with_name("minari"), *command], env=os.environ, capture_output=True, text=True
        )
        assert told.returncode == 0, told.stderr
        assert "shown" in told.stdout
