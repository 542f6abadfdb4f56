"""Applies each mutant of `mutants/` to a copy of the code and expects its test to fail (`make mutants`).

python tests/check_mutants.py [ROW | WORD ...]   only those of the rows, or with one of the words in their fault
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from mutants import MUTANTS
from mutants.mutant import Mutant

ROOT = Path(__file__).parents[1]
FAILED = 1  # pytest's exit code when tests ran and some failed; others say that nothing was tried


def copy_tree(target: Path) -> None:
    """The files that git knows or would add, as they are now."""
    listed = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def run_tests(tree: Path, tests: Iterable[str]) -> subprocess.CompletedProcess[str]:
    """Run tests of a tree against the code of that tree."""
    sources = [str(path) for path in sorted(tree.glob("packages/*/src"))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sources), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)


def dies(tree: Path, mutant: Mutant) -> bool:
    """Whether the mutant's test fails on the mutated tree; the tree is as before afterwards."""
    file = tree / mutant.file
    original = file.read_text(encoding="utf-8")
    file.write_text(mutant.applied(original), encoding="utf-8")
    try:
        done = run_tests(tree, [mutant.test])
    finally:
        file.write_text(original, encoding="utf-8")
    if done.returncode not in (0, FAILED):
        sys.exit(f"{mutant.row}, {mutant.fault}: the test could not run\n{done.stdout}{done.stderr}")
    return done.returncode == FAILED


def require_passing(tree: Path, mutants: Iterable[Mutant]) -> None:
    """Stop unless the tests pass on the code as it is."""
    done = run_tests(tree, sorted({mutant.test for mutant in mutants}))
    if done.returncode:
        sys.exit(f"the tests fail without any mutant:\n{done.stdout}{done.stderr}")


def main() -> None:
    """Try the chosen mutants, or all."""
    words = sys.argv[1:]
    chosen = [m for m in MUTANTS if not words or any(word == m.row or word in m.fault for word in words)]
    if not chosen:
        sys.exit(f"no mutant has one of {words} as its row or in its fault")
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        copy_tree(tree)
        require_passing(tree, chosen)
        survivors = 0
        for mutant in chosen:
            died = dies(tree, mutant)
            survivors += not died
            print(f"{'killed' if died else 'SURVIVED':>8}  {mutant.row:<6}  {mutant.fault}", flush=True)
    print(f"{len(chosen)} mutants, {survivors} survived")
    sys.exit(survivors > 0)


if __name__ == "__main__":
    main()
