"""Pictures with extreme pixels: decoded as they should be, or refused; none comes out constant without a word.

python reliability/decoding.py
"""

from __future__ import annotations

import argparse
import io
import struct
import sys
import time
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pydicom
from PIL import Image
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid
from record import Row, write_record

from deepauc.data.images.decode import ImageError, decode_image

Generator = np.random.Generator
EXTREMES = ("0", "1", "-1", "1e-300", "1e300", "1e308", "-1e308", "1e39", "65535", "-32768", "0.001", "4096")


def deep_values(generator: Generator) -> np.ndarray:
    """16-bit values in a range of random place and width, often a narrow one."""
    shape = tuple(generator.integers(1, 9, 2))
    low = int(generator.integers(0, 65536))
    high = min(65535, low + int(2 ** generator.uniform(0, 16)))
    return generator.integers(low, high + 1, shape).astype(np.uint16)


def deep_grey(generator: Generator) -> tuple[np.ndarray, bytes]:
    values, buffer = deep_values(generator), io.BytesIO()
    Image.fromarray(values).save(buffer, generator.choice(["png", "tiff"]))
    return values, buffer.getvalue()


def deep_png(generator: Generator) -> tuple[np.ndarray, bytes]:
    """16-bit grey with transparency, or colour, of which some bands may be constant."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    colour_type, bands = ((4, 2), (2, 3), (6, 4))[generator.integers(3)]
    values = (
        deep_values(generator)[..., None] // generator.choice([1, 16, 256], bands) * generator.integers(0, 2, bands)
    )
    height, width, _ = values.shape
    lines = np.zeros((height, 1 + 2 * width * bands), dtype=np.uint8)  # each begins with 0: no filter
    lines[:, 1:] = np.ascontiguousarray(values.astype(">u2")).view(np.uint8).reshape(height, -1)
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(lines.tobytes()))
    return values, b"\x89PNG\r\n\x1a\n" + header + body + chunk(b"IEND", b"")


def floating(generator: Generator) -> tuple[np.ndarray, bytes]:
    """float32 of any size, up to the largest there is."""
    exponents = generator.uniform(-44, 38.5, generator.integers(1, 9, 2))
    with np.errstate(over="ignore"):
        values = (generator.choice([-1.0, 1.0], exponents.shape) * 10**exponents).astype(np.float32)
    buffer = io.BytesIO()
    Image.fromarray(values).save(buffer, "tiff")
    return values, buffer.getvalue()


def eight_bits(generator: Generator) -> tuple[np.ndarray, bytes]:
    """Colour, transparency and palettes of few values; what is shown may be less than what differs."""
    mode = str(generator.choice(["L", "LA", "RGB", "RGBA", "CMYK", "P"]))
    bands = len(Image.new(mode, (1, 1)).getbands())
    values = generator.integers(0, generator.integers(1, 4), (*generator.integers(1, 5, 2), bands), dtype=np.uint8)
    picture = Image.frombytes(mode, values.shape[1::-1], values.tobytes())
    if mode == "P":
        picture.putpalette(generator.integers(0, 2, 768, dtype=np.uint8).tobytes())
        values = np.asarray(picture.convert("RGB"))
    buffer = io.BytesIO()
    picture.save(buffer, "tiff")
    return values, buffer.getvalue()


def dicom(generator: Generator) -> tuple[np.ndarray, bytes]:
    """Stored values with a rescale and a window of extreme numbers."""
    values = deep_values(generator)
    meta = FileMetaDataset()
    meta.TransferSyntaxUID, meta.MediaStorageSOPClassUID = ExplicitVRLittleEndian, SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = generate_uid()
    dataset = FileDataset("x", {}, file_meta=meta, preamble=b"\0" * 128)
    dataset.Rows, dataset.Columns = values.shape
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = (
        1,
        str(generator.choice(["MONOCHROME1", "MONOCHROME2"])),
    )
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit, dataset.PixelRepresentation = 16, 16, 15, 0
    dataset.PixelData = values.tobytes()
    for pair in (("RescaleSlope", "RescaleIntercept"), ("WindowCenter", "WindowWidth")):
        if generator.random() < 0.7:
            for name in pair:
                setattr(dataset, name, str(generator.choice(EXTREMES)))
    buffer = io.BytesIO()
    pydicom.dcmwrite(buffer, dataset)
    return values, buffer.getvalue()


def survives(values: np.ndarray, content: bytes) -> tuple[bool, bool]:
    """Whether it is refused, or varies wherever the file does; and whether it was refused."""
    try:
        pixels = decode_image(content)
    except ImageError:
        return True, True
    varied = bool((values != values[0, 0]).any())
    return not varied or bool((pixels != pixels[0, 0]).any()), False


KINDS: dict[str, Callable[[Generator], tuple[np.ndarray, bytes]]] = {
    "16-bit grey": deep_grey,
    "16-bit transparency and colour": deep_png,
    "floating TIFF": floating,
    "8 bits, transparency, palettes": eight_bits,
    "DICOM with extreme rescale and window": dicom,
}


def main() -> int:
    """All kinds, one record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=2000, help="pictures of each kind")
    parser.add_argument("--seed", type=int, default=0, help="of the pictures")
    parser.add_argument("--out", type=Path, help="folder of the record instead of results")
    options = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # pydicom's remarks on long numbers
    began = time.monotonic()
    rows = []
    for what, make in KINDS.items():
        generator = np.random.default_rng(options.seed)
        ends = [survives(*make(generator)) for _ in range(options.trials)]
        refused = sum(was_refused for _, was_refused in ends)
        note = f"{refused:,} refused, the others vary where their files do"
        rows.append(Row(what=what, trials=len(ends), survivors=sum(good for good, _ in ends), note=note))
    holds = write_record(
        "decoding",
        command="python reliability/decoding.py",
        about="Pictures with extreme pixels, windows and rescales: none comes out constant although its file is not.",
        rows=rows,
        seconds=time.monotonic() - began,
        out=options.out,
    )
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
