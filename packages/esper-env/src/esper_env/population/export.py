"""A row of the population as a plain `nn.Module`: for saving, for reading, and as the reference in tests."""

from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from esper_env.blueprints.base import BLUEPRINTS, SeedTemplate
from esper_env.blueprints.blends import Blend, joined
from esper_env.fused.vmapped import undrawn
from esper_env.hosts.base import HOSTS, Host
from esper_env.population.population import EMPTY, Population


class GrownNetwork(nn.Module):
    """A host with the seeds that act on it, in plain torch.

    Args:
        host: What was grown.
        description: The live units of each block, and the seeds by slot.
    """

    def __init__(self, host: Host, description: dict[str, Any]) -> None:
        super().__init__()
        self.kind, self.description = host, description
        self.seeds, self.host = nn.ModuleDict(), undrawn(host.template)
        for slot, seed in description["seeds"].items():
            build = partial(SeedTemplate, BLUEPRINTS[seed["blueprint"]], host.slots[int(slot)])
            self.seeds[slot] = undrawn(build)
        for slot, units in enumerate(description["live_units"]):
            width = host.slots[slot].outputs[0]
            self.register_buffer(f"alive{slot}", (torch.arange(width) < units).float(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of samples [batch, ...]."""
        logits: Tensor = self.host(x, self._beside)
        return logits

    def _beside(self, slot: int, x: Tensor, h: Tensor) -> Tensor:
        alive: Tensor = getattr(self, f"alive{slot}").to(h.dtype)
        h = h * (alive.view(-1, 1, 1) if _is_image(h) else alive)
        return self._with_seed(str(slot), x, h) if str(slot) in self.seeds else h

    def _with_seed(self, slot: str, x: Tensor, h: Tensor) -> Tensor:
        settings = self.description["seeds"][slot]
        alpha = torch.tensor(settings["alpha"], dtype=h.dtype, device=h.device)
        return joined(self.seeds[slot], x, h, Blend[settings["blend"]], alpha)


def _is_image(x: Tensor) -> bool:
    """Images are [batch, channels, height, width]; everything else has its units last."""
    return x.dim() == 4


def export_host(population: Population, row: int) -> GrownNetwork:
    """Row `row` with its live seeds."""
    if not 0 <= row < len(population):
        raise IndexError(f"row is {row}; allowed: 0 to {len(population) - 1}")
    network = GrownNetwork(population.engine.host, _describe(population, row)).to(population.engine.dtype)
    state = {f"host.{k}": v for k, v in population.body.layout.state_dict(population.body.values[row]).items()}
    for (slot, _), cohort in population.seeds.items():
        if population.census.live[row, slot] and row in cohort.rows:
            values = cohort.values[int(cohort.rows.searchsorted(row))]
            state |= {f"seeds.{slot}.{k}": v for k, v in cohort.layout.state_dict(values).items()}
    network.load_state_dict(network.state_dict() | state)  # which has the constants besides
    return network


def _describe(population: Population, row: int) -> dict[str, Any]:
    engine, census = population.engine, population.census
    host = engine.host
    seeds = {
        str(slot): {
            "blueprint": BLUEPRINTS.name_of(engine.blueprints[census.blueprint[row, slot]]),
            "blend": Blend(census.blend[row, slot]).name,
            "alpha": population.alpha[row, slot].item(),
        }
        for slot in range(len(host.slots))
        if census.blueprint[row, slot] != EMPTY and census.live[row, slot]
    }
    live_units = [int(mask[row].sum().item()) for mask in population.lesions]
    return {"live_units": live_units, "seeds": seeds}


def save_network(network: GrownNetwork, path: str | Path) -> None:
    """Write a network, whose host must be registered, so that `load_network` can read it without unpickling code."""
    host = network.kind
    values = {field.name: getattr(host, field.name) for field in fields(host)}  # type: ignore[arg-type]
    arguments = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    what = {"host": HOSTS.name_of(type(host)), "arguments": arguments, **network.description}
    torch.save({"description": what, "state": network.state_dict()}, path)


def load_network(path: str | Path) -> GrownNetwork:
    """Read a network that `save_network` wrote."""
    content = torch.load(path, weights_only=True)
    what, dtype = content["description"], next(iter(content["state"].values())).dtype
    arguments = {k: tuple(v) if isinstance(v, list) else v for k, v in what["arguments"].items()}
    description = {name: what[name] for name in ("live_units", "seeds")}
    network = GrownNetwork(HOSTS[what["host"]](**arguments), description).to(dtype)
    network.load_state_dict(content["state"])
    return network
