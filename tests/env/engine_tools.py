"""Build, grow and drive populations in tests, and the same rows one by one in plain torch as the reference."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import log, log2

import numpy as np
import torch
import torch.nn.functional as F
from esper_env.blueprints import BLUEPRINTS, SeedTemplate
from esper_env.fused.layers import accuracy
from esper_env.fused.minibatches import Minibatches
from esper_env.fused.optimizers import SGD, AdamW, Optimizer
from esper_env.fused.randomness import Purpose, integers
from esper_env.hosts import TransformerHost
from esper_env.population.cohort import Cohort
from esper_env.population.passes import Passes
from esper_env.population.plan import training_plan
from esper_env.population.population import EMPTY, Blend, Census, Engine, Population
from esper_env.tasks import TASKS, Data, Split
from esper_env.tasks.text import ALPHABET
from torch import Tensor, nn

TINY_TEXT, TINY_LENGTH = "tiny_text", 10
HOSTS = ("digits_mlp", "digits_cnn", TINY_TEXT)  # one task per host family
FIRST_KEY = 1000
LEARNING_RATE = 0.05


def load_tiny_text() -> Data:
    """The beginnings of the windows."""
    full = TASKS["text"].load()
    splits = {name: getattr(full, name) for name in ("train", "val", "test")}
    cut = {name: Split(s.inputs[:, :TINY_LENGTH], s.labels[:, :TINY_LENGTH]) for name, s in splits.items()}
    return replace(full, **cut)


TASKS.register(
    TINY_TEXT,
    replace(
        TASKS["text"],
        host=TransformerHost(len(ALPHABET), TINY_LENGTH, width=8, heads=2, hidden=12, depth=3),
        load=load_tiny_text,
        optimizer=SGD(momentum=0.9),
    ),
)


class Stage(Enum):
    """What may sit in a slot, as far as the engine tells cases apart."""

    INCUBATING = "incubating"
    SILENCED = "silenced"
    BLENDING = "blending"
    HOLDING = "holding"
    COMMITTED = "committed"


ALPHA = {Stage.INCUBATING: 0.0, Stage.SILENCED: 0.0, Stage.BLENDING: 0.3, Stage.HOLDING: 1.0, Stage.COMMITTED: 1.0}


@dataclass(frozen=True)
class Place:
    """A seed to be planted."""

    row: int
    slot: int
    kind: int
    blend: Blend
    stage: Stage


def episode_keys(rows: int, first: int = FIRST_KEY, device: str = "cpu") -> Tensor:
    return (torch.arange(rows) + first).to(device)


def full_width(task: str, rows: int) -> np.ndarray:
    return np.array([[slot.outputs[0] for slot in TASKS[task].host.slots]] * rows)


def build(
    task: str,
    rows: int,
    *,
    dtype: torch.dtype = torch.float64,
    keys: Tensor | None = None,
    lr: Tensor | float = LEARNING_RATE,
    live_units: np.ndarray | None = None,
    optimizer: Optimizer | None = None,
    max_grad_norm: float | None = None,
    device: str = "cpu",
) -> Population:
    """A population of fresh hosts of a task."""
    spec = TASKS[task]
    blueprints = tuple(BLUEPRINTS[name] for name in spec.blueprints)
    engine = Engine(spec.host, blueprints, optimizer or spec.optimizer, max_grad_norm, device, dtype, spec.metric)
    population = Population.unborn(engine, rows)
    keys = episode_keys(rows) if keys is None else keys
    rates = torch.full((rows,), lr) if isinstance(lr, float) else lr
    widths = full_width(task, rows) if live_units is None else live_units
    population.rebirth(np.arange(rows), keys.to(device), rates.to(device), widths)
    return population


def some_lesions(task: str, rows: int) -> np.ndarray:
    """Rows in turn without a lesion, lesioned at one block, and lesioned at two."""
    widths = full_width(task, rows)
    slots = widths.shape[1]
    for row in range(rows):
        for number in range(row % 3):
            widths[row, (row + number) % slots] = 1 + row % 4
    return widths


def assortment(population: Population, stages: Sequence[Stage] = tuple(Stage), empty: float = 0.2) -> list[Place]:
    """Seeds of every blueprint, blend and stage in random places, the same for equal arguments."""
    rng = np.random.default_rng(len(population))
    rows, slots = population.census.blueprint.shape
    places = [(int(row), slot) for row in rng.permutation(rows) for slot in range(slots) if rng.random() >= empty]
    kinds = len(population.engine.blueprints)
    return [
        Place(row, slot, int(rng.integers(kinds)), Blend(rng.integers(len(Blend))), stages[rng.integers(len(stages))])
        for row, slot in places
    ]


def columns(places: Iterable[Place]) -> tuple[np.ndarray, np.ndarray]:
    """Rows and slots of places."""
    pairs = np.array([(place.row, place.slot) for place in places], dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def grow(population: Population, places: list[Place], *, keys: Tensor | None = None, step: int = 3) -> None:
    """Plant seeds and bring each to its stage."""
    device = population.engine.device
    keys = episode_keys(len(population)) if keys is None else keys
    rows, slots = columns(places)
    kinds, blends = np.array([p.kind for p in places]), np.array([int(p.blend) for p in places])
    steps = torch.full((len(rows),), step)
    population.germinate(rows, slots, kinds, blends, keys[torch.from_numpy(rows)].to(device), steps.to(device))
    population.advance(*columns(p for p in places if p.stage is not Stage.INCUBATING))
    population.commit(*columns(p for p in places if p.stage is Stage.COMMITTED))
    alpha = torch.zeros(population.census.blueprint.shape, dtype=population.engine.dtype)
    for place in places:
        alpha[place.row, place.slot] = ALPHA[place.stage]
    population.alpha = alpha.to(device)


def unsilence(population: Population, size: float = 0.3) -> None:
    """Move all seeds away from silence, as training would; each row's move depends on the row alone."""
    for key, cohort in sorted(population.seeds.items()):
        for position, row in enumerate(cohort.rows.tolist()):
            noise = np.random.default_rng((row, key[0])).standard_normal(cohort.values.shape[1])
            cohort.values[position] += torch.from_numpy(size * noise).to(cohort.values)


