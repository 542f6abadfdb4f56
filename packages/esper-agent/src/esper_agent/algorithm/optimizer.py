"""The optimiser: AdamW over one flat tensor that holds the whole network."""

import torch
from torch import Tensor, nn

from esper_agent.config import PPOConfig

Groups = dict[str, list[nn.Parameter]]
MOMENTS = ("exp_avg", "exp_avg_sq")
BETAS = (0.9, 0.999)


class GroupedAdamW:
    """AdamW with weight decay on the critic alone, whose step a flag on the device can skip.

    All parameters, and their gradients, become views of one flat tensor each, group after group: what torch.optim would
    do once per layer, or prepare in Python once per step, is one operation. The fused kernel is the one that can skip a
    step without a word from the host.

    Args:
        groups: all parameters by part of the network; the critic comes last.
        config: weight decay and epsilon.
    """

    def __init__(self, groups: Groups, config: PPOConfig) -> None:
        self.parameters = [parameter for group in groups.values() for parameter in group]
        self.flat = torch.cat([parameter.detach().flatten() for parameter in self.parameters])
        self.gradient = torch.zeros_like(self.flat)
        self.moments = {key: torch.zeros_like(self.flat) for key in MOMENTS}
        self.steps = torch.zeros((), device=self.flat.device)
        view_parts(self.parameters, self.flat, self.gradient)
        sizes = {name: sum(parameter.numel() for parameter in group) for name, group in groups.items()}
        self.groups = {name: [nn.Parameter(self.flat.new_empty(size))] for name, size in sizes.items()}
        view_parts([part for group in self.groups.values() for part in group], self.flat, self.gradient)
        self.learning_rate, self.epsilon = 0.0, config.adam_epsilon
        parts = [self.flat, self.gradient, *self.moments.values()]
        bounds = [(slice(0, -sizes["critic"]), 0.0), (slice(-sizes["critic"], None), config.critic_weight_decay)]
        self.decayed = [([[part[bound]] for part in parts], decay) for bound, decay in bounds]

    def differentiate(self, loss: Tensor) -> None:
        """Replace the gradients by those of a loss."""
        self.gradient.zero_()
        loss.backward()

    def step(self, proceed: Tensor) -> None:
        """Take a step if the flag is set; else nothing changes, neither parameters nor moments."""
        self.steps += proceed
        skip = (~proceed).float()
        for (values, gradients, averages, squares), decay in self.decayed:
            torch._fused_adamw_(
                values, gradients, averages, squares, [], [self.steps], lr=self.learning_rate, beta1=BETAS[0],
                beta2=BETAS[1], weight_decay=decay, eps=self.epsilon, amsgrad=False, maximize=False, found_inf=skip,
            )  # fmt: skip

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """The moments of every parameter, numbered in the order of the groups."""
        sizes = [parameter.numel() for parameter in self.parameters]
        split = {key: moment.split(sizes) for key, moment in self.moments.items()}
        return {
            str(index): {"step": self.steps, **{key: split[key][index].view_as(parameter) for key in MOMENTS}}
            for index, parameter in enumerate(self.parameters)
        }

    def check_state_dict(self, state: dict[str, dict[str, Tensor]]) -> None:
        """Refuse the moments of another network.

        Raises:
            ValueError: naming the first difference.
        """
        shapes = [parameter.shape for parameter in self.parameters]
        if len(state) not in (0, len(shapes)):
            raise ValueError(f"the saved optimiser knows {len(state)} parameters; this agent has {len(shapes)}")
        for index, moments in state.items():
            for key in MOMENTS:
                if moments[key].shape != shapes[int(index)]:
                    found, own = tuple(moments[key].shape), tuple(shapes[int(index)])
                    raise ValueError(f"the saved {key} of parameter {index} has shape {found}; this agent's has {own}")

    def load_state_dict(self, state: dict[str, dict[str, Tensor]]) -> None:
        """Take over saved moments that fit; there are none from before the first step."""
        parts = [state[str(index)] for index in range(len(state))]
        for key, moment in self.moments.items():
            moment.copy_(torch.cat([part[key].flatten() for part in parts]) if parts else torch.zeros(()))
        self.steps.copy_(parts[0]["step"] if parts else torch.zeros(()))


def view_parts(parameters: list[nn.Parameter], flat: Tensor, gradient: Tensor) -> None:
    """Turn parameters and their gradients into views of flat tensors that hold them one after the other."""
    sizes = [parameter.numel() for parameter in parameters]
    for parameter, values, slopes in zip(parameters, flat.split(sizes), gradient.split(sizes), strict=True):
        parameter.data, parameter.grad = values.view_as(parameter), slopes.view_as(parameter)
