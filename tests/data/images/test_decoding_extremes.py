"""Images that decoding could spoil without a word, and the memory it takes."""

import io
import json
import struct
import subprocess
import sys
import threading
import zlib

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from deepauc.data.images.decode import ImageError, MemoryBudget, decode_image
from deepauc.data.images.windowing import to_eight_bits
from deepauc.data.table.read import read_table

DEEP = np.array([[100, 1100, 300], [2100, 4196, 500]], dtype=np.uint16)


def encoded(pixels, kind):
    buffer = io.BytesIO()
    (pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)).save(buffer, kind)
    return buffer.getvalue()


def deep_png(values, colour_type):
    """A PNG of 16 bits a sample, unfiltered; values (H, W, C)."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, _ = values.shape
    packed = np.zeros((height, 1 + values[0].size * 2), np.uint8)
    packed[:, 1:] = np.ascontiguousarray(values.astype(">u2")).view(np.uint8).reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0)
    body = chunk(b"IDAT", zlib.compress(packed.tobytes(), 1))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + body + chunk(b"IEND", b"")


@settings(max_examples=50, deadline=None)
@given(arrays.arrays(np.uint16, arrays.array_shapes(min_dims=2, max_dims=2, max_side=6)), st.data())
def test_deep_grey_with_alpha_is_windowed_as_without(values, data):
    alpha = data.draw(arrays.arrays(np.uint16, values.shape))
    assume(values.min() < values.max() or alpha.min() == alpha.max())
    window = data.draw(st.none() | st.just((values.min() - 1.0, values.max() + 300.0)))
    plain, with_alpha = deep_png(values[..., None], 0), deep_png(np.dstack([values, alpha]), 4)
    expected = decode_image(plain, window=window)
    np.testing.assert_array_equal(decode_image(with_alpha, window=window), expected)


def test_large_deep_grey_is_windowed_piece_by_piece_alike(monkeypatch):
    values = np.random.default_rng(0).integers(0, 4096, (37, 11)).astype(np.uint16)
    whole = decode_image(deep_png(values[..., None], 0))
    rgb = np.random.default_rng(1).integers(0, 256, (37, 11, 3), dtype=np.uint8)
    monkeypatch.setattr("deepauc.data.images.windowing.PIECE", 40)
    np.testing.assert_array_equal(decode_image(deep_png(values[..., None], 0)), whole)
    np.testing.assert_array_equal(decode_image(encoded(rgb, "png")), rgb)
    palette = Image.fromarray(rgb).quantize(8)
    np.testing.assert_array_equal(decode_image(encoded(palette, "png")), np.asarray(palette.convert("RGB")))
    shown = to_eight_bits(lambda rows: values[rows], (37, 11), lambda numbers: numbers / 4095)
    np.testing.assert_array_equal(shown, np.rint(values / 4095 * 255))


def constant_image(content, **options):
    with pytest.raises(ImageError, match="although those of the file differ") as caught:
        decode_image(content, **options)
    return caught.value.kind == "constant image"


def test_what_becomes_constant_is_refused(dicom):
    assert constant_image(encoded(DEEP, "png"), window=(5000, 6000))
    colour = np.dstack([DEEP % 256] * 3)  # 16-bit colour of which the lower byte alone says anything
    assert constant_image(deep_png(colour, 2))
    assert constant_image(deep_png(np.dstack([colour, np.full_like(DEEP, 65535)]), 6))
    assert constant_image(deep_png(np.dstack([np.full_like(DEEP, 9), DEEP]), 4))  # transparency alone varies
    hidden = np.dstack([np.zeros((2, 3, 3), np.uint8), (DEEP // 20).astype(np.uint8)])
    assert constant_image(encoded(Image.fromarray(hidden), "png"))
    black = Image.merge("CMYK", [*Image.fromarray(hidden[..., 3]).convert("RGB").split(), Image.new("L", (3, 2), 255)])
    assert constant_image(encoded(black, "tiff"))
    assert constant_image(dicom(DEEP, WindowCenter="10000", WindowWidth="100"))
    assert constant_image(dicom(DEEP, RescaleSlope="0", RescaleIntercept="0"))
    assert constant_image(dicom(np.dstack([DEEP % 256] * 3), photometric="RGB"))


def test_colour_of_twelve_bits_is_refused_and_a_dark_picture_is_not():
    dark = DEEP // 300
    with pytest.raises(ImageError, match="below 16 of 255"):
        decode_image(deep_png(np.dstack([np.minimum(DEEP, 4095)] * 3), 2))
    for scale in (256, 257):
        np.testing.assert_array_equal(decode_image(deep_png(np.dstack([dark * scale] * 3), 2))[..., 0], dark)


def test_what_is_constant_is_no_fault(dicom):
    for constant in (np.full((3, 4), 7, np.uint8), np.full((3, 4, 3), (1, 2, 3), np.uint8), np.full((3, 4), 9, "u2")):
        assert np.ptp(decode_image(encoded(constant, "png")), axis=(0, 1)).max() == 0
    assert (decode_image(deep_png(np.full((3, 4, 3), 900), 2)) == 3).all()
    assert (decode_image(dicom(np.full((3, 4), 9, np.uint16))) == 0).all()
    assert (decode_image(dicom(np.full((3, 4), 9, np.uint16), WindowCenter="0", WindowWidth="1")) == 255).all()


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ({"RescaleSlope": "1e308", "RescaleIntercept": "0"}, "RescaleSlope 1e308 .* NaN or infinity"),
        ({"RescaleSlope": "-4e307", "RescaleIntercept": "1e308"}, "NaN or infinity|span more than can be shown"),
        ({"WindowCenter": "400", "WindowWidth": "-800"}, "WindowWidth is -800"),
        ({"WindowCenter": "400", "WindowWidth": "0"}, "WindowWidth is 0"),
        ({"WindowCenter": "400"}, "WindowWidth is missing"),
        ({"WindowCenter": "400", "WindowWidth": "-8", "VOILUTFunction": "SIGMOID"}, "WindowWidth is -8"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning:pydicom")
def test_a_dicom_that_cannot_be_windowed_is_refused(tags, message, tmp_path, dicom):
    with pytest.raises(ImageError, match=message):
        decode_image(dicom(DEEP, **tags))
    (tmp_path / "bad.dcm").write_bytes(dicom(DEEP, **tags))
    (tmp_path / "good.dcm").write_bytes(dicom(DEEP))
    (tmp_path / "t.csv").write_text("file,y\ngood.dcm,0\nbad.dcm,1\n")
    with pytest.raises(ValueError) as caught:
        read_table(tmp_path / "t.csv", image_column="file", label_columns=["y"], kind="binary")
    assert [(p.row, p.kind) for p in caught.value.problems] == [(3, "unreadable image")]


def test_a_constant_image_is_a_problem_of_its_row(tmp_path):
    Image.fromarray(DEEP).save(tmp_path / "good.png")
    (tmp_path / "bad.png").write_bytes(deep_png(np.dstack([DEEP % 256] * 3), 2))
    (tmp_path / "t.csv").write_text("file,y\ngood.png,0\nbad.png,1\n")
    with pytest.raises(ValueError) as caught:
        read_table(tmp_path / "t.csv", image_column="file", label_columns=["y"], kind="binary")
    assert [(p.row, p.kind) for p in caught.value.problems] == [(3, "constant image")]


PEAK = """
import json, resource, sys
from concurrent.futures import ThreadPoolExecutor
from deepauc.data.images.decode import examine_image
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
examine_image(sys.argv[1])
before = peak()
with ThreadPoolExecutor(4) as pool:
    list(pool.map(examine_image, sys.argv[2:]))
