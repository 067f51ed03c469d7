"""Cat&Dog, from sheet files (lossy) or from the folder of the public download."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from deepauc.data.datasets.benchmarks.descriptions import BENCHMARKS, DecodedSet, joined, require_counts
from deepauc.data.datasets.sheets import read_sheets
from deepauc.data.images.decode import ImageError, decode_image, read_image_file

PER_CLASS = 12_500
FIRST_TEST_ID = 10_000
_WORKERS = 4


def read_catdog_files(root: Path) -> DecodedSet:
    """The two sheet files: cats first, then dogs, in order of id."""
    parts = []
    for file, count in zip(BENCHMARKS["C2"].files, (FIRST_TEST_ID, PER_CLASS - FIRST_TEST_ID), strict=True):
        sheets = read_sheets(root / file)
        classes, numbers = sheets.column("labels").astype(np.int64), sheets.column("ids")
        require_counts(classes.ravel(), [count, count], where=str(root / file))
        names = [f"{('cat', 'dog')[c]}.{number}.jpg" for c, number in zip(classes, numbers, strict=True)]
        parts.append((sheets.images, classes, names))
    return joined(parts[0], parts[1], lossy=True)


def read_catdog_public(
    root: Path, *, size: int = 32, per_class: int = PER_CLASS, first_test: int = FIRST_TEST_ID
) -> DecodedSet:
    """cat.N.jpg and dog.N.jpg squashed to size x size with a box filter; ids from `first_test` on are the test part."""
    first = BENCHMARKS["C2"].public_at(root)
    if first is None:
        raise ValueError(
            f"{root} has no cat.0.jpg, and neither has {root / 'train'}. Unpack Kaggle's train.zip in {root}."
        )
    folder = first.parent

    def part(numbers: range) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], list[str]]:
        names = [f"{animal}.{number}.jpg" for animal in ("cat", "dog") for number in numbers]
        if missing := [name for name in names if not (folder / name).is_file()]:
            raise ValueError(
                f"{folder} lacks {len(missing)} of {len(names)} images, such as {missing[0]}. Unpack train.zip again."
            )
        with ThreadPoolExecutor(max_workers=_WORKERS) as pool:
            images = np.stack(list(pool.map(lambda name: _squashed(folder / name, size), names)))
        return images, np.repeat([0, 1], len(numbers)), names

    return joined(part(range(first_test)), part(range(first_test, per_class)))


def _squashed(path: Path, size: int) -> npt.NDArray[np.uint8]:
    try:
        pixels = decode_image(read_image_file(str(path)), channels=3)
    except ImageError as error:
        raise ValueError(f"{path}: {error}") from None
    return np.asarray(Image.fromarray(pixels).resize((size, size), Image.Resampling.BOX))
