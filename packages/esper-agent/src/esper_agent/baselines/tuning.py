"""Constants and schedules that are best on given instances, each found by a seeded search."""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from esper_env import Blend
from esper_env.config import TEMPI, EsperConfig
from numpy.typing import NDArray

from esper_agent.baselines.oracle import Oracle, lesion_kind, lesion_kinds, lesions
from esper_agent.baselines.schedules import FixedSchedule, Planting
from esper_agent.baselines.search import Choices, Found, Search, search_groups
from esper_agent.baselines.tuned import TUNABLE
from esper_agent.evaluation.episodes import Env, Floats, Ints
from esper_agent.evaluation.paired import GrowthEpisodes, play

Objective = Callable[[GrowthEpisodes], Floats]
Schedule = tuple[Planting, ...]
SCANS = 16  # how often the rows are drawn again to find instances of rare kinds
LONGEST_EXTRA_INCUBATION = 3
SEED_HEADS = ("blueprint", "blend", "tempo")
DISCOUNTED_RETURN: Objective = attrgetter("discounted_return")  # what agents maximise


def constants_to_try(name: str, env: Env) -> dict[str, tuple[float, ...]]:
    """The values that are tried for each constant of a baseline; the first is what one would try first."""
    esper: Any = env.unwrapped
    seeds = {head: tuple(range(esper.head_sizes[head])) for head in SEED_HEADS}
    judging: dict[str, tuple[float, ...]] = {
        "start": tuple(esper.config.warmup_steps + wait for wait in (1, 0, 2, 4)),
        "incubation": tuple(esper.config.training_steps + longer for longer in (1, 0, 2, 4)),
        "seeds": (1, 2),
    }
    ceiling: dict[str, tuple[float, ...]] = {"ceiling": (0.8, 0.7, 0.9, 1.0)}
    plateau = {"patience": (2, 1, 3, 4, 6)} | ceiling
    period = {"period": tuple(min(steps, esper.config.horizon) for steps in (8, 4, 6, 10, 12))}
    own: dict[str, dict[str, tuple[float, ...]]] = {
        "grow_everything": {},
        "plateau": plateau,
        **dict.fromkeys(("gradmax", "rigl", "tiny", "senn"), plateau),
        "north": {"threshold": (0.95, 0.5, 0.7, 0.85, 1.0)} | ceiling,
        "autogrow": period | {"least": (0.02, 0.0, 0.01, 0.05, 0.1)},
        "periodic": period | ceiling,
        "underfitting": {"gap": (0.05, 0.0, 0.02, 0.1, 0.2)} | ceiling,
        "greedy": judging | {"trials": tuple(range(1, esper.schema.slots + 1))},
        "try_and_prune": judging | {"threshold": (0.02, 0.0, 0.01, 0.04, 0.08)},
    }
    return own[name] | seeds


def search_constants(
    name: str,
    env: Env,
    seeds: int | Sequence[int],
    trials: int,
    seed: int = 0,
    objective: Objective = DISCOUNTED_RETURN,
    choices: Choices | None = None,
) -> Found[dict[str, Any]]:
    """The constants of a baseline.

    Args:
        name: One of TUNABLE.
        env: Where to play, one row per instance; made for train instances by whoever wants a fair comparison.
        seeds: Which instances, as for `play`.
        trials: How many candidates are played.
        seed: Of the search.
        objective: What to maximise.
        choices: The values to try for each constant; those of `constants_to_try` unless given.
    """

    choices = choices or constants_to_try(name, env)
    usual = {constant: values[0] for constant, values in choices.items()}
    search = Search(choices, dict, seed, [usual | {"blueprint": kind} for kind in choices["blueprint"]])
    return search.run(lambda constants: objective(play(TUNABLE[name](env, **constants), env, seeds)), trials)


def schedule_choices(places: int, sizes: Mapping[str, int], config: EsperConfig) -> Choices:
    """What a schedule may plant in each of the first slots, the step None for nothing."""
    latest = config.horizon - 1 - config.training_steps - TEMPI[0] - config.holding_steps
    longest = config.training_steps + LONGEST_EXTRA_INCUBATION
    own: Choices = {
        "step": (None, *range(config.warmup_steps, latest + 1)),
        **{head: range(sizes[head]) for head in SEED_HEADS},
        "incubation": range(config.training_steps, longest + 1),
    }
    return {f"{place}.{name}": values for place in range(places) for name, values in own.items()}


def schedule_of(chosen: Mapping[str, Any]) -> Schedule:
    """The plantings that values for each of `schedule_choices` stand for."""
    slots = sorted({int(name.split(".")[0]) for name in chosen})
    fields = [name.split(".")[1] for name in chosen if name.startswith("0.")]
    described = [{"slot": slot} | {field: chosen[f"{slot}.{field}"] for field in fields} for slot in slots]
    return tuple(Planting(**one) for one in described if one["step"] is not None)


