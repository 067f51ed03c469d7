"""Images kept as sheets: an .npz whose `data` holds WebP or AVIF pictures, each a column of small images.

Arrays of such a file: `data` uint8, the pictures one after the other; `offsets` int64, picture k is
data[offsets[k]:offsets[k + 1]]; `hw`, height and width of an image; `codec`, such as "webp-lossless"; `mode`, "L" or
"RGB" (RGB where absent); and any further arrays, such as `labels`, with one entry an image.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, features

from deepauc.data.npy import MAX_BYTES, Array, read_npz

Images = npt.NDArray[np.uint8]

_FORMATS = {"webp": "WEBP", "avif": "AVIF"}
_CHANNELS = {"L": 1, "RGB": 3}
_LARGEST_SIDE = 16383  # of a WebP picture


@dataclass(frozen=True, eq=False)
class Sheets:
    """Decoded images, (N, H, W, C) uint8, and the file's other arrays by name; both read-only."""

    images: Images
    arrays: Mapping[str, Array]
    codec: str

    def column(self, name: str) -> Array:
        """An array with one entry an image; ValueError where it is missing or of another length."""
        if name not in self.arrays or self.arrays[name].shape[:1] != self.images.shape[:1]:
            raise ValueError(f"no array {name!r} has one entry for each of the {len(self.images)} images.")
        return self.arrays[name]


def read_sheets(path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES) -> Sheets:
    """All images of a sheet file, in order; ValueError naming the file for anything that is not one.

    max_bytes: the most that the file's arrays, or the decoded images, may take.
    """
    arrays = read_npz(path, max_bytes=max_bytes)
    try:
        return _decode_sheets(arrays, max_bytes=max_bytes)
    except ValueError as error:
        raise ValueError(f"{path} is not a readable sheet file: {error}") from None


def _decode_sheets(arrays: dict[str, Array], *, max_bytes: int) -> Sheets:
    height, width = _image_size(_required(arrays, "hw"))
    codec = _text(_required(arrays, "codec"), "codec")
    mode = _text(arrays["mode"], "mode") if "mode" in arrays else "RGB"
    if mode not in _CHANNELS:
        raise ValueError(f"mode must be L or RGB, not {mode!r}.")
    picture_format = _FORMATS.get(codec.split("-")[0])
    if picture_format is None:
        raise ValueError(f"codec must be webp-... or avif-..., not {codec!r}.")
    if picture_format == "AVIF" and not features.check("avif"):
        raise ValueError("its images are AVIF, which needs Pillow 11.3 or newer, built with AVIF.")
    contents = _cut(_required(arrays, "data"), _required(arrays, "offsets"))

    # All sizes first, from the pictures' headers: nothing is decoded before the whole is known to fit.
    counts = [_images_in(content, picture_format, height=height, width=width) for content in contents]
    shape = (sum(counts), height, width, _CHANNELS[mode])
    if int(np.prod(shape, dtype=object)) > max_bytes:
        raise ValueError(
            f"decoded images of shape {shape} take more than {max_bytes:,} bytes. Pass a larger max_bytes."
        )
    if "labels" in arrays and arrays["labels"].shape[:1] != shape[:1]:
        raise ValueError(f"it has {shape[0]} images but labels of shape {arrays['labels'].shape}.")
    images = np.empty(shape, dtype=np.uint8)
    start = 0
    for content, count in zip(contents, counts, strict=True):
        images[start : start + count] = _pixels(content, picture_format, mode).reshape(count, *shape[1:])
        start += count
    images.flags.writeable = False
    rest = {name: array for name, array in arrays.items() if name not in ("data", "offsets", "hw", "codec", "mode")}
    return Sheets(images=images, arrays=rest, codec=codec)


def _required(arrays: dict[str, Array], name: str) -> Array:
    if name not in arrays:
        raise ValueError(f"the array {name!r} is missing (there are: {', '.join(sorted(arrays))[:200]}).")
    return arrays[name]


def _text(array: Array, name: str) -> str:
    if array.dtype.kind != "U" or array.ndim != 0:
        raise ValueError(f"{name} must be one string.")
    return str(array)[:100]


def _image_size(hw: Array) -> tuple[int, int]:
    if hw.shape != (2,) or hw.dtype.kind not in "iu" or not all(1 <= int(side) <= _LARGEST_SIDE for side in hw):
        raise ValueError(f"hw must be a height and a width between 1 and {_LARGEST_SIDE}.")
    return int(hw[0]), int(hw[1])


def _cut(data: Array, offsets: Array) -> list[bytes]:
    if data.ndim != 1 or data.dtype != np.uint8:
        raise ValueError(f"data must be a one-dimensional array of bytes, not {data.dtype} of shape {data.shape}.")
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or len(offsets) < 2:
        raise ValueError("offsets must be a one-dimensional array of at least two whole numbers.")
    places = [int(place) for place in offsets]
    rising = all(a < b for a, b in pairwise(places))
    if places[0] != 0 or places[-1] != len(data) or not rising:
        raise ValueError(f"offsets must rise from 0 to the {len(data)} bytes of data.")
    return [data[a:b].tobytes() for a, b in pairwise(places)]


def _images_in(content: bytes, picture_format: str, *, height: int, width: int) -> int:
    size = _opened(content, picture_format).size
    if size[0] != width or size[1] % height or size[1] == 0:
        raise ValueError(f"a sheet of {size[0]} x {size[1]} pixels is not a column of images of {width} x {height}.")
    return int(size[1] // height)


def _pixels(content: bytes, picture_format: str, mode: str) -> npt.NDArray[Any]:
    picture = _opened(content, picture_format)
    try:
        return np.asarray(picture.convert(mode))
    except Exception as error:  # decoders meet a broken picture with nearly any exception there is
        raise ValueError(f"a sheet cannot be decoded ({type(error).__name__}).") from None


def _opened(content: bytes, picture_format: str) -> Image.Image:
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            return Image.open(io.BytesIO(content), formats=[picture_format])
        except (Image.DecompressionBombWarning, Image.DecompressionBombError):
            raise ValueError("a sheet has too many pixels to be opened.") from None
        except Exception as error:
            raise ValueError(f"a sheet is damaged, or not {picture_format} ({type(error).__name__}).") from None
