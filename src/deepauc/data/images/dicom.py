"""DICOM pictures as uint8 arrays. Only pixels leave this file: no tag of the patient, the study or the device."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from deepauc.data.images.windowing import Array, Pixels, Show, Unusable, extremes, linear, require_varied, to_eight_bits

_NEEDED = ("Rows", "Columns", "PhotometricInterpretation", "BitsAllocated", "PixelData")
_DEFLATED = b"1.2.840.10008.1.2.1.99"  # the transfer syntax's identifier


class MissingPydicom(ValueError):
    """The optional package that reads DICOM is not installed: no fault of the file."""


def is_dicom(content: bytes) -> bool:
    return content[128:132] == b"DICM"


def decode_dicom(
    content: bytes, *, window: tuple[float, float] | None, max_pixels: int, reserve: Callable[[int], None]
) -> Pixels:
    """One frame, (H, W) grey or (H, W, 3) colour, as a viewer shows it (DICOM PS3.3, C.11).

    Grey: stored values -> modality LUT or rescale -> window -> 0..255, MONOCHROME1 inverted. The window is the
    argument, else the file's first, else its VOI LUT, else minimum to maximum. reserve: called with the memory that
    decoding takes.
    """
    try:
        import pydicom
        from pydicom.pixels import apply_color_lut, pixel_array
    except ModuleNotFoundError:
        raise MissingPydicom("reading DICOM files needs pydicom: pip install 'deepauc[dicom]'") from None

    if _DEFLATED in content:  # the whole file inflates before its size can be seen
        raise OverflowError("deflated DICOM is refused; save the file uncompressed")
    # Of a damaged file pydicom's warnings quote the bytes, a patient's name among them. A filter, not a context:
    # files are decoded in threads, which share it.
    warnings.filterwarnings("ignore", module=r"pydicom\.")
    dataset = pydicom.dcmread(io.BytesIO(content))
    if missing := [tag for tag in _NEEDED if tag not in dataset]:
        raise Unusable(f"the DICOM file has no {' and no '.join(missing)}: it is damaged, cut short, or holds no image")
    if (pixels := int(dataset.Rows) * int(dataset.Columns)) > max_pixels:
        raise OverflowError(f"{dataset.Columns} x {dataset.Rows} = {pixels:,} pixels are more than {max_pixels:,}")
    if (frames := int(dataset.get("NumberOfFrames") or 1)) > 1:
        raise Unusable(f"the file holds {frames} frames; save each in a file of its own")
    photometric = str(dataset.PhotometricInterpretation)
    stored_bytes = int(dataset.get("SamplesPerPixel") or 1) * max(1, int(dataset.BitsAllocated) // 8)
    reserve(pixels * (3 * stored_bytes + 8))  # the file's bytes, their decoding, the array; a palette's colours
    stored = pixel_array(dataset)
    if photometric == "PALETTE COLOR" or stored.ndim == 3:
        deep = apply_color_lut(stored, dataset) if photometric == "PALETTE COLOR" else stored
        dropped = 8 * (deep.dtype.itemsize - 1) if deep is not stored else max(0, int(dataset.BitsStored) - 8)
        shown = np.asarray(deep >> dropped).astype(np.uint8)
        require_varied(shown, lambda: bool((deep != deep[0, 0]).any()), "of colour only the upper 8 bits are used")
    else:
        shown = _shown_grey(stored, dataset, window)
    return 255 - shown if photometric == "MONOCHROME1" else shown


def _shown_grey(stored: Array, dataset: Any, window: tuple[float, float] | None) -> Pixels:
    from pydicom.pixels import apply_modality_lut

    def values(rows: slice) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):  # told below
            return np.asarray(apply_modality_lut(stored[rows], dataset))

    shape = (stored.shape[0], stored.shape[1])
    slope, intercept = (dataset.get(name) for name in ("RescaleSlope", "RescaleIntercept"))
    rescaled = f"RescaleSlope {slope} and RescaleIntercept {intercept}"
    wrong = f"{rescaled} turn pixels into NaN or infinity; correct these tags"
    low, high = extremes(values, shape, otherwise=wrong)
    shown = to_eight_bits(values, shape, _window_of(dataset, window, low, high))
    reason = f"after {rescaled} they go from {low:g} to {high:g}, all on one side of the window, or too close for it"
    require_varied(shown, lambda: bool(stored.min() != stored.max()), reason)
    return shown


def _window_of(dataset: Any, window: tuple[float, float] | None, low: float, high: float) -> Show:
    """How values are shown that go from `low` to `high`."""
    if window is None and (centre := _first(dataset.get("WindowCenter"))) is not None:
        width = _first(dataset.get("WindowWidth"))
        if width is None or not (0 < width < math.inf and math.isfinite(centre)):
            said = "missing" if width is None else f"{width:g}"
            raise Unusable(
                f"WindowCenter is {centre:g} and WindowWidth is {said}; the width must be positive: correct these "
                "tags, or remove both to show all values"
            )
        function = str(dataset.get("VOILUTFunction") or "LINEAR")
        if function == "SIGMOID":
            return _sigmoid(centre, width)
        if function == "LINEAR" and width > 1:  # LINEAR is off by half a step from LINEAR_EXACT (PS3.3, C.11.2.1.2)
            centre, width = centre - 0.5, width - 1
        window = (centre - width / 2, centre + width / 2)
    elif window is None and "VOILUTSequence" in dataset:
        from pydicom.pixels import apply_voi_lut

        bits = int(dataset.VOILUTSequence[0].LUTDescriptor[2])
        return lambda values: np.asarray(apply_voi_lut(values.astype(np.int64), dataset)) / (2**bits - 1)
    return linear(*(window or (low, high)))


def _sigmoid(centre: float, width: float) -> Show:
    return lambda values: 1 / (1 + np.exp(np.clip(-4 * (values - centre) / width, -700, 700)))


def _first(value: Any) -> float | None:
    if value is None or value == "":
        return None
    try:
        return float(value)
    except TypeError:  # several windows: the first is the one a viewer opens with
        return float(value[0]) if len(value) else None
