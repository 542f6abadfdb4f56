"""Wrappers, single and vector, for agents that do not take Dict actions or that read masks from the observation.

The action wrappers replace `info["action_mask"]` by flags of their own action space, drop `info["action_mask_by_op"]`,
and answer `action_masks()` as sb3-contrib's MaskablePPO asks. All work in every autoreset mode, with NumPy arrays and
with tensors.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray
from torch import Tensor

from esper_env.config import check_choice
from esper_env.mdp.actions import HEADS, RELEVANT_HEADS, Op

Flags = Any  # an array or tensor of flags: [size] of a single environment, [n, size] of a vector
Infos = dict[str, Any]
MASK_KEYS = ("observation", "action_mask")
MASK_DTYPES: dict[str, tuple[type[np.generic], torch.dtype]] = {
    "int8": (np.int8, torch.int8),
    "bool": (np.bool_, torch.bool),
    "float32": (np.float32, torch.float32),
}


# What an action space of another form means


class MarginalActions:
    """Actions as one integer per head, in the order of `HEADS`; the masks are the marginal ones.

    A combination of values that are legal each for itself may be illegal; the environment then executes WAIT.

    Args:
        heads: The Dict action space.
    """

    def __init__(self, heads: spaces.Dict) -> None:
        self.space: spaces.MultiDiscrete = spaces.MultiDiscrete([_size(heads, head) for head in HEADS])

    def decode(self, action: Any) -> dict[str, Any]:
        """The Dict action of actions [..., heads]."""
        numbers = action if isinstance(action, Tensor) else np.asarray(action)
        return {head: numbers[..., place] for place, head in enumerate(HEADS)}

    def flags(self, infos: Infos) -> Flags:
        """Legal values of all heads side by side."""
        return marginal_flags(infos)


class JointActions:
    """Actions as one integer that counts all joint actions; the masks are exact.

    The joint actions are, in order: WAIT; GERMINATE with every slot, blueprint, blend and tempo; ADVANCE, FOSSILIZE and
    PRUNE with every slot. Heads that an operation does not use are 0.

    Args:
        heads: The Dict action space.
    """

    def __init__(self, heads: spaces.Dict) -> None:
        self.table = joint_actions({head: _size(heads, head) for head in HEADS})
        self.space = spaces.Discrete(len(self.table))

    def decode(self, action: Any) -> dict[str, Any]:
        """The Dict action of actions [...]."""
        if isinstance(action, Tensor):
            rows = torch.from_numpy(self.table).to(action.device)[action]
            return {head: rows[..., place] for place, head in enumerate(HEADS)}
        return {head: self.table[action, place] for place, head in enumerate(HEADS)}

    def flags(self, infos: Infos) -> Flags:
        """Which joint actions are legal."""
        by_op = infos["action_mask_by_op"]
        op = self.table[:, 0]
        legal = by_op["op"][..., 0, op] != 0
        for place, head in enumerate(HEADS[1:], start=1):
            legal = legal & (by_op[head][..., op, self.table[:, place]] != 0)
        return legal


def joint_actions(sizes: dict[str, int]) -> NDArray[np.int64]:
    """All canonical joint actions, [actions, heads]."""
    rows = []
    for op in Op:
        choices = [range(sizes[head]) if head in RELEVANT_HEADS[op] else range(1) for head in HEADS[1:]]
        rows += [(int(op), *rest) for rest in product(*choices)]
    return np.array(rows, dtype=np.int64)


def marginal_flags(infos: Infos) -> Flags:
    """The marginal masks of all heads side by side in the order of `HEADS`, or the flags of an action wrapper."""
    mask = infos["action_mask"]
    if not isinstance(mask, dict):
        return mask != 0
    return _side_by_side(mask)


def flags_by_op(infos: Infos) -> Flags:
    """The exact masks, [..., operations, flags of all heads side by side in the order of `HEADS`]."""
    return _side_by_side(infos["action_mask_by_op"])


def _side_by_side(masks: dict[str, Any]) -> Flags:
    parts = [masks[head] for head in HEADS]
    return (torch.cat(parts, dim=-1) if isinstance(parts[0], Tensor) else np.concatenate(parts, axis=-1)) != 0


def _size(heads: spaces.Dict, head: str) -> int:
    space = heads[head]
    assert isinstance(space, spaces.Discrete)
    return int(space.n)


def _int8(flags: Flags) -> Flags:
    return flags.to(torch.int8) if isinstance(flags, Tensor) else flags.astype(np.int8)


def _dict_space(space: spaces.Space[Any], wrapper: str) -> spaces.Dict:
    if not isinstance(space, spaces.Dict) or set(space) != set(HEADS):
        raise TypeError(f"{wrapper} needs Dict actions with the heads {', '.join(HEADS)}; got {space}")
    return space


def _converted(infos: Infos, actions: MarginalActions | JointActions) -> Infos:
    """Infos with the flags of another action space in place of the masks by head."""
    kept = {key: value for key, value in infos.items() if key not in ("action_mask_by_op", "_action_mask_by_op")}
    kept["action_mask"] = _int8(actions.flags(infos))
    if "final_info" in infos:
        kept["final_info"] = _converted(infos["final_info"], actions)
    return kept


# Environments with other actions


class _Converting:
    """What the action wrappers of single and of vector environments share."""

    form: type[MarginalActions] | type[JointActions]
    actions: MarginalActions | JointActions
    env: Any
    unwrapped: Any

    def _convert(self, heads: spaces.Space[Any]) -> spaces.Space[Any]:
        self.actions = self.form(_dict_space(heads, type(self).__name__))
        return self.actions.space

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """Reset, with the masks of this action space in info."""
        observation, infos = self.env.reset(seed=seed, options=options)
        return observation, _converted(infos, self.actions)

    def step(self, action: Any) -> Any:
        """Step with an action of this space."""
        *results, infos = self.env.step(self.actions.decode(action))
        return *results, _converted(infos, self.actions)

    def action_masks(self) -> Flags:
        """Which values are legal now, [size], or [n, size] of a vector; what MaskablePPO asks for."""
        return self.actions.flags(self.unwrapped.legality())


class _ActionWrapper(_Converting, gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        gymnasium.Wrapper.__init__(self, env)
        self.action_space = self._convert(env.action_space)


class _VectorWrapper(VectorWrapper):  # generic only since gymnasium 1.4
    """A vector wrapper that answers for the autoreset mode, where TorchRL looks for it."""

    @property
    def autoreset_mode(self) -> AutoresetMode:
        """How rows that ended are reset."""
        mode: AutoresetMode = self.metadata["autoreset_mode"]
        return mode


class _VectorActionWrapper(_Converting, _VectorWrapper):
    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        _VectorWrapper.__init__(self, env)
        self.single_action_space = self._convert(env.single_action_space)
        self.action_space = batch_space(self.single_action_space, env.num_envs)


class MultiDiscreteActions(_ActionWrapper):
    """A single environment with `MultiDiscrete` actions: one integer per head, marginal masks."""

    form = MarginalActions


class DiscreteActions(_ActionWrapper):
    """A single environment with `Discrete` actions: one integer for the joint action, exact masks."""

    form = JointActions


class VectorMultiDiscreteActions(_VectorActionWrapper):
    """A vector environment with `MultiDiscrete` actions [n, heads]: one integer per head, marginal masks."""

    form = MarginalActions


class VectorDiscreteActions(_VectorActionWrapper):
    """A vector environment with `Discrete` actions [n]: one integer for the joint action, exact masks."""

    form = JointActions


# Masks in the observation


class _MaskedObservation:
    """What an observation with its mask looks like: a Dict with two keys.

    Args:
        action: The action space beneath.
        keys: Names of the observation and of the mask in the Dict.
        dtype: Of the mask.
        by_op: The exact table [operations, flags of all heads side by side] instead of the marginal flags.
    """

    def __init__(self, action: spaces.Space[Any], keys: Sequence[str], dtype: str, by_op: bool) -> None:
        if len(keys) != 2 or keys[0] == keys[1]:
            raise ValueError(f"keys is {keys!r}; allowed: two names, of the observation and of the mask")
        check_choice("dtype", dtype, MASK_DTYPES)
        if by_op and not isinstance(action, spaces.Dict):
            raise ValueError(
                f"by_op is True; allowed: with Dict actions only, whose heads the table is about; got {action}"
            )
        self.observation_key, self.mask_key = keys
        self.dtype, self.by_op = dtype, by_op
        self.shape = (len(Op), _flag_count(action)) if by_op else (_flag_count(action),)

    def space(self, observation: spaces.Space[Any]) -> spaces.Dict:
        """The space of a single environment's observations."""
        flags: spaces.Space[Any] = spaces.MultiBinary(self.shape)
        if self.dtype != "int8":
            flags = spaces.Box(0, 1, self.shape, MASK_DTYPES[self.dtype][0])
        return spaces.Dict({self.observation_key: observation, self.mask_key: flags})

    def join(self, observation: Any, mask: Any) -> dict[str, Any]:
        """An observation, or a batch, with its mask."""
        return {self.observation_key: observation, self.mask_key: mask}

    def mask(self, infos: Infos) -> Any:
        """The mask of infos."""
        flags = flags_by_op(infos) if self.by_op else marginal_flags(infos)
        array_type, tensor_type = MASK_DTYPES[self.dtype]
        return flags.to(tensor_type) if isinstance(flags, Tensor) else flags.astype(array_type)

    def final(self, final: Any, infos: Infos) -> Any:
        """Final observations with the masks that they came with: one Dict per ended row, or a Dict of tensors."""
        mask = self.mask(infos)
        if isinstance(final, Tensor):
            return self.join(final, mask)
        rows = np.full(len(final), None, dtype=object)
        for row in (number for number, observation in enumerate(final) if observation is not None):
            rows[row] = self.join(final[row], mask[row].copy())
        return rows


