"""AUC-M and PESG in a LightningModule, with stages and a quota of positives, on scikit-learn's digits.

pip install 'deepauc[lightning]'; python examples/lightning_digits.py [--epochs 10]

Several devices: Trainer(devices=2, strategy="ddp", use_distributed_sampler=False). Batch size and quota stay global.
"""

import argparse

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from deepauc import PESG, AUCMarginLoss, auroc
from deepauc.integrations.lightning import NewStage, quota_loader

BATCH, QUOTA = 64, 16


class IsItAnEight(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(64, 32), nn.ELU(), nn.Linear(32, 1))
        self.loss_fn = AUCMarginLoss(prior=QUOTA / BATCH)  # an attribute: a, b, alpha are saved and averaged by DDP
        digits = load_digits()
        target = digits.target == 8
        parts = train_test_split(digits.data / 16, target, test_size=0.5, stratify=digits.target, random_state=0)
        self.x, self.x_val, self.y, self.y_val = (torch.as_tensor(part, dtype=torch.float32) for part in parts)
        self.seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return PESG(self.network.parameters(), self.loss_fn, lr=0.1, gamma=0.002, weight_decay=1e-4)

    def train_dataloader(self) -> DataLoader:
        data = TensorDataset(self.x, self.y)
        return quota_loader(data, self.y, trainer=self.trainer, batch_size=BATCH, positives_per_batch=QUOTA)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(TensorDataset(self.x_val, self.y_val), batch_size=256)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        features, labels = batch
        return self.loss_fn(torch.sigmoid(self.network(features).squeeze(1)), labels)

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        self.seen.append((self.network(batch[0]).squeeze(1), batch[1]))

    def on_validation_epoch_end(self) -> None:
        scores, labels = (torch.cat(column) for column in zip(*self.seen, strict=True))
        self.seen.clear()
        if 0 < labels.sum() < len(labels):  # Lightning's sanity check may show it one class
            self.log("val_auroc", auroc(scores, labels), prog_bar=True)


def main(epochs: int = 10) -> float:
    pl.seed_everything(0, verbose=False)
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=[NewStage(milestones=[max(1, epochs // 2)], lr_factor=0.1)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(IsItAnEight())
    value = float(trainer.callback_metrics["val_auroc"])
    print(f"validation AUC {value:.3f}, lr now {trainer.optimizers[0].param_groups[0]['lr']:g}")
    return value


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    main(**vars(parser.parse_args()))
