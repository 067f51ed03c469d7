"""AUC-M and PESG in a plain PyTorch loop, on scikit-learn's digits: is it an 8? (about 10 % are)

python examples/six_line_loop.py [--epochs 20]
"""

import argparse

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, TensorDataset

from deepauc import PESG, AUCMarginLoss, ClassQuotaSampler, auroc_interval


def main(epochs: int = 20) -> float:
    torch.manual_seed(0)
    digits = load_digits()
    parts = train_test_split(
        digits.data / 16, digits.target == 8, test_size=0.5, stratify=digits.target, random_state=0
    )
    x, x_test, y, y_test = (torch.as_tensor(part, dtype=torch.float32) for part in parts)

    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ELU(), torch.nn.Linear(32, 1))
    sampler = ClassQuotaSampler(y, batch_size=64, positives_per_batch=16, seed=0)
    loader = DataLoader(TensorDataset(x, y), batch_sampler=sampler)
    loss_fn = AUCMarginLoss(prior=sampler.prior, margin=1.0)
    optimizer = PESG(model.parameters(), loss_fn, lr=0.1, gamma=0.002, weight_decay=1e-4)

    for epoch in range(epochs):
        if epoch == epochs // 2:
            optimizer.new_stage(lr_factor=0.1)
        for features, labels in loader:
            loss = loss_fn(torch.sigmoid(model(features).squeeze(1)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    with torch.no_grad():
        scores = model(x_test).squeeze(1)
    estimate = auroc_interval(scores, y_test)
    print(f"test AUC {estimate.value:.3f}, 95 % interval {estimate.low:.3f} to {estimate.high:.3f}")
    seen = loss_fn.diagnose(torch.sigmoid(scores), y_test)
    print(f"A_M {seen.value:.3f}, gap {seen.gap:.3f}, alpha {seen.alpha:.3f} (optimal {seen.alpha_optimal:.3f})")
    return estimate.value


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    main(**vars(parser.parse_args()))
