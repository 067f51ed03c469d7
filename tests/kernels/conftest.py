"""Kernels of Triton's on a CPU, by its interpreter."""

import os
import subprocess
import sys
from importlib.metadata import version

import pytest


def _numbers(package):
    return tuple(int(part) for part in version(package).split(".")[:2])


@pytest.fixture
def interpreted():
    """Runs a script in a process where Triton's kernels are interpreted; it prints `equal` if all is well."""
    pytest.importorskip("triton")
    if _numbers("triton") < (3, 7) and _numbers("numpy") >= (2, 4):
        pytest.skip("the interpreter of this Triton fails with this numpy: only 0-dimensional arrays become scalars")

    def run(script):
        environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False
        )
        assert done.stdout.strip() == "equal", done.stderr[-2000:]

    return run
