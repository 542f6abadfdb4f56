"""The search for baselines is seeded, finds what is there to find, and its results can be stored and played."""

import importlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from baseline_tools import Env, planting
from esper_agent.baselines.oracle import lesion_kind, lesion_kinds, lesions
from esper_agent.baselines.schedules import FixedSchedule, timetable
from esper_agent.baselines.scripted import GrowEverything
from esper_agent.baselines.search import Search, search_groups
from esper_agent.baselines.tuned import (
    BASELINES,
    PUBLISHED,
    SEARCHED,
    TUNABLE,
    load_tuned,
    make_baseline,
    make_baselines,
)
from esper_agent.baselines.tuning import (
    Schedule,
    balanced_instances,
    constants_to_try,
    first_schedules,
    schedule_choices,
    schedule_of,
    search_oracle,
    search_schedule,
    seed_sizes,
)
from esper_agent.comparison.participants import tuned_baseline
from esper_agent.evaluation.paired import GrowthEpisodes, make_test_env, play
from esper_env import Blend
from quick_life import QUICK_LIFE

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SETTINGS: dict[str, Any] = {"instances": "train", "horizon": 10, **QUICK_LIFE}


@pytest.fixture
def env() -> Env:
    return make_test_env("Esper-v0", 10, **SETTINGS)


def schedule_search(env: Env, seed: int = 0) -> Search[Schedule]:
    simulation = env.unwrapped.simulation  # type: ignore[attr-defined]
    return Search(schedule_choices(3, simulation.head_sizes, simulation.config), schedule_of, seed)


def test_a_search_finds_the_best_of_each_group() -> None:
    choices = {"a": tuple(range(6)), "b": tuple(range(6))}
    targets = [{"a": 4, "b": 1}, {"a": 2, "b": 5}]
    group = np.array([0, 1, 1, 0])

    def closeness(candidates: Sequence[dict[str, Any]]) -> np.ndarray:
        misses = [sum(abs(one[k] - to[k]) for k in to) for one, to in zip(candidates, targets, strict=True)]
        return -np.array(misses, dtype=np.float64)[group]

    found = search_groups([Search(choices, dict, seed) for seed in range(2)], closeness, group, trials=36)
    assert [one.best for one in found] == targets
    assert [one.score for one in found] == [0.0, 0.0]


def test_a_search_learns_from_what_it_was_told() -> None:
    """More of its later candidates are good than of its first ones, which are drawn."""
    search = Search({name: tuple(range(10)) for name in "abc"}, dict, seed=0)
    scores = []
    for _ in range(60):
        scores.append(-float(sum(search.ask().values())))
        search.tell(scores[-1])
    assert np.mean(scores[-20:]) > np.mean(scores[:10]) + 5


def test_a_group_without_rows_keeps_what_it_began_with() -> None:
    searches = [Search({"a": (1, 2)}, dict, 0, first=[{"a": 2}]) for _ in range(2)]
    scores = lambda candidates: np.array([-float(candidates[0]["a"])])  # noqa: E731
    found = search_groups(searches, scores, np.array([0]), trials=9)
    assert [one.best for one in found] == [{"a": 1}, {"a": 2}]


def test_every_proposed_schedule_can_be_played_and_is_new(env: Env) -> None:
    search, seen = schedule_search(env), []
    simulation = env.unwrapped.simulation  # type: ignore[attr-defined]
    for number in range(40):
        seen.append(search.ask())
        search.tell(float(number % 7))
        timetable(seen[-1], simulation.head_sizes, simulation.config)
    assert len(set(seen)) == 40
    assert {len(schedule) for schedule in seen} >= {1, 2, 3}


def test_a_search_for_schedules_begins_with_nothing_and_with_seeds_everywhere(env: Env) -> None:
    simulation = env.unwrapped.simulation  # type: ignore[attr-defined]
    terms = (2, simulation.head_sizes, simulation.config)
    search = Search(schedule_choices(*terms), schedule_of, 0, first_schedules(*terms))
    tried = []
    for _ in range(1 + simulation.head_sizes["blueprint"]):
        tried.append(search.ask())
        search.tell(0.0)
    first = simulation.config.warmup_steps
    assert tried[0] == ()
    for kind, schedule in enumerate(tried[1:]):
        assert [(one.slot, one.step, one.blueprint) for one in schedule] == [(0, first, kind), (1, first + 1, kind)]


def test_a_limit_that_allows_no_seed_leaves_the_empty_schedule(env: Env) -> None:
    assert search_schedule(env, 0, trials=3, most_added=0.0).best == ()


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


