"""A comparison on a Dask cluster of two workers, one of which is killed: its run is repeated, finished ones are not.

python examples/integrations/dask_cluster.py

It needs `pip install "esper-agent[cluster]"`.
"""

import os
import tempfile
from pathlib import Path

from distributed import LocalCluster
from esper_agent.cli import main

MORTAL = """
import os, signal
from pathlib import Path
from esper_agent.baselines.scripted import NeverGrow

def mortal(env):
    marks = len(list(Path(".").glob("begun*")))
    Path(f"begun{marks}").touch()
    if env.num_envs > 1 and marks == 1:  # not when the study makes it once in order to check, and not again
        os.kill(os.getpid(), signal.SIGKILL)
    return NeverGrow(env)
"""

if __name__ == "__main__":
    directory = Path(tempfile.mkdtemp())
    (directory / "own.py").write_text(MORTAL, encoding="utf-8")
    os.chdir(directory)
    with LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None) as cluster:
        study = [
            "--env",
            "Esper-v0",
            "--agents",
            "own:mortal,never,plateau",
            "--env-set",
            "horizon=8",
            "--episodes",
            "4",
        ]
        command = ["compare", *study, "--out", "study", "--cluster", cluster.scheduler_address]
        assert main(command) == 0
        begun = len(list(directory.glob("begun*")))
        written = {file.name: file.stat().st_mtime_ns for file in (directory / "study").glob("*.json")}
        assert main(command) == 0
    assert begun == 3, begun  # checked, killed, repeated
    assert len(written) == 3
    assert written == {file.name: file.stat().st_mtime_ns for file in (directory / "study").glob("*.json")}
    print("3 runs on 2 workers, one of them killed: all finished, none repeated that had finished")