def _flag_count(space: spaces.Space[Any]) -> int:
    """How many flags the masks of an action space have."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.nvec.sum())
    heads = _dict_space(space, "MaskInObservation")
    return sum(_size(heads, head) for head in HEADS)


class _Masking:
    """What the mask wrappers of single and of vector environments share."""

    env: Any
    form: _MaskedObservation

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """Reset, with the mask in the observation."""
        observation, infos = self.env.reset(seed=seed, options=options)
        return self.form.join(observation, self.form.mask(infos)), infos

    def step(self, action: Any) -> Any:
        """Step, with the mask in the observation."""
        observation, *results, infos = self.env.step(action)
        if "final_obs" in infos:
            infos = infos | {"final_obs": self.form.final(infos["final_obs"], infos["final_info"])}
        return self.form.join(observation, self.form.mask(infos)), *results, infos


class MaskInObservation(_Masking, gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """A single environment whose observation is a Dict of the observation and its mask.

    The mask holds the flags of the action space beneath: of all heads side by side (Dict, `MultiDiscreteActions`), or
    of all joint actions (`DiscreteActions`).

    Args:
        env: The environment.
        keys: Names of the observation and of the mask in the Dict: RLlib reads ("observations", "action_mask"),
            Tianshou ("obs", "mask"), PettingZoo's agents the default.
        dtype: Of the mask: "int8", "bool" or "float32".
        by_op: With Dict actions: the exact table, [operations, flags of all heads side by side].
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        keys: Sequence[str] = MASK_KEYS,
        dtype: str = "int8",
        by_op: bool = False,
    ) -> None:
        RecordConstructorArgs.__init__(self, keys=keys, dtype=dtype, by_op=by_op)
        gymnasium.Wrapper.__init__(self, env)
        self.form = _MaskedObservation(env.action_space, keys, dtype, by_op)
        self.observation_space = self.form.space(env.observation_space)


class VectorMaskInObservation(_Masking, _VectorWrapper):
    """A vector environment whose observations are such Dicts, final ones too; arguments as for `MaskInObservation`."""

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        keys: Sequence[str] = MASK_KEYS,
        dtype: str = "int8",
        by_op: bool = False,
    ) -> None:
        _VectorWrapper.__init__(self, env)
        self.form = _MaskedObservation(env.single_action_space, keys, dtype, by_op)
        self.single_observation_space = self.form.space(env.single_observation_space)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)