def minibatches(
    task: str,
    population: Population,
    *,
    keys: Tensor | None = None,
    step: int = 0,
    count: int = 4,
    batch: int = 16,
) -> Minibatches:
    """The minibatches that rows with these episode keys draw at a step."""
    data = TASKS[task].load()
    train = data.train.to(population.body.values)
    keys = (episode_keys(len(population)) if keys is None else keys).to(population.engine.device)
    index = torch.arange(count * batch, device=keys.device).view(count, batch)
    picks = integers(keys[:, None, None], Purpose.MINIBATCH, step, index, len(train))
    return Minibatches(train.inputs, picks, train.labels[picks])


def validation(task: str, population: Population, samples: int | None = None) -> tuple[Tensor, Tensor]:
    val = TASKS[task].load().val.to(population.body.values)
    return val.inputs[:samples], val.labels[:samples]


@torch.no_grad()
def logits(population: Population, inputs: Tensor) -> Tensor:
    """What every row answers to the same samples, [n, batch, classes]."""
    passes = Passes(population, training_plan(population), training=False)
    answers, _ = passes.run(inputs.expand(len(population), *inputs.shape))
    return answers[: len(population)]


def clone(population: Population) -> Population:
    """A copy that shares nothing that changes."""

    def copied(cohort: Cohort) -> Cohort:
        return Cohort(
            cohort.layout, cohort.rows.copy(), cohort.values.clone(), tuple(state.clone() for state in cohort.state)
        )

    census = population.census
    return replace(
        population,
        body=copied(population.body),
        seeds={key: copied(cohort) for key, cohort in population.seeds.items()},
        census=Census(census.blueprint.copy(), census.live.copy(), census.committed.copy(), census.blend.copy()),
        alpha=population.alpha.clone(),
        lr=population.lr.clone(),
        lesions=[mask.clone() for mask in population.lesions],
        lesioned=population.lesioned.copy(),
    )


def host_state(population: Population, row: int) -> dict[str, Tensor]:
    return population.body.layout.state_dict(population.body.values[row].clone())


def seed_state(population: Population, row: int, slot: int) -> dict[str, Tensor]:
    cohort = cohort_of(population, row, slot)
    return cohort.layout.state_dict(cohort.values[cohort.rows.tolist().index(row)].clone())


