"""Five folds beside one split on small tables: the test AUC of what `fit` ships, its thresholds, time and disk.

    python -m benchmarks.folds [--jobs N]    # trains what is missing, N runs at a time; writes results/folds.jsonl
    python -m benchmarks.folds --table       # only writes results/folds.md from those records

Small tables are drawn from the five sets of results/plan.md and the demo's digits: 100 positives, with the set's own
share of negatives, at most three for each. A seed draws other rows, and is the seed of the training. The test part is
the official one of BreastMNIST, else rows that were not drawn. Each table goes through `deepauc.fit` with a plan of
both stages and the small CNN as it was then, half as long as now (`THEN`), with a budget of its own: the length
depends on no clock.

| arm | what it is |
|---|---|
| folds | `folds=5`; all folds share three times the budget of one split, so that a network has 60 % of its length |
| one split | `folds=0`, with the budget of one split |
| one split, longer | `folds=0` with three times that budget: as much work as the folds |
| folds, as long | `folds=5`; each fold has the budget of one split |
| folds, longer | `folds=5`; each fold has three times that budget, which is enough for the whole plan on most sets |
| folds, planned | `folds=5`, with the lengths and budget of the plan as it is now |
| one split, planned | `folds=0`, likewise |
| folds, shipped | `folds=5`; nothing is set, so the plan takes ResNet20: what `fit` does by itself |
| one split, shipped | `folds=0`, likewise |

Fixed before the first run. Primary: test AUC of the average that `folds=5` ships less that of one split, the mean over
sets of the means over seeds, paired, with a t-interval; then the same against one split, longer. The default candidate
is decided by held-out AUC over sets and seeds, never by test. The thresholds are those of the bundle, judged on the
test part. Added after the first two arms were seen: `folds, as long` and `folds, longer`, since shorter networks were
worse; the plan's own budget is large enough for whole networks on tables of this size. Then, to see where folds stop
paying, other numbers of positives (`SIZES`) on `SIZED`; 200 and the seeds 2 to 4 were added when 16 runs of 50 and 400
positives had been seen. `planned` and `shipped` came when the plan's length had doubled. Needs DEEPAUC_DATA.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import torch

import deepauc
from deepauc.data.export import export_task
from deepauc.data.task import ArrayInputs, Task
from deepauc.metrics.auroc import auroc
from deepauc.metrics.intervals import Estimate
from deepauc.pipeline.candidates import AVERAGE, HeldOut, log_odds_of_mean, recalibrations
from deepauc.pipeline.model import Model
from deepauc.reporting.evaluation.kept_stage import auc_intervals
from deepauc.studies.records.file import append, read_named
from deepauc.studies.sources import Place
from deepauc.text_tables import markdown_table
from deepauc.training.plan import length
from deepauc.training.predict.predict import predict
from deepauc.training.run.bundle import Bundle
from deepauc.training.run.folder import code_text
from deepauc.training.run.run import Run
from deepauc.training.run.scores import read_run_scores
from experiments.fold_study import (
    ARMS,
    CANDIDATES,
    CONTRASTS,
    FOLDED,
    THRESHOLDS,
    FoldStudy,
    held_out,
    on_test,
    test_auc,
)

RESULTS = Path(__file__).parent.parent / "results"
FILE = RESULTS / "folds.jsonl"
ONE_SPLIT = 3.2e11  # multiply-adds
THEN = {"STEPS": (2000, 1000), "MOST_EPOCHS": (50, 25)}  # of the plan; twice as many since
BUDGETS = {  # folds, and the budget of each network beside that of one split; None: the plan's own, of now
    "folds": (5, 0.6),
    "one split": (0, 1),
    "one split, longer": (0, 3),
    "folds, as long": (5, 1),
    "folds, longer": (5, 3),
    "folds, planned": (5, None),
    "one split, planned": (0, None),
    "folds, shipped": (5, None),
    "one split, shipped": (0, None),
}
SHIPPED = ("folds, shipped", "one split, shipped")
SETS = ("breast", "pneumonia", "path", "ham", "C2", "digits")
SEEDS = (0, 1, 2, 3, 4)
POSITIVES, MOST_NEGATIVES = 100, 3  # negatives for each positive
SIZED, SIZES = ("pneumonia", "path", "C2"), (50, 200, 400)
TEST = (300, 450)  # positives and negatives of the test part, where there are as many
PLAN = '[plan]\nmodel = "small-cnn"\nauc_stage = "always"\nfirst_stage = "none"\n'
Floats = npt.NDArray[np.float64]


@cache
def whole_set(name: str) -> Task:
    """All images of a set; the parts are the official ones, where it has any."""
    if name == "digits":
        from sklearn.datasets import load_digits

        digits = load_digits()
        images = np.rint(digits.images * (255 / 16)).astype(np.uint8)
        return _task(name, images, (digits.target > 4).astype(np.float32))
    if name == "C2":
        from deepauc.data.datasets.benchmarks.load import load_balanced

        return load_balanced("C2", root=Path(os.environ["DEEPAUC_DATA"]))
    from experiments.planning.changes import SETS as PLANNED

    source = PLANNED[name].source
    if name == "path":
        from deepauc.data.datasets.medical.pathmnist import load_pathmnist_subset

        return load_pathmnist_subset(Path(os.environ["DEEPAUC_DATA"]) / "pathmnist_subset.npz")
    return source.load(0, tuning=False, place=Place())


def drawn(name: str, positives: int, seed: int) -> Task:
    """A small table: the parts train and test."""
    whole = whole_set(name)
    rng = np.random.default_rng([seed, positives, zlib.crc32(name.encode())])
    pool = whole.part("train") if name == "breast" else np.arange(len(whole))
    labels = whole.labels
    share = labels[whole.part("train")].mean()
    per_positive = MOST_NEGATIVES if name in ("path", "C2", "digits") else min(MOST_NEGATIVES, (1 - share) / share)
    order = rng.permutation(pool)
    of = [order[labels[order] == value] for value in (1, 0)]
    counts = (positives, round(positives * per_positive))
    train = [rows[:count] for rows, count in zip(of, counts, strict=True)]
    rest = [rows[count:][:most] for rows, count, most in zip(of, counts, TEST, strict=True)]
    test = whole.part("test") if name == "breast" else np.concatenate(rest)
    rows = np.concatenate([*train, test])
    images = whole.inputs(rows)
    there = len(rows) - len(test)
    parts = {"train": np.arange(there), "test": np.arange(there, len(rows))}
    return _task(name, images.reshape(len(rows), *whole.source.shape), labels[rows], parts)


def _task(
    name: str, images: npt.NDArray[np.uint8], labels: npt.NDArray[Any], parts: Mapping[str, Any] | None = None
) -> Task:
    images = images if images.ndim == 4 else images[..., None]
    return Task(
        name=name,
        kind="binary",
        source=ArrayInputs(images),
        labels=labels.astype(np.float32),
        label_names=("target",),
        parts=dict(parts or {"train": np.arange(len(images))}),
    )


def wanted() -> Iterator[tuple[str, str, int, int]]:
    """Arm, set, positives, seed: the primary contrast first."""
    yield from ((arm, name, POSITIVES, seed) for seed in SEEDS for name in SETS for arm in ("folds", "one split"))
    yield from (("folds, as long", name, POSITIVES, seed) for seed in SEEDS for name in SETS)
    yield from (("folds, longer", name, POSITIVES, seed) for seed in SEEDS[:2] for name in SETS)
    yield from (
        (arm, name, size, seed)
        for seed in SEEDS
        for size in SIZES
        for name in SIZED
        for arm in ("folds, as long", "one split")
    )
    planned = ("folds, planned", "one split, planned")
    yield from ((arm, name, POSITIVES, seed) for seed in SEEDS for name in SETS for arm in planned)
    yield from ((arm, name, POSITIVES, seed) for seed in SEEDS for name in SETS for arm in SHIPPED)
    yield from ((arm, name, POSITIVES, seed) for seed in SEEDS for name in SETS for arm in BUDGETS)


def run_all(jobs: int) -> None:
    """What has no record yet, a core each."""
    there = set(read_named(FILE)) if FILE.exists() else set()
    left = [one for one in dict.fromkeys(wanted()) if title(*one) not in there]
    with ProcessPoolExecutor(jobs, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        for done in as_completed([pool.submit(run_and_record, one) for one in left]):
            print(done.result(), flush=True)


def title(arm: str, name: str, positives: int, seed: int) -> str:
    return f"{name}-{positives}-{arm}-{seed}"


def run_and_record(wanted: tuple[str, str, int, int]) -> str:
    arm, name, positives, seed = wanted
    task = drawn(name, positives, seed)
    with tempfile.TemporaryDirectory() as place:
        found = one_run(arm, task, seed, Path(place))
    rows = {part: [int((task.labels[task.part(part)] == value).sum()) for value in (1, 0)] for part in task.parts}
    run = {"name": title(*wanted), "set": name, "arm": arm, "positives": positives, "seed": seed, "rows": rows}
    append(FILE, run | found)
    return f"{run['name']} {found['test']} {found['cpu_seconds']:.0f} s"


def one_run(arm: str, task: Task, seed: int, place: Path) -> dict[str, Any]:
    folds, budget = BUDGETS[arm]
    exported = export_task(task, place / "table")
    (place / "plan.toml").write_text("" if arm in SHIPPED else PLAN)
    began, cpu = time.monotonic(), time.process_time()
    with ExitStack() as as_then:
        if budget is not None:
            as_then.enter_context(patch.dict(length.BUDGET, cpu=budget * ONE_SPLIT))
            as_then.enter_context(patch.multiple(length, FOLDS_BUDGET=max(folds, 1), **THEN))
        model = deepauc.fit(
            exported.table,
            label="target",
            image=exported.image_column,
            split=exported.split_column,
            folds=folds,
            out=place / "run",
            config=place / "plan.toml",
            device="cpu",
            seed=seed,
            progress=False,
        )
    took = {"seconds": round(time.monotonic() - began, 1), "cpu_seconds": round(time.process_time() - cpu, 1)}
    record = Run(model.path).record.plain
    kept = ("recipe", "versions", "hardware", "commit", "numerics")
    test = record["results"]["auc"]["test"]["target"]
    return {
        "test": test,
        **took,
        "bytes": sum(file.stat().st_size for file in model.path.rglob("*") if file.is_file()),
        "model_bytes": (model.path / "model.safetensors").stat().st_size,
        "predict_ms": predict_ms(model.path, task),
        "load": round(os.getloadavg()[0], 1),
        "thresholds": thresholds(model),
        **(fold_figures(model, task) if folds else one_split_figures(model)),
        **{key: record[key] for key in kept if key in record},
    }


def predict_ms(folder: Path, task: Task) -> float:
    """Milliseconds of one image on this CPU: the shortest of three passes over a hundred."""
    rows, times = task.part("test")[:100], []
    for _ in range(3):
        began = time.monotonic()
        predict(folder, task, rows=rows, device=torch.device("cpu"))
        times.append(time.monotonic() - began)
    return round(1000 * min(times) / len(rows), 3)


def thresholds(model: Model) -> dict[str, list[float]]:
    """By the name of a threshold: sensitivity and specificity of the test part there."""
    rows = read_run_scores(model.path, other_labels="kept").part("test")
    scores, labels = rows.scores[:, 0], rows.labels[:, 0]
    return {
        name: [round(float((scores[labels == 1] >= at).mean()), 4), round(float((scores[labels == 0] < at).mean()), 4)]
        for name, at in Bundle.load(model.path).thresholds["target"].items()
    }


def fold_figures(model: Model, task: Task) -> dict[str, Any]:
    """Held-out and test AUC of each candidate, and the test AUC of single folds' networks."""
    folds = Run(model.path).record.folds
    assert folds is not None
    assert folds.choice is not None
    places = [model.path / f"fold-{number + 1}" for number in range(len(folds.names))]
    networks = {"ce": [place / "baseline" for place in places], "ce_auc_m": places}
    parts = {name: [read_run_scores(one).part("test") for one in each] for name, each in networks.items()}
    first = parts["ce"]
    rows = HeldOut(
        label_names=("target",),
        labels=np.concatenate([part.labels for part in first]).astype(np.float64),
        fold=np.repeat(np.arange(len(first)), [len(part) for part in first]),
        groups=None,
        networks={name: np.concatenate([part.scores for part in each]) for name, each in parts.items()},
        trivial={},
    )
    test, device = task.part("test"), torch.device("cpu")
    labels, odds, alone = task.labels[test], {}, {}
    for name, each in networks.items():
        raw = [np.asarray(predict(one, task, rows=test, device=device)).reshape(-1).astype(np.float64) for one in each]
        alone[name] = [round(auroc(scores, labels), 5) for scores in raw]
        scalings = [one.labels[0] for one in recalibrations(rows, name)]
        scaled = [s.slope * h + s.intercept for s, h in zip(scalings, raw, strict=True) if hasattr(s, "slope")]
        odds[name] = log_odds_of_mean(scaled, [1 / len(scaled)] * len(scaled))
    odds[AVERAGE] = log_odds_of_mean([odds["ce"], odds["ce_auc_m"]], [0.5, 0.5])
    return {
        "kept": folds.choice.kept,
        "with_trivial": folds.choice.with_trivial,
        "held_out": {row.candidate: [row.auc.value, row.auc.low, row.auc.high] for row in folds.choice.board},
        "reported": [folds.choice.auc.value, folds.choice.auc.low, folds.choice.auc.high],
        "candidates": {name: round(auroc(scores, labels), 5) for name, scores in odds.items()},
        "alone": alone,
    }


