"""A hundred thousand PESG steps where numbers go wrong first, and on a convex problem whose optimum is known.

    python reliability/soak.py [--steps 100000] [--out FOLDER]

Extremes: priors of 1 : 9,999 and 999 : 1, batches by quota, margins 0.01 to 100, scores scaled by 1e-6 to 1e6 and then
bounded (sigmoid, root mean square), the network in bfloat16: everything stays finite, a and b within twice the scores
they estimate (momentum swings past its goal by less than it came from), alpha in [0, m + range of the scores].

Convex: linear scores h = w.x. With S the sum of the class covariances and d the difference of the class means,
A_M(w) = w'Sw + [m - w'd]_+^2 is least at w* = alpha* S^-1 d with alpha* = m / (1 + d'S^-1 d), where it is m alpha*. The
duality gap max_alpha F(w, a, b, .) - min_{w,a,b} F(., alpha) has a closed form too, and must shrink stage by stage.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from record import Row, write_record
from torch import Tensor, nn

from deepauc.data.samplers import ClassQuotaSampler
from deepauc.objectives.auc_margin import AUCMarginLoss
from deepauc.objectives.score_norm import BatchScoreRMSNorm
from deepauc.optim.pesg import PESG

BATCH = 64
FEATURES = 8
MARGINS = (0.01, 1.0, 100.0)
SCALES = (1e-6, 1.0, 1e6)
LOOK_EVERY = 500
STAGES = 5


def problem(rows: int, positives: int, *, seed: int) -> tuple[Tensor, npt.NDArray[np.float64]]:
    """Points (rows, FEATURES) of two clouds, and their labels."""
    rng = np.random.default_rng(seed)
    labels = np.zeros(rows)
    labels[rng.permutation(rows)[:positives]] = 1
    points = rng.standard_normal((rows, FEATURES)) + 0.5 * labels[:, None]
    return torch.tensor(points, dtype=torch.float32), labels


def batches(sampler: ClassQuotaSampler, steps: int) -> Iterator[Tensor]:
    """So many batches of row numbers."""
    epoch, left = 0, steps
    while left:
        table = torch.from_numpy(sampler.epoch_table(epoch))[:left]
        yield from table
        epoch, left = epoch + 1, left - len(table)


def extremes(steps: int, *, positives: int, rows: int, quota: int, seed: int) -> tuple[Row, dict[str, Any]]:
    """All margins, scales and bounds side by side, as labels of one loss that share their 0s and 1s."""
    points, labels = problem(rows, positives, seed=seed)
    sampler = ClassQuotaSampler(labels, BATCH, quota, seed=seed)
    assert isinstance(sampler.prior, float)
    columns = [(m, s, bound) for m in MARGINS for s in SCALES for bound in ("sigmoid", "rms")]
    scale = torch.tensor([s for _, s, _ in columns])
    squashed = torch.tensor([bound == "sigmoid" for _, _, bound in columns])
    rms = BatchScoreRMSNorm()
    torch.manual_seed(seed)
    model = nn.Linear(FEATURES, len(columns))
    objective = AUCMarginLoss(
        prior=[sampler.prior] * len(columns), margin=[m for m, _, _ in columns], num_labels=len(columns)
    )
    optimizer = PESG(model.parameters(), objective, lr=0.1, momentum=0.9, weight_decay=1e-4)
    # Behind a sigmoid class means differ by at most 1; of unit root mean square they differ by 2 sqrt(BATCH) at most.
    reach = torch.where(squashed, 1.0, 2 * math.sqrt(BATCH))
    bound = torch.tensor([m for m, _, _ in columns]) + reach
    targets = torch.from_numpy(labels).float()
    largest, furthest, looks, good = torch.zeros(len(columns)), torch.zeros(len(columns)), 0, 0
    for step, rows_of_batch in enumerate(batches(sampler, steps)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            raw = model(points[rows_of_batch])
        raw = raw.float() * scale
        scores = torch.where(squashed, torch.sigmoid(raw), rms(raw))
        loss = objective(scores, targets[rows_of_batch, None].expand(-1, len(columns)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        largest = torch.maximum(largest, objective.alpha.detach())
        if (step + 1) % LOOK_EVERY == 0:
            looks += 1
            state = [*model.parameters(), objective.a, objective.b, objective.alpha, loss]
            finite = all(bool(torch.isfinite(value).all()) for value in state)
            furthest = torch.maximum(furthest, torch.maximum(objective.a.abs(), objective.b.abs()).detach() / reach)
            kept = bool(((objective.alpha >= 0) & (largest <= bound * (1 + 1e-5))).all())
            good += finite and bool((furthest <= 2).all()) and kept
            if step + 1 == steps // 2:
                optimizer.new_stage()
    share = positives / rows
    note = (
        f"{steps:,} steps in bfloat16, {len(columns)} settings at once, looked at every {LOOK_EVERY} steps; alpha at "
        f"most {float((largest / bound).max()):.2f} of its bound, a and b {float(furthest.max()):.2f} of the scores"
    )
    figures = {"share_of_positives": share, "stream_prior": sampler.prior, "largest_alpha": largest.tolist()}
    return Row(what=f"extremes, {share:.4%} positives", trials=looks, survivors=good, note=note), figures


def convex(steps: int, *, margin: float, seed: int) -> tuple[Row, dict[str, Any]]:
    """The duality gap and the distance to the known optimum at the end of each stage of PESG."""
    points, labels = problem(4000, 40, seed=seed)
    x, positive = points.double(), torch.from_numpy(labels) == 1
    means = x[positive].mean(0), x[~positive].mean(0)
    spread = torch.cov(x[positive].T, correction=0) + torch.cov(x[~positive].T, correction=0)
    d = means[0] - means[1]
    whitened = torch.linalg.solve(spread, d)
    reach = float(d @ whitened)
    optimum, alpha_best = margin**2 / (1 + reach), margin / (1 + reach)

    sampler = ClassQuotaSampler(labels, BATCH, 8, seed=seed)
    assert isinstance(sampler.prior, float)
    torch.manual_seed(seed)
    model = nn.Linear(FEATURES, 1, bias=False)
    objective = AUCMarginLoss(prior=sampler.prior, margin=margin)
    optimizer = PESG(model.parameters(), objective, lr=0.02)
    targets = torch.from_numpy(labels).float()

    def state() -> dict[str, float]:
        w = model.weight.detach().double().squeeze(0)
        a, b, alpha = (float(value.detach()) for value in (objective.a, objective.b, objective.alpha))
        value = float(w @ spread @ w) + max(0.0, margin - float(w @ d)) ** 2
        above = value + (float(w @ means[0]) - a) ** 2 + (float(w @ means[1]) - b) ** 2
        below = 2 * alpha * margin - alpha**2 * (1 + reach)
        return {"gap": above - below, "excess": value - optimum, "alpha": alpha}

    history = [state()]
    for rows_of_batch in _staged(sampler, steps, optimizer, history, state):
        loss = objective(model(points[rows_of_batch]).squeeze(1), targets[rows_of_batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    gaps = [entry["gap"] for entry in history]
    shrinks = [later < earlier for earlier, later in pairwise(gaps)]
    above = all(entry["excess"] > -1e-6 and entry["gap"] > -1e-6 for entry in history)  # nothing is below the optimum
    close = gaps[-1] < 1e-2 * optimum and abs(history[-1]["alpha"] - alpha_best) < 0.05 * alpha_best
    checks = [*shrinks, above, close]
    note = (
        f"{steps:,} steps, margin {margin:g}: the gap goes from {gaps[0]:.3g} to {gaps[-1]:.2g}, smaller after each of "
        f"{STAGES} stages, where the optimum is {optimum:.4g}; A_M ends {history[-1]['excess']:.2g} above it"
    )
    figures = {"optimum": optimum, "alpha_best": alpha_best, "stages": history}
    return Row(what="convex problem with known optimum", trials=len(checks), survivors=sum(checks), note=note), figures


def _staged(
    sampler: ClassQuotaSampler, steps: int, optimizer: PESG, history: list[dict[str, float]], state: Any
) -> Iterator[Tensor]:
    """Batches; after each stage its state is kept and a new one begins."""
    for number, rows_of_batch in enumerate(batches(sampler, steps)):
        yield rows_of_batch
        if (number + 1) % (steps // STAGES) == 0:
            history.append(state())
            optimizer.new_stage(lr_factor=0.3)


def main() -> int:
    """The convex problem, two extremes, one record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000, help="of each of the three runs")
    parser.add_argument("--out", type=Path, help="folder of the record instead of results")
    options = parser.parse_args()
    if options.steps < 2 * LOOK_EVERY or options.steps % (2 * LOOK_EVERY):
        parser.error(f"--steps must be a multiple of {2 * LOOK_EVERY}")
    torch.set_num_threads(1)
    began = time.monotonic()
    found = [
        convex(options.steps, margin=1.0, seed=0),
        extremes(options.steps, positives=1, rows=10_000, quota=1, seed=2),
        extremes(options.steps, positives=1998, rows=2000, quota=62, seed=3),
    ]
    holds = write_record(
        "soak",
        command="make soak",
        about="Long runs of PESG: finite, bounded, and nearer to the known optimum with every stage.",
        rows=[row for row, _ in found],
        seconds=time.monotonic() - began,
        out=options.out,
        figures=[figures for _, figures in found],
    )
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
