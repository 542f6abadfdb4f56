"""bfloat16 and torch.compile: the same code everywhere, and nothing breaks when the compiler does."""

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from esper_agent import FactoredRecurrentPPO
from esper_agent.algorithm.compilation import Compilation
from esper_agent.diagnostics.metrics import by_label
from stable_baselines3.common.callbacks import CallbackList
from stable_baselines3.common.logger import KVWriter, Logger
from toy_envs import MaskedHeads

SMALL: dict[str, Any] = {"n_steps": 16, "sequence_length": 8, "encoder_sizes": (8,), "lstm_size": 8, "head_hidden": 8}


def make_model(**changes: Any) -> FactoredRecurrentPPO:
    return FactoredRecurrentPPO(MaskedHeads(4), seed=0, **{**SMALL, **changes})


def with_backend(monkeypatch: pytest.MonkeyPatch, backend: Any) -> None:
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **options: compile_(function, backend=backend, **options))


def weights(model: FactoredRecurrentPPO) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.policy.state_dict().items()}


class Column(KVWriter):
    """Keeps what is logged under one name."""

    def __init__(self, name: str) -> None:
        self.name, self.values = name, []

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:  # noqa: ARG002
        self.values.append(key_values[self.name])


def log_of(model: FactoredRecurrentPPO, name: str) -> list[float]:
    column = Column(name)
    model.set_logger(Logger(None, [column]))
    return column.values


@pytest.mark.ledger("V5", "Z12")
def test_compiled_code_is_on_record_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    with_backend(monkeypatch, "eager")
    plain, compiled = make_model(), make_model(compile=True)
    logs = [log_of(model, "train/compiled") for model in (plain, compiled)]
    plain.learn(64)
    compiled.learn(64)
    assert logs == [[0.0], [1.0]]


@pytest.mark.ledger("V5", "Z12")
def test_a_failing_compiler_gives_one_warning_and_the_same_results(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = make_model()
    plain.learn(128)

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no compiler here")

    with_backend(monkeypatch, broken)
    model = make_model(compile=True)
    logged = log_of(model, "train/compiled")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.learn(128)
    ours = [str(warning.message) for warning in caught if "running uncompiled" in str(warning.message)]
    assert len(ours) == 1
    assert "no compiler here" in ours[0]
    assert not model.learner.compiled
    assert model.state_dict()["compiled"] is False
    assert logged == [0.0, 0.0]
    assert all(torch.equal(value, weights(model)[name]) for name, value in weights(plain).items())


@pytest.mark.ledger("U24", "TG5", "D3")
def test_compiled_and_eager_updates_agree_and_norms_come_from_the_raw_module(monkeypatch: pytest.MonkeyPatch) -> None:
    with_backend(monkeypatch, "aot_eager")
    eager, compiled = make_model(), make_model(compile=True)
    stats = []
    for model in (eager, compiled):
        callback = CallbackList([])
        callback.init_callback(model)
        model.collect(callback)
        stats.append(model.update())
    assert compiled.learner.compiled
    assert compiled.state_dict()["compiled"] is True
    assert by_label(stats[0], "grad_norms") == pytest.approx(by_label(stats[1], "grad_norms"), rel=1e-4)
    assert not any("_orig_mod" in name for name in compiled.policy.state_dict())
    assert list(compiled.policy.state_dict()) == list(eager.policy.state_dict())
    for name, value in weights(eager).items():
        torch.testing.assert_close(weights(compiled)[name], value, atol=1e-5, rtol=1e-4)


@pytest.mark.ledger("TG5", "D3", "N9", "P12")
def test_the_compiled_parts_have_no_graph_break() -> None:
    policy = make_model().policy
    hidden = torch.randn(4, 8, 8)
    for function, argument in ((policy.encode, torch.randn(4, 8, 6)), (policy.decoder.forward, hidden)):
        torch._dynamo.reset()
        explained = torch._dynamo.explain(function)(argument)
        assert explained.graph_break_count == 0
        assert explained.graph_count == 1


def test_a_call_that_fails_later_falls_back_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def late(_function: Any, **_: Any) -> Any:
        def fail_at_the_second(value: int) -> int:
            calls.append(value)
            if len(calls) > 1:
                raise RuntimeError("late")
            return value + 1

        return fail_at_the_second

    monkeypatch.setattr(torch, "compile", late)
    compilation = Compilation()
    first, second = compilation.wrap(lambda value: value + 1), compilation.wrap(lambda value: value * 10)
    assert first(1) == 2
    with pytest.warns(UserWarning, match="torch.compile failed"):
        assert first(2) == 3
    assert second(3) == 30
    assert calls == [1, 2]
    assert not compilation.compiled


BF16 = """
import sys
sys.path[:0] = sys.argv[1:]
import torch
from esper_agent import FactoredRecurrentPPO, evaluate_policy
from toy_envs import MaskedHeads
from update_tools import FEW_ULPS, collect, deviation, loss_of

model = FactoredRecurrentPPO(
    MaskedHeads(4), seed=0, n_steps=16, sequence_length=8, lstm_size=16, precision="bfloat16", policy_gain=1.0
)
assert model.state_dict()["config"]["precision"] == "bfloat16"
model.learn(128)
decoder, acted, judged = model.policy.decoder, [], []
logits, values = decoder.logits, decoder.values
decoder.logits = lambda features: (acted.append(torch.is_autocast_enabled("cpu")), logits(features))[1]
decoder.values = lambda features: (judged.append(torch.is_autocast_enabled("cpu")), values(features))[1]
learner, batch = model.learner, collect(model)
model.collector.last_values()
assert set(acted) == set(judged) == {True}, (acted, judged)
partition = learner.partition(batch.count)
old = learner.old_policy(batch, partition)
targets, _ = learner.targets(model.buffer, batch, old, model.collector.last_values())
assert old.hidden.dtype == torch.bfloat16
assert old.head_log_probs.dtype == torch.float32
for rows in partition:
    assert deviation(model, batch.select(rows), targets.select(rows)) < FEW_ULPS
loss = loss_of(learner, batch, targets)
learner.optimizer.differentiate(loss.total)
assert all(p.grad is not None and p.grad.isfinite().all() for p in model.policy.parameters())
assert all(p.dtype == torch.float32 for p in model.policy.parameters())
evaluate_policy(model, MaskedHeads(2), 4)
print("bfloat16 holds")
"""


@pytest.mark.ledger("V2", "Z11")
def test_bfloat16_is_used_alike_in_acting_for_the_old_policy_and_in_learning() -> None:
    # AMX tiles may be announced by the processor and yet be forbidden to the process; oneDNN does not check.
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
    command = [sys.executable, "-c", BF16, *map(str, Path(__file__).parents[:2])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "bfloat16 holds", done.stderr
