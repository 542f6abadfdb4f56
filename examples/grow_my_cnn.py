"""Grow a small residual network on Fashion-MNIST, in plain PyTorch, by a policy that was trained on toys.

python examples/grow_my_cnn.py

The network is the one of He et al. (2015) for small images, with one block per stage and 4, 8 and 16 channels. A slot
is the second convolution of a block: it keeps the size of the image. An epoch here is 10 minibatches. The data are
brought by `esper-env data fetch fashion_mnist`, or from Debian's package by `esper-env data import`.
"""

import sys
from collections.abc import Iterator

import torch
from esper_agent import FactoredRecurrentPPO, Grower
from esper_env import GrowingModule
from esper_env.tasks import Data, Split
from esper_env.tasks.data import DataError
from esper_env.tasks.fashion_mnist import load_fashion_mnist
from esper_env.tasks.images import Sizes
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu

SLOTS = ["stage1.conv2", "stage2.conv2", "stage3.conv2"]
EPOCHS, MINIBATCHES, BATCH = 30, 10, 64
SIZES = Sizes(train=50_000, val=512, test=4_000)


class Block(nn.Module):
    """Two convolutions beside a skip connection."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        h = relu(self.norm1(self.conv1(x)))
        return relu(self.norm2(self.conv2(h)) + self.skip(x))


class ResNet(nn.Module):
    """A stem, three stages of one block, and a linear layer."""

    def __init__(self, channels: tuple[int, int, int] = (4, 8, 16)) -> None:
        super().__init__()
        first, second, third = channels
        self.stem = nn.Sequential(nn.Conv2d(1, first, 3, 2, 1, bias=False), nn.BatchNorm2d(first), nn.ReLU())
        self.stage1, self.stage2 = Block(first, first, 1), Block(first, second, 2)
        self.stage3, self.out = Block(second, third, 2), nn.Linear(third, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = self.stage3(self.stage2(self.stage1(self.stem(x))))
        return self.out(x.mean(dim=(2, 3)))


def make_model() -> nn.Module:
    """The small network, with weights from torch's generator."""
    return ResNet()


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW, as people use it."""
    return torch.optim.AdamW(model.parameters(), lr=2e-3)


def load() -> Data:
    """Standardised images in three splits."""
    return load_fashion_mnist(SIZES)


def minibatches(data: Data, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Those of one epoch."""
    for _ in range(MINIBATCHES):
        rows = torch.randint(len(data.train.labels), (BATCH,), generator=generator)
        yield data.train.inputs[rows], data.train.labels[rows]


def loss_of(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Of a minibatch."""
    return cross_entropy(model(inputs), labels)


def evaluate(model: nn.Module, split: Split) -> tuple[float, float]:
    """Loss and accuracy."""
    model.eval()
    with torch.no_grad():
        logits = model(split.inputs)
    model.train()
    return cross_entropy(logits, split.labels).item(), (logits.argmax(1) == split.labels).float().mean().item()


def main() -> None:
    """Train, and grow meanwhile."""
    try:
        data = load()
    except DataError as error:
        sys.exit(f"{error}")
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
    print(f"{size} parameters, {evaluate(grown, data.test)[1]:.3f} test accuracy")


if __name__ == "__main__":
    main()
