"""Grow a small transformer that predicts characters, in plain PyTorch, by a policy that was trained on toys.

python examples/grow_my_transformer.py

The text is the one of `esper-env data import text FILE`, or else a generated language in which brackets and agreement
reach across nested clauses. Slots are the three layers, which are torch's own. An epoch here is 10 minibatches.
"""

from collections.abc import Iterator

import torch
from esper_agent import FactoredRecurrentPPO, Grower
from esper_env import GrowingModule
from esper_env.tasks import Data, Split
from esper_env.tasks.grammar import generate
from esper_env.tasks.text import ALPHABET, encode, fold, read_corpus
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

SLOTS = ["layers.0", "layers.1", "layers.2"]
EPOCHS, MINIBATCHES, BATCH = 30, 10, 32
LENGTH, CHARACTERS = 32, 400_000
VAL, TEST = 64, 512  # windows


class Causal(nn.Module):
    """A layer of torch's own in which no position sees a later one."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(width, 2, hidden, dropout=0.0, batch_first=True, norm_first=True)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output."""
        return self.layer(x, src_mask=self.mask, is_causal=True)


class Characters(nn.Module):
    """A language model with learned positions."""

    def __init__(self, width: int = 16, hidden: int = 16) -> None:
        super().__init__()
        self.embed, self.positions = nn.Embedding(len(ALPHABET), width), nn.Parameter(torch.zeros(LENGTH, width))
        self.layers = nn.Sequential(*[Causal(width, hidden) for _ in SLOTS])
        self.out = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, len(ALPHABET)))

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next character at every position."""
        return self.out(self.layers(self.embed(tokens) + self.positions))


def make_model() -> nn.Module:
    """The small network, with weights from torch's generator."""
    return Characters()


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW, as people use it."""
    return torch.optim.AdamW(model.parameters(), lr=3e-3)


def load() -> Data:
    """Windows of the text, each with its successors; the splits share no place in it."""
    text = fold(read_corpus() or generate(CHARACTERS, key=0))
    windows = encode(text)[: len(text) // (LENGTH + 1) * (LENGTH + 1)].view(-1, LENGTH + 1)
    windows = windows[torch.randperm(len(windows), generator=torch.Generator().manual_seed(0))]
    val, test, train = windows.split([VAL, TEST, len(windows) - VAL - TEST])
    splits = (Split(part[:, :-1], part[:, 1:]) for part in (train, val, test))
    return Data(*splits, classes=len(ALPHABET))


def minibatches(data: Data, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Those of one epoch."""
    for _ in range(MINIBATCHES):
        rows = torch.randint(len(data.train.labels), (BATCH,), generator=generator)
        yield data.train.inputs[rows], data.train.labels[rows]


def loss_of(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Of a minibatch."""
    return cross_entropy(model(inputs).flatten(0, 1), labels.flatten())


def evaluate(model: nn.Module, split: Split) -> tuple[float, float]:
    """Loss and accuracy."""
    with torch.no_grad():
        logits = model(split.inputs).flatten(0, 1)
    labels = split.labels.flatten()
    return cross_entropy(logits, labels).item(), (logits.argmax(1) == labels).float().mean().item()


def main() -> None:
    """Train, and grow meanwhile."""
    data = load()
    torch.manual_seed(0)
    model = GrowingModule(make_model(), slots=SLOTS, example_input=data.train.inputs[:2])
    optimizer, generator = make_optimizer(model), torch.Generator().manual_seed(0)
    policy = FactoredRecurrentPPO.pretrained("Esper-v0")
    grower = Grower(model, policy, optimizer, evaluate=lambda: evaluate(model, data.val), horizon=EPOCHS)
    for _ in range(EPOCHS):
        for inputs, labels in minibatches(data, generator):
            optimizer.zero_grad()
            model.loss(lambda inputs=inputs, labels=labels: loss_of(model, inputs, labels)).backward()
            optimizer.step()
        print(grower.step())
    grown = model.plain()
    size = sum(parameter.numel() for parameter in grown.parameters())
    print(f"{size} parameters, {evaluate(grown, data.test)[1]:.3f} of the characters of the test text are predicted")


if __name__ == "__main__":
    main()
