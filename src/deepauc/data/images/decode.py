"""Picture files as uint8 arrays: jpg, png, tif, 16-bit grey and DICOM, with nothing decoded that is too large.

Grey of more than 8 bits is windowed linearly to 0 to 255 at decoding: from the image's own minimum to its maximum, or
between the two values of `window`. The orientation a camera recorded is applied; an alpha channel is dropped. An image
that comes out constant although its file is not is refused. All threads together decode within MEMORY bytes.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
import struct
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from deepauc.data.images.dicom import MissingPydicom, decode_dicom, is_dicom
from deepauc.data.images.windowing import (
    Flattened,
    Unusable,
    extremes,
    linear,
    pieces,
    require_light,
    require_varied,
    to_eight_bits,
)
from deepauc.data.task import Indices

Pixels = npt.NDArray[np.uint8]
Window = tuple[float, float]
Reserve = Callable[[int], None]
ImageFault = Literal["missing file", "unreadable image", "constant image", "decompression bomb"]

MAX_PIXELS = 89_478_485  # Pillow's own limit, at which it only warns; here it refuses
MAX_FILE_BYTES = 1 << 30
_FORMATS = ("JPEG", "PNG", "TIFF", "BMP", "WEBP", "JPEG2000")
_DEEP_GREY = frozenset({"I;16", "I;16L", "I;16B", "I;16N", "I", "F"})
_GREY = frozenset({"1", "L", "LA", "La"})
_ORIENTATION_TAG = 0x0112
_NO_SUCH_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_PIXEL_BYTES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16L": 2, "I;16B": 2, "I;16N": 2}  # as Pillow keeps them, else 4
_WHOLE_AT_ONCE = frozenset({"JPEG2000", "WEBP"})  # decoded beside Pillow's own copy
_DEEP_GREY_ALPHA = bytes([16, 4])  # bit depth and colour type in a PNG's header
ONLY_HIDDEN = "only transparency or colour that cannot be shown varies"
_EXAMINED_SIDE = 256  # a large JPEG is examined at the smallest scale that is at least this large
_WORKERS = min(8, os.cpu_count() or 1)


class MemoryBudget:
    """A semaphore weighted by bytes. What needs more than the whole budget waits until it is alone, and then runs."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held = 0
        self._changed = threading.Condition()

    @contextmanager
    def hold(self, wanted: int) -> Iterator[None]:
        """Wait for so many bytes, and keep them until the block ends. A thread holds one such share at a time."""
        share = min(wanted, self.limit)
        with self._changed:
            self._changed.wait_for(lambda: self._held + share <= self.limit)
            self._held += share
        try:
            yield
        finally:
            with self._changed:
                self._held -= share
                self._changed.notify_all()


MEMORY = MemoryBudget(1 << 30)  # for the pixels of all images that are decoded at the same time


class ImageError(ValueError):
    """A file that cannot be used, and in one word why."""

    def __init__(self, kind: ImageFault, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, kw_only=True)
class ImageFacts:
    """What one complete decoding of a file has shown."""

    size: tuple[int, int]  # height, width as the file has them, upright
    channels: int  # 1 grey, 3 colour
    file_digest: str  # SHA-256 of the file
    pixel_digest: bytes  # of what was decoded: equal for equal pictures under two names


