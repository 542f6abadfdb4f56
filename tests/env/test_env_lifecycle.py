"""The life of a seed, against a plain model of one slot that counts from recorded dates."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from env_tools import WAIT, act, everywhere, legal_actions, tiny
from esper_env import Op, Stage
from esper_env.config import TEMPI, EsperConfig
from esper_env.fused.minibatches import Minibatches
from esper_env.mdp.lifecycle import apply_operations, gates, is_legal, tick
from esper_env.mdp.state import State
from esper_env.population.population import EMPTY, Census, Population
from esper_env.population.training import TrainingReport, train_epoch
from hypothesis import given, settings
from hypothesis import strategies as st

SLOT_OPS = (Op.GERMINATE, Op.ADVANCE, Op.FOSSILIZE, Op.PRUNE)


@dataclass
class PlainSlot:
    """One slot as a list of dates: when it was planted, advanced, committed, pruned."""

    config: EsperConfig
    now: int = 0
    dates: dict[Op, int] = field(default_factory=dict)
    ramp: int = 0

    def stage(self) -> Stage:
        if Op.PRUNE in self.dates:
            served = self.now - self.dates[Op.PRUNE] > self.config.embargo_steps
            return Stage.DORMANT if served else Stage.EMBARGOED
        if Op.GERMINATE not in self.dates:
            return Stage.DORMANT
        if Op.ADVANCE not in self.dates:
            return Stage.TRAINING
        if Op.FOSSILIZE in self.dates:
            return Stage.FOSSILIZED
        return Stage.HOLDING if self.now - self.dates[Op.ADVANCE] >= self.ramp else Stage.BLENDING

    def alpha(self) -> float:
        """k / tempo in the k-th step of the ramp; what is measured after a step is what the next one trains with."""
        if self.stage() in (Stage.DORMANT, Stage.TRAINING, Stage.EMBARGOED):
            return 0.0
        return min(1.0, (self.now - self.dates[Op.ADVANCE] + 1) / self.ramp)

    def legal(self) -> set[Op]:
        stage, config = self.stage(), self.config
        allowed = {Op.WAIT}
        if stage is Stage.DORMANT and self.now >= config.warmup_steps:
            allowed.add(Op.GERMINATE)
        if stage is Stage.TRAINING and self.now - self.dates[Op.GERMINATE] >= config.training_steps:
            allowed.add(Op.ADVANCE)
        if stage is Stage.HOLDING and self.now - self.dates[Op.ADVANCE] - self.ramp >= config.holding_steps:
            allowed.add(Op.FOSSILIZE)
        if stage in (Stage.TRAINING, Stage.BLENDING, Stage.HOLDING):
            old_enough = self.now - self.dates[Op.GERMINATE] >= config.prune_age
            allowed |= {Op.PRUNE} if old_enough else set()
        return allowed

    def step(self, op: Op, tempo: int) -> None:
        if op in self.legal() and op is not Op.WAIT:
            if op is Op.GERMINATE:
                self.dates, self.ramp = {}, TEMPI[tempo]
            self.dates[op] = self.now
        self.now += 1


configs = st.builds(
    EsperConfig,
    task=st.just("any"),
    warmup_steps=st.integers(0, 4),
    training_steps=st.integers(1, 4),
    holding_steps=st.integers(1, 4),
    prune_age=st.integers(1, 5),
    embargo_steps=st.integers(0, 4),
)
ONE_SEED = torch.ones(1)
intents = st.lists(st.tuples(st.sampled_from([*Op, Op.ADVANCE, Op.FOSSILIZE]), st.integers(0, 2)), max_size=40)


def advance_time(state: State, config: EsperConfig, op: int, tempo: int) -> None:
    """What a step does to the lifecycle."""
    action = torch.tensor([[op, 0, 0, 0, tempo]])
    apply_operations(state, action * is_legal(action, gates(state, config, ONE_SEED)))
    tick(state, config)
    state.step += 1


@settings(max_examples=100, deadline=None)
@given(configs, intents)
def test_one_slot_lives_as_the_plain_model_says(config: EsperConfig, sequence: list[tuple[Op, int]]) -> None:
    state, model = State.blank(1, 1, "cpu"), PlainSlot(config)
    for op, tempo in sequence:
        advance_time(state, config, op, tempo)
        model.step(op, tempo)
        assert Stage(int(state.stage)) is model.stage()
        assert float(state.alpha) == pytest.approx(model.alpha(), abs=1e-12)
        table = gates(state, config, ONE_SEED).by_op()[0, :, 0]
        assert {op for op in Op if op is Op.WAIT or table[op]} == model.legal()


def test_the_plain_model_holds_through_the_environment_with_seeds_in_every_slot() -> None:
    env = tiny(
        6, horizon=40, training_steps=2, holding_steps=2, prune_age=2, embargo_steps=1, autoreset_mode="disabled"
    )
    models = [[PlainSlot(env.simulation.config) for _ in range(3)] for _ in range(6)]
    _, infos = env.reset(seed=0)
    rng, seen = np.random.default_rng(0), set()
    for _ in range(39):
        actions = legal_actions(infos, rng)
        *_, infos = env.step(actions)
        for row, slots in enumerate(models):
            for slot, model in enumerate(slots):
                op = Op(actions["op"][row]) if actions["slot"][row] == slot else Op.WAIT
                model.step(op, int(actions["tempo"][row]))
                seen.add(model.stage())
        stages = [[model.stage() for model in slots] for slots in models]
        alphas = [[model.alpha() for model in slots] for slots in models]
        state, population = env.simulation.state, env.simulation.population
        assert state.stage.tolist() == stages
        np.testing.assert_allclose(state.alpha.numpy(), alphas, atol=1e-12)
        np.testing.assert_allclose(population.alpha.numpy(), alphas, atol=1e-6)
        assert_census_matches(population.census, np.array(stages))
    assert seen == set(Stage)


def assert_census_matches(census: Census, stages: np.ndarray) -> None:
    """The engine's seeds are those that the lifecycle speaks of."""
    empty = np.isin(stages, (Stage.DORMANT, Stage.EMBARGOED))
    np.testing.assert_array_equal(census.blueprint == EMPTY, empty)
    np.testing.assert_array_equal(census.live, np.isin(stages, (Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED)))
    np.testing.assert_array_equal(census.committed, stages == Stage.FOSSILIZED)


