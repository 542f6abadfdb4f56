"""Patches: a host that reads squares of pixels as channels is a plain network with a strided entry."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from engine_tools import assortment, build, grow, logits, minibatches, some_lesions, unsilence, validation
from esper_env.hosts import CNNHost
from esper_env.population.export import export_host
from esper_env.population.training import train_epoch
from esper_env.tasks import TASKS

ROWS = 6
TASKS.register("digits_patched", replace(TASKS["digits_cnn"], host=CNNHost((1, 8, 8), (4, 6, 6), 10, patch=2)))


@pytest.mark.parametrize("shape", [(3, 8, 12), (1, 4, 4)])
@pytest.mark.parametrize("patch", [1, 2, 4])
def test_entering_is_pixel_unshuffle(shape: tuple[int, int, int], patch: int) -> None:
    host = CNNHost(shape, (4,), 10, pooled=(), patch=patch)
    images = torch.randn(5, 7, *shape)
    entered = host.enter({}, images)
    assert entered.is_contiguous()
    assert tuple(entered.shape) == (7, *host.entered[1:], 5, host.entered[0])
    for row in range(5):
        expected = F.pixel_unshuffle(images[row], patch)
        assert torch.equal(entered[:, :, :, row].permute(0, 3, 1, 2), expected)
        assert torch.equal(host.template().enter(images[row]), expected)


def test_a_strided_first_convolution_is_the_same_network() -> None:
    """The first block's weights, laid out over pixels, give the same answers as a convolution with that stride."""
    network = CNNHost((3, 8, 8), (6,), 10, pooled=(), patch=2).template().double()
    weight = network.blocks[0][0].weight
    strided = F.pixel_shuffle(weight, 2)  # 3x3 patches of 2x2 pixels: a kernel of 6x6
    images = torch.randn(4, 3, 8, 8, dtype=torch.float64)
    expected = F.conv2d(images, strided, stride=2, padding=2)
    torch.testing.assert_close(network.blocks[0][0](network.enter(images)), expected, rtol=0, atol=1e-12)


def test_rows_trained_together_answer_as_plain_networks() -> None:
    population = build("digits_patched", ROWS, live_units=some_lesions("digits_patched", ROWS))
    grow(population, assortment(population))
    unsilence(population)
    train_epoch(population, minibatches("digits_patched", population))
    inputs, _ = validation("digits_patched", population)
    answers = logits(population, inputs)
    for row in range(ROWS):
        torch.testing.assert_close(export_host(population, row)(inputs), answers[row], rtol=0.0, atol=1e-11)
