"""The drawn picture of a row: the host as a row of blocks, its seeds, and the curves of the episode.

Only matplotlib's object interface is used, so nothing global changes.
"""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from esper_env.mdp.actions import Op
from esper_env.mdp.state import Stage
from esper_env.rendering.ansi import RowView, SlotView, describe_op

WIDTH, HEIGHT, DPI = 960, 540, 100  # pixels; even, as video codecs want
INK, FAINT, LINE, PAPER, CARD = "#0f172a", "#64748b", "#cbd5e1", "#ffffff", "#f8fafc"
METRIC, TRAIN_LOSS, VAL_LOSS, WARNING = "#0f766e", "#b45309", "#6366f1", "#dc2626"
STAGE_COLORS = {
    Stage.DORMANT: "#94a3b8",
    Stage.TRAINING: "#f59e0b",
    Stage.BLENDING: "#3b82f6",
    Stage.HOLDING: "#8b5cf6",
    Stage.FOSSILIZED: "#059669",
    Stage.EMBARGOED: "#dc2626",
}
OP_COLORS = {
    Op.WAIT: FAINT,
    Op.GERMINATE: STAGE_COLORS[Stage.TRAINING],
    Op.ADVANCE: STAGE_COLORS[Stage.BLENDING],
    Op.FOSSILIZE: STAGE_COLORS[Stage.FOSSILIZED],
    Op.PRUNE: STAGE_COLORS[Stage.EMBARGOED],
}
# Places on the canvas, in pixels from its lower left corner.
MARGIN, TITLE_Y, WIRE_Y, SEED_Y = 70, 512, 425, 312
BLOCK_HEIGHT, SEED_HEIGHT = 96, 92
CURVES_BOTTOM, CURVES_HEIGHT = 42, 150


