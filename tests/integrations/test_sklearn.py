"""DeepAUCClassifier as scikit-learn, and as a user of tables, expects it."""

import os
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine, make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, StratifiedKFold, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from deepauc import auroc
from deepauc.integrations.sklearn import DeepAUCClassifier
from deepauc.metrics.multiclass import multiclass_auroc


def quick(**options):
    """A short training: most of what is asked here does not depend on its length."""
    chosen = {
        "max_iter": 30, "n_iter_no_change": 20, "cv": 2, "weight_decay": 1e-3, "hidden": (8,), "random_state": 0,
    }  # fmt: skip
    return DeepAUCClassifier(**(chosen | options))


def blob(rows=200, share=0.3, seed=0, **options):
    settings = {
        "n_features": 6,
        "n_informative": 4,
        "n_redundant": 0,
        "n_clusters_per_class": 1,
        "flip_y": 0.02,
    } | options
    return make_classification(rows, weights=[1 - share], random_state=seed, **settings)


@parametrize_with_checks([quick(random_state=None)])
def test_scikit_learns_own_checks(estimator, check):
    if "array_api" in str(check) and not os.environ.get("SCIPY_ARRAY_API"):
        pytest.skip("scikit-learn runs this one only where SCIPY_ARRAY_API is set before SciPy is imported")
    check(estimator)


@pytest.fixture(scope="module")
def cancer():
    X, y = load_breast_cancer(return_X_y=True)
    return X, 1 - y  # malignant is the positive class


def test_in_a_pipeline_with_cross_validation_and_a_grid(cancer):
    X, y = cancer[0][:240], cancer[1][:240]
    model = make_pipeline(MinMaxScaler(), quick())
    assert (cross_val_score(model, X, y, scoring="roc_auc", cv=3) > 0.95).all()
    grid = GridSearchCV(model, {"deepaucclassifier__margin": [0.3, 1.0]}, scoring="roc_auc", cv=2).fit(X, y)
    assert grid.best_score_ > 0.95
    assert grid.best_params_["deepaucclassifier__margin"] in (0.3, 1.0)


@pytest.mark.parametrize("method", ["sigmoid", "isotonic"])
def test_under_scikit_learns_calibration(cancer, method):
    X, y = cancer
    model = CalibratedClassifierCV(quick(), method=method, cv=2).fit(X[::2], y[::2])
    assert auroc(model.predict_proba(X[1::2])[:, 1], y[1::2]) > 0.97


def test_clone_and_pickle_keep_the_answers():
    X, y = blob()
    quick(hidden=8).fit(X, y)
    model = quick(hidden=[8, 4]).fit(X, y)
    again = clone(model).fit(X, y)
    loaded = pickle.loads(pickle.dumps(model))
    for other in (again, loaded):
        np.testing.assert_array_equal(other.predict_proba(X), model.predict_proba(X))
    assert not hasattr(clone(model), "module_")


