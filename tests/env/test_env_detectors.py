"""Detectors of gaming: each fires on a crafted trajectory through `env.step`, and on nothing else."""

import ast
from collections.abc import Callable
from pathlib import Path

import esper_env.mdp.detectors
import numpy as np
import pytest
import torch
from env_tools import TINY, WAIT, act, play, tiny
from esper_env import EsperEnv, Op
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


def entangled() -> Flags:
    """Two seeds that undo each other: the second's removal is ruinous, yet the host alone does as well."""
    env = EsperEnv(
        task=TINY,
        horizon=60,
        training_steps=1,
        **QUICK_LIFE,
        lesion_weights=(1, 0, 0),
        label_noise=(0, 0),
        learning_rate=(0.06, 0.14),
    )
    env.reset(seed=0)
    flags = steps(env, [WAIT] * 40)  # a host that knows something
    population = env.row.simulation.population
    population.lr.zero_()  # from here on only the pushes below change anything
    for slot in (1, 2):
        flags += steps(env, [act(Op.GERMINATE, slot=slot, blueprint=1), act(Op.ADVANCE, slot=slot), WAIT, WAIT])
    assert not any(flag["ransomware"] for flag in flags)
    weight = parameter(population.body, "blocks.2.0.weight").view(6, 6)
    weight[0] = torch.eye(6)[0]  # block 1's unit 0 feeds block 2's unit 0 alone
    for slot, push in ((1, 50.0), (2, -50.0)):
        seed = next(cohort for key, cohort in population.seeds.items() if key[0] == slot)
        seed.values.zero_()
        parameter(seed, "body.2.bias")[0] = push
        parameter(seed, "last.scale")[0] = 1.0
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
    "ransomware": entangled,
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
    assert not any(flag[other] for flag in flags for other in set(DETECTORS) - {name})


@pytest.mark.ledger("R4", "Z17")
def test_every_detector_that_is_defined_is_registered() -> None:
    """Whatever its argument is called: of the module's functions only the one that runs them is no detector."""
    tree = ast.parse(Path(esper_env.mdp.detectors.__file__).read_text(encoding="utf-8"))
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assert defined - {"detect"} == {DETECTORS[name].__name__ for name in DETECTORS}
    assert not any(isinstance(node, ast.Lambda) for node in ast.walk(tree))


@pytest.mark.ledger("R4")
def test_every_step_reports_every_detector_of_every_row() -> None:
    env = tiny(6, horizon=20, churn_prunes=1)
    fired = 0
    for *_, infos in play(env, 25, seed=0):
        assert set(infos["detectors"]) == set(DETECTORS)
        assert all(flags.dtype == bool and flags.shape == (6,) for flags in infos["detectors"].values())
        expected = env.simulation.state.prunes.numpy() >= 1
        alive = ~np.asarray(env.simulation.state.step == 0)
        np.testing.assert_array_equal(infos["detectors"]["churn"][alive], expected[alive])
        fired += infos["detectors"]["churn"].sum()
    assert fired > 0


def test_waiting_is_no_game() -> None:
    env = EsperEnv(task=TINY, horizon=12)
    env.reset(seed=0)
    assert not any(value for flag in steps(env, [WAIT] * 12) for value in flag.values())
