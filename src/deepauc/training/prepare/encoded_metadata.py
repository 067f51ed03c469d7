"""Patient metadata as a task's inputs, with the encoder that made them, which a run keeps for `predict`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from math import prod
from typing import Any

import numpy as np

from deepauc.data.table.cautions import holds_names
from deepauc.data.task import Array, ArrayInputs, Indices, Inputs, Task
from deepauc.models.fusion import CategoricalColumn, MetadataEncoder
from deepauc.training.plan.decision import Decision


class EncodedMetadata(ArrayInputs):
    """Columns of metadata as float32 features (N, F)."""

    def __init__(self, encoder: MetadataEncoder, columns: Mapping[str, Array]) -> None:
        super().__init__(encoder.transform(columns))
        self.encoder = encoder


class PicturesAndMetadata:
    """Images and encoded metadata as one row of float32 numbers: pixels in [0, 1], row by row, then the features."""

    def __init__(self, pictures: Inputs, features: EncodedMetadata) -> None:
        self.pictures, self.features = pictures, features

    @property
    def shape(self) -> tuple[int, ...]:
        return (prod(self.pictures.shape) + self.features.shape[0],)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float32)

    def __len__(self) -> int:
        return len(self.features)

    def __call__(self, indices: Indices) -> Array:
        pixels = self.pictures(indices).reshape(len(indices), -1).astype(np.float32) / 255
        return np.concatenate([pixels, self.features(indices)], axis=1)

    def digest(self) -> str:
        return sha256(f"{self.pictures.digest()}{self.features.digest()}".encode()).hexdigest()


def joint_task(task: Task, encoder: MetadataEncoder) -> Task:
    """The task with its images and its encoded metadata as inputs: what a network that takes both is given."""
    return replace(task, source=PicturesAndMetadata(task.source, EncodedMetadata(encoder, task.metadata)), metadata={})


def metadata_task(task: Task, encoder: MetadataEncoder | None = None) -> tuple[Task, MetadataEncoder]:
    """The task with its encoded metadata columns as inputs; the encoder is fitted on the training part unless given."""
    if not task.metadata:
        raise ValueError("the task has no metadata columns to learn from.")
    if encoder is None:
        rows = task.part("train")
        encoder = MetadataEncoder.fit({name: column[rows] for name, column in task.metadata.items()})
    source = EncodedMetadata(encoder, task.metadata)
    return replace(task, name=f"{task.name} metadata", source=source, metadata={}), encoder


def whole_encoder(task: Task) -> MetadataEncoder:
    """Of the rows of train, with a feature for missing cells in every column: any fold's features follow from it."""
    rows = task.part("train")
    encoder = MetadataEncoder.fit({name: column[rows] for name, column in task.metadata.items()})
    require_categories(task, encoder)
    return encoder.with_missing()


def require_categories(task: Task, encoder: MetadataEncoder) -> None:
    """ValueError for a column of names, numbers of patients, dates: each row of train has its own."""
    rows = task.part("train")
    for column in encoder.columns:
        if isinstance(column, CategoricalColumn):
            filled = int((task.metadata[column.name][rows].astype(str) != "").sum())
            if holds_names(len(column.categories), filled):
                raise ValueError(
                    f"column {column.name!r} has {len(column.categories):,} different entries in {filled:,} training "
                    "rows: names, not categories. Leave it out."
                )


def encoding_decision(encoder: MetadataEncoder, *, beside_images: bool) -> Decision:
    """How each column was taken: its number of categories, 0 for a column of numbers."""
    columns = {
        column.name: len(column.categories) if isinstance(column, CategoricalColumn) else 0
        for column in encoder.columns
    }
    facts = {"features": len(encoder.feature_names)}
    reason = ("encoded", "codes", *(("beside images",) if beside_images else ()))
    return Decision(name="metadata", value=columns, reason=reason, rests_on=facts)
