"""The main job in a few minutes: train the agent on Esper-v0, compare it with two baselines, and draw a picture.

make demo
"""

import argparse
import time
from pathlib import Path
from typing import Any

import esper_env  # noqa: F401 (registers the environments)
import matplotlib.figure
import numpy as np
from esper_agent import FactoredRecurrentPPO
from esper_agent.baselines.agents import AGENTS, OurAgent
from esper_agent.baselines.scripted import GrowOnPlateau, NeverGrow
from esper_agent.evaluation.episodes import Policy
from esper_agent.evaluation.paired import GrowthEpisodes, make_test_env, play
from esper_agent.evaluation.statistics import mean
from stable_baselines3.common.callbacks import BaseCallback

ENV_ID = "Esper-v0"
ROWS, EPISODES, EVALUATION_SEED = 64, 128, 10_000


class Curve(BaseCallback):
    """Remembers the mean return of recent episodes after every rollout."""

    def __init__(self) -> None:
        super().__init__()
        self.points: list[tuple[int, float]] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        episodes = self.model.ep_info_buffer
        if episodes:
            self.points.append((self.num_timesteps, float(np.mean([episode["r"] for episode in episodes]))))


def train(steps: int, seed: int) -> tuple[FactoredRecurrentPPO, Curve]:
    agent = OurAgent(ENV_ID, ROWS, seed, AGENTS["ours"].settings(ENV_ID), {}).model
    curve = Curve()
    agent.learn(steps, callback=curve, progress_bar=True)
    return agent, curve


def table(results: dict[str, GrowthEpisodes]) -> str:
    never = results["never grow"].test_accuracy
    lines = [f"{'':<14}{'test accuracy':<24}{'gain over never grow':<26}{'added parameters':<18}discounted return"]
    for name, episodes in results.items():
        gain = "-" if name == "never grow" else mean(episodes.test_accuracy - never)
        added, total = f"{episodes.added_parameters.mean():.0%}", f"{episodes.discounted_return.mean():.3f}"
        lines.append(f"{name:<14}{mean(episodes.test_accuracy)!s:<24}{gain!s:<26}{added:<18}{total}")
    return "\n".join(lines)


def last_frame(agent: Policy, seed: int) -> Any:
    """The picture at the end of one held-out episode."""
    env = make_test_env(ENV_ID, 1, render_mode="rgb_array")
    play(agent, env, seed)
    frames = env.render()
    assert frames is not None
    return frames[0]


def picture(curve: Curve, results: dict[str, GrowthEpisodes], frame: Any) -> matplotlib.figure.Figure:
    figure = matplotlib.figure.Figure(figsize=(12, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.35))
    steps, returns = zip(*curve.points, strict=True)
    left.plot(steps, returns, label="agent, while training")
    for name, style in (("never grow", ":"), ("plateau", "--")):
        left.axhline(results[name].episode_return.mean(), linestyle=style, color="grey", label=f"{name}, held-out")
    left.set(xlabel="environment steps", ylabel="plain return (sum of the rewards)", title="Learning to grow")
    left.legend(frameon=False)
    right.imshow(frame)
    right.set_title("One held-out episode at its end")
    right.axis("off")
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=120_000, help="environment steps of training")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="directory for the picture and the agent")
    args = parser.parse_args()
    print(f"Training on {ENV_ID}: {ROWS} growing networks side by side, {args.steps:,} steps.", flush=True)
    begin = time.perf_counter()
    agent, curve = train(args.steps, args.seed)
    print(f"Trained in {time.perf_counter() - begin:.0f} s. Playing {EPISODES} held-out instances, the same for all.")
    env = make_test_env(ENV_ID, EPISODES)
    policies: dict[str, Policy] = {"never grow": NeverGrow(env), "plateau": GrowOnPlateau(env), "agent": agent}
    results = {name: play(policy, env, EVALUATION_SEED) for name, policy in policies.items()}
    print("\n" + table(results) + "\n")
    args.out.mkdir(parents=True, exist_ok=True)
    agent.save(args.out / "agent")
    picture(curve, results, last_frame(agent, EVALUATION_SEED)).savefig(args.out / "demo.png", dpi=110)
    print(f"Picture: {args.out / 'demo.png'}")


if __name__ == "__main__":
    main()
