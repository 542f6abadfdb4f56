"""Growth pays where a block was narrowed and nowhere else: the prototype's figures, through `env.step`."""

from functools import cache

import numpy as np
import pytest
from env_tools import WAIT, everywhere
from esper_env import EsperVectorEnv, Op
from esper_env.tasks import TASKS

ROWS, HORIZON, FIRST_STEP, SLOTS = 32, 30, 2, 3
WIDE = TASKS["digits_mlp"].blueprints.index("wide_mlp")
PLACES = {
    "never": (),
    "right": (0,),
    "wrong": (1,),
    "everywhere": (0, 1, 2),
}  # slots to grow, counted from the narrowed one


@cache
def committed_metric(live_units: int, policy: str) -> np.ndarray:
    """Final metric of the committed network per row; germinate, advance and fossilise as soon as it is legal."""
    env = EsperVectorEnv(
        ROWS,
        task="digits_mlp",
        autoreset_mode="disabled",
        horizon=HORIZON,
        lesion_weights=(0, 1, 0),
        live_units=(live_units, live_units),
        label_noise=(0, 0),
        learning_rate=(0.18, 0.18),
        subset=(1, 1),
    )
    _, infos = env.reset(seed=0)
    narrowed = env.simulation.instance.live_units.argmin(axis=1)
    slots = (narrowed[:, None] + np.array(PLACES[policy], dtype=int)) % SLOTS
    for step in range(HORIZON):
        actions = next_moves(infos["action_mask_by_op"], slots) if step >= FIRST_STEP else everywhere(WAIT, ROWS)
        *_, infos = env.step(actions)
        assert not infos["invalid_action"].any()
    metric: np.ndarray = infos["committed_metric"]
    return metric


def next_moves(by_op: dict[str, np.ndarray], slots: np.ndarray) -> dict[str, np.ndarray]:
    """Per row the first legal of fossilise, advance, germinate at one of its slots."""
    actions = {**everywhere(WAIT, ROWS), "blueprint": np.full(ROWS, WIDE)}
    for row in range(ROWS):
        moves = [
            (op, slot)
            for op in (Op.FOSSILIZE, Op.ADVANCE, Op.GERMINATE)
            for slot in slots[row]
            if by_op["op"][row, 0, op] and by_op["slot"][row, op, slot]
        ]
        actions["op"][row], actions["slot"][row] = moves[0] if moves else (Op.WAIT, 0)
    return actions


def gain(live_units: int, policy: str) -> float:
    """Mean gain over never growing, on paired seeds."""
    return float((committed_metric(live_units, policy) - committed_metric(live_units, "never")).mean())


@pytest.mark.slow
@pytest.mark.parametrize(("live_units", "at_least"), [(1, 0.35), (2, 0.15), (3, 0.07)])
def test_growing_pays_at_the_narrowed_block_only(live_units: int, at_least: float) -> None:
    right, wrong, everywhere_ = (gain(live_units, policy) for policy in ("right", "wrong", "everywhere"))
    assert right > at_least
    assert abs(wrong) < 0.04
    assert abs(everywhere_ - right) < 0.04
    assert committed_metric(live_units, "right").mean() > 0.88


@pytest.mark.slow
def test_the_narrower_the_block_the_more_growth_pays() -> None:
    gains = [gain(units, "right") for units in (1, 2, 3)]
    assert gains[0] > gains[1] > gains[2]
