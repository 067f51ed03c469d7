"""What five labels at once cost: a training step of AUC-M and PESG on (N, 5) labels against one on (N,).

    python benchmarks/multi_label.py            # one CPU thread; multi-label-cpu in results/speed.jsonl
    python benchmarks/multi_label.py --gpu      # one CUDA device; multi-label-gpu in the same

The stand-in for CheXpert: grey images of 96 pixels (32 on a CPU) in batches of 32, ResNet20 and DenseNet121. Both
contenders do the whole step, forward, loss, backward, update; they take turns, the best time of each counts. Eager: a
captured step only has the arithmetic left, so this is the less favourable case. The aim is a ratio of at most 1.1.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from deepauc.models.build import ModelSpec, ResNet20Spec, TimmSpec, build_model
from deepauc.objectives.auc_margin import AUCMarginLoss
from deepauc.optim.pesg import PESG
from deepauc.studies.records.file import append
from deepauc.training.run.folder import surroundings
from timing import best_in_turn, one_thread

RESULTS = Path(__file__).parent.parent / "results"
NETWORKS: dict[str, ModelSpec] = {"ResNet20": ResNet20Spec(), "DenseNet121": TimmSpec(activation="elu")}
BATCH, SHARE = 32, 0.2
SIDES = {"cpu": 32, "cuda": 96}  # small on a CPU, where a step at 96 pixels takes a second and few fit into a minute
STEPS = {"cpu": 1, "cuda": 20}  # of one timing


def training_step(spec: ModelSpec, labels: int, device: torch.device) -> Callable[[], None]:
    """So many whole steps on one batch; a GPU is waited for at the end."""
    side = SIDES[device.type]
    generator = torch.Generator().manual_seed(0)
    model = build_model(spec, in_channels=1, num_outputs=labels, seed=0).to(device)
    loss_fn = AUCMarginLoss(prior=SHARE, num_labels=labels).to(device)
    # So small that the weights stay: a batch that is learned by heart leaves gradients too small for a fast CPU.
    optimizer = PESG(model.parameters(), loss_fn, lr=1e-8)
    images = torch.rand(BATCH, 1, side, side, generator=generator).to(device)
    targets = (torch.rand(BATCH, labels, generator=generator) < SHARE).float()
    targets[0], targets[1] = 1.0, 0.0
    targets = targets.to(device)

    def step() -> None:
        for _ in range(STEPS[device.type]):
            optimizer.zero_grad()
            loss_fn(torch.sigmoid(model(images)), targets).backward()
            optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()

    return step


def measure(device: torch.device) -> list[dict[str, Any]]:
    """Milliseconds of a step by network, one label and five."""
    rows = []
    for name, spec in NETWORKS.items():
        jobs = {str(labels): training_step(spec, labels, device) for labels in (1, 5)}
        best = best_in_turn(jobs, seconds=10.0, least=8, slow=60.0)
        one, five = (1e3 * best[labels] / STEPS[device.type] for labels in ("1", "5"))
        row = {"network": name, "single_ms": round(one, 4), "five_ms": round(five, 4), "ratio": round(five / one, 4)}
        print(f"{name}: one label {one:.3g} ms, five {five:.3g} ms, ratio {five / one:.3f}")
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", action="store_true", help="on a CUDA device")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of speed.jsonl, where the record goes")
    options = parser.parse_args()
    device = torch.device("cuda" if options.gpu else "cpu")
    with one_thread():
        record = {**surroundings(device), "batch": BATCH, "side": SIDES[device.type], "rows": measure(device)}
    path = options.results / "speed.jsonl"
    append(path, {"name": f"multi-label-{'gpu' if options.gpu else 'cpu'}", **record})
    print(f"Written: {path}")


if __name__ == "__main__":
    main()
