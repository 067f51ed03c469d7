"""One label for several images: training on bags against the bag's label copied to its images, on real images, CPU.

Fixed here before any score was seen: how bags are drawn, the network, rates, margin and lengths (one setting for each
loss, those of the default plan), the poolings. Nothing is chosen on any part: the last epoch is reported.

    DEEPAUC_DATA=... python benchmarks/bags.py      # trains what is missing, writes results/bags.jsonl
    python -m experiments.bags                      # writes results/bags.md from those records
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from deepauc.data.augment.batch import Augment
from deepauc.data.bags import bag_task
from deepauc.data.counter import fixed_permutation, fixed_uniforms
from deepauc.data.datasets.medical.ham10000 import load_ham10000_sheets
from deepauc.data.datasets.medical.nih import load_nih_sheets
from deepauc.data.datasets.medical.pathmnist import load_pathmnist_subset
from deepauc.data.splits import fold_numbers
from deepauc.data.task import ArrayInputs, Task
from deepauc.metrics.intervals import auroc_interval
from deepauc.metrics.pooling import pool_scores
from deepauc.models.build import BagSpec, ModelSpec, SmallCNNSpec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.baselines import CrossEntropy
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import AdamWSpec
from deepauc.studies.records.file import append, read_named
from deepauc.training.engine.loop import train
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.run.folder import surroundings
from deepauc.training.schedule import Cosine, Steps

RESULTS = Path(__file__).parent.parent / "results"
SETS = 5
BATCH, POSITIVES = 16, 4  # bags of a step
NETWORK = SmallCNNSpec(widths=(16, 32, 64))
COPIED = "copied"
LOSSES = ("CE", "AUC-M")
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Cohort:
    """Images with their bags, (N,), and the label and part of each bag, (B,); bags are numbered from 0."""

    images: npt.NDArray[np.uint8]
    bag: Ints
    labels: npt.NDArray[np.float32]
    train: npt.NDArray[np.bool_]
    augment: Augment
    epochs: int

    def tasks(self) -> tuple[Task, Task]:
        """The images under their bag's label, and the bags."""
        parts = {part: self.train if part == "train" else ~self.train for part in ("train", "test")}
        images = Task(
            name="images",
            kind="binary",
            source=ArrayInputs(self.images),
            labels=self.labels[self.bag],
            label_names=("positive",),
            parts={part: np.flatnonzero(inside[self.bag]) for part, inside in parts.items()},
            groups=self.bag.astype(str),
        )
        bags = bag_task(images, self.bag)
        return images, bags


def drawn_bags(rows: Ints, positive: Ints, *, bags: int, size: int, hits: tuple[int, ...], seed: int) -> list[Ints]:
    """So many bags of `size` different images, the first ones positive: of each as many positive images as `hits` says.

    rows, positive: numbers of negative and positive images; none is in two bags.
    """
    negatives = rows[fixed_permutation(len(rows), seed=seed, stream="negatives")]
    positives = positive[fixed_permutation(len(positive), seed=seed, stream="positives")]
    found = []
    for number in range(bags):
        wanted = hits[number] if number < len(hits) else 0
        own, positives = positives[:wanted], positives[wanted:]
        others, negatives = negatives[: size - wanted], negatives[size - wanted :]
        assert len(own) + len(others) == size, "too few images for so many bags"
        found.append(np.concatenate([own, others]))
    return found


def made_of(
    task: Task, counts: dict[str, tuple[int, int]], *, size: int, most: int, seed: int
) -> tuple[Ints, Ints, Ints, Ints]:
    """Image rows, their bags, and label and part of the bags. counts: by part, bags and positive ones.

    A positive bag has one to `most` positive images, as likely each.
    """
    rows, bag, labels, train = [], [], [], []
    for part, (bags, positives) in counts.items():
        share = fixed_uniforms(positives, seed=seed, stream=f"hits in {part}")
        hits = tuple((1 + share * most).astype(int).tolist())
        own = task.part(part)
        positive = task.labels[own] == 1
        drawn = drawn_bags(own[~positive], own[positive], bags=bags, size=size, hits=hits, seed=seed)
        bag += [np.full(size, len(labels) + number) for number in range(bags)]
        labels += [1] * positives + [0] * (bags - positives)
        train += [part == "train"] * bags
        rows += drawn
    return np.concatenate(rows), np.concatenate(bag), np.array(labels), np.array(train)


def pathology(root: Path, seed: int) -> Cohort:
    """Bags of ten tiles of 28 pixels; one to three of a positive bag's are tumour. 5 % positive, in test 25 %."""
    task = load_pathmnist_subset(root / "pathmnist_subset.npz")
    rows, bag, labels, train = made_of(task, {"train": (640, 32), "test": (400, 100)}, size=10, most=3, seed=seed)
    changes = Augment(flip=True, vertical_flip=True, crop_padding=2)
    images = task.inputs(rows)
    return Cohort(
        images=images, bag=bag, labels=labels.astype(np.float32), train=train.astype(bool), augment=changes, epochs=12
    )


def dermatology(root: Path, seed: int) -> Cohort:
    """Bags of three lesions, as a person may have: one of a positive bag's is a melanoma. 32 pixels; 5 % and 25 %.

    The file has one image of each lesion and no patients, so the bags are drawn.
    """
    task = load_ham10000_sheets(root / "ham10000_64.npz")
    rows, bag, labels, train = made_of(task, {"train": (1100, 55), "test": (600, 150)}, size=3, most=1, seed=seed)
    changes = Augment(flip=True, vertical_flip=True, crop_padding=2)
    images = shrunk(task.inputs(rows), 2)
    return Cohort(
        images=images, bag=bag, labels=labels.astype(np.float32), train=train.astype(bool), augment=changes, epochs=12
    )


