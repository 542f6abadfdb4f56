"""The JAX side of `peers.py`: `jit(vmap)` of the same training steps. Run by it, in an environment of its own.

    python benchmarks/peers_jax.py '{"host": "mlp", "n": 64, "seeds": 0, "minibatches": 8, "batch": 32, "seconds": 1.0}'

JAX compiles for fixed shapes, so every slot of a host with seeds holds a seed of the largest hidden width, of which a
mask leaves each its own.
"""

import json
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp

WIDTHS, INPUTS, CLASSES, CHANNELS, LEAK, GAIN = (24, 24, 24), 64, 10, (6, 8, 8), 0.05, 0.5
HIDDEN = (2, 6, 16, 32, 12)  # of the blueprints, in turn; padded to the largest
LEARNING_RATE, MOMENTUM, POOL = 0.05, 0.9, 1000
Tree = Any


def matrix(key: Any, i: int, o: int) -> Any:
    return jax.random.normal(key, (i, o)) / i**0.5


def mlp(key: Any, seeds: int, number: Any) -> Tree:
    """Parameters of one MLP and of its first seeds."""
    keys = iter(jax.random.split(key, 16))
    pairs = list(zip((INPUTS, *WIDTHS), (*WIDTHS, CLASSES), strict=True))
    layers = [(matrix(next(keys), i, o), jnp.zeros(o)) for i, o in pairs]
    widest = max(HIDDEN)
    grafts = [
        (matrix(next(keys), i, widest), jnp.zeros(widest), matrix(next(keys), widest, o), jnp.zeros(o), jnp.ones(o))
        for i, o in pairs[:seeds]
    ]
    masks = [jnp.arange(widest) < jnp.array(HIDDEN)[(number + slot) % len(HIDDEN)] for slot in range(seeds)]
    return {"layers": layers, "seeds": grafts}, masks


def mlp_logits(params: Tree, masks: Tree, x: Any) -> Any:
    for slot, (weight, bias) in enumerate(params["layers"][:-1]):
        h = jax.nn.leaky_relu(x @ weight + bias, LEAK)
        if slot < len(params["seeds"]):
            down, first, up, second, scale = params["seeds"][slot]
            h = h + GAIN * scale * ((jax.nn.relu(x @ down + first) * masks[slot]) @ up + second)
        x = h
    weight, bias = params["layers"][-1]
    return x @ weight + bias


def cnn(key: Any) -> Tree:
    keys = iter(jax.random.split(key, 8))
    pairs = zip((1, *CHANNELS), CHANNELS, strict=False)
    blocks = [
        (jax.random.normal(next(keys), (o, i, 3, 3)) / 3, jnp.zeros(o), jnp.ones(o), jnp.zeros(o)) for i, o in pairs
    ]
    return {"blocks": blocks, "head": (matrix(next(keys), CHANNELS[-1], CLASSES), jnp.zeros(CLASSES))}


def cnn_logits(params: Tree, _: Tree, x: Any) -> Any:
    """Convolution, group norm of two groups and a leaky activation per block, pooling between blocks."""
    for index, (weight, bias, scale, shift) in enumerate(params["blocks"]):
        x = jax.lax.conv_general_dilated(x, weight, (1, 1), "SAME") + bias[:, None, None]
        groups = x.reshape(x.shape[0], 2, -1)
        groups = (groups - groups.mean(-1, keepdims=True)) / jnp.sqrt(groups.var(-1, keepdims=True) + 1e-5)
        x = jax.nn.leaky_relu(groups.reshape(x.shape) * scale[:, None, None] + shift[:, None, None], LEAK)
        if index < len(params["blocks"]) - 1:
            x = jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 1, 2, 2), (1, 1, 2, 2), "VALID") / 4
    weight, bias = params["head"]
    return x.mean((2, 3)) @ weight + bias


def epoch_of(logits: Any) -> Any:
    """SGD with momentum over the minibatches of one model."""

    def loss(params: Tree, masks: Tree, x: Any, y: Any) -> Any:
        return -jnp.take_along_axis(jax.nn.log_softmax(logits(params, masks, x)), y[:, None], 1).mean()

    def epoch(params: Tree, velocity: Tree, masks: Tree, index: Any, inputs: Any, labels: Any) -> Tree:
        def step(state: Tree, rows: Any) -> tuple[Tree, None]:
            params, velocity = state
            grads = jax.grad(loss)(params, masks, inputs[rows], labels[rows])
            velocity = jax.tree.map(lambda v, g: MOMENTUM * v + g, velocity, grads)
            return (jax.tree.map(lambda p, v: p - LEARNING_RATE * v, params, velocity), velocity), None

        return jax.lax.scan(step, (params, velocity), index)[0]

    return jax.jit(jax.vmap(epoch, in_axes=(0, 0, 0, 0, None, None)), donate_argnums=(0, 1))


def main() -> None:
    """Milliseconds of processor time per minibatch, of the fastest epoch."""
    case = json.loads(sys.argv[1])
    shape: tuple[int, ...] = (INPUTS,)
    keys, numbers = jax.random.split(jax.random.key(0), case["n"]), jnp.arange(case["n"])
    if case["host"] == "mlp":
        params, masks = jax.vmap(lambda key, number: mlp(key, case["seeds"], number))(keys, numbers)
        epoch = epoch_of(mlp_logits)
    else:
        params, masks = jax.vmap(cnn)(keys), ()
        epoch, shape = epoch_of(cnn_logits), (1, 8, 8)
    inputs = jax.random.normal(jax.random.key(1), (POOL, *shape))
    labels = jax.random.randint(jax.random.key(2), (POOL,), 0, CLASSES)
    index = jax.random.randint(jax.random.key(3), (case["n"], case["minibatches"], case["batch"]), 0, POOL)
    velocity, best, end = jax.tree.map(jnp.zeros_like, params), float("inf"), None
    while end is None or time.perf_counter() < end:
        start = time.process_time()
        params, velocity = jax.block_until_ready(epoch(params, velocity, masks, index, inputs, labels))
        best = min(best, time.process_time() - start)
        end = end or time.perf_counter() + case["seconds"]
    print(best * 1e3 / case["minibatches"])


if __name__ == "__main__":
    main()
