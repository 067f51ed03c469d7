"""Which columns of a table a run is given: as named, else as it records them; never one for another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from deepauc.data.table.frame import Table, frame_of
from deepauc.data.table.header import table_header
from deepauc.models.build import is_of_bags
from deepauc.training.run.bundle import Bundle
from deepauc.training.run.folder import RunFolder
from deepauc.training.run.record import DataRecord


def input_columns(
    folder: Path, bundle: Bundle, image_column: str | None, feature_columns: Sequence[str]
) -> tuple[str | None, tuple[str, ...]]:
    """As named, else as the run's record has them."""
    if image_column is not None or feature_columns:
        return image_column, tuple(feature_columns)
    known, own = _recorded_data(folder), _recorded_features(folder, bundle)
    if known.image_column or own:
        return known.image_column, own
    wanted = "--image-column" if bundle.image_shape else f"its {bundle.shape[0]} columns in order, --feature-column"
    raise ValueError(f"{folder} does not record its columns: name them ({wanted}).")


def _recorded_data(folder: Path) -> DataRecord:
    """What run.json says of the table; nothing for a bundle alone."""
    run = RunFolder(folder)
    return run.record().data if run.record_path.exists() else DataRecord()


def recorded_positive(folders: Sequence[Path]) -> str | None:
    """The label value that is positive, where the runs record one and the same."""
    values = {_recorded_data(folder).positive for folder in folders}
    return values.pop() if len(values) == 1 else None


def _recorded_features(folder: Path, bundle: Bundle) -> tuple[str, ...]:
    """The columns of numbers in order, as run.json or an exported bundle has them."""
    return _recorded_data(folder).feature_columns or bundle.features


def id_column_of(folders: Sequence[Path], table: Table) -> str | None:
    """The column that named the rows in training, where that is one and the same and the table has it."""
    (first, *others) = {_recorded_data(folder).id_column for folder in folders}
    if first is None or others:
        return None
    frame = frame_of(table)
    columns = table_header(Path(str(table)), latin_1=True) if frame is None else map(str, frame.columns)
    return first if first in columns else None


def bag_column_of(folders: Sequence[Path], bundles: Sequence[Bundle], named: str | None) -> str | None:
    """The column of bags for runs that score these, as named, else as the first run's record has it; else None."""
    of_bags = [is_of_bags(bundle.model) for bundle in bundles]
    if not any(of_bags):
        if named is not None:
            raise ValueError(
                f"{folders[0]} scores single rows: leave --bag-column out, or pool its scores with --group-column and "
                "--per-group."
            )
        return None
    if not all(of_bags):
        raise ValueError("some of these runs score bags and some single rows: they cannot be averaged.")
    column = named or _recorded_data(folders[0]).bag_column
    if column is None:
        raise ValueError(f"{folders[0]} scores bags of rows: name their column, --bag-column.")
    return column


def require_own_inputs(
    folder: Path, bundle: Bundle, image_column: str | None, columns: tuple[str, ...], *, named: bool
) -> None:
    """Images for a network of images; else the columns that the run was trained on, each in its place.

    named: by the user, who may call a column otherwise than in training, but not take one for another. Columns of the
    first run are those of the others only where they are the same: any two numbers would be scored without a word.
    """
    images = bundle.image_shape is not None
    if images != (image_column is not None):
        theirs = "images: name their column, --image-column" if images else "numbers: name them, --feature-column"
        raise ValueError(
            f"{folder} was trained on {theirs}. Score runs on images and runs on numbers one by one; "
            "images and metadata can be averaged (--metadata-column)."
        )
    known = _recorded_features(folder, bundle)
    if not images and not known and not named:
        raise ValueError(
            f"{folder} does not record its columns: name its {bundle.shape[0]} in order, --feature-column."
        )
    if images or not known:
        return
    misplaced = any(name in known and known[place : place + 1] != (name,) for place, name in enumerate(columns))
    if misplaced or (not named and columns != known):
        raise ValueError(
            f"{folder} was trained on the columns {', '.join(known)}, in this order, and would be given "
            f"{', '.join(columns)}. "
            + ("Name them in that order." if named else "Score runs on different columns one by one.")
        )
