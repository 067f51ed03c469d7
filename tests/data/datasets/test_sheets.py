"""The reader of sheet files: exact on good ones, one ValueError that names the file on all others."""

import io
import pickle
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from deepauc.data.datasets.sheets import Sheets, read_sheets
from deepauc.data.npy import read_npz
from tests.fuzz import share_of

FUZZ = share_of(2)


def picture(images: np.ndarray, codec: str = "WEBP") -> bytes:
    """A column of images (n, H, W, C) as one lossless picture."""
    column = images.reshape(-1, *images.shape[2:])
    buffer = io.BytesIO()
    Image.fromarray(column[..., 0] if column.shape[-1] == 1 else column).save(buffer, codec, lossless=True, quality=100)
    return buffer.getvalue()


def sheet_arrays(images: np.ndarray, per_sheet: int) -> dict[str, np.ndarray]:
    sheets = [picture(images[i : i + per_sheet]) for i in range(0, len(images), per_sheet)]
    return {
        "data": np.frombuffer(b"".join(sheets), dtype=np.uint8),
        "offsets": np.cumsum([0, *map(len, sheets)]),
        "hw": np.array(images.shape[1:3]),
        "codec": np.array("webp-lossless"),
        "mode": np.array("L" if images.shape[3] == 1 else "RGB"),
        "labels": np.arange(len(images), dtype=np.uint8),
    }


def some_images(count: int = 7, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 5, 4, channels), dtype=np.uint8)


GOOD = sheet_arrays(some_images(), per_sheet=3)
_BUFFER = io.BytesIO()
np.savez(_BUFFER, **GOOD)
GOOD_BYTES = _BUFFER.getvalue()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_images_come_back_exactly(tmp_path, channels, save):
    images = some_images(channels=channels)
    path = tmp_path / "sheets.npz"
    save(path, extra=np.array(["a", "b"]), **sheet_arrays(images, per_sheet=3))
    sheets = read_sheets(path)
    assert np.array_equal(sheets.images, images)
    assert not sheets.images.flags.writeable
    assert sorted(sheets.arrays) == ["extra", "labels"]
    assert np.array_equal(sheets.column("labels"), np.arange(7))
    with pytest.raises(ValueError, match="extra"):
        sheets.column("extra")


def test_mode_is_rgb_where_absent(tmp_path):
    np.savez(tmp_path / "a.npz", **{k: v for k, v in GOOD.items() if k != "mode"})
    assert read_sheets(tmp_path / "a.npz").images.shape == (7, 5, 4, 3)


def test_avif(tmp_path):
    images = np.full((4, 16, 16, 3), 100, dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(images.reshape(64, 16, 3)).save(buffer, "AVIF", quality=90)
    content = np.frombuffer(buffer.getvalue(), dtype=np.uint8)
    arrays = {"data": content, "offsets": np.array([0, len(content)]), "hw": np.array([16, 16])}
    np.savez(tmp_path / "a.npz", codec=np.array("avif-q90"), **arrays)
    decoded = read_sheets(tmp_path / "a.npz")
    assert np.abs(decoded.images.astype(int) - 100).max() < 8
    assert decoded.codec == "avif-q90"


def changed(**arrays: np.ndarray) -> dict[str, np.ndarray]:
    return GOOD | arrays


def wide_picture(width: int, height: int) -> dict[str, np.ndarray]:
    content = np.frombuffer(picture(np.zeros((1, height, width, 3), dtype=np.uint8)), dtype=np.uint8)
    return {"data": content, "offsets": np.array([0, len(content)])}


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({k: v for k, v in GOOD.items() if k != "offsets"}, "'offsets' is missing"),
        (changed(offsets=GOOD["offsets"][::-1]), "offsets must rise"),
        (changed(offsets=GOOD["offsets"] + 1), "offsets must rise"),
        (changed(offsets=GOOD["offsets"][:-1]), "offsets must rise"),
        (changed(offsets=GOOD["offsets"][:1]), "at least two"),
        (changed(offsets=GOOD["offsets"].astype(float)), "whole numbers"),
        (changed(hw=np.array([0, 4])), "hw must be"),
        (changed(hw=np.array([-5, 4])), "hw must be"),
        (changed(hw=np.array([2**62, 4])), "hw must be"),
        (changed(hw=np.array([5, 3])), "not a column of images"),
        (changed(hw=np.array([7, 4])), "not a column of images"),
        (changed(codec=np.array("gif")), "codec must be"),
        (changed(codec=np.array("avif-q88")), "not AVIF"),
        (changed(mode=np.array("CMYK")), "mode must be"),
        (changed(mode=np.array(["L"])), "one string"),
        (changed(labels=np.zeros(8)), "7 images but labels"),
        (changed(data=GOOD["data"].astype(np.int16)), "array of bytes"),
        (changed(**wide_picture(4, 5), labels=np.zeros(3)), "1 images but labels"),
    ],
)
def test_faults_are_named(tmp_path, arrays, words):
    path = tmp_path / "faulty.npz"
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=words) as caught:
        read_sheets(path)
    assert str(path) in str(caught.value)


def test_pickled_objects_are_never_loaded(tmp_path):
    class Trap:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "sprung",))

    path = tmp_path / "pickled.npz"
    np.savez(path, allow_pickle=True, **changed(labels=np.array([Trap()], dtype=object)))
    with pytest.raises(ValueError, match="pickled objects"):
        read_sheets(path)
    (tmp_path / "bare.npz").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ValueError, match=r"bare\.npz"):
        read_sheets(tmp_path / "bare.npz")
    assert not (tmp_path / "sprung").exists()


