"""Runs the recipes whose libraries are heavy, each library in an environment of its own (`make integrations`).

python tests/check_integrations.py [LIBRARY ...]
"""

import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "examples" / "integrations"
HEAVY = {
    "torchrl": (["torchrl"], ["torchrl_ppo"]),
    "rllib": (["ray[rllib]"], ["rllib_ppo", "rllib_dict_actions"]),
    "tianshou": (["tianshou"], ["tianshou_dqn"]),
    "skrl": (["skrl"], ["skrl_ppo"]),
    "minari": (["minari[hdf5,create]"], ["minari_dataset"]),
    "dask": (["distributed"], ["dask_cluster"]),
    "trackers": (["wandb", "mlflow"], ["trackers"]),
}
LIMIT = 300  # seconds of one recipe


def torch_pin() -> str:
    """The torch of constraints.txt alone: the libraries have pins of their own for everything else."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith("torch=="))


def environment(library: str) -> Path:
    """The Python of a library's environment, which is made unless it is there and complete."""
    folder = ROOT / "dist" / "integrations" / library
    python, complete = folder / "bin" / "python", folder / "complete"
    if not complete.exists():
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", torch_pin()]
        packages = [part for name in ("esper-env", "esper-agent") for part in ("-e", str(ROOT / "packages" / name))]
        subprocess.run([*pip, *HEAVY[library][0], *packages], check=True)
        complete.touch()
    return python


def play(python: Path, recipe: str) -> bool:
    """Run a recipe and print what it printed last, or all of it when it failed."""
    begun = time.monotonic()
    command = [str(python), str(RECIPES / f"{recipe}.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=LIMIT)
    last = (done.stdout.strip().splitlines() or [""])[-1]
    print(f"{recipe}: {last if not done.returncode else done.stderr} ({time.monotonic() - begun:.0f} s)", flush=True)
    return not done.returncode


def main() -> None:
    """Run the recipes of all libraries, or of those that are named."""
    wanted = sys.argv[1:] or list(HEAVY)
    if unknown := set(wanted) - set(HEAVY):
        sys.exit(f"library is {', '.join(sorted(unknown))}; allowed: {', '.join(HEAVY)}")
    good = [play(environment(library), recipe) for library in wanted for recipe in HEAVY[library][1]]
    sys.exit(not all(good))


if __name__ == "__main__":
    main()
