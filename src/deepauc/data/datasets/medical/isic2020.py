"""The ISIC 2020 ground truth (Rotemberg et al., Scientific Data 8:34, 2021): patients, metadata, labels, no images."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from deepauc.data.datasets.medical.melanoma import (
    IMAGE,
    PATIENT,
    SEXES,
    SITES,
    read_melanoma_table,
    table_metadata,
    targets,
)
from deepauc.data.task import ArrayInputs, Task


def load_isic2020_table(path: str | os.PathLike[str]) -> Task:
    """Melanoma from age, sex and site alone: 33,126 rows in train, for patient folds at true scale.

    Features, (N, 10) float32: age in centuries (the mean where missing), 1 where it is missing, then one column for
    each sex and each body site; all of those are 0 where the table has nothing. Groups are patients.
    """
    table = read_melanoma_table(Path(path))
    metadata = table_metadata(table)
    age, known = metadata["age"], ~np.isnan(metadata["age"])
    filled = np.where(known, age, age[known].mean() if known.any() else 0.0) / 100
    columns = [filled, ~known]
    columns += [metadata["sex"] == sex for sex in SEXES if sex]
    columns += [metadata["site"] == site for site in SITES if site]
    return Task(
        name="ISIC 2020 metadata",
        kind="binary",
        source=ArrayInputs(np.stack(columns, axis=1).astype(np.float32)),
        labels=targets(table),
        label_names=("melanoma",),
        parts={"train": np.arange(len(table))},
        groups=table.text(PATIENT),
        metadata=metadata,
        ids=table.text(IMAGE),
    )