def read_image_file(path: str) -> bytes:
    """The bytes of a regular file of acceptable size; an ImageError otherwise."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for ever
            raise ImageError("missing file", "this is not a file")
        if status.st_size > MAX_FILE_BYTES:
            raise ImageError("decompression bomb", f"the file has more than {MAX_FILE_BYTES:,} bytes")
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        if error.errno in _NO_SUCH_FILE:
            raise ImageError("missing file", "the file does not exist") from None
        raise ImageError("unreadable image", error.strerror or str(error)) from None


def examine_image(path: str, *, window: Window | None = None) -> ImageFacts:
    """Decode a file once, to know that it can be, and keep what a table has to know of it."""
    content = read_image_file(path)
    with ExitStack() as held:
        reserve = _reserve_in(held)
        pixels, size = _decode(content, window=window, at_least=_EXAMINED_SIDE, reserve=reserve)
        digest = hashlib.blake2b(repr(size).encode(), digest_size=16)
        digest.update(np.ascontiguousarray(pixels).data)
        return ImageFacts(
            size=size,
            channels=pixels.shape[2],
            file_digest=hashlib.sha256(content).hexdigest(),
            pixel_digest=digest.digest(),
        )


def decode_image(
    content: bytes, *, channels: int | None = None, size: tuple[int, int] | None = None, window: Window | None = None
) -> Pixels:
    """A file's picture, uint8 (H, W, C): C = `channels`, else 1 for grey and 3 for colour files.

    size: (height, width) to resize to, bilinear, whatever the proportions were.
    """
    with ExitStack() as held:
        at_least = None if size is None else 2 * max(size)
        pixels, _ = _decode(content, window=window, at_least=at_least, reserve=_reserve_in(held))
        if size is not None and pixels.shape[:2] != size:
            picture = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
            pixels = _with_channels(np.asarray(picture.resize((size[1], size[0]), Image.Resampling.BILINEAR)))
        if channels == 3 and pixels.shape[2] == 1:
            pixels = np.repeat(pixels, 3, axis=2)
        elif channels == 1 and pixels.shape[2] == 3:
            pixels = _with_channels(np.asarray(Image.fromarray(pixels).convert("L")))
        return pixels


class ImageFileInputs:
    """Images decoded from their files whenever they are asked for; `data.packed` decodes them once.

    file_digests: as the check of a table found them. Without, for sets too large to be read before they are used, a
    file's digest is kept from its first reading, so that `packed.pack` reads every file once and no more.
    """

    dtype = np.dtype(np.uint8)

    def __init__(
        self,
        paths: Sequence[str],
        *,
        shape: tuple[int, int, int],
        file_digests: Sequence[str] | None = None,
        window: Window | None = None,
    ) -> None:
        if file_digests is not None and len(paths) != len(file_digests):
            raise ValueError(f"there are {len(file_digests)} file digests for {len(paths)} paths.")
        self.paths = tuple(paths)
        self.shape = shape
        self.file_digests = None if file_digests is None else tuple(file_digests)
        self.window = window
        self._known: list[str | None] = [None] * len(paths) if file_digests is None else list(file_digests)

    def __len__(self) -> int:
        return len(self.paths)

    def __call__(self, indices: Indices) -> Pixels:
        rows = np.arange(len(self.paths))[indices].tolist()  # negative and impossible numbers as NumPy has them
        images = np.empty((len(rows), *self.shape), dtype=np.uint8)

        def fill(place: int) -> None:
            content = self._read(rows[place])
            try:
                images[place] = decode_image(
                    content, channels=self.shape[2], size=(self.shape[0], self.shape[1]), window=self.window
                )
            except ImageError as error:
                raise ImageError(error.kind, f"{self.paths[rows[place]]}: {error}") from None

        with ThreadPoolExecutor(max_workers=_WORKERS) as pool:  # Pillow decodes outside Python's lock
            list(pool.map(fill, range(len(rows))))
        return images

    def digest(self) -> str:
        """SHA-256 over the files' own digests and over how they are decoded; where the files lie does not matter.

        Reads those files whose digest is not known yet.
        """
        with ThreadPoolExecutor(max_workers=_WORKERS) as pool:
            for _ in pool.map(self._note, [row for row, known in enumerate(self._known) if known is None]):
                pass
        sha = hashlib.sha256(f"{self.shape}{self.window}".encode())
        for file_digest in self._known:
            assert file_digest is not None
            sha.update(file_digest.encode())
        return sha.hexdigest()

    def sizes(self) -> list[int]:
        """Bytes of each file: whether one was replaced shows in these, nearly always, without reading any."""
        return [os.path.getsize(path) for path in self.paths]

    def _note(self, row: int) -> None:
        self._read(row)  # the content is not kept

    def _read(self, row: int) -> bytes:
        path, checked = self.paths[row], self.file_digests is not None
        try:
            content = read_image_file(path)
        except ImageError as error:
            before = " (it was readable when the table was checked)" if checked else ""
            raise ImageError(error.kind, f"{path}: {error}{before}") from None
        digest = hashlib.sha256(content).hexdigest()
        if self._known[row] is None:
            self._known[row] = digest
        elif self._known[row] != digest:
            when = "the table was checked" if checked else "it was first read"
            raise ImageError("unreadable image", f"{path} has changed since {when}")
        return content


def files_at(paths: Sequence[str], *, size: int | tuple[int, int], channels: int, where: str) -> ImageFileInputs:
    """These files, all of which must be there and none of which is opened; `where` names the download in messages."""
    if missing := [path for path in paths if not os.path.isfile(path)]:
        raise ValueError(
            f"{where} lacks {len(missing):,} of {len(paths):,} image files (first: {missing[0]}). "
            "Unpack the whole download there."
        )
    return ImageFileInputs(paths, shape=(*as_size(size), channels))


def as_size(size: int | tuple[int, int]) -> tuple[int, int]:
    """(height, width) from one side or both."""
    height, width = (size, size) if isinstance(size, int) else size
    if height < 1 or width < 1 or height * width > MAX_PIXELS:
        raise ValueError(f"size must be (height, width) in pixels, not {size}.")
    return int(height), int(width)


def _reserve_in(held: ExitStack) -> Reserve:
    """Takes a share of MEMORY that is given back when `held` ends."""
    return lambda wanted: held.enter_context(MEMORY.hold(wanted))


def _decode(
    content: bytes, *, window: Window | None, at_least: int | None, reserve: Reserve
) -> tuple[Pixels, tuple[int, int]]:
    """Pixels (H, W, C), and the picture's full size; a JPEG may come at a smaller scale, not below `at_least`.

    reserve: called once with the memory this will take, as soon as the file's header says so.
    """
    try:
        if is_dicom(content):
            values = decode_dicom(content, window=window, max_pixels=MAX_PIXELS, reserve=reserve)
            return _with_channels(values), (values.shape[0], values.shape[1])
        return _decode_picture(content, window=window, at_least=at_least, reserve=reserve)
    except (ImageError, MissingPydicom):
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise ImageError("decompression bomb", f"the picture has more than {MAX_PIXELS:,} pixels") from None
    except OverflowError as error:
        raise ImageError("decompression bomb", str(error)) from None
    except Flattened as error:
        raise ImageError("constant image", str(error)) from None
    except Unusable as error:
        raise ImageError("unreadable image", str(error)) from None
    except UnidentifiedImageError:
        kinds = "jpg, png, tif, bmp, webp, jp2 or DICOM"
        raise ImageError("unreadable image", f"this is not an image that can be read ({kinds})") from None
    except Exception as error:  # decoders meet a broken file with nearly any exception there is
        # Pillow's own words help (how many bytes are missing); pydicom's, and those of Python, do not.
        told = isinstance(error, OSError | SyntaxError) and not is_dicom(content)
        reason = f" ({' '.join(str(error).split())[:200]})" if told and str(error) else ""
        raise ImageError("unreadable image", f"the file is damaged or cut short{reason}; copy it again") from None


def _decode_picture(
    content: bytes, *, window: Window | None, at_least: int | None, reserve: Reserve
) -> tuple[Pixels, tuple[int, int]]:
    in_bytes = _deep_grey_alpha_in_bytes(content)
    with Image.open(io.BytesIO(content if in_bytes is None else in_bytes), formats=_FORMATS) as picture:
        width, height = picture.size
        if width * height > MAX_PIXELS:
            raise ImageError("decompression bomb", f"{width} x {height} pixels are more than {MAX_PIXELS:,}")
        frames = getattr(picture, "n_frames", 1)
        if frames > 1 and picture.format != "MPO":  # a camera's MPO holds the picture first, then its preview
            raise ImageError("unreadable image", f"the file holds {frames} images; save each in a file of its own")
        if at_least is not None:
            picture.draft(None, (at_least, at_least))
        reserve(_decoding_bytes(picture))
        sixteen_bit_colour = ";16" in str(picture.tile[0].args) if picture.tile else False
        picture.load()
        upright = picture.transpose(_UPRIGHT[turn]) if (turn := _orientation(picture)) in _UPRIGHT else picture
        if turn >= 5:
            width, height = height, width
        if in_bytes is not None or upright.mode in _DEEP_GREY:
            return _with_channels(_windowed(upright, window, in_bytes=in_bytes is not None)), (height, width)
        pixels = _eight_bit_pixels(upright)
        require_varied(pixels, lambda: _varies(upright), ONLY_HIDDEN)
        if sixteen_bit_colour:
            lower = partial(_spread_of_low_bytes, content)
            remedy = "of 16-bit colour only the upper 8 bits are used; scale the values up to 65535, or save 8 bits"
            require_varied(pixels, lambda: lower() > 0, remedy)
            require_light(pixels, lower, remedy)
    return _with_channels(pixels), (height, width)


def _decoding_bytes(picture: Image.Image) -> int:
    """The most that decoding takes: Pillow's pixels, once more where they are turned or resized, and the array."""
    kept = _PIXEL_BYTES.get(picture.mode, 4)
    beside = 4 * len(picture.getbands()) if picture.format in _WHOLE_AT_ONCE else 0
    return picture.width * picture.height * (2 * kept + (1 if kept < 4 and picture.mode != "P" else 3) + beside)


