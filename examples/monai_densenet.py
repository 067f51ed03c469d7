"""A MONAI network and MONAI transforms with AUC-M and PESG. Run by hand: MONAI is no dependency, not even an extra.

pip install monai; python examples/monai_densenet.py [--epochs 3]
"""

import argparse

import torch
from monai.data import DataLoader, Dataset
from monai.networks.nets import DenseNet
from monai.transforms import Compose, RandGaussianNoise, ScaleIntensity
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from deepauc import PESG, AUCMarginLoss, ClassQuotaSampler, auroc_interval


def main(epochs: int = 3) -> float:
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.as_tensor(digits.images, dtype=torch.float32).unsqueeze(1)
    labels = torch.as_tensor(digits.target == 8, dtype=torch.float32)
    train, test = train_test_split(range(len(labels)), test_size=0.5, stratify=digits.target, random_state=0)

    change = Compose([ScaleIntensity(), RandGaussianNoise(prob=0.5, std=0.05)])
    rows = [{"image": images[row], "label": labels[row]} for row in train]
    data = Dataset(rows, transform=lambda row: {**row, "image": change(row["image"])})
    sampler = ClassQuotaSampler(labels[train], batch_size=64, positives_per_batch=16, seed=0)
    loader = DataLoader(data, batch_sampler=sampler)

    model = DenseNet(
        spatial_dims=2, in_channels=1, out_channels=1, init_features=16, growth_rate=8, block_config=(2, 2)
    )
    loss_fn = AUCMarginLoss(prior=sampler.prior)
    optimizer = PESG(model.parameters(), loss_fn, lr=0.1)
    for _ in range(epochs):
        model.train()
        for batch in loader:
            loss = loss_fn(torch.sigmoid(model(batch["image"].as_tensor()).squeeze(1)), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    model.eval()
    with torch.no_grad():
        scores = model(images[test] / 16).squeeze(1)
    estimate = auroc_interval(scores, labels[test])
    print(f"test AUC {estimate.value:.3f}, 95 % interval {estimate.low:.3f} to {estimate.high:.3f}")
    return estimate.value


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    main(**vars(parser.parse_args()))
