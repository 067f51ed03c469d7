"""Decoding: every kind of file, deep grey windowed, DICOM as a viewer shows it, bombs refused before they go off."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from deepauc.data.images import decode
from deepauc.data.images.decode import ImageError, decode_image, examine_image
from deepauc.data.table.read import read_table

RNG = np.random.default_rng(0)
RGB = RNG.integers(0, 256, (7, 5, 3), dtype=np.uint8)
GREY = RGB[..., 0]


def encoded(pixels, kind, **options):
    buffer = io.BytesIO()
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["png", "tiff", "bmp"])
def test_lossless_files(kind):
    np.testing.assert_array_equal(decode_image(encoded(RGB, kind)), RGB)
    np.testing.assert_array_equal(decode_image(encoded(GREY, kind)), GREY[..., None])


def test_jpeg_is_what_pillow_makes_of_it():
    content = encoded(RGB, "jpeg", quality=95)
    np.testing.assert_array_equal(decode_image(content), np.asarray(Image.open(io.BytesIO(content))))


def test_channels():
    np.testing.assert_array_equal(decode_image(encoded(GREY, "png"), channels=3), np.repeat(GREY[..., None], 3, 2))
    assert decode_image(encoded(RGB, "png"), channels=1).shape == (7, 5, 1)
    alpha = Image.fromarray(np.dstack([RGB, GREY]))
    np.testing.assert_array_equal(decode_image(encoded(alpha, "png")), RGB)
    palette = Image.fromarray(RGB).quantize(8)
    np.testing.assert_array_equal(decode_image(encoded(palette, "png")), np.asarray(palette.convert("RGB")))
    bits = Image.fromarray(GREY).convert("1")
    np.testing.assert_array_equal(decode_image(encoded(bits, "png"))[..., 0], np.asarray(bits.convert("L")))


@pytest.mark.parametrize("kind", ["png", "tiff"])
def test_sixteen_bit_grey(kind):
    deep = np.array([[100, 1100], [2100, 4196]], dtype=np.uint16)
    content = encoded(deep, kind)
    own = np.rint((deep.astype(float) - 100) / 4096 * 255).astype(np.uint8)[..., None]
    np.testing.assert_array_equal(decode_image(content), own)
    fixed = decode_image(content, window=(1100, 2100))[..., 0]
    np.testing.assert_array_equal(fixed, [[0, 0], [255, 255]])
    assert (decode_image(encoded(np.full((3, 3), 900, np.uint16), kind)) == 0).all()


def test_float_tiff():
    np.testing.assert_array_equal(
        decode_image(encoded(np.array([[-1.0, 0.0, 1.0]], dtype=np.float32), "tiff"))[..., 0], [[0, 128, 255]]
    )
    with pytest.raises(ImageError, match="NaN"):
        decode_image(encoded(np.array([[np.nan, 1.0]], dtype=np.float32), "tiff"))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_of_a_camera(orientation, tmp_path):
    from PIL import ImageOps

    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encoded(RGB, "tiff", exif=exif)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(content))))
    np.testing.assert_array_equal(decode_image(content), expected)
    (tmp_path / "a.tif").write_bytes(content)
    assert examine_image(str(tmp_path / "a.tif")).size == expected.shape[:2]


def test_resizing_is_pillows_bilinear():
    big = RNG.integers(0, 256, (40, 30, 3), dtype=np.uint8)
    expected = np.asarray(Image.fromarray(big).resize((8, 10), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(decode_image(encoded(big, "png"), size=(10, 8)), expected)
    grey = np.asarray(Image.fromarray(big[..., 0]).resize((8, 10), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(decode_image(encoded(big[..., 0], "png"), size=(10, 8))[..., 0], grey)


def test_a_large_jpeg_is_reduced_on_the_way_and_looks_the_same(tmp_path):
    y, x = np.mgrid[0:1200, 0:1600]
    smooth = np.stack([x * 255 / 1600, y * 255 / 1200, 127 + 100 * np.sin(x / 80)], axis=2).astype(np.uint8)
    content = encoded(smooth, "jpeg", quality=95)
    expected = np.asarray(Image.open(io.BytesIO(content)).resize((64, 48), Image.Resampling.BILINEAR)).astype(int)
    assert abs(decode_image(content, size=(48, 64)).astype(int) - expected).max() <= 3
    (tmp_path / "a.jpg").write_bytes(content)
    assert examine_image(str(tmp_path / "a.jpg")).size == (1200, 1600)


def png_header_only(width, height):
    """A few bytes that promise a picture of any size."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(("width", "height"), [(10_000, 10_000), (30_000, 30_000), (2**31 - 1, 2**31 - 1)])
def test_bombs_are_refused(tmp_path, width, height):
    Image.fromarray(RGB).save(tmp_path / "a.png")
    Image.fromarray(RGB[::-1]).save(tmp_path / "b.png")
    (tmp_path / "bomb.png").write_bytes(png_header_only(width, height))
    (tmp_path / "t.csv").write_text("file,y\na.png,0\nb.png,1\nbomb.png,1\n")
    with pytest.raises(ValueError) as caught:
        read_table(tmp_path / "t.csv", image_column="file", label_columns=["y"], kind="binary")
    assert [(p.row, p.kind) for p in caught.value.problems] == [(4, "decompression bomb")]
    assert "pixels" in str(caught.value)
    assert "89,478,485" in str(caught.value)  # ours, whatever Pillow's own is