def cohort_of(population: Population, row: int, slot: int) -> Cohort:
    """The one cohort that holds the seed in a slot of a row."""
    kind = int(population.census.blueprint[row, slot])
    (cohort,) = (c for key, c in population.seeds.items() if key[:2] == (slot, kind) and row in c.rows)
    return cohort


def occupied(population: Population) -> list[tuple[int, int]]:
    """(row, slot) of every seed."""
    return [(int(row), int(slot)) for row, slot in np.argwhere(population.census.blueprint != EMPTY)]


def largest_difference(left: Population, right: Population) -> float:
    """Of all parameters of two populations with the same seeds."""
    assert left.seeds.keys() == right.seeds.keys()
    gaps = [(left.body.values - right.body.values).abs().max()]
    for key, cohort in left.seeds.items():
        np.testing.assert_array_equal(cohort.rows, right.seeds[key].rows)
        gaps.append((cohort.values - right.seeds[key].values).abs().max())
    return max(gap.item() for gap in gaps)


def plain_optimizer(optimizer: Optimizer, parameters: Iterable[Tensor], lr: float) -> torch.optim.Optimizer:
    """The optimiser of torch that a row optimiser stands for."""
    if isinstance(optimizer, SGD):
        return torch.optim.SGD(parameters, lr, momentum=optimizer.momentum, weight_decay=optimizer.weight_decay)
    assert isinstance(optimizer, AdamW)
    betas = (optimizer.beta1, optimizer.beta2)
    return torch.optim.AdamW(parameters, lr, betas, optimizer.epsilon, optimizer.weight_decay)


def along_units(values: Tensor, x: Tensor) -> Tensor:
    """One value per unit, shaped to meet activations: images have their channels second, all else units last."""
    return values.view(-1, 1, 1) if x.dim() == 4 else values


def _gate(seed: SeedTemplate, x: Tensor) -> Tensor:
    """The opening before the sigmoid: of an image as a whole, of a text at each position."""
    return seed.gate(x.mean(dim=(2, 3)))[..., None, None] if x.dim() == 4 else seed.gate(x)


def plain_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


def plain_blend(blend: Blend, h: Tensor, delta: Tensor, opening: Callable[[], Tensor], alpha: float) -> Tensor:
    """The three formulas, as the design states them."""
    if blend is Blend.MULTIPLY:
        return h * (1.0 + alpha * torch.tanh(delta))
    if blend is Blend.GATE:
        return h + alpha * torch.sigmoid(opening()) * delta
    return h + alpha * delta


@dataclass
class PlainSeed:
    module: nn.Module
    blend: Blend
    alpha: float
    live: bool
    committed: bool
    optimizer: torch.optim.Optimizer

    @property
    def parameters(self) -> list[Tensor]:
        return list(self.module.parameters())


@dataclass(frozen=True)
class StepReport:
    loss: float
    block_grad_norm: list[float]
    seed_grad_norm: list[float]


