"""A run's history for TensorBoard (extra `tensorboard`): written from history.csv, once training has ended."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

FOLDER = "tensorboard"
SCALARS = {
    "loss": "train/loss",
    "view_accuracy": "train/view_accuracy",
    "validation_auc": "validation/auc",
    "A_M": "auc_loss/A_M",
    "gap": "auc_loss/gap",
    "a": "auc_loss/a",
    "b": "auc_loss/b",
    "alpha": "auc_loss/alpha",
    "lr": "train/lr",
}
"""Columns of history.csv and the names TensorBoard shows them under."""


def summary_writer() -> Any:
    """torch's SummaryWriter class; a ValueError that names the extra where TensorBoard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError("TensorBoard is not installed: pip install 'deepauc[tensorboard]'.") from None
    return SummaryWriter


def write_events(run_dir: str | Path) -> Path:
    """The history as scalars under RUN/tensorboard, the folder `tensorboard --logdir` takes; returns it.

    A step is an epoch, counted from 1 over all stages; empty and non-finite cells are left out. Events of an earlier
    call are replaced, so a run has each scalar once.
    """
    writer_class = summary_writer()
    history, folder = Path(run_dir) / "history.csv", Path(run_dir) / FOLDER
    try:
        with history.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except FileNotFoundError:
        raise ValueError(f"{history} does not exist: name the folder of a run that has trained an epoch.") from None
    for earlier in folder.glob("events.out.tfevents.*"):
        earlier.unlink()
    writer = writer_class(log_dir=str(folder))
    try:
        for epoch, row in enumerate(rows, start=1):
            for column, tag in SCALARS.items():
                value = _number(row.get(column))
                if math.isfinite(value):
                    writer.add_scalar(tag, value, epoch, walltime=history.stat().st_mtime)
    finally:
        writer.close()
    return folder


def _number(cell: str | None) -> float:
    return float(cell) if cell else math.nan
