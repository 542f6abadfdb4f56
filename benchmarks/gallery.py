"""Film one episode of the plateau rule on every rung: `python benchmarks/gallery.py` writes docs/gallery/."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from episode_gif import DOCS, Frame, write_gif
from esper_agent.baselines.scripted import GrowOnPlateau
from esper_agent.evaluation.paired import make_test_env
from PIL import Image

RUNGS = (
    "Esper-v0", "Esper-Deep-v0", "Esper-Partial-v0", "Esper-Shapes-v0", "Esper-Stream-v0", "Esper-CNN-v0",
    "Esper-Text-v0",
)  # fmt: skip
SEED, SIZE = 4, (640, 360)


def film(env_id: str, seed: int) -> list[Frame]:
    """The frames of a validation instance that the rule plays, up to its last decision."""
    env = make_test_env(env_id, 1, instances="validation", render_mode="rgb_array")
    rule, frames, over = GrowOnPlateau(env), list[Frame](), False
    observations, infos = env.reset(seed=seed)
    state, starts = None, np.ones(1, dtype=bool)
    while not over:
        frames.append(small(env.render()))
        actions, state = rule.predict(observations, state, starts, True, infos)
        observations, _, terminated, truncated, infos = env.step(actions)
        starts, over = terminated | truncated, bool((terminated | truncated)[0])
    return frames


def small(frames: Any) -> Frame:
    return np.asarray(Image.fromarray(frames[0]).resize(SIZE, Image.Resampling.LANCZOS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rungs", nargs="+", default=RUNGS, metavar="ENV_ID")
    parser.add_argument("--out", type=Path, default=DOCS / "gallery")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for env_id in arguments.rungs:
        path = arguments.out / f"{env_id}.gif"
        write_gif(film(env_id, SEED), path)
        print(f"{path.name}: {path.stat().st_size / 1024:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
