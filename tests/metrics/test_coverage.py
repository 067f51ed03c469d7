"""How often nominal 95 % intervals hold the truth, by simulation: minutes of work, run by hand with -m slow."""

import sys
from statistics import NormalDist

import numpy as np
import pytest

from deepauc.metrics.intervals import auroc_interval

SIMULATIONS = 4000
AREAS = (0.7, 0.8, 0.9)


def shift_for(area):
    """The distance of two unit normals whose AUROC is `area`."""
    return NormalDist().inv_cdf(area) * np.sqrt(2)


def coverage(method, area, positives, negatives, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.repeat([1, 0], [positives, negatives])
    shift = shift_for(area)
    held = 0
    for i in range(SIMULATIONS):
        scores = rng.standard_normal(labels.size) + shift * labels
        found = auroc_interval(scores, labels, method=method, n_resamples=1000, seed=i)
        held += found.low <= area <= found.high
    return held / SIMULATIONS


def show(capsys, line):
    with capsys.disabled():
        sys.stdout.write(f"\n{line}\n")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["delong", "bootstrap"])
@pytest.mark.parametrize(("positives", "negatives"), [(50, 50), (50, 450), (100, 900)])
def test_fifty_positives_and_more(capsys, method, positives, negatives):
    table = {area: coverage(method, area, positives, negatives) for area in AREAS}
    show(capsys, f"{method}, {positives} positives, {negatives} negatives: {table}")
    assert all(0.93 <= share <= 0.97 for share in table.values()), table


@pytest.mark.slow
@pytest.mark.parametrize("method", ["delong", "bootstrap"])
@pytest.mark.parametrize("negatives", [90, 990])
def test_ten_positives_are_documented_not_promised(capsys, method, negatives):
    table = {area: coverage(method, area, 10, negatives) for area in AREAS}
    show(capsys, f"{method}, 10 positives, {negatives} negatives: {table}")
    assert all(0.84 <= share <= 0.97 for share in table.values()), table


def clustered_coverage(method, clustered, patients=150, images=4):
    """Patients with a shared score component; the label belongs to the image, so patients hold both classes."""
    rng = np.random.default_rng(1)
    groups = np.repeat(np.arange(patients), images)
    shift, held, simulations = shift_for(0.8), 0, 1000
    for i in range(simulations):
        frail = rng.standard_normal(patients) > 0.5  # most of a patient's images share their class
        labels = (rng.random(groups.size) < np.where(frail[groups], 0.8, 0.05)).astype(int)
        noise = np.sqrt(0.6) * rng.standard_normal(patients)[groups] + np.sqrt(0.4) * rng.standard_normal(groups.size)
        found = auroc_interval(
            noise + shift * labels, labels, method=method, groups=groups if clustered else None, n_resamples=500, seed=i
        )
        held += found.low <= 0.8 <= found.high
    return held / simulations


@pytest.mark.slow
@pytest.mark.parametrize("method", ["delong", "bootstrap"])
def test_patients_with_several_images(capsys, method):
    with_groups, without = clustered_coverage(method, True), clustered_coverage(method, False)
    show(capsys, f"{method}, 150 patients of 4 images: {with_groups} with groups, {without} without")
    assert 0.925 <= with_groups <= 0.975
    assert without < 0.9
