"""The benchmarks as their publishers hand them out: CIFAR by torchvision, Cat&Dog's pictures, STL-10's binary files."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from deepauc.data.datasets.benchmarks.descriptions import BENCHMARKS, Classes, Images, Part, require_pool
from deepauc.data.images.decode import ImageError, decode_image, read_image_file

C100_POOL = 8_000
_C100_HALF = 50
_WORKERS = 4


def read_cifar(root: Path, name: str, *, download: bool, pool: bool) -> tuple[Part, Part]:
    """CIFAR-10 or CIFAR-100, whose checksums torchvision verifies before it reads.

    pool: of CIFAR-100's training images only those that the sheet files hold, so both draw the same training sets.
    """
    (images, classes), test = (_read_cifar(root, name, train=part, download=download) for part in (True, False))
    positions = pool_positions(classes) if pool else np.arange(len(classes))
    return (
        (images[positions], classes[positions], [f"train/{position}" for position in positions]),
        (*test, [f"test/{row}" for row in range(len(test[0]))]),
    )


def pool_positions(classes: Classes) -> npt.NDArray[np.int64]:
    """Which of CIFAR-100's 50,000 training images are used: the classes 0 to 49, and 8,000 of the others."""
    others = np.random.default_rng(100).permutation(np.flatnonzero(classes >= _C100_HALF))[:C100_POOL]
    positions = np.sort(np.concatenate([np.flatnonzero(classes < _C100_HALF), others]))
    # NumPy does not promise a generator's stream for ever, so what came out is held against what is recorded.
    require_pool(positions, where="the pool drawn by this version of NumPy")
    return positions


def _read_cifar(root: Path, name: str, *, train: bool, download: bool) -> tuple[Images, Classes]:
    from torchvision import datasets

    kind = datasets.CIFAR100 if name == "C100" else datasets.CIFAR10
    try:
        found = kind(str(root), train=train, download=download)
    except (RuntimeError, OSError) as error:
        raise ValueError(
            f"torchvision finds no complete {kind.__name__} in {root} ({error}). Download it again."
        ) from None
    return np.ascontiguousarray(found.data), np.asarray(found.targets, dtype=np.int64)


def read_catdog(root: Path, *, size: int = 32, per_class: int = 12_500, first_test: int = 10_000) -> tuple[Part, Part]:
    """cat.N.jpg and dog.N.jpg squashed to size x size with a box filter; ids from `first_test` on are the test part."""
    first = BENCHMARKS["C2"].public_at(root)
    if first is None:
        raise ValueError(
            f"{root} has no cat.0.jpg, and neither has {root / 'train'}. Unpack Kaggle's train.zip in {root}."
        )
    folder = first.parent

    def part(numbers: range) -> Part:
        names = [f"{animal}.{number}.jpg" for animal in ("cat", "dog") for number in numbers]
        if missing := [name for name in names if not (folder / name).is_file()]:
            raise ValueError(
                f"{folder} lacks {len(missing)} of {len(names)} images, such as {missing[0]}. Unpack train.zip again."
            )
        with ThreadPoolExecutor(max_workers=_WORKERS) as pool:
            images = np.stack(list(pool.map(lambda name: _squashed(folder / name, size), names)))
        return images, np.repeat([0, 1], len(numbers)), names

    return part(range(first_test)), part(range(first_test, per_class))


def _squashed(path: Path, size: int) -> Images:
    try:
        pixels = decode_image(read_image_file(str(path)), channels=3)
    except ImageError as error:
        raise ValueError(f"{path}: {error}") from None
    return np.asarray(Image.fromarray(pixels).resize((size, size), Image.Resampling.BOX))


def read_stl10(root: Path, *, download: bool) -> tuple[Part, Part]:
    """`stl10_binary` under root; `download` fetches it (2.6 GB, most of it unlabelled images that are not read)."""
    benchmark = BENCHMARKS["S10"]
    folder = root / benchmark.marks[0]
    if download and not (folder / "test_y.bin").is_file():
        from torchvision import datasets

        datasets.STL10(str(root), split="test", download=True)
    train, test = (
        (*read_stl10_part(folder, part, count=count), [f"{part}/{row}" for row in range(count)])
        for part, count in (("train", benchmark.train), ("test", benchmark.test))
    )
    return train, test


def read_stl10_part(folder: Path, part: str, *, count: int) -> tuple[Images, Classes]:
    """Images (count, 96, 96, 3) and classes 0 to 9.

    On disk an image is its red, green and blue plane, each column by column; a label is one byte, 1 to 10.
    """
    images_path, labels_path = folder / f"{part}_X.bin", folder / f"{part}_y.bin"
    height, width, channels = BENCHMARKS["S10"].shape
    for path, size in ((images_path, count * height * width * channels), (labels_path, count)):
        if not path.is_file():
            raise ValueError(f"{path} does not exist. S10 needs STL-10's binary release; download=True fetches it.")
        if path.stat().st_size != size:
            raise ValueError(f"{path} has {path.stat().st_size} bytes instead of {size}. Download it again.")
    labels = np.fromfile(labels_path, dtype=np.uint8)
    if labels.min() < 1 or labels.max() > 10:
        raise ValueError(f"{labels_path} holds labels outside 1 to 10. Download it again.")
    planes = np.memmap(images_path, dtype=np.uint8, mode="r", shape=(count, channels, width, height))
    return np.ascontiguousarray(planes.transpose(0, 3, 2, 1)), labels.astype(np.int64) - 1
