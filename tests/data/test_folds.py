"""Folds: units whole, positives dealt out, how many of them, a table's own, and the task of each."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepauc.data.folds import auto_folds, deal_folds, fold_task, given_folds, rarer_class
from deepauc.data.splits import inseparable
from deepauc.data.task import ArrayInputs, Task

NAN = float("nan")


def make(labels, groups=None, **changes):
    labels = np.asarray(labels, dtype=np.float32)
    fields = {
        "name": "made",
        "kind": "binary" if labels.ndim == 1 else "multilabel",
        "source": ArrayInputs(np.arange(len(labels), dtype=np.float32)[:, None]),
        "labels": labels,
        "label_names": ("y",) if labels.ndim == 1 else tuple(f"label {i}" for i in range(labels.shape[1])),
        "parts": {"train": np.arange(len(labels))},
        "groups": None if groups is None else np.asarray(groups).astype(str),
    }
    return Task(**(fields | changes))


def rows_with(positives, negatives):
    return np.repeat([1, 0], [positives, negatives])


@pytest.mark.parametrize(
    ("positives", "negatives", "expected"),
    [(199, 900, 5), (200, 900, 0), (900, 150, 5), (4, 90, 4), (2, 90, 2), (1, 90, 0)],
)
def test_auto(positives, negatives, expected):
    assert auto_folds(make(rows_with(positives, negatives))) == expected


def test_auto_counts_patients():
    labels, patients = rows_with(300, 1500), np.arange(1800) // 10
    assert rarer_class(labels, patients) == 30
    assert auto_folds(make(labels)) == 0
    assert auto_folds(make(labels, patients)) == 5
    copies = inseparable(None, np.repeat(np.arange(600), 3).astype("S8"))  # each image three times: 100 positives
    assert auto_folds(make(labels), together=copies) == 5


def test_auto_leaves_a_tables_own_validation_part_alone():
    parts = {"train": np.arange(80), "validation": np.arange(80, 100)}
    assert auto_folds(make(rows_with(20, 80)[::-1], parts=parts)) == 0


def test_auto_of_several_labels_goes_by_the_median():
    labels = np.zeros((2000, 3))
    labels[:5, 0], labels[:300, 1], labels[:400, 2] = 1, 1, 1
    assert auto_folds(make(labels)) == 0
    labels[50:300, 1] = 0
    assert auto_folds(make(labels)) == 5


@given(st.integers(0, 1000), st.integers(2, 6), st.booleans())
@settings(max_examples=30, deadline=None)
def test_every_labelled_row_is_held_out_once_and_units_stay_whole(seed, folds, grouped):
    rng = np.random.default_rng(seed)
    groups = np.sort(rng.integers(0, 60, 240))
    labels = (rng.random(61) < 0.4)[groups].astype(float)
    labels[rng.random(240) < 0.1] = NAN
    task = make(labels, groups if grouped else None)
    found = deal_folds(task, folds=folds, seed=seed)
    assert ((found.number >= 0) == ~np.isnan(labels)).all()
    held = np.zeros(240, dtype=int)
    for fold in range(folds):
        one = fold_task(task, found, fold)
        held[one.part("test")] += 1
        assert not set(one.part("train")) & set(one.part("test"))
        assert {0, 1} <= set(labels[one.part("test")])
        if grouped:
            assert not set(groups[one.part("train")]) & set(groups[one.part("test")])
    assert (held == ~np.isnan(labels)).all()
    assert (deal_folds(task, folds=folds, seed=seed).number == found.number).all()


def test_rows_are_stratified_to_the_row():
    task = make(rows_with(23, 177))
    number = deal_folds(task, folds=5).number
    assert sorted(np.bincount(number[:23])) == [4, 4, 5, 5, 5]
    assert (number != deal_folds(task, folds=5, seed=1).number).any()


def test_identical_images_stay_together_and_join_their_patients():
    labels = np.tile([1, 0, 0], 40)
    digests = np.arange(120).astype("S8")
    digests[[0, 100]] = b"same"  # patients 0 and 25
    together = inseparable((np.arange(120) // 4).astype(str), digests)
    task = make(labels, np.arange(120) // 4)
    for seed in range(10):
        found = deal_folds(task, folds=5, seed=seed, together=together)
        assert len(set(found.number[[0, 1, 2, 3, 100, 101, 102, 103]])) == 1
        one = fold_task(task, found, int(found.number[0]), together=together)
        assert {0, 100} <= set(one.part("test"))
        assert (one.groups == task.groups).all()


def test_a_test_part_is_in_no_fold_and_a_validation_part_joins():
    labels = rows_with(30, 90)[np.random.default_rng(0).permutation(120)]
    parts = {"train": np.arange(60), "validation": np.arange(60, 90), "test": np.arange(90, 120)}
    task = make(labels, parts=parts)
    found = deal_folds(task, folds=3)
    assert (found.number[90:] == -1).all()
    assert (found.number[:90] >= 0).all()
    one = fold_task(task, found, 1)
    assert set(one.part("train")) | set(one.part("test")) == set(range(90))


@pytest.mark.parametrize(("positives", "expected"), [(150, None), (260, True)])
def test_a_validation_part_only_where_it_holds_twenty(positives, expected):
    task = make(rows_with(positives, 900))
    one = fold_task(task, deal_folds(task, folds=5), 0)
    assert ("validation" in one.parts) == bool(expected)
    if expected:
        assert task.labels[one.part("validation")].sum() >= 20
    assert sum(map(len, one.parts.values())) == len(task)


def test_the_validation_part_keeps_patients_whole():
    groups = np.arange(2000) // 2
    task = make(rows_with(500, 1500), groups)
    one = fold_task(task, deal_folds(task, folds=5), 2)
    parts = [set(groups[rows]) for rows in one.parts.values()]
    assert len(parts) == 3
    assert not parts[0] & parts[1] | parts[0] & parts[2] | parts[1] & parts[2]


def test_unlabelled_rows_of_a_held_out_patient_are_not_trained_on():
    labels = np.tile([1.0, 0.0, NAN], 30)
    task = make(labels, np.arange(90) // 3)
    one = fold_task(task, deal_folds(task, folds=3), 0)
    unlabelled = np.flatnonzero(np.isnan(labels))
    held = set(np.arange(90)[one.part("test")] // 3)
    assert {row // 3 for row in unlabelled if row not in one.part("train")} == held


def test_sites_are_folds_and_one_class_is_a_caution():
    labels = np.tile([1, 0, 0, 0], 30)
    site = np.repeat(["Bern", "Genf", "Basel"], 40)
    found = given_folds(make(labels), site, column="site")
    assert found.names == ("Basel", "Bern", "Genf")
    assert set(fold_task(make(labels), found, 2).part("test")) == set(np.flatnonzero(site == "Genf"))
    labels[site == "Genf"] = 0
    (caution,) = given_folds(make(labels), site, column="site").cautions
    assert "Genf" in caution


def test_numbers_with_an_empty_cell_in_the_test_part():
    site = np.arange(120) % 11 + 1.0
    site[100:] = NAN
    parts = {"train": np.arange(100), "test": np.arange(100, 120)}
    found = given_folds(make(np.arange(120) % 5 == 0, parts=parts), site, column="fold")
    assert found.names == tuple(str(n) for n in range(1, 12))
    assert found.number[:3].tolist() == [0, 1, 2]


def test_one_patient_with_most_positives_is_a_caution():
    groups = np.concatenate([np.zeros(60), 1 + np.arange(340) // 4]).astype(int)
    labels = groups <= 10
    (caution,) = deal_folds(make(labels, groups), folds=5).cautions
    assert "60 of 100" in caution
    assert deal_folds(make(labels), folds=5).cautions == ()


REFUSALS = [
    ({"folds": 10}, "10 folds need a positive row each, and there are 7 positive rows. Use folds=7 or fewer."),
    ({"folds": 1}, "at least 2"),
]


@pytest.mark.parametrize(("options", "message"), REFUSALS)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=message):
        deal_folds(make(rows_with(7, 93)), **options)


def test_the_number_of_folds_that_a_refusal_names_is_one_that_both_classes_allow():
    with pytest.raises(ValueError, match=r"there are 7 negative rows. Use folds=7 or fewer."):
        deal_folds(make(rows_with(93, 7)), folds=200)


def test_patients_that_are_too_few():
    task = make(rows_with(40, 60), np.concatenate([np.arange(40) // 20, np.arange(60) + 9]))
    with pytest.raises(ValueError, match=r"there are 2 patients with a positive label. Use folds=2."):
        deal_folds(task, folds=5)
    with pytest.raises(ValueError, match=r"there is 1 patient with a positive label. Label more rows."):
        deal_folds(replace(task, groups=np.repeat(["a", "b", "c"], [40, 30, 30])), folds=2)


def test_a_column_that_is_no_fold_column():
    task = make(rows_with(30, 90), np.arange(120) // 2)
    with pytest.raises(ValueError, match="120 different values"):
        given_folds(task, np.arange(120), column="file")
    with pytest.raises(ValueError, match="patient 0, or an identical image, into the folds 0 and 1"):
        given_folds(task, np.arange(120) % 2, column="half")
    with pytest.raises(ValueError, match="1 labelled row has no fold"):
        given_folds(task, ["a", "a", "b", "b", None, *["b"] * 115], column="half")
    with pytest.raises(ValueError, match="holds all rows of a class"):
        given_folds(task, np.repeat(["a", "b"], [40, 80]), column="half")


def test_folds_that_look_the_same_are_one_and_those_that_may_be_are_told_of():
    labels = np.arange(120) % 5 == 0
    site = np.array(["Köln", "Ko\u0308ln", " Köln\u200b", "Bonn"])[np.arange(120) // 30]
    found = given_folds(make(labels), site, column="site")
    assert found.names == ("Bonn", "Köln")
    assert found.cautions == ()
    found = given_folds(make(labels), np.where(np.arange(120) < 9, "BONN", site), column="site")
    assert found.names == ("BONN", "Bonn", "Köln")
    (caution,) = found.cautions
    assert "'BONN' and 'Bonn'" in caution
