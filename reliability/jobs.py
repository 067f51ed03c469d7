"""What is killed and starved: a tiny run, one on picture files, a packing, a study. Each ends in files to be hashed."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import torch
from children import Mark
from PIL import Image

from deepauc.cli.main import run as run_command
from deepauc.data.augment.batch import Augment
from deepauc.data.packed import sets as packed
from deepauc.data.packed.sets import pack
from deepauc.data.table.read import read_table
from deepauc.data.task import ArrayInputs, Task
from deepauc.demo import digits
from deepauc.metrics.intervals import auroc_interval
from deepauc.metrics.recalibration import fit_temperature
from deepauc.models.build import SmallCNNSpec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.baselines import CrossEntropy
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import AdamSpec
from deepauc.studies.load import load_studies
from deepauc.studies.records.book import RecordBook
from deepauc.studies.records.file import read_runs
from deepauc.training.engine.loop import train
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.run import checkpoint, folder
from deepauc.training.run.folder import git_commit
from deepauc.training.schedule import Steps

RESULTS = ("history.csv", "scores.csv", "model.safetensors", "bundle.json")
ROWS = 120
STUDY_FILE = Path(__file__).parents[1] / "experiments" / "paper.py"
STUDY = (
    str(STUDY_FILE),
    "smoke",
    "--cells",
    "*-ce,*-auc_m",
    "--configs",
    "2",
    "--tune-epochs",
    "2",
    "--set",
    "epochs=3",
)
STUDY_RUNS = 2 * (2 + 2)  # two studies, each with two settings to tune and two training sets to refit
RECIPE = Recipe(
    model=SmallCNNSpec(widths=(4, 8)),
    stages=(
        Stage(objective=CrossEntropy(), optimizer=AdamSpec(), epochs=4, batch_size=16, keep="best"),
        Stage(
            objective=AUCMargin(),
            optimizer=PESGSpec(momentum=0.5),
            epochs=4,
            batch_size=16,
            positives_per_batch=4,
            augment=Augment(crop_padding=1),
            schedule=Steps(milestones=(2,)),
            ema=0.9,
            reset_classifier=True,
        ),
    ),
    guard=True,
)


def warm_up() -> None:
    """Import here what a run imports on its way, so that forked processes find it there. No backward pass."""
    labels = np.arange(20) % 2
    auroc_interval(labels.astype(float), labels)
    fit_temperature(np.random.default_rng(0).normal(size=20), labels)
    torch.use_deterministic_algorithms(False)
    git_commit()
    load_studies(STUDY_FILE)
    digits.load()


def rows_and_labels() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    labels = (generator.random(ROWS) < 0.3).astype(np.float32)
    return generator.integers(0, 200, (ROWS, 12, 12, 1)).astype(np.uint8), labels


def task() -> Task:
    images, labels = rows_and_labels()
    parts = {"train": np.arange(80), "validation": np.arange(80, 100), "test": np.arange(100, ROWS)}
    return Task(name="t", kind="binary", source=ArrayInputs(images), labels=labels, label_names=("y",), parts=parts)


def write_table(place: Path) -> Path:
    """The same task as picture files and a table."""
    place.mkdir(parents=True)
    images, labels = rows_and_labels()
    lines = ["file,y,part"]
    for row, (image, label) in enumerate(zip(images, labels, strict=True)):
        Image.fromarray(image[..., 0]).save(place / f"{row}.png")
        part = "train" if row < 80 else "val" if row < 100 else "test"
        lines.append(f"{row}.png,{label:g},{part}")
    (place / "table.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return place / "table.csv"


def train_job(run: Path, mark: Mark) -> None:
    """The run, marking every epoch and the beginning and end of every write."""
    _mark_writes(mark)
    mark("ready")
    train(RECIPE, task(), seed=3, run_dir=run, device="cpu")


def train_on_files_job(run: Path, table: Path, mark: Mark) -> None:
    """The run on picture files, each decoded again in every epoch."""
    found, _ = read_table(
        table, image_column="file", label_columns=["y"], kind="binary", split_column="part", allow_duplicates=True
    )
    _mark_writes(mark)
    mark("ready")
    train(RECIPE, found, seed=3, run_dir=run, device="cpu")


def _mark_writes(mark: Mark) -> None:
    write = checkpoint.write_atomically

    def marked(path: Path, content: bytes) -> None:
        kind = "checkpoint" if path.name == "checkpoint.safetensors" else "file"
        mark(f"{kind} begins")
        write(path, content)
        mark(f"{kind} ends")

    checkpoint.write_atomically = marked  # type: ignore[assignment]
    folder.write_atomically = marked  # type: ignore[attr-defined]


def pack_job(place: Path, mark: Mark, *, seed: int = 0, shard_bytes: int | None = 20_000) -> None:
    """Pack a task whose images follow from the seed."""
    images, labels = rows_and_labels()
    many = np.random.default_rng(seed).integers(0, 256, (40 * ROWS, 12, 12, 1), dtype=np.uint8)
    many[:ROWS] = images
    parts = {"train": np.arange(len(many))}
    source = Task(
        name="t",
        kind="binary",
        source=ArrayInputs(many),
        labels=np.tile(labels, 40),
        label_names=("y",),
        parts=parts,
        groups=np.arange(len(many)).astype(str),
    )
    packed._BLOCK_BYTES = 20 * 144
    mark("ready")
    pack(source, place, overwrite=True, shard_bytes=shard_bytes)


def study_job(place: Path, mark: Mark) -> None:
    """`deepauc study run`, marking the beginning and end of every record's write."""
    write = RecordBook.add

    def marked(book: RecordBook, record: dict[str, object]) -> None:
        mark(f"{record['phase']} record begins")
        write(book, record)
        mark("record ends")

    RecordBook.add = marked  # type: ignore[method-assign]
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    mark("ready")
    folders = ("--runs", str(place / "runs"), "--results", str(place / "results"))
    try:
        run_command(["study", "run", *STUDY, "--seeds", "0,1", "--device", "cpu", *folders])
    except SystemExit as ending:
        if ending.code:
            raise RuntimeError(f"deepauc study run ended with {ending.code}") from None


def study_hash(place: Path) -> str:
    """Of all records of a study, each run once; the seconds, which no two runs share, are left out."""
    book = RecordBook(place / "results" / "smoke")
    records = [record for name in book.studies() for record in (*book.tuning(name), *book.final(name))]
    if len(read_runs(book.path)) != len(records):
        return "a run is recorded twice"
    if len(records) != STUDY_RUNS:
        return "not finished"
    plain = sorted(json.dumps({k: v for k, v in record.items() if k != "seconds"}) for record in records)
    return hashlib.sha256("\n".join(plain).encode()).hexdigest()


def run_hash(run: Path) -> str:
    """Of all that a finished run says."""
    if not (run / "DONE").exists():
        return "not finished"
    sha = hashlib.sha256()
    for name in RESULTS:
        sha.update((run / name).read_bytes())
    return sha.hexdigest()


def set_hash(place: Path) -> str:
    """Of all files of a packed set."""
    sha = hashlib.sha256()
    for path in sorted(place.iterdir()):
        sha.update(path.name.encode() + path.read_bytes())
    return sha.hexdigest()
