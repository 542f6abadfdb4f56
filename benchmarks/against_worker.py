"""One side of `against.py`: plays an id and says how fast. It asks only what every commit offers."""

import sys
import time

import esper_env  # noqa: F401 (registers the ids)
import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray


def choose(mask: NDArray[np.int8], rng: np.random.Generator) -> NDArray[np.int64]:
    """A legal value of each row."""
    return np.asarray(np.argmax(mask * rng.uniform(0.5, 1.0, mask.shape), axis=1))


def main() -> None:
    """Answer each number of vector steps on the standard input with a speed."""
    torch.set_num_threads(1)
    rows = int(sys.argv[2])
    env, rng, every = gymnasium.make_vec(sys.argv[1], num_envs=rows), np.random.default_rng(0), np.arange(rows)
    _, infos = env.reset(seed=0)
    for line in sys.stdin:
        used = 0.0
        for _ in range(int(line)):
            by_op = infos["action_mask_by_op"]
            actions = {"op": choose(by_op["op"][:, 0], rng)}
            actions |= {head: choose(by_op[head][every, actions["op"]], rng) for head in by_op if head != "op"}
            start = time.process_time()
            *_, infos = env.step(actions)
            used += time.process_time() - start
        print(int(line) * rows / used, flush=True)


if __name__ == "__main__":
    main()
