"""The course of each row's episode, kept only for rendering."""

from dataclasses import dataclass

from torch import Tensor

from esper_env.mdp.actions import Op
from esper_env.mdp.simulation import Simulation
from esper_env.population.cohort import Rows


@dataclass(frozen=True)
class Moment:
    """One row after one step."""

    step: int
    metric: float
    loss: float
    train_loss: float | None  # unknown before the first step
    op: Op  # what was asked for
    slot: int | None  # where; None for WAIT, and when the step was taken before the recording began
    executed: bool


class Recorder:
    """What happened in the present episode of every row, as far as it was watched.

    Args:
        n: How many rows.
    """

    def __init__(self, n: int) -> None:
        self._moments: list[list[Moment]] = [[] for _ in range(n)]

    def course(self, row: int) -> list[Moment]:
        """The moments of a row's episode, oldest first."""
        return self._moments[row]

    def forget(self, rows: Rows) -> None:
        """Begin the courses of some rows anew."""
        for row in rows.tolist():
            self._moments[row] = []

    def watch(self, simulation: Simulation, actions: Tensor | None = None) -> None:
        """Note the present state of every row, and the actions [n, heads] that led there.

        A row that began anew starts a new course.
        """
        for past, now in zip(self._moments, _moments(simulation, actions), strict=True):
            if past and now.step > past[-1].step:
                past.append(now)
            elif not past or now.step == 0:
                past[:] = [now]


def _moments(simulation: Simulation, actions: Tensor | None) -> list[Moment]:
    state = simulation.state
    ops, slots = (state.last_op, [None] * simulation.n) if actions is None else (actions[:, 0], actions[:, 1].tolist())
    measured = (state.step, state.metric, state.loss, state.train_loss, state.trained, state.last_executed, ops)
    columns = [tensor.tolist() for tensor in measured]
    return [
        Moment(step, metric, loss, train if trained else None, Op(op), None if op == Op.WAIT else slot, executed)
        for step, metric, loss, train, trained, executed, op, slot in zip(*columns, slots, strict=True)
    ]
