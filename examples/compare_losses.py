"""Cross-entropy, focal loss, AUC-S and AUC-M on the same rare positives, each with an interval and a paired test.

python examples/compare_losses.py [--epochs 30]

Digits 5 to 9 against 0 to 4, one positive in twenty in the training half. One seed and settings that nobody tuned: this
shows how to compare, not which loss is better.
"""

import argparse

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from deepauc import PESG, AUCMarginLoss, AUCSquareLoss, ClassQuotaSampler, FocalLoss, auroc_interval, compare_auroc

BATCH, QUOTA = 64, 16


def trained_scores(loss_fn: nn.Module, x: Tensor, y: Tensor, x_test: Tensor, *, epochs: int) -> Tensor:
    """The same network, batches and number of steps for each loss; only the loss and its optimizer differ."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ELU(), nn.Linear(32, 1))
    if isinstance(loss_fn, AUCMarginLoss | AUCSquareLoss):
        optimizer, bound = PESG(model.parameters(), loss_fn, lr=0.1), torch.sigmoid
    else:
        optimizer, bound = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), nn.Identity()
    sampler = ClassQuotaSampler(y, BATCH, QUOTA, seed=0)
    for _ in range(epochs):
        for rows in sampler:
            loss = loss_fn(bound(model(x[rows]).squeeze(1)), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        return model(x_test).squeeze(1)


def main(epochs: int = 30) -> dict[str, float]:
    digits = load_digits()
    parts = train_test_split(digits.data / 16, digits.target > 4, test_size=0.5, stratify=digits.target, random_state=0)
    x, x_test, y, y_test = (torch.as_tensor(part, dtype=torch.float32) for part in parts)
    negatives, positives = (np.flatnonzero(y == value) for value in (0, 1))
    rows = np.concatenate([negatives, positives[: len(negatives) // 19]])
    x, y = x[rows], y[rows]

    prior = QUOTA / BATCH
    losses = {
        "cross-entropy": nn.BCEWithLogitsLoss(),
        "focal": FocalLoss(alpha=0.25, gamma=2.0),
        "AUC-S": AUCSquareLoss(prior=prior),
        "AUC-M": AUCMarginLoss(prior=prior, margin=0.5),
    }
    scores = {name: trained_scores(loss_fn, x, y, x_test, epochs=epochs) for name, loss_fn in losses.items()}
    for name, values in scores.items():
        estimate = auroc_interval(values, y_test)
        test = compare_auroc(values, scores["cross-entropy"], y_test)
        print(
            f"{name:14} AUC {estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]  "
            f"minus cross-entropy {test.difference:+.3f} [{test.low:+.3f}, {test.high:+.3f}], p = {test.p_value:.2g}"
        )
    return {name: auroc_interval(values, y_test).value for name, values in scores.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=30)
    main(**vars(parser.parse_args()))
