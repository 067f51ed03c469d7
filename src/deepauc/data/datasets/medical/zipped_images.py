"""Image arrays in an .npz too large for the memory: read from the zip file in the order they are stored."""

from __future__ import annotations

import math
import os
import threading
import zipfile
from collections.abc import Sequence
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from deepauc.data.datasets.medical.stored_images import StoredImages
from deepauc.data.npy import NpyHeader, one_line, read_npy_header

_PIECE_BYTES = 1 << 24


class ZippedImages(StoredImages):
    """The uint8 arrays (N, H, W[, C]) of several members of an .npz, one after the other, as one source of inputs.

    A compressed member can only be read forwards. Rows in rising order, as `packed.pack` asks for them, cost one pass;
    any other order starts again from the front each time, so pack such a file before training on it.
    """

    _stream: IO[bytes] | None = None
    _member = _next_row = 0  # of the stream

    def __init__(self, path: str | os.PathLike[str], members: Sequence[str]) -> None:
        self.path = os.fspath(path)
        self.members = tuple(members)
        headers = [self._header(number) for number in range(len(members))]
        shapes = {header.shape[1:] for header in headers}
        if len(shapes) != 1:
            raise ValueError(f"{path}: its parts hold images of several sizes.")
        (shape,) = shapes
        super().__init__((*shape, 1) if len(shape) == 2 else shape, [header.shape[0] for header in headers])
        self._lock = threading.Lock()  # there is one stream, and a feed may ask from several threads

    def read(self, number: int, low: int, high: int) -> npt.NDArray[np.uint8]:
        image_bytes = math.prod(self.shape)
        with self._lock:
            if self._stream is None or self._member != number or self._next_row > low:
                if self._stream is not None:
                    self._stream.close()
                self._stream, self._member, self._next_row = self._opened(number)[0], number, 0
            skipped = (low - self._next_row) * image_bytes
            for start in range(0, skipped, _PIECE_BYTES):
                self._take(min(_PIECE_BYTES, skipped - start))
            content = self._take((high - low) * image_bytes)
            self._next_row = high
        return np.frombuffer(content, dtype=np.uint8).reshape(-1, *self.shape)

    def _take(self, count: int) -> bytes:
        """The next `count` bytes of the stream, all of them."""
        assert self._stream is not None
        where = f"{self.path}: {self.members[self._member]}"
        try:
            content = self._stream.read(count)
        except Exception as error:  # zipfile and zlib meet a broken file with a dozen kinds of exception
            raise ValueError(f"{where} cannot be unpacked ({type(error).__name__}).") from None
        if len(content) != count:
            raise ValueError(f"{where} is cut off. Download the file again.")
        return content

    def _header(self, number: int) -> NpyHeader:
        stream, header, size = self._opened(number)
        stream.close()
        if header.dtype != np.uint8 or header.fortran_order or len(header.shape) not in (3, 4):
            raise ValueError(f"{self.path}: {self.members[number]} holds no uint8 images.")
        if header.file_bytes != size:
            raise ValueError(f"{self.path}: {self.members[number]} is cut off or altered. Download the file again.")
        return header

    def _opened(self, number: int) -> tuple[IO[bytes], NpyHeader, int]:
        """A member after its header, that header, and how many bytes the member has."""
        member = self.members[number]
        try:
            with zipfile.ZipFile(self.path) as archive:
                stream = archive.open(f"{member}.npy")  # keeps the file open for itself
                return stream, read_npy_header(stream), archive.getinfo(f"{member}.npy").file_size
        except Exception as error:  # zipfile and zlib meet a broken file with a dozen kinds of exception
            raise ValueError(f"{self.path}: {member} cannot be read: {one_line(error)}.") from None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_stream", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_lock": threading.Lock()}
