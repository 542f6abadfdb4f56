"""Runs the suite under every processor that this one can imitate, with one and with two threads (`make portable`).

python tests/portable.py [PYTEST ARGUMENTS]
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from itertools import product

import torch


@dataclass(frozen=True)
class Processor:
    """The instructions that torch's own kernels, oneDNN and MKL may use."""

    aten: str
    onednn: str
    mkl: str

    def environment(self, threads: int) -> dict[str, str]:
        chosen = {"ATEN_CPU_CAPABILITY": self.aten, "ONEDNN_MAX_CPU_ISA": self.onednn}
        return {**os.environ, **chosen, "MKL_ENABLE_INSTRUCTIONS": self.mkl, "OMP_NUM_THREADS": str(threads)}


PROCESSORS = (
    Processor("default", "SSE41", "SSE4_2"),
    Processor("avx2", "AVX2", "AVX2"),
    Processor("avx512", "AVX512_CORE", "AVX512"),
)


def imitable() -> tuple[Processor, ...]:
    """Those whose instructions this processor has."""
    names = [processor.aten for processor in PROCESSORS]
    return PROCESSORS[: names.index(torch.backends.cpu.get_cpu_capability().lower()) + 1]


def passes(processor: Processor, threads: int, arguments: list[str]) -> bool:
    # Single-threaded tests share the cores; otherwise one process has them all.
    workers = ["-n", "auto", "--dist", "loadfile"] if threads == 1 else []
    command = [sys.executable, "-m", "pytest", "-m", "not soak and not cuda", *workers, *arguments]
    return subprocess.run(command, env=processor.environment(threads), check=False).returncode == 0


def main() -> None:
    results = {}
    for processor, threads in product(imitable(), (1, 2)):
        print(f"== {processor.aten}, {threads} thread(s)", flush=True)
        results[processor.aten, threads] = passes(processor, threads, sys.argv[1:])
    for (name, threads), passed in results.items():
        print(f"{name:>8}, {threads} thread(s): {'passed' if passed else 'FAILED'}")
    sys.exit(not all(results.values()))


if __name__ == "__main__":
    main()
