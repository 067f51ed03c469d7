"""How often nominal 95 % intervals of AP, partial AUC, Brier score and ECE hold the truth of the cohort."""

import sys
from statistics import NormalDist

import numpy as np
import pytest

from deepauc.metrics.average_precision import average_precision_interval
from deepauc.metrics.calibration import calibration_intervals
from deepauc.metrics.partial import partial_auroc_interval

SHARE = 0.1  # of positives
BINS = 10
AREAS = (0.7, 0.8, 0.9)
GRID = np.linspace(-12, 16, 200_001)


def normal_pdf(x):
    return np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)


class World:
    """Unit normal scores at 0 and at `shift`, with everything about them known on a grid."""

    def __init__(self, area, share=SHARE):
        self.share = share
        self.shift = NormalDist().inv_cdf(area) * np.sqrt(2)
        step = GRID[1] - GRID[0]
        self.positives = share * normal_pdf(GRID - self.shift) * step
        self.negatives = (1 - share) * normal_pdf(GRID) * step
        true, called = np.cumsum(self.positives[::-1]), np.cumsum((self.positives + self.negatives)[::-1])
        self.average_precision = float(np.sum(self.positives[::-1] * true / called) / share)

    def log_odds(self, scores):
        return self.shift * scores - self.shift**2 / 2 + np.log(self.share / (1 - self.share))

    def brier(self, p):
        return float(self.positives @ (1 - p) ** 2 + self.negatives @ p**2)

    def calibration_error(self, p, edges):
        """Over bins of the predictions whose upper edges are `edges`; p rises along the grid."""
        gap = (self.positives + self.negatives) * p - self.positives
        at = np.searchsorted(p, edges, side="right")
        return float(np.abs(np.diff(np.append(0.0, np.cumsum(gap))[[0, *at, gap.size]])).sum())

    def cohort(self, rng, rows):
        labels = np.zeros(rows, dtype=int)
        while labels.sum() < 2:  # an interval needs two; of 100 rows 3 samples in 10,000 have fewer
            labels = (rng.random(rows) < self.share).astype(int)
        return rng.standard_normal(rows) + self.shift * labels, labels


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def coverage(area, rows, cohorts, *, slope=1.0, offset=0.0, stratified=False, seed=0):
    """Shares of intervals that hold the truth: AP, Brier and ECE of sigmoid(slope · log-odds + offset)."""
    world, rng = World(area), np.random.default_rng(seed)
    p_grid = sigmoid(slope * world.log_odds(GRID) + offset)
    brier, held = world.brier(p_grid), np.zeros(3)
    for number in range(cohorts):
        scores, labels = world.cohort(rng, rows)
        p = sigmoid(slope * world.log_odds(scores) + offset)
        options = {"n_resamples": 500, "seed": number, "stratified": stratified}
        precision = average_precision_interval(scores, labels, **options)
        found = calibration_intervals(p, labels, bins=BINS, **options)
        edges = np.sort(p)[[rows * b // BINS - 1 for b in range(1, BINS)]]
        truths = (world.average_precision, brier, world.calibration_error(p_grid, edges))
        estimates = (precision, found.brier, found.calibration_error)
        held += [
            one.low - 1e-9 <= truth <= one.high + 1e-9  # the grid's sums are not exact, and a truth may be 0
            for one, truth in zip(estimates, truths, strict=True)
        ]
    return dict(zip(("AP", "Brier", "ECE"), held / cohorts, strict=True))


def show(capsys, line):
    with capsys.disabled():
        sys.stdout.write(f"\n{line}\n")


def test_the_truth_is_the_truth():
    """The grid against one large sample."""
    world, rng = World(0.8), np.random.default_rng(0)
    labels = (rng.random(400_000) < SHARE).astype(int)
    scores = rng.standard_normal(labels.size) + world.shift * labels
    p = sigmoid(world.log_odds(scores) + 0.5)
    found = calibration_intervals(p, labels, bins=BINS, n_resamples=100)
    assert found.brier.low <= world.brier(sigmoid(world.log_odds(GRID) + 0.5)) <= found.brier.high
    edges = np.quantile(p, np.arange(1, BINS) / BINS)
    expected = world.calibration_error(sigmoid(world.log_odds(GRID) + 0.5), edges)
    assert found.calibration_error.value == pytest.approx(expected, abs=0.002)
    precision = average_precision_interval(scores, labels, n_resamples=100)
    assert precision.value == pytest.approx(world.average_precision, abs=0.01)


def test_a_cohort_is_resampled_whole_not_class_by_class():
    """200 cohorts of 300: intervals hold the truth about as often as they say; stratified ones do not for Brier."""
    found = coverage(0.8, 300, 200)
    assert 0.89 <= found["AP"] <= 0.99, found
    assert 0.90 <= found["Brier"] <= 0.99, found
    assert found["ECE"] >= 0.90, found
    stratified = coverage(0.8, 300, 200, stratified=True)
    assert stratified["Brier"] < 0.75, stratified


@pytest.mark.slow
@pytest.mark.parametrize("rows", [100, 300, 3000])
@pytest.mark.parametrize("area", AREAS)
def test_calibrated_models(capsys, area, rows):
    found = coverage(area, rows, 1000)
    show(capsys, f"AUC {area}, {rows} rows: {found}; stratified {coverage(area, rows, 300, stratified=True)}")
    least = {"AP": 0.90, "Brier": 0.92, "ECE": 0.93} if rows > 100 else {"AP": 0.88, "Brier": 0.90, "ECE": 0.88}
    assert all(found[name] >= share for name, share in least.items()), found
    assert max(found["AP"], found["Brier"]) <= 0.97, found


@pytest.mark.slow
@pytest.mark.parametrize("rows", [300, 3000])
@pytest.mark.parametrize(("slope", "offset"), [(1.3, 0.0), (1.0, 0.2), (1.0, 0.5), (0.5, 0.0), (2.0, 3.0)])
def test_calibration_error_of_miscalibrated_models(capsys, slope, offset, rows):
    found = coverage(0.8, rows, 400, slope=slope, offset=offset)
    show(capsys, f"slope {slope}, offset {offset}, {rows} rows: {found}")
    assert found["ECE"] >= 0.93, found
    assert 0.91 <= found["Brier"] <= 0.98, found


def clustered_coverage(clustered, *, patients=150, images=4, cohorts=600):
    """Patients who share a part of the score and mostly the label; the score depends on no more than its own label."""
    frail_share = 1 - NormalDist().cdf(0.5)
    world = World(0.8, share=0.8 * frail_share + 0.05 * (1 - frail_share))
    rng, groups = np.random.default_rng(1), np.repeat(np.arange(patients), images)
    truths = np.array([world.average_precision, world.brier(sigmoid(world.log_odds(GRID)))])
    held = np.zeros(2)
    for number in range(cohorts):
        frail = rng.standard_normal(patients) > 0.5
        labels = (rng.random(groups.size) < np.where(frail[groups], 0.8, 0.05)).astype(int)
        noise = np.sqrt(0.6) * rng.standard_normal(patients)[groups] + np.sqrt(0.4) * rng.standard_normal(groups.size)
        scores = noise + world.shift * labels
        options = {"groups": groups if clustered else None, "n_resamples": 500, "seed": number}
        brier = calibration_intervals(sigmoid(world.log_odds(scores)), labels, **options).brier
        precision = average_precision_interval(scores, labels, **options)
        held += [one.low <= truth <= one.high for one, truth in zip((precision, brier), truths, strict=True)]
    return dict(zip(("AP", "Brier"), held / cohorts, strict=True))


@pytest.mark.slow
def test_patients_with_several_images(capsys):
    with_groups, without = clustered_coverage(True), clustered_coverage(False)
    show(capsys, f"150 patients of 4 images: {with_groups} with groups, {without} without")
    for name in ("AP", "Brier"):
        assert 0.91 <= with_groups[name] <= 0.975
        assert without[name] < 0.88


def partial_coverage(area, positives, negatives, samples, **limits):
    """Of the partial AUC, with class counts that are fixed."""
    shift = NormalDist().inv_cdf(area) * np.sqrt(2)
    step = GRID[1] - GRID[0]
    fpr, tpr = (np.cumsum(normal_pdf(GRID - at)[::-1]) * step for at in (0.0, shift))
    heights = np.maximum(tpr - limits.get("min_tpr", 0.0), 0) * (fpr <= limits.get("max_fpr", 1.0))
    truth = float(heights @ (normal_pdf(GRID)[::-1] * step))
    labels, rng, held = np.array([1] * positives + [0] * negatives), np.random.default_rng(0), 0
    for number in range(samples):
        scores = rng.standard_normal(labels.size) + shift * labels
        found = partial_auroc_interval(scores, labels, n_resamples=500, seed=number, **limits)
        held += found.low <= truth <= found.high
    return held / samples


def test_partial_auc_of_fifty_positives():
    assert 0.88 <= partial_coverage(0.8, 50, 450, 150, max_fpr=0.3) <= 0.99
    assert 0.85 <= partial_coverage(0.8, 50, 450, 150, min_tpr=0.8) <= 0.98


@pytest.mark.slow
@pytest.mark.parametrize(("positives", "least"), [(50, (0.93, 0.90)), (10, (0.92, 0.70))])
@pytest.mark.parametrize("area", AREAS)
def test_partial_auc(capsys, area, positives, least):
    found = [
        partial_coverage(area, positives, 9 * positives, 1000, **limits)
        for limits in ({"max_fpr": 0.3}, {"min_tpr": 0.8})
    ]
    show(capsys, f"AUC {area}, {positives} positives: FPR <= .3 {found[0]}, TPR >= .8 {found[1]}")
    assert all(share >= bound for share, bound in zip(found, least, strict=True)), found
    assert max(found) <= 0.98
