"""The picture of a study: learning curves over steps and over time, final scores, profiles over instances."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from esper_agent.comparison.results import AXES, SCORES, Results
from esper_agent.evaluation.statistics import bootstrap, interquartile_mean, profile

POINTS = 60  # of a curve or profile
RETURN = "discounted_return"


def draw(results: Results, path: Path) -> None:
    """Draw the results of a study.

    Args:
        results: its finished runs.
        path: the picture to write.
    """
    figure = Figure(figsize=(13, 8.5), layout="constrained")
    panels = figure.subplots(2, 2)
    colours = {agent: f"C{number % 10}" for number, agent in enumerate(results.runs)}
    for axes, axis in zip(panels[0], AXES, strict=True):
        _curves(axes, results, axis, colours)
    _finals(panels[1][0], results, colours)
    _profiles(panels[1][1], results, colours)
    figure.suptitle(f"{results.plan['env_id']}: interquartile means and 95 % intervals")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False)
    figure.savefig(path, dpi=110)


def _curves(axes: Axes, results: Results, axis: str, colours: dict[str, str]) -> None:
    for agent in results.runs:
        if agent not in results.learners:
            score = float(interquartile_mean(results.scores(agent, RETURN)))
            axes.axhline(score, color=colours[agent], linestyle="--", linewidth=1, label=agent)
            continue
        grid = np.linspace(0, results.end(agent, axis), POINTS)
        middle, low, high = bootstrap(interquartile_mean, results.curve(agent, axis, RETURN, grid))
        axes.plot(grid, middle, color=colours[agent], label=agent)
        axes.fill_between(grid, low, high, color=colours[agent], alpha=0.15, linewidth=0)
    axes.set(xlabel=AXES[axis], ylabel="return on held-out instances")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # 20k, 40k, ...: whole numbers would run into each other
    axes.grid(alpha=0.3)


def _finals(axes: Axes, results: Results, colours: dict[str, str]) -> None:
    """Return and accuracy at the end, an interval per agent."""
    for place, agent in enumerate(results.runs):
        for measure, marker in zip(SCORES, "os", strict=True):
            estimate = results.iqm(agent, measure)
            axes.plot((estimate.low, estimate.high), (place, place), color=colours[agent], linewidth=3, alpha=0.5)
            axes.plot(estimate.point, place, marker, color=colours[agent])
    axes.set_yticks(range(len(results.runs)), list(results.runs))
    axes.invert_yaxis()
    axes.set_xlabel("at the end: return (circle) and test accuracy (square)")
    axes.grid(alpha=0.3)


def _profiles(axes: Axes, results: Results, colours: dict[str, str]) -> None:
    everything = [results.final(agent, RETURN) for agent in results.runs]
    thresholds = np.linspace(min(map(np.min, everything)), max(map(np.max, everything)), POINTS)
    for agent, scores in zip(results.runs, everything, strict=True):
        middle, low, high = profile(scores, thresholds)
        style = "-" if agent in results.learners else "--"
        axes.plot(thresholds, middle, style, color=colours[agent], linewidth=1.5)
        axes.fill_between(thresholds, low, high, color=colours[agent], alpha=0.12, linewidth=0)
    axes.set(xlabel="return at the end", ylabel="share of held-out instances above it")
    axes.grid(alpha=0.3)
