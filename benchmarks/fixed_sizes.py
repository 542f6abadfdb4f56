"""Growth against what people do instead: the final size from the start, a large network pruned, longer training.

    python benchmarks/fixed_sizes.py --env Esper-v0 --episodes 16 --json sizes.json   # a minute
    python benchmarks/fixed_sizes.py --env Esper-v0                                   # into benchmarks/results/

All train on the same test instances, with the same initial weights and data order. `grown` knows where the host is
narrow and plants a seed there after the warm-up: one at each lesioned block or, where all widths are drawn, at the
narrowest. `plateau` is the tuned rule, which does not know. Those `from the start` never grow: their seeds are live at
full strength from step 0. `the same` has the seeds that `grown` ends with, so equal parameters; `everywhere` has one
beside every block, since who cannot know where it is needed makes all blocks larger; `pruned` begins so and at half
time removes every seed without which the metric falls by less than 0.02. `longer` is the host without any seed, trained
for as many steps more as it takes to spend the training FLOPs, or the processor time of training, of `grown`; `fewer
steps` are networks from the start stopped where they have spent its FLOPs. Accuracy is that of the committed network
on the test split; the difference is to `grown`, over the same instances. Brackets are 95 % bootstrap intervals over
instances. Compute is training FLOPs in units of the host's; time is the processor time of the training alone, likewise.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from common import RESULTS, provenance, write_json
from esper_agent.baselines.oracle import Oracle, lesion_kinds, lesions
from esper_agent.baselines.schedules import Planting
from esper_agent.baselines.scripted import Actions, Baseline, Floats, Infos, waiting
from esper_agent.baselines.tuned import load_tuned, make_baseline
from esper_agent.evaluation.episodes import Env, Flags
from esper_agent.evaluation.paired import GrowthEpisodes, make_test_env, play
from esper_agent.evaluation.statistics import Estimate, mean, ratio
from esper_env import Op
from esper_env.mdp.lifecycle import gates
from esper_env.mdp.state import Stage

FIRST_SEED, EPISODES = 10_000, 100  # of the test instances
LOW_RANK, MEDIUM = 0, 2  # blueprints of the MLPs
KEEP = 0.02  # contribution of a seed that is not pruned
Make = Callable[[Env], Baseline]


@dataclass(frozen=True)
class Played:
    """An arm's episodes, the steps of each, and the processor time of training."""

    episodes: GrowthEpisodes
    steps: int
    seconds: float


class FromTheStart(Baseline):
    """Seeds that are live before the first step; then it waits.

    Args:
        env: Whose rows get the seeds.
        kind: Their blueprint.
        everywhere: In every slot, or where the host is narrow.
        stage: FOSSILIZED, or HOLDING for those that may be pruned.
    """

    def __init__(self, env: Env, kind: int, everywhere: bool, stage: Stage = Stage.FOSSILIZED) -> None:
        super().__init__(env)
        self.env, self.kind, self.everywhere, self.stage = env, kind, everywhere, stage

    def respond(self, observation: Floats, state: Any, begun: Flags, infos: Infos) -> tuple[Actions, Any]:
        """Plant before anything is trained."""
        del infos
        if state is None or begun.any():
            narrow = lesions(self.env)
            plant(self.env, np.ones_like(narrow) if self.everywhere else narrow, self.kind, self.stage)
        return self.act(observation, waiting(len(observation))), True


class Pruned(FromTheStart):
    """At half time it prunes what does not help, one seed per step, and then commits the others."""

    def __init__(self, env: Env, kind: int) -> None:
        super().__init__(env, kind, everywhere=True, stage=Stage.HOLDING)

    def act(self, observation: Floats, actions: Actions) -> Actions:
        """Prune in as many steps as there are slots."""
        step, half = self.step(observation), self.config.horizon // 2
        idle = self.slot_field(observation, "contribution") < KEEP
        pruning = ((step >= half) & (step < half + self.slots))[:, None]
        self.choose(actions, Op.PRUNE, self.may(observation, Op.PRUNE) & idle & pruning)
        self.choose(actions, Op.FOSSILIZE, self.may(observation, Op.FOSSILIZE) & (step >= half + self.slots)[:, None])
        return actions


def plant(env: Env, where: Flags, kind: int, stage: Stage) -> None:
    """Put live seeds into slots [n, slots] of hosts that were just reset."""
    simulation: Any = env.unwrapped.simulation  # type: ignore[attr-defined]
    rows, slots = np.nonzero(where)
    index, same = torch.from_numpy(rows), np.zeros(len(rows), dtype=np.int64)
    instance, state, population = simulation.instance, simulation.state, simulation.population
    population.germinate(rows, slots, same + kind, same, instance.key[index], state.step[index])
    population.advance(rows, slots)
    if stage is Stage.FOSSILIZED:
        population.commit(rows, slots)
    state.stage[index, torch.from_numpy(slots)] = int(stage)
    population.alpha.copy_(state.alpha)
    simulation.gates = gates(state, simulation.config, instance.budget)
    simulation.snapshot.take(population, state, np.arange(len(where)))