def _eight_bit_pixels(picture: Image.Image) -> Pixels:
    """(H, W) of a grey picture, (H, W, 3) of any other, converted piece by piece."""
    grey = picture.mode in _GREY
    pixels = np.empty((picture.height, picture.width) if grey else (picture.height, picture.width, 3), dtype=np.uint8)
    for rows in pieces(picture.height, picture.width):
        piece = _rows_of(picture, rows)
        piece = piece.convert("RGBA") if piece.mode in ("P", "PA") else piece
        pixels[rows] = np.asarray(piece.convert("L" if grey else "RGB"))
    return pixels


def _windowed(picture: Image.Image, window: Window | None, *, in_bytes: bool) -> Pixels:
    """(H, W) of deep grey. in_bytes: the first two channels of the picture are the upper and the lower byte."""

    def values(rows: slice) -> npt.NDArray[Any]:
        piece = np.asarray(_rows_of(picture, rows))
        return piece[..., 0].astype(np.uint16) << 8 | piece[..., 1] if in_bytes else piece

    shape = (picture.height, picture.width)
    low, high = extremes(values, shape, otherwise="pixels hold NaN or infinity")
    pixels = to_eight_bits(values, shape, linear(*(window or (low, high))))
    require_varied(pixels, lambda: low < high, f"all lie on one side of the window; they go from {low:g} to {high:g}")
    if in_bytes:
        require_varied(pixels, lambda: _varies(picture), ONLY_HIDDEN)
    return pixels


