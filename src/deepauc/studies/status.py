"""How far a set of studies is: counted from records alone, without images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deepauc.studies.folds import is_for_choosing
from deepauc.studies.records import RecordBook
from deepauc.studies.study import Study, StudySet
from deepauc.training.folder import code_version


@dataclass(frozen=True, kw_only=True)
class StudyStatus:
    """Runs recorded beside runs declared. other: records made by code that is not this one."""

    study: str
    tuned: int
    to_tune: int
    final: int
    seeds: int
    failed: int
    other: int


def status_of(study_set: StudySet, chosen: Sequence[Study], results: Path) -> list[StudyStatus]:
    """One line a study. With a cut, fewer tuning runs than declared are complete."""
    book = RecordBook(results / study_set.name)
    return [_status(study, book) for study in chosen]


def _status(study: Study, book: RecordBook) -> StudyStatus:
    tuning, final = book.tuning(study.name), book.final(study.name)
    return StudyStatus(
        study=study.name,
        tuned=sum("failed" not in record for record in tuning),
        to_tune=len(study.configs) * len(study.tuning_seeds) if study.tuned else 0,
        final=len(final),
        seeds=0 if is_for_choosing(study.task) else len(study.seeds),
        failed=sum("failed" in record for record in tuning),
        other=sum(record["code_version"] != code_version() for record in (*tuning, *final)),
    )
