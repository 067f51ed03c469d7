"""A table's rows as bags: what is counted, what stays together, and what cannot be."""

import csv
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from deepauc.training.config import DataSettings, Settings
from deepauc.training.prepare.prepare import prepare


def table(folder, *, exams=40, shared=(), **cells):
    """Two images an exam; `shared` exams have one and the same first image. cells: column -> cell by (exam, view)."""
    draw = np.random.default_rng(0)
    with (folder / "exams.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "target", "exam", *cells])
        for exam in range(exams):
            for view in range(2):
                pixels = draw.integers(0, 255, (6, 6)).astype(np.uint8)
                if exam in shared and view == 0:
                    pixels = np.arange(36, dtype=np.uint8).reshape(6, 6)
                Image.fromarray(pixels).save(folder / f"{exam}-{view}.png")
                label = "" if view else int(exam % 4 == 0)
                writer.writerow(
                    [f"{exam}-{view}.png", label, f"E{exam}", *(cell(exam, view) for cell in cells.values())]
                )
    return DataSettings(
        table=str(folder / "exams.csv"), image_column="file", label_columns=("target",), bag_column="exam"
    )


def test_counts_are_of_bags_and_a_label_in_one_row_is_the_bags(tmp_path):
    prepared = prepare(Settings(data=table(tmp_path)), "cpu")
    report = prepared.report
    assert (report.rows, report.labelled, report.unlabelled) == (40, 40, 0)
    assert (report.positives, report.negatives) == ({"target": 10}, {"target": 30})
    assert sum(len(rows) for rows in prepared.task.parts.values()) == 40
    assert prepared.task.metadata == {}


def test_bags_with_an_identical_image_are_in_one_part(tmp_path):
    shared = (1, 2, 3, 5, 6, 7, 9, 10)
    prepared = prepare(Settings(data=table(tmp_path, shared=shared)), "cpu")
    own = np.isin(prepared.task.ids, [f"E{exam}" for exam in shared])
    assert len({part for part, rows in prepared.task.parts.items() if own[rows].any()}) == 1
    assert prepared.leaks == {}


def test_a_bag_whose_rows_are_in_two_parts_is_refused(tmp_path):
    parts = ["train", "validation", "test"]
    data = table(tmp_path, part=lambda exam, view: parts[(exam + view) % 3 if exam == 5 else exam % 3])
    with pytest.raises(ValueError, match=r"column 'exam': E5\) differ in their part"):
        prepare(Settings(data=replace(data, split_column="part")), "cpu")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metadata_columns": ("age",), "image_column": None}, "cannot be used together"),
        ({"split_of": "runs/other"}, "cannot be used with a bag column"),
        ({"bag_column": "file", "category_columns": ()}, None),
    ],
)
def test_what_does_not_go_with_bags_is_said(tmp_path, change, message):
    data = replace(table(tmp_path), **change)
    if message is None:  # each image a bag of its own: allowed, and as many bags as labelled rows and others
        assert prepare(Settings(data=data), "cpu").report.rows == 80
        return
    with pytest.raises(ValueError, match=message):
        prepare(Settings(data=data), "cpu")
