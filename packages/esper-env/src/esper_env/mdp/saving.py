"""Saving and resuming a simulation: an interrupted episode continues bit for bit."""

from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from esper_env.mdp.instances import draw, episode_keys
from esper_env.mdp.lifecycle import gates
from esper_env.mdp.simulation import Simulation
from esper_env.mdp.state import State
from esper_env.population.cohort import Cohort
from esper_env.population.population import Census, SeedKey


def save(simulation: Simulation) -> dict[str, Any]:
    """Everything that the future depends on, as nested dicts of tensors and plain values.

    The instance is not saved: it is a pure function of the keys.
    """
    population, snapshot = simulation.population, simulation.snapshot
    return {
        "settings": _settings(simulation),
        "base_key": simulation.base_key.clone(),
        "episode": simulation.episode.clone(),
        "state": simulation.state.clone().tensors(),
        "body": _numbered(population.body.tensors()),
        "census": _census(population.census),
        "seeds": {_name(key): _numbered(cohort.tensors()) for key, cohort in population.seeds.items()},
        "snapshot": {
            "state": snapshot.state.clone().tensors(),
            "body": _numbered(snapshot.body),
            "census": _census(snapshot.census),
            "seeds": _numbered(snapshot.seeds),
        },
    }


def load(simulation: Simulation, saved: dict[str, Any]) -> None:
    """Continue from what `save` gave, in a simulation of the same configuration and size, on any device."""
    for field, mine in _settings(simulation).items():
        if saved["settings"][field] != mine:
            raise ValueError(f"the saved environment has {field}={saved['settings'][field]!r}; this one has {mine!r}")
    device = simulation.config.device
    simulation.base_key = saved["base_key"].to(device).clone()
    simulation.episode = saved["episode"].to(device).clone()
    _load_instance(simulation)
    _load_population(simulation, saved)
    simulation.state.copy_from(State(**saved["state"]))
    snapshot = simulation.snapshot
    snapshot.state.copy_from(State(**saved["snapshot"]["state"]))
    _copy_census(snapshot.census, saved["snapshot"]["census"])
    for part, tensors in (("body", snapshot.body), ("seeds", snapshot.seeds)):
        for number, tensor in enumerate(tensors):
            tensor.copy_(saved["snapshot"][part][str(number)])
    simulation.population.alpha.copy_(simulation.state.alpha)
    simulation.gates = gates(simulation.state, simulation.config)


def _settings(simulation: Simulation) -> dict[str, Any]:
    """What must agree for an episode to go on, in the form that JSON keeps."""
    settings = {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(simulation.config).items()}
    del settings["device"]
    return {"num_envs": simulation.n, **settings}


def _load_instance(simulation: Simulation) -> None:
    keys = episode_keys(simulation.base_key, simulation.episode, simulation.config)
    instance = draw(keys, simulation.task, simulation.data, simulation.config)
    simulation.instance = instance
    simulation.population.rebirth(np.arange(simulation.n), instance.key, instance.lr, instance.live_units)


def _load_population(simulation: Simulation, saved: dict[str, Any]) -> None:
    population = simulation.population
    for number, tensor in enumerate(population.body.tensors()):
        tensor.copy_(saved["body"][str(number)])
    _copy_census(population.census, saved["census"])
    for name, tensors in saved["seeds"].items():
        slot, kind = (int(part) for part in name.split("."))
        rows = np.flatnonzero(population.census.blueprint[:, slot] == kind)
        values, *state = (tensors[str(k)].to(population.lr.device).clone() for k in range(len(tensors)))
        layout = population.engine.seed_layouts[slot][kind]
        population.seeds[slot, kind] = Cohort(layout, rows, values, tuple(state))


def _name(key: SeedKey) -> str:
    return ".".join(map(str, key))


def _numbered(tensors: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
    return {str(number): tensor.clone() for number, tensor in enumerate(tensors)}


def _census(census: Census) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(table.copy()) for name, table in vars(census).items()}


def _copy_census(census: Census, saved: dict[str, torch.Tensor]) -> None:
    for name, table in vars(census).items():
        table[...] = saved[name].numpy()
