"""Checkpoints: one file of tensors and JSON, written atomically, versioned, and read without running code.

| version | state |
|---|---|
| 3 | what version 0.1.0 wrote |
| 4 | `counters.quarantined`, spaces; names: `entity_size`, `encoder.embed`, `collector`; other hosts' state |
| 5 | `policy.memory` for `policy.lstm`; settings of the memory, masks, entities, entropies and values |
"""

import copy
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from esper_env.files import replacing
from torch import Tensor

from esper_agent.algorithm.archive import FORMAT, CheckpointError, load_document

State = dict[str, Any]

SCHEMA_VERSION = 5
OLDEST_VERSION = 3  # what came before was never released
_TENSOR = "$tensor"
_PRIMITIVES = (str, int, float, bool, type(None))
_SETTINGS_BEFORE_5: State = {
    "memory": "lstm",
    "memory_skip": False,
    "masks": "exact",
    "entity_neighbours": True,
    "entropy_unit": "share",
    "normalize_values": True,
}
_FINITE = ("policy", "optimizer")  # parts of a state that one non-finite number makes worthless


def save_checkpoint(path: str | Path, state: State) -> None:
    """Write a state; the file is complete or the previous one stays.

    Args:
        path: the file; its directory is made.
        state: nested dicts with string keys and lists, of tensors, strings, numbers, booleans and None.

    Raises:
        CheckpointError: when the state holds something else or weights that are not finite, or the file cannot be
            written.
    """
    _require_finite(state, "nothing was written")
    tensors: list[Tensor] = []
    tree = json.dumps(_pack(state, "state", tensors))
    document = {"format": FORMAT, "version": SCHEMA_VERSION, "tree": tree, "tensors": tensors}
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with replacing(Path(path)) as file:
            torch.save(document, file)
    except (OSError, RuntimeError) as error:
        # torch hides an error of the file behind one of its own
        reason = error.__context__ if isinstance(error.__context__, OSError) else error
        raise CheckpointError(f"cannot write {path}: {reason}; what was there is unchanged") from error


def load_checkpoint(path: str | Path) -> State:
    """Read a state, brought to the current version; its tensors are mapped from the file, on the CPU.

    Raises:
        CheckpointError: when the file is missing, damaged, foreign, hostile, newer than this package, or holds weights
            that are not finite.
    """
    state = migrate(*_read(Path(path)))
    _require_finite(state, f"{path} is refused")
    return state


class Stateful(Protocol):
    """Something whose state can be taken and given."""

    def state_dict(self) -> State:
        """The state as tensors and plain data."""

    def load_state_dict(self, state: State) -> None:
        """Take over a state."""


def portable(state: State) -> State:
    """The same with its tensors on the CPU, for another process.

    Raises:
        CheckpointError: when it holds what a checkpoint cannot.
    """
    tensors: list[Tensor] = []
    packed = _pack(state, "state", tensors)
    moved: State = _unpack(packed, tensors)
    return moved


def restore_checkpoint(path: str | Path, target: Stateful, *, episodes: bool = True) -> State:
    """Give a checkpoint's state to its owner, completely or not at all; returns it.

    Args:
        path: the checkpoint.
        target: whose state it is.
        episodes: go on in the middle of the saved episodes; else begin new ones.

    Raises:
        CheckpointError: when the file cannot be read or its state does not fit; the owner is as before.
    """
    state, before = load_checkpoint(path), copy.deepcopy(target.state_dict())
    try:
        target.load_state_dict(state if episodes else {**state, "env": None, "other_ranks": []})
    except Exception as error:  # what a stranger's file may meet on its way in has no limits
        target.load_state_dict(before)
        raise CheckpointError(f"{path} does not fit: {error!r}; nothing has changed") from error
    return state


def upgrade_checkpoint(path: str | Path) -> tuple[int, int]:
    """Rewrite a file in the current version; returns the versions before and after."""
    version, state = _read(Path(path))
    if version < SCHEMA_VERSION:
        save_checkpoint(path, migrate(version, state))
    return version, SCHEMA_VERSION


def migrate(version: int, state: State) -> State:
    """Apply the migrations from a version to the current one, in order."""
    try:
        for step in MIGRATIONS[version - OLDEST_VERSION :]:
            state = step(state)
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"the checkpoint is malformed: no state of version {version} ({error!r})") from error
    return state


