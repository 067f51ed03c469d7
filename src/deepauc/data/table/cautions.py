"""What is no fault of a table but worth knowing before training on it, as sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from deepauc.data.task import Array

FEW = 10  # rows of a class, below which an AUC is no headline
MOST_SHRINKING = 8  # times, beyond which small findings vanish
MOST_NAMES = 0.5  # a column with more categories than this share of its cells holds names, from which nothing follows

NO_GROUPS = (
    "no group column is named. If a patient has several rows, name the column of patients (--group-column); "
    "otherwise a patient may be in training and test, and the AUC is too good."
)
NOT_UTF_8 = "the file is not UTF-8 and was read as Latin-1 (Windows-1252). Check names with accents."


def few_of_a_class(positives: Mapping[str, int], negatives: Mapping[str, int]) -> tuple[str, ...]:
    """Labels with fewer than ten rows of a class; one with none at all has a problem, not a caution."""
    return tuple(name for name in positives if 0 < min(positives[name], negatives[name]) < FEW)


def label_cautions(positives: Mapping[str, int], negatives: Mapping[str, int], *, grouped: bool) -> tuple[str, ...]:
    """Of labels with few rows of a class, and of rows whose patients nobody has named."""
    found = []
    for name in few_of_a_class(positives, negatives):
        count, what = min((positives[name], "positive"), (negatives[name], "negative"))
        rows = f"{count} {what} row{'s' * (count != 1)}"
        found.append(f"the label {name} has only {rows}. An AUC measured on fewer than {FEW} says little.")
    return (*found, *(() if grouped else (NO_GROUPS,)))


def holds_names(categories: int, filled: int) -> bool:
    """Whether so many categories in so many filled cells are names, numbers of patients, dates: each row its own."""
    return categories > max(2, MOST_NAMES * filled)


def name_cautions(metadata: Mapping[str, Array]) -> list[str]:
    """Of columns of text, (N,) each, that training refuses as inputs."""
    found = []
    for name, column in metadata.items():
        filled = column[column != ""] if column.dtype.kind == "U" else column[:0]
        if holds_names(categories := len(np.unique(filled)), len(filled)):
            found.append(
                f"the column {name} has {categories:,} different entries in {len(filled):,} rows: names, not "
                "categories. Training refuses it as an input. If it should hold numbers, empty its other cells and "
                "name it with --metadata-column; otherwise leave it out."
            )
    return found


def shrinking_caution(sizes: Mapping[tuple[int, int], int], size: tuple[int, int]) -> str | None:
    """Where most images lose more than eight times their height or width."""
    total = sum(sizes.values())
    shrunk = sum(count for found, count in sizes.items() if max(np.divide(found, size)) > MOST_SHRINKING)
    if 2 * shrunk <= total:
        return None
    (height, width), _ = max(sizes.items(), key=lambda item: item[1])
    return (
        f"images of {height} x {width} pixels are shrunk to {size[0]} x {size[1]}, more than {MOST_SHRINKING} times. "
        "Small findings vanish: crop the images, or choose a larger --image-size."
    )


def type_of(column: Array) -> str:
    """How a metadata column was read: as numbers, or as which categories."""
    if column.dtype.kind == "f":
        known = column[~np.isnan(column)]
        span = f" from {known.min():g} to {known.max():g}" if len(known) else ""
        return f"numbers{span}{_empty(int(np.isnan(column).sum()))}"
    names, counts = np.unique(column[column != ""], return_counts=True)
    order: Sequence[int] = np.argsort(-counts, kind="stable").tolist()
    listed = ", ".join(repr(str(names[place])) for place in order[:5]) + (", ..." if len(names) > 5 else "")
    kinds = "1 category" if len(names) == 1 else f"{len(names):,} categories"
    return f"{kinds} ({listed}){_empty(int((column == '').sum()))}"


def _empty(count: int) -> str:
    return f", {count:,} empty" if count else ""
