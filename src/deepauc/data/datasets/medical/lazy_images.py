"""Image files of a large download: decoded when asked for, resized on the way, hashed as they are read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from deepauc.data.images.decode import ImageError, Pixels, as_size, decode_image, read_image_file
from deepauc.data.task import Indices

_WORKERS = min(8, os.cpu_count() or 1)


class LazyImageFiles:
    """Like `decode.ImageFileInputs`, and with the same digest, for sets too large to be read before they are used.

    A file's own digest is kept from its first reading, so that `packed.pack` reads every file once and no more.
    """

    def __init__(self, paths: Sequence[str], *, shape: tuple[int, int, int]) -> None:
        self.paths = tuple(paths)
        self.shape = shape
        self._file_digests: list[str | None] = [None] * len(self.paths)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint8)

    def __len__(self) -> int:
        return len(self.paths)

    def __call__(self, indices: Indices) -> Pixels:
        rows = np.arange(len(self.paths))[indices].tolist()  # negative and impossible numbers as NumPy has them
        images = np.empty((len(rows), *self.shape), dtype=np.uint8)

        def fill(place: int) -> None:
            content = self._read(rows[place])
            try:
                images[place] = decode_image(content, channels=self.shape[2], size=(self.shape[0], self.shape[1]))
            except ImageError as error:
                raise ImageError(error.kind, f"{self.paths[rows[place]]}: {error}") from None

        with ThreadPoolExecutor(max_workers=_WORKERS) as pool:  # Pillow decodes outside Python's lock
            list(pool.map(fill, range(len(rows))))
        return images

    def digest(self) -> str:
        """SHA-256 over the files' own digests and their decoded shape; reads those files that were not read yet."""
        unread = [row for row, known in enumerate(self._file_digests) if known is None]
        with ThreadPoolExecutor(max_workers=_WORKERS) as pool:
            for _ in pool.map(self._note, unread):
                pass
        sha = hashlib.sha256(f"{self.shape}{None}".encode())  # None: no window, as ImageFileInputs writes it
        for file_digest in self._file_digests:
            assert file_digest is not None
            sha.update(file_digest.encode())
        return sha.hexdigest()

    def sizes(self) -> list[int]:
        """Bytes of each file: whether one was replaced shows in these, nearly always, without reading any."""
        return [os.path.getsize(path) for path in self.paths]

    def _note(self, row: int) -> None:
        self._read(row)  # the content is not kept

    def _read(self, row: int) -> bytes:
        try:
            content = read_image_file(self.paths[row])
        except ImageError as error:
            raise ImageError(error.kind, f"{self.paths[row]}: {error}") from None
        digest = hashlib.sha256(content).hexdigest()
        if self._file_digests[row] is None:
            self._file_digests[row] = digest
        elif self._file_digests[row] != digest:
            raise ImageError("unreadable image", f"{self.paths[row]} has changed since it was first read")
        return content


def image_files(folder: Path, names: Sequence[str], *, size: int | tuple[int, int], channels: int) -> LazyImageFiles:
    """These files of a folder, all of which must be there; nothing is opened yet."""
    return files_at([os.path.join(folder, name) for name in names], size=size, channels=channels, where=str(folder))


def files_at(paths: Sequence[str], *, size: int | tuple[int, int], channels: int, where: str) -> LazyImageFiles:
    """These files, all of which must be there; `where` names the download in the message."""
    if missing := [path for path in paths if not os.path.isfile(path)]:
        raise ValueError(
            f"{where} misses {len(missing):,} of {len(paths):,} image files, the first is {missing[0]}. "
            "Unpack the whole download there."
        )
    return LazyImageFiles(paths, shape=(*as_size(size), channels))
