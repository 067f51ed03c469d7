"""readers.csv as people write it, what is refused in it, and when."""

from dataclasses import replace

import numpy as np
import pytest

from deepauc.studies.records.book import RecordBook
from deepauc.studies.sources import Place
from experiments.clinical import chest_tasks
from experiments.clinical.chest import STAND_IN, count_readers
from experiments.clinical.chest_page import PAGES
from experiments.clinical.readers import given_readers, note_readers, read_readers

NAMES = ("Edema", "Heart", "Water")
HEAD = "label,reader,fpr,tpr\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("label,reader,fpr\n", "no column 'tpr'"),
        ("", "is empty"),
        (HEAD, "no rows"),
        (HEAD + "Hand,a,0,1\n", "line 2, label: 'Hand': expected 'Edema', 'Heart', 'Water'"),
        (HEAD + "Heart,a,0,1\nHeart,a,0,1\n", "line 3, reader: 'a': this reader has a point"),
        (HEAD + "Heart,a,0,x\n", "line 2, tpr: 'x': fpr and tpr are numbers between 0 and 1"),
        (HEAD + "Heart,a,0,1.5\n", "between 0 and 1"),
        (HEAD + "Heart,a,nan,1\n", "between 0 and 1"),
        (HEAD + "Heart,a,0\n", "line 2: 3 fields under 4 column names"),
        (HEAD + "Heart,a,0,1\nEdema\n", "line 3: 1 fields under 4 column names"),
        (HEAD + "Heart,,0,1\n", "line 2, reader: '': give the reader a name"),
    ],
)
def test_points_that_are_none(tmp_path, text, message):
    (tmp_path / "r.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_readers(tmp_path / "r.csv", NAMES)


def test_a_latin_1_table_is_read(tmp_path):
    for name, text in (("latin.csv", b"Heart,M\xfcller,0,1\n"), ("utf.csv", "Heart,Müller,0,1\n".encode())):
        (tmp_path / name).write_bytes(HEAD.encode() + text)
    np.testing.assert_array_equal(*(read_readers(tmp_path / name, NAMES) for name in ("latin.csv", "utf.csv")))


@pytest.mark.parametrize(
    "text",
    [
        HEAD + "Heart,b,0.25,0.5\n\nEdema,a,0,1\n",
        "label;reader;fpr;tpr\nHeart;b;0,25;0,5\nEdema;a;0;1\n",
        "reader,label,tpr,fpr,note\nb,Heart, 0.5 ,0.25,late\na,Edema,1,0,\n",
    ],
)
def test_points_as_they_are_written(tmp_path, text):
    (tmp_path / "readers.csv").write_text(text)
    fpr, tpr = given_readers(tmp_path, NAMES)
    nan = np.nan
    np.testing.assert_array_equal(fpr, [[0, nan, nan], [nan, 0.25, nan]])
    np.testing.assert_array_equal(tpr, [[1, nan, nan], [nan, 0.5, nan]])
    assert given_readers(tmp_path / "elsewhere", NAMES) is None
    assert given_readers(None, NAMES) is None


@pytest.mark.parametrize("named", [True, False])
def test_wrong_points_are_told_before_the_images_are_read(tmp_path, monkeypatch, named):
    (tmp_path / "readers.csv").write_text(HEAD + "Hand,a,0,1\n")
    monkeypatch.setenv("DEEPAUC_DATA", str(tmp_path))
    monkeypatch.setattr(chest_tasks, "load_nih_sheets", lambda *_, **__: pytest.fail("the images were read"))
    with pytest.raises(ValueError, match="line 2, label: 'Hand'"):
        chest_tasks.NIHImages().load(0, tuning=False, place=Place(data=tmp_path if named else None))


def test_labels_that_nobody_has_read_are_not_in_the_mean(tmp_path):
    labels, groups = np.array([0, 1, 0, 1, 1, 0]), np.arange(6)
    scores = {"labels": 3, "plain": np.tile(labels, (3, 1)).T.astype("f4"), "truth": np.tile(labels, (3, 1)).T}
    about = {
        "study": "S-all-ce",
        "phase": "final",
        "run": "r",
        "seed": 0,
        "network": "S",
        "labels": "all",
        "loss": "ce",
    }
    auc = {"test": {name: [1.0, 0.9, 1.0] for name in NAMES}}
    record = {**about, "auc": auc, "test_scores": {**scores, "groups": groups}}
    RecordBook(tmp_path / "chest").add(record)
    (tmp_path / "readers.csv").write_text(HEAD + "Edema,a,1.0,0.0\nEdema,b,0.0,1.0\n")
    place = Place(data=tmp_path, results=tmp_path)
    found = count_readers(replace(STAND_IN, labels=NAMES), place, "chest")
    assert found["ce, all at once"] == {"per_label": [1, None, None], "mean": 1.0}
    assert "1.0 of 2 (labels read: 1)" in PAGES["chest"].markdown(tmp_path)
    assert note_readers("chest", [record], NAMES, None, place) is None