def one_split_figures(model: Model) -> dict[str, Any]:
    """What was kept, and the test AUC after cross-entropy."""
    record = Run(model.path).record
    baseline = model.path / "baseline"
    found: dict[str, Any] = {"kept_stage": record.kept_stage}
    if baseline.is_dir():
        found["ce"] = auc_intervals(baseline, record.task.labels)["test"]["target"].value
    return found


def write_table() -> None:
    """results/folds.md, from the records alone."""
    study = FoldStudy(FILE)
    first = next(iter(study.runs.values()))
    lines = [
        "# Five folds beside one split",
        "",
        "Made by `python -m benchmarks.folds`, whose first lines say what was run and what was fixed before, from",
        "`results/folds.jsonl`. Test AUC of what `fit` ships, on rows that no fold and no validation part has seen.",
        "Intervals are 95 % t-intervals over seeds, which draw other tables; of the mean, sets are strata.",
        "`folds, as long` and `folds, longer` were added after the first two arms had been seen. `planned` has the",
        "length and the budget of the plan of now, with the small CNN; `shipped` is `fit` with nothing set.",
        "",
        f"## Test AUC, {POSITIVES} positives",
        "",
    ]
    arms = [arm for arm in ARMS if study.values(arm, test_auc)]
    names = [*study.sets, "mean", "runs"]
    columns = []
    for arm in arms:
        each = study.values(arm, test_auc)
        means = [fmean(each[name]) if name in each else None for name in study.sets]
        columns.append([*map(_auc, [*means, study.mean(arm, test_auc)]), str(sum(map(len, each.values())))])
    lines += [markdown_table(["set", *arms], list(map(list, zip(names, *columns, strict=True)))), ""]
    rows = []
    for one, other in CONTRASTS:
        if one in arms and other in arms:
            some = [study.difference((one, test_auc), (other, test_auc), sets=(name,)) for name in study.sets]
            pooled = study.difference((one, test_auc), (other, test_auc))
            rows.append([f"{one} less {other}", *map(_apart, [*some, pooled])])
    header = ["difference", *study.sets, "mean"]
    lines += [markdown_table(header, rows), "", "## Candidates", ""]
    lines += ["Means over sets and seeds; the default is decided by the held-out rows alone.", ""]
    rows = [
        [
            *(arm, one, _auc(study.mean(arm, held_out(one))), _auc(study.mean(arm, on_test(one)))),
            _apart(study.difference((arm, held_out(one)), (arm, held_out("ce_auc_m")))),
        ]
        for arm in FOLDED
        if arm in arms
        for one in CANDIDATES
    ]
    lines += [markdown_table(["arm", "candidate", "held out", "test", "held out, less ce_auc_m"], rows), ""]
    lines += ["## Thresholds", "", "What the test part reaches at the thresholds of the bundle, over all runs.", ""]
    rows = []
    for threshold in THRESHOLDS:
        for arm in ARMS:
            if every := study.achieved(arm, threshold):
                low, high = np.quantile(every, [0.1, 0.9])
                rows.append([threshold, arm, f"{fmean(every):.3f}", f"{low:.3f} - {high:.3f}", f"{len(every)}"])
    lines += [markdown_table(["asked for", "arm", "mean", "middle 80 % of the runs", "runs"], rows), ""]
    lines += ["## Time and disk", "", "On one busy core; prediction of one image, the shortest of three passes.", ""]
    rows = [[arm, *(f"{study.mean(arm, value) or 0:.1f}" for value in COSTS.values())] for arm in arms]
    lines += [markdown_table(["arm", *COSTS], rows), "", "## Other numbers of positives", ""]
    both, rows = ("folds, as long", "one split"), []
    for size in sorted({*SIZES, POSITIVES}):
        for name in SIZED:
            by_arm = [study.values(arm, test_auc, positives=size).get(name) for arm in both]
            found = study.difference((both[0], test_auc), (both[1], test_auc), positives=size, sets=(name,))
            shown = [_auc(None if one is None else fmean(one)) for one in by_arm]
            rows.append([str(size), name, *shown, _apart(found)])
        found = study.difference((both[0], test_auc), (both[1], test_auc), positives=size, sets=SIZED)
        rows.append([str(size), "mean", "", "", _apart(found)])
    lines += [markdown_table(["positives", "set", *both, "difference"], rows), ""]
    codes = dict.fromkeys(map(code_text, study.runs.values()))
    lines += [f"{first['hardware']}; torch {first['versions']['torch']}; {'; '.join(codes)}.", ""]
    (RESULTS / "folds.md").write_text("\n".join(lines), encoding="utf-8")


def _auc(found: float | None) -> str:
    return "-" if found is None else f"{found:.3f}"


def _apart(found: Estimate[float] | None) -> str:
    return "-" if found is None else f"{found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"


COSTS = {
    "CPU seconds": lambda run: run["cpu_seconds"],
    "folder, MB": lambda run: run["bytes"] / 1e6,
    "network, MB": lambda run: run["model_bytes"] / 1e6,
    "prediction, ms": lambda run: run["predict_ms"],
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    if not options.table:
        run_all(options.jobs)
    write_table()
