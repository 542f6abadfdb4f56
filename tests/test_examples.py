"""Every example runs by the command it starts with, and the README shows the short ones as they are."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from check_integrations import HEAVY
from esper_agent.baselines.scripted import NeverGrow
from esper_agent.evaluation.paired import make_test_env, play
from precision import ulps

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SINGLE_FILE = ROOT / "examples" / "ppo_single_file.py"
LIGHT = ("gymnasium_wrappers", "masked_recurrent_ppo", "optuna_search", "sb3_all")
RECIPES = sorted((ROOT / "examples" / "integrations").glob("*.py"))
REAL = [path for path in EXAMPLES if path.stem in ("grow_my_cnn", "grow_my_transformer")]  # minutes, or real data
SHORT = [path for path in EXAMPLES if path not in (SINGLE_FILE, *REAL)]


def name_of(path: Path) -> str:
    return path.stem


def command_of(path: Path) -> list[str]:
    """The command in the second paragraph of the docstring."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert docstring is not None
    return docstring.split("\n\n")[1].split()


def body_of(path: Path) -> str:
    """What follows the docstring."""
    return path.read_text(encoding="utf-8").split('"""', 2)[2].strip()


def single_file() -> ModuleType:
    return module_of(SINGLE_FILE)


def module_of(path: Path) -> ModuleType:
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[path.stem] = module  # dataclasses look their module up
    specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", EXAMPLES, ids=name_of)
def test_an_example_starts_with_the_command_that_runs_it(path: Path) -> None:
    assert command_of(path)[:2] == ["python", f"examples/{path.name}"]


def test_the_readme_shows_the_short_examples_as_they_are() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"\(examples/(\w+)\.py\)[^`]*```python\n(.*?)```", readme, flags=re.DOTALL)
    assert {name: code.strip() for name, code in shown} == {path.stem: body_of(path) for path in SHORT}
    assert readme.count("```python") == len(shown)
    assert all(f"(examples/{path.name})" in readme for path in (SINGLE_FILE, *REAL))


def test_the_page_about_growing_shows_the_readmes_ten_added_lines() -> None:
    body = body_of(ROOT / "examples" / "grow_my_network.py")
    assert f"```python\n{body}\n```" in (ROOT / "docs" / "growing.md").read_text(encoding="utf-8")
    assert sum(line.endswith("  #") for line in body.splitlines()) <= 10


def test_an_example_without_its_data_names_the_command_that_brings_them(tmp_path: Path) -> None:
    settings = {**os.environ, "ESPER_DATA": str(tmp_path)}
    command = [sys.executable, str(ROOT / "examples" / "grow_my_cnn.py")]
    done = subprocess.run(command, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "`esper-env data fetch fashion_mnist`" in done.stderr


def test_a_real_network_grows_by_a_pretrained_policy(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    example = module_of(ROOT / "examples" / "grow_my_transformer.py")
    for name, few in {"EPOCHS": 3, "MINIBATCHES": 2, "VAL": 16, "TEST": 16}.items():
        monkeypatch.setattr(example, name, few)
    example.main()
    assert "; growth is over" in capsys.readouterr().out.splitlines()[2]


@pytest.mark.slow
@pytest.mark.parametrize("path", SHORT, ids=name_of)
def test_a_short_example_runs(path: Path) -> None:
    command = [sys.executable, "-W", "error::UserWarning:esper_env", *command_of(path)[1:]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", LIGHT)
def test_a_recipe_of_a_light_library_runs(name: str) -> None:
    path = ROOT / "examples" / "integrations" / f"{name}.py"
    command = [sys.executable, "-W", "error::UserWarning:esper_env", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_every_recipe_is_run_somewhere_and_stands_on_its_page() -> None:
    heavy = [recipe for _, recipes in HEAVY.values() for recipe in recipes]
    assert sorted([*LIGHT, *heavy]) == [path.stem for path in RECIPES]
    page = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
    for path in RECIPES:
        assert command_of(path) == ["python", f"examples/integrations/{path.name}"]
        assert f"(../examples/integrations/{path.name})" in page


def test_the_single_file_is_short_and_needs_no_agent() -> None:
    source = SINGLE_FILE.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 300
    imported = re.findall(r"^(?:import|from) (\w+)", source, flags=re.MULTILINE)
    assert set(imported) - sys.stdlib_module_names == {"torch", "gymnasium", "numpy", "esper_env"}


def test_the_single_file_learns_from_the_policy_that_acted() -> None:
    example = single_file()
    args = example.Args(num_envs=3, num_steps=8)
    env = gymnasium.make_vec("Esper-v0", num_envs=3, horizon=5, autoreset_mode="same_step", output="torch")
    torch.manual_seed(0)
    agent = example.Agent(env, args.wait_bias)
    now = example.Now.of(*env.reset(seed=0), torch.ones(3, dtype=torch.bool), agent.initial_state(3))
    agent.take_in(now.observation[None])
    rollout, _ = example.collect(agent, env, args, now)
    assert rollout.starts.nonzero()[:, 0].unique().tolist() == [0, 5]  # memory is emptied within the rollout
    batch = rollout.select(torch.tensor([2, 0]))
    choice, _, _ = agent(batch.observations, batch.masks, batch.starts, batch.state, batch.actions)
    assert ulps(choice.log_prob - batch.log_prob, batch.log_prob) < 8


@pytest.mark.slow
def test_the_single_file_learns_that_growing_pays() -> None:
    example = single_file()
    returns = example.evaluate(example.train(example.Args()), "Esper-v0", episodes=128, seed=10_000)
    env = make_test_env("Esper-v0", 128, instances="validation")
    # The plateau rule gets 0.437, which one of ten seeds does not pass.
    assert np.mean(returns) > np.mean(play(NeverGrow(env), env, 10_000).discounted_return)