def patients(root: Path, seed: int) -> Cohort:
    """Real patients: the first three chest X-rays of each who has as many; positive if one shows effusion. 48 pixels.

    Three fifths of the patients are in train, drawn anew for each set.
    """
    task = load_nih_sheets(root / "nih_cxr14_96.npz", labels=("Effusion",))
    assert task.groups is not None
    assert task.ids is not None
    order = np.argsort(task.ids, kind="stable")  # a file's name is the patient and the visit
    _, starts, counts = np.unique(task.groups[order], return_index=True, return_counts=True)
    enough = counts >= 3
    rows = np.concatenate([order[start : start + 3] for start in starts[enough]])
    bag = np.repeat(np.arange(enough.sum()), 3)
    labels = task.labels[rows].reshape(-1, 3).max(axis=1)
    train = fold_numbers(labels, folds=5, seed=seed) < 3
    changes = Augment(flip=False, crop_padding=3, rotation=5.0)
    return Cohort(images=shrunk(task.inputs(rows), 2), bag=bag, labels=labels, train=train, augment=changes, epochs=30)


DATA: dict[str, Callable[[Path, int], Cohort]] = {
    "pathology": pathology,
    "dermatology": dermatology,
    "patients": patients,
}


def shrunk(images: npt.NDArray[np.uint8], factor: int) -> npt.NDArray[np.uint8]:
    """Means of squares of pixels."""
    n, h, w, c = images.shape
    return images.reshape(n, h // factor, factor, w // factor, factor, c).mean((2, 4)).round().astype(np.uint8)


def recipe(loss: str, model: ModelSpec, cohort: Cohort, rows: int) -> Recipe:
    """rows: of a step, images or bags, of which the same share is positive. Both losses have as many epochs."""

    def stage(epochs: int) -> Stage:
        return Stage(
            objective=CrossEntropy(), optimizer=AdamWSpec(lr=0.002), schedule=Cosine(), epochs=epochs, batch_size=rows,
            positives_per_batch=rows * POSITIVES // BATCH, augment=cohort.augment,
        )  # fmt: skip

    if loss == "CE":
        return Recipe(model=model, stages=(stage(cohort.epochs),))
    half = cohort.epochs // 2
    auc = Stage(
        objective=AUCMargin(margin=0.5), optimizer=PESGSpec(lr=0.1, gamma=0.002, weight_decay=1e-4), epochs=half,
        schedule=Steps(milestones=(half // 2, 3 * half // 4)), batch_size=rows, reset_classifier=True,
        positives_per_batch=rows * POSITIVES // BATCH, augment=cohort.augment,
    )  # fmt: skip
    return Recipe(model=model, stages=(stage(cohort.epochs - half), auc))


def jobs() -> Iterator[tuple[int, str, str, str]]:
    """(set, data, loss, method): attention after the others, the drawn bags of lesions last."""
    for some in (("pathology", "patients"), ("dermatology",)):
        for methods in ((COPIED, "smooth-max"), ("attention",)):
            for number in range(SETS):
                for data, method, loss in product(some, methods, LOSSES):
                    yield number, data, loss, method


def run_all(wanted: list[str], sets: list[int]) -> None:
    """wanted: names of data; none: all. Likewise sets. Several processes may share the work by these."""
    root, path = Path(os.environ["DEEPAUC_DATA"]), RESULTS / "bags.jsonl"
    for number, data, loss, method in jobs():
        title = f"{data}-{number}-{method}-{loss}".lower()
        left_out = (wanted and data not in wanted) or (sets and number not in sets)
        if left_out or title in read_named(path):
            continue
        cohort = DATA[data](root, number)
        images, bags = cohort.tasks()
        size = len(cohort.bag) // len(cohort.labels)
        copied = method == COPIED
        model: ModelSpec = NETWORK if copied else BagSpec(image=NETWORK, pooling=method)  # type: ignore[arg-type]
        rows = BATCH * size if copied else BATCH
        began, cpu = time.monotonic(), time.process_time()
        with tempfile.TemporaryDirectory() as scratch:
            asked = recipe(loss, model, cohort, rows)
            run = train(asked, images if copied else bags, seed=number, run_dir=Path(scratch) / "run", device="cpu")
            scores, _ = run.scores("test")
        test = bags.part("test")
        truth = bags.labels[test]
        pooled = {method: scores.astype(np.float64)}
        if copied:
            of = cohort.bag[images.part("test")]
            probabilities = 1 / (1 + np.exp(-scores.astype(np.float64)))
            pooled = {
                how: pool_scores(probabilities if how == "noisy-or" else scores, of, how)[1]
                for how in ("max", "mean", "noisy-or")
            }
        aucs = {}
        for how, values in pooled.items():
            found = auroc_interval(values, truth)
            aucs[how] = [float(found.value), float(found.low), float(found.high)]
        record = {
            "data": data, "set": number, "loss": loss, "method": method, "auc": aucs,
            "bags": {"train": len(bags.part("train")), "test": len(test)},
            "positives": {p: int(bags.labels[bags.part(p)].sum()) for p in ("train", "test")},
            "seconds": round(time.monotonic() - began, 1), "cpu_seconds": round(time.process_time() - cpu, 1),
            **surroundings(torch.device("cpu")),
        }  # fmt: skip
        append(path, {"name": title, **record})
        print(title, {how: round(auc[0], 3) for how, auc in aucs.items()}, record["cpu_seconds"], flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", choices=list(DATA), action="append", default=[], help="only these; repeatable")
    parser.add_argument("--set", type=int, choices=range(SETS), action="append", default=[], help="likewise")
    options = parser.parse_args()
    torch.set_num_threads(1)
    run_all(options.data, options.set)
