"""What a user gets without asking is what the published results were made with."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import esper_env  # noqa: F401 (registers the environments)
import gymnasium
import pytest
from esper_agent import FactoredRecurrentPPO, PPOConfig
from esper_agent.algorithm.defaults import default_n_envs, default_settings
from esper_agent.algorithm.schedules import describe
from esper_agent.baselines.agents import AGENTS, TUNED
from esper_agent.cli import main
from esper_agent.comparison.study import Study
from esper_env.wrappers import VectorDiscreteActions
from toy_envs import MaskedHeads


def published(env_id: str = "Esper-v0") -> dict[str, Any]:
    """Every setting of the agent that is compared."""
    agent: Any = AGENTS["ours"].build(env_id, num_envs=4, seed=0)
    return plain(agent.model)


def plain(model: FactoredRecurrentPPO) -> dict[str, Any]:
    settings: dict[str, Any] = describe(asdict(model.config))
    return settings


def differences(mine: dict[str, Any], theirs: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {name: (mine[name], theirs[name]) for name in theirs if mine[name] != theirs[name]}


@pytest.mark.ledger("Y16")
@pytest.mark.parametrize("env_id", ["Esper-v0", "Esper-Deep-v0"])
def test_the_class_has_the_published_settings_field_by_field(env_id: str) -> None:
    made = {
        "id": FactoredRecurrentPPO(env_id, n_envs=2),
        "vector": FactoredRecurrentPPO(gymnasium.make_vec(env_id, 2, autoreset_mode="next_step")),
    }
    for model in made.values():
        assert not differences(plain(model), published(env_id))
    alone = plain(FactoredRecurrentPPO(gymnasium.make(env_id)))
    assert differences(alone, published(env_id)) == {"n_minibatches": (1, 2)}  # one sequence is one minibatch


@pytest.mark.ledger("Y16")
def test_the_command_trains_with_the_published_settings_and_rows(tmp_path: Path) -> None:
    assert (
        main(["train", "Esper-v0", "--run-dir", str(tmp_path / "run"), "--total-timesteps", "1", "--no-progress"]) == 0
    )
    config = json.loads((tmp_path / "run" / "config.json").read_text(encoding="utf-8"))
    assert not differences(config["agent"], published())
    tuned = json.loads((TUNED / "Esper-v0.json").read_text(encoding="utf-8"))
    assert config["n_envs"] == tuned["rows"] == Study.__dataclass_fields__["rows"].default == default_n_envs("Esper-v0")


@pytest.mark.ledger("Y16")
def test_the_shipped_settings_of_the_comparison_are_the_ones_of_the_file() -> None:
    tuned = json.loads((TUNED / "Esper-v0.json").read_text(encoding="utf-8"))["agents"]["ours"]["settings"]
    mine = plain(FactoredRecurrentPPO("Esper-v0", n_envs=2))
    annealed = {"learning_rate", *(("ent_coef",) if tuned["decay"] else ())}
    for name, value in tuned.items():
        if name == "ent_coef":
            assert {head: weight["start"] for head, weight in mine[name].items()} == value
        elif name in annealed:
            assert mine[name] == {"schedule": "linear", "start": value, "end": 0.0, "end_fraction": 1.0}
        elif name != "decay":
            assert mine[name] == value


@pytest.mark.ledger("Y16")
def test_what_is_given_is_taken_and_other_environments_have_the_general_settings() -> None:
    given = plain(FactoredRecurrentPPO("Esper-v0", n_envs=2, n_steps=12, gae_lambda=0.5, ent_coef=0.1))
    asked = {"n_steps": 12, "sequence_length": 12, "gae_lambda": 0.5, "ent_coef": 0.1}
    assert {name: value for name, (value, _) in differences(given, published()).items()} == asked
    general = describe(asdict(PPOConfig()))
    assert default_settings(VectorDiscreteActions(gymnasium.make_vec("Esper-v0", 4)), {}) == {}
    for env in ("CartPole-v1", MaskedHeads(4)):
        assert not differences(plain(FactoredRecurrentPPO(env)), general)
    assert default_n_envs("CartPole-v1") == 8 == FactoredRecurrentPPO("CartPole-v1").buffer.n_envs
