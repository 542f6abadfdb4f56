"""Entities: parts of an observation that are read with shared weights and scored by their own embedding."""

from typing import Any

import esper_env
import gymnasium
import numpy as np
import pytest
import torch
from esper_agent import FactoredRecurrentPPO
from esper_agent.algorithm.environments import declared_entities, make_vector_env
from esper_agent.config import PPOConfig
from esper_agent.networks.action_spec import ActionSpec
from esper_agent.networks.distribution import Legality
from esper_agent.networks.entity_encoder import Entities
from esper_agent.networks.policy import Policy
from gymnasium.vector import SyncVectorEnv
from update_tools import FEW_ULPS, first_deviation

ACTIONS = ActionSpec("dict", ("op", "kind", "place"), (3, 2, 4), True, True)
ENTITIES = Entities("place", shared=5, count=4, width=6)
SIZE = 5 + 4 * 6


def make_policy(**changes: Any) -> Policy:
    torch.manual_seed(0)
    config = PPOConfig(encoder_sizes=(8, 8), lstm_size=8, head_hidden=8, entity_size=7, policy_gain=1.0, **changes)
    return Policy(SIZE, ACTIONS, config, ENTITIES).eval()


def evaluate(policy: Policy, observations: torch.Tensor) -> Any:
    batch, time, _ = observations.shape
    starts = torch.zeros(batch, time, dtype=torch.bool)
    penalty = Legality.of(ACTIONS, ACTIONS.padding_mask()[..., None, None]).penalty
    return policy(observations, policy.initial_state(batch), starts, 0, penalty)


def test_encoding_and_scores_equal_a_loop_over_entities() -> None:
    policy, observation = make_policy(), torch.randn(1, 1, SIZE)
    encoder, decoder = policy.encoder, policy.decoder
    shared, each = policy.normalizer(observation)[0, 0].split([5, 24])
    row = [torch.zeros(6), *each.split(6), torch.zeros(6)]
    embedded = []
    for three in zip(row, row[1:], row[2:], strict=False):
        hidden = torch.tanh(encoder.hidden(torch.cat([shared, *three])))
        embedded.append(torch.tanh(encoder.embed(hidden)))
    pooled = torch.cat([shared, torch.stack(embedded).mean(0), torch.stack(embedded).max(0).values])
    encoded = policy.encode(observation)[0, 0]
    torch.testing.assert_close(encoded, torch.cat([encoder.encoder(pooled), *embedded]))

    features, _ = policy.step(observation, policy.initial_state(1), torch.ones(1, 1, dtype=torch.bool))
    logits, _ = decoder(features)
    actor = decoder.actor(decoder.norm(features[0, 0, :8]))
    for row in range(3):
        hidden = torch.tanh(actor + decoder.op_embedding[row])
        scores = torch.stack([decoder.query(hidden) @ embedding for embedding in embedded])
        cell = 1 + row * 2 + 1
        torch.testing.assert_close(logits[cell, :4, 0, 0], decoder.heads["place"](hidden) + scores)
        torch.testing.assert_close(logits[cell - 1, :2, 0, 0], decoder.heads["kind"](hidden))


def test_exchanging_entities_with_their_neighbours_exchanges_their_scores_and_nothing_else() -> None:
    policy, observations = make_policy(), torch.randn(3, 4, SIZE)
    with torch.no_grad():
        policy.decoder.heads["place"].weight.zero_()
        policy.encoder.hidden.weight[:, [*range(5, 11), *range(17, 23)]] = 0.0  # blind to who stands beside whom
    order = [2, 0, 3, 1]
    moved = observations.clone()
    moved[..., 5:] = observations[..., 5:].unflatten(-1, (4, 6))[..., order, :].flatten(-2)
    before, after = evaluate(policy, observations), evaluate(policy, moved)
    torch.testing.assert_close(after.values, before.values)
    for row in range(3):
        place = 1 + row * 2 + 1
        torch.testing.assert_close(after.distribution.p[place, :4], before.distribution.p[place, order])
        torch.testing.assert_close(after.distribution.p[place - 1], before.distribution.p[place - 1])


