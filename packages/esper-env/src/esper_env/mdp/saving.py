"""Saving and resuming a simulation: an interrupted episode continues bit for bit."""

from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from esper_env.blueprints.blends import Blend
from esper_env.fused.structure import require_alike
from esper_env.mdp.actions import Op
from esper_env.mdp.instances import draw, episode_keys
from esper_env.mdp.lifecycle import gates
from esper_env.mdp.simulation import Simulation
from esper_env.mdp.state import Stage, State
from esper_env.population.cohort import Cohort
from esper_env.population.population import EMPTY, Census, SeedKey


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
        "control": _numbered(() if simulation.control is None else simulation.control.population.body.tensors()),
        "snapshot": {
            "state": snapshot.state.clone().tensors(),
            "body": _numbered(snapshot.body),
            "census": _census(snapshot.census),
            "seeds": _numbered(snapshot.seeds),
        },
    }


def check(simulation: Simulation, saved: dict[str, Any]) -> None:
    """Refuse what `save` does not give in a simulation of this configuration and size, before anything is copied.

    Raises:
        ValueError: naming the first difference.
    """
    own = save(simulation)
    for field, mine in own["settings"].items():
        if saved["settings"].get(field) != mine:
            theirs = saved["settings"].get(field)
            raise ValueError(f"the saved environment has {field}={theirs!r}; this one has {mine!r}")
    own["seeds"] = _expected_seeds(simulation, saved["census"]["blueprint"])
    require_alike({**saved, "settings": own["settings"]}, own, "environment")
    kinds = len(simulation.population.engine.blueprints)
    for part in (saved, saved["snapshot"]):
        census = part["census"]
        _require_range("census.blueprint", census["blueprint"], EMPTY, kinds)
        _require_range("census.blend", census["blend"], 0, len(Blend))
        _require_range("state.stage", part["state"]["stage"], 0, len(Stage))
        _require_range("state.last_op", part["state"]["last_op"], 0, len(Op))


def load(simulation: Simulation, saved: dict[str, Any]) -> None:
    """Continue from what `save` gave and `check` accepts, on any device."""
    device = simulation.config.device
    simulation.base_key = saved["base_key"].to(device).clone()
    simulation.episode = saved["episode"].to(device).clone()
    _load_instance(simulation)
    _load_population(simulation, saved)
    simulation.state.copy_from(State(**saved["state"]))
    simulation.ended = saved["state"]["ended"].cpu().numpy().copy()
    snapshot = simulation.snapshot
    snapshot.state.copy_from(State(**saved["snapshot"]["state"]))
    _copy_census(snapshot.census, saved["snapshot"]["census"])
    for part, tensors in (("body", snapshot.body), ("seeds", snapshot.seeds)):
        for number, tensor in enumerate(tensors):
            tensor.copy_(saved["snapshot"][part][str(number)])
    simulation.population.alpha.copy_(simulation.state.alpha)
    simulation.gates = gates(simulation.state, simulation.config, simulation.instance.budget)


def _settings(simulation: Simulation) -> dict[str, Any]:
    """What must agree for an episode to go on, in the form that JSON keeps."""
    settings = {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(simulation.config).items()}
    del settings["device"], settings["threads"]  # where it goes on is free
    return {"num_envs": simulation.n, **settings}


def _expected_seeds(simulation: Simulation, blueprint: Any) -> dict[str, Any]:
    """The seeds that a census asks for, as tensors without memory."""
    engine, seeds = simulation.population.engine, {}
    require_alike(blueprint, _census(simulation.population.census)["blueprint"], "environment.census.blueprint")
    _require_range("census.blueprint", blueprint, EMPTY, len(engine.blueprints))
    for slot, layouts in enumerate(engine.seed_layouts):
        for kind, layout in enumerate(layouts):
            if rows := int((blueprint[:, slot] == kind).sum()):
                values = torch.empty(rows, layout.size, dtype=engine.dtype, device="meta")
                seeds[_name((slot, kind))] = _numbered((values, *engine.optimizer.initial(values)))
    return seeds


def _require_range(name: str, values: torch.Tensor, low: int, stop: int) -> None:
    strange = values[(values < low) | (values >= stop)]
    if len(strange):
        raise ValueError(f"the saved {name} holds {strange[0].item()}; allowed: {low} to {stop - 1}")


def _load_instance(simulation: Simulation) -> None:
    keys = episode_keys(simulation.base_key, simulation.episode, simulation.config)
    instance = draw(keys, simulation.task, simulation.data, simulation.config)
    simulation.instance = instance
    rows = np.arange(simulation.n)
    simulation.population.rebirth(rows, instance.key, instance.lr, instance.live_units)
    if simulation.control is not None:
        simulation.control.rebirth(rows, instance)


def _load_population(simulation: Simulation, saved: dict[str, Any]) -> None:
    population = simulation.population
    for number, tensor in enumerate(population.body.tensors()):
        tensor.copy_(saved["body"][str(number)])
    _copy_census(population.census, saved["census"])
    if simulation.control is not None:
        for number, tensor in enumerate(simulation.control.population.body.tensors()):
            tensor.copy_(saved["control"][str(number)])
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
