"""Rendering of a row: what a picture shows, the picture as text, and the way to the drawn one."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from gymnasium.error import DependencyNotInstalled

from esper_env.blueprints.blends import Blend
from esper_env.mdp.simulation import Simulation
from esper_env.mdp.state import Stage
from esper_env.rendering.history import Moment, Recorder

BARS = "▁▂▃▄▅▆▇█"
BAR_WIDTH = 8
SPARK_WIDTH = 40
EMPTY_STAGES = (Stage.DORMANT, Stage.EMBARGOED)


@dataclass(frozen=True)
class SlotView:
    """A block of the host, and the seed beside it."""

    units: int
    live_units: int  # fewer than `units` where the instance lesioned the block; no observation says so
    stage: Stage
    blueprint: str
    blend: str
    alpha: float
    contribution: float  # metric with the seed minus without it; for an incubating seed, what it would add

    @property
    def planted(self) -> bool:
        """Whether a seed is there."""
        return self.stage not in EMPTY_STAGES


@dataclass(frozen=True)
class RowView:
    """Everything that a picture of one row shows."""

    task: str
    horizon: int
    episode_return: float
    added: float
    slots: tuple[SlotView, ...]
    course: tuple[Moment, ...]

    @property
    def now(self) -> Moment:
        """The present."""
        return self.course[-1]


def check_render_mode(mode: str | None, allowed: list[str]) -> str | None:
    """The mode if it is None or allowed and its dependencies are there; one clear error otherwise."""
    if mode is not None and mode not in allowed:
        raise ValueError(f"render_mode is {mode!r}; allowed: None, {', '.join(allowed)}")
    if mode == "rgb_array":
        _pictures()
    return mode


def render_row(simulation: Simulation, recorder: Recorder, row: int, mode: str) -> Any:
    """Row `row` as text (`ansi`) or as a picture (`rgb_array`, uint8 [height, width, 3])."""
    if not recorder.course(row):
        raise RuntimeError("call reset() before render()")
    view = view_row(simulation, recorder, row)
    return as_text(view) if mode == "ansi" else _pictures().draw(view)


def _pictures() -> Any:
    try:
        return import_module("esper_env.rendering.rgb")
    except ImportError as error:
        hint = 'render_mode="rgb_array" needs matplotlib; install it with `pip install "esper-env[render]"`'
        raise DependencyNotInstalled(hint) from error


def view_row(simulation: Simulation, recorder: Recorder, row: int) -> RowView:
    """Read everything that a picture shows."""
    state = simulation.state
    return RowView(
        task=simulation.config.task,
        horizon=simulation.config.horizon,
        episode_return=float(state.episode_return[row]),
        added=float(state.added[row]),
        slots=tuple(_view_slot(simulation, row, slot) for slot in range(len(simulation.task.host.slots))),
        course=tuple(recorder.course(row)),
    )


def _view_slot(simulation: Simulation, row: int, slot: int) -> SlotView:
    state, census = simulation.state, simulation.population.census
    stage = Stage(int(state.stage[row, slot]))
    measured = state.prospect if stage is Stage.TRAINING else state.contribution
    return SlotView(
        units=simulation.task.host.slots[slot].outputs[0],
        live_units=int(simulation.instance.live_units[row, slot]),
        stage=stage,
        blueprint=simulation.task.blueprints[census.blueprint[row, slot]],
        blend=Blend(census.blend[row, slot]).name,
        alpha=float(state.alpha[row, slot]),
        contribution=float(measured[row, slot]),
    )


def describe_op(moment: Moment) -> str:
    """The last operation in words."""
    if moment.step == 0:
        return "reset"
    words = moment.op.name if moment.slot is None else f"{moment.op.name} slot {moment.slot}"
    return words if moment.executed else f"{words} declined"


def as_text(view: RowView) -> str:
    """A few lines: the step, the curves, and one line per slot."""
    now = view.now
    head = f"{view.task}  step {now.step}/{view.horizon}  {describe_op(now)}  return {view.episode_return:+.3f}"
    losses = [moment.train_loss for moment in view.course if moment.train_loss is not None]
    curves = [_curve("val metric", [moment.metric for moment in view.course]), _curve("train loss", losses)]
    return "\n".join([head, *curves, *(_slot_line(number, slot) for number, slot in enumerate(view.slots))])


def _curve(name: str, values: list[float]) -> str:
    return f"{name}  {values[-1]:.3f}  {sparkline(values)}" if values else f"{name}  not measured yet"


def sparkline(values: list[float]) -> str:
    """The last values as a row of bars between their least and their greatest."""
    recent = values[-SPARK_WIDTH:]
    low, high = min(recent), max(recent)
    spread = high - low or 1.0
    return "".join(BARS[round((value - low) / spread * (len(BARS) - 1))] for value in recent)


def _slot_line(number: int, slot: SlotView) -> str:
    place = f"slot {number}  {slot.live_units:>3}/{slot.units} units  {slot.stage.name:<10}"
    if not slot.planted:
        return place.rstrip()
    full = round(slot.alpha * BAR_WIDTH)
    bar = "█" * full + "░" * (BAR_WIDTH - full)
    kind = "would add" if slot.stage is Stage.TRAINING else "adds"
    return f"{place}  {slot.blueprint:<16} {slot.blend:<8} {bar} {slot.alpha:.2f}  {kind} {slot.contribution:+.3f}"
