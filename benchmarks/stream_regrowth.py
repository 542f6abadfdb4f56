"""Does pruning and growing again pay when the data change? Seeds in the right places of `Esper-Stream-v0`, kept or not.

    python benchmarks/stream_regrowth.py --episodes 12 --json regrowth.json   # half a minute
    python benchmarks/stream_regrowth.py                                      # into benchmarks/results/

All know which blocks are lesioned and plant there only. `early` plants after the warm-up and commits as soon as it can;
`late` does so from half of the horizon on. The others also know when a phase begins and which classes it has, which no
participant is told. They hold their seeds and commit them in the last steps: `held` does nothing else; `again` prunes
its seeds whenever the data change, and plants anew; `sparing` prunes them in phases of at most three classes, and
plants anew in the next one with more. Online is the metric of the network as it is, averaged over the steps; final that
of the committed one at the end, on validation data; forgetting is the info's at the end. Returns are discounted, at the
environment's price of a seed and at higher ones, which change no play. Best of all is the mean over instances of the
best arm's return, in hindsight; without regrowth it leaves out `again` and `sparing`. Brackets are 95 % bootstrap
intervals over instances.
"""

import argparse
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from common import RESULTS, provenance, write_json
from esper_agent.baselines.oracle import lesions
from esper_agent.baselines.scripted import Actions, Baseline, Infos, waiting
from esper_agent.baselines.scripted import Floats as Observations
from esper_agent.evaluation.episodes import Env, Flags, Floats, play_episodes
from esper_agent.evaluation.paired import make_test_env
from esper_agent.evaluation.statistics import mean
from esper_env import Op

ID, FIRST_SEED, EPISODES = "Esper-Stream-v0", 10_000, 64
SLOT_RENTS = (0.04, 0.2, 0.4)
EASY = 3  # classes of a phase in which `sparing` does without seeds
CLOSING, LAST = 12, 4  # steps before the end from which seeds are planted whatever the phase, and are committed
ARMS = ("never", "late", "early", "held", "again", "sparing")
REGROWING = ("again", "sparing")


