"""Tries both packages with the lowest or newest versions that they allow, in a fresh venv (`make lowest`, `newest`).

python tests/check_versions.py lowest|newest
"""

import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = [ROOT / "packages" / name for name in ("esper-env", "esper-agent")]
EXTRAS = {"esper-env": ("render", "png"), "esper-agent": ("sb3", "report")}

SMOKE = """
import gymnasium, esper_env
from esper_agent import FactoredRecurrentPPO
from esper_agent.baselines.sb3_env import EsperVecEnv
from esper_agent.report import write_report
from esper_env.wrappers import VectorDiscreteActions, VectorMultiDiscreteActions
from gymnasium.utils.env_checker import check_env
from sb3_contrib import MaskablePPO
from stable_baselines3.common.vec_env import VecMonitor

check_env(gymnasium.make("Esper-v0", horizon=3).unwrapped)
for wrapper in (VectorDiscreteActions, VectorMultiDiscreteActions):
    wrapper(gymnasium.make_vec("Esper-v0", num_envs=2)).reset(seed=0)
env = gymnasium.make_vec("Esper-v0", num_envs=2, autoreset_mode="same_step", output="torch", horizon=8)
FactoredRecurrentPPO(env, n_steps=8, sequence_length=8, n_minibatches=1, seed=0).learn(32)
vec_env = VecMonitor(EsperVecEnv("Esper-v0", num_envs=2, actions="discrete", horizon=8))
MaskablePPO("MlpPolicy", vec_env, n_steps=8, batch_size=8, gamma=vec_env.get_attr("gamma")[0]).learn(32)
print("runs with these versions")
"""


def requirements(package: Path) -> list[str]:
    """What a package declares, with the extras that are tried here."""
    project = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [project["optional-dependencies"][extra] for extra in EXTRAS[package.name]]
    return sum(extras, project["dependencies"])


def lowest(requirement: str) -> str | None:
    """`name>=1.2,<2` to `name==1.2`; nothing for what has no lower bound."""
    found = re.match(r"([\w-]+)(?:\[.*\])?>=([^,]+)", requirement)
    return f"{found[1]}=={found[2]}" if found else None


def pinned(name: str) -> str:
    """A line of constraints.txt: an open range of torch may pull gigabytes of accelerator packages."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith(f"{name}=="))


def constraints(which: str) -> list[str]:
    """One exact version per declared dependency, or torch's alone."""
    found = [pinned("torch")]
    if which == "lowest":
        declared = [lowest(requirement) for package in PACKAGES for requirement in requirements(package)]
        own = ("torch", *(package.name for package in PACKAGES))
        found += sorted({line for line in declared if line and line.split("==")[0] not in own})
    return found


def run(*command: str | Path) -> None:
    """Run a command and stop with its exit code if it fails."""
    code = subprocess.run([str(part) for part in command], check=False).returncode
    if code:
        sys.exit(code)


def main() -> None:
    """Install and try."""
    which = sys.argv[1]
    folder = ROOT / "dist" / "versions" / which
    venv.create(folder, with_pip=True, clear=True)
    exact = folder / "constraints.txt"
    exact.write_text("\n".join(constraints(which)) + "\n", encoding="utf-8")
    print(exact.read_text(encoding="utf-8"), end="", flush=True)
    python, options = folder / "bin" / "python", ("--quiet", "--disable-pip-version-check", "-c", exact)
    wanted = [f"{package}[{','.join(EXTRAS[package.name])}]" for package in PACKAGES]
    run(python, "-m", "pip", "install", *options, *wanted)
    run(python, "-m", "pip", "check")
    run(python, "-m", "pip", "list", "--disable-pip-version-check", "--exclude", "pip")
    run(python, "-W", "error::UserWarning:esper_env", "-c", SMOKE)


if __name__ == "__main__":
    main()
