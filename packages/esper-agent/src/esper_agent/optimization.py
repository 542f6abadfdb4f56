"""The optimiser: AdamW over one flat tensor per part of the network."""

import torch
from torch import Tensor, nn

from esper_agent.config import PPOConfig

Groups = dict[str, list[nn.Parameter]]
MOMENTS = ("exp_avg", "exp_avg_sq")


class GroupedAdamW:
    """AdamW with weight decay on the critic alone, whose step a flag on the device can skip.

    Every group's parameters, and their gradients, become views of one flat tensor: clipping and stepping a group is one
    operation instead of one per layer. The fused kernel is the one that can skip a step without a word from the host.

    Args:
        groups: all parameters by part of the network.
        config: weight decay and epsilon.
    """

    def __init__(self, groups: Groups, config: PPOConfig) -> None:
        self.members = groups
        self.flat = {name: flatten_group(group) for name, group in groups.items()}
        actor = [flat for name, flat in self.flat.items() if name != "critic"]
        self.adam = torch.optim.AdamW(
            [
                {"params": actor, "weight_decay": 0.0},
                {"params": [self.flat["critic"]], "weight_decay": config.critic_weight_decay},
            ],
            eps=config.adam_epsilon,
            fused=True,
        )

    @property
    def groups(self) -> Groups:
        """The flat parameters by group, for clipping."""
        return {name: [flat] for name, flat in self.flat.items()}

    @property
    def gradients(self) -> list[Tensor]:
        """The flat gradients, in the order of the groups."""
        return [flat.grad for flat in self.flat.values() if flat.grad is not None]

    def set_learning_rate(self, value: float) -> None:
        """Step by this rate from now on."""
        for group in self.adam.param_groups:
            group["lr"] = value

    def zero_grad(self) -> None:
        """Clear the gradients where they are: they are views and must stay."""
        torch._foreach_zero_(self.gradients)

    def step(self, proceed: Tensor) -> None:
        """Take a step if the flag is set; else nothing changes, neither parameters nor moments."""
        self.adam.found_inf = (~proceed).float()  # type: ignore[attr-defined]
        self.adam.step()

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """The moments of every parameter, numbered in the order of the groups; empty before the first step."""
        parts: list[dict[str, Tensor]] = []
        for name, flat in self.flat.items():
            if state := self.adam.state.get(flat):
                sizes = [parameter.numel() for parameter in self.members[name]]
                split = {key: state[key].split(sizes) for key in MOMENTS}
                for index, parameter in enumerate(self.members[name]):
                    moments = {key: split[key][index].view_as(parameter) for key in MOMENTS}
                    parts.append({"step": state["step"], **moments})
        return {str(index): part for index, part in enumerate(parts)}

    def check_state_dict(self, state: dict[str, dict[str, Tensor]]) -> None:
        """Refuse the moments of another network.

        Raises:
            ValueError: naming the first difference.
        """
        shapes = [parameter.shape for group in self.members.values() for parameter in group]
        if len(state) not in (0, len(shapes)):
            raise ValueError(f"the saved optimiser knows {len(state)} parameters; this agent has {len(shapes)}")
        for index, moments in state.items():
            for key in MOMENTS:
                if moments[key].shape != shapes[int(index)]:
                    found, own = tuple(moments[key].shape), tuple(shapes[int(index)])
                    raise ValueError(f"the saved {key} of parameter {index} has shape {found}; this agent's has {own}")

    def load_state_dict(self, state: dict[str, dict[str, Tensor]]) -> None:
        """Take over saved moments that fit."""
        self.adam.state.clear()
        index = 0
        for name, flat in self.flat.items():
            parts = [state[str(index + offset)] for offset in range(len(self.members[name]))] if state else []
            index += len(parts)
            if parts:
                joined = {key: torch.cat([part[key].flatten() for part in parts]).to(flat.device) for key in MOMENTS}
                self.adam.state[flat] = {"step": parts[0]["step"].clone().to(flat.device), **joined}


def flatten_group(parameters: list[nn.Parameter]) -> nn.Parameter:
    """One tensor that holds all parameters of a group; they, and their gradients, become views of it."""
    flat = nn.Parameter(torch.cat([parameter.detach().flatten() for parameter in parameters]))
    flat.grad = torch.zeros_like(flat)
    offset = 0
    for parameter in parameters:
        part = slice(offset, offset + parameter.numel())
        parameter.data = flat.data[part].view_as(parameter)
        parameter.grad = flat.grad[part].view_as(parameter)
        offset += parameter.numel()
    return flat
