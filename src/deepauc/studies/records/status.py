"""How far a set of studies is: counted from records alone, without images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path

from deepauc.studies.chosen import RecordedSettings
from deepauc.studies.records.book import Record, RecordBook, arguments, as_text
from deepauc.studies.sources import is_for_choosing
from deepauc.studies.study import Study, StudySet
from deepauc.training.run.folder import by_other_numerics


@dataclass(frozen=True, kw_only=True)
class StudyStatus:
    """Runs recorded beside runs declared, of those that the studies ask for now.

    failed: tuning and final runs that have diverged. other: runs of another numerics version than this
    code's. cut: runs made with less than is declared, or with another option (`--set`), such as a smaller network.
    outdated: records that nothing asks for: they rest on what an earlier study had chosen before it had more
    runs, or on a setting that is no longer declared.
    """

    study: str
    tuned: int
    to_tune: int
    final: int
    seeds: int
    failed: int
    other: int
    cut: int
    outdated: int


def status_of(
    study_set: StudySet, chosen: Sequence[Study], results: Path, *, parents: Sequence[Study] = ()
) -> list[StudyStatus]:
    """One line a study. With a cut, fewer tuning runs than declared are complete.

    With the whole set chosen, studies that have records and are not declared any more follow. parents: studies outside
    the set whose selection is inherited.
    """
    book = RecordBook(results / study_set.name)
    choices = RecordedSettings((*study_set.studies, *parents), book)
    found = [_status(study, choices) for study in chosen]
    if len(chosen) == len(study_set.studies):
        found += [_undeclared(name, book) for name in book.studies() if name not in {one.study for one in found}]
    return found


def _status(study: Study, choices: RecordedSettings) -> StudyStatus:
    tuning, final = choices.asked_for(study), _asked_for_final(study, choices.book.final(study.name), choices)
    diverged = _asked_for_final(study, choices.book.diverged(study.name), choices)
    return StudyStatus(
        study=study.name,
        tuned=sum("failed" not in record for record in tuning),
        to_tune=choices.to_tune(study),
        final=len(final),
        seeds=0 if is_for_choosing(study.task) else len(study.seeds),
        failed=sum("failed" in record for record in tuning) + len(diverged),
        other=by_other_numerics([*tuning, *final]),
        cut=sum(bool(record.get("cut")) for record in [*tuning, *final]),
        outdated=_recorded(study.name, choices.book) - len(tuning) - len(final),
    )


def _asked_for_final(study: Study, recorded: Sequence[Record], choices: RecordedSettings) -> list[Record]:
    """Those with the setting that is selected now; where a cut has selected it, as their own records say."""
    records = [record for record in recorded if _as_fixed(study, record)]
    selected = choices.selected(study)
    if selected is None:
        return records
    config = selected[0]
    return [one for one in records if as_text(arguments(one)) == as_text(arguments({**one, "config": config}))]


def _as_fixed(study: Study, record: Record) -> bool:
    """Whether the arguments outside the grid are the study's; one that was set by hand (a cut) is as it was set."""
    if "fixed" not in record:  # of a time when linked runs were no studies
        return True
    by_hand = {name: value for name, value in record["fixed"].items() if name in record["cut"]}
    asked, made = {**study.fixed, **by_hand}, record["fixed"]
    arguments = signature(study.method).parameters  # one that is named at its default is the same as one left out
    defaults = {name: arguments[name].default for name in asked.keys() ^ made.keys() if name in arguments}
    return as_text({**defaults, **asked}) == as_text({**defaults, **made})


def _undeclared(name: str, book: RecordBook) -> StudyStatus:
    records = _recorded(name, book)
    return StudyStatus(study=name, tuned=0, to_tune=0, final=0, seeds=0, failed=0, other=0, cut=0, outdated=records)


def _recorded(name: str, book: RecordBook) -> int:
    return len(book.tuning(name)) + len(book.final(name))
