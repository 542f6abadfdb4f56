"""Detectors of gaming: each fires on a crafted trajectory through `env.step`, and on nothing else."""

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import esper_env.mdp.detectors
import numpy as np
import pytest
import torch
from env_tools import TINY, WAIT, act, assert_same, play, tiny
from esper_env import HEADS, EsperEnv, Op
from esper_env.mdp.detectors import DETECTORS
from esper_env.population.cohort import Cohort
from quick_life import QUICK_LIFE

Flags = list[dict[str, bool]]


def steps(env: EsperEnv, script: list[dict[str, int]]) -> Flags:
    flags = []
    for action in script:
        *_, info = env.step(action)
        assert not info["invalid_action"]
        flags.append(info["detectors"])
    return flags


def parameter(cohort: Cohort, name: str) -> torch.Tensor:
    """A parameter of a cohort's first row, to be written to."""
    entries = cohort.layout.entries
    (place,) = (place for place, entry in enumerate(entries) if entry.name == name)
    start = sum(entry.size for entry in entries[:place])
    return cohort.values[0, start : start + entries[place].size]


def learned(**settings: Any) -> tuple[EsperEnv, Flags]:
    """An environment with a host that knows something, and that from here on only a test changes."""
    life = QUICK_LIFE | {"training_steps": 1, "control_interval": 1} | settings
    healthy = {"lesion_weights": (1, 0, 0), "label_noise": (0, 0), "learning_rate": (0.06, 0.14)}
    env = EsperEnv(task=TINY, horizon=60, **healthy, **life)
    env.reset(seed=0)
    flags = steps(env, [WAIT] * 40)
    env.row.simulation.population.lr.zero_()
    env.row.simulation.control.population.lr.zero_()  # type: ignore[union-attr]
    return env, flags


def push(cohort: Cohort, strength: float) -> None:
    """Make a narrow_mlp add so much to the first unit of its block, and nothing to the others."""
    cohort.values.zero_()
    parameter(cohort, "body.2.bias")[0] = strength
    parameter(cohort, "last.scale")[0] = 1.0


def dependent(**settings: Any) -> tuple[EsperEnv, Flags]:
    """One seed that its host learned to need: the head subtracts what it adds, and nothing is gained."""
    env, flags = learned(**settings)
    population = env.row.simulation.population
    flags += steps(env, [act(Op.GERMINATE, slot=2, blueprint=1), act(Op.ADVANCE, slot=2), WAIT, WAIT])
    (seed,) = population.seeds.values()
    push(seed, 50.0)
    weight, bias = (parameter(population.body, f"head.{name}") for name in ("weight", "bias"))
    gain = population.engine.blueprints[1].gain
    bias -= gain * 50.0 * weight.view(6, 10)[0]  # dense weights are input-major
    return env, flags


def held_to_ransom() -> Flags:
    env, flags = dependent()
    return flags + steps(env, [WAIT])


def entangled() -> Flags:
    """Two seeds that undo each other: the second's removal is ruinous, yet the host alone does as well."""
    env, flags = learned(control_interval=0, reward="contribution")
    population = env.row.simulation.population
    for slot in (1, 2):
        flags += steps(env, [act(Op.GERMINATE, slot=slot, blueprint=1), act(Op.ADVANCE, slot=slot), WAIT, WAIT])
    weight = parameter(population.body, "blocks.2.0.weight").view(6, 6)
    weight[0] = torch.eye(6)[0]  # block 1's unit 0 feeds block 2's unit 0 alone
    for slot, strength in ((1, 50.0), (2, -50.0)):
        push(next(cohort for key, cohort in population.seeds.items() if key[0] == slot), strength)
    return flags + steps(env, [WAIT])


def planted_and_pruned() -> Flags:
    env = EsperEnv(task=TINY, horizon=30, learning_rate=(0.06, 0.14), **QUICK_LIFE)
    env.reset(seed=0)
    return steps(env, [act(Op.GERMINATE), act(Op.PRUNE), act(Op.GERMINATE, slot=1), act(Op.PRUNE, slot=1)]) + steps(
        env, [act(Op.GERMINATE, slot=2), act(Op.PRUNE, slot=2)]
    )


def held_and_never_committed() -> Flags:
    env = EsperEnv(task=TINY, horizon=30, training_steps=1, learning_rate=(0.06, 0.14), **QUICK_LIFE)
    env.reset(seed=0)
    limit = env.row.simulation.config.holding_limit
    return steps(env, [act(Op.GERMINATE), act(Op.ADVANCE), *[WAIT] * (2 + limit)])


TRAJECTORIES: dict[str, Callable[[], Flags]] = {
    "ransomware": held_to_ransom,
    "entanglement": entangled,
    "churn": planted_and_pruned,
    "endless_holding": held_and_never_committed,
}


@pytest.mark.ledger("R4")
def test_every_registered_detector_has_a_trajectory_here() -> None:
    assert set(DETECTORS) == set(TRAJECTORIES)