def test_the_seed_decides_and_torchs_generator_is_left_alone():
    X, y = blob()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first, second, other = (quick(random_state=s).fit(X, y).decision_function(X) for s in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(first, second)
    assert np.abs(first - other).max() > 1e-3


def test_pandas_tables_have_feature_names():
    X, y = blob()
    table = pd.DataFrame(X, columns=[f"marker {k}" for k in range(X.shape[1])])
    model = quick().fit(table, pd.Series(np.where(y, "ill", "well")))
    assert list(model.feature_names_in_) == list(table.columns)
    assert list(model.classes_) == ["ill", "well"]
    assert set(model.predict(table)) <= {"ill", "well"}
    with pytest.raises(ValueError, match="feature names"):
        model.predict(table.rename(columns={"marker 0": "another"}))


def test_scale_and_offset_of_the_features_do_not_matter():
    X, y = blob()
    plain = quick().fit(X, y)
    scale, offset = np.logspace(-3, 3, X.shape[1]), np.linspace(-50, 50, X.shape[1])
    scaled = quick().fit(X * scale + offset, y)
    np.testing.assert_allclose(scaled.decision_function(X * scale + offset), plain.decision_function(X), rtol=1e-5)
    constant = np.column_stack([X, np.full(len(X), 7.0)])
    assert auroc(quick().fit(constant, y).decision_function(constant), y) > 0.9


@pytest.mark.parametrize("share", [0.5, 0.05])
def test_the_mean_probability_is_near_the_share_of_positives(share):
    X, y = blob(3000, share, class_sep=0.7)
    model = quick(cv=3).fit(X[:1000], y[:1000])
    seen, new = model.predict_proba(X[:1000])[:, 1], model.predict_proba(X[1000:])[:, 1]
    assert seen.mean() == pytest.approx(y[:1000].mean(), abs=0.02)
    assert new.mean() == pytest.approx(y[1000:].mean(), abs=0.03)
    order = np.argsort(new)
    for part in np.array_split(order, 4):  # from the least to the likeliest quarter
        assert new[part].mean() == pytest.approx(y[1000:][part].mean(), abs=0.1)


def test_scores_without_signal_keep_their_order_and_say_the_share():
    generator = np.random.default_rng(3)
    X, y = generator.normal(size=(80, 3)), np.arange(80) % 4 == 0
    for seed in range(3):
        model = quick(random_state=seed).fit(X, y)
        probability = model.predict_proba(X)[:, 1]
        assert probability.mean() == pytest.approx(0.25, abs=0.06)
        assert len(np.unique(probability)) == 80


def test_the_length_is_the_best_of_cross_validation():
    X, y = load_diabetes(return_X_y=True)
    model = DeepAUCClassifier(max_iter=120, n_iter_no_change=60, random_state=0).fit(X, y > 200)
    best = model.cv_curve_.max()
    assert model.cv_auc_ == pytest.approx(best)
    assert model.cv_curve_[model.n_iter_ // 10 - 1] == pytest.approx(best)
    assert model.n_iter_ < 120
    assert len(model.cv_curve_) * 10 <= 120
    assert model.weight_decay_ in (1e-3, 3e-2)


@pytest.mark.parametrize("margin", [1.0, 0.3])
def test_mini_batches_with_a_quota_find_a_rare_class(margin):
    X, y = blob(1500, 0.03, flip_y=0, class_sep=1.5)
    model = quick(batch_size=64, max_iter=150, n_iter_no_change=60, margin=margin).fit(X[:1000], y[:1000])
    assert auroc(model.decision_function(X[1000:]), y[1000:]) > 0.93
    assert model.predict_proba(X[1000:])[:, 1].mean() == pytest.approx(y[1000:].mean(), abs=0.02)
    flipped = quick(batch_size=64, max_iter=60).fit(X[:1000], 1 - y[:1000])  # negatives are the rare ones
    assert auroc(flipped.decision_function(X[1000:]), 1 - y[1000:]) > 0.9


@pytest.mark.parametrize("batch_size", [2048, 64])
def test_rows_of_weight_zero_are_as_good_as_gone(batch_size):
    X, y = blob(300, flip_y=0)
    generator = np.random.default_rng(0)
    wrong = generator.random(300) < 0.4
    noisy = np.where(wrong, 1 - y, y)
    fit = {"batch_size": batch_size, "max_iter": 60}
    weighted = quick(**fit).fit(X, noisy, sample_weight=np.where(wrong, 0.0, 2.0))
    removed = quick(**fit).fit(X[~wrong], y[~wrong])
    np.testing.assert_allclose(weighted.decision_function(X), removed.decision_function(X), rtol=1e-7, atol=1e-9)


def test_weights_count_in_mini_batches():
    X, y = blob(400, flip_y=0)
    noisy = np.where(np.arange(400) % 5 < 2, 1 - y, y)
    weights = np.where(noisy == y, 1.0, 1e-3)
    weighted = quick(batch_size=64, max_iter=80).fit(X, noisy, sample_weight=weights)
    plain = quick(batch_size=64, max_iter=80).fit(X, noisy)
    assert auroc(weighted.decision_function(X), y) > auroc(plain.decision_function(X), y) + 0.01


def test_several_classes_one_against_the_rest():
    X, y = load_wine(return_X_y=True)
    names = np.array(["barolo", "grignolino", "barbera"])[y]
    train, test = train_test_split(np.arange(len(y)), stratify=y, random_state=0)
    for options in ({}, {"batch_size": 32}):
        model = quick(max_iter=100, **options).fit(X[train], names[train])
        probability = model.predict_proba(X[test])
        assert probability.shape == (len(test), 3)
        np.testing.assert_allclose(probability.sum(1), 1)
        numbers = np.searchsorted(model.classes_, names[test])
        assert multiclass_auroc(probability, numbers) > 0.99
        assert model.score(X[test], names[test]) > 0.93
        assert model.decision_function(X[test]).shape == (len(test), 3)
        np.testing.assert_allclose(probability.mean(0), np.bincount(numbers) / len(test), atol=0.06)


def test_patients_stay_in_one_fold():
    generator = np.random.default_rng(0)
    patients = np.repeat(np.arange(40), 3)
    X = np.repeat(generator.normal(size=(40, 30)), 3, axis=0)
    y = np.repeat(generator.permutation(np.arange(40) % 2), 3)  # nothing to learn but who is who
    leaking, honest = quick(cv=4).fit(X, y), quick(cv=4).fit(X, y, groups=patients)
    assert leaking.cv_auc_ > 0.85
    assert honest.cv_auc_ < 0.7
    splitter = quick(cv=GroupKFold(4)).fit(X, y, groups=patients)
    assert splitter.cv_auc_ < 0.7


@pytest.mark.parametrize("cv", [StratifiedKFold(3), [(np.arange(0, 150), np.arange(150, 200))]])
def test_splitters_and_pairs_of_rows(cv):
    X, y = blob()
    assert auroc(quick(cv=cv).fit(X, y).decision_function(X), y) > 0.9


def small_network(in_features, num_outputs):
    return torch.nn.Sequential(
        torch.nn.Linear(in_features, 12), torch.nn.BatchNorm1d(12), torch.nn.Tanh(), torch.nn.Dropout(0.2),
        torch.nn.Linear(12, num_outputs),
    )  # fmt: skip


def test_any_module_factory():
    X, y = blob()
    model = quick(module=small_network, max_iter=60).fit(X, y)
    assert isinstance(model.module_[2], torch.nn.Tanh)
    assert not model.module_.training
    assert auroc(model.decision_function(X), y) > 0.9
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_allclose(again.decision_function(X[:7]), model.decision_function(X)[:7], rtol=1e-12)
    np.testing.assert_array_equal(clone(model).fit(X, y).decision_function(X), model.decision_function(X))


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"cv": 1}, "at least 2 folds"),
        ({"batch_size": 2}, "at least 4"),
        ({"max_iter": 0}, "max_iter must be"),
        ({"check_every": 2.5}, "check_every must be"),
        ({"weight_decay": ()}, "weight_decay is empty"),
        ({"lr": -1.0}, "lr must be"),
        ({"margin": 0.0}, "margin must be"),
        ({"hidden": (0,)}, "hidden must"),
        ({"hidden": (3.5,)}, "hidden must"),
        ({"hidden": "wide"}, "hidden must"),
        ({"device": None}, "device is None"),
        ({"module": lambda inputs, outputs: None}, "torch.nn.Module"),
        ({"module": lambda inputs, outputs: torch.nn.Linear(inputs, outputs + 1)}, r"\(N, 1\)"),
        ({"cv": [(np.arange(3), np.arange(3, 40))]}, "trains without one of the classes"),
        ({"cv": [(np.arange(3, 40), np.arange(3))]}, "one class only"),
    ],
)
def test_bad_settings_name_the_remedy(options, remedy):
    X, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) >= 20
    with pytest.raises(ValueError, match=remedy):
        quick(**options).fit(X, y)