def migrate_3_to_4(state: State) -> State:
    """Give things their present names; Esper's environments, whose state was another, begin new episodes."""
    own, *others = (_rename(_without_esper(rank), "runner", "collector") for rank in (state, *state["other_ranks"]))
    policy = {name.replace("encoder.describe.", "encoder.embed."): value for name, value in state["policy"].items()}
    conditioned = state["config"]["condition_on_op"] and state["actions"]["by_op"]  # without such masks it was off
    config = {**_rename(state["config"], "item_size", "entity_size"), "condition_on_op": conditioned}
    actions = {**state["actions"], "conditioned": conditioned}
    seen = {"observation_space": _space_of(own.pop("observations")), "entities": None, "actions": actions}
    counters = {**state["counters"], "quarantined": 0}
    return {**own, **seen, "config": config, "counters": counters, "policy": policy, "other_ranks": others}


def migrate_4_to_5(state: State) -> State:
    """Give the memory its present name, and what became a setting the value that it had."""
    policy = {re.sub(r"^lstm\.", "memory.", name): value for name, value in state["policy"].items()}
    return {**state, "policy": policy, "config": {**_SETTINGS_BEFORE_5, **state["config"]}}


def _without_esper(rank: State) -> State:
    return {**rank, "env": None} if "simulation" in (rank["env"] or ()) else rank


def _rename(state: State, old: str, new: str) -> State:
    return {new if name == old else name: value for name, value in state.items()}


def _space_of(observations: State) -> State:
    """The observation space as far as it was known: its shape, or how many discrete values there are."""
    shape, sizes = observations["shape"], observations["sizes"]
    if sizes is not None:
        return {"kind": "multi_discrete", "nvec": sizes} if shape else {"kind": "discrete", "n": sizes[0]}
    return {"kind": "unbounded", "shape": shape}


MIGRATIONS: tuple[Callable[[State], State], ...] = (migrate_3_to_4, migrate_4_to_5)


def _read(path: Path) -> tuple[int, State]:
    """The version and the state as stored."""
    document = load_document(path)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not an {FORMAT}")
    version = document.get("version")
    if type(version) is not int or version < OLDEST_VERSION:
        raise CheckpointError(f"{path} is malformed: its version is {version!r}")
    if version > SCHEMA_VERSION:
        raise CheckpointError(f"{path} has version {version}, newer than {SCHEMA_VERSION}; update esper-agent")
    try:
        state = _unpack(json.loads(document["tree"]), document["tensors"])
    except (KeyError, IndexError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is malformed: {error!r:.200}") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} is malformed: its state is a {type(state).__name__}")
    return version, state


def _require_finite(state: Any, consequence: str) -> None:
    """Refuse weights that no training could mend."""
    for name in _FINITE:
        for where, tensor in _leaves(state.get(name), name):
            if not torch.isfinite(tensor).all():
                raise CheckpointError(f"{where} holds numbers that are not finite; {consequence}")


def _leaves(value: Any, where: str) -> Iterator[tuple[str, Tensor]]:
    """Every tensor in nested dictionaries, with its place."""
    if isinstance(value, Tensor):
        yield where, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{where}.{key}")


def _pack(value: Any, where: str, tensors: list[Tensor]) -> Any:
    """The value as JSON, with its tensors moved to a list and replaced by their position."""
    if isinstance(value, Tensor):
        tensors.append(_compact(value))
        return {_TENSOR: len(tensors) - 1}
    if type(value) is dict and all(type(key) is str and key != _TENSOR for key in value):
        return {key: _pack(item, f"{where}[{key!r}]", tensors) for key, item in value.items()}
    if type(value) is list:
        return [_pack(item, f"{where}[{i}]", tensors) for i, item in enumerate(value)]
    if type(value) in _PRIMITIVES:
        return value
    raise CheckpointError(
        f"{where} is {type(value).__name__} {value!r:.60}; "
        "allowed are tensors, str, int, float, bool, None, lists, and dicts with str keys"
    )


def _unpack(value: Any, tensors: list[Tensor]) -> Any:
    if isinstance(value, list):
        return [_unpack(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if _TENSOR in value:
        return tensors[value[_TENSOR]]
    return {key: _unpack(item, tensors) for key, item in value.items()}


def _compact(tensor: Tensor) -> Tensor:
    """The tensor on the CPU, without the rest of the storage that it may be a view of."""
    tensor = tensor.detach().cpu()
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()