@pytest.mark.parametrize("tempo", range(len(TEMPI)))
def test_the_ramp_trains_with_alpha_k_over_tempo(tempo: int, monkeypatch: pytest.MonkeyPatch) -> None:
    env, trained_with = tiny(horizon=30, training_steps=1), []

    def spy(population: Population, data: Minibatches) -> TrainingReport:
        trained_with.append(float(population.alpha[0, 1]))
        return train_epoch(population, data)

    monkeypatch.setattr("esper_env.mdp.simulation.train_epoch", spy)
    env.reset(seed=0)
    steps = [act(Op.GERMINATE, slot=1, tempo=tempo), act(Op.ADVANCE, slot=1), *[WAIT] * (TEMPI[tempo] + 1)]
    for action in steps:
        env.step(everywhere(action, 1))
    ramp = [k / TEMPI[tempo] for k in range(1, TEMPI[tempo] + 1)]
    assert trained_with == pytest.approx([0.0, *ramp, 1.0, 1.0])


def test_a_seed_is_committed_only_from_holding_and_after_its_contribution_was_measured() -> None:
    env = tiny(horizon=30, training_steps=1, holding_steps=2)
    _, infos = env.reset(seed=1)
    for action in (act(Op.GERMINATE, slot=2, blueprint=1), act(Op.ADVANCE, slot=2)):
        *_, infos = env.step(everywhere(action, 1))
    for _ in range(4):  # two more ramp steps, then two of holding
        assert not infos["action_mask"]["op"][0, Op.FOSSILIZE]
        *_, infos = env.step(everywhere(act(Op.FOSSILIZE, slot=2), 1))
        assert infos["invalid_action"].all()
    columns = [label for label, _ in env.simulation.schema.columns()]
    assert infos["action_mask"]["op"][0, Op.FOSSILIZE]
    observation, *_ = env.step(everywhere(act(Op.FOSSILIZE, slot=2), 1))
    assert env.simulation.state.stage[0, 2] == Stage.FOSSILIZED
    assert observation[0, columns.index("slot2.contribution_known")] == 1.0


def test_a_fossil_stays_for_good_and_keeps_training() -> None:
    env = tiny(horizon=40, training_steps=1)
    env.reset(seed=1)
    for action in (act(Op.GERMINATE), act(Op.ADVANCE), *[WAIT] * 3, act(Op.FOSSILIZE)):
        env.step(everywhere(action, 1))
    (cohort,) = env.simulation.population.seeds.values()
    committed = cohort.values.clone()
    for op in SLOT_OPS * 3:
        *_, infos = env.step(everywhere(act(op), 1))
        assert infos["invalid_action"].all()
        assert env.simulation.state.stage[0, 0] == Stage.FOSSILIZED
        assert env.simulation.state.alpha[0, 0] == 1.0
    (cohort,) = env.simulation.population.seeds.values()
    assert not torch.equal(cohort.values, committed)
