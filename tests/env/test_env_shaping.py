"""Exact shaping, and a hand-worked episode for every preset."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from env_tools import TINY, WAIT, act, everywhere, legal_actions, play, tiny
from esper_env import EsperEnv, Op, Stage
from esper_env.config import TEMPI, EsperConfig
from esper_env.mdp.control import Control
from esper_env.mdp.rewards import potential
from esper_env.mdp.state import State
from esper_env.population.evaluation import Evaluation
from esper_env.population.training import TrainingReport
from gymnasium.wrappers import TimeLimit
from quick_life import QUICK_LIFE


@pytest.mark.ledger("R3", "P11")
@pytest.mark.parametrize("gamma", [0.9, 0.99, 1.0])
def test_shaping_telescopes_over_random_play_with_rollbacks_and_early_ends(gamma: float) -> None:
    """Sum of gamma^t F_t over an episode is -Phi(s_0), since Phi is 0 at its end."""
    env = tiny(24, gamma=gamma, horizon=18, learning_rate=(0.02, 6.0), max_rollbacks=2, autoreset_mode="same_step")
    first, discount, total = env.simulation.state.potential, np.ones(24), np.zeros(24)
    ops, ends, rolled, automatic = set(), set(), 0, set()
    for number, (actions, _, _, terminated, _, infos) in enumerate(play(env, 40, seed=3, illegal=0.1)):
        if number == 0:
            first = initial_potential(24, gamma)
        ended_infos = infos["final_info"] if terminated.any() else infos
        total += discount * ended_infos["reward_terms"]["shaping"]
        discount *= gamma
        rolled += infos["rolled_back"].sum()
        ops |= set(actions["op"][~infos["invalid_action"]].tolist())
        automatic |= set(env.simulation.state.stage.unique().tolist())
        for row in np.flatnonzero(terminated):
            assert total[row] == pytest.approx(-first[row], abs=1e-9)
            ends.add(bool(infos["rolled_back"][row]))
            first[row] = env.simulation.state.potential[row]
            total[row], discount[row] = 0.0, 1.0
    assert ops == set(Op)
    assert ends == {True, False}
    assert rolled > 20
    assert automatic >= {Stage.HOLDING, Stage.EMBARGOED, Stage.FOSSILIZED}


def initial_potential(n: int, gamma: float) -> np.ndarray:
    """Phi of the first states of `play(..., seed=3)`."""
    env = tiny(n, gamma=gamma)
    env.reset(seed=3)
    return env.simulation.state.potential.numpy().copy()


@pytest.mark.ledger("R3", "X3")
@pytest.mark.parametrize("limit", [1, 5, 9])
def test_shaping_telescopes_when_a_time_limit_truncates(limit: int) -> None:
    env = TimeLimit(EsperEnv(task=TINY, horizon=12), limit)
    rng = np.random.default_rng(limit)
    _, info = env.reset(seed=limit)
    state = env.unwrapped.row.simulation.state
    first, total, truncated, steps = float(state.potential), 0.0, False, 0
    while not truncated:
        wide = {"action_mask_by_op": {head: table[None] for head, table in info["action_mask_by_op"].items()}}
        action = {head: int(value[0]) for head, value in legal_actions(wide, rng).items()}
        _, _, terminated, truncated, info = env.step(action)
        assert not terminated
        total += env.unwrapped.gamma**steps * info["reward_terms"]["shaping"]
        steps += 1
    assert steps == limit
    last = float(state.potential)
    assert last > 0.0
    assert total == pytest.approx(env.unwrapped.gamma**limit * last - first, abs=1e-9)
    assert info["reward_terms"]["final_metric"] == 0.0


@pytest.mark.ledger("X3")
@pytest.mark.parametrize("make", ["single", "vector"])
def test_the_end_of_the_budget_terminates_and_never_truncates(make: str) -> None:
    if make == "single":
        env: Any = EsperEnv(task=TINY, horizon=3)
        env.reset(seed=0)
        results = [env.step(WAIT) for _ in range(3)]
        assert [(r[2], r[3]) for r in results] == [(False, False), (False, False), (True, False)]
        assert results[-1][4]["reward_terms"]["final_metric"] == results[-1][4]["committed_metric"] > 0.0
        assert results[-1][0][0] == 1.0  # progress is observed
    else:
        env = tiny(2, horizon=3)
        flags = [(terminated.all(), truncated.any()) for _, _, _, terminated, truncated, _ in play(env, 3)]
        assert flags == [(False, False), (False, False), (True, False)]


def test_the_potential_rises_along_the_path_to_a_fossil() -> None:
    """A seed that goes the whole way never lowers the stage part of Phi; a full ramp equals the start of holding."""
    env = tiny(1, horizon=30, metric_weight=0.0, training_steps=3, holding_steps=2)
    env.reset(seed=0)
    path = [act(Op.GERMINATE), WAIT, WAIT, act(Op.ADVANCE), *[WAIT] * 4, act(Op.FOSSILIZE)]
    heights = [0.0]
    for action in path:
        *_, infos = env.step(everywhere(action, 1))
        assert not infos["invalid_action"].any()
        heights.append(float(env.simulation.state.potential))
    assert all(later >= earlier for earlier, later in pairwise(heights))
    assert len(set(heights)) >= len(heights) - 2
    assert heights[-1] == pytest.approx(env.simulation.config.stage_weight)


@pytest.mark.ledger("R3", "Z19")
def test_phi_is_stored_and_not_reconstructed() -> None:
    env = tiny(3)
    for _ in play(env, 4):
        torch.testing.assert_close(
            potential(env.simulation.state, env.simulation.config), env.simulation.state.potential, rtol=0, atol=0
        )
    env.simulation.state.potential += 0.25  # a stored potential is what the next step pays back
    stored = env.simulation.state.potential.numpy().copy()
    *_, infos = env.step(everywhere(WAIT, 3))
    after = env.simulation.state.potential.numpy()
    np.testing.assert_allclose(infos["reward_terms"]["shaping"], env.gamma * after - stored, rtol=0, atol=1e-12)


# A hand-worked episode: what is measured is prescribed, what must be paid is worked out below.

METRICS = [0.10, 0.30, 0.30, 0.40, 0.60, 0.70, 0.80]  # at reset, then after steps 1 to 6
LOSSES = [2.0, 1.0, 1.0, 0.5, 0.4, 0.3, 0.2]
ALL_OFF = [0.10, 0.30, 0.30, 0.40, 0.45, 0.50, 0.50]
CONTRIBUTION = [0.0, 0.0, 0.0, 0.1, 0.2, 0.3, 0.3]
COMMITTED = [0.10, 0.30, 0.30, 0.40, 0.45, 0.50, 0.75]
SCRIPT = [act(Op.GERMINATE, slot=1), act(Op.ADVANCE, slot=1), WAIT, WAIT, WAIT, act(Op.FOSSILIZE, slot=1)]
HORIZON, GAMMA, LN10 = 6, 0.9, 2.302585092994046


@pytest.fixture
def prescribed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace training and validation by the prescribed course."""
    course: Iterator[int] = iter(range(len(METRICS)))

    def one(value: float) -> torch.Tensor:
        return torch.tensor([value], dtype=torch.float64)

    def measure(*_: Any) -> Evaluation:
        at = next(course)
        slots = torch.zeros(1, 3, dtype=torch.float64)
        share = slots.clone()
        share[0, 1] = CONTRIBUTION[at]
        return Evaluation(
            one(LOSSES[at]), one(METRICS[at]), share, slots, one(ALL_OFF[at]), one(COMMITTED[at]), torch.zeros(1, 1)
        )

    def train(*_: Any) -> TrainingReport:
        return TrainingReport(one(1.0), torch.zeros(1, 3), torch.zeros(1, 3))

    def control(_: Control, step: torch.Tensor, *__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return one(ALL_OFF[int(step)]), torch.ones(1, dtype=torch.bool)

    monkeypatch.setattr("esper_env.mdp.measuring.evaluate", measure)
    monkeypatch.setattr("esper_env.mdp.simulation.train_epoch", train)
    monkeypatch.setattr(Control, "measure", control)


def episode(preset: str) -> tuple[list[dict[str, float]], list[float], list[bool], float]:
    """Terms, rewards and ends of the scripted episode, and the size of its seed relative to the host."""
    env = EsperEnv(task=TINY, horizon=HORIZON, gamma=GAMMA, reward=preset, training_steps=1, **QUICK_LIFE)
    env.reset(seed=0)
    results = [env.step(action) for action in SCRIPT]
    assert not any(r[4]["invalid_action"] for r in results)
    size = 8 * 2 + 2 * 6 + 6  # low_rank at slot 1: 8 inputs, rank 2, 6 outputs, a scale; no gate under ADD
    host = (64 * 8 + 8) + (8 * 6 + 6) + (6 * 6 + 6) + (6 * 10 + 10)
    return [r[4]["reward_terms"] for r in results], [r[1] for r in results], [r[2] for r in results], size / host


def squashed(loss: float) -> float:
    return loss / LN10 / (1 + loss / LN10)


@pytest.mark.ledger("X16", "R3")
@pytest.mark.usefixtures("prescribed")
def test_a_hand_worked_shaped_episode() -> None:
    terms, rewards, ends, size = episode("shaped")
    # Stage parts: planted and grown (0.1 -> 0.3), ramp at 2/3 (0.3 -> 0.6), ramp full, holding begun, held, committed.
    stage = [0.0, 0.3, 0.3 + 0.3 * 2 / 3, 0.6, 0.6, 1.0, 1.0]
    phi = [m + 0.01 * s for m, s in zip(METRICS, stage, strict=True)]
    shaping = [GAMMA * phi[t + 1] - phi[t] for t in range(5)] + [-phi[5]]
    assert [t["shaping"] for t in terms] == pytest.approx(shaping, abs=1e-12)
    assert [t["final_metric"] for t in terms] == [0.0] * 5 + [0.75]
    assert [t["rent"] for t in terms] == pytest.approx([-(0.03 * size + 0.04) / HORIZON] * 6, abs=1e-15)
    assert rewards == pytest.approx([s + t["rent"] + t["final_metric"] for s, t in zip(shaping, terms, strict=True)])
    assert sum(GAMMA**t * f for t, f in enumerate(shaping)) == pytest.approx(-0.10, abs=1e-12)
    assert ends == [False] * 5 + [True]


@pytest.mark.ledger("X16")
@pytest.mark.usefixtures("prescribed")
def test_a_hand_worked_sparse_episode() -> None:
    _, rewards, _, size = episode("sparse")
    rent = (0.03 * size + 0.04) / HORIZON
    assert rewards == pytest.approx([-rent] * 5 + [0.75 - rent], abs=1e-12)


@pytest.mark.ledger("X16", "R6")
@pytest.mark.usefixtures("prescribed")
def test_a_hand_worked_contribution_episode() -> None:
    terms, _, _, _ = episode("contribution")
    # After step 3: claims 0.1, gain 0.00, so 0.01 / 0.11 of it counts; age 3 less 1 of training, of 3, so two thirds.
    # Then claims 0.2 of gain 0.15; claims 0.3 of gain 0.2; claims 0.3 of gain 0.3. In step 2 it claims nothing.
    credit = [0.0, 0.0, 0.1 * 0.01 / 0.11 * 2 / 3, 0.2 * 0.16 / 0.21, 0.3 * 0.21 / 0.31, 0.3]
    tangle = [0.0, 0.0, 0.1 / 0.11, 0.05 / 0.21, 0.1 / 0.31, 0.0]
    alphas = [0.0, 0.0, 2 / 3, 1.0, 1.0, 1.0, 1.0]
    shock = [(after - before) ** 2 for before, after in pairwise(alphas)]
    assert [t["contribution"] for t in terms] == pytest.approx([0.2 * c / HORIZON for c in credit], abs=1e-12)
    assert [t["entanglement"] for t in terms] == pytest.approx([-0.05 * t / HORIZON for t in tangle], abs=1e-12)
    assert [t["alpha_shock"] for t in terms] == pytest.approx([-0.01 * s for s in shock], abs=1e-12)
    assert [t["holding"] for t in terms] == pytest.approx([0.0, 0.0, 0.0, 0.0, -0.002, 0.0], abs=1e-12)
    assert [t["op_cost"] for t in terms] == pytest.approx([-0.002, -0.001, 0.0, 0.0, 0.0, -0.001], abs=1e-12)
    assert [t["final_metric"] for t in terms] == [0.0] * 5 + [0.75]


@pytest.mark.ledger("X16")
@pytest.mark.usefixtures("prescribed")
def test_a_hand_worked_loss_episode() -> None:
    terms, _, _, _ = episode("loss")
    drops = [squashed(before) - squashed(after) for before, after in pairwise(LOSSES)]
    assert [t["loss_drop"] for t in terms] == pytest.approx(drops, abs=1e-12)


@pytest.mark.ledger("R3")
def test_the_potential_of_every_state_is_between_zero_and_its_declared_maximum() -> None:
    config, rng = EsperConfig(task="any"), np.random.default_rng(0)
    state = State.blank(500, 4, "cpu")
    state.stage = torch.from_numpy(rng.integers(len(Stage), size=(500, 4)))
    state.ramp = torch.from_numpy(rng.choice(TEMPI, size=(500, 4)))
    age = torch.from_numpy(rng.integers(50, size=(500, 4)))
    state.stage_age = torch.where(state.stage == Stage.BLENDING, age % state.ramp, age)
    state.metric = torch.from_numpy(rng.random(500))
    phi = potential(state, config)
    assert ((phi >= 0) & (phi <= config.metric_weight + 4 * config.stage_weight)).all()


def test_the_registered_environment_keeps_its_gamma_in_json() -> None:
    spec = gymnasium.make("Esper-v0", gamma=0.95).spec
    assert gymnasium.envs.registration.EnvSpec.from_json(spec.to_json()).make().unwrapped.gamma == 0.95
