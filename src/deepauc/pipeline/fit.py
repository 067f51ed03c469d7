"""`fit`: from a table to a model and its report, in one call; what `deepauc train` does, from Python."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path

from deepauc.data.table.frame import Table, frame_of
from deepauc.data.table.problems import TableError
from deepauc.names import counted
from deepauc.pipeline.data_warnings import said_of
from deepauc.pipeline.events import (
    AlreadyFinished,
    Checked,
    ComputingFeatures,
    Estimated,
    Event,
    FoldBegan,
    Resumed,
    TrainingBegan,
    WritingReport,
    ignore,
)
from deepauc.pipeline.model import Model, load
from deepauc.pipeline.run import run
from deepauc.training.config import AUTO, Settings, read_settings, with_given
from deepauc.training.device import checked_device
from deepauc.training.plan.wording import time_text

RUNS = Path("runs")


def fit(
    table: Table,
    *,
    label: str | Sequence[str],
    image: str | None = None,
    features: str | Sequence[str] | None = None,
    group: str | None = None,
    metadata: str | Sequence[str] = (),
    positive: str | float | None = None,
    split: str | None = None,
    weight: str | None = None,
    id: str | None = None,
    bag: str | None = None,
    image_root: str | Path | None = None,
    objective: str | None = None,
    pretrained: bool | str = False,
    folds: int | str = AUTO,
    minutes: float | None = None,
    out: str | Path | None = None,
    config: str | Path | None = None,
    skip_bad: bool = False,
    device: str | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Model:
    """Train on a table of images or numbers, and write a report. The same call with the same `out` resumes, to the bit.

    Args:
        table: The path of a csv, tsv or parquet file, or a pandas DataFrame.
        label: The column of labels, or several.
        image: The column of image files; paths are relative to `image_root`, by default the table's folder (for a
            DataFrame the folder one is in).
        features: The column of numbers, or several, where there is no image.
        group: The column of patients; a patient is in one part or fold only.
        metadata: The column of numbers or words (age, sex, site), or several, alone or together with images.
        positive: The label that counts as positive, where labels are not 0 and 1.
        split: The column of parts: train, validation, test.
        weight: The column of weights; they count in training, not in AUCs, thresholds and probabilities.
        id: The column of row names, where there is no image; without it rows of a DataFrame are called by their
            places, from 0, as `iloc` counts them, and rows of a file by their lines.
        bag: The column that says which rows are images of one exam, patient or slide: they have one label, and the
            model scores them together. Rows of `oof`, parts and folds are then bags.
        image_root: The folder that image paths are relative to.
        objective: What the last stage minimises: "auc-margin" (default), "partial-auc", "average-precision",
            "all-pairs" or "pdsca".
        pretrained: Start from ImageNet weights on this machine: True for the plan's own network, the name of another,
            or a .safetensors file of the network that `config` names. Nothing is downloaded.
        folds: "auto": five folds where the rarer class has fewer than 200 rows (patients), else one split. Or 0 (one
            split), a number of folds, or the column that names each row's fold, such as the site.
        minutes: How long training may take in all.
        out: The folder of the run; by default a new one under `runs/`.
        config: A TOML file with these settings and more; what is given here counts.
        skip_bad: Leave out rows with a problem, such as a damaged image.
        device: "cpu" or "cuda"; by default a GPU if there is one.
        seed: Random seed of the training.
        progress: Print a few lines on the way.

    Returns:
        The model: `.auc`, `.leaderboard`, `.oof`, `.report`, `.predict(table)`, `.evaluate(table)`, `.export(folder)`.
    """
    if objective is not None and not isinstance(objective, str):
        raise ValueError("objective must be a name. To train a loss of your own, call deepauc.train with a Recipe.")
    target = checked_device(device)
    frame = None if frame_of(table) is None else table
    data = {
        "table": None if frame is not None else str(table),
        "label_columns": _columns(label),
        "image_column": image,
        "feature_columns": _columns(features) or None,
        "metadata_columns": _columns(metadata) or None,
        "group_column": group,
        "positive": None if positive is None else str(positive),
        "split_column": split,
        "weight_column": weight,
        "id_column": id,
        "bag_column": bag,
        "image_root": None if image_root is None else str(image_root),
        "skip_bad": skip_bad or None,
    }
    settings = with_given(
        Settings() if config is None else read_settings(config),
        data=data,
        plan={"minutes": minutes, "objective": objective, "pretrained": pretrained or None},
        top={"folds": None if folds == AUTO else folds, "seed": seed or None},
    )
    place = _new_folder() if out is None else Path(out)
    try:
        outcome = run(
            settings,
            out=place,
            device=target,
            command="deepauc.fit",
            frame=frame,
            listen=_tell if progress else ignore,
        )
    except TableError as error:
        if not error.every_row and all(problem.row is not None for problem in error.problems):
            error.add_note("Correct these rows, or leave them out with skip_bad=True.")
        if any(problem.kind == "missing file" for problem in error.problems):
            start = image_root or ("the folder you are in" if frame is not None else "the table's folder")
            error.add_note(f"Image paths are relative to {start}; image_root= names another folder.")
        raise
    if outcome is None:
        raise SystemExit(0)  # a further process of torchrun: the first one has the model
    model = load(place)
    if progress:
        _say(model.summary)
        _say(f"Report: {model.report}")
    return model


def _columns(named: str | Sequence[str] | None) -> tuple[str, ...]:
    """One column or several, also as an array or an index of pandas."""
    if named is None:
        return ()
    return tuple(named) if isinstance(named, Iterable) and not isinstance(named, str) else (named,)


def _new_folder() -> Path:
    """runs/fit-1, or the first number that is free."""
    return next(path for number in count(1) if not (path := RUNS / f"fit-{number}").exists())


def _tell(event: Event) -> None:
    """One plain line for what takes time."""
    match event:
        case Checked():
            report = event.prepared.report
            positives = ", ".join(f"{name}: {number:,} positive" for name, number in report.positives.items())
            _say(f"Data: {counted(report.labelled, 'labelled row')} ({positives})")
            for name, how in report.metadata.items():
                _say(f"  metadata {name}: read as {how}")
            for text in said_of(event.prepared):
                _say(f"  {text}")
        case Estimated():
            _say(f"Training takes about {time_text(event.seconds)} in all.")
        case Resumed():
            _say(f"Resuming the unfinished run in {event.out}.")
        case FoldBegan():
            _say(str(event))
        case ComputingFeatures(done=done, total=total) if done == total:
            _say(f"Computed the features of {counted(total, 'image')}.")
        case TrainingBegan():
            _say("Training: " + ", then ".join(f"{one.name} ({one.steps:,} steps)" for one in event.lengths))
        case WritingReport():
            _say("Writing the report")
        case AlreadyFinished():
            _say(f"The run in {event.out} is finished; nothing is trained.")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
