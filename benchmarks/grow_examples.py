"""Does a policy that was trained on toys grow real networks well? The two examples, against what people do instead.

    python benchmarks/grow_examples.py grow_my_cnn             # into benchmarks/results/grow_my_cnn.{json,md,png}
    python benchmarks/grow_examples.py grow_my_transformer --seeds 5
    python benchmarks/grow_examples.py grow_my_transformer --quick --out /tmp/results

For every seed (initial weights and order of the data) the pretrained policy grows the example's small network first.
What that costs in FLOPs, with all that it measures on validation data, is the budget of the others: the small network,
the architecture that the policy ended with from the start, and the plateau rule. They train on until they have spent
it, and likewise until they have spent its time (of one core, so that other work on the machine does not count). The
metric is that of the committed network on test data. Differences are paired by seed, with Student's 95 % interval.
"""

import argparse
import importlib
import sys
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from common import RESULTS, provenance, write_json
from esper_agent import FactoredRecurrentPPO, Grower
from esper_agent.baselines.scripted import GrowOnPlateau
from esper_agent.evaluation.statistics import Estimate, difference
from esper_env import GrowingModule
from esper_env.tasks import Data
from torch.utils.flop_counter import FlopCounterMode

EXAMPLES = Path(__file__).parents[1] / "examples"
POLICY, RULE, SMALL, FINAL = "pretrained policy", "plateau rule", "small network", "same final network from the start"
ARMS = (POLICY, RULE, SMALL, FINAL)
PRETRAINED = "Esper-v0"


@dataclass(frozen=True)
class Spent:
    """What a training has cost."""

    flops: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class Score:
    """How a network did when its budget was spent."""

    metric: float
    loss: float
    epochs: int
    parameters: int


@dataclass(frozen=True)
class Run:
    """One arm with one seed."""

    arm: str
    seed: int
    spent: Spent  # after the example's number of epochs
    equal_flops: Score
    equal_time: Score
    told: list[str]  # what the grower did


