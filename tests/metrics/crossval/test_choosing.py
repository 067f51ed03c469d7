"""The kept candidate: the default unless clearly beaten, baselines never alone, and a figure free of the choosing."""

import numpy as np
import pytest

from deepauc.metrics.crossval.choosing import choose
from deepauc.metrics.crossval.folds import compare_fold_auroc, fold_auroc, fold_auroc_interval


def rows(seed=0, n=300, folds=5):
    rng = np.random.default_rng(seed)
    labels = (np.arange(n) % 6 == 0).astype(int)
    return rng, labels, np.arange(n) // 6 % folds


def scored(rng, labels, strength):
    return rng.standard_normal(len(labels)) + strength * labels


def test_the_default_stays_unless_beaten_by_a_standard_error():
    changed = 0
    for seed in range(40):
        rng, labels, folds = rows(seed)
        a, b = scored(rng, labels, 1.0), scored(rng, labels, 1.0)
        found = choose({"a": a, "b": b}, labels, folds, default="a")
        difference = compare_fold_auroc(b, a, labels, folds)
        assert (found.name == "b") == (difference.difference > difference.standard_error)
        changed += found.name == "b"
    assert 1 <= changed <= 14  # about 16 % by chance


def test_the_better_one_wins_whichever_is_the_default():
    rng, labels, folds = rows()
    weak, strong, strongest = (scored(rng, labels, strength) for strength in (0.3, 2.0, 3.0))
    offered = {"weak": weak, "strong": strong, "strongest": strongest}
    for default in offered:
        assert choose(offered, labels, folds, default=default).name == "strongest"


def test_a_baseline_is_never_kept_alone_and_joins_by_the_same_rule():
    rng, labels, folds = rows()
    network, baseline = scored(rng, labels, 1.0), scored(rng, labels, 3.0)
    alone = choose({"net": network}, labels, folds, default="net", trivial={"pixels": baseline})
    assert (alone.name, alone.with_trivial, alone.clearly_better) == ("net", None, False)
    averages = {("net", "pixels"): network + baseline, ("other", "pixels"): baseline}
    joined = choose({"net": network}, labels, folds, default="net", trivial={"pixels": baseline}, averages=averages)
    assert joined.with_trivial == "pixels"
    assert joined.uncorrected.value == fold_auroc(network + baseline, labels, folds)
    noise = {("net", "pixels"): network + 5 * rng.standard_normal(len(labels))}
    assert choose({"net": network}, labels, folds, default="net", averages=noise).with_trivial is None


def test_the_verdict_is_against_the_best_baseline():
    rng, labels, folds = rows()
    network = scored(rng, labels, 3.0)
    trivial = {"brightness": scored(rng, labels, 0.0), "pixels": scored(rng, labels, 0.5)}
    found = choose({"net": network}, labels, folds, default="net", trivial=trivial)
    assert found.trivial == "pixels"
    assert found.clearly_better is True
    assert found.against_trivial == compare_fold_auroc(network, trivial["pixels"], labels, folds)
    assert choose({"net": network}, labels, folds, default="net").clearly_better is None


def test_a_single_candidate_needs_no_correction():
    rng, labels, folds = rows()
    scores = scored(rng, labels, 1.0)
    found = choose({"a": scores}, labels, folds, default="a")
    assert found.auc == found.uncorrected == fold_auroc_interval(scores, labels, folds)


def test_the_correction_by_hand():
    """Fold 0 alone makes `b` look better: without it `a` is kept, and fold 0 is judged with `a`."""
    rng, labels, folds = rows(seed=3)
    a = scored(rng, labels, 0.7)
    b = np.where(folds == 0, 9.0 * labels, a + 0.3 * rng.standard_normal(len(labels)))
    assert (
        choose({"a": a[folds != 0], "b": b[folds != 0]}, labels[folds != 0], folds[folds != 0], default="a").name == "a"
    )
    found = choose({"a": a, "b": b}, labels, folds, default="a")
    composed = np.empty(len(labels))
    for fold in range(5):
        rest = folds != fold
        name = choose({"a": a[rest], "b": b[rest]}, labels[rest], folds[rest], default="a").name
        composed[~rest] = (a if name == "a" else b)[~rest]
    assert found.auc == fold_auroc_interval(composed, labels, folds)
    assert found.auc.value < found.uncorrected.value


def test_equal_candidates_do_not_look_better_than_they_are():
    plain, corrected = [], []
    for seed in range(60):
        rng, labels, folds = rows(seed, n=150)
        offered = {str(i): scored(rng, labels, 1.0) for i in range(6)}
        found = choose(offered, labels, folds, default="0")
        plain.append(found.uncorrected.value)
        corrected.append(found.auc.value)
    truth = 0.7602  # of two unit normals a distance of 1 apart
    assert np.mean(plain) > truth + 0.025
    assert abs(np.mean(corrected) - truth) < 0.02


def test_several_labels_and_one_that_cannot_be_judged():
    rng, labels, folds = rows()
    both = np.stack([labels, np.zeros_like(labels)], axis=1).astype(float)
    both[0, 1] = np.nan
    a, b = (np.stack([scored(rng, labels, s), rng.standard_normal(len(labels))], axis=1) for s in (0.5, 2.5))
    found = choose({"a": a, "b": b}, both, folds, default="a")
    assert found.name == "b"
    assert found.uncorrected.value == fold_auroc(b[:, 0], labels, folds)


def test_refusals():
    rng, labels, folds = rows()
    a = scored(rng, labels, 1)
    with pytest.raises(ValueError, match="'c' is not among a"):
        choose({"a": a}, labels, folds, default="c")
    with pytest.raises(ValueError, match="no candidate can be judged"):
        choose({"a": a}, np.zeros(len(labels)), folds, default="a")
    with pytest.raises(ValueError, match="all candidates need"):
        choose({"a": a, "b": a[1:]}, labels, folds, default="a")
