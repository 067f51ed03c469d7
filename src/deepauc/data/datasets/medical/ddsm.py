"""DDSM+: tiles of mammograms from DDSM and CBIS-DDSM as TFRecords ("ddsm-mammography", Scuccimarra), 299 x 299 grey.

Five training files and two pairs of .npy files. By a slip of the publisher one pair has only masses as positives and
the other only calcifications, so the two are joined here, as the test part. The files name no patients: tiles of one
lesion, three random crops of it, can be in train and in a validation part held out of it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from deepauc.data.datasets.medical.tfrecord import Feature, parse_example, read_records
from deepauc.data.images.decode import as_size
from deepauc.data.imbalance import make_imbalanced
from deepauc.data.npy import NpyHeader, read_npy_header
from deepauc.data.task import Indices, Task

Value = TypeVar("Value")

SIDE = 299
TRAINING_FILES = tuple(f"training10_{number}.tfrecords" for number in range(5))
TEST_FILES = (("test10_data.npy", "test10_labels.npy"), ("cv10_data.npy", "cv10_labels.npy"))
_TILE_BYTES = SIDE * SIDE
_CLASSES = range(5)  # negative; benign calcification, benign mass, malignant calcification, malignant mass


def load_ddsm(
    root: str | os.PathLike[str],
    *,
    size: int | tuple[int, int] | None = 224,
    test_imratio: float | None = None,
    seed: int = 0,
) -> Task:
    """Any lesion against none, with train and test parts; every record's checksum is verified while it is indexed.

    root: the files are searched for in it and below. size: to resize to when a tile is asked for; None keeps
    299 x 299. test_imratio: drop positives of the test part, drawn by seed, until #pos / #all is this (the paper
    reports 13,900 test tiles at 0.04). Images stay on the disk.
    """
    folder = Path(os.path.abspath(root))
    if not folder.is_dir():
        raise ValueError(f"{folder} does not exist. Name the unpacked download.")
    training = [_find(folder, name) for name in TRAINING_FILES]
    held_out = [(_find(folder, images), _find(folder, labels)) for images, labels in TEST_FILES]
    tiles = _Tiles()
    for path in training:
        _index_records(path, tiles)
    train = len(tiles.labels)
    for images, labels in held_out:
        _index_arrays(images, labels, tiles)
    rows, lesion = np.arange(len(tiles.labels)), np.array(tiles.labels, dtype=np.float32)
    test = rows[train:]
    if test_imratio is not None:
        test = make_imbalanced(lesion, imratio=test_imratio, seed=seed, rows=test).rows
    return Task(
        name="DDSM+" if test_imratio is None else f"DDSM+, test imratio {test_imratio:g}, set {seed}",
        kind="binary",
        source=TileInputs(
            tiles.files,
            np.array(tiles.file_numbers),
            np.array(tiles.offsets),
            size=(SIDE, SIDE) if size is None else as_size(size),
            digest=tiles.sha.hexdigest(),
        ),
        labels=lesion,
        label_names=("lesion",),
        parts={"train": rows[:train], "test": test},
        ids=np.array(tiles.ids),
    )


class TileInputs:
    """Raw tiles of 299 x 299 at known places of a few files, memory-mapped, resized (bilinear) when asked for."""

    dtype = np.dtype(np.uint8)

    def __init__(
        self,
        files: Sequence[str],
        file_numbers: npt.NDArray[np.int64],
        offsets: npt.NDArray[np.int64],
        *,
        size: tuple[int, int],
        digest: str,
    ) -> None:
        self.files = tuple(files)
        self.file_numbers = file_numbers
        self.offsets = offsets
        self.shape = (*size, 1)
        self._pixel_digest = digest
        self._maps: dict[int, npt.NDArray[np.uint8]] = {}

    def __len__(self) -> int:
        return len(self.offsets)

    def __call__(self, indices: Indices) -> npt.NDArray[np.uint8]:
        numbers, offsets = self.file_numbers[indices], self.offsets[indices]
        images = np.empty((len(numbers), *self.shape), dtype=np.uint8)
        for place, (number, offset) in enumerate(zip(numbers.tolist(), offsets.tolist(), strict=True)):
            tile = self._map(number)[offset : offset + _TILE_BYTES].reshape(SIDE, SIDE)
            if self.shape[:2] != tile.shape:
                resized = Image.fromarray(tile).resize((self.shape[1], self.shape[0]), Image.Resampling.BILINEAR)
                tile = np.asarray(resized)
            images[place, ..., 0] = tile
        return images

    def digest(self) -> str:
        """SHA-256 over all tiles as they are stored, and the size they are resized to."""
        return hashlib.sha256(f"{self.shape}{self._pixel_digest}".encode()).hexdigest()

    def _map(self, number: int) -> npt.NDArray[np.uint8]:
        if number not in self._maps:
            self._maps[number] = np.memmap(self.files[number], mode="r", dtype=np.uint8).view(np.ndarray)
        return self._maps[number]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_maps": {}}  # another process maps the files for itself


@dataclass
class _Tiles:
    """What has been found so far."""

    files: list[str] = field(default_factory=list)
    file_numbers: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    labels: list[bool] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    sha: Any = field(default_factory=hashlib.sha256)

    def add(self, tile: bytes | memoryview, *, offset: int, label: int, name: str) -> None:
        self.file_numbers.append(len(self.files) - 1)
        self.offsets.append(offset)
        self.labels.append(label != 0)
        self.ids.append(name)
        self.sha.update(tile)


def _find(folder: Path, name: str) -> Path:
    found = sorted(path for path in folder.rglob(name) if path.is_file())
    if not found:
        raise ValueError(f"{name} is not in {folder} or a folder in it. Unpack the whole download there.")
    if len(found) > 1:
        raise ValueError(f"{folder} holds {name} {len(found)} times: {found[0]}, {found[1]}. Keep one of them.")
    return found[0]


def _index_records(path: Path, tiles: _Tiles) -> None:
    tiles.files.append(str(path))
    number = -1
    for number, record in enumerate(read_records(path)):
        try:
            example = parse_example(record.content)
            label, lesion = (
                _only(example.get(key, Feature()).integers, f"integers {key!r}") for key in ("label", "label_normal")
            )
            start, stop = _only(example.get("image", Feature()).spans, "byte strings 'image'")
            if stop - start != _TILE_BYTES:
                raise ValueError(f"its image has {stop - start:,} bytes, not {SIDE} x {SIDE}")
            if label not in _CLASSES or lesion != (label != 0):
                raise ValueError(f"label {label} contradicts label_normal {lesion}")
        except ValueError as error:
            raise ValueError(f"{path}, record {number}: {error}.") from None
        tile = memoryview(record.content)[start:stop]
        tiles.add(tile, offset=record.offset + start, label=label, name=f"{path.stem}/{number}")
    if number < 0:
        raise ValueError(f"{path} holds no records. Download it again.")


def _only(values: Sequence[Value], what: str) -> Value:
    if len(values) != 1:
        raise ValueError(f"it has {len(values)} {what}, not one")
    return values[0]


def _index_arrays(images: Path, labels: Path, tiles: _Tiles) -> None:
    with open(images, "rb") as file:
        header = _tile_header(images, file)
        classes = _read_classes(labels)
        if header.shape[0] != len(classes):
            raise ValueError(f"{images} has {header.shape[0]:,} tiles, but {labels} has {len(classes):,} labels.")
        tiles.files.append(str(images))
        for row, label in enumerate(classes.tolist()):
            offset = header.head_bytes + row * _TILE_BYTES
            tiles.add(file.read(_TILE_BYTES), offset=offset, label=label, name=f"{images.stem}/{row}")


def _tile_header(path: Path, file: IO[bytes]) -> NpyHeader:
    header = _header(path, file)
    if header.dtype != np.uint8 or header.fortran_order or header.shape[1:] not in ((SIDE, SIDE), (SIDE, SIDE, 1)):
        raise ValueError(f"{path} holds {header.dtype} of shape {header.shape}, not uint8 (N, {SIDE}, {SIDE}, 1).")
    if os.fstat(file.fileno()).st_size != header.file_bytes:
        raise ValueError(f"{path} is cut off or altered. Download it again.")
    return header


def _header(path: Path, file: IO[bytes]) -> NpyHeader:
    try:
        return read_npy_header(file)
    except ValueError as error:
        raise ValueError(f"{path}: {error}.") from None


def _read_classes(path: Path) -> npt.NDArray[np.int64]:
    with open(path, "rb") as file:
        header = _header(path, file)
        content = file.read(min(header.file_bytes, 1 << 26))
    if header.dtype.kind not in "iu" or len(content) != header.file_bytes - header.head_bytes:
        raise ValueError(f"{path} is cut off, or its labels are not whole numbers. Download it again.")
    classes = np.frombuffer(content, dtype=header.dtype).astype(np.int64)
    if not np.isin(classes, _CLASSES).all():
        raise ValueError(f"{path} holds labels outside 0 to 4. Download it again.")
    return classes
