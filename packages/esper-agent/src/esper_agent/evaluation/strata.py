"""Strata: what the instances of an evaluation differ in, and the groups that a report shows by themselves."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from esper_env import EsperVectorEnv
from numpy.typing import NDArray

from esper_agent.evaluation.episodes import Env, Flags

MOST_GROUPS = 4  # of a trait that is counted; one with more values is cut into thirds
Traits = dict[str, list[float]]


def traits(env: Env) -> Traits:
    """What an environment has drawn for each row's episode and for others otherwise: lesions or widths, prices."""
    esper = env.unwrapped
    assert isinstance(esper, EsperVectorEnv)
    instance = esper.simulation.instance
    prices = {name: getattr(instance, name).cpu().numpy() for name in ("rent", "slot_rent", "budget")}
    widths = esper.config.shapes == "widths"
    shape = {"mean width": esper.live_units.mean(axis=1)} if widths else {"lesions": esper.lesioned.sum(axis=1)}
    drawn: dict[str, NDArray[Any]] = shape | {name.replace("_", " "): value for name, value in prices.items()}
    return {name: np.round(value, 6).tolist() for name, value in drawn.items() if len(set(value.tolist())) > 1}


def groups(drawn: Mapping[str, Sequence[float]]) -> dict[str, Flags]:
    """The instances of each stratum, by its name."""
    return {
        f"{name} {key}": flags for name, values in drawn.items() for key, flags in _groups(np.array(values)).items()
    }


def _groups(values: NDArray[Any]) -> dict[str, Flags]:
    """By value where these are few whole numbers, else by thirds."""
    different = np.unique(values)
    if len(different) <= MOST_GROUPS and (different == different.round()).all():
        return {f"{value:g}": values == value for value in different}
    ends = [-np.inf, *np.quantile(values, (1 / 3, 2 / 3)), np.inf]
    parts = [(values > low) & (values <= high) for low, high in pairwise(ends)]
    return {f"{values[part].min():.3g} to {values[part].max():.3g}": part for part in parts if part.any()}
