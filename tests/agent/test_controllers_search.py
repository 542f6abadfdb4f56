"""The search for controls is seeded, finds what is there to find, and its results can be stored and played."""

import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from control_tools import Env, planting
from esper_agent.baselines.controllers import GrowEverything
from esper_agent.baselines.oracle import kinds_of_lesion, lesion_kind, lesions
from esper_agent.baselines.paired import make_test_env, play
from esper_agent.baselines.scripted import FixedSchedule, plain, timetable
from esper_agent.baselines.search import Constants, Schedule, Schedules, search
from esper_agent.baselines.tuned import CONTROLS, load_tuned, make_control, make_controls
from esper_agent.baselines.tuning import (
    RULES,
    balanced_instances,
    rule_constants,
    search_oracle,
    search_rule,
    search_schedule,
    seed_sizes,
)
from esper_env import Blend
from quick_life import QUICK_LIFE

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SETTINGS: dict[str, Any] = {"instances": "train", "horizon": 10, **QUICK_LIFE}


@pytest.fixture
def env() -> Env:
    return make_test_env("Esper-v0", 10, **SETTINGS)


def schedules(env: Env) -> Schedules:
    simulation = env.unwrapped.simulation  # type: ignore[attr-defined]
    return Schedules(3, simulation.head_sizes, simulation.config)


def test_a_search_finds_the_best_of_each_group() -> None:
    spaces = [Constants({"a": tuple(range(8)), "b": tuple(range(8))})] * 2
    targets = [{"a": 6, "b": 1}, {"a": 2, "b": 5}]
    group = np.array([0, 1, 1, 0])

    def closeness(candidates: Sequence[dict[str, Any]]) -> np.ndarray:
        misses = [sum(abs(one[k] - to[k]) for k in to) for one, to in zip(candidates, targets, strict=True)]
        return -np.array(misses, dtype=np.float64)[group]

    found = search(spaces, closeness, group, trials=200, seed=0)
    assert [one.best for one in found] == targets
    assert [one.score for one in found] == [0.0, 0.0]


def test_a_group_without_rows_keeps_what_it_began_with() -> None:
    spaces = [Constants({"a": (1, 2)})] * 2
    first = [[{"a": 2}, {"a": 2}]]
    scores = lambda candidates: np.array([-float(candidates[0]["a"])])  # noqa: E731
    found = search(spaces, scores, np.array([0]), trials=9, seed=0, first=first)
    assert [one.best for one in found] == [{"a": 1}, {"a": 2}]


def test_neighbours_differ_in_one_decision(env: Env) -> None:
    rng, space = np.random.default_rng(0), schedules(env)
    for _ in range(200):
        schedule = space.draw(rng)
        neighbour = space.neighbour(schedule, rng)
        ours, theirs = ({one.slot: one for one in each} for each in (schedule, neighbour))
        changed = [slot for slot in ours.keys() | theirs.keys() if ours.get(slot) != theirs.get(slot)]
        assert len(changed) == 1
        if changed[0] in ours and changed[0] in theirs:
            pairs = zip(*(vars(each[changed[0]]).values() for each in (ours, theirs)), strict=True)
            assert sum(mine != other for mine, other in pairs) == 1


def test_every_drawn_schedule_can_be_played(env: Env) -> None:
    rng, space = np.random.default_rng(0), schedules(env)
    drawn = [space.draw(rng) for _ in range(100)]
    assert {len(schedule) for schedule in drawn} == {0, 1, 2, 3}
    for schedule in drawn:
        timetable(schedule, space.sizes, space.config)


def test_a_limit_that_allows_no_seed_leaves_the_empty_schedule(env: Env) -> None:
    simulation = env.unwrapped.simulation  # type: ignore[attr-defined]
    space = Schedules(3, simulation.head_sizes, simulation.config, lambda schedule: not schedule)
    rng = np.random.default_rng(0)
    assert space.neighbour(space.draw(rng), rng) == ()