def first_schedules(places: int, sizes: Mapping[str, int], config: EsperConfig) -> list[dict[str, Any]]:
    """What anyone would try first: nothing, or seeds of one blueprint everywhere at once."""
    alike = {"blend": int(Blend.ADD), "tempo": 0, "incubation": config.training_steps}
    usual = {f"{place}.{name}": value for place in range(places) for name, value in alike.items()}
    steps = schedule_choices(places, sizes, config)["0.step"]
    usual |= {f"{place}.step": steps[min(1 + place, len(steps) - 1)] for place in range(places)}
    kinds = [
        dict.fromkeys((f"{place}.blueprint" for place in range(places)), kind) for kind in range(sizes["blueprint"])
    ]
    return [{f"{place}.step": None for place in range(places)}, *(usual | kind for kind in kinds)]


def search_schedule(
    env: Env,
    seeds: int | Sequence[int],
    trials: int,
    seed: int = 0,
    objective: Objective = DISCOUNTED_RETURN,
    most_added: float = np.inf,
) -> Found[Schedule]:
    """The best open-loop schedule; the arguments are those of `search_constants`.

    Args:
        env: Where to play.
        seeds: Which instances.
        trials: How many candidates are played.
        seed: Of the search.
        objective: What to maximise.
        most_added: Limit of the parameters that a schedule adds, as a share of the host's; plantings that would
            exceed it are left out.
    """
    esper: Any = env.unwrapped
    sizes = seed_sizes(env)

    def affordable(chosen: Mapping[str, Any]) -> Schedule:
        kept: Schedule = ()
        for one in schedule_of(chosen):
            if sum(sizes[other.slot, other.blueprint, other.blend] for other in (*kept, one)) <= most_added:
                kept += (one,)
        return kept

    terms = (esper.schema.slots, esper.head_sizes, esper.config)
    search = Search(schedule_choices(*terms), affordable, seed, first_schedules(*terms))
    return search.run(lambda schedule: objective(play(FixedSchedule(env, schedule), env, seeds)), trials)


def search_oracle(
    env: Env, seeds: int, trials: int, seed: int = 0, objective: Objective = DISCOUNTED_RETURN
) -> dict[str, Found[Schedule]]:
    """The best schedule for each kind of lesion, not growing among them; each plants beside lesioned blocks only.

    Args:
        env: As for `search_constants`.
        seeds: The first seed; instances are chosen from there on so that all kinds are equally frequent.
        trials: How many candidates are played for each kind.
        seed: Of the search.
        objective: What to maximise.
    """
    esper: Any = env.unwrapped
    kinds = lesion_kinds(esper.schema.slots)
    chosen, group = balanced_instances(env, seeds)

    def score(candidates: Sequence[Schedule]) -> Floats:
        return objective(play(Oracle(env, dict(zip(kinds, candidates, strict=True))), env, chosen))

    places = [esper.schema.slots, *[1] * esper.schema.slots, 2]  # without a lesion, anywhere
    terms = [(place, esper.head_sizes, esper.config) for place in places]
    searches = [
        Search(schedule_choices(*each), schedule_of, seed + number, first_schedules(*each))
        for number, each in enumerate(terms)
    ]
    return dict(zip(kinds, search_groups(searches, score, group, trials), strict=True))


def balanced_instances(env: Env, first_seed: int) -> tuple[list[int], Ints]:
    """Seeds of one instance per row, as equally spread over the kinds of lesion as they are found, and their kinds."""
    seeds = np.arange(first_seed, first_seed + SCANS * env.num_envs)
    kind = np.concatenate([_kinds(env, int(start)) for start in seeds[:: env.num_envs]])
    rank = np.zeros_like(kind)  # the how many-th of its kind each instance is
    for each in np.unique(kind):
        rank[kind == each] = np.arange((kind == each).sum())
    chosen = np.sort(np.lexsort((seeds, rank))[: env.num_envs])
    return seeds[chosen].tolist(), kind[chosen]


def _kinds(env: Env, seed: int) -> Ints:
    env.reset(seed=seed)
    return lesion_kind(lesions(env))


def seed_sizes(env: Env) -> NDArray[np.float64]:
    """Parameters of a seed as a share of the host's, [slots, blueprints, blends], as the environment counts them."""
    esper: Any = env.unwrapped
    sizes = np.zeros([esper.head_sizes[head] for head in ("slot", "blueprint", "blend")])
    first, incubation = esper.config.warmup_steps, esper.config.training_steps
    for kind, blend in np.ndindex(sizes.shape[1:]):
        everywhere = [Planting(first + slot, slot, kind, blend, 0, incubation) for slot in range(len(sizes))]
        play(FixedSchedule(env, everywhere), env, 0)
        sizes[:, kind, blend] = esper.state.seed_size.amax(dim=0).cpu()  # a row that was rolled back lacks seeds
    return sizes
