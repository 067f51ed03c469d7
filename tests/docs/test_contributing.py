"""What CONTRIBUTING sends a newcomer to is there: files, names in them, and short names of the paper's pieces."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from deepauc import ArrayInputs, AUCMargin, Augment, PESGSpec, Recipe, SmallCNNSpec, Stage, Task, train
from deepauc.training.engine.fast.fast_step import FastEngine
from deepauc.training.engine.trainer import Trainer

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
ROWS = [
    line
    for line in TEXT.split("## Where do I change X", 1)[1].split("\n## ", 1)[0].splitlines()
    if line.startswith("| ") and not line.startswith("| to change")
]
A_FILE = re.compile(r"[\w./-]+(?:\.(?:py|md|toml)|/)")


def place(name):
    at_the_top = name.startswith(("tests/", "docs/", "experiments/", "pyproject"))
    return ROOT / name if at_the_top else ROOT / "src/deepauc" / name


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_every_file_is_there_and_holds_the_names_beside_it(row):
    """`file` (`name`, `name`): a name belongs to the file before it."""
    files, names = [], []
    for brackets, quoted in re.findall(r"\(([^()]*)\)|`([^`]+)`", row):
        if quoted and A_FILE.fullmatch(quoted):
            files.append(quoted)
        elif brackets and files:
            names += [(files[-1], name) for name in re.findall(r"`(\w+)`", brackets)]
    assert files
    for file in files:
        assert place(file).exists(), file
    for file, name in names:
        assert re.search(rf"\b{name}\b", place(file).read_text(encoding="utf-8")), (file, name)


def test_the_table_has_the_rows_that_newcomers_ask_for():
    asked = ("a loss", "a figure of the report", "a data set", "an augmentation", "a lever", "an option of a command")
    assert all(any(row.startswith(f"| {what}") for row in ROWS) for what in asked)


STEP = TEXT.split("## One training step", 1)[1].split("\n## ", 1)[0]
PLAIN, SKIPPED, FAST = (
    set(re.findall(r"`([\w/]+\.py)`", part))
    for part in re.split(r"\nIt also calls|\nA fast step|\n`training/engine/fast/feed", STEP)[:3]
)


def test_one_step_is_few_files():
    assert len(PLAIN) == 12
    assert len(FAST) == 25
    for file in (*PLAIN, *SKIPPED, *FAST):
        assert place(file).is_file(), file


class Tracer:
    """The files of the package in which a function runs while it is on."""

    def __init__(self):
        self.files = set()

    def on(self):
        sys.setprofile(self._called)

    def off(self):
        sys.setprofile(None)

    def _called(self, frame, event, argument):
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT / "src/deepauc"):
            self.files.add(path.relative_to(ROOT / "src/deepauc").as_posix())


def traced_step(engine, tmp_path, monkeypatch, *, augment=None):
    """The files of the steps between the third and the sixth, beside those of what happens at an epoch's end."""
    tracer, after_step, replay = Tracer(), Trainer.after_step, FastEngine._replay

    def after(trainer, epoch, position):
        tracer.off()
        after_step(trainer, epoch, position)
        if engine == "plain" and 3 <= trainer.iteration < 6:
            tracer.on()

    def replayed(fast_engine, seeds, t):
        tracer.on()
        replay(fast_engine, seeds, t)
        tracer.off()

    monkeypatch.setattr(Trainer, "after_step", after)
    monkeypatch.setattr(FastEngine, "_replay", replayed)
    labels = (np.arange(80) % 5 == 0).astype(float)
    images = np.random.default_rng(0).integers(0, 255, (80, 8, 8, 1), dtype=np.uint8)
    parts = {"train": np.arange(60), "validation": np.arange(60, 80)}
    task = Task(name="t", kind="binary", source=ArrayInputs(images), labels=labels, label_names=("y",), parts=parts)
    stage = Stage(
        objective=AUCMargin(), optimizer=PESGSpec(), epochs=1, batch_size=6, positives_per_batch=2, augment=augment
    )
    recipe = Recipe(model=SmallCNNSpec(widths=(4,)), stages=(stage,))
    train(recipe, task, seed=0, run_dir=tmp_path / engine, engine=engine, device="cpu")
    tracer.off()
    return tracer.files


def test_a_plain_step_runs_in_the_files_that_are_named(tmp_path, monkeypatch):
    files = traced_step("plain", tmp_path, monkeypatch)
    assert files >= PLAIN
    assert files <= PLAIN | SKIPPED


def test_a_fast_step_runs_in_the_files_that_are_named(tmp_path, monkeypatch):
    """On a CPU: the kernels of a GPU are named besides."""
    files = traced_step("fast", tmp_path, monkeypatch, augment=Augment(crop_padding=1)) - {"models/small.py"}
    assert files <= FAST | SKIPPED
    assert FAST - files <= {file for file in FAST if file.startswith("kernels/")} | {
        "models/resnet20.py",
        "training/engine/stream.py",  # of an epoch's beginning
        "training/schedule.py",
    }


def test_every_short_name_of_the_paper_is_explained():
    glossary = (ROOT / "docs/reproduce.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"\| ([DA]\d) \|", glossary))
    sources = [
        path for folder in ("src", "docs") for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md")
    ]
    used = {name for path in sources for name in re.findall(r"\b([DMA]\d)\b", path.read_text(encoding="utf-8"))}
    assert len(explained) == 16
    assert used == explained
