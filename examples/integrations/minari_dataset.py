"""Minari: record episodes of random legal actions as a dataset, and read actions and masks back.

python examples/integrations/minari_dataset.py
"""

import os
import tempfile

import gymnasium
from esper_env import HEADS, sample_action

with tempfile.TemporaryDirectory() as folder:
    os.environ["MINARI_DATASETS_PATH"] = folder
    import minari

    env = minari.DataCollector(gymnasium.make("Esper-v0", horizon=10), record_infos=True)
    env.action_space.seed(0)
    for seed in range(2):
        _, info = env.reset(seed=seed)
        over = False
        while not over:
            _, _, over, _, info = env.step(sample_action(env.action_space, info))
    env.create_dataset("esper/random-v0", algorithm_name="random", description="Random legal actions in Esper-v0")
    dataset = minari.load_dataset("esper/random-v0")
    for episode in dataset:
        legal = episode.infos["action_mask_by_op"]["slot"]
        slots, ops = episode.actions["slot"], episode.actions["op"]
        assert all(legal[step, ops[step], slots[step]] for step in range(len(episode)))
    print(f"{dataset.total_episodes} episodes, {dataset.total_steps} steps, heads {', '.join(HEADS)}")
