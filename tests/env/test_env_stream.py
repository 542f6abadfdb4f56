"""The stream: phases of classes that come and go, drawn as declared, trained on, measured, remembered and saved."""

from typing import Any

import numpy as np
import pytest
import torch
from env_tools import TINY, any_actions, assert_close, assert_same, play, tiny
from esper_env import EsperEnv, EsperVectorEnv
from esper_env.config import EsperConfig
from esper_env.mdp.instances import Instance, draw, minibatches
from esper_env.mdp.stream import phase_starts, places_in_phase
from esper_env.tasks import TASKS
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

TASK = TASKS["digits_mlp"]
DATA = TASK.load()
KEYS = torch.arange(3000) * 7919 + 3
STREAM: dict[str, Any] = {
    **{"phases": (2, 3), "phase_classes": (2, 6), "phase_steps": 4, "horizon": 20, "reward": "stream"},
    **{"collapse_loss": 1e6, "spike_loss": 1e6, "learning_rate": (0.02, 0.05)},
}


def stream(n: int, **changed: Any) -> EsperVectorEnv:
    return tiny(n, **{**STREAM, **changed})


def drawn(**changed: Any) -> Instance:
    return draw(KEYS, TASK, DATA, EsperConfig(task="digits_mlp", **{**STREAM, **changed}))


