"""Growth pays where a block was lesioned and nowhere else: the prototype's figures, through `env.step`."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from env_tools import WAIT, Action, everywhere
from esper_env import EsperVectorEnv, Op
from esper_env.tasks import TASKS

HORIZON, FIRST_STEP, SLOTS = 30, 2, 3


@dataclass(frozen=True)
class Script:
    """What is planted, and in how many hosts that learn how fast."""

    blueprint: str
    learning_rate: float
    rows: int


SCRIPTS = {"digits_mlp": Script("wide_mlp", 0.18, 32), "text": Script("wide_token_mlp", 0.012, 9)}
PLACES = {
    "never": (),
    "right": (0,),
    "wrong": (1,),
    "everywhere": (0, 1, 2),
}  # slots to grow, counted from the lesioned one


@cache
def committed_metric(live_units: int, policy: str, task: str = "digits_mlp") -> np.ndarray:
    """Final metric of the committed network per row; germinate, advance and fossilise as soon as it is legal."""
    script = SCRIPTS[task]
    env = EsperVectorEnv(
        script.rows,
        task=task,
        autoreset_mode="disabled",
        horizon=HORIZON,
        lesion_weights=(0, 1, 0),
        live_units=(live_units, live_units),
        label_noise=(0, 0),
        learning_rate=(script.learning_rate, script.learning_rate),
        subset=(1, 1),
    )
    _, infos = env.reset(seed=0)
    lesioned = env.simulation.instance.live_units.argmin(axis=1)
    slots = (lesioned[:, None] + np.array(PLACES[policy], dtype=int)) % SLOTS
    kind = TASKS[task].blueprints.index(script.blueprint)
    for step in range(HORIZON):
        waiting = everywhere({**WAIT, "blueprint": kind}, script.rows)
        *_, infos = env.step(next_moves(waiting, infos["action_mask_by_op"], slots) if step >= FIRST_STEP else waiting)
        assert not infos["invalid_action"].any()
    metric: np.ndarray = infos["committed_metric"]
    return metric


def next_moves(actions: Action, by_op: dict[str, np.ndarray], slots: np.ndarray) -> Action:
    """Per row the first legal of fossilise, advance, germinate at one of its slots."""
    for row in range(len(slots)):
        moves = [
            (op, slot)
            for op in (Op.FOSSILIZE, Op.ADVANCE, Op.GERMINATE)
            for slot in slots[row]
            if by_op["op"][row, 0, op] and by_op["slot"][row, op, slot]
        ]
        actions["op"][row], actions["slot"][row] = moves[0] if moves else (Op.WAIT, 0)
    return actions


def gain(live_units: int, policy: str, task: str = "digits_mlp") -> float:
    """Mean gain over never growing, on paired seeds."""
    return float((committed_metric(live_units, policy, task) - committed_metric(live_units, "never", task)).mean())


@pytest.mark.slow
@pytest.mark.parametrize(("live_units", "at_least"), [(1, 0.35), (2, 0.15), (3, 0.07)])
def test_growing_pays_at_the_lesioned_block_only(live_units: int, at_least: float) -> None:
    right, wrong, everywhere_ = (gain(live_units, policy) for policy in ("right", "wrong", "everywhere"))
    assert right > at_least
    assert abs(wrong) < 0.04
    assert abs(everywhere_ - right) < 0.04
    assert committed_metric(live_units, "right").mean() > 0.88


@pytest.mark.slow
def test_the_narrower_the_block_the_more_growth_pays() -> None:
    gains = [gain(units, "right") for units in (1, 2, 3)]
    assert gains[0] > gains[1] > gains[2]


@pytest.mark.slow
def test_growing_pays_in_a_text_too() -> None:
    """In bits: the metric is the share of them that the host saves."""
    assert gain(1, "right", "text") > 0.08
    assert abs(gain(1, "wrong", "text")) < 0.03
