"""`write_report`: from a finished run folder to report.html, report.md with its figures, and report.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deepauc.metrics.partial import Region
from deepauc.reporting.document.markdown import markdown_page
from deepauc.reporting.document.page import html_page
from deepauc.reporting.document.sections import run_document
from deepauc.reporting.evaluation.findings import RunFindings, to_json
from deepauc.reporting.evaluation.run import evaluate_run
from deepauc.reporting.evaluation.subgroups import Metadata
from deepauc.reporting.figures.canvas import render
from deepauc.reporting.figures.thumbnails import DEFAULT_CASES, ImageTable, thumbnails_section
from deepauc.training.run.output_file import require_output_folder, write_atomically
from deepauc.training.run.own_files import BUNDLE, MODEL, require_own

FIGURES = "report-figures"
HALF = 100  # steps that judging is reported as, and drawing as many: either takes about half of the time


@dataclass(frozen=True, kw_only=True)
class WrittenReport:
    """What was found, and the files that say it."""

    findings: RunFindings = field(repr=False)
    html: Path
    markdown: Path
    json: Path
    figures: tuple[Path, ...]


def write_report(
    run_dir: str | Path,
    *,
    baseline: str | Path | None = None,
    metadata: Metadata | None = None,
    cases: int = 0,
    thumbnails: ImageTable | None = None,
    region: Region | None = None,
    repeats: Sequence[str | Path] = (),
    out: str | Path | None = None,
    command: str | None = None,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> WrittenReport:
    """Judge a finished run and write its report. The same folder gives the same bytes again.

    Args:
        run_dir: The run's folder.
        baseline: Another run on the same samples, for the paired test.
        metadata: Columns to look at subgroups by.
        cases: How many of the largest errors of each kind to name by id (ids may name patients, so none by default).
        thumbnails: The table of the run's images, to show those errors with Grad-CAM overlays, four of each kind where
            `cases` is 0; they are patients' images, so none by default.
        region: Also the partial AUC there, which a run that was trained for one has anyway.
        repeats: Runs on the same rows with other seeds, whose AUCs are set beside this one's.
        out: The folder to write to; None: the run's.
        command: What the report says it was made by.
        force: Go on, with a caution, where a file is not the one that the run wrote.
        progress: Called with (steps done, steps in all).
    """
    folder = Path(run_dir) if out is None else Path(out)
    require_output_folder(folder)
    if thumbnails is not None:
        cases = cases or DEFAULT_CASES

    def advance(before: int, done: int, of: int) -> None:
        if progress is not None:
            progress(before + HALF * done // of, 2 * HALF)

    findings = evaluate_run(
        run_dir,
        baseline=baseline,
        metadata=metadata,
        cases=cases,
        force=force,
        region=region,
        repeats=repeats,
        progress=lambda done, of: advance(0, done, of),
    )
    if thumbnails is not None:
        require_own(run_dir, MODEL, BUNDLE, force=force)  # the findings have the cautions
    images = None if thumbnails is None else thumbnails_section(run_dir, findings, thumbnails)
    document = run_document(findings, command=command, thumbnails=images)
    (folder / FIGURES).mkdir(parents=True, exist_ok=True)
    figures = []
    svg = {}
    for number, picture in enumerate(document.pictures, start=1):
        rendering = render(picture)
        svg[picture.name] = rendering.svg
        figures.append(folder / FIGURES / f"{picture.name}.png")
        write_atomically(figures[-1], rendering.png)
        advance(HALF, number, len(document.pictures))
    for image in document.thumbnails:
        figures.append(folder / FIGURES / f"{image.name}.png")
        write_atomically(figures[-1], image.png)
    for stale in set((folder / FIGURES).glob("*.png")) - set(figures):  # of an earlier report with more in it
        stale.unlink()
    files = {
        "report.html": html_page(document, svg),
        "report.md": markdown_page(document, folder=FIGURES),
        "report.json": json.dumps(to_json(findings), indent=1, allow_nan=False) + "\n",
    }
    for name, text in files.items():
        write_atomically(folder / name, text.encode("utf-8", "backslashreplace"))
    return WrittenReport(
        findings=findings,
        html=folder / "report.html",
        markdown=folder / "report.md",
        json=folder / "report.json",
        figures=tuple(figures),
    )
