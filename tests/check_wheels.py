"""Tries each wheel in fresh venvs, alone and with its extras, and runs its README there (`make release-check`).

python tests/check_wheels.py WHEEL_DIR CONSTRAINTS
"""

import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Tried:
    """What a package must do, alone and with extras."""

    smoke: str
    extras: str
    shown: tuple[str, ...] = ()  # other packages that its README shows


TRIED = {
    "esper_env": Tried(ENV_SMOKE, "render,png", ("sb3-contrib",)),
    "esper_agent": Tried(AGENT_SMOKE, "sb3,report,tune,offline"),
}


def run(*command: str | Path, cwd: Path | None = None) -> None:
    """Run a command and stop with its output if it fails."""
    result = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{result.stdout}{result.stderr}")
    print(result.stdout.strip(), flush=True)


def check_contents(wheel: Path) -> str:
    """A wheel carries its licence, its type marker and complete metadata; gives back its README."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
    assert any(name.endswith("licenses/LICENSE") for name in names), f"{wheel.name} has no licence file"
    assert any(name.endswith("py.typed") for name in names), f"{wheel.name} has no py.typed"
    for field in ("Summary:", "License-Expression: MIT", "Requires-Python:", "Description-Content-Type: text/markdown"):
        assert field in metadata, f"{wheel.name} lacks {field}"
    return metadata.split("\n\n", 1)[1]


def try_alone(wheel: Path, constraints: Path, tried: Tried, readme: str) -> None:
    """Install a wheel in a fresh venv, with sibling wheels as the only extra source; then its extras."""
    code = "\n".join(re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL))
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        # torch first and pinned: an open range may pull gigabytes of accelerator packages.
        pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", constraints)
        run(*pip, "torch")
        run(*pip, "--find-links", wheel.parent, wheel)
        run(python, "-W", "error::UserWarning:esper_env", "-c", tried.smoke)
        run(*pip, "--find-links", wheel.parent, f"{wheel}[{tried.extras}]", *tried.shown)
        run(python, "-m", "pip", "check", "--disable-pip-version-check")
        run(python, "-W", "error::UserWarning:esper_env", "-c", code, cwd=Path(folder))
    print(f"{wheel.name}: the README's {code.count(chr(10))} lines of Python run with [{tried.extras}]", flush=True)


def main() -> None:
    """Check every wheel of a directory."""
    wheels, constraints = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    for prefix, tried in TRIED.items():
        (wheel,) = wheels.glob(f"{prefix}-*.whl")
        try_alone(wheel, constraints, tried, check_contents(wheel))


if __name__ == "__main__":
    main()
