"""A checkpoint comes back exactly, or not at all; writing one never endangers the one before it."""

import copy
import errno
import math
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_fixtures import ENV, fixture_file, make_agent
from esper_agent import cli
from esper_agent.algorithm import checkpoint
from esper_agent.algorithm.checkpoint import (
    MIGRATIONS,
    OLDEST_VERSION,
    SCHEMA_VERSION,
    CheckpointError,
    load_checkpoint,
    migrate_3_to_4,
    restore_checkpoint,
    save_checkpoint,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from patience import PATIENCE
from torch import Tensor

PACKAGE = Path(checkpoint.__file__).parent
STATE = {"policy": {"w": torch.arange(6.0).view(2, 3)}, "counters": {"env_steps": 7}, "log": [1, None, "x"]}

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
TENSORS = st.builds(
    lambda shape, dtype: torch.randint(0, 2, shape).to(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from(DTYPES),
)
PRIMITIVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
STATES = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        PRIMITIVES | TENSORS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=10,
    ),
    max_size=4,
)


def assert_same(left: Any, right: Any) -> None:
    assert type(left) is type(right)
    if isinstance(left, dict):
        assert list(left) == list(right)
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, list):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    elif isinstance(left, Tensor):
        assert left.dtype == right.dtype
        assert left.shape == right.shape
        assert torch.equal(left, right)
    elif isinstance(left, float) and math.isnan(left):
        assert math.isnan(right)
    else:
        assert left == right


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STATES)
def test_any_state_comes_back_exactly(tmp_path: Path, state: dict[str, Any]) -> None:
    save_checkpoint(tmp_path / "a.ckpt", state)
    assert_same(load_checkpoint(tmp_path / "a.ckpt"), state)


def test_a_checkpoint_can_be_read_by_whom_the_user_allows(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "a.ckpt", STATE)
    (tmp_path / "plain").touch()
    assert (tmp_path / "a.ckpt").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_view_is_saved_without_the_storage_around_it(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "a.ckpt", {"row": torch.zeros(1000, 1000)[3]})
    assert (tmp_path / "a.ckpt").stat().st_size < 10_000