def test_sizes_of_seeds_are_what_the_environment_counts(env: Env) -> None:
    sizes = seed_sizes(env)
    schedule = [planting(0, 0, blueprint=4, blend=Blend.GATE), planting(1, 2, blueprint=0)]
    added = play(FixedSchedule(env, schedule), env, 0).added_parameters
    np.testing.assert_allclose(added, sizes[0, 4, Blend.GATE] + sizes[2, 0, Blend.ADD])
    np.testing.assert_allclose(play(GrowEverything(env, blueprint=1), env, 0).added_parameters, sizes[:, 1, 0].sum())


def test_balanced_instances_have_all_kinds_alike(env: Env) -> None:
    seeds, kinds = balanced_instances(env, 100)
    env.reset(seed=seeds)  # type: ignore[arg-type]
    np.testing.assert_array_equal(lesion_kind(lesions(env)), kinds)
    assert len(set(seeds)) == 10
    assert np.bincount(kinds, minlength=5).tolist() == [2, 2, 2, 2, 2]


def test_a_kind_that_is_never_drawn_does_not_stop_the_balance() -> None:
    env = make_test_env("Esper-v0", 8, **SETTINGS, lesion_weights=(0.0, 1.0, 0.0))
    _, kinds = balanced_instances(env, 0)
    assert len(kinds) == 8
    assert set(kinds) == {1, 2, 3}


def test_a_searched_schedule_keeps_to_its_limit_and_is_no_worse_than_waiting(env: Env) -> None:
    limit = 0.1
    found = search_schedule(env, 0, trials=6, most_added=limit, objective=lambda episodes: episodes.val_accuracy)
    episodes = play(FixedSchedule(env, found.best), env, 0)
    assert (episodes.added_parameters <= limit).all()
    assert found.score == episodes.val_accuracy.mean()
    assert found.score >= play(FixedSchedule(env, ()), env, 0).val_accuracy.mean()


@pytest.mark.parametrize("searched", ["rule", "schedule", "oracle"])
def test_searches_repeat_themselves_given_their_seed(searched: str) -> None:
    env = make_test_env("Esper-v0", 5, **SETTINGS | {"horizon": 8})

    def found(seed: int) -> Any:
        if searched == "rule":
            return search_rule(
                "try_and_prune", env, 0, trials=12, seed=seed, objective=lambda e: -abs(e.compute - 1.07)
            )
        search_for = search_schedule if searched == "schedule" else search_oracle
        return search_for(env, 0, trials=9, seed=seed, objective=lambda episodes: -abs(episodes.compute - 1.1))

    first = found(1)
    assert first == found(1)
    assert first != found(2)


def test_a_searched_oracle_grows_only_where_that_pays(env: Env) -> None:
    dear = make_test_env("Esper-v0", 10, **SETTINGS, rent=100.0)
    assert all(one.best == () for one in search_oracle(dear, 0, trials=4).values())
    table = search_oracle(env, 0, trials=4, objective=lambda episodes: episodes.added_parameters)
    assert set(table) == set(kinds_of_lesion(3))
    assert all(one.best != () for one in table.values())


@pytest.mark.parametrize("name", RULES)
def test_every_value_that_is_tried_for_a_rule_is_one_that_it_takes(name: str, env: Env) -> None:
    choices = rule_constants(name, env)
    for number in range(max(map(len, choices.values()))):
        RULES[name](env, **{key: values[number % len(values)] for key, values in choices.items()})


@pytest.mark.parametrize("env_id", ["Esper-v0", "Esper-Deep-v0"])
def test_the_shipped_constants_make_every_control(env_id: str) -> None:
    env = make_test_env(env_id, 2)
    tuned = load_tuned(env_id)
    assert tuned["environment"] == env_id
    assert tuple(make_controls(env, tuned)) == CONTROLS
    for name in ("grow_everything", "fixed_schedule"):
        make_control(name, env, tuned["equal_parameters"][name])


