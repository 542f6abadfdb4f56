"""The rollout collector: steps the environments with the policy and keeps what has to survive between steps."""

from typing import Any

import numpy as np
import torch
from esper_env.mdp.phases import Phase, unmeasured
from torch import Tensor

from esper_agent.algorithm.acting import act, predict_values
from esper_agent.algorithm.environments import TensorEnv, Transition
from esper_agent.algorithm.host_log import HostLog
from esper_agent.algorithm.quarantine import disinfect, filled, whole
from esper_agent.algorithm.rollout_buffer import RolloutBuffer, Step
from esper_agent.distributed import ALONE, Ranks
from esper_agent.networks.policy import Policy
from esper_agent.networks.recurrence import State


class RolloutCollector:
    """Plays the environments and fills rollouts.

    Args:
        env: the environments, just reset.
        policy: chooses the actions.
        precision: of the run.
        generator: draws the actions.
        ranks: whose environments these are a part of.
    """

    def __init__(
        self, env: TensorEnv, policy: Policy, precision: str, generator: torch.Generator, ranks: Ranks = ALONE
    ) -> None:
        self.env, self.policy, self.precision, self.generator, self.ranks = env, policy, precision, generator, ranks
        self.phase: Phase = unmeasured
        self.begin()

    def begin(self) -> None:
        """Start from the first observations of the environments, which were just reset."""
        env = self.env
        self.observations = env.first_observations
        self.masks = env.first_masks
        self.starts = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
        self.resetting = torch.zeros_like(self.starts)  # the next step only resets these environments
        self.state = self.policy.initial_state(env.num_envs)
        self.returns = np.zeros(env.num_envs)
        self.lengths = np.zeros(env.num_envs, dtype=np.int64)
        self.hosts = HostLog(env.env)
        self.nonfinite = torch.zeros((), dtype=torch.long, device=env.device)  # in this rollout

    def step(self, buffer: RolloutBuffer) -> Transition:
        """Act once in all environments and store what happened."""
        observations, seen = filled(self.observations), whole(self.observations)
        observed = observations, self.state, self.starts, self.masks
        with self.phase("policy"):
            chosen = act(self.policy, self.precision, *observed, self.generator, self.ranks)
        seeds = self.hosts.seeds()
        with self.phase("environment"):
            given = self.env.step(chosen.actions)
        self.hosts.add(seeds, chosen.actions[0], given, ~self.resetting)
        transition, missing, useless = disinfect(given)
        self.nonfinite = self.nonfinite + (missing | ~seen).sum()
        step = Step(
            observations=observations,
            starts=self.starts,
            decisions=seen & ~(self.resetting | useless),
            masks=self.masks,
            actions=chosen.actions,
            rewards=transition.rewards,
            terminated=transition.terminated,
            truncated=transition.truncated,
            bootstraps=self._bootstraps(transition, chosen.state),
        )
        buffer.add(step, self.state)
        self._advance(transition, chosen.state)
        return given

    def _bootstraps(self, transition: Transition, state: State) -> Tensor | None:
        if transition.final_observations is None:
            return None
        started = torch.zeros_like(self.starts)
        return predict_values(self.policy, self.precision, transition.final_observations, state, started)

    def last_values(self) -> Tensor:
        """Normalised values of the observations after the last step."""
        return predict_values(self.policy, self.precision, filled(self.observations), self.state, self.starts)

    def _advance(self, transition: Transition, state: State) -> None:
        done = transition.terminated | transition.truncated
        self.observations, self.masks, self.state = transition.observations, transition.masks, state
        if self.env.resets_next_step:
            self.starts, self.resetting = self.resetting, done
        else:
            self.starts = done

    def count_nonfinite(self, buffer: RolloutBuffer) -> tuple[int, bool]:
        """How many steps of a rollout lacked a finite number, and whether it holds any decision; once per rollout."""
        count, decisions = torch.stack([self.nonfinite, buffer.decisions.sum()]).tolist()
        self.nonfinite = torch.zeros_like(self.nonfinite)
        return count, decisions > 0

    def finished_episodes(self, buffer: RolloutBuffer) -> list[tuple[float, int]]:
        """Returns and lengths of the episodes that ended in a complete rollout, in order; call it once per rollout."""
        rewards, decisions = buffer.rewards.double().cpu().numpy(), buffer.decisions.cpu().numpy()
        done = (buffer.terminated | buffer.truncated).cpu().numpy()
        returns, lengths = self.returns + rewards.cumsum(0), self.lengths + decisions.cumsum(0)
        spent_return, spent_length = np.zeros_like(self.returns), np.zeros_like(self.lengths)
        episodes = []
        for time, env in np.argwhere(done):
            total, length = returns[time, env], lengths[time, env]
            episodes.append((float(total - spent_return[env]), int(length - spent_length[env])))
            spent_return[env], spent_length[env] = total, length
        self.returns, self.lengths = returns[-1] - spent_return, lengths[-1] - spent_length
        return episodes

    def ended_episodes(self, buffer: RolloutBuffer) -> dict[int, tuple[float, int]]:
        """Return and length of the episodes that the newest step ended, by environment."""
        steps = slice(buffer.position)
        done = (buffer.terminated[steps] | buffer.truncated[steps]).cpu().numpy()
        episodes = {}
        for env in np.flatnonzero(done[-1]):
            earlier = np.flatnonzero(done[:-1, env])
            since = earlier[-1] + 1 if len(earlier) else 0
            before, steps_before = (0.0, 0) if len(earlier) else (self.returns[env], self.lengths[env])
            total = before + float(buffer.rewards[since : buffer.position, env].double().sum())
            length = steps_before + int(buffer.decisions[since : buffer.position, env].sum())
            episodes[int(env)] = (float(total), int(length))
        return episodes

    def state_dict(self) -> dict[str, Any]:
        """What has to survive between two steps."""
        return {
            "observations": self.observations,
            "masks": self.masks,
            "starts": self.starts,
            "resetting": self.resetting,
            "hidden": self.state[0].clone(),
            "cell": self.state[1].clone(),
            "returns": torch.from_numpy(self.returns),
            "lengths": torch.from_numpy(self.lengths),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a saved collector stood."""
        device = self.env.device
        self.observations = state["observations"].to(device)
        self.masks = None if state["masks"] is None else state["masks"].to(device)
        self.starts, self.resetting = state["starts"].to(device), state["resetting"].to(device)
        self.state = (state["hidden"].to(device), state["cell"].to(device))
        self.returns, self.lengths = state["returns"].numpy().copy(), state["lengths"].numpy().copy()
