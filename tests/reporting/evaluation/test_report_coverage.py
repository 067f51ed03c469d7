"""The coverage that the report quotes for few positives, by simulation: a minute, run by hand with -m slow."""

from statistics import NormalDist

import numpy as np
import pytest

from deepauc.metrics.intervals import auroc_interval


def coverage(area, positives, negatives, samples=4000):
    generator = np.random.default_rng(0)
    labels = np.repeat([1, 0], [positives, negatives])
    distance = NormalDist().inv_cdf(area) * np.sqrt(2)
    held = 0
    for _ in range(samples):
        found = auroc_interval(generator.standard_normal(labels.size) + distance * labels, labels)
        held += found.low <= area <= found.high
    return held / samples


@pytest.mark.slow
@pytest.mark.parametrize(("counts", "quoted"), [([(10, 90), (10, 990)], (0.87, 0.94)), ([(5, 95)], (0.86, 0.89))])
def test_the_quoted_range(counts, quoted):
    found = [coverage(area, *pair) for pair in counts for area in (0.7, 0.8, 0.9)]
    assert round(min(found), 2) == quoted[0]
    assert round(max(found), 2) == quoted[1]
