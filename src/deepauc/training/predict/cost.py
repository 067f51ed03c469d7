"""What a trained network costs its users: bytes on disk, and the time of a prediction."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from deepauc.training.run.bundle import Bundle
from deepauc.training.run.own_files import BUNDLE, MODEL
from deepauc.training.test_time import passes

ROWS, TIMES = 16, 3


@dataclass(frozen=True, kw_only=True)
class PredictionCost:
    """networks: so many are averaged. milliseconds: of one row on this machine's CPU, reading it not counted."""

    bytes: int
    networks: int
    milliseconds: float

    @property
    def text(self) -> str:
        """`5 networks, 1.9 MB, 2.7 ms per row on this CPU`."""
        networks = f"{self.networks} network{'s' * (self.networks != 1)}"
        return f"{networks}, {self.bytes / 1e6:.1f} MB, {float(f'{self.milliseconds:.2g}'):g} ms per row on this CPU"


def prediction_cost(folder: str | Path) -> PredictionCost:
    """Of the network in a run's folder or bundle: the shortest of three passes over a few made-up rows."""
    place = Path(folder)
    bundle = Bundle.load(place)
    network = bundle.network(place)
    shape = bundle.shape
    rows = torch.rand(ROWS, *((shape[2], *shape[:2]) if len(shape) == 3 else shape))
    taken = []
    with torch.inference_mode():
        for _ in range(TIMES):
            began = time.perf_counter()
            network(rows)
            taken.append(time.perf_counter() - began)
    return PredictionCost(
        bytes=sum((place / name).stat().st_size for name in (MODEL, BUNDLE)),
        networks=len(getattr(bundle.model, "members", (bundle.model,))),
        milliseconds=1000 * passes(bundle.copies) * min(taken) / ROWS,
    )
