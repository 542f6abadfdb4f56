"""A checkpoint enters an agent only if every part of it fits; from one kind of device it reaches another."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from esper_agent import FactoredRecurrentPPO, cli
from esper_agent.algorithm.checkpoint import CheckpointError, load_checkpoint, restore_checkpoint, save_checkpoint
from esper_agent.algorithm.devices import load_generator
from test_checkpoint import assert_same
from test_ppo_resume import SaveAt, flatten, make_model

CHANGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "one row": lambda tensor: tensor[:1] if tensor.dim() else tensor[None],
    "stretched": lambda tensor: torch.cat([tensor, tensor]) if tensor.dim() else tensor.repeat(3),
    "other type": lambda tensor: tensor.to(torch.int16),
    "no tensor": lambda tensor: tensor.tolist(),
}
PARTS = ("policy", "optimizer", "generators", "collector", "rollout")
HUGE = 30_000


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A state in the middle of a rollout."""
    path = tmp_path_factory.mktemp("saved") / "a.ckpt"
    make_model().learn(128, SaveAt(92, path))
    return load_checkpoint(path)


def changed(state: dict[str, Any], place: str, value: Any) -> dict[str, Any]:
    _, *parents, last = place.split("/")
    copied = copy.deepcopy(state)
    owner = copied
    for parent in parents:
        owner = owner[parent]
    owner[last] = value
    return copied


@pytest.mark.ledger("Y6")
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_tensor_of_another_shape_or_type_is_refused(
    saved: dict[str, Any], tmp_path: Path, part: str, change: str
) -> None:
    model = make_model()
    before = copy.deepcopy(model.state_dict())
    tensors = {name: leaf for name, leaf in flatten(saved).items() if name.startswith(f"/{part}/")}
    tensors = {name: leaf for name, leaf in tensors.items() if isinstance(leaf, torch.Tensor)}
    assert tensors
    for place, tensor in tensors.items():
        value = CHANGES[change](tensor)
        if isinstance(value, torch.Tensor) and value.shape == tensor.shape and value.dtype == tensor.dtype:
            continue
        save_checkpoint(tmp_path / "a.ckpt", changed(saved, place, value))
        with pytest.raises(CheckpointError, match=r"a\.ckpt does not fit"):
            restore_checkpoint(tmp_path / "a.ckpt", model)
    assert_same(model.state_dict(), before)


@pytest.mark.ledger("Y6")
@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("/counters/env_steps", "many"),
        ("/counters", []),
        ("/rollout/position", 17),
        ("/rollout/position", -1),
        ("/rollout/position", 2.0),
        ("/total_timesteps", None),
    ],
)
def test_a_value_that_means_nothing_is_refused(saved: dict[str, Any], tmp_path: Path, place: str, value: Any) -> None:
    save_checkpoint(tmp_path / "a.ckpt", changed(saved, place, value))
    with pytest.raises(CheckpointError, match="does not fit"):
        restore_checkpoint(tmp_path / "a.ckpt", make_model())


@pytest.mark.ledger("Y6")
@pytest.mark.parametrize("setting", [{"lstm_size": HUGE}, {"encoder_sizes": [HUGE, HUGE]}, {"head_hidden": 10**9}])
def test_settings_that_ask_for_more_than_was_saved_are_refused_before_they_are_allocated(
    saved: dict[str, Any], tmp_path: Path, setting: dict[str, Any]
) -> None:
    save_checkpoint(tmp_path / "a.ckpt", {**saved, "config": {**saved["config"], **setting}})
    with pytest.raises(ValueError, match=r"ask for at least [\d,]+ parameters; saved are"):
        FactoredRecurrentPPO.load(tmp_path / "a.ckpt", "CartPole-v1")


class OtherGenerator:
    """A generator of the other kind of device, which torch has none of here."""

    def __init__(self) -> None:
        self.key: int | None = None

    def get_state(self) -> torch.Tensor:
        return torch.zeros(16, dtype=torch.uint8)

    def manual_seed(self, key: int) -> None:
        self.key = key


@pytest.mark.ledger("Y5")
def test_a_checkpoint_from_a_gpu_loads_on_a_cpu_with_a_note(saved: dict[str, Any], tmp_path: Path) -> None:
    state = changed(saved, "/generators/actions", torch.arange(16, dtype=torch.uint8))
    save_checkpoint(tmp_path / "gpu.ckpt", state)
    first, second = make_model(), make_model()
    for model in (first, second):
        with pytest.warns(UserWarning, match="from another kind of device"):
            restore_checkpoint(tmp_path / "gpu.ckpt", model)
        model.learn(36, reset_num_timesteps=False)
    assert_same(first.state_dict(), second.state_dict())  # drawn anew, and still reproducible
    assert not torch.equal(first.action_generator.get_state(), make_model().action_generator.get_state())


@pytest.mark.ledger("Y5")
def test_the_generator_of_a_cpu_seeds_that_of_a_gpu() -> None:
    other: Any = OtherGenerator()
    with pytest.warns(UserWarning, match="from another kind of device"):
        load_generator(other, torch.Generator().get_state(), 7)
    assert other.key == 7


@pytest.mark.ledger("Y18")
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:0", "abacus"])
def test_a_device_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], device: str) -> None:
    with pytest.raises(ValueError, match=f"device is '{device}'.*allowed: 'auto', 'cpu'"):
        make_model(device=device)
    assert cli.main(["train", "Esper-v0", "--run-dir", str(tmp_path / "run"), "--device", device]) == 1
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert f"device is '{device}'" in error
    assert list(tmp_path.iterdir()) == []
    assert make_model(device="auto").device.type == "cpu"
