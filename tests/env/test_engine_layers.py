"""Every fused layer equals a loop over plain torch.nn.functional, in values and in gradients."""

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from esper_env.fused import layers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

TOLERANCE = 1e-10
SIZES = st.integers(1, 5)
MODELS = st.integers(1, 6)
SEEDS = st.integers(0, 1 << 16)
BRIEF = settings(max_examples=50, deadline=None)


def drawn(seed: int, *shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


def assert_same(fused: Tensor, plain: Tensor, leaves: list[Tensor]) -> None:
    """Equal values, and equal gradients of a random projection."""
    assert fused.shape == plain.shape
    torch.testing.assert_close(fused, plain, rtol=TOLERANCE, atol=TOLERANCE)
    weights = torch.randn(plain.shape, generator=torch.Generator().manual_seed(1), dtype=plain.dtype)
    fused_grads = torch.autograd.grad((fused * weights).sum(), leaves)
    plain_grads = torch.autograd.grad((plain * weights).sum(), leaves)
    for ours, theirs in zip(fused_grads, plain_grads, strict=True):
        assert theirs.abs().sum() > 0
        torch.testing.assert_close(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)


def image_loop(layer: Callable[..., Tensor], x: Tensor, *params: Tensor) -> Tensor:
    """A layer on [batch, channels, h, w] for each model of [batch, h, w, n, channels]."""
    each = [layer(x[:, :, :, i].permute(0, 3, 1, 2), *(p[i] for p in params)) for i in range(x.shape[3])]
    return torch.stack([y.permute(0, 2, 3, 1) for y in each], dim=3)


@BRIEF
@given(MODELS, SIZES, SIZES, SIZES, st.booleans(), SEEDS)
def test_dense(n: int, batch: int, inputs: int, outputs: int, with_bias: bool, seed: int) -> None:
    x, weight, bias = drawn(seed, (n, batch, inputs), (n, inputs, outputs), (n, 1, outputs))
    biases = bias.squeeze(1) if with_bias else [None] * n
    plain = torch.stack([F.linear(x[i], weight[i].T, biases[i]) for i in range(n)])
    leaves = [x, weight, bias] if with_bias else [x, weight]
    assert_same(layers.dense(x, weight, bias if with_bias else None), plain, leaves)


@BRIEF
@given(MODELS, SIZES, st.sampled_from([1, 3, 5]), st.integers(1, 3), SIZES, SIZES, st.booleans(), SEEDS)
def test_convolution(
    n: int, batch: int, kernel: int, groups: int, inputs: int, outputs: int, with_bias: bool, seed: int
) -> None:
    channels = (groups * inputs, groups * outputs)
    x, weight, bias = drawn(
        seed, (batch, 4, 6, n, channels[0]), (n, channels[1], inputs, kernel, kernel), (n, channels[1])
    )

    def one(x: Tensor, weight: Tensor, *bias: Tensor) -> Tensor:
        return F.conv2d(x, weight, *bias, padding="same", groups=groups)

    params = [weight, bias] if with_bias else [weight]
    assert_same(layers.convolution(x, *params, groups=groups), image_loop(one, x, *params), [x, *params])


@BRIEF
@given(MODELS, SIZES, st.integers(1, 3), st.integers(1, 3), SEEDS)
def test_leaky_group_norm(n: int, batch: int, groups: int, per_group: int, seed: int) -> None:
    channels = groups * per_group
    x, weight, bias = drawn(seed, (batch, 3, 4, n, channels), (n, channels), (n, channels))
    plain = image_loop(lambda x, w, b: F.leaky_relu(F.group_norm(x, groups, w, b), 0.05), x, weight, bias)
    assert_same(layers.leaky_group_norm(x, groups, weight, bias, 0.05), plain, [x, weight, bias])


@BRIEF
@given(MODELS, st.lists(SIZES, min_size=1, max_size=3), st.integers(3, 7), st.sampled_from([1e-5, 0.1]), SEEDS)
def test_layer_norm(n: int, middle: list[int], features: int, epsilon: float, seed: int) -> None:
    x, weight, bias = drawn(seed, (n, *middle, features), (n, features), (n, features))
    plain = torch.stack([F.layer_norm(x[i], (features,), weight[i], bias[i], epsilon) for i in range(n)])
    assert_same(layers.layer_norm(x, weight, bias, epsilon), plain, [x, weight, bias])


@BRIEF
@given(MODELS, SIZES, st.integers(3, 7), SIZES, st.booleans(), SEEDS)
def test_normed_dense(n: int, batch: int, inputs: int, outputs: int, with_bias: bool, seed: int) -> None:
    x, scale, shift, weight, bias = drawn(
        seed, (n, batch, inputs), (n, inputs), (n, inputs), (n, inputs, outputs), (n, 1, outputs)
    )
    normal = [F.layer_norm(x[i], (inputs,), scale[i], shift[i], 0.01) for i in range(n)]
    plain = torch.stack([F.linear(normal[i], weight[i].T, bias[i, 0] if with_bias else None) for i in range(n)])
    leaves = [x, scale, shift, weight, bias] if with_bias else [x, scale, shift, weight]
    assert_same(layers.normed_dense(x, scale, shift, weight, bias if with_bias else None, 0.01), plain, leaves)


@BRIEF
@given(MODELS, SIZES, st.integers(2, 3), st.integers(3, 7), st.integers(3, 7), SIZES, SEEDS)
def test_average_pool(n: int, batch: int, size: int, height: int, width: int, channels: int, seed: int) -> None:
    (x,) = drawn(seed, (batch, height, width, n, channels))
    assert_same(layers.average_pool(x, size), image_loop(lambda x: F.avg_pool2d(x, size), x), [x])


@BRIEF
@given(MODELS, SIZES, SIZES, SIZES, SIZES, SEEDS)
def test_global_average(n: int, batch: int, height: int, width: int, channels: int, seed: int) -> None:
    (x,) = drawn(seed, (batch, height, width, n, channels))
    each = [F.adaptive_avg_pool2d(x[:, :, :, i].permute(0, 3, 1, 2), 1).flatten(1) for i in range(n)]
    assert_same(layers.global_average(x), torch.stack(each), [x])


@BRIEF
@given(MODELS, SIZES, SIZES, SIZES, SIZES, SEEDS)
def test_embedding(n: int, batch: int, length: int, vocabulary: int, features: int, seed: int) -> None:
    (weight,) = drawn(seed, (n, vocabulary, features))
    tokens = torch.randint(vocabulary, (n, batch, length), generator=torch.Generator().manual_seed(seed))
    plain = torch.stack([F.embedding(tokens[i], weight[i]) for i in range(n)])
    assert_same(layers.embedding(tokens, weight), plain, [weight])


@BRIEF
@given(MODELS, SIZES, st.integers(2, 5), st.integers(1, 3), SIZES, SEEDS)
def test_causal_attention(n: int, batch: int, length: int, heads: int, width: int, seed: int) -> None:
    query, key, value = drawn(seed, *[(n, batch, length, heads * width)] * 3)
    future = torch.ones(length, length, dtype=torch.bool).triu(1)

    def one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.transpose(1, 2) / width**0.5
        return scores.masked_fill(future, float("-inf")).softmax(dim=-1) @ v

    parts = [slice(head * width, (head + 1) * width) for head in range(heads)]
    each = [torch.cat([one(query[i, ..., p], key[i, ..., p], value[i, ..., p]) for p in parts], -1) for i in range(n)]
    fused = layers.causal_attention(torch.cat([query, key, value], dim=-1), heads)
    assert_same(fused, torch.stack(each), [query, key, value])


@BRIEF
@given(MODELS, SIZES, st.lists(SIZES, max_size=1), st.integers(2, 5), SEEDS)
def test_cross_entropy_accuracy_and_compression(n: int, batch: int, middle: list[int], classes: int, seed: int) -> None:
    shape = (n, batch, *middle)
    (logits,) = drawn(seed, (*shape, classes))
    labels = torch.randint(classes, shape, generator=torch.Generator().manual_seed(seed))
    flat, expected = logits.reshape(n, -1, classes), labels.reshape(n, -1)
    plain = torch.stack([F.cross_entropy(flat[i], expected[i]) for i in range(n)])
    assert_same(layers.cross_entropy(logits, labels), plain, [logits])
    right = torch.stack([(flat[i].argmax(-1) == expected[i]).double().mean() for i in range(n)])
    torch.testing.assert_close(layers.accuracy(logits, labels), right)
    bits = -logits.softmax(-1).gather(-1, labels.unsqueeze(-1)).log2().flatten(1).mean(dim=1)
    torch.testing.assert_close(layers.compression(logits, labels), (1 - bits / np.log2(classes)).clamp(min=0))


def test_compression_is_a_share_of_bits_and_never_leaves_its_bounds() -> None:
    shares = torch.tensor([[[0.5, 0.25, 0.125, 0.125], [0.25, 0.25, 0.25, 0.25]]])  # one bit, two bits; blind: two
    torch.testing.assert_close(layers.compression(shares.log(), torch.tensor([[0, 0]])), torch.tensor([0.25]))
    extreme = torch.tensor([[[float("nan"), 0.0]], [[1e30, -1e30]], [[-1e30, 1e30]]])
    assert layers.compression(extreme, torch.zeros(3, 1, dtype=torch.int64)).tolist() == [0.0, 1.0, 0.0]
