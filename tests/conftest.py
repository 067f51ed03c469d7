"""One torch thread a worker (two workers on two cores), and the folder of real images."""

import os
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of real images; the test skips, and says so, where DEEPAUC_DATA is not set."""
    root = os.environ.get("DEEPAUC_DATA")
    if not root or not Path(root).is_dir():
        pytest.skip("DEEPAUC_DATA is not set to a folder of the benchmark images")
    return Path(root)
