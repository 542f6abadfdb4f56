"""Strata: what the instances of an evaluation drew, and the groups that a report shows."""

from typing import Any

import numpy as np
from esper_agent.evaluation.paired import make_test_env
from esper_agent.evaluation.strata import groups, traits

ROWS = 12


def drawn(**settings: Any) -> tuple[Any, dict[str, list[float]]]:
    env = make_test_env("Esper-v0", ROWS, **settings)
    env.reset(seed=10_000)
    return env.unwrapped, traits(env)


def test_traits_are_what_differs_between_the_instances() -> None:
    esper, found = drawn()
    assert found == {"lesions": esper.lesioned.sum(axis=1).tolist()}
    esper, found = drawn(shapes="widths", live_units=(2, 24), rent=(0.1, 1.0), budget=(1, 2))
    assert set(found) == {"mean width", "rent", "budget"}
    np.testing.assert_allclose(found["mean width"], esper.live_units.mean(axis=1), atol=1e-6)
    assert all(0.1 <= one <= 1.0 for one in found["rent"])


def test_few_whole_numbers_are_groups_by_themselves_and_others_are_cut_into_thirds() -> None:
    prices = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    found = groups({"lesions": [0, 1, 1, 2, 0, 1], "rent": prices})
    assert {name: flags.sum() for name, flags in found.items()} == {
        "lesions 0": 2, "lesions 1": 3, "lesions 2": 1,
        "rent 0.1 to 0.2": 2, "rent 0.3 to 0.4": 2, "rent 0.5 to 0.6": 2,
    }  # fmt: skip
    assert found["lesions 1"].tolist() == [False, True, True, False, False, True]