class Regrower(Baseline):
    """One of the arms; its state is the phase that it saw last and which seeds are of an earlier one."""

    def __init__(self, env: Env, arm: str) -> None:
        super().__init__(env)
        self.env, self.arm = env, arm

    def respond(self, observation: Observations, state: Any, begun: Flags, infos: Infos) -> tuple[Actions, Any]:
        """Prune what the arm prunes, commit, advance, plant."""
        del begun  # all rows play one episode
        assert infos is not None
        n, step, actions = len(observation), self.step(observation)[0], waiting(len(observation))
        phase, stale = (infos["phase"], np.zeros((n, self.slots), dtype=np.bool_)) if state is None else state
        stale = np.where((infos["phase"] != phase)[:, None], self.underway(observation), stale)
        stale &= self.underway(observation)
        unwanted = self.unwanted(stale, infos["phase"], step)
        self.choose(actions, Op.PRUNE, self.may(observation, Op.PRUNE) & unwanted)
        if self.arm in ("early", "late") or step >= self.config.horizon - LAST:
            self.choose(actions, Op.FOSSILIZE, self.may(observation, Op.FOSSILIZE))
        self.choose(actions, Op.ADVANCE, self.may(observation, Op.ADVANCE))
        if self.arm != "never" and (self.arm != "late" or step >= self.config.horizon // 2):
            self.choose(actions, Op.GERMINATE, self.may_grow(observation) & lesions(self.env) & ~unwanted)
        return actions, (infos["phase"].copy(), stale)

    def unwanted(self, stale: Flags, phase: Any, step: int) -> Flags:
        """Where no seed should be, [n, slots]."""
        if self.arm == "again" and step < self.config.horizon - CLOSING:
            return stale
        if self.arm == "sparing" and step < self.config.horizon - CLOSING:
            members = self.env.unwrapped.simulation.instance.phase_members  # type: ignore[attr-defined]
            classes = members[torch.arange(len(phase)), torch.from_numpy(phase)].sum(dim=1).numpy()
            return np.broadcast_to((classes <= EASY)[:, None], stale.shape)
        return np.zeros_like(stale)


class Watcher:
    """Sums over an episode: the metric, and the seeds as their price is discounted."""

    def __init__(self, env: Env) -> None:
        self.config = env.unwrapped.config  # type: ignore[attr-defined]
        self.metric, self.seeds, self.plain = (np.zeros(env.num_envs) for _ in range(3))
        self.discount = 1.0

    def begin(self, infos: Mapping[str, Any]) -> None:
        """Nothing was counted yet."""

    def step(self, actions: Any, infos: Mapping[str, Any], playing: Flags, ended: Flags) -> None:
        """Count a step."""
        del actions, ended
        seeds = sum(infos["seeds"].values()) * playing / self.config.horizon
        self.metric += infos["metric"] * playing / self.config.horizon
        self.seeds += self.discount * seeds
        self.plain += seeds
        self.discount *= self.config.gamma


def play(arm: str, episodes: int) -> dict[str, Floats]:
    """An arm's measures, [episodes] each."""
    env = make_test_env(ID, episodes, threads=1)
    watcher = Watcher(env)
    played = play_episodes(Regrower(env, arm), env, seed=FIRST_SEED, watchers=(watcher,))
    own = env.unwrapped.config.slot_rent  # type: ignore[attr-defined]
    returns = {f"return at {price}": played.discounted_return - (price - own) * watcher.seeds for price in SLOT_RENTS}
    final, forgotten = played.infos["committed_metric"], played.infos["forgetting"]
    print(f"{arm:<8} online {watcher.metric.mean():.3f} final {final.mean():.3f}", flush=True)
    return {"online": watcher.metric, "final": final, "seeds": watcher.plain, "forgetting": forgotten, **returns}


def table(played: dict[str, dict[str, Floats]], episodes: int) -> str:
    measures = list(played["never"])
    lines = [f"| arm | {' | '.join(measures)} |", "|---" * (1 + len(measures)) + "|"]
    lines += [f"| {arm} | {' | '.join(str(mean(own[name])) for name in measures)} |" for arm, own in played.items()]
    hindsight = []
    for title, left_out in (("best of all", ()), ("best without regrowth", REGROWING)):
        arms = [own for arm, own in played.items() if arm not in left_out]
        best = [np.max([own[name] for own in arms], axis=0) for name in measures[-len(SLOT_RENTS) :]]
        hindsight.append(best)
        lines.append(f"| {title} | {' | '.join([' '] * (len(measures) - len(best)) + [str(mean(b)) for b in best])} |")
    gains = [str(mean(one - other)) for one, other in zip(*hindsight, strict=True)]
    lines.append(f"| what regrowth adds | {' | '.join([' '] * (len(measures) - len(gains)) + gains)} |")
    facts = provenance()
    packages = ", ".join(f"{package} {version}" for package, version in facts["versions"].items())
    about = f"{episodes} test instances from seed {FIRST_SEED}. `{facts['command']}`; {packages}."
    assert __doc__ is not None
    return "\n".join([f"# Growing again on {ID}", "", __doc__.split("\n\n")[2].strip(), "", *lines, "", about, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=EPISODES, help="test instances")
    parser.add_argument("--json", help="where to write the result; no page then")
    options = parser.parse_args()
    torch.set_num_threads(1)
    played = {arm: play(arm, options.episodes) for arm in ARMS}
    text = table(played, options.episodes)
    print("\n" + text)
    arms = {arm: {name: vars(mean(values)) for name, values in own.items()} for arm, own in played.items()}
    result = {"environment": ID, "episodes": options.episodes, "provenance": provenance(), "arms": arms}
    write_json(options.json or RESULTS / "stream_regrowth.json", result)
    if not options.json:
        (RESULTS / "stream_regrowth.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