@pytest.mark.parametrize("neighbours", [True, False])
def test_an_embedding_depends_on_the_neighbours_if_they_are_read(neighbours: bool) -> None:
    policy, observation = make_policy(entity_neighbours=neighbours), torch.randn(1, 1, SIZE)
    changed = observation.clone()
    changed[..., 5:11] += 1.0  # the first entity
    embedded = [policy.encode(seen)[0, 0, 8:].unflatten(0, (4, 7)) for seen in (observation, changed)]
    differs = (embedded[0] != embedded[1]).any(-1).tolist()
    assert differs == [True, neighbours, False, False]


def test_every_parameter_learns_and_belongs_to_one_group() -> None:
    policy = make_policy()
    result = evaluate(policy, torch.randn(3, 4, SIZE))
    (result.distribution.entropy().sum() + result.values.sum()).backward()
    assert all(p.grad is not None and p.grad.any() for p in policy.parameters())
    grouped = [id(p) for group in policy.parameter_groups().values() for p in group]
    assert sorted(grouped) == sorted(map(id, policy.parameters()))
    assert any(p is policy.decoder.query.weight for p in policy.parameter_groups()["head_place"])


def actions_of(env: Any) -> ActionSpec:
    sizes = {head: int(env.single_action_space[head].n) for head in esper_env.HEADS}
    return ActionSpec("dict", tuple(sizes), tuple(sizes.values()), True, True)


def test_esper_declares_its_slots_and_a_wrapper_that_resizes_observations_hides_them() -> None:
    vector = make_vector_env("Esper-v0", 2)
    assert declared_entities(vector, actions_of(vector)) == Entities("slot", 27, 3, 29)
    single = SyncVectorEnv([lambda: gymnasium.make("Esper-v0")])
    found = declared_entities(single, actions_of(single))
    assert found is not None
    labels = [label for label, _ in single.envs[0].unwrapped.row.simulation.schema.columns()]
    assert labels[found.shared].startswith("slot0.")
    assert labels[found.shared + found.width].startswith("slot1.")
    stacked = SyncVectorEnv([lambda: gymnasium.wrappers.FrameStackObservation(gymnasium.make("Esper-v0"), 2)])
    assert declared_entities(stacked, actions_of(single)) is None


@pytest.mark.parametrize("entity_size", [16, 0])
def test_the_first_ratio_is_1_with_entities_and_without(entity_size: int) -> None:
    env = gymnasium.make_vec("Esper-v0", num_envs=3, horizon=5, output="torch", autoreset_mode="same_step")
    model = FactoredRecurrentPPO(
        env, seed=0, n_steps=8, sequence_length=4, n_minibatches=2, entity_size=entity_size, policy_gain=1.0
    )
    assert (model.policy.decoder.entities is None) == (entity_size == 0)
    assert first_deviation(model) < FEW_ULPS


def test_an_agent_with_entities_saves_loads_and_predicts_alike(tmp_path: Any) -> None:
    env = gymnasium.make_vec("Esper-v0", num_envs=2, output="torch", autoreset_mode="same_step")
    model = FactoredRecurrentPPO(env, seed=0, n_steps=8, sequence_length=8, n_minibatches=1).learn(16)
    model.save(tmp_path / "model.ckpt")
    again = FactoredRecurrentPPO.load(tmp_path / "model.ckpt", env)
    observation, info = gymnasium.make("Esper-v0").reset(seed=0)
    one, other = (m.predict(observation, deterministic=True, action_masks=info) for m in (model, again))
    assert one[0] == other[0]
    np.testing.assert_array_equal(one[1][0], other[1][0])
    flat = FactoredRecurrentPPO(env, seed=0, n_steps=8, sequence_length=8, n_minibatches=1, entity_size=0)
    with pytest.raises(ValueError, match="the saved parameter"):
        flat.load_state_dict(model.state_dict())
    with pytest.raises(ValueError, match="entity_size is -1; allowed: an integer of at least 0"):
        PPOConfig(entity_size=-1)