def test_the_limit_does_not_depend_on_pillows(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    with pytest.raises(ImageError) as caught:
        decode_image(png_header_only(10_000, 10_000))
    assert caught.value.kind == "decompression bomb"


def test_a_file_that_is_too_large(tmp_path, monkeypatch):
    (tmp_path / "a.png").write_bytes(encoded(RGB, "png"))
    monkeypatch.setattr(decode, "MAX_FILE_BYTES", 10)
    with pytest.raises(ImageError, match="more than 10") as caught:
        examine_image(str(tmp_path / "a.png"))
    assert caught.value.kind == "decompression bomb"


@pytest.mark.parametrize("kind", ["png", "jpeg", "tiff"])
def test_truncated_files(kind):
    content = encoded(RNG.integers(0, 256, (64, 64, 3), dtype=np.uint8), kind)
    with pytest.raises(ImageError) as caught:
        decode_image(content[: len(content) // 2])
    assert caught.value.kind == "unreadable image"


def test_several_pictures_in_one_file():
    content = encoded(Image.fromarray(RGB), "tiff", save_all=True, append_images=[Image.fromarray(RGB)])
    with pytest.raises(ImageError, match="holds 2 images"):
        decode_image(content)


STORED = np.array([[0, 1000], [2000, 4000]], dtype=np.uint16)


def test_dicom_without_a_window_goes_from_minimum_to_maximum(dicom):
    np.testing.assert_array_equal(decode_image(dicom(STORED, bits=12))[..., 0], [[0, 64], [128, 255]])


def test_dicom_monochrome1_is_inverted(dicom):
    np.testing.assert_array_equal(
        decode_image(dicom(STORED, bits=12, photometric="MONOCHROME1"))[..., 0], [[255, 191], [127, 0]]
    )


def test_dicom_rescale_then_window(dicom):
    """Stored 0..4000 is -1000..1000 after rescaling; the window shows 0 to 500."""
    tags = {"RescaleSlope": "0.5", "RescaleIntercept": "-1000"}
    shown = decode_image(dicom(STORED, **tags, WindowCenter="250", WindowWidth="500", VOILUTFunction="LINEAR_EXACT"))
    np.testing.assert_array_equal(shown[..., 0], [[0, 0], [0, 255]])
    shown = decode_image(dicom(STORED, **tags, WindowCenter="0", WindowWidth="2000", VOILUTFunction="LINEAR_EXACT"))
    np.testing.assert_array_equal(shown[..., 0], [[0, 64], [128, 255]])
    shown = decode_image(dicom(STORED, **tags), window=(-500, 0))
    np.testing.assert_array_equal(shown[..., 0], [[0, 0], [255, 255]])


@pytest.mark.parametrize("function", ["LINEAR", "LINEAR_EXACT", "SIGMOID"])
def test_dicom_windows_agree_with_pydicom(function, dicom):
    pytest.importorskip("pydicom")
    from pydicom.pixels import apply_windowing

    stored = RNG.integers(0, 4096, (20, 30), dtype=np.uint16)
    content = dicom(stored, bits=12, WindowCenter=["1500", "100"], WindowWidth=["2222", "50"], VOILUTFunction=function)
    import pydicom

    shown = apply_windowing(stored, pydicom.dcmread(io.BytesIO(content))) / 4095 * 255
    assert abs(decode_image(content)[..., 0] - shown).max() <= 0.5 + 1e-6


def test_dicom_signed_values_and_colour(dicom):
    signed = np.array([[-1000, 0, 1000]], dtype=np.int16)
    np.testing.assert_array_equal(decode_image(dicom(signed, signed=True))[..., 0], [[0, 128, 255]])
    np.testing.assert_array_equal(decode_image(dicom(RGB, photometric="RGB", bits=8)), RGB)


def test_dicom_refusals(dicom):
    with pytest.raises(ImageError, match="2 frames"):
        decode_image(dicom(STORED, NumberOfFrames="2"))
    with pytest.raises(ImageError) as caught:
        decode_image(dicom(STORED, Rows=60_000, Columns=60_000))
    assert caught.value.kind == "decompression bomb"
    with pytest.raises(ImageError) as caught:
        decode_image(dicom(STORED)[:-4])
    assert caught.value.kind == "unreadable image"
    with pytest.raises(ImageError, match="deflated"):
        decode_image(dicom(STORED, ImageComments="1.2.840.10008.1.2.1.99"))


def test_no_patient_tag_is_kept(tmp_path, dicom):
    import pickle

    for i in range(4):
        (tmp_path / f"{i}.dcm").write_bytes(dicom(STORED + i * STORED // 7))
    (tmp_path / "t.csv").write_text("file,y\n" + "".join(f"{i}.dcm,{i % 2}\n" for i in range(4)))
    task, report = read_table(
        tmp_path / "t.csv", image_column="file", label_columns=["y"], kind="binary", allow_duplicates=True
    )
    assert task.inputs(range(4)).shape == (4, 2, 2, 1)
    kept = pickle.dumps((task, report))
    assert b"SECRET" not in kept
    assert b"Doe" not in kept


def test_dicom_without_pydicom_says_what_to_install(tmp_path, monkeypatch, dicom):
    import sys

    content = dicom(STORED)
    monkeypatch.setitem(sys.modules, "pydicom", None)
    (tmp_path / "a.dcm").write_bytes(content)
    (tmp_path / "t.csv").write_text("file,y\na.dcm,1\n")
    with pytest.raises(ValueError, match=r"deepauc\[dicom\]"):
        read_table(tmp_path / "t.csv", image_column="file", label_columns=["y"], kind="binary")


def test_a_dicom_of_several_frames_is_not_called_damaged(dicom):
    content = dicom(np.stack([STORED, STORED, STORED]).reshape(-1, STORED.shape[1]), NumberOfFrames=3)
    with pytest.raises(ImageError, match=r"^the file holds 3 frames; save each in a file of its own$"):
        decode_image(content)