print(json.dumps(peak() - before))
"""


def test_the_memory_of_decoding_is_bounded(tmp_path):
    side = 3000
    deep = np.full((side, side, 1), 1000, np.uint16)
    deep[5, 5] = 4000
    (tmp_path / "large.png").write_bytes(deep_png(deep, 0))
    Image.new("RGB", (side, side), (1, 2, 3)).save(tmp_path / "colour.png")
    Image.fromarray(DEEP).save(tmp_path / "small.png")
    names = ["small.png", *["large.png"] * 4, "colour.png"]
    ran = subprocess.run(
        [sys.executable, "-c", PEAK, *(str(tmp_path / name) for name in names)], capture_output=True, check=True
    )
    assert json.loads(ran.stdout) < 16 * 4 * side * side, "four threads, and more than 16 bytes a pixel in each"


def test_a_budget_is_never_exceeded_and_a_glutton_runs_alone():
    budget, lock, now, most = MemoryBudget(10), threading.Lock(), [0], [0]
    beside_glutton = []

    def work(wanted):
        for _ in range(50):
            with budget.hold(wanted):
                with lock:
                    now[0] += min(wanted, 10)
                    most[0] = max(most[0], now[0])
                    if wanted > 10:
                        beside_glutton.append(now[0] - 10)
                with lock:
                    now[0] -= min(wanted, 10)

    threads = [threading.Thread(target=work, args=(wanted,)) for wanted in (3, 4, 5, 25)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)
    assert most[0] <= 10
    assert set(beside_glutton) == {0}


def test_a_share_is_given_back_after_an_error(monkeypatch):
    budget = MemoryBudget(1 << 20)
    monkeypatch.setattr("deepauc.data.images.decode.MEMORY", budget)
    content = encoded(DEEP, "png")
    for _ in range(3):
        with pytest.raises(ImageError):
            decode_image(content[:-30])
    with budget.hold(1 << 20):  # waits for ever unless all is back
        pass
