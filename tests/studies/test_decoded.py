"""Images are decoded once, packed where memory is too small, and whoever listens hears how far that is."""

import re

import numpy as np
from PIL import Image

from deepauc.data.images.decode import files_at
from deepauc.data.task import ArrayInputs, Task
from deepauc.studies import decoded
from deepauc.studies.decoded import decoded_once, telling
from deepauc.studies.sources import Place


def test_large_downloads_are_packed_once(tmp_path, monkeypatch):
    images = np.random.default_rng(0).integers(0, 255, (6, 4, 4, 1)).astype(np.uint8)
    made = Task(
        name="large / one",
        kind="binary",
        source=ArrayInputs(images),
        labels=np.array([0, 1] * 3),
        label_names=("x",),
        parts={"train": np.arange(6)},
        ids=np.arange(6).astype(str),
    )
    place = Place(runs=tmp_path)
    assert not (tmp_path / "packed").exists()
    assert np.array_equal(decoded_once(made, place).inputs([3, 1]), images[[3, 1]])
    monkeypatch.setattr("deepauc.studies.decoded.fits_in_memory", lambda _: False)
    for _ in range(2):
        packed = decoded_once(made, place)
        assert np.array_equal(packed.inputs([3, 1]), images[[3, 1]])
        assert packed.data_hash() == made.data_hash()
    assert len(list((tmp_path / "packed").iterdir())) == 1


def test_a_replaced_image_is_decoded_anew(tmp_path, monkeypatch):
    def write(shade):
        pixels = np.random.default_rng(shade).integers(0, shade, (8, 8, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / "1.png")

    def image():
        files = files_at([f"{tmp_path}/0.png", f"{tmp_path}/1.png"], size=8, channels=3, where="here")
        labels, ids = np.array([0, 1]), np.array(["0", "1"])
        made = Task(name="files", kind="binary", source=files, labels=labels, label_names=("x",),
                    parts={"train": np.arange(2)}, ids=ids)  # fmt: skip
        return decoded_once(made, Place(runs=tmp_path)).inputs([1])[0]

    monkeypatch.setattr("deepauc.studies.decoded.fits_in_memory", lambda _: False)
    Image.new("RGB", (8, 8)).save(tmp_path / "0.png")
    write(255)
    assert np.array_equal(image(), image())
    before = image()
    write(2)
    assert not np.array_equal(image(), before)
    assert len(list((tmp_path / "packed").iterdir())) == 2


def test_decoding_is_told_of_once_a_minute(tmp_path, monkeypatch):
    made = Task(
        name="large",
        kind="binary",
        source=ArrayInputs(np.zeros((5000, 2, 2, 1), dtype=np.uint8)),
        labels=np.arange(5000) % 2,
        label_names=("x",),
        parts={"train": np.arange(5000)},
        ids=np.arange(5000).astype(str),
    )
    told, place = [], Place(runs=tmp_path)
    decoded_once(made, place)  # nobody listens
    with telling(told.append):
        decoded_once(made, place)
        assert told == []  # within a minute
        monkeypatch.setattr(decoded, "TELL_EVERY", 0.0)
        decoded_once(made, place)
        assert re.fullmatch(r"decoded [\d,]+ of 5,000 images, about 0 min left", told[0])
        monkeypatch.setattr(decoded, "fits_in_memory", lambda _: False)
        told.clear()
        decoded_once(made, place)
        assert told[0].startswith(f"decoding 5,000 images once, into {tmp_path / 'packed' / 'large-'}")
        count = len(told)
        decoded_once(made, place)
    assert len(told) == count  # the packed copy is opened
    decoded_once(made, place)
