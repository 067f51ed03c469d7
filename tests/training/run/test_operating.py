"""Thresholds of a bundle: those that the negatives of validation can tell apart."""

import numpy as np
import pytest

from deepauc.training.run.operating import thresholds_of


@pytest.mark.parametrize(("negatives", "highest"), [(300, 0.95), (1500, 0.99), (2500, 0.995)])
def test_high_specificities_where_validation_has_the_negatives(negatives, highest):
    labels = np.r_[np.ones(20), np.zeros(negatives)].astype(np.float32)
    scores = np.random.default_rng(0).normal(size=len(labels)).astype(np.float32)
    found = thresholds_of(scores, labels)
    rates = {"specificity": [], "sensitivity": []}
    for name, threshold in found.items():
        kind, rate = name.split()
        rates[kind].append(float(rate))
        reached = scores[20:] < threshold if kind == "specificity" else scores[:20] >= threshold
        assert reached.mean() >= float(rate)
    assert (rates["specificity"][-1], rates["sensitivity"]) == (highest, [0.9, 0.95])
