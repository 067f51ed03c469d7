"""Metadata as features, and scores of several models as one."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from deepauc.models.fusion import MetadataEncoder, ensemble, fuse

TRAINING = {
    "age": np.array([50.0, 60.0, np.nan, 70.0]),
    "sex": np.array(["f", "m", "m", ""]),
    "site": np.array(["arm", "leg", "arm", "head"]),
    "smoker": np.array([True, False, False, True]),
}


def test_features_by_hand():
    encoder = MetadataEncoder.fit(TRAINING)
    assert encoder.feature_names == (
        *("age", "age missing", "sex=f", "sex=m", "sex missing", "site=arm", "site=head", "site=leg", "smoker"),
    )
    z = 10 / np.sqrt(200 / 3)
    expected = [
        [-z, 0, 1, 0, 0, 1, 0, 0, 1],
        [0, 0, 0, 1, 0, 0, 0, 1, -1],
        [0, 1, 0, 1, 0, 1, 0, 0, -1],
        [z, 0, 0, 0, 1, 0, 1, 0, 1],
    ]
    features = encoder.transform(TRAINING)
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, expected, rtol=1e-6, atol=1e-6)


def test_new_rows_use_the_training_statistics():
    encoder = MetadataEncoder.fit(TRAINING)
    new = {
        "age": np.array([60.0, np.nan]),
        "sex": np.array(["x", None], dtype=object),  # unknown, missing: both seen as missing in training
        "site": np.array(["toe", ""]),  # nothing was missing in training: all zeros
        "smoker": np.array([np.nan, 0.5]),
        "unrelated": np.array(["a", "b"]),
    }
    np.testing.assert_allclose(encoder.transform(new), [[0, 0, 0, 0, 1, 0, 0, 0, 0], [0, 1, 0, 0, 1, 0, 0, 0, 0]])


def test_the_features_of_fewer_rows_follow_from_those_of_all():
    """A fold's encoding is an affine map of the whole table's: missing cells, unknown categories and all."""
    generator = np.random.default_rng(0)
    ages = np.where(generator.random(40) < 0.2, np.nan, generator.normal(50, 12, 40))
    weights = generator.normal(70, 9, 40)
    sites = generator.choice(["a", "b", "c", ""], 40).astype(object)
    columns = {"age": ages, "weight": weights, "site": sites}
    whole = MetadataEncoder.fit(columns).with_missing()
    new = {
        "age": np.array([60.0, np.nan, 20.0, 50.0]),
        "weight": np.array([70.0, np.nan, 99.0, 1.0]),
        "site": np.array(["a", "", "never seen", "c"], dtype=object),
    }
    for rows in (np.arange(40), np.flatnonzero(sites != "c"), np.flatnonzero((sites != "") & ~np.isnan(ages))):
        part = MetadataEncoder.fit({name: column[rows] for name, column in columns.items()})
        matrix, offset = part.affine_from(whole)
        for some in (columns, new):
            np.testing.assert_allclose(whole.transform(some) @ matrix.T + offset, part.transform(some), atol=1e-5)


def test_codes_are_categories_on_request_whatever_their_type():
    encoder = MetadataEncoder.fit({"site": np.array([3, 1, 3])}, categorical=["site"])
    assert encoder.feature_names == ("site=1", "site=3")
    for column in (np.array([1, 3]), np.array([1.0, 3.0]), np.array(["1", " 3 "]), np.array(["01", 3], dtype=object)):
        np.testing.assert_array_equal(encoder.transform({"site": column}), [[1, 0], [0, 1]])
    np.testing.assert_array_equal(encoder.transform({"site": np.array([np.nan])}), [[0, 0]])


def test_numbers_among_missing_cells_are_numbers():
    encoder = MetadataEncoder.fit({"age": np.array([1, None, 3.0, ""], dtype=object)})
    assert encoder.feature_names == ("age", "age missing")
    np.testing.assert_array_equal(encoder.transform({"age": np.array([1, 3])}), [[-1, 0], [1, 0]])
    # One patient whose age is unknown: read from a table, the column is text without any.
    for column in (np.array([""]), np.array([None]), np.array([np.nan])):
        np.testing.assert_array_equal(encoder.transform({"age": column}), [[0, 1]])


def test_text_that_looks_like_a_number_stays_its_category():
    encoder = MetadataEncoder.fit({"site": np.array(["007", "2.50", "leg", "nan", "1_0"])})
    assert set(encoder.feature_names) == {f"site={c}" for c in ("7", "2.5", "leg", "nan", "1_0")}
    alone = encoder.transform({"site": np.array([7.0, 2.5])})
    assert [encoder.feature_names[i] for i in alone.argmax(axis=1)] == ["site=7", "site=2.5"]


def test_no_rows_no_features():
    assert MetadataEncoder.fit(TRAINING).transform({k: v[:0] for k, v in TRAINING.items()}).shape == (0, 9)


def test_a_constant_column_is_zero_not_nan():
    encoder = MetadataEncoder.fit({"age": np.array([5, 5, 5])})
    np.testing.assert_array_equal(encoder.transform({"age": np.array([5, 5])}), [[0], [0]])


CELLS = st.one_of(st.none(), st.sampled_from(["", "a", "b", "ü", "3"]))


@settings(derandomize=True, deadline=None, max_examples=50)
@given(
    numbers=hnp.arrays(np.float64, 6, elements=st.one_of(st.just(np.nan), st.floats(-1e6, 1e6))),
    texts=st.lists(CELLS, min_size=6, max_size=6),
)
def test_json_keeps_the_encoder_and_features_are_sane(numbers, texts):
    numbers[0], texts[0] = 1.0, "a"  # at least one value each
    columns = {"x": numbers, "y": np.array(texts, dtype=object)}
    encoder = MetadataEncoder.fit(columns)
    again = MetadataEncoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
    assert again == encoder
    features = encoder.transform(columns)
    assert np.array_equal(features, again.transform(columns))
    assert features.shape == (6, len(encoder.feature_names))
    assert np.isfinite(features).all()
    missing = np.array([not text for text in texts])
    one_hot = features[:, [name.startswith("y") for name in encoder.feature_names]]
    assert np.array_equal(one_hot.sum(axis=1), np.ones(6))  # on the rows of the fit every cell has its feature
    assert encoder.columns[1].missing_seen == missing.any()
    known = ~np.isnan(numbers)
    assert features[known, 0].mean() == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "no metadata columns"),
        ({"x": np.array([np.nan, np.nan])}, "'x' holds no value"),
        ({"x": np.array(["", ""])}, "'x' holds no value"),
        ({"x": np.array([1.0, np.inf])}, "'x' holds infinity"),
        ({"x": np.zeros((2, 2))}, r"'x' has shape \(2, 2\)"),
        ({"x": np.zeros(2), "y": np.zeros(3)}, r"different lengths: \[2, 3\]"),
    ],
)
def test_unusable_columns_are_refused(columns, message):
    with pytest.raises(ValueError, match=message):
        MetadataEncoder.fit(columns)


def test_unusable_rows_are_refused():
    encoder = MetadataEncoder.fit({"age": np.array([1.0, 2.0])})
    with pytest.raises(ValueError, match=r"\['age'\] are missing"):
        encoder.transform({"sex": np.array(["f"])})
    with pytest.raises(ValueError, match="now holds text"):
        encoder.transform({"age": np.array(["old"])})
    with pytest.raises(ValueError, match="categorical names"):
        MetadataEncoder.fit({"age": np.array([1.0])}, categorical=["site"])
    with pytest.raises(ValueError, match="numeric or categorical, not 'image'"):
        MetadataEncoder.from_dict({"columns": [{"kind": "image", "name": "x"}]})


def brute_force_ranks(scores):
    return np.array([(np.sum(scores < s) + (np.sum(scores == s) + 1) / 2) / len(scores) for s in scores])


SCORES = hnp.arrays(np.float64, (7, 2), elements=st.floats(-50, 50).map(lambda v: round(v, 1)))


@settings(derandomize=True, deadline=None, max_examples=50)
@given(first=SCORES, second=SCORES, weight=st.floats(0.1, 0.9))
def test_means_by_brute_force(first, second, weight):
    ranks = [np.stack([brute_force_ranks(column) for column in scores.T], axis=1) for scores in (first, second)]
    np.testing.assert_allclose(ensemble([first, second], scale="rank"), (ranks[0] + ranks[1]) / 2, atol=1e-12)
    logistic = [1 / (1 + np.exp(-scores)) for scores in (first, second)]
    expected = (1 - weight) * logistic[0] + weight * logistic[1]
    np.testing.assert_allclose(fuse(first, second, weight=weight), expected, atol=1e-12)
    unnormalised = ensemble([first, second], weights=[3 * (1 - weight), 3 * weight])
    np.testing.assert_allclose(unnormalised, expected, atol=1e-12)


@settings(derandomize=True, deadline=None, max_examples=50)
@given(scores=SCORES)
def test_ranks_ignore_the_scale_of_a_model(scores):
    np.testing.assert_array_equal(
        ensemble([scores, 5 * scores + 3], scale="rank"), ensemble([scores, scores], scale="rank")
    )


def test_one_dimension_stays_one_dimension():
    assert ensemble([np.array([1.0, 2.0, 2.0, 0.0])], scale="rank").tolist() == [0.5, 0.875, 0.875, 0.25]
    np.testing.assert_allclose(fuse(np.zeros(3), np.zeros(3), scale="sigmoid"), 0.5)
    assert ensemble([np.float32([1000.0, -1000.0])]).tolist() == [1.0, 0.0]
    assert ensemble([np.zeros((0, 2))], scale="rank").shape == (0, 2)


def test_large_scores_stay_apart_in_double_precision():
    fused = ensemble([np.float32([20.0, 25.0])])
    assert fused[0] < fused[1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ensemble([]), "at least one model"),
        (lambda: ensemble([np.zeros(3), np.zeros(4)]), "one shape"),
        (lambda: ensemble([np.zeros((1, 1, 1))]), "one shape"),
        (lambda: ensemble([np.array([np.nan])]), "NaN or infinity"),
        (lambda: ensemble([np.zeros(3)], weights=[1, 1]), "weights must be 1 numbers"),
        (lambda: ensemble([np.zeros(3)], weights=[0]), "not all 0"),
        (lambda: ensemble([np.zeros(3)] * 2, weights=[2, -1]), "not negative"),
        (lambda: ensemble([np.zeros(3)], scale="mean"), "'sigmoid' or 'rank'"),
        (lambda: fuse(np.zeros(3), np.zeros(3), weight=2), r"in \[0, 1\]"),
    ],
)
def test_bad_ensembles_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
