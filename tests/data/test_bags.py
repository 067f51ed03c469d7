"""Rows of a table as the images of bags: who is in which, what a bag has of its rows, and what cannot be."""

from dataclasses import replace

import numpy as np
import pytest

from deepauc.data.bags import BagInputs, bag_task, linked_bags
from deepauc.data.task import ArrayInputs, Task

BAGS = np.array(["b", "a", "b", "c", "a", "b"])


def make_task(**options):
    fields = {
        "name": "exams",
        "kind": "binary",
        "source": ArrayInputs(np.arange(6, dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 2, 1), np.uint8)),
        "labels": np.array([1, 0, 1, 0, np.nan, np.nan], dtype=np.float32),
        "label_names": ("ill",),
        "parts": {"train": np.array([0, 1, 2, 4, 5]), "validation": np.array([3])},
        "groups": np.array(["p", "q", "p", "p", "q", "p"]),
        "weights": np.array([2, 1, 2, 3, 1, 2], dtype=np.float32),
        "metadata": {"age": np.array([5.0, np.nan, 5.0, 1.0, np.nan, 5.0])},
    }
    return Task(**{**fields, **options})


def test_bags_come_in_the_order_of_their_first_rows_with_what_their_rows_say():
    task = bag_task(make_task(), BAGS)
    assert task.ids.tolist() == ["b", "a", "c"]
    assert task.labels.tolist() == [1, 0, 0]  # an empty cell says nothing
    assert task.groups.tolist() == ["p", "q", "p"]
    assert task.weights.tolist() == [2, 1, 3]
    assert {part: rows.tolist() for part, rows in task.parts.items()} == {"train": [0, 1], "validation": [2]}
    np.testing.assert_array_equal(task.metadata["age"], [5, np.nan, 1])
    assert task.source.sizes.tolist() == [3, 2, 1]
    assert task.inputs([1, 0])[:, 0, 0, 0].tolist() == [1, 4, 0, 2, 5]


def test_a_subset_keeps_whole_bags():
    task = bag_task(make_task(), BAGS).subset([2, 0])
    assert task.ids.tolist() == ["c", "b"]
    assert task.inputs([0, 1])[:, 0, 0, 0].tolist() == [3, 0, 2, 5]


def test_the_data_hash_knows_which_image_is_in_which_bag():
    images = make_task(labels=np.zeros(6, dtype=np.float32), groups=None, weights=None, metadata={}, parts={})
    one, same = (bag_task(images, names) for names in (BAGS, np.array([f"x{b}" for b in BAGS])))
    other = bag_task(images, np.array(["b", "b", "b", "c", "a", "a"]))
    assert one.data_hash() == same.data_hash()  # names of rows are left out, as ever
    assert len({one.data_hash(), other.data_hash(), images.data_hash()}) == 3


@pytest.mark.parametrize(
    ("field", "values", "message"),
    [
        ("labels", np.array([1, 0, 0, 0, 0, 0], dtype=np.float32), r"1 bag \(column 'exam': b\) differ in their label"),
        ("groups", np.array(["p", "q", "p", "p", "x", "p"]), "differ in their group"),
        ("weights", np.array([2, 1, 2, 3, 1, 1], dtype=np.float32), "differ in their weight"),
        ("metadata", {"site": np.array(list("aabaaa"))}, "differ in their site"),
        ("parts", {"train": np.array([0, 1, 4, 5]), "validation": np.array([2, 3])}, "differ in their part"),
    ],
)
def test_rows_of_a_bag_that_contradict_each_other_are_refused_by_name(field, values, message):
    with pytest.raises(ValueError, match=message):
        bag_task(
            replace(make_task(parts={}, labels=np.zeros(6, dtype=np.float32)), **{field: values}), BAGS, column="exam"
        )


def test_an_empty_cell_and_an_empty_bag_are_refused():
    with pytest.raises(ValueError, match="empty in 1 row"):
        bag_task(make_task(), np.where(BAGS == "c", "", BAGS))
    with pytest.raises(ValueError, match="at least one image"):
        BagInputs(make_task().source, np.arange(6), [0, 3, 3, 6])


def test_a_draw_is_of_the_bag_and_follows_from_its_key_alone():
    source = bag_task(make_task(), BAGS).source
    assert source.drawn(0, None, key=5).tolist() == source.drawn(0, 3, key=9).tolist() == [0, 2, 5]
    draws = {tuple(source.drawn(0, 2, key=key).tolist()) for key in range(40)}
    assert draws == {(0, 2), (0, 5), (2, 5)}  # each of the three, in their order
    assert source.drawn(0, 2, key=7).tolist() == source.drawn(0, 2, key=7).tolist()


def test_bags_that_share_an_image_are_held_together():
    source = bag_task(make_task(), np.array(["a", "b", "c", "d", "e", "f"])).source
    found = linked_bags(source, np.array(["1", "2", "3", "2", "3", "2"]))
    assert [sorted(np.flatnonzero(found == name).tolist()) for name in dict.fromkeys(found.tolist())] == [
        [0],
        [1, 3, 5],
        [2, 4],
    ]
    chained = bag_task(make_task(), BAGS).source  # b: 0 2 5, a: 1 4, c: 3
    assert len(set(linked_bags(chained, np.array(["1", "1", "2", "3", "4", "3"])).tolist())) == 1
