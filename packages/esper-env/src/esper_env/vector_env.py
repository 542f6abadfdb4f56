"""The vector environment: N growing hosts behind Gymnasium's `VectorEnv`."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray
from torch import Tensor

from esper_env.config import EsperConfig, check_choice, check_range, make_config
from esper_env.fused.structure import require_alike
from esper_env.fused.threads import on_own_threads, worthwhile_threads
from esper_env.mdp.actions import HEADS, action_space, stack_actions
from esper_env.mdp.branching import branch, checked_rows
from esper_env.mdp.observation import Schema
from esper_env.mdp.phases import Phase
from esper_env.mdp.saving import check, load, save
from esper_env.mdp.simulation import Outcome, Simulation
from esper_env.mdp.state import OCCUPIED, State
from esper_env.population.cohort import Rows
from esper_env.population.evaluation import Evaluation
from esper_env.population.export import GrownNetwork, export_host
from esper_env.population.population import Census
from esper_env.population.scores import SlotScores
from esper_env.rendering.ansi import check_render_mode, render_row
from esper_env.rendering.history import Recorder
from esper_env.tasks.base import Task

OUTPUTS = ("numpy", "torch")
BASE_KEYS = 1 << 62


class EsperVectorEnv(VectorEnv[Any, Any, Any]):
    """N environments of `EsperEnv` that train as one tensor program; its page describes the decision process.

    Row i of a vector reset with `seed=s` is the single environment reset with `seed=s + i`.

    Arguments:
        num_envs: How many rows.
        render_mode: None, "ansi" or "rgb_array"; `render()` then gives a tuple with one picture per row.
        autoreset_mode: "next_step" (default), "same_step" or "disabled" (then reset ended rows with
            `reset(options={"reset_mask": mask})`).
        output: "numpy", or "torch" for tensors on the environment's device.
        device: Where torch computes; agents that read the signature put it where they are.
        **settings: As for `EsperEnv`.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (Gymnasium's own form)
        "render_modes": ["ansi", "rgb_array"],
        "render_fps": 4,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }
    heads = HEADS

    def __init__(
        self,
        num_envs: int = 1,
        render_mode: str | None = None,
        autoreset_mode: str = "next_step",
        output: str = "numpy",
        device: str = "cpu",
        **settings: Any,
    ) -> None:
        super().__init__()
        check_range("num_envs", num_envs, 1, integer=True)
        check_choice("output", output, OUTPUTS)
        self.num_envs, self.output = num_envs, output
        self.render_mode = check_render_mode(render_mode, self.metadata["render_modes"])
        self.autoreset_mode = _autoreset_mode(autoreset_mode)
        self.metadata = {**self.metadata, "autoreset_mode": self.autoreset_mode}
        self.simulation = Simulation(make_config(device=device, **settings), num_envs)
        self.threads = self.config.threads or worthwhile_threads(self._activation_bytes())
        schema, task = self.simulation.schema, self.simulation.task
        self.single_observation_space = schema.space()
        self.single_action_space = action_space(schema.slots, len(task.blueprints))
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._seeded = np.zeros(num_envs, dtype=np.bool_)
        self._begun = np.zeros(num_envs, dtype=np.bool_)
        self._recorder = None if render_mode is None else Recorder(num_envs)

    # What it is made of, for agents, baselines and reports; tables are copies

    @property
    def config(self) -> EsperConfig:
        """Every argument with its value."""
        return self.simulation.config

    @property
    def task(self) -> Task:
        """What the hosts learn: the host, the names of the blueprints, the data's loader, the metric."""
        return self.simulation.task

    @property
    def schema(self) -> Schema:
        """The fields of an observation, in order."""
        return self.simulation.schema

    @property
    def head_sizes(self) -> dict[str, int]:
        """How many values each head has, in the order of `heads`."""
        return dict(self.simulation.head_sizes)

    @property
    def live_units(self) -> NDArray[np.int64]:
        """How many units of each block are alive, [n, slots]: what no observation tells."""
        return self.simulation.instance.live_units.copy()

    @property
    def lesioned(self) -> NDArray[np.bool_]:
        """Which blocks fall short, [n, slots]; for the oracle.

        Those with fewer live units than the task's host or, where every width is drawn, the narrowest one.
        """
        if self.config.shapes == "widths":
            narrowest: NDArray[np.bool_] = np.eye(self.schema.slots, dtype=np.bool_)[self.live_units.argmin(axis=1)]
            return narrowest
        return self.simulation.population.lesioned.copy()

    @property
    def state(self) -> State:
        """Stages, ages, measurements and memory of the rows, one tensor per field."""
        return self.simulation.state.clone()

    @property
    def census(self) -> Census:
        """Which seed is where: its blueprint (-1 for none) and blend, whether it is live and committed."""
        return deepcopy(self.simulation.population.census)

    @property
    def gamma(self) -> float:
        """The discount, which the environment owns since its shaping depends on it."""
        return self.simulation.config.gamma

    @property
    def observation_entities(self) -> tuple[str, int, int]:
        """The head that chooses a slot, how many numbers describe the host, and how many each slot after it."""
        return ("slot", *self.simulation.schema.widths())

    @property
    def reward_range(self) -> tuple[float, float]:
        """Bounds of a step's reward."""
        return self.simulation.reward.bounds

    def measure_phases(self, phase: Phase) -> None:
        """Run the phases of every step, "host training" and "evaluation", in contexts that `phase` makes by name."""
        self.simulation.phase = phase

    # Gymnasium's interface

    @on_own_threads
    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Begin new episodes in all rows, or in those of `options["reset_mask"]`."""
        rows = self._rows_to_reset(options)
        self._seed_rows(rows, self._row_seeds(seed))
        self.simulation.reset(rows)
        self._begun[rows] = True
        self._record(None)
        return self._give(self.simulation.observation()), self._infos(None)

    @on_own_threads
    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every row; rows that ended before are reset in NEXT_STEP mode and refused in DISABLED mode."""
        if not self._begun.all():
            raise RuntimeError("call reset() before step()")
        stacked = stack_actions(actions, self.num_envs, self.simulation.config.device)
        ended = self.simulation.ended.copy()  # the step may write to it
        if ended.any() and self.autoreset_mode is not AutoresetMode.NEXT_STEP:
            rows = np.flatnonzero(ended).tolist()
            raise RuntimeError(f'the episodes of rows {rows} are over; reset them with options={{"reset_mask": ...}}')
        outcome = self._advance(stacked, ended)
        infos = self._infos(outcome)
        observation = self.simulation.observation()
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            observation, infos = self._reset_ended(outcome, observation, infos)
        self._record(stacked)
        truncated = torch.zeros_like(outcome.terminated)
        return (*map(self._give, (observation, outcome.reward, outcome.terminated, truncated)), infos)

    def render(self) -> tuple[Any, ...] | None:
        """One picture per row, or None without a render mode."""
        if self.render_mode is None or self._recorder is None:
            return None
        rows = range(self.num_envs)
        return tuple(render_row(self.simulation, self._recorder, row, self.render_mode) for row in rows)

    # Beyond Gymnasium's interface

    def legality(self) -> dict[str, Any]:
        """The masks of the present state, `action_mask` and `action_mask_by_op`, as in info."""
        marginal, by_op = self.simulation.masks()
        return {"action_mask": self._give_all(marginal), "action_mask_by_op": self._give_all(by_op)}

    @on_own_threads
    def evaluate_test(self) -> Evaluation:
        """Every row on the test split, which no step reads."""
        return self.simulation.evaluate_test()

    @on_own_threads
    def slot_scores(self) -> SlotScores:
        """Where published criteria would grow, [n, slots] each, on the samples that the next step begins with."""
        return self.simulation.slot_scores()

    def export_host(self, row: int = 0) -> GrownNetwork:
        """Row `row` as a plain `nn.Module`."""
        return export_host(self.simulation.population, row)

    @on_own_threads
    def branch(
        self, row: int | Sequence[int], into: int | Sequence[int], source: "EsperVectorEnv | None" = None
    ) -> None:
        """Overwrite rows with exact copies of others, which go on as the rows that they are copies of.

        Everything is copied: host, seeds, optimiser, lifecycle, instance, control, the governor's snapshot and what
        the next episodes are drawn from. Nothing random is lost, since all of it is a function of the row's keys.

        Args:
            row: which row to copy, or one for each of `into`.
            into: the rows that become copies, each once.
            source: where `row` is, an environment with the same settings on the same device; this one unless given.

        Raises:
            ValueError: for rows that do not exist or that were never reset, or for other settings.
        """
        source = self if source is None else source
        origin, rows = checked_rows(row, into, source._begun, self.num_envs)
        branch(self.simulation, source.simulation, origin, rows)
        self._seeded[rows], self._begun[rows] = source._seeded[origin], True
        if self._recorder is not None:
            self._recorder.forget(rows)
            self._record(None)

    def describe_observation(self, vector: Any) -> str:
        """One row's observation as a readable table."""
        return self.simulation.schema.describe(vector)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the future depends on, as nested dicts of tensors and plain values."""
        flags = {"seeded": torch.from_numpy(self._seeded.copy()), "begun": torch.from_numpy(self._begun.copy())}
        return {"simulation": save(self.simulation), **flags}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Continue from `state_dict()` of an environment with the same arguments."""
        check(self.simulation, saved["simulation"])
        flags = {name: torch.from_numpy(rows) for name, rows in (("seeded", self._seeded), ("begun", self._begun))}
        require_alike({name: saved.get(name) for name in flags}, flags, "environment")
        load(self.simulation, saved["simulation"])
        self._seeded, self._begun = saved["seeded"].numpy().copy(), saved["begun"].numpy().copy()
        if self._recorder is not None:
            self._recorder = Recorder(self.num_envs)  # the curves begin here: a saved state holds no pictures
            self._record(None)

    def current(self) -> tuple[Any, dict[str, Any]]:
        """The present observation and info, for continuing after `load_state_dict`."""
        return self._give(self.simulation.observation()), self._infos(None)

    # Inside

    def _activation_bytes(self) -> int:
        """What a minibatch of the rows that are computed at once makes."""
        numbers = self.num_envs * self.task.batch_size * self.task.host.activation_size
        population = self.simulation.population
        return min(numbers * population.lr.element_size(), population.engine.tile_bytes)

    def _record(self, actions: Tensor | None) -> None:
        if self._recorder is not None:
            self._recorder.watch(self.simulation, actions)

    def _advance(self, actions: Tensor, resetting: NDArray[np.bool_]) -> Outcome:
        if resetting.all():
            return self._reset_rows(np.flatnonzero(resetting), self._idle_outcome())
        outcome = self.simulation.step(actions * torch.from_numpy(~resetting).to(actions.device)[:, None])
        return self._reset_rows(np.flatnonzero(resetting), outcome) if resetting.any() else outcome

    def _reset_rows(self, rows: Rows, outcome: Outcome) -> Outcome:
        """Reset rows; whatever their last step gave is void."""
        self.simulation.reset(rows)
        return outcome.without(torch.from_numpy(rows).to(self.simulation.config.device))

    def _idle_outcome(self) -> Outcome:
        config = self.simulation.config
        number = torch.zeros(self.num_envs, dtype=torch.float64, device=config.device)
        return Outcome.blank(number, self.simulation.reward.terms, self.simulation.detectors)

    def _reset_ended(self, outcome: Outcome, final: Tensor, infos: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        ended = self.simulation.ended.copy()
        if not ended.any():
            return final, infos
        self.simulation.reset(np.flatnonzero(ended))
        fresh = self._infos(outcome)
        last = {key: self._give(outcome.terminated) if key.startswith("_") else infos[key] for key in infos}
        fresh |= {"final_obs": self._final_observation(final, ended), "final_info": last}
        fresh |= {"_final_obs": self._give(outcome.terminated), "_final_info": self._give(outcome.terminated)}
        return self.simulation.observation(), fresh

    def _final_observation(self, final: Tensor, ended: NDArray[np.bool_]) -> Any:
        if self.output == "torch":
            return final
        rows = np.full(self.num_envs, None, dtype=object)
        for row in np.flatnonzero(ended):
            rows[row] = final[row].cpu().numpy().copy()
        return rows

    def _infos(self, outcome: Outcome | None) -> dict[str, Any]:
        marginal, by_op = self.simulation.masks()
        outcome = self._idle_outcome() if outcome is None else outcome
        state = self.simulation.state
        tensors: dict[str, Any] = {
            "action_mask": marginal,
            "action_mask_by_op": by_op,
            "executed_op": outcome.op,
            "invalid_action": outcome.invalid,
            "rolled_back": outcome.rolled_back,
            "reward_terms": outcome.reward_terms,
            "detectors": outcome.detectors,
            "metric": state.metric,
            "committed_metric": state.committed,
            "added_parameters": state.added,
            "training_flops": outcome.training_flops,
            "seeds": {stage.name.lower(): (state.stage == stage).sum(dim=1) for stage in OCCUPIED},
        }
        if self.config.streams:
            recovery = state.metric - state.phase_first
            tensors |= {"phase": state.phase, "forgetting": state.forgetting, "recovery": recovery}
        if self.simulation.control is not None:
            tensors |= {"control_metric": outcome.control, "control_measured": outcome.control_measured}
        present = np.ones(self.num_envs, dtype=np.bool_)
        infos = {key: self._give_all(value) for key, value in tensors.items()}
        return infos | {f"_{key}": self._give(torch.from_numpy(present.copy())) for key in tensors}

    def _give_all(self, value: Any) -> Any:
        return {k: self._give(v) for k, v in value.items()} if isinstance(value, dict) else self._give(value)

    def _give(self, tensor: Tensor) -> Any:
        copy = tensor.clone()
        return copy if self.output == "torch" else copy.cpu().numpy()

    def _rows_to_reset(self, options: dict[str, Any] | None) -> Rows:
        mask = (options or {}).get("reset_mask")
        if mask is None:
            return np.arange(self.num_envs)
        mask = mask.cpu().numpy() if isinstance(mask, Tensor) else mask
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (self.num_envs,):
            raise ValueError(f"options['reset_mask'] must be a boolean array of shape ({self.num_envs},); got {mask!r}")
        if not mask.any():
            raise ValueError("options['reset_mask'] selects no row; at least one must be True")
        return np.flatnonzero(mask)

    def _row_seeds(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, int | np.integer):
            return [int(seed) + row for row in range(self.num_envs)]
        if not isinstance(seed, Sequence | np.ndarray) or len(seed) != self.num_envs:
            raise ValueError(f"seed is {seed!r}; allowed: None, an integer, or one per row, {self.num_envs}")
        return [int(one) if isinstance(one, np.integer) else one for one in seed]

    def _seed_rows(self, rows: Rows, seeds: list[int | None]) -> None:
        """Rows with a seed or that never had one get a new base key; the others go on with their next episode."""
        renewed = [row for row in rows.tolist() if seeds[row] is not None or not self._seeded[row]]
        base = [int(seeding.np_random(seeds[row])[0].integers(BASE_KEYS)) for row in renewed]
        self.simulation.set_keys(np.array(renewed, dtype=np.int64), torch.tensor(base, dtype=torch.int64))
        self._seeded[renewed] = True


def _autoreset_mode(name: str) -> AutoresetMode:
    names = {mode.name.lower(): mode for mode in AutoresetMode}
    check_choice("autoreset_mode", name, names)
    return names[name]