@pytest.mark.ledger("K3")
@pytest.mark.parametrize(
    ("value", "named"),
    [({"f": print}, r"state\['a'\]\['f'\] is builtin"), ({3: 1}, r"state\['a'\] is dict"), ((1, 2), "is tuple")],
)
def test_anything_but_tensors_and_json_is_refused_by_its_place(tmp_path: Path, value: Any, named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        save_checkpoint(tmp_path / "a.ckpt", {"a": value})
    assert list(tmp_path.iterdir()) == []


class Hostile:
    """Runs a command when an ordinary unpickler reads it."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (self.command,)


@pytest.mark.ledger("K3")
@pytest.mark.parametrize("container", ["torch", "pickle"])
def test_a_hostile_file_runs_nothing(tmp_path: Path, container: str) -> None:
    witness, file = tmp_path / "witness", tmp_path / "hostile.ckpt"
    document = {
        "format": checkpoint.FORMAT,
        "version": SCHEMA_VERSION,
        "tree": Hostile(f"touch {witness}"),
        "tensors": [],
    }
    if container == "torch":
        torch.save(document, file)
    else:
        file.write_bytes(pickle.dumps(document))
    with pytest.raises(CheckpointError) as raised:
        load_checkpoint(file)
    assert not witness.exists()
    assert len(str(raised.value).splitlines()) == 1 or container == "pickle"
    if container == "torch":
        assert isinstance(raised.value.__cause__, pickle.UnpicklingError)


@pytest.mark.ledger("K3")
def test_the_package_reads_files_in_the_safe_way_only() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    assert source.count("torch.load(") == source.count("weights_only=True") == 1
    assert "pickle.load" not in source


def test_a_truncated_file_is_refused_wherever_it_was_cut(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "a.ckpt", STATE)
    whole = (tmp_path / "a.ckpt").read_bytes()
    for length in range(0, len(whole), 41):
        (tmp_path / "cut.ckpt").write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"cut\.ckpt is damaged"):
            load_checkpoint(tmp_path / "cut.ckpt")


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_flipped_bit_never_gives_another_state(tmp_path: Path, data: st.DataObject) -> None:
    save_checkpoint(tmp_path / "a.ckpt", STATE)
    content = bytearray((tmp_path / "a.ckpt").read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    (tmp_path / "b.ckpt").write_bytes(content)
    try:
        loaded = load_checkpoint(tmp_path / "b.ckpt")
    except CheckpointError:
        return
    assert_same(loaded, STATE)  # the bit was in the padding


@pytest.mark.parametrize(
    "document",
    [
        torch.zeros(3),
        {"weights": torch.zeros(3)},
        {"format": checkpoint.FORMAT},
        {"format": checkpoint.FORMAT, "version": "1"},
        {"format": checkpoint.FORMAT, "version": OLDEST_VERSION - 1, "tree": "{}", "tensors": []},
        {"format": checkpoint.FORMAT, "version": SCHEMA_VERSION},
        {"format": checkpoint.FORMAT, "version": SCHEMA_VERSION, "tree": '{"a": {"$tensor": 5}}', "tensors": []},
        {"format": checkpoint.FORMAT, "version": SCHEMA_VERSION, "tree": "{", "tensors": []},
        {"format": checkpoint.FORMAT, "version": OLDEST_VERSION, "tree": "{}", "tensors": []},
    ],
)
def test_a_foreign_or_malformed_document_is_one_kind_of_error(tmp_path: Path, document: Any) -> None:
    torch.save(document, tmp_path / "odd.ckpt")
    with pytest.raises(CheckpointError, match=r" is (not an|malformed)"):
        load_checkpoint(tmp_path / "odd.ckpt")


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        load_checkpoint(tmp_path / "none.ckpt")


@pytest.mark.ledger("K2")
def test_a_newer_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as future:
        future.setattr(checkpoint, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
        save_checkpoint(tmp_path / "a.ckpt", STATE)
    with pytest.raises(CheckpointError, match=rf"version {SCHEMA_VERSION + 1}.*update esper-agent"):
        load_checkpoint(tmp_path / "a.ckpt")


@pytest.mark.ledger("K2")
def test_there_is_one_migration_for_each_version_and_a_line_about_it() -> None:
    assert len(MIGRATIONS) == SCHEMA_VERSION - OLDEST_VERSION
    assert checkpoint.__doc__ is not None
    assert all(f"| {version} |" in checkpoint.__doc__ for version in range(OLDEST_VERSION, SCHEMA_VERSION + 1))


@pytest.mark.ledger("K2")
@pytest.mark.parametrize("version", range(OLDEST_VERSION, SCHEMA_VERSION + 1))
def test_a_stored_checkpoint_of_every_version_goes_on_training(version: int) -> None:
    model = make_agent(seed=0)
    restore_checkpoint(fixture_file(version), model)
    assert asdict(model.learner.counters) == {
        "env_steps": 64,
        "rollouts": 4,
        "optimizer_steps": 16,
        "quarantined": 0,
    }
    reference = make_agent(seed=0)
    restore_checkpoint(fixture_file(SCHEMA_VERSION), reference)
    for trained in (model, reference):
        trained.learn(32, reset_num_timesteps=False)
    assert_same(model.state_dict(), reference.state_dict())


@pytest.mark.ledger("K3")
@pytest.mark.parametrize(
    "part", ["policy", "optimizer", "counters", "generators", "detectors", "episodes", "env", "collector", "rollout"]
)
def test_a_checkpoint_that_lacks_a_part_changes_nothing(tmp_path: Path, part: str) -> None:
    state = load_checkpoint(fixture_file(SCHEMA_VERSION))
    del state[part]
    save_checkpoint(tmp_path / "part.ckpt", state)
    model = make_agent(seed=0)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(CheckpointError, match=rf"part\.ckpt does not fit.*{part}.*nothing has changed"):
        restore_checkpoint(tmp_path / "part.ckpt", model)
    assert_same(model.state_dict(), before)


@pytest.mark.ledger("K3")
def test_a_truncated_checkpoint_changes_nothing(tmp_path: Path) -> None:
    whole = fixture_file(SCHEMA_VERSION).read_bytes()
    (tmp_path / "cut.ckpt").write_bytes(whole[: len(whole) // 2])
    model = make_agent(seed=0)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(CheckpointError, match="damaged"):
        restore_checkpoint(tmp_path / "cut.ckpt", model)
    assert_same(model.state_dict(), before)


@pytest.mark.ledger("K2")
def test_the_command_upgrades_a_file_in_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "old.ckpt"
    shutil.copy(fixture_file(OLDEST_VERSION), file)
    expected = load_checkpoint(file)
    assert cli.main(["upgrade", str(file)]) == 0
    assert f"upgraded from version {OLDEST_VERSION}" in capsys.readouterr().out
    assert checkpoint.upgrade_checkpoint(file) == (SCHEMA_VERSION, SCHEMA_VERSION)
    assert_same(load_checkpoint(file), expected)


@pytest.mark.ledger("K2")
def test_a_migration_leaves_its_input_alone() -> None:
    other = {"runner": {"starts": 2}, "env": {"simulation": {}}}
    old = {
        "config": {"item_size": 4, "lstm_size": 8, "condition_on_op": True},
        "actions": {"by_op": False},
        "observations": {"shape": [3], "sizes": None},
        "counters": {"rollouts": 7},
        "policy": {"encoder.describe.bias": 0, "value.bias": 1},
        **{"runner": {"starts": 1}, "env": {"position": 3}, "other_ranks": [other]},
    }
    before = copy.deepcopy(old)
    assert migrate_3_to_4(old) == {
        "config": {"entity_size": 4, "lstm_size": 8, "condition_on_op": False},
        "actions": {"by_op": False, "conditioned": False},
        "observation_space": {"kind": "unbounded", "shape": [3]},
        "entities": None,
        "counters": {"rollouts": 7, "quarantined": 0},
        "policy": {"encoder.embed.bias": 0, "value.bias": 1},
        **{"collector": {"starts": 1}, "env": {"position": 3}},
        "other_ranks": [{"collector": {"starts": 2}, "env": None}],
    }
    assert old == before


@pytest.mark.ledger("X13")
@pytest.mark.parametrize("failing", ["os.fsync", "os.replace", "torch.save"])
def test_a_failed_write_leaves_the_previous_checkpoint_and_no_litter(
    tmp_path: Path, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.ckpt"
    save_checkpoint(file, STATE)

    def fail(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(failing, fail)
    with pytest.raises(CheckpointError, match=r"Read-only.*unchanged"):
        save_checkpoint(file, {"other": 1})
    assert_same(load_checkpoint(file), STATE)
    assert list(tmp_path.iterdir()) == [file]


def run_python(code: str, *args: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


FILL_THE_DISK = """
import resource, signal, sys, torch
from esper_agent.algorithm.checkpoint import CheckpointError, save_checkpoint
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    save_checkpoint(sys.argv[1], {"w": torch.zeros(1_000_000)})
except CheckpointError as error:
    print("refused:", error)
"""


@pytest.mark.ledger("X13", "Y8")
def test_the_previous_checkpoint_survives_when_there_is_no_room(tmp_path: Path) -> None:
    file = tmp_path / "a.ckpt"
    save_checkpoint(file, STATE)
    output, _ = run_python(FILL_THE_DISK, file).communicate(timeout=PATIENCE)
    assert output.startswith("refused: cannot write")
    assert "File too large" in output
    assert "unexpected pos" not in output
    assert_same(load_checkpoint(file), STATE)
    assert list(tmp_path.iterdir()) == [file]


SAVE_FOREVER = """
import itertools, sys, torch
from esper_agent.algorithm.checkpoint import save_checkpoint
for i in itertools.count():
    save_checkpoint(sys.argv[1], {"i": i, "w": torch.full((200_000,), float(i))})
    print(i, flush=True)
"""


@pytest.mark.ledger("X13")
def test_a_process_killed_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    writer = run_python(SAVE_FOREVER, tmp_path / "a.ckpt")
    assert writer.stdout is not None
    writer.stdout.readline()
    time.sleep(0.05 + (time.time_ns() % 100) / 1000)
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    state = load_checkpoint(tmp_path / "a.ckpt")
    assert torch.equal(state["w"], torch.full((200_000,), float(state["i"])))


MEASURE_LOAD = """
import resource, sys
from esper_agent.algorithm.checkpoint import load_checkpoint, save_checkpoint
load_checkpoint(sys.argv[1])  # imports and allocator warmed up on a small file
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
state = load_checkpoint(sys.argv[2])
total = sum(float(tensor.sum()) for tensor in state["weights"])  # every page is touched
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, total)
"""


@pytest.mark.ledger("K1")
def test_loading_takes_less_than_twice_the_file_in_memory(tmp_path: Path) -> None:
    small, large = tmp_path / "small.ckpt", tmp_path / "large.ckpt"
    save_checkpoint(small, {"weights": [torch.ones(10)]})
    save_checkpoint(large, {"weights": [torch.ones(4_000_000) for _ in range(8)]})
    grown, total = run_python(MEASURE_LOAD, small, large).communicate(timeout=PATIENCE)[0].split()
    assert float(total) == 32_000_000
    assert int(grown) * 1024 < 2 * large.stat().st_size


MAPS = Path("/proc/self/maps")


def mapped_file(tensor: Tensor) -> str | None:
    """The file that a tensor's memory is mapped from; None for memory of the process's own."""
    for low, high, name in re.findall(r"^(\w+)-(\w+) .* (/.*)$", MAPS.read_text(), flags=re.MULTILINE):
        if int(low, 16) <= tensor.data_ptr() < int(high, 16):
            return str(name)
    return None


@pytest.mark.ledger("K1", "Z18")
@pytest.mark.skipif(not MAPS.exists(), reason="only Linux tells what memory is mapped from")
@pytest.mark.parametrize("way", ["load", "restore"])
def test_an_agent_takes_its_weights_straight_from_the_mapped_file(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path, agent, given = fixture_file(SCHEMA_VERSION), make_agent(seed=1), []
    monkeypatch.setattr(type(agent), "load_state_dict", lambda _, state: given.append(state))
    type(agent).load(path, ENV) if way == "load" else agent.restore(path)
    (state,) = given
    moments = [tensor for moments in state["optimizer"].values() for tensor in moments.values()]
    assert moments
    assert {mapped_file(tensor) for tensor in (*state["policy"].values(), *moments)} == {str(path)}
