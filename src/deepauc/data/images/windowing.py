"""Values of more than 8 bits as 0 to 255, a few rows at a time: a whole image in float64 takes many times its size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Pixels = npt.NDArray[np.uint8]
RowsOf = Callable[[slice], Array]  # the values (n, W) of some rows of an image
Show = Callable[[npt.NDArray[np.float64]], Array]  # values mapped so that what is shown lies in [0, 1]

PIECE = 1 << 20  # pixels worked on at a time
DARK = 16  # of 255: what 12 of 16 bits come to


class Unusable(Exception):
    """A file that is whole and cannot be used all the same; the message says why."""


class Flattened(Unusable):
    """A file whose pixels differ, and come out equal."""


def pieces(height: int, width: int) -> Iterator[slice]:
    """The rows of an image in slices of about PIECE pixels."""
    rows = max(1, PIECE // max(width, 1))
    for top in range(0, height, rows):
        yield slice(top, min(top + rows, height))


def extremes(rows_of: RowsOf, shape: tuple[int, int], *, otherwise: str) -> tuple[float, float]:
    """The smallest and the largest value; Unusable, with the message `otherwise`, where one is NaN or infinite."""
    low, high = math.inf, -math.inf
    for rows in pieces(*shape):
        values = rows_of(rows)
        least, most = float(values.min()), float(values.max())
        if not (math.isfinite(least) and math.isfinite(most)):
            raise Unusable(otherwise)
        low, high = min(low, least), max(high, most)
    return low, high


def linear(low: float, high: float) -> Show:
    """From `low`, shown as 0, to `high`, shown as 1; all black where nothing lies between."""
    span = high - low
    if not math.isfinite(span):
        raise Unusable(f"pixels from {low:g} to {high:g} span too wide a range to be shown; scale the values down")
    return np.zeros_like if span <= 0 else lambda values: (values - low) / span


def to_eight_bits(rows_of: RowsOf, shape: tuple[int, int], show: Show) -> Pixels:
    """What `show` makes of the values, cut to [0, 1], as 0 to 255."""
    pixels = np.empty(shape, dtype=np.uint8)
    with np.errstate(over="ignore"):  # far outside a narrow window
        for rows in pieces(*shape):
            pixels[rows] = np.rint(np.clip(show(rows_of(rows).astype(np.float64)), 0, 1) * 255)
    return pixels


def require_varied(pixels: Pixels, varied: Callable[[], bool], reason: str) -> None:
    """Flattened, with the reason, where all pixels (H, W) or (H, W, C) are equal although the file's are `varied`."""
    first = pixels[0, 0]
    if not any((row != first).any() for row in pixels) and varied():
        raise Flattened(f"all pixels come out equal although those of the file differ: {reason}")


def require_light(pixels: Pixels, lost: Callable[[], int], remedy: str) -> None:
    """Unusable where the upper bytes that are kept are nearly black, and the lower ones say more: colour of 12 bits.

    lost: how far apart the lower bytes are; where 8 bits were scaled up to 16, no farther than the upper ones.
    """
    if pixels.max() < DARK <= lost():
        raise Unusable(f"all pixels come out below {DARK} of 255, so their differences are lost: {remedy}")