class PlainRow:
    """One row of a population as ordinary modules with ordinary optimisers, trained by an ordinary loop."""

    def __init__(self, population: Population, row: int) -> None:
        self.engine, self.row = population.engine, row
        self.lr = population.lr[row].item()
        self.host = self.engine.host.template().to(self.engine.dtype)
        self.host.load_state_dict(self.host.state_dict() | host_state(population, row))
        self.optimizer = plain_optimizer(self.engine.optimizer, self.host.parameters(), self.lr)
        self.alive = [mask[row].clone() for mask in population.lesions]
        self.seeds: dict[int, PlainSeed] = {}
        for slot in range(len(self.engine.host.slots)):
            if population.census.blueprint[row, slot] != EMPTY:
                self.plant(population, slot)

    def plant(self, population: Population, slot: int) -> None:
        """Take over the seed that sits in a slot of the population, with a fresh optimiser."""
        census = population.census
        blueprint = self.engine.blueprints[census.blueprint[self.row, slot]]
        module = SeedTemplate(blueprint, self.engine.host.slots[slot]).to(self.engine.dtype)
        module.load_state_dict(seed_state(population, self.row, slot))
        self.seeds[slot] = PlainSeed(
            module,
            Blend(census.blend[self.row, slot]),
            population.alpha[self.row, slot].item(),
            bool(census.live[self.row, slot]),
            bool(census.committed[self.row, slot]),
            plain_optimizer(self.engine.optimizer, module.parameters(), self.lr),
        )

    @property
    def live(self) -> set[int]:
        return {slot for slot, seed in self.seeds.items() if seed.live}

    @property
    def committed(self) -> set[int]:
        return {slot for slot, seed in self.seeds.items() if seed.committed}

    def forward(self, x: Tensor, acting: Iterable[int], outputs: list[Tensor] | None = None) -> Tensor:
        """Logits with exactly these slots' seeds acting: live ones at their alpha, incubating ones at one."""

        def beside(slot: int, x: Tensor, h: Tensor) -> Tensor:
            h = h * along_units(self.alive[slot], h)
            if outputs is not None:
                outputs.append(h)
            return self._with_seed(self.seeds[slot], x, h) if slot in acting else h

        return self.host(x, beside)

    def _with_seed(self, seed: PlainSeed, x: Tensor, h: Tensor) -> Tensor:
        alpha = seed.alpha if seed.live else 1.0
        return plain_blend(seed.blend, h, seed.module(x), lambda: _gate(seed.module, x), alpha)

    def train(self, x: Tensor, y: Tensor) -> StepReport:
        """One minibatch: the host with its live seeds, and each incubating seed by its own shadow loss."""
        outputs: list[Tensor] = []
        loss = plain_loss(self.forward(x, self.live, outputs), y)
        trained = {slot: self.seeds[slot].parameters for slot in self.live}
        groups = [list(self.host.parameters()), *trained.values()]
        grads = _gradients(loss, [*outputs, *[p for group in groups for p in group]])
        for parameter, grad in zip((p for group in groups for p in group), grads[len(outputs) :], strict=True):
            parameter.grad = grad
        for slot in self.seeds.keys() - self.live:
            parameters = self.seeds[slot].parameters
            shadow = plain_loss(self.forward(x, self.live | {slot}), y)
            for parameter, grad in zip(parameters, _gradients(shadow, parameters), strict=True):
                parameter.grad = grad
        seed_norms = [self._seed_grad_norm(slot) for slot in range(len(self.alive))]
        self._step()
        return StepReport(loss.item(), [grad.norm().item() for grad in grads[: len(outputs)]], seed_norms)

    def _seed_grad_norm(self, slot: int) -> float:
        if slot not in self.seeds:
            return 0.0
        return torch.cat([p.grad.flatten() for p in self.seeds[slot].parameters]).norm().item()

    def _step(self) -> None:
        owners = [(list(self.host.parameters()), self.optimizer)]
        owners += [(seed.parameters, seed.optimizer) for seed in self.seeds.values()]
        for parameters, optimizer in owners:
            if self.engine.max_grad_norm is not None:
                nn.utils.clip_grad_norm_(parameters, self.engine.max_grad_norm)
            optimizer.step()

    def metric(self, x: Tensor, y: Tensor, acting: Iterable[int]) -> float:
        answers = self.forward(x, acting)
        if self.engine.metric is accuracy:
            return (answers.argmax(dim=-1) == y).double().mean().item()
        bits = plain_loss(answers, y).item() / log(2)
        return max(0.0, 1 - bits / log2(answers.shape[-1]))

    def largest_difference(self, population: Population) -> float:
        """Between this row and the population's, over all parameters."""
        pairs = [(self.host.state_dict(), host_state(population, self.row))]
        for slot, seed in self.seeds.items():
            pairs.append((seed.module.state_dict(), seed_state(population, self.row, slot)))
        return max((mine[name] - theirs[name]).abs().max().item() for mine, theirs in pairs for name in theirs)


def _gradients(loss: Tensor, targets: list[Tensor]) -> list[Tensor]:
    grads = torch.autograd.grad(loss, targets, allow_unused=True)
    return [torch.zeros_like(target) if grad is None else grad for target, grad in zip(targets, grads, strict=True)]


def train_plain(plain: PlainRow, data: Minibatches) -> StepReport:
    """One epoch of a plain row on its own minibatches; what the epoch shows, averaged."""
    reports = []
    for number in range(data.index.shape[1]):
        x, y = data.batch(number, plain.row, plain.row + 1)
        reports.append(plain.train(x[0], y[0]))
    count = len(reports)
    return StepReport(
        sum(report.loss for report in reports) / count,
        (np.sum([report.block_grad_norm for report in reports], axis=0) / count).tolist(),
        (np.sum([report.seed_grad_norm for report in reports], axis=0) / count).tolist(),
    )
