"""Film one scripted episode: `python benchmarks/episode_gif.py` writes docs/episode.gif and docs/episode.png.

The instance has one lesioned block; the script grafts a seed beside it, blends it in and fossilises it.
"""

import argparse
from pathlib import Path

import gymnasium
import numpy as np
from esper_env import HEADS, EsperEnv, Op
from numpy.typing import NDArray
from PIL import Image

DOCS = Path(__file__).parent.parent / "docs"
SEED, FIRST_STEP = 4, 4
BLUEPRINT = 3  # wide_mlp
FRAME_MS, LAST_FRAME_MS = 350, 3000
COLORS = 255
STRIP_WIDTH = 1400
Frame = NDArray[np.uint8]


def script(env: EsperEnv, step: int, slot: int) -> dict[str, int]:
    """Plant at FIRST_STEP, then do whatever leads on as soon as it is legal."""
    masks = env.legality()["action_mask_by_op"]
    wanted = (Op.GERMINATE,) if step == FIRST_STEP else (Op.ADVANCE, Op.FOSSILIZE)
    legal = [op for op in wanted if masks["op"][0, op] and masks["slot"][op, slot]]
    return dict(zip(HEADS, (int(legal[0]) if legal else int(Op.WAIT), slot, BLUEPRINT, 0, 1), strict=True))


def make(render_mode: str | None) -> EsperEnv:
    """The environment with exactly one block lesioned down to one unit."""
    made = gymnasium.make(
        "Esper-v0", render_mode=render_mode, lesion_weights=(0, 1, 0), live_units=(1, 1), disable_env_checker=True
    )
    env = made.unwrapped
    assert isinstance(env, EsperEnv)
    return env


def play(seed: int) -> tuple[list[Frame], list[Op]]:
    """The frames of the episode, and what was done before each, beside the same instance left alone."""
    env, beside = make("rgb_array"), make(None)
    for each in (env, beside):
        each.reset(seed=seed)
    slot = int(np.argmin(env.row.live_units[0]))
    frames, ops, over = [env.render()], [Op.WAIT], False
    while not over:
        action = script(env, len(ops) - 1, slot)
        _, _, over, _, info = env.step(action)
        *_, alone = beside.step(dict.fromkeys(HEADS, 0))
        frames.append(env.render())
        ops.append(Op(action["op"]))
        print(f"step {len(ops) - 1:2d}  {ops[-1].name:<9}  metric {info['metric']:.3f}, alone {alone['metric']:.3f}")
    return frames, ops


def write_gif(frames: list[Frame], path: Path) -> None:
    """An endless film with one palette."""
    palette = Image.fromarray(np.concatenate(frames[::2])).quantize(COLORS, method=Image.Quantize.MAXCOVERAGE)
    images = [Image.fromarray(frame).quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    times = [FRAME_MS] * (len(images) - 1) + [LAST_FRAME_MS]
    images[0].save(path, save_all=True, append_images=images[1:], duration=times, loop=0, optimize=True)


def write_strip(frames: list[Frame], ops: list[Op], path: Path) -> None:
    """Six frames: the first, the decisions, the middle of the ramp, and the last."""
    planted, advanced, fossilized = (ops.index(op) for op in (Op.GERMINATE, Op.ADVANCE, Op.FOSSILIZE))
    chosen = (0, planted, advanced, (advanced + fossilized) // 2, fossilized, len(frames) - 1)
    pairs = zip(chosen[::2], chosen[1::2], strict=True)
    image = Image.fromarray(np.concatenate([np.concatenate([frames[i], frames[j]], axis=1) for i, j in pairs]))
    size = (STRIP_WIDTH, round(image.height * STRIP_WIDTH / image.width))
    image.resize(size, Image.Resampling.LANCZOS).save(path, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--out", type=Path, default=DOCS)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    frames, ops = play(arguments.seed)
    write_gif(frames, arguments.out / "episode.gif")
    write_strip(frames, ops, arguments.out / "episode.png")
    for path in sorted(arguments.out.glob("episode.*")):
        print(f"{path}: {path.stat().st_size / 1024:.0f} kB")


if __name__ == "__main__":
    main()