def test_other_files_are_refused(tmp_path):
    np.save(tmp_path / "array.npy", np.zeros(3))
    for content in (
        b"",
        b"PK",
        (tmp_path / "array.npy").read_bytes(),
        GOOD_BYTES[:-30],
        GOOD_BYTES[: len(GOOD_BYTES) // 2],
    ):
        path = tmp_path / "other.npz"
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"other\.npz"):
            read_sheets(path)
    for path in (tmp_path / "missing.npz", tmp_path):
        with pytest.raises(ValueError, match=path.name):
            read_sheets(path)


def header_of(shape: str, descr: str = "'|u1'") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


@contextmanager
def at_most(megabytes: int) -> Iterator[None]:
    """Fails when Python and NumPy take more memory than this inside."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < megabytes << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("member", "words"),
    [
        (header_of("(1000000000000,)"), "takes 1000000000128 bytes"),
        (header_of("(-1,)"), "impossible"),
        (header_of("(5,)") + b"1234", "takes"),
        (header_of("(5,)", "'|O'"), "pickled"),
        (header_of("(5,)", "[('a', '<i4')]"), "neither numbers nor strings"),
        (header_of("((((((" * 2000), "header"),
        (header_of("__import__('os')"), "header"),
        (b"\x93NUMPY\x09\x00", "header"),
    ],
)
def test_headers_are_held_against_the_file(tmp_path, member, words):
    path = tmp_path / "header.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.npy", member)
    with at_most(1), pytest.raises(ValueError, match=words):
        read_npz(path)


def test_bombs_are_refused_before_they_unfold(tmp_path):
    zipped = tmp_path / "zip_bomb.npz"
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("data.npy", "w") as member:
        member.write(header_of(f"({200 << 20},)"))
        for _ in range(200):
            member.write(bytes(1 << 20))
    assert zipped.stat().st_size < 1 << 20
    with at_most(2), pytest.raises(ValueError, match="larger max_bytes"):
        read_npz(zipped, max_bytes=100 << 20)
    pixels = tmp_path / "pixel_bomb.npz"
    sheet = wide_picture(1000, 1000)
    offsets = sheet["offsets"][1] * np.arange(21)
    arrays = {"data": np.tile(sheet["data"], 20), "offsets": offsets, "hw": np.array([1000, 1000])}
    np.savez(pixels, codec=np.array("webp-lossless"), **arrays)
    assert pixels.stat().st_size < 1 << 17
    with at_most(2), pytest.raises(ValueError, match="larger max_bytes"):
        read_sheets(pixels, max_bytes=50_000_000)
    assert len(read_sheets(pixels, max_bytes=60_000_000).images) == 20


# --- whatever comes in: a result or a ValueError that names the file ------------------------------------------------


def result_or_message(path: Path) -> Sheets | None:
    try:
        sheets = read_sheets(path, max_bytes=1 << 24)
    except ValueError as error:
        if str(path) not in str(error):
            raise AssertionError("the message does not name the file") from error
        return None
    assert sheets.images.ndim == 4
    assert sheets.images.dtype == np.uint8
    return sheets


@FUZZ
@given(
    edits=st.lists(st.tuples(st.integers(0, len(GOOD_BYTES) - 1), st.binary(max_size=4)), max_size=6),
    end=st.integers(0, len(GOOD_BYTES)) | st.none(),
)
def test_damaged_files(tmp_path, edits, end):
    content = bytearray(GOOD_BYTES)
    for place, some in edits:
        content[place : place + len(some)] = some
    path = tmp_path / "damaged.npz"
    path.write_bytes(bytes(content[:end]))
    sheets = result_or_message(path)
    if bytes(content) == GOOD_BYTES and end is None:
        assert sheets is not None


ANY_ARRAY = hnp.arrays(
    dtype=st.sampled_from([np.uint8, np.int64, np.uint64, np.float32, np.bool_, "U3", "S2"]),
    shape=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9),
)


@st.composite
def strange_files(draw: st.DrawFn) -> dict[str, np.ndarray]:
    arrays = dict(GOOD)
    for name in draw(st.lists(st.sampled_from([*GOOD, "extra"]), max_size=3)):
        arrays[name] = draw(ANY_ARRAY)
    for name in draw(st.lists(st.sampled_from(sorted(GOOD)), max_size=1)):
        arrays.pop(name, None)
    if "data" in arrays and draw(st.booleans()):  # broken pictures in a sound archive
        data = np.array(GOOD["data"])
        for place, value in draw(st.lists(st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)), max_size=8)):
            data[place] = value
        arrays["data"] = data
    if "hw" in arrays and draw(st.booleans()):
        arrays["hw"] = np.array(draw(st.tuples(*[st.integers(-2, 40) | st.integers(-(2**62), 2**62)] * 2)))
    return arrays


@FUZZ
@given(arrays=strange_files())
def test_strange_arrays(tmp_path, arrays):
    path = tmp_path / "strange.npz"
    np.savez(path, **arrays)
    result_or_message(path)


@pytest.mark.parametrize("point", [0x110000, 0x7FFFFFFF, 0xFFFFFFFF])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("length", [1, 3])
def test_characters_beyond_unicode_are_refused(tmp_path, point, order, length):
    """NumPy raises SystemError for one of them, and of several makes a string that is none."""
    impossible = np.full(length, point, dtype=f"{order}u4").view(f"{order}U{length}").reshape(())
    for name in ("codec", "labels"):
        np.savez(tmp_path / "s.npz", **{**GOOD, name: impossible})
        with pytest.raises(ValueError, match=r"s\.npz .*invalid character"):
            read_sheets(tmp_path / "s.npz")