def draw(view: RowView) -> NDArray[np.uint8]:
    """The picture, uint8 [height, width, 3]."""
    figure = Figure(figsize=(WIDTH / DPI, HEIGHT / DPI), dpi=DPI, facecolor=PAPER)
    canvas = FigureCanvasAgg(figure)
    stage = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    stage.set_axis_off()
    stage.set_xlim(0, WIDTH)
    stage.set_ylim(0, HEIGHT)
    _title(stage, view)
    _host(stage, view)
    _metric_curve(_curve_axes(figure, MARGIN, "validation metric", view), view)
    _loss_curves(_curve_axes(figure, WIDTH // 2 + MARGIN - 15, "loss", view), view)
    canvas.draw()  # type: ignore[no-untyped-call]
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()  # type: ignore[no-untyped-call]


def _title(stage: Axes, view: RowView) -> None:
    now = view.now
    stage.text(30, TITLE_Y, view.task, size=13, weight="bold", color=INK, va="center")
    stage.text(190, TITLE_Y, f"step {now.step} / {view.horizon}", size=11, color=FAINT, va="center")
    color = OP_COLORS[now.op] if now.executed else WARNING
    chip = {"boxstyle": "round,pad=0.45", "facecolor": color, "edgecolor": "none"}
    stage.text(
        WIDTH / 2, TITLE_Y, describe_op(now), size=10, weight="bold", color=PAPER, ha="center", va="center", bbox=chip
    )
    totals = f"added {view.added:.0%}     return {view.episode_return:+.3f}"
    stage.text(WIDTH - 30, TITLE_Y, totals, size=11, color=INK, ha="right", va="center")


def _host(stage: Axes, view: RowView) -> None:
    pitch = (WIDTH - 2 * MARGIN) / len(view.slots)
    stage.plot((45, WIDTH - 45), (WIRE_Y, WIRE_Y), color=LINE, linewidth=2.5, zorder=1)
    for x, label in ((45, "in"), (WIDTH - 45, "out")):
        stage.add_patch(Circle((x, WIRE_Y), 15, facecolor=INK, edgecolor="none", zorder=3))
        stage.text(x, WIRE_Y, label, size=8, color=PAPER, ha="center", va="center", zorder=4)
    for number, slot in enumerate(view.slots):
        center = MARGIN + pitch * (number + 0.5)
        _block(stage, center, pitch * 0.54, number, slot)
        _seed(stage, center, pitch, slot)


def _box(
    stage: Axes, center: tuple[float, float], size: tuple[float, float], fill: str, edge: str, zorder: int
) -> None:
    corner = (center[0] - size[0] / 2, center[1] - size[1] / 2)
    shape = FancyBboxPatch(
        corner, *size, boxstyle="round,pad=0,rounding_size=9", facecolor=fill, edgecolor=edge, linewidth=1.6
    )
    shape.set_zorder(zorder)
    stage.add_patch(shape)


def _block(stage: Axes, center: float, width: float, number: int, slot: SlotView) -> None:
    """A block with one tick per unit: solid where alive, pale where the instance lesioned it."""
    lesioned = slot.live_units < slot.units
    _box(stage, (center, WIRE_Y), (width, BLOCK_HEIGHT), CARD, WARNING if lesioned else LINE, 2)
    stage.text(center, WIRE_Y + 31, f"block {number}", size=9, weight="bold", color=INK, ha="center", zorder=4)
    spacing = (width - 20) / slot.units
    ticks = [(center - (width - 20) / 2 + spacing * (unit + 0.15), spacing * 0.7) for unit in range(slot.units)]
    for units, fill in ((ticks[: slot.live_units], INK), (ticks[slot.live_units :], "#e2e8f0")):
        stage.broken_barh(units, (WIRE_Y - 12, 30), facecolor=fill, edgecolor="none", zorder=3)
    alive = f"{slot.live_units} / {slot.units} alive" if lesioned else f"{slot.units} units"
    stage.text(center, WIRE_Y - 36, alive, size=8, color=WARNING if lesioned else FAINT, ha="center", zorder=4)


def _seed(stage: Axes, center: float, pitch: float, slot: SlotView) -> None:
    color, width = STAGE_COLORS[slot.stage], pitch * 0.84
    _box(stage, (center, SEED_Y), (width, SEED_HEIGHT), PAPER if slot.planted else CARD, color, 2)
    top = SEED_Y + (SEED_HEIGHT / 2 - 19 if slot.planted else -4)
    stage.text(center, top, slot.stage.name, size=9, weight="bold", color=color, ha="center", zorder=4)
    if slot.planted:
        _bypass(stage, center, pitch, slot)
        _seed_details(stage, center, width, top, slot)


def _seed_details(stage: Axes, center: float, width: float, top: float, slot: SlotView) -> None:
    roomy = width > 170
    label = f"{slot.blueprint}, {slot.blend.lower()}" if roomy else slot.blueprint
    stage.text(center, top - 19, label.replace("_", " "), size=8.5, color=INK, ha="center", zorder=4)
    left, right = center - width / 2 + 14, center + width / 2 - 14
    for share, fill in ((1.0, "#e2e8f0"), (slot.alpha, STAGE_COLORS[slot.stage])):
        bar = [(left, (right - left - 42) * share)]
        stage.broken_barh(bar, (top - 37, 10), facecolor=fill, edgecolor="none", zorder=4)
    stage.text(right, top - 32, f"α {slot.alpha:.2f}", size=8, color=INK, ha="right", va="center", zorder=4)
    kind = "trial" if slot.stage is Stage.TRAINING else "adds"
    color = METRIC if slot.contribution > 0 else FAINT
    gain = f"{kind} {100 * slot.contribution:+.1f} pts"
    stage.text(center, top - 57, gain, size=8.5, color=color, ha="center", zorder=4)


def _bypass(stage: Axes, center: float, pitch: float, slot: SlotView) -> None:
    """The seed's way around its block: it reads the block's input and adds to its output, dotted while silent."""
    color, edge = STAGE_COLORS[slot.stage], SEED_Y + SEED_HEIGHT / 2
    read = ((center - 0.40 * pitch, WIRE_Y), (center - 0.34 * pitch, edge))
    add = ((center + 0.34 * pitch, edge), (center + 0.40 * pitch, WIRE_Y))
    for (start, end), bend, line in ((read, -0.2, "-"), (add, 0.2, "-" if slot.alpha > 0 else ":")):
        arrow = FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>",
            mutation_scale=10,
            connectionstyle=f"arc3,rad={bend}",
            linestyle=line,
            linewidth=1.2 + 2.0 * slot.alpha,
            color=color,
            shrinkA=0,
            shrinkB=0,
        )
        stage.add_patch(arrow)


def _curve_axes(figure: Figure, left: int, title: str, view: RowView) -> Axes:
    width = WIDTH // 2 - MARGIN - 30
    axes = figure.add_axes(
        (left / WIDTH, CURVES_BOTTOM / HEIGHT, width / WIDTH, CURVES_HEIGHT / HEIGHT), facecolor=PAPER
    )
    axes.set_xlim(0, view.horizon)
    axes.set_title(title, loc="left", size=9, weight="bold", color=INK, pad=5)
    axes.tick_params(labelsize=8, colors=FAINT, length=0)
    axes.grid(True, color="#e2e8f0", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    for spine in axes.spines.values():
        spine.set_visible(False)
    return axes


def _metric_curve(axes: Axes, view: RowView) -> None:
    steps, values = [moment.step for moment in view.course], [moment.metric for moment in view.course]
    axes.set_ylim(0, 1.2)  # room for the legend
    axes.set_yticks(np.linspace(0.0, 1.0, 6))
    axes.plot(steps, values, color=METRIC, linewidth=2.2, solid_capstyle="round")
    for moment in view.course:
        if moment.op is not Op.WAIT and moment.executed and moment.step > 0:
            axes.plot(moment.step, moment.metric, "o", color=OP_COLORS[moment.op], markersize=7, mec=PAPER, mew=1.2)
    axes.set_title(f"{values[-1]:.1%}", loc="right", size=10, weight="bold", color=METRIC, pad=5)
    for op in (Op.GERMINATE, Op.ADVANCE, Op.FOSSILIZE, Op.PRUNE):
        axes.plot([], [], "o", color=OP_COLORS[op], markersize=5, label=op.name.lower())
    _legend(axes, columns=4)


def _loss_curves(axes: Axes, view: RowView) -> None:
    trained = [(moment.step, moment.train_loss) for moment in view.course if moment.train_loss is not None]
    val = [(moment.step, moment.loss) for moment in view.course]
    for points, name, color in ((trained, "train", TRAIN_LOSS), (val, "validation", VAL_LOSS)):
        axes.plot([x for x, _ in points], [y for _, y in points], color=color, linewidth=2.0, label=name)
    highest = max(y for _, y in trained + val)
    axes.set_ylim(0, 1.25 * highest)
    _legend(axes, columns=2)


def _legend(axes: Axes, columns: int) -> None:
    axes.legend(
        loc="upper right",
        fontsize=7.5,
        frameon=False,
        labelcolor=FAINT,
        ncols=columns,
        handletextpad=0.4,
        columnspacing=1.2,
        borderpad=0.1,
    )
