"""What a step measures: everything, or of each row a few samples and one slot, in turn."""

import numpy as np
import torch
from torch import Tensor

from esper_env.config import EsperConfig
from esper_env.fused.randomness import Purpose, integers
from esper_env.population.evaluation import Evaluation, evaluate, glimpse
from esper_env.population.population import Population
from esper_env.tasks.base import Split


def measure(
    population: Population, val: Split, key: Tensor, step: Tensor, config: EsperConfig, counted: Tensor | None = None
) -> tuple[Evaluation, Tensor]:
    """The validation of rows with these keys after so many steps, and which slots were looked at, [n, slots].

    Of full measurements only `counted` samples count, [n, samples], if it is given.
    """
    if config.measurements == "full":
        return evaluate(population, val.inputs, val.labels, counted), torch.ones_like(
            population.alpha, dtype=torch.bool
        )
    slots = population.alpha.shape[1]
    turn = step % slots
    samples = drawn_samples(key, step, len(val), config)
    measured = glimpse(population, val.inputs[samples], val.labels[samples], turn.cpu().numpy())
    looked_at = turn[:, None] == torch.arange(slots, device=step.device)
    return _with_the_last_step(measured, looked_at, population, val, step >= config.horizon)


def drawn_samples(key: Tensor, step: Tensor, size: int, config: EsperConfig) -> Tensor:
    """The validation samples of each row after so many steps, [n, validation_samples]."""
    place = torch.arange(config.validation_samples, device=key.device)
    return integers(key[:, None], Purpose.VALIDATION, step[:, None], place, size)


def _with_the_last_step(
    measured: Evaluation, looked_at: Tensor, population: Population, val: Split, last: Tensor
) -> tuple[Evaluation, Tensor]:
    """The same, with everything measured in the rows whose last step it was: the final reward needs it."""
    rows = np.flatnonzero(last.cpu().numpy())
    if not len(rows):
        return measured, looked_at
    whole, index = evaluate(population.gathered(rows), val.inputs, val.labels), torch.from_numpy(rows).to(last.device)
    put = {name: part.index_copy(0, index, getattr(whole, name)) for name, part in vars(measured).items()}
    return Evaluation(**put), looked_at | last[:, None]
