"""Agents that come with the package: small files that score what their cards say, and load as safely as any other."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from esper_agent import FactoredRecurrentPPO, cli, pretrained
from esper_agent.algorithm.archive import CheckpointError
from esper_agent.evaluation.paired import make_test_env, play
from esper_agent.pretrained import DIRECTORY, pretrained_ids, read_card
from PIL import Image

ID = "Esper-v0"


def test_there_is_one_for_the_first_rung() -> None:
    assert ID in pretrained_ids()
    assert sorted(file.stem for file in DIRECTORY.glob("*.ckpt")) == pretrained_ids()


@pytest.mark.parametrize("env_id", pretrained_ids())
def test_a_shipped_agent_scores_what_its_card_says(env_id: str) -> None:
    """Another CPU rounds otherwise: hosts then train a little differently, and a decision between two actions that are
    nearly as likely may fall the other way, after which that episode is another. So most instances are compared one by
    one, within what single samples of the validation split change, and all of them by their mean.
    """
    card = read_card(env_id)
    expected, results = np.array(card["check"]["returns"]), card["results"]
    env, first = make_test_env(env_id, len(expected)), card["check"]["first_seed"]
    found = play(FactoredRecurrentPPO.pretrained(env_id), env, first).discounted_return
    assert np.mean(np.abs(found - expected) < 0.02) >= 0.75
    assert found.mean() == pytest.approx(expected.mean(), abs=0.03)
    assert results["agent"]["gain_in_return"]["low"] > 0, "an agent that does not beat never growing is not shipped"


@pytest.mark.parametrize("env_id", pretrained_ids())
def test_a_card_says_what_a_user_must_know(env_id: str) -> None:
    card = read_card(env_id)
    assert card["env_id"] == env_id
    assert (DIRECTORY / f"{env_id}.ckpt").stat().st_size < 500_000
    assert card["results"]["instances"] == "test"
    assert {"agent", "never", "plateau"} <= set(card["results"])
    assert card["training"]["steps"] > 0
    assert card["limits"]
    assert card["provenance"]["versions"]["esper-env"]


def test_an_id_without_one_gets_one_error_that_lists_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    message = f"no pretrained agent for 'Esper-v9'; there are: {', '.join(pretrained_ids())}"
    with pytest.raises(ValueError, match=message):
        FactoredRecurrentPPO.pretrained("Esper-v9")
    for command in ("evaluate", "play"):
        assert cli.main([command, "--pretrained", "Esper-v9"]) == 1
        assert capsys.readouterr().err == f"esper-agent: error: {message}\n"


def test_a_file_that_is_not_the_one_of_its_card_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(DIRECTORY / f"{ID}.json", tmp_path)
    monkeypatch.setattr(pretrained, "DIRECTORY", tmp_path)
    for content in (None, b"something else"):
        if content is not None:
            (tmp_path / f"{ID}.ckpt").write_bytes(content)
        with pytest.raises(
            CheckpointError, match="not there, or not the file that its card speaks of; install esper-agent again"
        ):
            FactoredRecurrentPPO.pretrained(ID)


def test_it_goes_on_learning() -> None:
    agent = FactoredRecurrentPPO.pretrained(ID, ID, n_envs=2)
    before = agent.num_timesteps
    agent.learn(60, reset_num_timesteps=False)
    assert agent.num_timesteps == before + 60


def test_an_episode_is_shown_in_the_terminal_and_filmed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["play", "--pretrained", ID, "--env-set", "horizon=2"]
    assert cli.main(command) == 0
    shown = capsys.readouterr().out
    assert shown.count("  step ") == 3
    assert "  step 2/2  " in shown
    assert "metric of the committed network on the test split: 0." in shown
    film = tmp_path / "film.gif"
    assert cli.main([*command, "--gif", str(film)]) == 0
    assert Image.open(film).n_frames == 3
    assert cli.main([*command, "--gif", str(tmp_path / "nowhere" / "film.gif")]) == 1
    assert "esper-agent: error: cannot write" in capsys.readouterr().err


def test_it_is_evaluated_beside_the_references(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["evaluate", "--pretrained", ID, "--episodes", "3", "--env-set", "horizon=4", "--json"]
    assert cli.main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["env_id"] == ID
    assert {"agent", "never"} <= set(found)
