"""Which settings diverge: AUC losses on raw, sigmoid and normalised scores, over learning rates and momentum.

    python benchmarks/unbounded_scores.py          # trains on the bundled digits, writes results/unbounded-scores.json
    python benchmarks/unbounded_scores.py --table  # only writes results/unbounded-scores.md from that record

ResNet20 from random weights on scikit-learn's digits (5 to 9 against 0 to 4), batches of 128 with 32 positives, margin
1, no weight decay. A run has diverged where the loss refuses to go on (NaN, overflow, or a and b far outside the
scores); its training AUC is taken on all rows, in eval mode, which says whether it learnt anything.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from deepauc import PESG, AUCMarginLoss, BatchScoreNorm, ClassQuotaSampler, PairwiseAUCLoss, auroc
from deepauc.models.resnet20 import ResNet20
from deepauc.text_tables import markdown_table
from deepauc.training.run.folder import code_text, surroundings

RESULTS = Path(__file__).parent.parent / "results"
BOUNDS = {"raw": nn.Identity, "sigmoid": nn.Sigmoid, "L2 over the batch": BatchScoreNorm}
RATES, MOMENTA, LOSSES, SEEDS = (0.1, 0.02, 0.003), (0.0, 0.9), ("AUC-M, PESG", "all pairs, squared hinge, SGD"), (0, 1)
STEPS = 120


def digits() -> tuple[Tensor, Tensor]:
    bundled = load_digits()
    images = torch.as_tensor(bundled.images, dtype=torch.float32).unsqueeze(1) / 16
    return (images - images.mean()) / images.std(), torch.as_tensor(bundled.target > 4).float()


def train(loss: str, bound: str, lr: float, momentum: float, seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    x, y = digits()
    model, layer = ResNet20(in_channels=1), BOUNDS[bound]()
    sampler = ClassQuotaSampler(y, 128, 32, seed=seed)
    if loss == LOSSES[0]:
        loss_fn: nn.Module = AUCMarginLoss(prior=32 / 128)
        optimizer: torch.optim.Optimizer = PESG(model.parameters(), loss_fn, lr, momentum=momentum)
    else:
        loss_fn = PairwiseAUCLoss(surrogate="squared_hinge", margin=1.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    step, largest, diverged = 0, 0.0, None
    try:
        while step < STEPS:
            for rows in sampler:
                scores = model(x[rows]).squeeze(1)
                largest = max(largest, scores.detach().abs().max().item())
                value = loss_fn(layer(scores), y[rows])
                optimizer.zero_grad()
                value.backward()
                optimizer.step()
                step += 1
                if step == STEPS:
                    break
    except ValueError as error:
        diverged = str(error).split(":", maxsplit=1)[0]
    model.eval()
    with torch.no_grad():
        scores = model(x).squeeze(1)
    trained = None if diverged or not scores.isfinite().all() else auroc(scores, y)
    return {
        "loss": loss,
        "bound": bound,
        "lr": lr,
        "momentum": momentum,
        "seed": seed,
        "steps": step,
        "diverged": diverged,
        "largest_score": largest if math.isfinite(largest) else None,
        "training_auc": trained,
    }


def table(record: dict[str, Any]) -> str:
    header = ["loss", "scores", *(f"lr {lr:g}, momentum {mu:g}" for lr in RATES for mu in MOMENTA)]
    rows = []
    for loss in LOSSES:
        for bound in BOUNDS:
            cells = []
            for lr in RATES:
                for mu in MOMENTA:
                    key = (loss, bound, lr, mu)
                    found = [r for r in record["runs"] if (r["loss"], r["bound"], r["lr"], r["momentum"]) == key]
                    cells.append(" / ".join(_cell(run) for run in found))
            rows.append([loss, bound, *cells])
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    return "\n".join(
        [
            "# What diverges without a bound on the scores",
            "",
            f"ResNet20 from random weights on scikit-learn's digits, 5 to 9 against 0 to 4, {STEPS} steps of 128 with",
            "32 positives, margin 1. A cell has one entry a seed: the AUC on the training images after the last step,",
            "or the step at which the loss refused to go on. Nothing here is a test score. Made by",
            "`python benchmarks/unbounded_scores.py`.",
            "",
            markdown_table(header, rows),
            "",
            f"{record['hardware']}; {versions}; {code_text(record)}.",
            "",
        ]
    )


def _cell(run: dict[str, Any]) -> str:
    if run["diverged"]:
        return f"stopped at {run['steps']}"
    return "NaN" if run["training_auc"] is None else f"{run['training_auc']:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true")
    if not parser.parse_args().table:
        torch.set_num_threads(1)
        runs = []
        for seed in SEEDS:
            for loss in LOSSES:
                for bound in BOUNDS:
                    for lr in RATES:
                        for momentum in MOMENTA:
                            runs.append(train(loss, bound, lr, momentum, seed))
                            print(runs[-1], flush=True)
        record = {**surroundings(torch.device("cpu")), "steps": STEPS, "runs": runs}
        (RESULTS / "unbounded-scores.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    record = json.loads((RESULTS / "unbounded-scores.json").read_text(encoding="utf-8"))
    (RESULTS / "unbounded-scores.md").write_text(table(record), encoding="utf-8")


if __name__ == "__main__":
    main()
