"""What agents, baselines and reports may read of a vector environment, and that they read nothing else."""

from pathlib import Path

import esper_env  # noqa: F401 (registers the environments)
import gymnasium
import numpy as np
import pytest
from env_tools import play
from esper_env import HEADS, EsperVectorEnv

ROOT = Path(__file__).parents[2]


@pytest.fixture
def env() -> EsperVectorEnv:
    made = gymnasium.make_vec("Esper-v0", num_envs=16, horizon=4).unwrapped
    assert isinstance(made, EsperVectorEnv)
    made.reset(seed=3)
    return made


def test_the_accessors_agree_with_the_spaces_and_with_each_other(env):
    assert env.config.horizon == 4
    assert list(env.head_sizes) == list(HEADS)
    assert env.head_sizes == {head: int(space.n) for head, space in env.single_action_space.items()}
    assert len(env.schema.columns()) == env.single_observation_space.shape[0]
    assert env.head_sizes["blueprint"] == len(env.task.blueprints)
    units = [slot.outputs[0] for slot in env.task.host.slots]
    np.testing.assert_array_equal(env.lesioned, env.live_units < units)
    assert env.lesioned.any()
    assert not env.lesioned.all()
    assert env.state.stage.shape == env.lesioned.shape


def test_what_is_read_cannot_be_used_to_change_the_rows(env):
    env.state.stage.fill_(4)
    env.census.blueprint[:] = 1
    env.live_units[:] = 0
    env.lesioned[:] = True
    env.head_sizes.clear()
    assert (env.state.stage == 0).all()
    assert (env.census.blueprint == -1).all()
    assert (env.live_units > 0).all()
    assert not env.lesioned.all()
    assert list(env.head_sizes) == list(HEADS)
    for name in ("config", "task", "schema", "head_sizes", "live_units", "lesioned", "state", "census"):
        with pytest.raises(AttributeError):
            setattr(env, name, None)


def test_nothing_outside_the_environment_reads_its_simulation():
    sources = [*ROOT.glob("packages/esper-agent/src/**/*.py"), *ROOT.glob("benchmarks/*.py"), *ROOT.glob("docs/*.md")]
    allowed = "esper_env.mdp.simulation"  # the module, whose functions the throughput benchmark times
    reading = [path.name for path in sources if ".simulation" in path.read_text("utf-8").replace(allowed, "")]
    reading = sorted(
        {*reading} - {"strata.py", "fixed_sizes.py", "stream_regrowth.py"}
    )  # draws that have no accessor yet
    assert len(sources) > 50
    assert reading == []


@pytest.mark.ledger("Y13")
@pytest.mark.parametrize("task", ["digits_mlp", "text"])
def test_writing_to_the_data_of_one_environment_poisons_no_other(task: str) -> None:
    clean = EsperVectorEnv(2, task=task, learning_rate=(0.01, 0.01), live_units=(1, 2), horizon=3)
    for data in (EsperVectorEnv(1, task=task, live_units=(1, 2)).simulation.data, clean.task.load()):
        for split in (data.train, data.val, data.test):
            split.inputs.zero_()
            split.labels.numpy()[...] = 0
    later = EsperVectorEnv(2, task=task, learning_rate=(0.01, 0.01), live_units=(1, 2), horizon=3)
    for env in (clean, later):
        assert all(split.labels.any() for split in (env.simulation.data.train, env.simulation.data.test))
    for one, other in zip(play(clean, 3), play(later, 3), strict=True):
        np.testing.assert_array_equal(one[1], other[1])
