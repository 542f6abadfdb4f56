"""A policy grows a user's own module in a user's own loop: an agent as well as a rule."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from esper_agent import FactoredRecurrentPPO, Grower
from esper_agent.baselines.scripted import GrowEverything
from esper_env import HEADS, GrowingModule, Op
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

INPUTS = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
LABELS = (INPUTS[:, 0] * INPUTS[:, 1] > 0).long()


def model_of(depth: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(6, 6), nn.ReLU()) for _ in range(depth)]
    return nn.Sequential(*blocks, nn.Linear(6, 2))


class Loop:
    """A training loop as users have it."""

    def __init__(self, policy: Any, horizon: int = 14, optimizer: Any = torch.optim.AdamW, depth: int = 3) -> None:
        model = model_of(depth)
        names = [str(number) for number in range(depth)]
        self.model = GrowingModule(model, slots=names, example_input=INPUTS)
        self.optimizer, self.horizon = optimizer(self.model.parameters(), lr=0.01), horizon
        self.grower = Grower(self.model, policy, self.optimizer, evaluate=self.evaluate, horizon=horizon)

    def evaluate(self) -> tuple[float, float]:
        with torch.no_grad():
            logits = self.model(INPUTS)
        return F.cross_entropy(logits, LABELS).item(), (logits.argmax(1) == LABELS).float().mean().item()

    def epoch(self) -> str:
        for rows in torch.arange(60).split(20):
            self.optimizer.zero_grad()
            self.model.loss(lambda rows=rows: F.cross_entropy(self.model(INPUTS[rows]), LABELS[rows])).backward()
            self.optimizer.step()
        return self.grower.step()


def held(optimizer: torch.optim.Optimizer) -> set[int]:
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


def test_a_rule_grows_every_slot_and_the_optimiser_follows() -> None:
    loop = Loop(GrowEverything, horizon=30)
    schedule = CosineAnnealingLR(loop.optimizer, 30)
    told = []
    for _ in range(30):
        told.append(loop.epoch())
        schedule.step()
        assert held(loop.optimizer) == {id(p) for p in loop.model.parameters()}
        assert {id(p) for p in loop.optimizer.state} <= held(loop.optimizer)
    assert all(slot.committed for slot in loop.model.slots)
    assert told[0].startswith("epoch 1: metric ")
    assert sum("germinate medium_mlp (ADD, blends over 3 epochs)" in line for line in told) == 3
    assert sum("fossilize" in line for line in told) == 3
    assert told[-1].endswith("growth is over")
    torch.testing.assert_close(loop.model.plain()(INPUTS), loop.model(INPUTS))


def test_an_agent_plays_with_its_memory_and_only_legal_operations() -> None:
    agent = FactoredRecurrentPPO("Esper-v0", n_envs=2, seed=0)
    loop = Loop(agent)
    told = [loop.epoch() for _ in range(14)]
    assert loop.grower.memory is not None
    assert not any("illegal" in line for line in told)
    assert all(slot.committed or slot.seed is None for slot in loop.model.slots)
    assert loop.epoch() == "epoch 14: growth is over"


def test_state_of_other_parameters_is_kept_when_a_seed_is_pruned() -> None:
    loop = Loop(GrowEverything)
    loop.epoch()
    weight = loop.model.slots[0].block[0].weight
    before = loop.optimizer.state[weight]["exp_avg"].clone()
    loop.grower._extend(0, loop.model.germinate(0, "low_rank"))
    loop.grower._reduce(loop.model.prune(0))
    assert torch.equal(loop.optimizer.state[weight]["exp_avg"], before)
    assert held(loop.optimizer) == {id(p) for p in loop.model.parameters()}


def test_one_line_says_what_a_grower_cannot_use() -> None:
    agent = FactoredRecurrentPPO("Esper-v0", n_envs=2, seed=0)
    with pytest.raises(ValueError, match=r"allowed: .* one trained for 2 slots and 5 blueprints"):
        Loop(agent, depth=2)
    for kind in (torch.optim.LBFGS, torch.optim.SparseAdam):
        with pytest.raises(TypeError, match=f"the optimiser is {kind.__name__}; allowed: .* other than LBFGS, Muon"):
            Loop(agent, optimizer=kind)
    with pytest.raises(ValueError, match="the optimiser has no parameter of a slot's block"):
        Loop(agent, optimizer=lambda _, lr: torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=lr))
    with pytest.raises(TypeError, match="model is a Linear; allowed: a GrowingModule"):
        Grower(nn.Linear(2, 2), agent, None, evaluate=None, horizon=3)  # type: ignore[arg-type]


class Elsewhere:
    """Answers with a slot that the module does not have."""

    def predict(self, *_: Any) -> tuple[dict[str, int], None]:
        return {**dict.fromkeys(HEADS, 0), "op": int(Op.GERMINATE), "slot": 7}, None


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (Elsewhere(), r"action\['slot'\] is \[7\]; allowed: 0 to 2"),
        (object(), "the policy is a object; allowed: anything with SB3's predict"),
    ],
)
def test_a_policy_that_cannot_be_followed_changes_nothing(policy: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        Loop(policy)


def test_a_loop_that_does_not_make_its_losses_by_the_module_is_told_so() -> None:
    loop = Loop(GrowEverything)
    with pytest.raises(ValueError, match="no minibatch was trained since the last step"):
        loop.grower.step()


def test_gradients_and_losses_are_those_of_the_epoch() -> None:
    loop = Loop(GrowEverything)
    loop.epoch()
    assert loop.grower.growth.state.train_loss.item() == pytest.approx(0.69, abs=0.15)
    assert (loop.grower.growth.state.block_grad > 0).all()
    assert all(not slot.gradients for slot in loop.model.slots)
