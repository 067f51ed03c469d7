"""BreastMNIST and PneumoniaMNIST on the CPU: cross-entropy, and cross-entropy then AUC-M, three seeds each.

Settings are fixed here, before any test score was seen; the last epoch is reported. Needs DEEPAUC_DATA.

    python benchmarks/medmnist_cpu.py            # trains what is missing, writes results/medmnist-cpu.jsonl
    python benchmarks/medmnist_cpu.py --table    # only writes results/medmnist-cpu.md from those records
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path

import torch

from deepauc.data.augment.batch import Augment
from deepauc.data.datasets.medical.medmnist import load_medmnist
from deepauc.models.build import SmallCNNSpec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.baselines import CrossEntropy
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import SGDSpec
from deepauc.studies.records.file import append, read_named
from deepauc.training.engine.loop import train
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.run.folder import code_text
from deepauc.training.schedule import Cosine, Steps

RESULTS = Path(__file__).parent.parent / "results"
SETS = {"breastmnist": 40, "pneumoniamnist": 12}  # epochs of the first stage; class 0 is the positive one in both
SEEDS = (0, 1, 2)
CHANGES = Augment(flip=True, crop_padding=2, rotation=10, scale=(0.9, 1.1))


def recipes(epochs: int) -> dict[str, Recipe]:
    """Equal numbers of epochs for both; the AUC stage is the last quarter."""
    model = SmallCNNSpec()

    def ce(length: int) -> Stage:
        return Stage(
            objective=CrossEntropy(), optimizer=SGDSpec(lr=0.05, weight_decay=5e-4), epochs=length, batch_size=64,
            schedule=Cosine(), augment=CHANGES,
        )  # fmt: skip

    auc_epochs = epochs // 4
    auc = Stage(
        objective=AUCMargin(), optimizer=PESGSpec(lr=0.05, weight_decay=5e-4), epochs=auc_epochs, batch_size=64,
        positives_per_batch=16, reset_classifier=True, augment=CHANGES,
        schedule=Steps(milestones=tuple(sorted({max(1, auc_epochs // 2), max(2, 3 * auc_epochs // 4)}))),
    )  # fmt: skip
    return {
        "CE": Recipe(model=model, stages=(ce(epochs),)),
        "CE, then AUC-M": Recipe(model=model, stages=(ce(epochs - auc_epochs), auc)),
    }


def run_all() -> None:
    root = Path(os.environ["DEEPAUC_DATA"])
    path = RESULTS / "medmnist-cpu.jsonl"
    there = read_named(path)
    for name, epochs in SETS.items():
        task = load_medmnist(root / f"{name}.npz", positive=0)
        for method, recipe in recipes(epochs).items():
            for seed in SEEDS:
                title = f"{name}-{method.replace(', then ', '-').lower()}-{seed}"
                if title in there:
                    continue
                with tempfile.TemporaryDirectory() as scratch:
                    run = train(recipe, task, seed=seed, run_dir=Path(scratch) / "run", device="cpu")
                    record = {"set": name, "method": method, "seed": seed, **run.record.plain, "history": run.history}
                    append(path, {"name": title, **record})
                    (test,) = run.auc("test").values()
                    print(f"{name} {method} seed {seed}: test AUC {test.value:.3f} ({test.low:.3f}-{test.high:.3f})")


def write_table() -> None:
    """results/medmnist-cpu.md, from the records alone."""
    records = [record for _, record in sorted(read_named(RESULTS / "medmnist-cpu.jsonl").items())]
    lines = [
        "# MedMNIST on the CPU",
        "",
        "Test AUC at the last epoch, official parts, three seeds; settings were fixed before any score was seen. The",
        "interval is seed 0's by DeLong: with 42 and 234 positives in test it is wider than the spread of the seeds.",
        "Made by `python benchmarks/medmnist_cpu.py`.",
        "",
        "| set | method | mean | min - max | seed 0, 95 % | share of steps with alpha = 0 |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for key in dict.fromkeys((r["set"], r["method"]) for r in records):
        mine = [r for r in records if (r["set"], r["method"]) == key]
        tests = [next(iter(r["results"]["auc"]["test"].values())) for r in mine]
        values = [t[0] for t in tests]
        zero = [float(row["alpha_zero_share"]) for r in mine for row in r["history"] if row.get("alpha_zero_share")]
        share = f"{statistics.mean(zero):.2f}" if zero else "-"
        lines.append(
            f"| {key[0]} | {key[1]} | {statistics.mean(values):.3f} | {min(values):.3f} - {max(values):.3f} | "
            f"{tests[0][1]:.3f} - {tests[0][2]:.3f} | {share} |"
        )
    first = records[0]
    lines += ["", f"{first['hardware']}; torch {first['versions']['torch']}; {code_text(first)}.", ""]
    (RESULTS / "medmnist-cpu.md").write_text("\n".join(lines))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.table:
        run_all()
    write_table()
