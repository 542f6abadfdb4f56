"""Tries each wheel alone in a fresh venv: metadata, licence, import, a few steps (`make wheels`).

python tests/check_wheels.py WHEEL_DIR CONSTRAINTS
"""

import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ENV_SMOKE = """
import importlib.util
import esper_env, gymnasium
assert importlib.util.find_spec("esper_agent") is None, "esper-env must not need the agent"
env = gymnasium.make_vec("Esper-v0", num_envs=2)
_, infos = env.reset(seed=0)
env.action_space.seed(0)
for _ in range(3):
    _, _, _, _, infos = env.step(env.action_space.sample(esper_env.sample_mask(infos["action_mask"])))
print("esper-env runs alone")
"""
AGENT_SMOKE = """
import esper_env, gymnasium
from esper_agent import FactoredRecurrentPPO
env = gymnasium.make_vec("Esper-v0", num_envs=2, autoreset_mode="same_step", output="torch", horizon=8)
FactoredRecurrentPPO(env, n_steps=8, sequence_length=8, n_minibatches=1, seed=0).learn(32)
print("esper-agent runs on esper-env's wheel")
"""


def run(*command: str | Path) -> None:
    """Run a command and stop with its output if it fails."""
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{result.stdout}{result.stderr}")
    print(result.stdout.strip())


def check_contents(wheel: Path) -> None:
    """A wheel carries its licence, its type marker and complete metadata."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
    assert any(name.endswith("licenses/LICENSE") for name in names), f"{wheel.name} has no licence file"
    assert any(name.endswith("py.typed") for name in names), f"{wheel.name} has no py.typed"
    for field in ("Summary:", "License-Expression: MIT", "Requires-Python:", "Description-Content-Type: text/markdown"):
        assert field in metadata, f"{wheel.name} lacks {field}"


def try_alone(wheel: Path, wheels: Path, constraints: Path, smoke: str) -> None:
    """Install a wheel in a fresh venv, with sibling wheels as the only extra source, and run a smoke test."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        # torch first and pinned: an open range may pull gigabytes of accelerator packages.
        pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", constraints)
        run(*pip, "torch")
        run(*pip, "--find-links", wheels, wheel)
        run(python, "-W", "error::UserWarning:esper_env", "-c", smoke)


def main() -> None:
    """Check every wheel of a directory."""
    wheels, constraints = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    for prefix, smoke in (("esper_env", ENV_SMOKE), ("esper_agent", AGENT_SMOKE)):
        (wheel,) = wheels.glob(f"{prefix}-*.whl")
        check_contents(wheel)
        try_alone(wheel, wheels, constraints, smoke)


if __name__ == "__main__":
    main()
