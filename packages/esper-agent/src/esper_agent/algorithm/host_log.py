"""What the hosts of an Esper environment did in a rollout, for the log; nothing for other environments.

Sums stay on the device until the rollout is complete: one transfer then.
"""

from collections.abc import Mapping
from typing import Any

import torch
from esper_env import EsperVectorEnv
from esper_env.mdp.actions import Op
from esper_env.mdp.state import Stage
from gymnasium.vector import VectorEnv
from torch import Tensor

from esper_agent.algorithm.environments import Transition
from esper_agent.distributed import Ranks

MEASURED = ("metric", "committed_metric", "added_parameters")
COUNTED = ("germinations", "prunes", "rollbacks")
STAGES = [stage for stage in Stage if stage is not Stage.DORMANT]


class HostLog:
    """Sums over the decisions of a rollout, and over the ends of episodes in it.

    Args:
        env: the environments.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        self.env = env.unwrapped if isinstance(env.unwrapped, EsperVectorEnv) else None
        self.names: list[str] = []
        self.last: dict[str, float] = {}  # summary
        self.sums: Tensor | None = None  # [2, names + 1]: over decisions and over ends; the last column counts them

    def seeds(self) -> Tensor | None:
        """How many seeds of each host are in each of `STAGES`, [stages, N]; ask before the step may reset a host."""
        if self.env is None:
            return None
        stage = self.env.state.stage
        return torch.stack([(stage == one).sum(1) for one in STAGES])

    def add(self, seeds: Tensor | None, op: Tensor, transition: Transition, acted: Tensor) -> None:
        """Take in a step of all hosts.

        Args:
            seeds: what `seeds` gave before it.
            op: the operations asked for, [N].
            transition: what came of them.
            acted: bool [N], where the step was one of the host's and not only its reset.
        """
        if seeds is None:
            return
        # A host that was reset at once has left what its last step gave in `final_info`.
        columns = _columns(transition.infos.get("final_info", transition.infos), seeds, op)
        ended = acted & (transition.terminated | transition.truncated)
        values = torch.stack([*(torch.as_tensor(column, device=op.device) for column in columns.values()), acted])
        sums = torch.stack([acted, ended]).double() @ values.double().T
        self.names, self.sums = list(columns), sums if self.sums is None else self.sums + sums

    def summary(self, ranks: Ranks) -> dict[str, float]:
        """The rollout's means and counts over the hosts of all ranks, by the log's names; begins anew."""
        if self.sums is None:
            return {}
        (sums,), self.sums = ranks.sum(self.sums), None
        (*over_steps, steps), (*at_ends, ends) = sums.tolist()
        totals = dict(zip(self.names, over_steps, strict=True))
        result = {f"hosts/{name}": total / (1 if name in COUNTED else steps) for name, total in totals.items()}
        if ends:
            last = dict(zip(self.names, at_ends, strict=True))
            result |= {f"hosts/end/{name}": last[name] / ends for name in MEASURED}
        self.last = result
        return result


def _columns(infos: Mapping[str, Any], seeds: Tensor, op: Tensor) -> dict[str, Any]:
    """What is logged of a step, [N] each."""
    invalid = torch.as_tensor(infos["invalid_action"], device=op.device)
    events = ((op == Op.GERMINATE) & ~invalid, (op == Op.PRUNE) & ~invalid, infos["rolled_back"])
    return {
        **{name: infos[name] for name in MEASURED},
        **{f"seeds/{stage.name.lower()}": row for stage, row in zip(STAGES, seeds, strict=True)},
        **dict(zip(COUNTED, events, strict=True)),
        "illegal_share": invalid,
        **{f"gaming/{name}": flags for name, flags in infos["detectors"].items()},
        **{f"reward/{name}": term for name, term in infos["reward_terms"].items()},
    }
