"""Names in one form, whatever Unicode offers, and those that may be meant alike."""

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepauc.data.task import ArrayInputs, Task
from deepauc.metrics.intervals import auroc_interval
from deepauc.models.fusion import CategoricalColumn, MetadataEncoder
from deepauc.names import count_possible_leaks, find_alike, group_word, in_one_form, loose_form, one_form

odd_text = st.lists(
    st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("e\u0301\u200b\ufeff\u00ad \u00a0\t¨ﬁ１Р"))
).map("".join)


@given(odd_text)
def test_one_form_is_idempotent_and_has_nothing_unseen(text):
    formed = one_form(text)
    assert one_form(formed) == formed
    assert formed == unicodedata.normalize("NFKC", formed)
    assert all(unicodedata.category(letter) not in ("Cf", "Cc") for letter in formed)
    assert formed == formed.strip()
    assert "  " not in formed


@given(st.lists(odd_text.filter(lambda text: not one_form(text).endswith("\0")), min_size=1))
def test_an_array_is_formed_entry_by_entry(texts):
    assert in_one_form(np.array(texts, dtype=str)).tolist() == [one_form(text) for text in texts]


@pytest.mark.parametrize(
    ("text", "formed"),
    [
        ("Jose\u0301", "José"),
        ("Jose\u200b\u0301", "José"),
        ("P\u200b1", "P1"),
        ("\ufeffP1", "P1"),
        ("P\u00ad1", "P1"),
        ("A  1", "A 1"),
        (" A\u00a01\t", "A 1"),
        ("１２", "12"),
        ("P1", "P1"),
        ("P\x011", "P1"),
        ("Jose\x01\u0301", "José"),
        ("\x7f P1", "P1"),
    ],
)
def test_one_form(text, formed):
    assert one_form(text) == formed


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("12", "12.0"),
        ("12", "0012"),
        ("12", "12,0"),
        ("12000", "12,000"),
        ("12", "'12"),
        ("100", "1OO"),
        ("100000", "1e+05"),
        ("P1", "p1"),
        ("P1", "Р1"),
        ("P1", "P001"),
        ("P1", "P-1"),
        ("P-1", "P 01"),
        ("P_1_2", "P-1-2"),
        ("2026-01-05", "2026-1-5"),
        ("в1", "В1"),
        ("A-1", "A–1"),
    ],
)
def test_names_that_may_be_meant_alike(a, b):
    found = find_alike(["x", a, a, b, ""], what="group", column="patient")
    assert found.count == 1
    assert found.examples == ((a, b),)
    assert repr(a) in found.text()
    assert repr(b) in found.text()


def test_the_odd_letter_is_named():
    assert "cyrillic capital letter er" in find_alike(["P1", "Р1"], what="group").text()


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("12", "13"),
        ("P1-12", "P11-2"),
        ("1-2", "12"),
        ("I1", "L1"),
        ("P1.01", "P1.1"),
        ("12345678901234567890", "12345678901234567891"),
        ("é", "e"),
        ("nan", "inf"),
    ],
)
def test_names_that_differ(a, b):
    assert find_alike([a, b], what="group") is None
    assert loose_form(a) != loose_form(b)


def test_categories_are_compared_by_letters_alone_since_numbers_are_one_category_already():
    assert find_alike(["7", "7.0", "07"], what="category") is None
    assert find_alike(["m", "M", "f"], what="category").examples == (("m", "M"),)


def test_all_sets_are_counted_and_a_few_shown():
    names = [form for number in range(50) for form in (f"P{number}", f"p{number}")]
    found = find_alike(names, what="group")
    assert found.count == 50
    assert len(found.examples) == 3


def test_possible_leaks_are_of_names_that_differ():
    def count(*rows):
        return count_possible_leaks(*map(np.array, zip(*rows, strict=True)))

    assert count(("P1", "train"), ("p1", "test"), ("12", "train"), ("12.0", "train")) == 1
    assert count(("P1", "train"), ("P1", "test")) == 0  # a certain one
    assert count(("P1", "train"), ("P1", "test"), ("p1", "train")) == 0
    assert count(("P1", "train"), ("P1", "test"), ("p1", "validation")) == 1


def test_a_task_has_names_in_one_form_wherever_they_come_from():
    task = Task(
        name="t",
        kind="binary",
        source=ArrayInputs(np.zeros((2, 1), dtype=np.float32)),
        labels=np.array([0, 1]),
        label_names=("y",),
        parts={"train": np.arange(2)},
        groups=np.array(["e\u0301", "é"]),
        ids=["a\u200b", "b"],
        metadata={"sex": np.array(["m", "\ufeffm"]), "age": np.array([1.0, 2.0])},
    )
    assert task.groups.tolist() == ["é", "é"]
    assert task.ids.tolist() == ["a", "b"]
    assert task.metadata["sex"].tolist() == ["m", "m"]
    assert task.metadata["age"].tolist() == [1, 2]


def test_intervals_take_names_of_one_form_for_one_patient():
    scores, labels = np.arange(8) / 8, np.array([0, 0, 1, 0, 1, 0, 1, 1])
    plain = np.array(["é", "é", "b", "b", "c", "c", "d", "d"])
    odd = np.where(np.arange(8) == 1, "e\u0301", plain)
    assert auroc_interval(scores, labels, groups=odd) == auroc_interval(scores, labels, groups=plain)


def test_an_older_encoder_knows_its_categories_in_one_form():
    older = CategoricalColumn(name="site", categories=("e\u0301", "x", "é"), missing_seen=True)
    features = older.encode(np.array(["é", "e\u0301", " x", "X", ""]))
    np.testing.assert_array_equal(features, [[1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 0, 1]])
    assert older.unseen(np.array(["é", "X", "X", "", "y"])) == {"X": 2, "y": 1}


def test_an_encoder_is_fitted_on_categories_in_one_form():
    (column,) = MetadataEncoder.fit({"site": np.array(["e\u0301", "é", "x\u200b", "x"])}).columns
    assert column.categories == ("x", "é")


@pytest.mark.parametrize(
    ("column", "word"),
    [(None, "patient"), ("patient_id", "patient"), ("Patient", "patient"), ("account", "group"), ("group", "group")],
)
def test_word(column, word):
    assert group_word(column) == word
