"""Task: what it refuses, what it counts, and a hash that sees every change that matters and no other."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepauc.data.task import ArrayInputs, Inputs, SelectedInputs, Task

NAN = float("nan")


def make(**changes):
    fields = {
        "name": "made",
        "kind": "binary",
        "source": ArrayInputs(np.arange(6 * 4 * 4, dtype=np.uint8).reshape(6, 4, 4, 1)),
        "labels": np.array([0, 1, 0, 1, NAN, 0]),
        "label_names": ("target",),
        "parts": {"train": np.array([0, 1, 4]), "test": np.array([2, 3])},
        "groups": np.array(["a", "a", "b", "c", "d", "e"]),
        "weights": np.ones(6),
        "metadata": {"age": np.array([1.0, 2, 3, NAN, 5, 6]), "sex": np.array(list("mfmfmf"))},
        "ids": [f"{i}.png" for i in range(6)],
    }
    return Task(**(fields | changes))


def make_multilabel(**changes):
    labels = np.array([[0, 1], [1, NAN], [NAN, NAN], [0, 1], [-1, 0], [1, 1]])
    return make(kind="multilabel", labels=labels, label_names=("x", "y"), parts={"train": np.arange(6)}, **changes)


def test_canonical_fields():
    task = make()
    assert task.labels.dtype == np.float32
    assert task.parts["train"].dtype == np.int64
    assert len(task) == 6
    assert task.num_labels == 1
    assert isinstance(task.source, Inputs)
    assert task.inputs([2, 0]).shape == (2, 4, 4, 1)
    assert task.inputs([2, 0]).dtype == np.uint8
    np.testing.assert_array_equal(task.labelled(), [0, 1])
    np.testing.assert_array_equal(task.unlabelled(), [4])
    with pytest.raises(ValueError, match="read-only"):
        task.labels[0] = 1
    with pytest.raises(ValueError, match="has no validation part"):
        task.labelled("validation")


def test_a_task_keeps_its_own_copy():
    labels, train = np.array([0.0, 1, 0, 1, NAN, 0]), np.array([0, 1])
    task = make(labels=labels, parts={"train": train})
    labels[0], train[0] = 1, 5
    assert task.labels[0] == 0
    assert task.parts["train"][0] == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "multiclass"}, "'binary' or 'multilabel'"),
        ({"labels": np.zeros((6, 1))}, r"needs \(6,\)"),
        ({"labels": np.zeros(5)}, r"needs \(6,\)"),
        ({"labels": np.array([0, 1, 2, 1, 0, 1])}, "but hold 2"),
        ({"labels": np.array([0, np.inf, 0, 1, 0, 1])}, "but hold inf"),
        ({"labels": np.array(list("abcdef"))}, "must be numbers"),
        ({"labels": np.full(6, NAN)}, "no labelled row is left"),
        ({"labels": np.array([NAN, NAN, 0, 1, NAN, 0])}, "no labelled row is left in the training part"),
        ({"labels": np.array([0, 1, 0.5, 1, NAN, 0])}, "test part holds soft labels"),
        ({"groups": np.array([1.0, NAN, 2, 3, NAN, 4])}, "groups are missing in 2 rows"),
        ({"groups": np.array(["a", None, "b", "c", "d", "e"], dtype=object)}, "groups are missing in 1 rows"),
        ({"groups": ["a", NAN, "b", NAN, "c", "d"]}, "groups are missing in 2 rows"),
        ({"label_names": ("a", "b")}, "one label name"),
        ({"label_names": ()}, "distinct and not empty"),
        ({"parts": {"train": np.array([0, 1]), "holdout": np.array([2])}}, "'holdout' is not a part"),
        ({"parts": {"train": np.array([0, 6])}}, "outside 0 to 5"),
        ({"parts": {"train": np.array([0, -1])}}, "outside 0 to 5"),
        ({"parts": {"train": np.array([0, 0])}}, "a row twice"),
        ({"parts": {"train": np.array([0, 1]), "test": np.array([1, 2])}}, "row 1 is in test and in train"),
        ({"parts": {"train": np.array([0.0, 1.0])}}, "flat array of row numbers"),
        ({"parts": {"train": np.array([0, 1]), "test": np.array([2, 4])}}, "the test part has unlabelled rows"),
        ({"groups": ["a"]}, "there are 6 inputs"),
        ({"metadata": {"age": np.zeros(4)}}, "age has shape"),
        ({"weights": np.array([1, 1, -1, 1, 1, 1])}, "not negative"),
        ({"weights": np.array([1, 1, NAN, 1, 1, 1])}, "finite"),
    ],
)
def test_refusals(changes, message):
    with pytest.raises(ValueError, match=message):
        make(**changes)


@pytest.mark.parametrize("array", [np.zeros((2, 3), np.int64), np.zeros((2, 3, 4), np.float32), np.zeros(2, np.uint8)])
def test_inputs_that_are_neither_images_nor_features(array):
    with pytest.raises(ValueError, match="neither images"):
        ArrayInputs(array)


def test_grey_images_get_a_channel_and_doubles_become_float32():
    assert ArrayInputs(np.zeros((2, 3, 4), np.uint8)).shape == (3, 4, 1)
    assert ArrayInputs(np.zeros((2, 3))).dtype == np.float32


def test_positive_share_per_label_counts_known_labels_only():
    task = make_multilabel()
    np.testing.assert_allclose(task.positive_share(), [2 / 4, 3 / 4])
    task = make(labels=np.array([0, 1, 0, 1, NAN, 0]), parts={"train": np.arange(6)})
    np.testing.assert_allclose(task.positive_share("train"), [2 / 5])
    only_uncertain = make(labels=np.array([-1, -1, 0, 1, 0, 0]), parts={"train": np.array([0, 1])})
    assert np.isnan(only_uncertain.positive_share()).all()


def test_partly_labelled_rows_count_as_labelled():
    np.testing.assert_array_equal(make_multilabel().unlabelled(), [2])
    np.testing.assert_array_equal(make_multilabel().labelled(), [0, 1, 3, 4, 5])


CHANGES = {
    "labels": {"labels": np.array([0, 1, 1, 1, NAN, 0])},
    "missing": {"labels": np.array([0, 1, 0, 1, NAN, NAN])},
    "parts": {"parts": {"train": np.array([0, 1]), "test": np.array([2, 3])}},
    "part name": {"parts": {"train": np.array([0, 1, 4]), "validation": np.array([2, 3])}},
    "part order": {"parts": {"train": np.array([1, 0, 4]), "test": np.array([2, 3])}},
    "groups": {"groups": np.array(["a", "a", "b", "c", "d", "f"])},
    "no groups": {"groups": None},
    "group borders": {"groups": np.array(["aa", "", "b", "c", "d", "e"])},
    "weights": {"weights": np.array([1, 1, 1, 1, 1, 2.0])},
    "metadata": {"metadata": {"age": np.array([1.0, 2, 3, 4, 5, 6]), "sex": np.array(list("mfmfmf"))}},
    "label names": {"label_names": ("other",)},
    "pixels": {"source": ArrayInputs(np.zeros((6, 4, 4, 1), np.uint8))},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_hash_sees_every_change(change):
    assert make(**change).data_hash() != make().data_hash()


def test_the_hash_ignores_names_layout_and_byte_order():
    task = make()
    assert replace(task, name="other", ids=None).data_hash() == task.data_hash()
    array = task.source.array
    assert ArrayInputs(np.asfortranarray(array)).digest() == ArrayInputs(array).digest()
    features = np.linspace(0, 1, 12, dtype=np.float32).reshape(6, 2)
    assert ArrayInputs(features.astype(">f4").astype(np.float32)).digest() == ArrayInputs(features).digest()
    assert (
        make(metadata={"n": np.arange(6, dtype=">i8")}).data_hash()
        == make(metadata={"n": np.arange(6, dtype="<i8")}).data_hash()
    )
    assert pickle.loads(pickle.dumps(task)).data_hash() == task.data_hash()


def test_golden_hash():
    """The same on every machine and with every version: run folders are named after it."""
    assert make().data_hash() == "6e2ac4e44da9dc719efdb136d7cf5d17f4a397e3cf3ae23510da4fb7c9dc59f1"


def test_digest_of_a_memory_mapped_array_in_chunks(tmp_path, monkeypatch):
    array = np.random.default_rng(0).integers(0, 256, (50, 4, 4, 3), dtype=np.uint8)
    np.save(tmp_path / "a.npy", array)
    whole = ArrayInputs(array).digest()
    monkeypatch.setattr("deepauc.data.task._DIGEST_CHUNK_BYTES", 100)
    assert ArrayInputs(np.load(tmp_path / "a.npy", mmap_mode="r")).digest() == whole


def test_subset_renumbers_everything():
    task = make().subset([3, 1, 4])
    np.testing.assert_array_equal(task.labels, [1, 1, NAN])
    np.testing.assert_array_equal(task.parts["train"], [1, 2])
    np.testing.assert_array_equal(task.parts["test"], [0])
    assert task.ids.tolist() == ["3.png", "1.png", "4.png"]
    assert task.groups.tolist() == ["c", "a", "d"]
    assert task.metadata["sex"].tolist() == ["f", "f", "m"]
    np.testing.assert_array_equal(task.inputs([0, 2]), make().inputs([3, 4]))
    assert isinstance(task.source, SelectedInputs)
    assert "test" not in make().subset([0, 1]).parts
    with pytest.raises(ValueError, match="twice"):
        make().subset([0, 0])


@settings(derandomize=True, deadline=None, max_examples=50)
@given(st.data())
def test_subset_of_subset_is_subset(data):
    task = make(parts={"train": np.arange(6)})
    rows = data.draw(st.permutations(range(6)))[:5]
    inner = data.draw(st.permutations(range(5)))[:4]
    twice, once = task.subset(rows).subset(inner), task.subset(np.array(rows)[inner])
    np.testing.assert_array_equal(twice.labels, once.labels)
    np.testing.assert_array_equal(twice.parts["train"], once.parts["train"])
    np.testing.assert_array_equal(twice.inputs(range(4)), once.inputs(range(4)))


def test_with_labels_and_parts():
    soft = make(parts={"train": np.array([0, 1])}).with_labels([0.3, 1, 0, 1, 0, 0])
    assert soft.positive_share()[0] == pytest.approx(0.65)
    assert set(make().with_parts({"train": np.array([0, 3])}).parts) == {"train"}
