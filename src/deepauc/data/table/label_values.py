"""The values of a label column: which one is positive, and whether leaving rows out would lose one of them."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from deepauc.data.table.problems import Problem, shown
from deepauc.names import one_form

LOST_SHARE = 0.9  # of the rows of a label value, which may not be left out together
_SHOWN = 10  # values that a message lists


def label_key(cell: str) -> str:
    """A label as it is compared: 1, 1.0 and " 1 " are one value, and so are Malignant and malignant."""
    text = one_form(cell).lower()
    try:
        return f"{float(text):g}"
    except ValueError:
        return text


def value_problems(
    cells: Iterable[str], column: str, *, known: Iterable[str], positive: str | None, keep: npt.NDArray[np.bool_]
) -> list[Problem]:
    """What is wrong with a label column as a whole.

    known: values that need no explanation. A value that a single row holds is a typing error, which that row's own
    problem tells.
    """
    values = [one_form(cell) for cell in cells]
    counts = Counter(value for value in values if value.lower() not in {"", "nan"})
    problems: list[Problem] = []
    if positive is not None:
        if counts and label_key(positive) not in map(label_key, counts):
            message = f"no row holds the positive value {shown(positive)}. {_listed(counts)}"
            problems.append(Problem(None, column, "unknown label value", message))
        return [*problems, *_lost(values, counts, column, keep)]
    expected = set(known)
    if any(value.lower() not in expected and count > 1 for value, count in counts.items()):
        rarest = min(counts, key=lambda value: (counts[value] == 1, counts[value]))
        message = f"{_listed(counts)} Name the value that counts as positive, for example "
        message += f'--positive {shlex.quote(rarest)} (in Python: positive="{rarest}"); all others are then negative'
        problems.append(Problem(None, column, "unknown label value", message))
    return [*problems, *_lost(values, counts, column, keep)]


def _lost(values: Sequence[str], counts: Counter[str], column: str, keep: npt.NDArray[np.bool_]) -> list[Problem]:
    if keep.all():
        return []
    left = Counter(values[row] for row in np.flatnonzero(~keep).tolist())
    return [
        Problem(
            None,
            column,
            "label value left out",
            f"{left[value]:,} of the {total:,} rows with the label {shown(value)} have a problem and would be left "
            "out. Too few rows of this class would remain: correct these rows",
        )
        for value, total in counts.items()
        if total > 1 and left[value] >= LOST_SHARE * total
    ]


def _listed(counts: Counter[str]) -> str:
    most = counts.most_common(_SHOWN)
    listed = ", ".join(f"{shown(value)} in {count:,} row{'s' * (count != 1)}" for value, count in most)
    more = f" and {len(counts) - _SHOWN:,} more" if len(counts) > _SHOWN else ""
    return f"The column holds {len(counts):,} value{'s' * (len(counts) != 1)}: {listed}{more}."
