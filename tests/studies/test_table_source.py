"""A user's table as the task of a study: folds by group, or the table's own parts; inputs fitted on train alone."""

import csv

import numpy as np
import pytest
from PIL import Image

from deepauc.studies.sources import Place
from deepauc.studies.table_source import TableSource


def table(path, *, split=None):
    draw = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "sex", "target", "patient", "part"])
        for row in range(240):
            label = int(row % 15 < 3)
            part = "" if split is None else split[row // 3 % len(split)]
            writer.writerow([draw.normal(50 + 10 * label, 9), draw.choice(["f", "m"]), label, f"p{row // 3}", part])
    return path


def source(**changes):
    given = {"table": "patients.csv", "label": "target", "metadata": ("age", "sex"), "group": "patient"}
    return TableSource(**{**given, **changes})


def test_each_fold_is_the_test_part_once_and_no_patient_is_in_two_parts(tmp_path):
    table(tmp_path / "patients.csv")
    place, held = Place(data=tmp_path), []
    for seed in range(5):
        for tuning in (False, True):
            task = source().load(seed, tuning=tuning, place=place)
            assert set(task.parts) == {"train", "test"} | ({"validation"} if tuning else set())
            patients = [set(task.groups[rows]) for rows in task.parts.values()]
            assert sum(map(len, patients)) == len(set.union(*patients)) == 80
            ages = task.inputs(task.part("train"))[:, 0]
            assert abs(ages.mean()) < 1e-5  # standardised by the rows of train alone
        held.append(task.part("test"))
    assert np.array_equal(np.sort(np.concatenate(held)), np.arange(240))
    with pytest.raises(ValueError, match="0 to 4, not 5"):
        source().load(5, tuning=False, place=place)


@pytest.mark.parametrize("validation", [True, False])
def test_the_tables_own_parts(tmp_path, validation):
    parts = ["train", "train", "validation" if validation else "train", "test"]
    table(tmp_path / "patients.csv", split=parts)
    own, place = source(split="part"), Place(data=tmp_path)
    tuned, final = (own.load(3, tuning=tuning, place=place) for tuning in (True, False))
    assert len(tuned.part("validation")) == pytest.approx(60 if validation else 18, abs=3)
    assert {part: len(rows) for part, rows in final.parts.items()} == {"train": 180, "test": 60}
    assert np.array_equal(tuned.part("test"), final.part("test"))


def test_a_split_without_a_test_row_is_refused(tmp_path):
    table(tmp_path / "patients.csv", split=["train", "validation"])
    with pytest.raises(ValueError, match="names no test row"):
        source(split="part").load(0, tuning=False, place=Place(data=tmp_path))


@pytest.mark.parametrize("inputs", [{"metadata": ()}, {"image": "file"}, {"metadata": "age"}])
def test_inputs_are_images_or_columns(inputs):
    with pytest.raises(ValueError, match="either one column of image files"):
        source(**inputs)


def test_bags_of_images_are_the_rows_and_patients_stay_whole(tmp_path):
    draw = np.random.default_rng(0)
    with (tmp_path / "exams.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "target", "exam", "patient"])
        for row in range(120):
            name, exam = f"{row}.png", row // 3
            Image.fromarray(draw.integers(0, 255, (6, 6)).astype(np.uint8)).save(tmp_path / name)
            writer.writerow([name, int(exam % 4 == 0), f"E{exam}", f"P{exam // 2}"])
    own = source(table="exams.csv", image="file", metadata=(), bag="exam")
    task = own.load(1, tuning=True, place=Place(data=tmp_path))
    assert len(task) == 40
    assert task.source.sizes.tolist() == [3] * 40
    patients = [set(task.groups[rows]) for rows in task.parts.values()]
    assert sum(map(len, patients)) == len(set.union(*patients)) == 20
    with pytest.raises(ValueError, match="bag holds images together"):
        source(bag="exam")
