"""What is exported comes back through `read_table`: the same pixels, labels, parts, patients, weights, metadata."""

import csv

import numpy as np
import pytest
from PIL import Image

from deepauc.data.datasets.medical.medmnist import load_medmnist
from deepauc.data.export import export_task
from deepauc.data.table.read import read_table
from deepauc.data.task import ArrayInputs, Task

COUNT = 12


def made_task(channels=1, **changes):
    labels = (np.arange(COUNT) % 3 == 0).astype(np.float32)
    labels[1] = np.nan  # unlabelled, in train
    pixels = np.random.default_rng(0).integers(0, 256, (COUNT, 5, 7, channels), dtype=np.uint8)
    facts = {
        "name": "made up",
        "kind": "binary",
        "source": ArrayInputs(pixels),
        "labels": labels,
        "label_names": ("ill",),
        "parts": {"train": np.arange(6), "test": np.arange(8, COUNT)},  # rows 6 and 7 are in no part
        "groups": np.array([f"patient, {row // 2}" for row in range(COUNT)]),
        "metadata": {"age": np.where(np.arange(COUNT) == 2, np.nan, 20.1 + np.arange(COUNT)), "sex": ["f", "m"] * 6},
        "weights": np.linspace(0.1, 1, COUNT),
        "ids": np.array([f"é/{row}" for row in range(COUNT)]),
    }
    return Task(**facts | changes)


def read_again(exported, kind="binary"):
    task, report = read_table(
        exported.table,
        label_columns=exported.label_columns,
        kind=kind,
        image_column=exported.image_column,
        group_column=exported.group_column,
        split_column=exported.split_column,
        weight_column=exported.weight_column,
        metadata_columns=exported.metadata_columns,
    )
    assert report.ok
    return task


def assert_same(task, kept, back):
    """`back` holds the rows `kept` of `task`, in order."""
    expected = task.subset(kept)
    everything = np.arange(len(kept))
    np.testing.assert_array_equal(back.inputs(everything), expected.inputs(everything))
    np.testing.assert_array_equal(back.labels, expected.labels)
    assert back.parts.keys() == expected.parts.keys()
    for part, rows in expected.parts.items():
        np.testing.assert_array_equal(back.parts[part], rows)


@pytest.mark.parametrize("channels", [1, 3])
def test_round_trip(tmp_path, channels):
    task = made_task(channels)
    exported = export_task(task, tmp_path / "out")
    back, kept = read_again(exported), [0, 1, 2, 3, 4, 5, 8, 9, 10, 11]
    assert_same(task, kept, back)
    expected = task.subset(kept)
    np.testing.assert_array_equal(back.groups, expected.groups)
    np.testing.assert_array_equal(back.weights, expected.weights)
    np.testing.assert_array_equal(back.metadata["age"], expected.metadata["age"])
    np.testing.assert_array_equal(back.metadata["sex"], expected.metadata["sex"])
    assert exported.parts == {"train": 6, "test": 4}
    with open(exported.table, encoding="utf-8", newline="") as stream:
        rows = list(csv.reader(stream))
    assert rows[0] == ["file", "target", "patient_id", "split", "weight", "id", "age", "sex"]
    assert rows[1][:4] == ["train/00.png", "1", "patient, 0", "train"]
    assert rows[2][:2] == ["train/01.png", ""]
    assert rows[-1][5] == "é/11"


def test_several_labels(tmp_path):
    labels = np.array([[row % 2, (row // 2) % 2] for row in range(COUNT)], dtype=np.float32)
    labels[0, 1] = np.nan
    task = made_task(kind="multilabel", labels=labels, label_names=("Edema", "No Finding"), groups=None, weights=None)
    exported = export_task(task, tmp_path / "out")
    assert exported.label_columns == ("Edema", "No Finding")
    assert exported.group_column is None
    assert_same(task, [0, 1, 2, 3, 4, 5, 8, 9, 10, 11], read_again(exported, "multilabel"))


def test_some_parts_and_progress(tmp_path):
    seen = []
    exported = export_task(made_task(), tmp_path / "out", parts=["test"], progress=lambda *at: seen.append(at))
    assert exported.parts == {"test": 4}
    assert seen == [(4, 4)]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["table.csv", "test"]
    with pytest.raises(ValueError, match="no validation part"):
        export_task(made_task(), tmp_path / "other", parts=["validation"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"source": ArrayInputs(np.zeros((COUNT, 3), dtype=np.float32))}, "only grey and colour images"),
        ({"source": ArrayInputs(np.zeros((COUNT, 4, 4, 2), dtype=np.uint8))}, "only grey and colour images"),
        ({"labels": np.where(np.arange(COUNT) == 0, -1.0, np.arange(COUNT) % 2)}, "uncertain"),
        ({"metadata": {"split": np.arange(COUNT)}}, "two columns .* 'split'"),
        ({"metadata": {"box": np.zeros((COUNT, 4))}}, r"box has shape \(12, 4\)"),
        ({"parts": {}}, "no rows to export"),
    ],
)
def test_what_has_no_place_in_a_table_is_refused(tmp_path, changes, words):
    with pytest.raises(ValueError, match=words):
        export_task(made_task(**changes), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_all_or_nothing(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine.txt").write_text("keep")
    with pytest.raises(ValueError, match="exists already"):
        export_task(made_task(), tmp_path / "there")

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_task(made_task(), tmp_path / "new", progress=stop)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
    (tmp_path / "empty").mkdir()
    assert export_task(made_task(), tmp_path / "empty").table.is_file()


def test_an_empty_folder_is_filled_where_nothing_is_renamed_onto_it(tmp_path, like_windows):
    (tmp_path / "empty").mkdir()
    assert export_task(made_task(), tmp_path / "empty").table.is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


@pytest.mark.data
def test_breastmnist(tmp_path, data_root):
    path = data_root / "breastmnist.npz"
    task = load_medmnist(path, positive=0)
    exported = export_task(task, tmp_path / "breast")
    assert exported.parts == {"train": 546, "validation": 78, "test": 156}
    assert_same(task, np.arange(780), read_again(exported))
    with np.load(path) as arrays:  # once more, past both the loader and the reader
        picture = np.asarray(Image.open(exported.table.parent / "test" / "624.png"))
        np.testing.assert_array_equal(picture, arrays["test_images"][0])
