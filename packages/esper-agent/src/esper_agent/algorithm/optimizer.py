"""The optimiser: AdamW over one flat tensor that holds the whole network."""

import torch
from esper_env.fused.structure import require_alike
from torch import Tensor, nn

from esper_agent.config import PPOConfig

Groups = dict[str, list[nn.Parameter]]
MOMENTS = ("exp_avg", "exp_avg_sq")


class GroupedAdamW:
    """AdamW with weight decay on the critic alone, whose step a flag on the device can skip.

    All parameters, and their gradients, become views of one flat tensor each, group after group: what torch.optim would
    do once per layer is one operation. Its fused form, told by gradient scalers that a gradient is infinite, skips a
    step without a word from the host; the flag comes the same way.

    Args:
        groups: all parameters by part of the network; the critic comes last.
        config: weight decay and epsilon.
    """

    def __init__(self, groups: Groups, config: PPOConfig) -> None:
        self.parameters = [parameter for group in groups.values() for parameter in group]
        self.flat = torch.cat([parameter.detach().flatten() for parameter in self.parameters])
        self.gradient = torch.zeros_like(self.flat)
        view_parts(self.parameters, self.flat, self.gradient)
        sizes = {name: sum(parameter.numel() for parameter in group) for name, group in groups.items()}
        self.groups = {name: [part] for name, part in zip(sizes, self._parts(*sizes.values()), strict=True)}
        self.parts = self._parts(len(self.flat) - sizes["critic"], sizes["critic"])
        decays = (0.0, config.critic_weight_decay)
        decayed = [{"params": [part], "weight_decay": decay} for part, decay in zip(self.parts, decays, strict=True)]
        self.adam = torch.optim.AdamW(decayed, lr=0.0, eps=config.adam_epsilon, fused=True)

    def _parts(self, *sizes: int) -> list[nn.Parameter]:
        """The network cut into parameters of these sizes."""
        parts = [nn.Parameter(self.flat.new_empty(size)) for size in sizes]
        view_parts(parts, self.flat, self.gradient)
        return parts

    @property
    def learning_rate(self) -> float:
        """That of the next steps."""
        return float(self.adam.param_groups[0]["lr"])

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        for group in self.adam.param_groups:
            group["lr"] = value

    def differentiate(self, loss: Tensor) -> None:
        """Replace the gradients by those of a loss."""
        self.gradient.zero_()
        loss.backward()

    def step(self, proceed: Tensor) -> None:
        """Take a step if the flag is set; else nothing changes, neither parameters nor moments."""
        self.adam.found_inf = (~proceed).float()  # type: ignore[attr-defined]
        self.adam.step()

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """The moments of every parameter, numbered in the order of the groups; none before the first step."""
        if not self.adam.state:
            return {}
        sizes = [parameter.numel() for parameter in self.parameters]
        states = [self.adam.state[part] for part in self.parts]
        split = {key: torch.cat([state[key] for state in states]).split(sizes) for key in MOMENTS}
        return {
            str(index): {"step": states[0]["step"], **{key: split[key][index].view_as(parameter) for key in MOMENTS}}
            for index, parameter in enumerate(self.parameters)
        }

    def check_state_dict(self, state: dict[str, dict[str, Tensor]]) -> None:
        """Refuse the moments of another network.

        Raises:
            ValueError: naming the first difference.
        """
        if len(state) not in (0, len(self.parameters)):
            raise ValueError(
                f"the saved optimiser knows {len(state)} parameters; this agent has {len(self.parameters)}"
            )
        step = self.flat.new_zeros(())
        own = [{"step": step, **dict.fromkeys(MOMENTS, parameter.detach())} for parameter in self.parameters]
        for index, moments in state.items():
            require_alike(moments, own[int(index)], f"optimizer.{index}")

    def load_state_dict(self, state: dict[str, dict[str, Tensor]]) -> None:
        """Take over saved moments that fit; there are none from before the first step."""
        self.adam.state.clear()
        if not state:
            return
        saved, sizes = [state[str(index)] for index in range(len(state))], [part.numel() for part in self.parts]
        flat = {key: torch.cat([part[key].flatten() for part in saved]).to(self.flat).split(sizes) for key in MOMENTS}
        for index, part in enumerate(self.parts):
            moments = {key: flat[key][index].clone() for key in MOMENTS}
            self.adam.state[part] = {"step": saved[0]["step"].to(self.flat, copy=True), **moments}


def view_parts(parameters: list[nn.Parameter], flat: Tensor, gradient: Tensor) -> None:
    """Turn parameters and their gradients into views of flat tensors that hold them one after the other."""
    sizes = [parameter.numel() for parameter in parameters]
    for parameter, values, slopes in zip(parameters, flat.split(sizes), gradient.split(sizes), strict=True):
        parameter.data, parameter.grad = values.view_as(parameter), slopes.view_as(parameter)