@pytest.mark.ledger("R4")
@pytest.mark.parametrize("name", sorted(DETECTORS))
def test_each_detector_fires_when_its_trajectory_is_complete_and_not_before(name: str) -> None:
    flags = TRAJECTORIES[name]()
    assert [flag[name] for flag in flags] == [False] * (len(flags) - 1) + [True]
    others = set(DETECTORS) - {name} - ({"ransomware"} if name == "entanglement" else set())  # two seeds do both
    assert not any(flag.get(other, False) for flag in flags for other in others)


@pytest.mark.ledger("R4", "Z17")
def test_every_detector_that_is_defined_is_registered() -> None:
    """Whatever its argument is called: of the module's functions only those that run detectors are none."""
    tree = ast.parse(Path(esper_env.mdp.detectors.__file__).read_text(encoding="utf-8"))
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assert defined - {"held_to_ransom", "measurable", "detect"} == {DETECTORS[name].__name__ for name in DETECTORS}
    assert not any(isinstance(node, ast.Lambda) for node in ast.walk(tree))


@pytest.mark.ledger("R4")
def test_every_step_reports_every_detector_of_every_row() -> None:
    env = tiny(6, horizon=20, churn_prunes=1, control_interval=1)
    fired = 0
    for *_, infos in play(env, 25, seed=0):
        assert set(infos["detectors"]) == set(DETECTORS)
        assert all(flags.dtype == bool and flags.shape == (6,) for flags in infos["detectors"].values())
        expected = env.simulation.state.prunes.numpy() >= 1
        alive = ~np.asarray(env.simulation.state.step == 0)
        np.testing.assert_array_equal(infos["detectors"]["churn"][alive], expected[alive])
        fired += infos["detectors"]["churn"].sum()
    assert fired > 0


@pytest.mark.ledger("Y28", "X10", "Z20")
def test_the_control_tells_on_a_single_seed_and_the_reward_pays_it_less() -> None:
    """Against the host without its seed, the seed's gain would be all that its removal costs."""
    env, _ = dependent(control_interval=0, reward="contribution", legitimate_age=1)
    *_, info = env.step(WAIT)
    config, state = env.config, env.row.simulation.state
    contribution = float(state.contribution[0, 2])
    assert contribution > config.ransom_contribution
    assert info["control_measured"]
    assert info["control_metric"] == pytest.approx(info["metric"], abs=1e-12)
    assert float(state.metric - state.all_off) == pytest.approx(contribution)  # what one seed claims, it seems to gain
    share = config.ratio_epsilon / (contribution + config.ratio_epsilon)  # gain 0, excess the whole contribution
    paid = config.contribution_weight * share * contribution / config.horizon
    assert info["reward_terms"]["contribution"] == pytest.approx(paid, rel=1e-6)
    fine = -config.entanglement_weight * contribution / (contribution + config.ratio_epsilon) / config.horizon
    assert info["reward_terms"]["entanglement"] == pytest.approx(fine, rel=1e-6)


@pytest.mark.ledger("Y28", "X10")
def test_the_control_is_the_host_that_never_had_a_seed() -> None:
    """A grown row's control is the row that waits; until a seed acts, they are one and the same."""
    settings: dict[str, Any] = {"dtype": "float64", "control_interval": 1, "horizon": 14, "learning_rate": (0.06, 0.14)}
    grown, waiting = tiny(6, **settings), tiny(6, **settings)
    waiting.reset(seed=3)
    ahead = np.zeros(6, dtype=bool)
    for _, *_, infos in play(grown, 14, seed=3):
        *_, idle = waiting.step({head: np.zeros(6, dtype=int) for head in HEADS})
        assert infos["control_measured"].all()
        np.testing.assert_allclose(infos["control_metric"], idle["metric"], rtol=0, atol=1e-9)
        np.testing.assert_allclose(idle["control_metric"], idle["metric"], rtol=0, atol=1e-9)
        ahead |= infos["metric"] != infos["control_metric"]
    assert ahead.any()


@pytest.mark.ledger("Y28")
def test_the_control_is_measured_at_its_interval_and_at_the_end() -> None:
    env = tiny(2, horizon=8, control_interval=3, autoreset_mode="disabled")
    measured = [infos["control_measured"].all() for *_, infos in play(env, 8)]
    assert measured == [step % 3 == 0 or step == 8 for step in range(1, 9)]


@pytest.mark.ledger("Y28")
def test_what_is_not_measured_is_not_reported() -> None:
    for settings in ({}, {"reward": "contribution"}, {"control_interval": 2}):
        env = tiny(2, **settings)
        _, info = env.reset(seed=0)
        assert ("ransomware" in info["detectors"]) == ("control_metric" in info) == bool(settings)


@pytest.mark.ledger("Y28")
def test_an_environment_with_a_control_resumes_exactly() -> None:
    made = [tiny(3, control_interval=1, horizon=30) for _ in range(2)]
    for _ in play(made[0], 9, seed=1):
        pass
    made[1].load_state_dict(made[0].state_dict())
    results = [env.step({head: np.zeros(3, dtype=int) for head in HEADS})[-1] for env in made]
    assert_same(*results)


def test_waiting_is_no_game() -> None:
    env = EsperEnv(task=TINY, horizon=12)
    env.reset(seed=0)
    assert not any(value for flag in steps(env, [WAIT] * 12) for value in flag.values())
