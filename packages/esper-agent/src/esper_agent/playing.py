"""The command `esper-agent play`: one episode of a trained agent, in the terminal or as a film."""

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from esper_env import EsperEnv
from esper_env.config import INSTANCE_SETS
from esper_env.files import replacing
from numpy.typing import NDArray
from PIL import Image

from esper_agent.ppo import FactoredRecurrentPPO
from esper_agent.runs.directory import RunConfig, RunError
from esper_agent.runs.training import find_agent

PAUSE = 0.2  # seconds between two pictures in a terminal
FRAME_MS, LAST_FRAME_MS = 350, 3000
COLORS = 255
Frame = NDArray[np.uint8]


def add_play(parser: argparse.ArgumentParser) -> None:
    """Give a parser the arguments of the command."""
    parser.add_argument("--gif", type=Path, metavar="FILE", help="write a film instead of text")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the episode (0)")
    held_out = INSTANCE_SETS[1:]
    text = f"instances that no training sees: {' or '.join(held_out)} ({held_out[0]})"
    parser.add_argument("--instances", choices=held_out, default=held_out[0], metavar="SET", help=text)
    parser.set_defaults(command=play)


def play(options: argparse.Namespace) -> None:
    """Play one episode and show every step."""
    config, checkpoint = find_agent(options.path, options.pretrained, trusted=options.trust)
    agent = FactoredRecurrentPPO.load(checkpoint, device=options.device or "cpu")
    env = make_env(config, "rgb_array" if options.gif else "ansi", instances=options.instances, **dict(options.env))
    pictures = episode(agent, env, options.seed)
    if options.gif:
        try:
            write_gif(list(pictures), options.gif)
        except OSError as error:
            raise RunError(f"cannot write {options.gif}: {error}") from error
        print(f"film: {options.gif}", flush=True)
    else:
        show(pictures)
    row = env.unwrapped
    assert isinstance(row, EsperEnv)
    test = row.evaluate_test().committed.item()
    print(f"metric of the committed network on the test split: {test:.3f}", flush=True)


def make_env(config: RunConfig, render_mode: str, **changes: Any) -> gymnasium.Env[Any, Any]:
    """The environment of an agent, with pictures.

    Raises:
        RunError: when it is not one of Esper's, or cannot be made so.
    """
    try:
        made = gymnasium.make(
            config.env_id, render_mode=render_mode, disable_env_checker=True, **{**config.env, **changes}
        )
    except (ValueError, TypeError, gymnasium.error.Error) as error:
        raise RunError(f"cannot play {config.env_id}: {error}") from error
    return made


def episode(agent: FactoredRecurrentPPO, env: gymnasium.Env[Any, Any], seed: int) -> Iterator[Any]:
    """What the environment draws of every step, from the beginning to the end."""
    observation, info = env.reset(seed=seed)
    state, over, start = None, False, True
    yield env.render()
    while not over:
        action, state = agent.predict(observation, state, np.array([start]), True, info)
        observation, _, terminated, truncated, info = env.step(action)
        over, start = terminated or truncated, False
        yield env.render()


def show(pictures: Iterator[str]) -> None:
    """Print texts one after the other; in a terminal each takes the place of the one before."""
    animated, lines = sys.stdout.isatty(), 0
    for text in pictures:
        if animated and lines:
            time.sleep(PAUSE)
            print(f"\x1b[{lines}F\x1b[J", end="")
        lines = text.rstrip("\n").count("\n") + 1
        print(text.rstrip("\n"), end="\n" if animated else "\n\n", flush=True)


def write_gif(frames: list[Frame], path: Path) -> None:
    """An endless film with one palette."""
    palette = Image.fromarray(np.concatenate(frames[::2])).quantize(COLORS, method=Image.Quantize.MAXCOVERAGE)
    images = [Image.fromarray(frame).quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    times = [FRAME_MS] * (len(images) - 1) + [LAST_FRAME_MS]
    with replacing(path) as file:
        images[0].save(
            file, format="GIF", save_all=True, append_images=images[1:], duration=times, loop=0, optimize=True
        )