@settings(max_examples=60, deadline=None)
@given(fewest=st.integers(1, 4), more=st.integers(1, 4), steps=st.integers(1, 9), spare=st.integers(-8, 30))
def test_phases_begin_at_0_last_as_long_as_declared_and_are_as_many_as_declared(
    fewest: int, more: int, steps: int, spare: int
) -> None:
    most = fewest + more
    horizon = max(most, most * steps + spare)
    shortest = min(steps, horizon // most)
    config = EsperConfig(task="any", phases=(fewest, most), phase_steps=steps, horizon=horizon)
    starts = phase_starts(KEYS[:300], config)
    assert (starts[:, 0] == 0).all()
    count = (starts < horizon).sum(dim=1)
    assert set(count.tolist()) == set(range(fewest, most + 1))
    for begun, phases in zip(starts.tolist(), count.tolist(), strict=True):
        assert min(np.diff([*begun[:phases], horizon])) >= shortest


def test_the_number_of_phases_the_beginnings_and_the_classes_are_uniform() -> None:
    instance = drawn()
    count = (instance.phase_starts < 20).sum(dim=1)
    assert stats.binomtest(int((count == 2).sum()), len(KEYS), 1 / 2).pvalue > 1e-6
    second = instance.phase_starts[count == 2, 1]
    assert stats.chisquare(torch.bincount(second)[4:17].numpy()).pvalue > 1e-6
    sizes = instance.phase_members.sum(dim=2)
    for size in range(2, 7):
        for phase in sizes.T:
            assert stats.binomtest(int((phase == size).sum()), len(KEYS), 1 / 5).pvalue > 1e-6
    assert stats.chisquare(instance.phase_members.sum(dim=(0, 1)).numpy()).pvalue > 1e-6


def test_phases_have_classes_of_their_own() -> None:
    members = drawn().phase_members.double()
    first, second = members[:, 0].flatten(), members[:, 1].flatten()
    assert abs(np.corrcoef(first.numpy(), second.numpy())[0, 1]) < 5 / len(KEYS) ** 0.5


def test_a_step_trains_on_every_sample_of_its_phase_in_the_subset_alike_and_on_no_other() -> None:
    instance, step = drawn(label_noise=(0.0, 0.0)), torch.full_like(KEYS, 9)
    phase = (instance.phase_starts <= 9).sum(dim=1) - 1
    batches = minibatches(instance, step, TASK, DATA)
    present = instance.phase_members[torch.arange(len(KEYS)), phase]
    assert present.gather(1, batches.labels.flatten(1)).all()
    for row in range(20):
        subset = instance.subset[row, : instance.subset_size[row]]
        assert set(batches.index[row].flatten().tolist()) <= set(subset.tolist())


@settings(max_examples=30, deadline=None)
@given(counted=st.lists(st.booleans(), min_size=6, max_size=6), size=st.integers(1, 6))
def test_places_in_a_phase_are_those_that_count_each_as_often(counted: list[bool], size: int) -> None:
    fitting = [place for place in range(size) if counted[place]] or list(range(size))
    places = places_in_phase(torch.tensor([counted]), torch.tensor([size]), torch.arange(5 * len(fitting))[None])
    assert sorted(places[0].tolist()) == sorted(fitting * 5)


def accuracies(env: EsperVectorEnv, row: int) -> np.ndarray[Any, Any]:
    """Of every phase of a row's episode, the exported network's accuracy on the validation samples of its classes."""
    val, members = env.simulation.data.val, env.simulation.instance.phase_members[row]
    with torch.no_grad():
        right = env.export_host(row)(val.inputs).argmax(dim=-1) == val.labels
    return np.array([right[own[val.labels]].double().mean() for own in members])


def test_metrics_forgetting_and_recovery_are_those_of_the_exported_network() -> None:
    env = stream(3, max_rollbacks=0)
    starts = None
    best, first, changes = np.zeros((3, 3)), np.zeros(3), 0
    for step, (_, _, _, _, _, infos) in enumerate(play(env, 18, seed=3)):
        starts = env.simulation.instance.phase_starts.numpy()
        phase = (starts <= step).sum(axis=1) - 1
        np.testing.assert_array_equal(infos["phase"], phase)
        for row in range(3):
            own = accuracies(env, row)
            now = own[phase[row]]
            assert infos["metric"][row] == pytest.approx(now, abs=1e-6)
            if step == 0:
                continue
            if step in starts[row, 1:]:
                first[row], changes = now, changes + 1
                assert infos["recovery"][row] == 0.0
            elif phase[row]:
                assert infos["recovery"][row] == pytest.approx(now - first[row], abs=1e-6)
            earlier = [best[row, k] - own[k] for k in range(phase[row])]
            assert infos["forgetting"][row] == pytest.approx(np.mean(earlier) if earlier else 0.0, abs=1e-6)
            best[row, phase[row]] = max(best[row, phase[row]], now)
        if step == 0:
            best[:, 0] = env.state.phase_best[:, 0].numpy()
    assert changes >= 3


def test_the_loss_is_that_of_the_samples_of_the_phase() -> None:
    env = stream(2)
    for _ in play(env, 9, seed=1):
        pass
    val, instance = env.simulation.data.val, env.simulation.instance
    for row in range(2):
        of_phase = instance.phase_members[row, (instance.phase_starts[row] < 9).sum() - 1][val.labels]
        with torch.no_grad():
            logits = env.export_host(row)(val.inputs[of_phase])
        expected = torch.nn.functional.cross_entropy(logits, val.labels[of_phase])
        assert float(env.state.loss[row]) == pytest.approx(float(expected), rel=1e-4)


def test_the_test_split_is_that_of_the_last_phase() -> None:
    env = stream(2, autoreset_mode="disabled")
    for _ in play(env, 20, seed=5):
        pass
    report, test, instance = env.evaluate_test(), env.simulation.data.test, env.simulation.instance
    for row in range(2):
        of_phase = instance.phase_members[row, (instance.phase_starts[row] < 20).sum() - 1][test.labels]
        with torch.no_grad():
            right = env.export_host(row)(test.inputs[of_phase]).argmax(dim=-1) == test.labels[of_phase]
        assert float(report.metric[row]) == pytest.approx(float(right.double().mean()), abs=1e-6)


def test_the_reward_counts_every_step_and_the_committed_network_at_the_end() -> None:
    env = stream(4, online_weight=3.0, autoreset_mode="disabled")
    for _, _, _, _, _, infos in play(env, 20, seed=2):
        np.testing.assert_allclose(infos["reward_terms"]["online_metric"], 3.0 * infos["metric"] / 20, rtol=1e-9)
    np.testing.assert_array_equal(infos["reward_terms"]["final_metric"], infos["committed_metric"])


def test_the_control_is_measured_on_the_phase_too() -> None:
    env = stream(3, control_interval=1, prune_age=1000)
    env.reset(seed=4)
    wait = {head: np.zeros(3, dtype=np.int64) for head in env.heads}
    for _ in range(12):
        *_, infos = env.step(wait)
        np.testing.assert_allclose(infos["control_metric"], infos["metric"], atol=1e-6)


def test_a_row_is_the_single_environment() -> None:
    vector = stream(4)
    steps = list(play(vector, 16, seed=5))
    single = EsperEnv(**vars(vector.config))
    single.reset(seed=7)
    for actions, observation, reward, _, _, infos in steps:
        one = single.step({head: int(values[2]) for head, values in actions.items()})
        assert_close({"observation": one[0]}, {"observation": observation[2]}, 1e-4)
        assert one[1] == pytest.approx(reward[2], abs=1e-4)
        for name in ("phase", "forgetting", "recovery"):
            assert one[4][name] == pytest.approx(infos[name][2], abs=1e-4)


@pytest.mark.parametrize("cut", [3, 11])
def test_copies_and_saved_environments_go_on_alike_across_changes(cut: int) -> None:
    env, resumed, branched = (stream(4) for _ in range(3))
    for _ in play(env, cut, seed=1):
        pass
    resumed.load_state_dict(env.state_dict())
    branched.branch(range(4), range(4), source=env)
    rng = np.random.default_rng(0)
    for _ in range(8):
        actions = any_actions(env, rng)
        mine, others = env.step(actions), [other.step(actions) for other in (resumed, branched)]
        for theirs in others:
            for one, other in zip(mine, theirs, strict=True):
                assert_same(one, other)


def test_no_observation_tells_the_phase() -> None:
    assert stream(1).schema == tiny(1).schema


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"phases": (0, 2)}, r"phases is \(0, 2\); allowed: two ascending integers from 1"),
        ({"phase_classes": (2, 11)}, r"phase_classes is \(2, 11\); allowed: at most the data's 10"),
        ({"measurements": "partial"}, "measurements is 'partial' with phases"),
    ],
)
def test_streams_that_cannot_be_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EsperVectorEnv(1, **{"task": TINY, **STREAM, **changed})


def test_a_text_has_no_classes_that_come_and_go() -> None:
    with pytest.raises(ValueError, match="allowed: more than one only where samples are classified"):
        EsperVectorEnv(1, **{**STREAM, "task": "text", "live_units": (1, 2)})
