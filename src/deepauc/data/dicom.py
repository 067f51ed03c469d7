"""DICOM pictures as uint8 arrays. Only pixels leave this file: no tag of the patient, the study or the device."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]
_DEFLATED = b"1.2.840.10008.1.2.1.99"  # the transfer syntax's identifier


class SeveralFrames(Exception):
    """A file of several pictures, which is whole."""


class MissingPydicom(ValueError):
    """The optional package that reads DICOM is not installed: no fault of the file."""


def is_dicom(content: bytes) -> bool:
    return content[128:132] == b"DICM"


def decode_dicom(content: bytes, *, window: tuple[float, float] | None, max_pixels: int) -> Pixels:
    """One frame, (H, W) grey or (H, W, 3) colour, as a viewer shows it (DICOM PS3.3, C.11).

    Grey: stored values -> modality LUT or rescale -> window -> 0..255, MONOCHROME1 inverted. The window is the
    argument, else the file's first, else its VOI LUT, else minimum to maximum.
    """
    try:
        import pydicom
        from pydicom.pixels import apply_color_lut, apply_modality_lut, pixel_array
    except ModuleNotFoundError:
        raise MissingPydicom("DICOM files need pydicom: pip install 'deepauc[dicom]'") from None

    if _DEFLATED in content:  # the whole file inflates before its size can be seen
        raise OverflowError("deflated DICOM is refused; save the file uncompressed")
    dataset = pydicom.dcmread(io.BytesIO(content))
    if (pixels := int(dataset.Rows) * int(dataset.Columns)) > max_pixels:
        raise OverflowError(f"{dataset.Columns} x {dataset.Rows} = {pixels:,} pixels are more than {max_pixels:,}")
    if (frames := int(dataset.get("NumberOfFrames") or 1)) > 1:
        raise SeveralFrames(f"the file holds {frames} frames; give each a file of its own")
    photometric = str(dataset.PhotometricInterpretation)
    stored = pixel_array(dataset)
    if photometric == "PALETTE COLOR":
        colour = apply_color_lut(stored, dataset)
        return (colour >> (8 * (colour.dtype.itemsize - 1))).astype(np.uint8)
    if stored.ndim == 3:
        return np.asarray(stored >> max(0, int(dataset.BitsStored) - 8)).astype(np.uint8)
    shown = _windowed(np.asarray(apply_modality_lut(stored, dataset), dtype=np.float64), dataset, window)
    eight_bits = np.rint(np.clip(shown, 0, 1) * 255).astype(np.uint8)
    return 255 - eight_bits if photometric == "MONOCHROME1" else eight_bits


def _windowed(values: npt.NDArray[np.float64], dataset: Any, window: tuple[float, float] | None) -> npt.NDArray[Any]:
    """Values mapped so that what the window shows lies in [0, 1]."""
    if window is None and (centre := _first(dataset.get("WindowCenter"))) is not None:
        width = _first(dataset.get("WindowWidth")) or 1.0
        function = str(dataset.get("VOILUTFunction") or "LINEAR")
        if function == "SIGMOID":
            return 1 / (1 + np.exp(np.clip(-4 * (values - centre) / width, -700, 700)))
        if function == "LINEAR" and width > 1:  # LINEAR is off by half a step from LINEAR_EXACT (PS3.3, C.11.2.1.2)
            centre, width = centre - 0.5, width - 1
        window = (centre - width / 2, centre + width / 2)
    elif window is None and "VOILUTSequence" in dataset:
        from pydicom.pixels import apply_voi_lut

        bits = int(dataset.VOILUTSequence[0].LUTDescriptor[2])
        return np.asarray(apply_voi_lut(values.astype(np.int64), dataset)) / (2**bits - 1)
    low, high = (values.min(), values.max()) if window is None else window
    return np.zeros_like(values) if high <= low else (values - low) / (high - low)


def _first(value: Any) -> float | None:
    if value is None or value == "":
        return None
    try:
        return float(value)
    except TypeError:  # several windows: the first is the one a viewer opens with
        return float(value[0]) if len(value) else None
