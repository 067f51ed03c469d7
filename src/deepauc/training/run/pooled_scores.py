"""Scores of rows as scores of their groups (exams, patients, slides), without training anew."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from deepauc.metrics.pooling import ScorePooling, pool_scores
from deepauc.training.run.scores import Scores


def per_group(table: Scores, how: ScorePooling) -> Scores:
    """Each group of a part as one row: its rows' scores pooled, positive where one of them is.

    A row without a label has a say in its group's score, and a group without any label has none. The ids are the
    groups.
    """
    if table.groups is None:
        raise ValueError(f"{table.source} names no groups to pool by: name their column, --group-column.")
    parts = table.parts if table.parts is not None else np.full(len(table), "")
    keys = np.array([f"{part}\n{group}" for part, group in zip(parts.tolist(), table.groups.tolist(), strict=True)])
    _, first = np.unique(keys, return_index=True)
    _, scores = pool_scores(table.scores, keys, how)
    missing = np.isnan(table.labels)
    _, labels = pool_scores(np.where(missing, -np.inf, table.labels), keys, "max")
    lowest = -pool_scores(-np.where(missing, np.inf, table.labels), keys, "max")[1]
    mixed = int(((lowest < labels) & np.isfinite(lowest)).any(axis=1).sum())
    order = np.argsort(first, kind="stable")
    pooled = replace(
        table.rows(first[order]),
        scores=scores[order],
        labels=np.where(np.isinf(labels), np.nan, labels)[order],
        ids=table.groups[first[order]],
        groups=None,
    )
    word = table.group_word
    notes = [f"Scores are pooled by {how}: {len(table):,} rows become {len(pooled):,} {word}s."]
    if mixed:
        notes.append(
            f"{mixed:,} {word}{'s have' if mixed != 1 else ' has'} positive and negative rows, and "
            f"count{'s' * (mixed == 1)} as positive."
        )
    return replace(pooled, notes=(*table.notes, *notes))
