"""One torch thread a worker (two workers on two cores), one state of its generator, the folder of real images."""

import errno
import os
import re
import shutil
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def same_numbers_in_any_order():
    """What a test draws without a seed of its own does not depend on the tests before it, nor on who ran them."""
    torch.manual_seed(67_280_421)  # nobody's own: what is seeded by 0 or 1 is to differ from what was there before


@pytest.fixture(scope="session")
def one_as_many():
    """Says whether a text holds `1 rows` or the like, with an adjective or without; returns the match."""
    nouns = "rows|images|runs|labels|copies|files|patients|groups|columns|problems|folds|epochs|steps|positives|"
    nouns += "negatives|networks|minutes|classes|categories|ids|studies|bags|sizes|sets|settings|samples|pixels|seeds"
    return re.compile(rf"(?<![\w.,:/+=-])1 (?:[a-z]+ )?(?:{nouns})\b").search


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of real images; the test skips, and says so, where DEEPAUC_DATA is not set."""
    root = os.environ.get("DEEPAUC_DATA")
    if not root or not Path(root).is_dir():
        pytest.skip("DEEPAUC_DATA is not set to a folder of the benchmark images")
    return Path(root)


@pytest.fixture(scope="session")
def spots_task():
    """Makes a task: a faint bright patch a label, two images a patient, metadata, with several labels some missing."""
    import numpy as np

    from deepauc.data.task import ArrayInputs, Task

    def make(*, label_names=("spot",), rows=320, name="spots"):
        generator = np.random.default_rng(0)
        truth = (generator.random((rows, len(label_names))) < 0.3).astype(np.float32)
        images = generator.integers(0, 150, (rows, 8, 8, 1)).astype(np.uint8)
        for number in range(len(label_names)):
            top, left = 4 * (number // 2 % 2), 4 * (number % 2)
            images[:, top : top + 3, left : left + 3, 0] += (25 * truth[:, number]).astype(np.uint8)[:, None, None]
        if len(label_names) > 1:
            truth[5, 0] = truth[-3, 1] = np.nan
        half, quarter = rows // 2, rows // 4
        return Task(
            name=name,
            kind="binary" if len(label_names) == 1 else "multilabel",
            source=ArrayInputs(images),
            labels=truth[:, 0] if len(label_names) == 1 else truth,
            label_names=label_names,
            parts={
                "train": np.arange(half),
                "validation": np.arange(half, half + quarter),
                "test": np.arange(half + quarter, rows),
            },
            groups=np.array([f"p{row // 2}" for row in range(rows)]),
            metadata={"age": 40 + 30 * generator.random(rows), "sex": np.array(["f", "m", "m", "f"] * (rows // 4))},
            ids=np.array([f"image-{row}.png" for row in range(rows)]),
        )

    return make


@pytest.fixture(scope="session")
def run_folders(tmp_path_factory, spots_task):
    """Real runs: `auc` (cross-entropy, then AUC-M, guarded), `ce` (its baseline) and `multi` (three labels)."""
    from deepauc.models.build import SmallCNNSpec
    from deepauc.objectives.auc_margin import AUCMargin
    from deepauc.objectives.baselines import CrossEntropy
    from deepauc.optim.pesg import PESGSpec
    from deepauc.optim.standard import SGDSpec
    from deepauc.training.engine.loop import train
    from deepauc.training.recipe import Recipe, Stage

    root = tmp_path_factory.mktemp("runs")
    model = SmallCNNSpec(widths=(4, 8))
    ce = Stage(objective=CrossEntropy(), optimizer=SGDSpec(lr=0.05), epochs=4, batch_size=16)
    auc = Stage(objective=AUCMargin(margin=0.5), optimizer=PESGSpec(lr=0.1), epochs=5, batch_size=16)
    binary, multi = spots_task(), spots_task(label_names=("spot", "coin & <b>", "عِلّة"), name="three labels")
    train(Recipe(model=model, stages=(ce, auc), guard=True, test_curve=True), binary, seed=0, run_dir=root / "auc")
    train(Recipe(model=model, stages=(ce,)), binary, seed=0, run_dir=root / "ce")
    train(Recipe(model=model, stages=(ce, auc)), multi, seed=0, run_dir=root / "multi")
    return root


@pytest.fixture(scope="session")
def copy_to_edit():
    """Copy a run folder, to be edited: without the hashes of its files, as an older release wrote it."""
    import json

    def copy(run, folder):
        shutil.copytree(run, folder)
        record = json.loads((folder / "run.json").read_text())
        del record["sha256"]
        (folder / "run.json").write_text(json.dumps(record))
        return folder

    return copy


@pytest.fixture(scope="session")
def fold_run(run_folders, copy_to_edit, tmp_path_factory):
    """Makes a run folder as one with three folds has it, of a run's test and validation rows; nothing is trained."""
    import csv
    import json
    from dataclasses import replace

    from deepauc.metrics.crossval.folds import fold_auroc_interval
    from deepauc.training.run.fold_record import BoardRow, FoldsRecord, KeptCandidate

    def make(name="auc", *, test=False, seed=0, edit=lambda rows: None):
        folder = copy_to_edit(run_folders / name, tmp_path_factory.mktemp("folds") / "folds")
        with (folder / "scores.csv").open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["part"] != "train"]
        for row in rows:
            own = test and row["part"] == "test"
            row["part"] = "test" if own else "oof"
            row["fold"] = "" if own else str(1 + int(row["group"][1:]) % 3)
        edit(rows)
        with (folder / "scores.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        record = json.loads((folder / "run.json").read_text())
        record["identity"]["seed"] = seed
        held = [row for row in rows if row["part"] == "oof"]
        aucs = {}
        for place, label in enumerate(record["task"]["labels"]):
            suffix = f":{label}" if f"label:{label}" in rows[0] else ""
            known = [row for row in held if row[f"label{suffix}"]]
            columns = [[float(row[f"{kind}{suffix}"]) for row in known] for kind in ("score", "label")]
            auc = fold_auroc_interval(*columns, [row["fold"] for row in known]).floats()
            aucs[label] = replace(auc, value=auc.value - 0.001 * (place + 1))  # as if corrected for choosing
        first = next(iter(aucs.values()))
        board = tuple(
            BoardRow(candidate="ce", label=label, auc=auc, seconds=1.0, kept=True, trivial=False)
            for label, auc in aucs.items()
        )
        choice = KeptCandidate(
            kept="ce", default="ce", auc=first, aucs=aucs, board=board, trivial="logistic", lead=first
        )
        record["folds"] = FoldsRecord(names=("1", "2", "3"), choice=choice).to_plain()
        (folder / "run.json").write_text(json.dumps(record))
        return folder

    return make


@pytest.fixture(scope="session")
def written_reports(run_folders, fold_run, spots_task, tmp_path_factory):
    """The reports of `auc` (with baseline, subgroups and cases), `multi` and `folds`, each in a folder of its own."""
    from deepauc.reporting.evaluation.subgroups import Metadata
    from deepauc.reporting.report import write_report

    task, root = spots_task(), tmp_path_factory.mktemp("reports")
    return {
        "auc": write_report(
            run_folders / "auc",
            baseline=run_folders / "ce",
            metadata=Metadata(task.ids, task.metadata),
            cases=3,
            out=root / "auc",
            command="deepauc report auc --baseline ce",
        ),
        "multi": write_report(run_folders / "multi", out=root / "multi"),
        "folds": write_report(
            fold_run(test=True), metadata=Metadata(task.ids, task.metadata), cases=2, out=root / "folds"
        ),
    }


HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "\u202eevil\u202c | `code` **bold** [link](javascript:alert(3)) $x_{",
    "{{ 7 * 7 }} {% include 'x' %} 😀 שלום\x07",
)


