"""Patient metadata: turned into features for a small network, and its scores joined with the images' (section 4.2.2).

Scores of AUC losses have no common scale, so both are brought to [0, 1] before averaging, by a sigmoid or as ranks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from deepauc.labels import scale_free_array
from deepauc.names import one_form

Array = npt.NDArray[Any]
Scale = Literal["sigmoid", "rank"]

SMALLEST_SCALE = float(np.finfo(np.float32).tiny)  # what is divided by less leaves float32's reach


@dataclass(frozen=True, kw_only=True)
class NumericColumn:
    """(x - mean) / scale, 0 where missing; then 1 where missing, if any was missing when the encoder was fitted."""

    name: str
    mean: float
    scale: float
    missing_seen: bool

    @property
    def feature_names(self) -> tuple[str, ...]:
        return (self.name, f"{self.name} missing")[: 1 + self.missing_seen]

    def encode(self, column: Array) -> npt.NDArray[np.float64]:
        values = _numbers(column, self.name)
        missing = np.isnan(values)
        standardised = np.where(missing, 0.0, (values - self.mean) / self.scale)
        return np.stack([standardised, missing], axis=1)[:, : 1 + self.missing_seen]


@dataclass(frozen=True, kw_only=True)
class CategoricalColumn:
    """One 0/1 feature a category; then one for missing or unknown, if any was missing when the encoder was fitted."""

    name: str
    categories: tuple[str, ...]
    missing_seen: bool

    @property
    def feature_names(self) -> tuple[str, ...]:
        names = [f"{self.name}={category}" for category in self.categories]
        return (*names, f"{self.name} missing")[: len(names) + self.missing_seen]

    def encode(self, column: Array) -> npt.NDArray[np.float64]:
        place = self._places()
        places = np.array([place.get(cell, -1) for cell in _texts(column)], dtype=np.int64)
        one_hot = (places[:, None] == np.arange(len(self.categories))).astype(np.float64)
        unknown = 1.0 - one_hot.sum(axis=1, keepdims=True)
        return np.hstack([one_hot, unknown])[:, : len(self.categories) + self.missing_seen]

    def unseen(self, column: Array) -> dict[str, int]:
        """Categories that the training rows did not have, and how many of these rows hold each."""
        place = self._places()
        return dict(Counter(cell for cell in _texts(column) if cell and cell not in place))

    def _places(self) -> dict[str, int]:
        """Category -> its feature; an older encoder may have two that are one category today, which has the first."""
        places: dict[str, int] = {}
        for number, category in enumerate(self.categories):
            places.setdefault(_text(category), number)
        return places


@dataclass(frozen=True, kw_only=True)
class MetadataEncoder:
    """Columns of a table -> float32 features (N, F), by statistics of the rows it was fitted on: the training part.

    Numbers are standardised, text (and `categorical`) is one-hot. A missing cell (NaN, None, "") has a feature of its
    own where the training rows had some; otherwise, like an unknown category then, it is all zeros: a feature that was
    never 1 in training would bring untrained weights into the score.
    """

    columns: tuple[NumericColumn | CategoricalColumn, ...]

    @classmethod
    def fit(cls, columns: Mapping[str, Array], *, categorical: Sequence[str] = ()) -> Self:
        """columns: name -> (N,). Numbers and bool are numeric; text and what `categorical` names are categories."""
        if not columns:
            raise ValueError("there are no metadata columns: name at least one.")
        if unknown := sorted(set(categorical) - columns.keys()):
            raise ValueError(f"categorical names {unknown}, which are not among the columns {sorted(columns)}.")
        _require_rows(columns)
        return cls(
            columns=tuple(
                _fit_categorical(name, column)
                if name in categorical or not _is_numeric(column)
                else _fit_numeric(name, column)
                for name, column in columns.items()
            )
        )

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Of the F features, in order."""
        return tuple(name for column in self.columns for name in column.feature_names)

    def transform(self, columns: Mapping[str, Array]) -> npt.NDArray[np.float32]:
        """The features (N, F) of these rows; columns the encoder does not know are left out."""
        if absent := [column.name for column in self.columns if column.name not in columns]:
            raise ValueError(f"metadata column(s) {absent} are missing; for a column without values pass NaN or ''.")
        known = {column.name: columns[column.name] for column in self.columns}
        _require_rows(known)
        features = np.hstack([column.encode(known[column.name]) for column in self.columns])
        with np.errstate(over="ignore"):  # a number out of float32's reach becomes a score that `predict` refuses
            return features.astype(np.float32)

    def with_missing(self) -> Self:
        """The same with a feature for missing cells in every column: what any encoder of fewer rows follows from."""
        return replace(self, columns=tuple(replace(column, missing_seen=True) for column in self.columns))

    def affine_from(self, whole: MetadataEncoder) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """(F, W) A and (F,) b, so that these features are A x + b of `whole`'s features x, for any row.

        whole: of the same columns, `with_missing`, with all categories that this one has.
        """
        width = len(whole.feature_names)
        rows: list[npt.NDArray[np.float64]] = []
        offsets: list[float] = []
        start = 0
        for mine, other in zip(self.columns, whole.columns, strict=True):
            for row, offset in _affine(mine, other):
                rows.append(np.zeros(width))
                rows[-1][start : start + len(row)] = row
                offsets.append(offset)
            start += len(other.feature_names)
        return np.stack(rows), np.array(offsets)

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, text and numbers, for JSON."""
        return {
            "columns": [
                {"kind": "numeric" if isinstance(column, NumericColumn) else "categorical", **asdict(column)}
                for column in self.columns
            ]
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        """The encoder that `to_dict` wrote, after a round through JSON too."""
        columns: list[NumericColumn | CategoricalColumn] = []
        for entry in stored["columns"]:
            fields = {name: value for name, value in entry.items() if name != "kind"}
            if entry["kind"] == "numeric":
                columns.append(NumericColumn(**fields))
            elif entry["kind"] == "categorical":
                columns.append(CategoricalColumn(**{**fields, "categories": tuple(fields["categories"])}))
            else:
                raise ValueError(f"a metadata column is numeric or categorical, not {entry['kind']!r}.")
        return cls(columns=tuple(columns))


def _affine(
    mine: NumericColumn | CategoricalColumn, whole: NumericColumn | CategoricalColumn
) -> list[tuple[list[float], float]]:
    """Of each feature of a column, by what the features of the same column of `whole` are multiplied, and the rest."""
    if isinstance(mine, NumericColumn) and isinstance(whole, NumericColumn):
        apart = (whole.mean - mine.mean) / mine.scale  # a missing cell is 0 in either
        return [([whole.scale / mine.scale, -apart], apart), ([0.0, 1.0], 0.0)][: 1 + mine.missing_seen]
    if not isinstance(mine, CategoricalColumn) or not isinstance(whole, CategoricalColumn):
        raise ValueError(f"metadata column {mine.name!r} is numeric in one encoder and categorical in the other.")
    there = whole._places()
    places = [there[_text(category)] for category in mine.categories]
    one_hot = np.zeros((len(places), len(whole.feature_names)))
    one_hot[np.arange(len(places)), places] = 1.0
    found = [(row.tolist(), 0.0) for row in one_hot]
    return [*found, ((-one_hot.sum(axis=0)).tolist(), 1.0)][: len(found) + mine.missing_seen]


def fuse(image_scores: Array, metadata_scores: Array, *, weight: float = 0.5, scale: Scale = "sigmoid") -> Array:
    """(1 - weight) · s(image scores) + weight · s(metadata scores), raw scores (N,) or (N, L); see `ensemble`."""
    if not 0 <= weight <= 1:
        raise ValueError(f"weight, the share of the metadata scores, must lie in [0, 1], not {weight}.")
    return ensemble([image_scores, metadata_scores], scale=scale, weights=(1 - weight, weight))


def ensemble(scores: Sequence[Array], *, scale: Scale = "sigmoid", weights: Sequence[float] | None = None) -> Array:
    """Weighted mean over models of s(raw scores), float64, of the shape (N,) or (N, L) that each model's scores have.

    s is the sigmoid, or each score's rank among the N divided by N, per label, tied scores sharing their mean rank.
    With ranks a case's score depends on the other N - 1: for a fixed cohort, not for patients one by one.
    """
    arrays = [np.asarray(each, dtype=np.float64) for each in scores]
    if not arrays:
        raise ValueError("an ensemble needs the scores of at least one model.")
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1 or arrays[0].ndim not in (1, 2):
        raise ValueError(f"the models' scores must have one shape, (N,) or (N, L), not {sorted(shapes)}.")
    if not all(np.isfinite(array).all() for array in arrays):
        raise ValueError("scores hold NaN or infinity. Drop those rows, or find out why a model gave no score.")
    shares = np.ones(len(arrays)) if weights is None else np.asarray(weights, dtype=np.float64)
    if shares.shape != (len(arrays),) or not (np.isfinite(shares).all() and (shares >= 0).all() and shares.any()):
        raise ValueError(f"weights must be {len(arrays)} numbers, one per model, not negative and not all 0.")
    if scale not in ("sigmoid", "rank"):
        raise ValueError(f"scale must be 'sigmoid' or 'rank', not {scale!r}.")
    scaled = [_sigmoid(array) if scale == "sigmoid" else _ranks(array) for array in arrays]
    shares = scale_free_array(shares)
    return np.tensordot(shares / shares.sum(), np.stack(scaled), axes=1)


def _sigmoid(scores: Array) -> Array:
    e = np.exp(-np.abs(scores))  # never overflows
    return np.where(scores >= 0, 1 / (1 + e), e / (1 + e))


def _ranks(scores: Array) -> Array:
    """Ranks 1..N over N; ties share their mean rank."""
    from scipy.stats import rankdata

    ranks: Array = rankdata(scores, axis=0) / len(scores)
    return ranks


def _fit_numeric(name: str, column: Array) -> NumericColumn:
    values = _numbers(column, name)
    missing = np.isnan(values)
    if missing.all():
        raise ValueError(f"metadata column {name!r} holds no value in the rows given; leave it out.")
    spread = float(values[~missing].std())
    return NumericColumn(
        name=name,
        mean=float(values[~missing].mean()),
        scale=spread if spread >= SMALLEST_SCALE else 1.0,
        missing_seen=bool(missing.any()),
    )


def _fit_categorical(name: str, column: Array) -> CategoricalColumn:
    cells = _texts(column)
    categories = tuple(sorted(set(cells) - {""}))
    if not categories:
        raise ValueError(f"metadata column {name!r} holds no value in the rows given; leave it out.")
    return CategoricalColumn(name=name, categories=categories, missing_seen="" in cells)


def _require_rows(columns: Mapping[str, Array]) -> None:
    for name, column in columns.items():
        if np.ndim(column) != 1:
            raise ValueError(
                f"metadata column {name!r} has shape {np.shape(column)}; one value per row is needed, (N,)."
            )
    if len(lengths := {len(column) for column in columns.values()}) > 1:
        raise ValueError(f"the metadata columns have different lengths: {sorted(lengths)}.")


def _is_numeric(column: Array) -> bool:
    cells = _present(column)
    return np.asarray(column).dtype.kind in "biuf" or (bool(cells) and all(isinstance(c, int | float) for c in cells))


def _numbers(column: Array, name: str) -> npt.NDArray[np.float64]:
    """As float64, NaN where missing. A table whose cells are all empty cannot tell numbers from text: all missing."""
    if not _is_numeric(column) and _present(column):
        raise ValueError(f"metadata column {name!r} was numeric when the encoder was fitted and now holds text.")
    values = np.array([math.nan if _is_missing(cell) else cell for cell in np.asarray(column).tolist()], dtype=float)
    if np.isinf(values).any():
        raise ValueError(f"metadata column {name!r} holds infinity; leave the cell empty (NaN) where it is unknown.")
    return values


def _texts(column: Array) -> list[str]:
    """Categories as text, "" where missing."""
    return ["" if _is_missing(cell) else _text(cell) for cell in np.asarray(column).tolist()]


def _text(cell: object) -> str:
    """One text a category: 3, 3.0, "3" and "03" are the same, for which it is depends on the other cells of a table.

    (A column of codes reads as numbers when all its cells are, and whole numbers become floats when one is missing.)
    """
    text = one_form(str(cell))
    try:
        number = math.nan if "_" in text else float(text)  # float() takes 1_000 for a number
    except ValueError:
        return text
    if not math.isfinite(number):
        return text
    return str(int(number)) if number.is_integer() else str(number)


def _present(column: Array) -> list[Any]:
    return [cell for cell in np.asarray(column).tolist() if not _is_missing(cell)]


def _is_missing(cell: object) -> bool:
    return cell is None or cell != cell or (isinstance(cell, str) and not cell.strip())  # noqa: PLR0124  (NaN)
