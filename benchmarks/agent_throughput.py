"""Training steps per second (collection and update) beside sb3-contrib's RecurrentPPO.

    python benchmarks/agent_throughput.py --quick --json benchmarks/results/agent_throughput.json

All arms train on the same environments with the same number of environments, steps, epochs, minibatch sizes, hidden
sizes and threads; our network has one layer more, before the LSTM. Arms take turns. Speeds are medians over the turns,
and ratios are medians of the ratios within a turn, so that other work on the machine, and episodes that grow longer,
weigh on all arms alike.
`vs_onecall` compares with RecurrentPPO whose LSTM is called once per minibatch. RecurrentPPO has one LSTM each for
actor and critic, as by default; `recurrent_ppo_onecall_shared_sps` is the same with a single one.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from agent_envs import MaskedHeads, MultiDiscreteVecEnv, make_cartpole
from common import provenance, write_json
from esper_agent.baselines.recurrent_onecall import OneCallMlpLstmPolicy
from esper_agent.ppo import FactoredRecurrentPPO
from esper_agent.runs.timing import Stopwatch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from sb3_contrib import RecurrentPPO
from sb3_contrib.ppo_recurrent import MlpLstmPolicy
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

# n_steps and n_epochs are RecurrentPPO's defaults; batch size 256 and width 64 are known to suit it on small tasks.
N_ENVS, N_STEPS, N_EPOCHS, MINIBATCHES, WIDTH = 16, 128, 10, 8, 64
ROLLOUT = N_ENVS * N_STEPS


@dataclass(frozen=True)
class Task:
    """One environment, for our agent and for Stable-Baselines3."""

    ours: Callable[[], VectorEnv[Any, Any, Any]]
    theirs: Callable[[], VecEnv]


TASKS = {
    "cartpole": Task(
        lambda: SyncVectorEnv([make_cartpole] * N_ENVS, autoreset_mode=AutoresetMode.SAME_STEP),
        lambda: DummyVecEnv([make_cartpole] * N_ENVS),
    ),
    "multihead": Task(lambda: MaskedHeads(N_ENVS), lambda: MultiDiscreteVecEnv(MaskedHeads(N_ENVS))),
}


def ours(task: Task) -> FactoredRecurrentPPO:
    return FactoredRecurrentPPO(
        task.ours(),
        n_steps=N_STEPS,
        n_epochs=N_EPOCHS,
        n_minibatches=MINIBATCHES,
        encoder_sizes=(WIDTH,),
        lstm_size=WIDTH,
        head_hidden=WIDTH,
        normalize_observations=False,  # RecurrentPPO has no such thing
        target_kl=1e9,  # and never stops an update early
        seed=0,
        device="cpu",
    )


def theirs(task: Task, policy: type[MlpLstmPolicy], **sizes: Any) -> RecurrentPPO:
    return RecurrentPPO(
        policy,
        task.theirs(),
        n_steps=N_STEPS,
        n_epochs=N_EPOCHS,
        batch_size=ROLLOUT // MINIBATCHES,
        policy_kwargs={"lstm_hidden_size": WIDTH, "net_arch": [WIDTH], **sizes},
        seed=0,
        device="cpu",
    )


def arms(task: Task) -> dict[str, Any]:
    shared = {"shared_lstm": True, "enable_critic_lstm": False}
    return {
        "ours_sps": ours(task),
        "recurrent_ppo_sps": theirs(task, MlpLstmPolicy),
        "recurrent_ppo_onecall_sps": theirs(task, OneCallMlpLstmPolicy),
        "recurrent_ppo_onecall_shared_sps": theirs(task, OneCallMlpLstmPolicy, **shared),
    }


RATIOS = {
    "vs_stock": "recurrent_ppo_sps",
    "vs_onecall": "recurrent_ppo_onecall_sps",
    "vs_onecall_shared": "recurrent_ppo_onecall_shared_sps",
}


def measure(task: Task, turns: int, rollouts: int) -> dict[str, float]:
    """Steps per second of each arm and our ratio to each, over turns taken in rotation."""
    models = arms(task)
    speeds: dict[str, list[float]] = {name: [] for name in models}
    for turn in range(turns + 1):
        for name, model in models.items():
            watch = Stopwatch("cpu")
            with watch.measure("learn"):
                model.learn(rollouts * ROLLOUT, reset_num_timesteps=turn == 0)
            if turn:  # the first turn warms up
                speeds[name].append(rollouts * ROLLOUT / watch.seconds["learn"])
    result = {name: round(median(values), 1) for name, values in speeds.items()}
    for ratio, other in RATIOS.items():
        pairs = zip(speeds["ours_sps"], speeds[other], strict=True)
        result[ratio] = round(median(ours / theirs for ours, theirs in pairs), 2)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three short turns instead of nine long ones")
    parser.add_argument("--json", required=True, help="where to write the result")
    parser.add_argument("--threads", type=int, default=1, help="threads of every arm")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    turns, rollouts = (3, 1) if options.quick else (9, 3)
    settings = {"n_envs": N_ENVS, "n_steps": N_STEPS, "n_epochs": N_EPOCHS, "minibatches": MINIBATCHES, "width": WIDTH}
    result: dict[str, Any] = {name: measure(task, turns, rollouts) for name, task in TASKS.items()}
    for name, row in result.items():
        print(name, row)
    write_json(options.json, {**result, "settings": {**settings, "turns": turns}, "provenance": provenance()})


if __name__ == "__main__":
    main()