def knowing(env: Env) -> Baseline:
    """A seed at every narrow block as soon as the host has warmed up."""
    config: Any = env.unwrapped.config  # type: ignore[attr-defined]
    slots = env.unwrapped.schema.slots  # type: ignore[attr-defined]
    seeds = [Planting(config.warmup_steps + k, k, MEDIUM, 0, 0, config.training_steps) for k in range(2)]
    table = dict.fromkeys(lesion_kinds(slots), seeds[:1]) | {"none": [], "two": seeds}
    return Oracle(env, table)


def run(make: Make, options: argparse.Namespace, steps: int | None = None) -> Played:
    """Play an arm for so many steps, the environment's own number unless given."""
    settings = options.settings | ({} if steps is None else {"horizon": steps})
    env, spent = make_test_env(options.env, options.episodes, **settings), [0.0]

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        start = time.process_time()
        yield
        spent[0] += (time.process_time() - start) * (name == "host training")

    env.unwrapped.measure_phases(timed)  # type: ignore[attr-defined]
    episodes = play(make(env), env, FIRST_SEED)
    return Played(episodes, env.unwrapped.config.horizon, spent[0])  # type: ignore[attr-defined]


def play_all(options: argparse.Namespace) -> dict[str, Played]:
    tuned = load_tuned("Esper-v0")["baselines"]["plateau"]
    arms: dict[str, Make] = {
        "never": Baseline,
        "grown": knowing,
        "plateau": lambda env: make_baseline("plateau", env, tuned),
        "the same from the start": lambda env: FromTheStart(env, MEDIUM, everywhere=False),
        "everywhere, low_rank": lambda env: FromTheStart(env, LOW_RANK, everywhere=True),
        "everywhere, medium_mlp": lambda env: FromTheStart(env, MEDIUM, everywhere=True),
        "pruned": lambda env: Pruned(env, MEDIUM),
    }
    played = {}
    for name, make in arms.items():
        played[name] = run(make, options)
        print(f"{name:<26} accuracy {played[name].episodes.test_accuracy.mean():.3f}", flush=True)
    grown, host = played["grown"], played["never"]
    played["longer, equal FLOPs"] = run(Baseline, options, round(grown.steps * flops(grown) / flops(host)))
    played["longer, equal time"] = run(Baseline, options, round(grown.steps * grown.seconds / host.seconds))
    for name in ("the same from the start", "everywhere, medium_mlp"):
        fewer = round(grown.steps * flops(grown) / flops(played[name]))
        played[f"{name}, fewer steps"] = run(arms[name], options, fewer)
    return played


def flops(played: Played) -> float:
    return float(played.episodes.training_flops.mean())


def row(played: Played, grown: Played, host: Played) -> dict[str, Estimate]:
    """What the table says of an arm."""
    own, other = played.episodes, grown.episodes
    return {
        "accuracy": mean(own.test_accuracy),
        "ahead": mean(own.test_accuracy - other.test_accuracy),
        "added": mean(own.added_parameters),
        "compute": ratio(own.training_flops, host.episodes.training_flops),
        "time": Estimate(played.seconds / host.seconds),
        "steps": Estimate(played.steps),
    }


def table(rows: dict[str, dict[str, Estimate]], options: argparse.Namespace) -> str:
    titles = ("network", "steps", "test accuracy", "minus that of grown", "added", "compute", "time")
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for name, one in rows.items():
        cells = [name, f"{one['steps'].point:.0f}", one["accuracy"], one["ahead"], f"{one['added'].point:.0%}"]
        lines.append(f"| {' | '.join(map(str, cells))} | {one['compute'].point:.2f} | {one['time'].point:.2f} |")
    facts = provenance()
    packages = ", ".join(f"{package} {version}" for package, version in facts["versions"].items())
    assert __doc__ is not None
    about = f"{options.episodes} test instances from seed {FIRST_SEED}. `{facts['command']}`; {packages}."
    title = f"# Growth against fixed sizes on {options.env}"
    return "\n".join([title, "", __doc__.split("\n\n")[2].strip(), "", *lines, "", about, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", required=True, choices=("Esper-v0", "Esper-Shapes-v0"))
    parser.add_argument("--episodes", type=int, default=EPISODES, help="test instances")
    parser.add_argument("--json", help="where to write the result; no page then")
    options = parser.parse_args()
    # Seeds everywhere may exceed a drawn budget.
    options.settings = {"threads": 1} | ({"budget": None} if options.env == "Esper-Shapes-v0" else {})
    torch.set_num_threads(1)
    played = play_all(options)
    rows = {name: row(one, played["grown"], played["never"]) for name, one in played.items()}
    text, stem = table(rows, options), RESULTS / f"fixed_sizes_{options.env}"
    print("\n" + text)
    plain = {name: {key: vars(value) for key, value in one.items()} for name, one in rows.items()}
    facts = {"environment": options.env, "episodes": options.episodes, "provenance": provenance(), "networks": plain}
    write_json(options.json or stem.with_suffix(".json"), facts)
    if not options.json:
        stem.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
