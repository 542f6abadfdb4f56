"""Modules as users write them, with nothing of Esper in them, and hosts made of them."""

import torch
from engine_tools import TINY_LENGTH
from esper_env.hosts import from_module
from esper_env.tasks.text import ALPHABET
from torch import Tensor, nn


class Residual(nn.Module):
    """Two convolutions beside a skip connection."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1, self.norm2 = nn.GroupNorm(2, outputs), nn.BatchNorm2d(outputs, track_running_stats=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.skip = nn.Identity() if stride == 1 else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.nn.functional.silu(h + self.skip(x))


class ResNet(nn.Module):
    """A residual network whose stages halve the image: slots are the blocks that keep its size."""

    def __init__(self, width: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.layer1 = nn.Sequential(Residual(width, width), Residual(width, width))
        self.layer2 = nn.Sequential(Residual(width, width + 2, stride=2), Residual(width + 2, width + 2))
        self.scale = nn.Parameter(torch.full((width + 2,), 0.5))
        self.fc = nn.Linear(width + 2, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(torch.tanh(self.stem(x))))
        return self.fc(self.scale * x.mean(dim=(2, 3)))


class Tokens(nn.Module):
    """A language model with learned positions; it treats the sum of what it embeds in a layer between two slots."""

    def __init__(self, length: int = TINY_LENGTH, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(ALPHABET), width)
        self.positions = nn.Parameter(torch.zeros(length, width))
        block = {"dim_feedforward": 12, "dropout": 0.0, "batch_first": True, "norm_first": True, "layer_norm_eps": 0.1}
        self.blocks = nn.ModuleList(Causal(nn.TransformerEncoderLayer(width, 2, **block), length) for _ in range(2))
        self.between = nn.Linear(width, width)
        self.out = nn.Linear(width, len(ALPHABET))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.positions
        x = self.blocks[0](x)
        x = x + self.between(x).tanh()
        return self.out(self.blocks[1](x))


class Causal(nn.Module):
    """A layer of torch's own with a causal mask, which is a buffer."""

    def __init__(self, layer: nn.Module, length: int) -> None:
        super().__init__()
        self.layer = layer
        self.register_buffer("mask", torch.full((length, length), float("-inf")).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, src_mask=self.mask)


RESIDUAL_SLOTS, TOKEN_SLOTS = ["layer1.0", "layer1.1", "layer2.1"], ["blocks.0", "blocks.1"]
RESIDUAL = from_module(ResNet, slots=RESIDUAL_SLOTS, example_input=torch.zeros(2, 1, 8, 8), name="own_resnet")
TOKENS = from_module(
    Tokens, slots=TOKEN_SLOTS, example_input=torch.zeros(2, TINY_LENGTH, dtype=torch.int64), name="own_tokens"
)