def _rows_of(picture: Image.Image, rows: slice) -> Image.Image:
    whole = rows == slice(0, picture.height)
    return picture if whole else picture.crop((0, rows.start, picture.width, rows.stop))


def _varies(picture: Image.Image) -> bool:
    """Whether a band of the file's own differs somewhere; for a palette, whether the colours or the transparency do."""
    shown = picture.convert("RGBA") if picture.mode in ("P", "PA") else picture
    return any(band.getextrema()[0] != band.getextrema()[1] for band in shown.split())


def _spread_of_low_bytes(content: bytes) -> int:
    """How far apart the lower bytes of 16-bit colour are: Pillow drops them, and keeps them in the other order."""
    with Image.open(io.BytesIO(content), formats=_FORMATS) as picture:
        picture.tile = [tile._replace(args=_other_order(tile.args)) for tile in picture.tile]
        return max(int(np.ptp(band.getextrema())) for band in picture.split())


def _other_order(args: Any) -> Any:
    """A raw mode of Pillow's, alone or at the head of a tuple, with its bytes the other way round."""
    if isinstance(args, tuple):
        return (_other_order(args[0]), *args[1:])
    return args.replace(";16B", ";16L") if ";16B" in args else args.replace(";16L", ";16B").replace(";16N", ";16B")


def _deep_grey_alpha_in_bytes(content: bytes) -> bytes | None:
    """A PNG of 16-bit grey with alpha as one of 8-bit RGBA, which has the same bytes; None for any other file.

    Pillow keeps the upper byte alone, which of a scan of 12 bits is nearly nothing. Red and green are now the two bytes
    of the grey value.
    """
    if not content.startswith(b"\x89PNG\r\n\x1a\n") or content[12:16] != b"IHDR" or content[24:26] != _DEEP_GREY_ALPHA:
        return None
    header = content[12:24] + bytes([8, 6]) + content[26:29]
    return content[:12] + header + struct.pack(">I", zlib.crc32(header)) + content[33:]


def _orientation(picture: Image.Image) -> int:
    try:
        turn = picture.getexif().get(_ORIENTATION_TAG, 1)
    except Exception:  # broken camera data is no reason to refuse a good picture
        return 1
    return turn if isinstance(turn, int) else 1


def _with_channels(pixels: Pixels) -> Pixels:
    return pixels[..., None] if pixels.ndim == 2 else pixels