class Training:
    """One network in training, counted and timed."""

    def __init__(self, example: Any, data: Data, seed: int, structure: list[tuple[str, Any]] | None) -> None:
        self.example, self.data = example, data
        torch.manual_seed(seed)
        self.model = GrowingModule(
            example.make_model(), slots=example.SLOTS, example_input=data.train.inputs[:2], seed=seed
        )
        self.structure = structure
        for number, (blueprint, blend) in enumerate(structure or []):
            if blueprint:
                self.model.germinate(number, blueprint, blend)
                self.model.advance(number)
                self.model.fossilize(number)
        self.optimizer = example.make_optimizer(self.model)
        self.generator = torch.Generator().manual_seed(seed)
        self.spent, self.epochs, self.told = Spent(), 0, list[str]()
        self.grower: Grower | None = None
        self.costs: dict[Any, tuple[int, int]] = {}
        self.evaluations = 0

    def evaluate(self) -> tuple[float, float]:
        """Validation loss and metric, counted."""
        self.evaluations += 1
        found: tuple[float, float] = self.example.evaluate(self.model, self.data.val)
        return found

    def epoch(self) -> None:
        """Train for an epoch and let the grower do its step."""
        minibatch, evaluation = self._costs()
        begun, before = time.process_time(), self.evaluations
        count = 0
        for inputs, labels in self.example.minibatches(self.data, self.generator):
            self.optimizer.zero_grad()
            self._loss(self.model, inputs, labels).backward()
            self.optimizer.step()
            count += 1
        if self.grower is not None and self.epochs < self.example.EPOCHS:
            self.told.append(self.grower.step())
        else:
            self.evaluate()
        self.epochs += 1
        flops = count * minibatch + (self.evaluations - before) * evaluation
        self.spent = Spent(self.spent.flops + flops, self.spent.seconds + time.process_time() - begun)

    def _loss(self, model: GrowingModule, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if self.grower is None:
            loss: torch.Tensor = self.example.loss_of(model, inputs, labels)
            return loss
        if self.epochs >= self.example.EPOCHS:
            model.losses.clear()  # growth is over, nobody takes them
        return model.loss(lambda: self.example.loss_of(model, inputs, labels))

    def _costs(self) -> tuple[int, int]:
        """FLOPs of a minibatch and of an evaluation, counted once for each state of the slots on a copy."""
        state = tuple((slot.blueprint, slot.blend, slot.live) for slot in self.model.slots)
        if state not in self.costs:
            copy = deepcopy(self.model)
            inputs, labels = next(iter(self.example.minibatches(self.data, torch.Generator().manual_seed(0))))
            train = counted(lambda: self._loss(copy, inputs, labels).backward())
            self.costs[state] = train, counted(lambda: self.example.evaluate(copy, self.data.val))
        return self.costs[state]

    def score(self) -> Score:
        """The committed network on test data."""
        plain = self.model.plain()
        loss, metric = self.example.evaluate(plain, self.data.test)
        return Score(metric, loss, self.epochs, sum(parameter.numel() for parameter in plain.parameters()))


def counted(run: Callable[[], object]) -> int:
    """FLOPs of what is run."""
    counter = FlopCounterMode(display=False)
    with torch.random.fork_rng(devices=[]), counter:
        run()
    return counter.get_total_flops()


def grow(training: Training, policy: Any) -> None:
    """Give a training a grower, whose first look is counted, too."""
    begun = time.process_time()
    training.grower = Grower(
        training.model, policy, training.optimizer, evaluate=training.evaluate, horizon=training.example.EPOCHS
    )
    flops = training.evaluations * training._costs()[1]
    training.spent = Spent(float(flops), time.process_time() - begun)


def begun(example: Any, data: Data, arm: str, seed: int, structure: list[tuple[str, Any]]) -> Training:
    """A training that is about to begin."""
    training = Training(example, data, seed, structure if arm == FINAL else None)
    if arm == POLICY:
        grow(training, FactoredRecurrentPPO.pretrained(PRETRAINED))
    if arm == RULE:
        grow(training, GrowOnPlateau)
    return training


def finish(training: Training, arm: str, seed: int, budget: Spent | None) -> Run:
    """Train for the example's number of epochs, and for the budget in FLOPs and in time."""
    whole: Spent | None = None
    flops: Score | None = None
    seconds: Score | None = None
    while whole is None or flops is None or seconds is None:
        training.epoch()
        if training.epochs == training.example.EPOCHS:
            whole = training.spent
        limit = budget or whole
        if limit and flops is None and training.spent.flops >= limit.flops:
            flops = training.score()
        if limit and seconds is None and training.spent.seconds >= limit.seconds:
            seconds = training.score()
    return Run(arm, seed, whole, flops, seconds, [line for line in training.told if not line.endswith("; wait")])


def trial(example: Any, data: Data, seed: int) -> Iterator[Run]:
    """All arms with one seed; the policy's budget is everybody's."""
    structure: list[tuple[str, Any]] = []
    budget: Spent | None = None
    for arm in ARMS:
        training = begun(example, data, arm, seed, structure)
        run = finish(training, arm, seed, budget)
        if arm == POLICY:
            budget = run.spent
            structure = [(s.blueprint if s.committed else "", s.blend) for s in training.model.slots]
        flops, seconds = run.equal_flops.metric, run.equal_time.metric
        print(f"seed {seed}, {arm}: {flops:.3f} at equal FLOPs, {seconds:.3f} at equal time", flush=True)
        yield run


def scores(runs: list[Run], arm: str, terms: str, name: str) -> Any:
    """One number per seed."""
    return np.array([getattr(getattr(run, terms), name) for run in runs if run.arm == arm], dtype=float)


def average(values: Any) -> Estimate:
    """With Student's interval over seeds."""
    return difference(values, np.zeros(1))


def table(runs: list[Run]) -> list[str]:
    titles = (
        "",
        "at equal FLOPs",
        "policy's lead",
        "at equal time",
        "policy's lead",
        "test loss",
        "parameters",
        "epochs",
    )
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for arm in ARMS:
        cells = [arm]
        for terms in ("equal_flops", "equal_time"):
            own, policy = (scores(runs, who, terms, "metric") for who in (arm, POLICY))
            cells += [str(average(own)), "" if arm == POLICY else str(difference(policy, own))]
        loss, sizes, epochs = (scores(runs, arm, "equal_flops", name) for name in ("loss", "parameters", "epochs"))
        cells += [str(average(loss)), f"{sizes.mean():,.0f}", f"{epochs.mean():.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def report(name: str, result: dict[str, Any], runs: list[Run]) -> str:
    facts, seeds = result["provenance"], len({run.seed for run in runs})
    told = [f"- seed {run.seed}: {'; '.join(run.told) or 'nothing'}" for run in runs if run.arm == POLICY]
    return "\n".join([
        f"# {name}", "", *(__doc__ or "").split("\n\n")[2].splitlines(), "",
        f"[The example](../../examples/{name}.py), the agent `pretrained({PRETRAINED!r})`, {seeds} seeds.", "",
        *table(runs), "", f"![Every seed]({name}.png)", "",
        "What the policy did:", "", *told, "",
        f"`{facts['command']}`; torch {facts['versions']['torch']}, {facts['threads']} threads.", "",
    ])  # fmt: skip


def draw(name: str, runs: list[Run], path: Path) -> None:
    """The metric of every arm, one line per seed."""
    figure, panels = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for panel, terms in zip(panels, ("equal_flops", "equal_time"), strict=True):
        columns = np.stack([scores(runs, arm, terms, "metric") for arm in ARMS])
        panel.plot(columns, "o-", alpha=0.5)
        panel.plot(columns.mean(axis=1), "k_", markersize=30)
        panel.set_xticks(range(len(ARMS)), [arm.replace("from", "\nfrom") for arm in ARMS], fontsize=8)
        panel.set_title(terms.replace("_", " "))
    panels[0].set_ylabel("test accuracy")
    figure.suptitle(f"{name}: one line per seed")
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("example", choices=("grow_my_cnn", "grow_my_transformer"))
    parser.add_argument("--seeds", type=int, default=5, help="how many (5)")
    parser.add_argument("--quick", action="store_true", help="a few epochs and two seeds, to see that it works")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where to write (benchmarks/results)")
    args = parser.parse_args()
    sys.path.insert(0, str(EXAMPLES))
    example = importlib.import_module(args.example)
    if args.quick:
        example.EPOCHS, example.MINIBATCHES, args.seeds = 4, 2, 2  # type: ignore[attr-defined]
    data = example.load()
    runs: list[Run] = []
    for seed in range(args.seeds):  # what is finished is written down
        runs += trial(example, data, seed)
        publish(args.example, runs, args.out)


def publish(name: str, runs: list[Run], directory: Path) -> None:
    result = {"runs": [asdict(run) for run in runs], "provenance": provenance()}
    text = report(name, result, runs)
    print("\n" + text, flush=True)
    write_json(directory / f"{name}.json", result)
    draw(name, runs, directory / f"{name}.png")
    (directory / f"{name}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