def test_where_fewer_controls_were_tuned_fewer_are_made() -> None:
    controls = make_controls(make_test_env("Esper-Text-v0", 2), load_tuned("Esper-Text-v0"))
    assert tuple(controls) == ("never", "random", "grow_everything", "plateau", "oracle")


def test_unknown_names_are_refused_with_those_that_exist(env: Env) -> None:
    with pytest.raises(ValueError, match=r"no tuned controls for 'Nowhere-v0'.*known: .*Esper-v0"):
        load_tuned("Nowhere-v0")
    with pytest.raises(ValueError, match="control is 'alawys'; allowed: never, random"):
        make_control("alawys", env, {})


def run(script: str, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a benchmark as its command line would."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setattr(sys, "argv", [f"{script}.py", "--env", "Esper-v0", *arguments])
    importlib.import_module(script).main()


def test_the_benchmark_plays_what_the_tuning_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned, out, settings = tmp_path / "tuned.json", tmp_path / "result.json", json.dumps({"horizon": 13, **QUICK_LIFE})
    few = ("--trials", "2", "--schedule-trials", "2", "--oracle-trials", "3", "--instances", "5")
    run("tune_controls", *few, "--settings", settings, "--out", str(tuned), monkeypatch=monkeypatch)
    files = ("--tuned", str(tuned), "--json", str(out))
    run("growth_controls", "--quick", "--episodes", "4", "--settings", settings, *files, monkeypatch=monkeypatch)
    measured = json.loads(out.read_text(encoding="utf-8"))
    assert measured["tuned_for_these_settings"]
    assert set(measured["arms"]) == {*CONTROLS, "grow_everything_equal", "fixed_schedule_equal"}
    assert measured["arms"]["never"]["test_accuracy_gain"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    told = capsys.readouterr().out
    verdicts = [line for line in told.splitlines() if line.startswith(("- PASS", "- FAIL"))]
    assert len(verdicts) == len(measured["criteria"]) == 9
    assert "PASS  (f) two seeds can be judged and pruned before a third is committed: 13 of 13 steps" in told


def test_intervals_cover_what_they_should(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    intervals = importlib.import_module("intervals")
    rng = np.random.default_rng(0)
    samples = rng.normal(0.3, 1.0, (200, 100))
    covered = [one.low <= 0.3 <= one.high for one in map(intervals.interval, samples)]
    assert 0.9 <= np.mean(covered) <= 0.98
    whole = rng.normal(1.0, 0.5, 100)
    half = intervals.share(whole / 2, whole)
    assert (half.mean, half.low, half.high) == pytest.approx((0.5, 0.5, 0.5))


def test_controls_that_were_not_tuned_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned, out, settings = tmp_path / "tuned.json", tmp_path / "result.json", json.dumps({"horizon": 13, **QUICK_LIFE})
    few = ("--trials", "1", "--schedule-trials", "0", "--oracle-trials", "1", "--instances", "5")
    rules = ("grow_everything", "plateau")
    run("tune_controls", "--rules", *rules, *few, "--settings", settings, "--out", str(tuned), monkeypatch=monkeypatch)
    files = ("--tuned", str(tuned), "--json", str(out))
    run("growth_controls", "--quick", "--episodes", "2", "--settings", settings, *files, monkeypatch=monkeypatch)
    assert set(json.loads(out.read_text(encoding="utf-8"))["arms"]) == {"never", "random", *rules, "oracle"}
    assert "2 test instances from seed 10000, 13 steps each" in capsys.readouterr().out


def test_schedules_are_stored_as_plain_data() -> None:
    stored: Schedule = (planting(1, 2),)
    assert json.loads(json.dumps(plain(stored))) == [
        {"step": 1, "slot": 2, "blueprint": 1, "blend": 0, "tempo": 0, "incubation": 2}
    ]