def test_bad_data_name_the_remedy():
    X, y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2
    with pytest.raises(ValueError, match="NaN"):
        quick().fit(np.where(X > 2, np.nan, X) * np.where(np.arange(20)[:, None] == 0, np.nan, 1), y)
    with pytest.raises(ValueError, match="only one row with weight"):
        quick().fit(X, np.arange(20) == 3)
    with pytest.raises(ValueError, match="only one group with weight"):
        quick().fit(X, y, groups=np.where(y, "a", np.arange(20).astype(str)))
    with pytest.raises(ValueError, match="one patient per row"):
        quick().fit(X, y, groups=[1, 2])
    with pytest.raises(ValueError, match="not be negative"):
        quick().fit(X, y, sample_weight=np.where(y, -1.0, 1.0))


def difference_to_logistic_regression(X, y, *, folds, seed=7):
    differences = []
    for train, test in StratifiedKFold(folds, shuffle=True, random_state=seed).split(X, y):
        ours = DeepAUCClassifier(random_state=0).fit(X[train], y[train]).decision_function(X[test])
        logistic = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(X[train], y[train])
        differences.append(auroc(ours, y[test]) - auroc(logistic.decision_function(X[test]), y[test]))
    return np.mean(differences)


def test_not_below_logistic_regression(cancer):
    assert difference_to_logistic_regression(*cancer, folds=2) > -0.01


@pytest.mark.slow
@pytest.mark.parametrize("name", ["breast cancer", "wine", "iris", "diabetes", *[f"digit {k}" for k in range(10)]])
def test_not_below_logistic_regression_on_any_bundled_table(name):
    if name == "diabetes":
        X, target = load_diabetes(return_X_y=True)
        y = target > 200
    elif name.startswith("digit"):
        X, target = load_digits(return_X_y=True)
        y = target == int(name[-1])
    else:
        X, target = {"breast cancer": load_breast_cancer, "wine": load_wine, "iris": load_iris}[name](return_X_y=True)
        y = target == 1
    assert difference_to_logistic_regression(X, y, folds=5) > -0.01
