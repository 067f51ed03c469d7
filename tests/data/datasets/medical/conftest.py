"""Files as the public downloads have them, made small."""

import csv
import io

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def write_image():
    """Writes a picture of random blocks that no other seed gives; its format is that of the name."""

    def write(path, *, seed=0, size=(24, 20), mode="L"):
        path.parent.mkdir(parents=True, exist_ok=True)
        channels = {"L": 1, "RGB": 3, "RGBA": 4}[mode]
        blocks = np.random.default_rng(seed).integers(0, 256, (4, 4, channels)).astype(np.uint8)
        pixels = np.repeat(np.repeat(blocks, 8, axis=0), 8, axis=1)
        Image.fromarray(pixels[..., 0] if channels == 1 else pixels).resize(size, Image.Resampling.NEAREST).save(path)

    return write


@pytest.fixture
def write_csv():
    def write(path, header, rows):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([header, *rows])

    return write


@pytest.fixture
def write_sheets(tmp_path):
    """Writes (N, H, W[, 3]) images as one lossless sheet, with further arrays; None leaves one out."""

    def write(images, **arrays):
        content = io.BytesIO()
        column = images.reshape(-1, *images.shape[2:])
        Image.fromarray(column).convert("RGB").save(content, "WEBP", lossless=True, exact=True)
        data = np.frombuffer(content.getvalue(), dtype=np.uint8)
        sheet = {
            "data": data,
            "offsets": np.array([0, len(data)]),
            "hw": np.array(images.shape[1:3]),
            "codec": np.array("webp-lossless"),
            "mode": np.array("L" if images.ndim == 3 else "RGB"),
        }
        np.savez(tmp_path / "sheets.npz", **{k: v for k, v in (sheet | arrays).items() if v is not None})
        return tmp_path / "sheets.npz"

    return write
