"""A8 on the medical page: distances of the classes recomputed from made histograms, pictures beside the records."""

import math

import numpy as np
import pytest
from scipy import stats

from deepauc.paper import catalogue, medical_modes
from deepauc.paper.medical_cells import CELLS
from deepauc.studies.records import RecordBook

NARROW = {"low": 0.0, "high": 1.0, "negative": [8, 8, 0, 0, 0, 0], "positive": [0, 0, 0, 0, 2, 2]}
WIDE = {"low": 0.0, "high": 1.0, "negative": [4, 8, 4, 0, 0, 0], "positive": [0, 0, 2, 4, 2, 0]}
MIXED = {"low": 0.0, "high": 1.0, "negative": [4, 4, 4, 4, 0, 0], "positive": [0, 0, 1, 1, 1, 1]}


def record(study, fold, histogram):
    return {
        "study": study,
        "run": f"{study}{fold}",
        "phase": "final",
        "seed": fold,
        "task": {"name": "melanoma"},
        "score_histogram": {"train": histogram, "test": histogram},
    }


def apart(histogram):
    """From the scores one by one, as numbers of bins."""
    negative, positive = (np.repeat(np.arange(6), histogram[name]) for name in ("negative", "positive"))
    return (positive.mean() - negative.mean()) / math.sqrt((positive.var() + negative.var()) / 2)


@pytest.fixture
def results(tmp_path):
    book = RecordBook(tmp_path / "medical")
    for fold, (ours, theirs) in enumerate(((NARROW, MIXED), (WIDE, MIXED), (NARROW, WIDE))):
        book.add(record("isic-M-auc_m", fold, ours))
        book.add(record("isic-M-ce", fold, theirs))
    book.add(record("ham-meta-ce", 0, MIXED))  # no AUC-M beside it
    book.add(record("breast-R-ours-ce", 0, MIXED))  # another task
    return tmp_path


def test_distances_and_overlap_by_loss(results):
    _, about, table = medical_modes.mode_sections(RecordBook(results / "medical"), CELLS["medical"])
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    assert [row[:3] for row in rows] == [["ham-meta", "CE", "1"], ["isic-M", "AUC-M", "3"], ["isic-M", "CE", "3"]]
    ours = np.array([apart(NARROW), apart(WIDE), apart(NARROW)])
    theirs = np.array([apart(MIXED), apart(MIXED), apart(WIDE)])
    low, high = stats.t.interval(0.95, 2, (ours - theirs).mean(), stats.sem(ours - theirs))
    assert rows[1][3] == f"{ours.mean():.2f} ± {ours.std(ddof=1):.2f}"
    assert rows[1][4] == f"{(ours - theirs).mean():+.2f} [{low:+.2f}, {high:+.2f}]"
    assert rows[1][5:] == ["8.3 %", "yes"]  # WIDE shares a quarter: bin 2 has a quarter of either class
    assert rows[0][3:] == [f"{apart(MIXED):.2f}", "-", "50.0 %", "no"]
    assert "up to 2" in about


def test_a_picture_for_every_melanoma_cell_with_both_losses(results):
    drawn = catalogue.entries()["medical"].pictures(results)
    assert [path.name for path in drawn] == ["A8.png"]
    assert drawn[0].stat().st_size < 60_000


def test_nothing_without_training_scores(tmp_path):
    assert medical_modes.mode_sections(RecordBook(tmp_path / "medical"), CELLS["medical"]) == []
    assert medical_modes.pictures(tmp_path) == []
