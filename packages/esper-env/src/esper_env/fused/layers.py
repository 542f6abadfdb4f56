"""Fused layers: the layers of N independent networks as one tensor operation each.

Dense activations are [n, batch, features]; images are [batch, height, width, n, channels], because that is how a
channels-last grouped convolution lies in memory, so no layer copies its input. Parameters are [n, ...], input-major
for dense weights.
"""

from collections.abc import Callable
from math import log

import torch
import torch.nn.functional as F
from torch import Tensor

Metric = Callable[[Tensor, Tensor], Tensor]  # a score in [0, 1] per model from logits and labels


def dense(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear layer per model: [n, batch, i] with weights [n, i, o], added to a bias [n, 1, o] or [n, batch, o]."""
    if bias is None:
        return torch.bmm(x, weight)
    return torch.baddbmm(bias, x, weight)


def _as_grouped(x: Tensor) -> Tensor:
    """[batch, h, w, n, c] as the channels-last tensor [batch, n*c, h, w] over the same memory."""
    return x.flatten(3).permute(0, 3, 1, 2)


def _from_grouped(x: Tensor, n: int) -> Tensor:
    batch, channels, height, width = x.shape
    return x.permute(0, 2, 3, 1).reshape(batch, height, width, n, channels // n)


def convolution(x: Tensor, weight: Tensor, bias: Tensor | None = None, groups: int = 1) -> Tensor:
    """A same-size convolution per model: [batch, h, w, n, i] with weights [n, o, i / groups, k, k]."""
    n, kernel = weight.shape[0], weight.shape[-1]
    flat_bias = None if bias is None else bias.flatten()
    if x.stride(3) == 0 and groups == 1:  # all models read the same images, so one group serves them
        x, n_groups = x[:, :, :, :1], 1
    else:
        n_groups = n * groups
    out = F.conv2d(_as_grouped(x), weight.flatten(0, 1), flat_bias, padding=kernel // 2, groups=n_groups)
    return _from_grouped(out.contiguous(memory_format=torch.channels_last), n)


def leaky_group_norm(x: Tensor, groups: int, weight: Tensor, bias: Tensor, leak: float) -> Tensor:
    """Group normalisation per model of [batch, h, w, n, c], affine by [n, c], and a leaky activation in its place."""
    normal = F.group_norm(_as_grouped(x), x.shape[3] * groups, weight.flatten(), bias.flatten())
    return _from_grouped(F.leaky_relu(normal, leak, inplace=True), x.shape[3])


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    """Layer normalisation over the last axis of [n, ..., features], affine per model."""
    shape = (weight.shape[0],) + (1,) * (x.dim() - 2) + (weight.shape[1],)
    return torch.addcmul(bias.view(shape), F.layer_norm(x, x.shape[-1:], eps=epsilon), weight.view(shape))


def normed_dense(
    x: Tensor, scale: Tensor, shift: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float
) -> Tensor:
    """A layer norm and the dense layer that follows it on [n, batch, i]; scale and shift are the norm's, [n, i]."""
    # The norm's affine part goes into the weights, which are far smaller than activations: the rest is bound by memory.
    offset = torch.bmm(shift.unsqueeze(1), weight)
    normal = F.layer_norm(x, x.shape[-1:], eps=epsilon)
    return dense(normal, weight * scale.unsqueeze(2), offset if bias is None else offset + bias)


def average_pool(x: Tensor, size: int = 2) -> Tensor:
    """Average pooling of [batch, h, w, n, c] by `size` in both directions."""
    return _from_grouped(F.avg_pool2d(_as_grouped(x), size), x.shape[3])


def global_average(x: Tensor) -> Tensor:
    """[batch, h, w, n, c] averaged over space, as dense activations [n, batch, c]."""
    return x.mean(dim=(1, 2)).transpose(0, 1)


def embedding(tokens: Tensor, weight: Tensor) -> Tensor:
    """A table per model: tokens [n, batch, length] with weights [n, vocabulary, features]."""
    n, vocabulary, features = weight.shape
    offset = torch.arange(n, device=tokens.device).view(n, 1, 1) * vocabulary
    return F.embedding(tokens + offset, weight.reshape(n * vocabulary, features))


def causal_attention(projected: Tensor, heads: int) -> Tensor:
    """Multi-head attention per model: [n, batch, length, 3 * features], queries, keys, values by heads, to features."""
    parts, length = projected.flatten(0, 1).unflatten(2, (3 * heads, -1)).unbind(2), projected.shape[2]
    future = projected.new_full((length, length), -torch.inf).triu(1)
    mixed = []
    # A product per head reads its part where it lies. With torch's kernel for long texts a step takes a tenth longer.
    for query, key, value in zip(parts[:heads], parts[heads : 2 * heads], parts[2 * heads :], strict=True):
        scores = torch.baddbmm(future, query, key.transpose(1, 2), alpha=query.shape[2] ** -0.5)
        mixed.append(torch.bmm(scores.softmax(dim=-1), value))
    return torch.cat(mixed, dim=2).view(*projected.shape[:3], -1)


def cross_entropy(logits: Tensor, labels: Tensor, counted: Tensor | None = None) -> Tensor:
    """Mean cross-entropy of each model, [n], from logits [n, ..., classes] and labels [n, ...].

    Of labels [n, samples] only those that are `counted` may take part.
    """
    # With the classes on a leading axis the softmax kernel vectorises over the batch: four times as fast.
    loss = F.cross_entropy(logits.flatten(1, -2).transpose(1, 2), labels.flatten(1), reduction="none")
    return loss.mean(dim=1) if counted is None else mean_over(loss, counted)


def mean_over(values: Tensor, counted: Tensor) -> Tensor:
    """The mean of each model's values [n, samples] over those that are counted; zero where none is."""
    return torch.where(counted, values, 0.0).sum(dim=1) / counted.sum(dim=1).clamp(min=1)


def accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """Share of right answers of each model, [n]."""
    return right_answers(logits, labels).flatten(1).to(logits.dtype).mean(dim=1)


def right_answers(logits: Tensor, labels: Tensor) -> Tensor:
    """Which answers are right, in the shape of the labels: those to which no other class scores as high."""
    # Twice as fast as argmax, whose kernel does not vectorise over few classes.
    label = labels.unsqueeze(-1)
    others = logits.scatter(-1, label, -torch.inf).amax(dim=-1)
    return logits.gather(-1, label).squeeze(-1) > others


def compression(logits: Tensor, labels: Tensor) -> Tensor:
    """Share of a uniform guess's bits that each model saves, [n]: 1 - bits per answer / log2(classes), zero if none."""
    share = cross_entropy(logits, labels) / log(logits.shape[-1])
    return (1.0 - share).clamp(min=0.0).nan_to_num(nan=0.0)
