"""The page of a set of studies that brings none of its own: a row for each study, from the records."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, stdev

from deepauc.reporting.tables import markdown_table
from deepauc.studies.records import RecordBook
from deepauc.studies.study import StudySet

HEADER = ("study", "test AUC", "runs", "selected")


def study_page(studies: StudySet, results: Path) -> str:
    """Mean test AUC of the final runs, with the standard deviation, and the setting that validation has selected."""
    book, rows = RecordBook(results / studies.name), []
    for study in studies.studies:
        records = book.final(study.name)
        values = [record["auc"]["test"][0] for record in records]
        spread = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
        auc = f"{fmean(values):.3f}{spread}" if values else "-"
        settings = {} if not records else records[0]["config"]
        selected = ", ".join(f"{name}={value}" for name, value in settings.items()) or "-"
        rows.append([study.name, auc, f"{len(values)} of {len(study.seeds)}", selected])
    about = "Test AUC: mean ± standard deviation over the runs. Settings were selected on validation AUC."
    return "\n\n".join([f"# {studies.title}", about, markdown_table(HEADER, rows)]) + "\n"
