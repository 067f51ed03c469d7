"""NumPy's file formats from strangers: nothing is unpickled, and no memory is taken that the file does not hold.

`numpy.load` believes a header: one that claims a terabyte is allocated first and found wrong later. Here every claim
is held against the size of the file before anything is read.
"""

from __future__ import annotations

import math
import os
import sys
import zipfile
from collections.abc import Collection
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy_format

Array = npt.NDArray[Any]

MAX_BYTES = 1 << 30
_MAX_ARRAYS = 1000
_MAX_NAME = 200


@dataclass(frozen=True)
class NpyHeader:
    """What the head of an .npy file says, and how many bytes that head takes."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran_order: bool
    head_bytes: int

    @property
    def file_bytes(self) -> int:
        return self.head_bytes + math.prod(self.shape) * self.dtype.itemsize


def read_npy_header(file: IO[bytes]) -> NpyHeader:
    """The header at the start of an open .npy file; ValueError for anything that is not a plain array."""
    try:
        version = npy_format.read_magic(file)
        if version == (1, 0):
            shape, fortran_order, dtype = npy_format.read_array_header_1_0(file)
        elif version == (2, 0):
            shape, fortran_order, dtype = npy_format.read_array_header_2_0(file)
        else:
            raise ValueError(f"its format version {version} is unknown")
    except Exception as error:  # a hostile header reaches the tokenizer and meets nearly any exception there is
        raise ValueError(f"its .npy header cannot be read ({one_line(error)})") from None
    if dtype.hasobject:
        raise ValueError("it holds pickled objects, which are never loaded. Save plain arrays")
    if dtype.kind not in "biufSU" or dtype.itemsize == 0:
        raise ValueError(f"its type {dtype} is neither numbers nor strings")
    if any(not isinstance(side, int) or side < 0 for side in shape):
        raise ValueError(f"its shape {shape} is impossible")
    return NpyHeader(shape=tuple(shape), dtype=dtype, fortran_order=bool(fortran_order), head_bytes=file.tell())


def read_npz(
    path: str | os.PathLike[str], *, names: Collection[str] | None = None, max_bytes: int = MAX_BYTES
) -> dict[str, Array]:
    """All arrays of an .npz file, or those of these names; ValueError for anything else, or for over `max_bytes`."""
    if not os.path.isfile(path):  # opening a pipe would wait for ever
        raise ValueError(f"{path} does not exist.")
    try:
        with zipfile.ZipFile(path) as archive:
            return _read_members(archive, names, max_bytes=max_bytes)
    except Exception as error:  # zipfile and zlib meet a broken file with a dozen kinds of exception
        raise ValueError(f"{path} is not a readable .npz file: {one_line(error)}.") from None


def _read_members(archive: zipfile.ZipFile, names: Collection[str] | None, *, max_bytes: int) -> dict[str, Array]:
    members = archive.infolist()
    if names is not None:
        members = [member for member in members if member.filename.removesuffix(".npy") in names]
    if not 0 < len(members) <= _MAX_ARRAYS:
        raise ValueError(f"it holds {len(members)} arrays")
    if (total := sum(member.file_size for member in members)) > max_bytes:
        raise ValueError(f"unpacked it takes {total:,} bytes, more than {max_bytes:,}; pass a larger max_bytes")
    arrays: dict[str, Array] = {}
    for member in members:
        name = member.filename.removesuffix(".npy")
        if name == member.filename or len(name) > _MAX_NAME or name in arrays:
            raise ValueError(f"{member.filename[:_MAX_NAME]!r} in it is not an array, or occurs twice")
        with archive.open(member) as file:
            try:
                arrays[name] = _read_array(file, member.file_size)
            except ValueError as error:
                raise ValueError(f"array {name!r}: {error}") from None
    return arrays


def _read_array(file: IO[bytes], size: int) -> Array:
    header = read_npy_header(file)
    if header.file_bytes != size:
        raise ValueError(f"{header.dtype} of shape {header.shape} takes {header.file_bytes} bytes, but has {size}")
    content = file.read(size - header.head_bytes)
    if len(content) != size - header.head_bytes:
        raise ValueError("it is cut off")
    order = "F" if header.fortran_order else "C"
    array = np.frombuffer(content, dtype=header.dtype).reshape(header.shape, order=order)  # type: ignore[call-overload]
    require_unicode(array)
    return array


def require_unicode(array: Array) -> None:
    """Raise ValueError for strings with a code point beyond Unicode, of which no sound Python string can be made."""
    if array.dtype.kind == "U" and array.size:
        points = np.ascontiguousarray(array).reshape(-1).view(np.dtype("u4").newbyteorder(array.dtype.byteorder))
        if int(points.max()) > sys.maxunicode:
            raise ValueError("a string in it holds an invalid character")


def one_line(error: Exception) -> str:
    """Its message, short and without a full stop, for a sentence of ours."""
    return " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
