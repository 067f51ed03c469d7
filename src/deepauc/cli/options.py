"""Options that several commands have: what is in a table, how large images are, and the device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from deepauc.cli.short_help import rare

if TYPE_CHECKING:
    import torch

    from deepauc.metrics.pooling import ScorePooling

ImageColumn = Annotated[str | None, typer.Option(metavar="COLUMN", help="Image files (paths relative to the table).")]
RareImageColumn = Annotated[str | None, rare("Image files (default: as in training).", metavar="COLUMN")]
RareImageRoot = Annotated[Path | None, rare("Folder of the images (default: the table's folder).", metavar="DIR")]
LABELS = typer.Option("--label-column", metavar="COLUMN", help="Labels, 0 or 1; repeatable.")
FeatureColumns = Annotated[
    list[str] | None,
    typer.Option("--feature-column", metavar="COLUMN", help="Numeric inputs instead of images; repeatable."),
]
CategoryColumns = Annotated[
    list[str] | None, rare("Metadata read as categories; repeatable.", "--category-column", metavar="COLUMN")
]
GroupColumn = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="Patients; never split between train and test.")
]
IdColumn = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="Row ids for numeric inputs (default: line number).")
]
RareIdColumn = Annotated[str | None, rare("Row ids for numeric inputs (default: line number).", metavar="COLUMN")]
Positive = Annotated[str | None, typer.Option(metavar="VALUE", help="The positive label, if labels are not 0 and 1.")]
RarePositive = Annotated[str | None, rare("The positive label, if labels are not 0 and 1.", metavar="VALUE")]
SplitColumn = Annotated[str | None, typer.Option(metavar="COLUMN", help="A given split: train, validation or test.")]
WeightColumn = Annotated[str | None, typer.Option(metavar="COLUMN", help="Weight of each row in training.")]
RareWeightColumn = Annotated[str | None, rare("Weight of each row in training.", metavar="COLUMN")]
MetadataColumns = Annotated[
    list[str] | None, typer.Option("--metadata-column", metavar="COLUMN", help="Also keep this column; repeatable.")
]
MetadataInputs = Annotated[
    list[str] | None,
    typer.Option("--metadata-column", metavar="COLUMN", help="Patient data, such as age or sex; repeatable."),
]
AllowOutside = Annotated[bool, typer.Option("--allow-outside", help="Allow images outside the table's folder.")]
RareAllowOutside = Annotated[bool, rare("Allow images outside the table's folder.", "--allow-outside")]
RareSkipBad = Annotated[bool, rare("Leave out rows with a problem.", "--skip-bad")]
RareDevice = Annotated[str | None, rare("cpu or cuda (default: a GPU if there is one).", metavar="NAME")]
RareMaxFpr = Annotated[float | None, rare("Add the partial AUC up to this FPR.", metavar="RATE")]
RareMinTpr = Annotated[float | None, rare("Add the partial AUC above this sensitivity.", metavar="RATE")]
RareBagColumn = Annotated[str | None, rare("Exam, patient or slide whose rows share one label.", metavar="COLUMN")]
RarePerGroup = Annotated[str | None, rare("One score per group: max, mean or noisy-or.", "--per-group", metavar="HOW")]
AsJson = Annotated[bool, typer.Option("--json", help="Print only the result, as JSON.")]
Force = Annotated[bool, typer.Option("--force", help="Continue even if a file of the run was changed.")]
RareForce = Annotated[bool, rare("Continue even if a file of the run was changed.", "--force")]


def parse_size(text: str, *, option: str) -> tuple[int, int]:
    """(height, width) from `224` or `224x320`; option: what it is called in the command."""
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(side.isascii() and side.isdigit() and int(side) for side in sides):
        raise ValueError(f"{option} {text}: give one side, such as 224, or HEIGHTxWIDTH, such as 224x320.")
    return int(sides[0]), int(sides[-1])


def parse_folds(text: str) -> int | str:
    """A number of folds from `5`; else `auto`, or a column."""
    return int(text) if text.isascii() and text.removeprefix("-").isdigit() else text


def checked_pooling(name: str | None) -> ScorePooling | None:
    """The `--per-group` of this name; a ValueError says which names there are."""
    from deepauc.metrics.pooling import ScorePooling

    if name is not None and name not in get_args(ScorePooling):
        raise ValueError(f"--per-group {name}: write {', '.join(get_args(ScorePooling)[:-1])} or noisy-or.")
    return name  # type: ignore[return-value]  # one of these


def checked_device(name: str | None) -> torch.device:
    """The `--device` of this name, or what there is; a ValueError says which names there are."""
    from deepauc.training import device

    return device.checked_device(name, option="--device")