@pytest.mark.parametrize("search_for", [search_schedule, search_oracle])
def test_searches_repeat_themselves_given_their_seed(search_for: Any) -> None:
    env = make_test_env("Esper-v0", 5, **SETTINGS | {"horizon": 8})

    def tried(seed: int) -> tuple[Any, list[Any]]:
        seen: list[Any] = []

        def objective(episodes: GrowthEpisodes) -> Any:
            seen.append(episodes.compute.tolist())
            return episodes.compute

        return search_for(env, 0, 8, seed, objective), seen

    first = tried(1)
    assert first == tried(1)
    assert first[1] != tried(2)[1]


def test_a_searched_oracle_grows_only_where_that_pays(env: Env) -> None:
    expensive = make_test_env("Esper-v0", 10, **SETTINGS, rent=100.0)
    assert all(one.best == () for one in search_oracle(expensive, 0, trials=4).values())
    table = search_oracle(env, 0, trials=4, objective=lambda episodes: episodes.added_parameters)
    assert set(table) == set(lesion_kinds(3))
    assert all(one.best != () for one in table.values())


@pytest.mark.parametrize("name", TUNABLE)
def test_every_value_that_is_tried_for_a_baseline_is_one_that_it_takes(name: str, env: Env) -> None:
    choices = constants_to_try(name, env)
    for number in range(max(map(len, choices.values()))):
        TUNABLE[name](env, **{key: values[number % len(values)] for key, values in choices.items()})


@pytest.mark.parametrize("env_id", ["Esper-v0", "Esper-Deep-v0"])
def test_the_shipped_constants_make_every_baseline(env_id: str) -> None:
    env = make_test_env(env_id, 2)
    tuned = load_tuned(env_id)
    assert tuned["environment"] == env_id
    own_constants = set(PUBLISHED) - set(tuned["baselines"])  # until they are tuned
    assert tuple(make_baselines(env, tuned)) == tuple(n for n in BASELINES if n not in {*SEARCHED, *own_constants})
    assert {type(tuned_baseline(name, env_id, env)) for name in PUBLISHED} == set(PUBLISHED.values())
    for name in ("grow_everything", "fixed_schedule"):
        make_baseline(name, env, tuned["equal_parameters"][name])


def test_where_fewer_baselines_were_tuned_fewer_are_made() -> None:
    baselines = make_baselines(make_test_env("Esper-Text-v0", 2), load_tuned("Esper-Text-v0"))
    assert tuple(baselines) == ("never", "random", "grow_everything", "plateau", "oracle")


def test_unknown_names_are_refused_with_those_that_exist(env: Env) -> None:
    with pytest.raises(ValueError, match=r"no tuned baselines for 'Nowhere-v0'.*known: .*Esper-v0"):
        load_tuned("Nowhere-v0")
    with pytest.raises(ValueError, match="baseline is 'alawys'; allowed: never, random"):
        make_baseline("alawys", env, {})


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
    assert set(measured["baselines"]) == {*BASELINES, "grow_everything_equal", "fixed_schedule_equal"} - {*SEARCHED}
    assert measured["baselines"]["never"]["test_accuracy_gain"] == {"point": 0.0, "low": 0.0, "high": 0.0}
    told = capsys.readouterr().out
    verdicts = [line for line in told.splitlines() if line.startswith(("- PASS", "- FAIL"))]
    assert len(verdicts) == len(measured["criteria"]) == 9
    assert "PASS  (f) two seeds can be judged and pruned before a third is committed: 13 of 13 steps" in told


def test_baselines_that_were_not_tuned_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned, out, settings = tmp_path / "tuned.json", tmp_path / "result.json", json.dumps({"horizon": 13, **QUICK_LIFE})
    few = ("--trials", "1", "--schedule-trials", "0", "--oracle-trials", "1", "--instances", "5")
    rules = ("grow_everything", "plateau")
    run("tune_controls", "--rules", *rules, *few, "--settings", settings, "--out", str(tuned), monkeypatch=monkeypatch)
    files = ("--tuned", str(tuned), "--json", str(out))
    run("growth_controls", "--quick", "--episodes", "2", "--settings", settings, *files, monkeypatch=monkeypatch)
    assert set(json.loads(out.read_text(encoding="utf-8"))["baselines"]) == {"never", "random", *rules, "oracle"}
    assert "2 test instances from seed 10000, 13 steps each" in capsys.readouterr().out


def test_a_schedule_of_plain_data_is_played_as_it_was_found(env: Env) -> None:
    found = (planting(1, 2, tempo=1), planting(3, 0, blueprint=4))
    stored = json.loads(json.dumps({"plantings": [asdict(one) for one in found]}))
    made = make_baseline("fixed_schedule", env, stored)
    assert isinstance(made, FixedSchedule)
    np.testing.assert_array_equal(made.timetables, FixedSchedule(env, found).timetables)
