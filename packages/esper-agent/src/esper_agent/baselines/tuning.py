"""Constants and schedules that are best on given instances, each found by a seeded search."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from esper_env import Blend, Op
from numpy.typing import NDArray

from esper_agent.baselines.controllers import Controller, Env, GrowEverything, Ints, PlateauRule, waiting
from esper_agent.baselines.judging import GreedyScore, TryAndPrune
from esper_agent.baselines.oracle import Oracle, kinds_of_lesion, lesion_kind, lesions
from esper_agent.baselines.paired import Episodes, play
from esper_agent.baselines.scripted import FixedSchedule, Planting
from esper_agent.baselines.search import Constants, Found, Schedule, Schedules, Scores, search

Objective = Callable[[Episodes], Scores]
SCANS = 16  # how often the rows are drawn again to find instances of rare kinds

RULES: dict[str, type[Controller]] = {
    "grow_everything": GrowEverything,
    "plateau": PlateauRule,
    "greedy": GreedyScore,
    "try_and_prune": TryAndPrune,
}


def discounted_return(episodes: Episodes) -> Scores:
    """What agents maximise."""
    return episodes.discounted_return


def val_accuracy(episodes: Episodes) -> Scores:
    """The committed network's, whatever it cost."""
    return episodes.val_accuracy


def rule_constants(name: str, env: Env) -> dict[str, tuple[float, ...]]:
    """The values that are tried for each constant of a rule; the first is what one would try first."""
    esper: Any = env.unwrapped
    seeds = {head: tuple(range(esper.head_sizes[head])) for head in ("blueprint", "blend", "tempo")}
    shortest, slots = esper.config.training_steps, esper.schema.slots
    incubation = tuple(shortest + longer for longer in (1, 0, 2, 4))
    starts = tuple(esper.config.warmup_steps + wait for wait in (1, 0, 2, 4))
    own: dict[str, dict[str, tuple[float, ...]]] = {
        "grow_everything": {},
        "plateau": {"patience": (2, 1, 3, 4, 6), "ceiling": (0.8, 0.7, 0.9, 1.0)},
        "greedy": {
            "start": starts,
            "trials": tuple(range(1, slots + 1)),
            "incubation": incubation,
            "seeds": (1, 2),
        },
        "try_and_prune": {
            "start": starts,
            "incubation": incubation,
            "threshold": (0.02, 0.0, 0.01, 0.04, 0.08),
            "seeds": (1, 2),
        },
    }
    return own[name] | seeds


def search_rule(
    name: str,
    env: Env,
    seeds: int | Sequence[int],
    trials: int,
    seed: int = 0,
    objective: Objective = discounted_return,
    choices: dict[str, tuple[float, ...]] | None = None,
) -> Found[dict[str, Any]]:
    """The constants of a rule.

    Args:
        name: One of RULES.
        env: Where to play, one row per instance; made for train instances by whoever wants a fair comparison.
        seeds: Which instances, as for `play`.
        trials: How many candidates are played.
        seed: Of the search.
        objective: What to maximise.
        choices: The values to try for each constant; those of `rule_constants` unless given.
    """

    def score(candidates: Sequence[dict[str, Any]]) -> Scores:
        return objective(play(RULES[name](env, **candidates[0]), env, seeds))

    choices = choices or rule_constants(name, env)
    usual = {constant: values[0] for constant, values in choices.items()}
    first = [[usual | {"blueprint": kind}] for kind in choices["blueprint"]]
    return search([Constants(choices)], score, _one_group(env), trials, seed, first)[0]


def search_schedule(
    env: Env,
    seeds: int | Sequence[int],
    trials: int,
    seed: int = 0,
    objective: Objective = discounted_return,
    most_added: float = np.inf,
) -> Found[Schedule]:
    """The best open-loop schedule; the arguments are those of `search_rule`.

    Args:
        env: Where to play.
        seeds: Which instances.
        trials: How many candidates are played.
        seed: Of the search.
        objective: What to maximise.
        most_added: Limit of the parameters that a schedule adds, as a share of the host's.
    """
    esper: Any = env.unwrapped
    sizes = seed_sizes(env)

    def affordable(schedule: Schedule) -> bool:
        return float(sum(sizes[one.slot, one.blueprint, one.blend] for one in schedule)) <= most_added

    def score(candidates: Sequence[Schedule]) -> Scores:
        return objective(play(FixedSchedule(env, candidates[0]), env, seeds))

    space = Schedules(esper.schema.slots, esper.head_sizes, esper.config, affordable)
    first = [[one] for one in plain_schedules(env, esper.schema.slots) if affordable(one)]
    return search([space], score, _one_group(env), trials, seed, first)[0]


def plain_schedules(env: Env, places: int) -> list[Schedule]:
    """What anyone would try first: nothing, or seeds of one blueprint everywhere at once."""
    esper: Any = env.unwrapped
    first, incubation = esper.config.warmup_steps, esper.config.training_steps
    everywhere = [
        tuple(Planting(first + place, place, kind, Blend.ADD, 0, incubation) for place in range(places))
        for kind in range(esper.head_sizes["blueprint"])
    ]
    return [(), *everywhere]


def search_oracle(
    env: Env, seeds: int, trials: int, seed: int = 0, objective: Objective = discounted_return
) -> dict[str, Found[Schedule]]:
    """The best schedule for each kind of lesion, not growing among them; each plants beside narrowed blocks only.

    Args:
        env: As for `search_rule`.
        seeds: The first seed; instances are chosen from there on so that all kinds are equally frequent.
        trials: How many candidates are played for each kind.
        seed: Of the search.
        objective: What to maximise.
    """
    esper: Any = env.unwrapped
    kinds = kinds_of_lesion(esper.schema.slots)
    chosen, group = balanced_instances(env, seeds)

    def score(candidates: Sequence[Schedule]) -> Scores:
        return objective(play(Oracle(env, dict(zip(kinds, candidates, strict=True))), env, chosen))

    places = [esper.schema.slots, *[1] * esper.schema.slots, 2]  # without a lesion, anywhere
    spaces = [Schedules(place, esper.head_sizes, esper.config) for place in places]
    first = list(zip(*(plain_schedules(env, place) for place in places), strict=True))
    found = search(spaces, score, group, trials, seed, first)
    return dict(zip(kinds, found, strict=True))


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
    heads = ("slot", "blueprint", "blend")
    shape = tuple(env.unwrapped.head_sizes[head] for head in heads)  # type: ignore[attr-defined]
    every = np.indices(shape).reshape(len(heads), -1)
    sizes = [_sizes(env, dict(zip(heads, part, strict=True))) for part in _parts(every, env.num_envs)]
    return np.concatenate(sizes).reshape(shape)


def _parts(table: Ints, width: int) -> list[Ints]:
    return [table[:, start : start + width] for start in range(0, table.shape[1], width)]


def _sizes(env: Env, heads: dict[str, Ints]) -> NDArray[np.float64]:
    """What each of these seeds adds, planted in the first rows."""
    env.reset(seed=0)
    actions, planted = waiting(env.num_envs), len(heads["slot"])
    for _ in range(env.unwrapped.config.warmup_steps):  # type: ignore[attr-defined]
        env.step(actions)
    for head, values in ({"op": np.full(planted, Op.GERMINATE)} | heads).items():
        actions[head][:planted] = values
    added: NDArray[np.float64] = env.step(actions)[-1]["added_parameters"]
    return added[:planted]


def _one_group(env: Env) -> Ints:
    return np.zeros(env.num_envs, dtype=np.int64)
