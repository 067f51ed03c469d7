"""Only the loss, with your own network, your own optimizer and your own schedule; stopped and resumed half-way.

python examples/own_model_and_optimizer.py [--epochs 20]

Any torch optimizer works: the gradient of alpha is already turned round, so descending ascends in alpha. What has to go
into a checkpoint besides network and optimizer is the loss: it owns a, b and alpha.
"""

import argparse
import io

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from torch import nn

from deepauc import AUCMarginLoss, auroc


class OwnNetwork(nn.Module):
    """Anything that gives one number a row."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).squeeze(1)


def build(features: int, prior: float, epochs: int) -> tuple[nn.Module, AUCMarginLoss, torch.optim.Optimizer, object]:
    model, loss_fn = OwnNetwork(features), AUCMarginLoss(prior=prior)
    groups = [
        {"params": model.parameters(), "weight_decay": 1e-2},
        {"params": loss_fn.parameters(), "weight_decay": 0.0},  # decay would pull a, b and alpha to 0
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    return model, loss_fn, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)


def main(epochs: int = 20) -> float:
    torch.manual_seed(0)
    x, y = load_breast_cancer(return_X_y=True)
    x = (x - x.mean(0)) / x.std(0)
    parts = train_test_split(x, y == 0, test_size=0.5, stratify=y, random_state=0)  # class 0 is malignant
    x, x_test, y, y_test = (torch.as_tensor(part, dtype=torch.float32) for part in parts)

    def epoch_of(model, loss_fn, optimizer, scheduler) -> None:
        model.train()
        for rows in torch.randperm(len(x)).split(64):
            loss = loss_fn(torch.sigmoid(model(x[rows])), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scheduler.step()

    prior = y.mean().item()
    parts = build(x.shape[1], prior, epochs)
    for _ in range(epochs // 2):
        epoch_of(*parts)
    file = io.BytesIO()
    torch.save([part.state_dict() for part in parts], file)

    parts = build(x.shape[1], prior, epochs)  # another process, another day
    file.seek(0)
    for part, state in zip(parts, torch.load(file, weights_only=True), strict=True):
        part.load_state_dict(state)
    for _ in range(epochs - epochs // 2):
        epoch_of(*parts)

    model, loss_fn, *_ = parts
    model.eval()
    with torch.no_grad():
        scores = model(x_test)
    seen = loss_fn.diagnose(torch.sigmoid(scores), y_test)
    print(f"test AUC {auroc(scores, y_test):.4f}; A_M {seen.value:.3f}, gap {seen.gap:.4f}")
    return auroc(scores, y_test)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    main(**vars(parser.parse_args()))