@pytest.fixture(scope="session")
def hostile_report(run_folders, tmp_path_factory, copy_to_edit):
    """A run whose label, task, ids, patients, folder and metadata are what an attacker would call them."""
    import csv
    import json

    from deepauc.reporting.evaluation.subgroups import Metadata
    from deepauc.reporting.report import write_report

    run = tmp_path_factory.mktemp("hostile") / "run <script>alert(0)<"
    copy_to_edit(run_folders / "multi", run)
    record = json.loads((run / "run.json").read_text())
    names = list(HOSTILE[:3])
    record["task"] |= {"labels": names, "name": HOSTILE[0]}
    record |= {"hardware": HOSTILE[1], "command": ["deepauc", *HOSTILE], "leaks": {HOSTILE[0]: 2}}
    record["plan"] = {"choices": [{"name": HOSTILE[0], "value": HOSTILE[1], "reason": HOSTILE[2]}]}
    (run / "run.json").write_text(json.dumps(record))
    with (run / "scores.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    ids = []
    for number, row in enumerate(rows[1:]):
        ids.append(HOSTILE[number % 4].replace("\x07", "") + str(number))
        row[0], row[2] = ids[-1], HOSTILE[number % 3] + row[2]
    header = [f"{kind}:{name}" for name in names for kind in ("label", "score")]
    with (run / "scores.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([rows[0][:3] + header, *rows[1:]])
    metadata = Metadata(ids, {HOSTILE[1]: [HOSTILE[i % 4] for i in range(len(ids))]})
    return write_report(run, metadata=metadata, cases=4, command=HOSTILE[0])


@pytest.fixture
def like_windows(monkeypatch):
    """What Windows refuses of what Linux allows: opening a folder, and renaming onto anything that is there."""
    opened, renamed = os.open, os.rename

    def no_folder(path, *arguments, **options):
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *arguments, **options)

    def onto_nothing(source, target, **options):
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, "it is there", str(target))
        return renamed(source, target, **options)

    monkeypatch.setattr(os, "open", no_folder)
    monkeypatch.setattr(os, "rename", onto_nothing)
    monkeypatch.setattr(shutil, "_use_fd_functions", False)  # how a folder is removed there
