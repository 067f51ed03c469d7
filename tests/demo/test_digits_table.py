"""The digits as png + csv: the same rows come back from `read_table`, and only its own files are replaced."""

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from deepauc.data.splits import check_leaks
from deepauc.data.table.read import read_table
from deepauc.demo.digits_table import digits_task, write_digits_table


@pytest.fixture
def written(tmp_path):
    return write_digits_table(tmp_path / "new" / "digits")


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_parts_and_positives():
    task = digits_task()
    counts = {part: (int(task.labels[rows].sum()), len(rows)) for part, rows in task.parts.items()}
    assert counts == {"train": (50, 501), "validation": (25, 250), "test": (25, 250)}
    assert check_leaks(task) == ()


def test_labels_are_of_the_images():
    """Each image is one of scikit-learn's, and of the half of the classes that its label says."""
    task, digits = digits_task(), load_digits()
    label_of = {
        (image / 16).tobytes(): float(digit >= 5) for image, digit in zip(digits.images, digits.target, strict=True)
    }
    images = task.inputs(np.arange(len(task)))[..., 0]
    shades = np.rint(images / 255 * 16) / 16
    assert [label_of[image.tobytes()] for image in shades] == task.labels.tolist()


def test_the_table_reads_as_it_was_written(written):
    task = digits_task()
    again, _ = read_table(
        written.table,
        kind="binary",
        image_column=written.image_column,
        label_columns=written.label_columns,
        split_column=written.split_column,
    )
    np.testing.assert_array_equal(again.labels, task.labels)
    np.testing.assert_array_equal(again.inputs(np.arange(len(again))), task.inputs(np.arange(len(task))))
    for part, rows in task.parts.items():
        np.testing.assert_array_equal(again.parts[part], rows)


def test_again_is_the_same_and_leaves_nothing_beside_it(written):
    folder = written.table.parent
    before = contents(folder)
    lost = next(folder.glob("train/*.png"))
    lost.unlink()
    assert write_digits_table(folder) == written
    assert contents(folder) == before
    assert list(folder.parent.iterdir()) == [folder]


def test_an_empty_folder_is_taken(tmp_path):
    (tmp_path / "digits").mkdir()
    assert write_digits_table(tmp_path / "digits").table.exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [("notes.txt", "notes.txt was not written by the demo"), ("table.csv", "not the table that the demo writes")],
)
def test_what_is_not_the_demos_is_kept(written, name, message):
    folder = written.table.parent
    (folder / name).write_text("mine")
    before = contents(folder)
    with pytest.raises(ValueError, match=message):
        write_digits_table(folder)
    assert contents(folder) == before
    assert list(folder.parent.iterdir()) == [folder]


def test_a_file_or_a_link_is_kept(written, tmp_path):
    Image.new("L", (8, 8)).save(tmp_path / "picture.png")
    (tmp_path / "link").symlink_to(written.table.parent)
    for name in ("picture.png", "link"):
        with pytest.raises(ValueError, match="not a folder of the demo"):
            write_digits_table(tmp_path / name)
    assert (tmp_path / "link").is_symlink()
