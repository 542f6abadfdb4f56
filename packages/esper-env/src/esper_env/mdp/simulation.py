"""The simulation: n rows that reset and step as one; the Gymnasium classes are shells around it."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper_env.blueprints import BLUEPRINTS
from esper_env.config import EsperConfig
from esper_env.mdp.actions import HEADS, Op, canonical, head_sizes, inside, refuse
from esper_env.mdp.control import Control
from esper_env.mdp.detectors import detect, measurable
from esper_env.mdp.governor import Snapshot, collapsed
from esper_env.mdp.instances import Instance, draw, episode_keys, minibatches
from esper_env.mdp.lifecycle import Gates, apply_operations, gates, is_legal, tick
from esper_env.mdp.masks import Masks, marginal_masks, masks_by_op
from esper_env.mdp.measuring import measure
from esper_env.mdp.observation import Schema, View, drawn_fields, partial_fields
from esper_env.mdp.phases import Phase, unmeasured
from esper_env.mdp.recording import record_evaluation, record_training
from esper_env.mdp.rewards import Reward, Transition, potential
from esper_env.mdp.rewards.terms import Limits
from esper_env.mdp.state import State
from esper_env.mdp.stream import check_stream, record_phase
from esper_env.population.cohort import Rows
from esper_env.population.evaluation import Evaluation, evaluate
from esper_env.population.flops import TrainingFlops
from esper_env.population.population import Engine, Population
from esper_env.population.scores import SlotScores, slot_scores
from esper_env.population.training import train_epoch
from esper_env.tasks import TASKS
from esper_env.tasks.base import Data, Split


@dataclass(frozen=True)
class Outcome:
    """What one step of all rows gives, besides the new state."""

    reward: Tensor  # [n], float64
    reward_terms: dict[str, Tensor]
    detectors: dict[str, Tensor]
    terminated: Tensor
    op: Tensor  # int64, the operation that was executed
    invalid: Tensor
    rolled_back: Tensor
    control: Tensor  # metric of the control, zero where it was not measured
    control_measured: Tensor
    training_flops: Tensor  # of the step's training of host and seeds

    @classmethod
    def blank(cls, zeros: Tensor, terms: tuple[str, ...], detectors: tuple[str, ...]) -> "Outcome":
        """Nothing happened; `zeros` is float64 [n]."""
        no = zeros.bool()
        flags = dict.fromkeys(detectors, no)
        return cls(zeros, dict.fromkeys(terms, zeros), flags, no, zeros.long(), no, no, zeros, no, zeros)

    def without(self, rows: Tensor) -> "Outcome":
        """The same with nothing having happened in some rows."""

        def void(tensor: Tensor) -> Tensor:
            return tensor.index_fill(0, rows, 0)

        def void_all(value: Any) -> Any:
            return {name: void(one) for name, one in value.items()} if isinstance(value, dict) else void(value)

        return Outcome(**{name: void_all(value) for name, value in vars(self).items()})


@dataclass(frozen=True)
class Verdict:
    """What the governor says of every row after a step, [n] each."""

    failed: Tensor  # it collapsed, and was restored
    finished: Tensor  # its budget of steps is used up
    ended: Tensor  # its episode is over, for that or for too many collapses
    sound_rows: Rows  # on the host, those that did not fail


class Simulation:
    """N growing hosts as a decision process.

    Args:
        config: The environment's configuration.
        n: How many rows.
    """

    def __init__(self, config: EsperConfig, n: int) -> None:
        self.config, self.n = config, n
        self.phase: Phase = unmeasured
        self.task = TASKS[config.task]
        blueprints = tuple(BLUEPRINTS[name] for name in self.task.blueprints)
        dtype = getattr(torch, config.dtype)
        engine = Engine(
            self.task.host,
            blueprints,
            self.task.optimizer,
            self.task.max_grad_norm,
            device=check_device(config.device),
            dtype=dtype,
            metric=self.task.metric,
        )
        self.population = Population.unborn(engine, n)
        self.flops = TrainingFlops(engine)
        self.data = self._resident(self.task.fitting_data())
        check_stream(self.task, self.data, config)
        slots = len(self.task.host.slots)
        self.schema = Schema(slots, len(blueprints), drawn_fields(config), partial_fields(config))
        self.head_sizes = head_sizes(slots, len(blueprints))
        self.largest_seed = self._largest_seeds()
        self.reward = Reward(config, Limits(slots, float(self.largest_seed.sum())))
        interval = config.control_interval or int(self.reward.needs_control)
        self.control = Control(engine, n, interval) if interval else None
        self.detectors = measurable(self.control is not None, config)
        self.state = self._blank_state()
        self.ended = np.zeros(n, dtype=np.bool_)  # `state.ended` on the host
        self.instance = self._blank_instance()
        self.base_key = torch.zeros(n, dtype=torch.int64, device=config.device)
        self.episode = torch.zeros(n, dtype=torch.int64, device=config.device)
        self.snapshot = Snapshot(self.population, self.state)
        self.gates = self._gates()  # computed once per state: masks, observation and the next step share them

    def _resident(self, data: Data) -> Data:
        like = self.population.body.values
        return replace(data, train=data.train.to(like), val=data.val.to(like), test=data.test.to(like))

    def _largest_seeds(self) -> Tensor:
        """Parameters of the largest seed per slot as a share of the host's, with its gate."""
        engine = self.population.engine
        sizes = [max(layout.size for layout in layouts) / engine.body_layout.size for layouts in engine.seed_layouts]
        return torch.tensor(sizes, dtype=torch.float64, device=self.config.device)

    def _blank_state(self) -> State:
        return State.blank(self.n, len(self.task.host.slots), self.config.device, self.config.phases[1])

    def _blank_instance(self) -> Instance:
        keys = torch.zeros(self.n, dtype=torch.int64, device=self.config.device)
        return draw(keys, self.task, self.data, self.config)

    def _gates(self) -> Gates:
        return gates(self.state, self.config, self.instance.budget)

    # Reset

    def set_keys(self, rows: Rows, base: Tensor) -> None:
        """Give rows new base keys; their next reset is their first episode."""
        index = self._index(rows)
        self.base_key[index] = base.to(self.base_key)
        self.episode[index] = -1

    @torch.inference_mode(False)
    def reset(self, rows: Rows) -> None:
        """Begin the next episode of some rows."""
        if not len(rows):
            return
        index = self._index(rows)
        self.episode[index] += 1
        fresh = draw(
            episode_keys(self.base_key[index], self.episode[index], self.config), self.task, self.data, self.config
        )
        self._install(fresh, rows, index)
        self.population.rebirth(rows, fresh.key, fresh.lr, fresh.live_units)
        if self.control is not None:
            self.control.rebirth(rows, fresh)
        self.state.copy_rows(self._blank_state(), index)
        self.ended[rows] = False
        self._first_measurement(rows, index)
        self.gates = self._gates()
        self.snapshot.take(self.population, self.state, rows)

    def _install(self, fresh: Instance, rows: Rows, index: Tensor) -> None:
        for name, value in vars(fresh).items():
            getattr(self.instance, name)[rows if isinstance(value, np.ndarray) else index] = value

    def _first_measurement(self, rows: Rows, index: Tensor) -> None:
        state = self.state
        with self.phase("evaluation"):
            of_rows = (self.instance.key[index], state.step[index], self.config)
            counted = self._counted(self.data.val, self.state.step)
            some = None if counted is None else counted[index]
            measured, _ = measure(self.population.gathered(rows), self.data.val, *of_rows, some)
        for target, value in ((state.loss, measured.loss), (state.metric, measured.metric)):
            target[index] = value.double()
        for name in ("all_off", "committed", "best_metric", "previous_metric"):
            getattr(state, name)[index] = state.metric[index]
        state.previous_loss[index] = state.loss[index]
        state.phase_first[index] = state.phase_best[index, 0] = state.metric[index]
        state.last_executed[index] = True
        state.potential[index] = potential(state, self.config)[index]

    # Step

    @torch.inference_mode(False)
    def step(self, actions: Tensor) -> Outcome:
        """Apply the operations, train, tick, validate, govern, and reward; `actions` is int64 [n, heads]."""
        before = self.state.shared()  # a step replaces tensors and writes to none
        known = inside(actions, self.head_sizes)
        requested = canonical(actions * known[:, None])
        legal = is_legal(requested, self.gates)
        executed = requested * legal[:, None]
        # The first of a step's two reads from the device: membership lives on the host.
        decisions = torch.cat([executed, known[:, None]], dim=1).cpu().numpy()
        if not decisions[:, -1].all():
            refuse(actions, self.head_sizes)
        self._operate(executed, decisions)
        flops = self._training_flops()
        batches = minibatches(self.instance, self.state.step, self.task, self.data)
        with self.phase("host training"):
            report = train_epoch(self.population, batches)
            if self.control is not None:
                self.control.train(batches)
        record_training(self.state, report)
        tick(self.state, self.config)
        self._set_alpha()
        with self.phase("evaluation"):
            steps = self.state.step + 1
            which = (self.instance.key, steps, self.config, self._counted(self.data.val, steps))
            measured, looked_at = measure(self.population, self.data.val, *which)
        record_evaluation(self.state, measured, self._seed_sizes(), self.config.plateau_tolerance)
        if self.config.streams:
            phase = self.instance.phase(self.state.step)
            record_phase(self.state, phase, self.instance.phase_members, measured.right, self.data.val.labels)
        self.state.looked_at, self.state.step = looked_at, steps
        return self._conclude(before, executed[:, 0], ~legal, self._govern(), flops)

    def _operate(self, executed: Tensor, table: NDArray[np.int64]) -> None:
        apply_operations(self.state, executed)
        op, slot, kind, blend = (table[:, HEADS.index(head)] for head in ("op", "slot", "blueprint", "blend"))
        rows = {each: np.flatnonzero(op == each) for each in Op}
        born = rows[Op.GERMINATE]
        if len(born):
            index = self._index(born)
            keys, steps = self.instance.key[index], self.state.step[index]
            self.population.germinate(born, slot[born], kind[born], blend[born], keys, steps)
        for each, act in (
            (Op.ADVANCE, self.population.advance),
            (Op.FOSSILIZE, self.population.commit),
            (Op.PRUNE, self.population.remove),
        ):
            if len(rows[each]):
                act(rows[each], slot[rows[each]])
        self._set_alpha()

    def _training_flops(self) -> Tensor:
        """Of the training that comes next, [n]."""
        samples = self.task.batch_size * self.task.minibatches_per_step
        flops = torch.from_numpy(samples * self.flops.per_sample(self.population.census))
        return flops.to(self.state.metric)

    def slot_scores(self) -> SlotScores:
        """Every slot by published criteria, on the first minibatch of the next step."""
        return slot_scores(self.population, minibatches(self.instance, self.state.step, self.task, self.data))

    def _set_alpha(self) -> None:
        self.population.alpha.copy_(self.state.alpha)

    def _seed_sizes(self) -> Tensor:
        sizes = torch.from_numpy(self.population.seed_sizes()).to(self.state.added)
        return sizes / self.population.engine.body_layout.size

    def _govern(self) -> Verdict:
        """Judge all rows, and restore those that collapsed."""
        failed = collapsed(self.state, self.population, self.config, self.data.baseline_loss)
        ruined = failed & (self.state.rollbacks >= self.config.max_rollbacks)
        finished = (self.state.step >= self.config.horizon) & ~ruined
        ended = finished | ruined
        rows, self.ended = torch.stack([failed, ended]).cpu().numpy().copy()  # the second of a step's two reads
        if rows.any():
            self.state = self.state.clone()  # restoring writes, and the step's beginning shares tensors with it
            self.snapshot.restore(self.population, self.state, np.flatnonzero(rows))
            self._set_alpha()
            self.state.rollbacks = self.state.rollbacks + failed
        return Verdict(failed, finished, ended, np.flatnonzero(~rows))

    def _conclude(self, before: State, op: Tensor, invalid: Tensor, verdict: Verdict, flops: Tensor) -> Outcome:
        state, config = self.state, self.config
        state.last_op, state.last_executed = op, ~invalid
        state.potential = potential(state, config)
        state.ended = verdict.ended
        self.gates = self._gates()
        control = self._measure_control()
        happened = (op, invalid, verdict.failed, verdict.finished, state.ended)
        prices = (self.instance.rent, self.instance.slot_rent)
        transition = Transition(before, state, *happened, *control, *prices, config, self.data.baseline_loss)
        reward, terms = self.reward(transition)
        state.episode_return = state.episode_return + reward
        self.snapshot.take(self.population, state, verdict.sound_rows)
        flags = detect(transition, self.detectors)
        return Outcome(reward, terms, flags, state.ended.clone(), op.clone(), invalid, verdict.failed, *control, flops)

    def _measure_control(self) -> tuple[Tensor, Tensor]:
        if self.control is None:
            return torch.zeros_like(self.state.metric), torch.zeros_like(self.state.ended)
        with self.phase("evaluation"):
            counted = self._counted(self.data.val, self.state.step)
            return self.control.measure(self.state.step, self.config.horizon, self.data.val, counted)

    # What the shells show

    def observation(self) -> Tensor:
        """The observation of every row, float32 [n, size]."""
        census, data = self.population.census, self.data
        view = View(
            self.state,
            self.gates,
            *(self.instance.rent, self.instance.slot_rent, self.instance.budget),
            blueprint=torch.from_numpy(census.blueprint).to(self.config.device),
            blend=torch.from_numpy(census.blend).to(self.config.device),
            config=self.config,
            baseline_loss=data.baseline_loss,
            predictions=self.task.batch_size * data.train.labels[0].numel(),
            largest_seed=self.largest_seed,
        )
        return self.schema.encode(view)

    def masks(self) -> tuple[Masks, Masks]:
        """Marginal masks and masks by operation."""
        by_op = masks_by_op(self.gates, self.head_sizes)
        return marginal_masks(by_op), by_op

    def evaluate_test(self) -> Evaluation:
        """Evaluation on the test split, which no step ever reads; of data that change, on the present phase's."""
        test = self.data.test
        return evaluate(self.population, test.inputs, test.labels, self._counted(test, self.state.step))

    def _counted(self, split: Split, steps: Tensor) -> Tensor | None:
        """Which samples of a split are of the phase that the last of so many steps trained on; None if always all."""
        return self.instance.counted(split, (steps - 1).clamp(min=0))

    def _index(self, rows: Rows) -> Tensor:
        return torch.from_numpy(rows).to(self.config.device)


def check_device(device: str) -> str:
    """The device if torch can compute there; one clear error otherwise."""
    reason = "it is not a string"
    if isinstance(device, str):
        try:
            torch.zeros(1, device=device).item()
            return device
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
    raise ValueError(f'device is {device!r}; allowed: "cpu", or "cuda" where torch has a GPU ({reason})')
