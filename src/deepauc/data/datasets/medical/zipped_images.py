"""Image arrays in an .npz too large for the memory: read from the zip file in the order they are stored."""

from __future__ import annotations

import hashlib
import math
import os
import threading
import zipfile
from collections.abc import Sequence
from functools import cached_property
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from deepauc.data.npy import NpyHeader, read_npy_header
from deepauc.data.task import Indices

_PIECE_BYTES = 1 << 24


class ZippedImages:
    """The uint8 arrays (N, H, W[, C]) of several members of an .npz, one after the other, as one source of inputs.

    A compressed member can only be read forwards. Rows in rising order, as `packed.pack` asks for them, cost one pass;
    any other order starts again from the front each time, so pack such a file before training on it.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, path: str | os.PathLike[str], members: Sequence[str]) -> None:
        self.path = os.fspath(path)
        self.members = tuple(members)
        headers = [self._header(member) for member in self.members]
        shapes = {header.shape[1:] for header in headers}
        if len(shapes) != 1:
            raise ValueError(f"{path}: its parts hold images of several sizes.")
        (shape,) = shapes
        self.shape = (*shape, 1) if len(shape) == 2 else shape
        self._image_bytes = math.prod(shape)
        self.counts = tuple(header.shape[0] for header in headers)
        self._starts = np.cumsum([0, *self.counts])
        self._stream: Member | None = None
        self._next_row = 0  # of the stream's member
        self._lock = threading.Lock()  # there is one stream, and a feed may ask from several threads

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __call__(self, indices: Indices) -> npt.NDArray[np.uint8]:
        rows = np.arange(len(self))[indices]
        wanted, places = np.unique(rows, return_inverse=True)
        read = np.empty((len(wanted), *self.shape), dtype=np.uint8)
        with self._lock:
            for place, row in enumerate(wanted.tolist()):
                number = int(np.searchsorted(self._starts, row, side="right")) - 1
                read[place] = self._image(number, row - int(self._starts[number]))
        return read[places]

    @cached_property
    def _digest(self) -> str:
        sha = hashlib.sha256(f"{self.dtype.name}{(len(self), *self.shape)}".encode())  # as `ArrayInputs` writes it
        for member, count in zip(self.members, self.counts, strict=True):
            with open_member(self.path, member) as stream:
                for _ in range(count):
                    sha.update(stream.read(self._image_bytes))
        return sha.hexdigest()

    def digest(self) -> str:
        """SHA-256 of all pixels; the first call reads the whole file."""
        return self._digest

    def _image(self, number: int, row: int) -> npt.NDArray[np.uint8]:
        stream = self._stream
        if stream is None or stream.member != self.members[number] or self._next_row > row:
            if stream is not None:
                stream.close()
            stream = self._stream = open_member(self.path, self.members[number])
            self._next_row = 0
        skipped = (row - self._next_row) * self._image_bytes
        for start in range(0, skipped, _PIECE_BYTES):
            stream.read(min(_PIECE_BYTES, skipped - start))
        self._next_row = row + 1
        return np.frombuffer(stream.read(self._image_bytes), dtype=np.uint8).reshape(self.shape)

    def _header(self, member: str) -> NpyHeader:
        with open_member(self.path, member) as opened:
            header, size = opened.header, opened.size
        if header.dtype != np.uint8 or header.fortran_order or len(header.shape) not in (3, 4):
            raise ValueError(f"{self.path}: {member} holds no uint8 images.")
        if header.file_bytes != size:
            raise ValueError(f"{self.path}: {member} is cut off or altered. Download the file again.")
        return header

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_stream", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_stream": None, "_lock": threading.Lock()}


def open_member(path: str | os.PathLike[str], member: str) -> Member:
    """An array of an .npz, its header read; ValueError, naming the file, where it cannot be."""
    try:
        return Member(os.fspath(path), member)
    except Exception as error:  # zipfile and zlib meet a broken file with a dozen kinds of exception
        raise ValueError(f"{path}: {member} cannot be read: {' '.join(str(error).split())[:200]}.") from None


class Member:
    """One array in an .npz, read forwards."""

    def __init__(self, path: str, member: str) -> None:
        self.path, self.member = path, member
        self._archive = zipfile.ZipFile(path)
        try:
            self.size = self._archive.getinfo(f"{member}.npy").file_size
            self._file: IO[bytes] = self._archive.open(f"{member}.npy")
            self.header = read_npy_header(self._file)
        except BaseException:
            self._archive.close()
            raise

    def __enter__(self) -> Member:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self._archive.close()

    def read(self, count: int) -> bytes:
        """The next `count` bytes, all of them."""
        try:
            content = self._file.read(count)
        except Exception as error:  # zipfile and zlib meet a broken file with a dozen kinds of exception
            raise ValueError(f"{self.path}: {self.member} cannot be unpacked ({type(error).__name__}).") from None
        if len(content) != count:
            raise ValueError(f"{self.path}: {self.member} is cut off. Download the file again.")
        return content
