"""`deepauc report`: the report of a finished run, made (again) from its folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepauc.cli.console import Output
from deepauc.cli.options import AsJson, ImageColumn, RareAllowOutside, RareForce, RareMaxFpr, RareMinTpr
from deepauc.cli.short_help import HELP_ALL, rare
from deepauc.cli.train import command_line

if TYPE_CHECKING:
    from deepauc.reporting.evaluation.findings import RunFindings
    from deepauc.training.run.run import Run


def report(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    baseline: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Another run on the same samples to compare with.")
    ] = None,
    metadata: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Table of patient data for subgroup analyses.")
    ] = None,
    id_column: Annotated[str | None, typer.Option(metavar="COLUMN", help="Ids in the metadata (default: id).")] = None,
    subgroup_column: Annotated[
        list[str] | None,
        typer.Option("--subgroup-column", metavar="COLUMN", help="Subgroups; repeatable (default: all columns)."),
    ] = None,
    cases: Annotated[int | None, typer.Option(min=0, metavar="N", help="List the N worst errors of each kind.")] = None,
    thumbnails: Annotated[
        bool, typer.Option("--thumbnails", help="Show their images and Grad-CAM (patient data!).")
    ] = False,
    examples: Annotated[bool, typer.Option("--examples", help="Write examples.html with patients' images.")] = False,
    table: Annotated[Path | None, typer.Option(metavar="FILE", help="The run's table, to find the images.")] = None,
    image_column: ImageColumn = None,
    allow_outside: RareAllowOutside = False,
    max_fpr: RareMaxFpr = None,
    min_tpr: RareMinTpr = None,
    repeat: Annotated[
        list[Path] | None, rare("The run with another seed; repeatable.", "--repeat", metavar="RUN")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder to write to (default: the run's).")] = None,
    force: RareForce = False,
    quiet: Annotated[bool, rare("Print only where the report is.", "--quiet")] = False,
    as_json: AsJson = False,
    help_all: Annotated[bool, HELP_ALL] = False,
) -> None:
    """Write the report of a finished run as HTML, Markdown and JSON.

    It compares the run with --baseline (default: its cross-entropy stage).
    """
    del help_all  # it has shown itself by now
    from deepauc.metrics.partial import Region
    from deepauc.reporting.evaluation.findings import Absent, to_json
    from deepauc.reporting.evaluation.subgroups import read_metadata
    from deepauc.reporting.examples import write_examples
    from deepauc.reporting.figures.thumbnails import ImageTable
    from deepauc.reporting.report import write_report
    from deepauc.training.run.run import Run

    for option, value in (("--subgroup-column", subgroup_column), ("--id-column", id_column)):
        if value and metadata is None:
            raise ValueError(
                f"{option} names a column of the metadata: name that table too, with --metadata table.csv."
            )
    columns = None
    if metadata is not None:
        columns = read_metadata(
            metadata, id_column=id_column or "id", columns=subgroup_column or (), without=_no_subgroups(Run(run))
        )
    if thumbnails and table is None:
        packed = Run(run).record.data.packed
        needs = f"image files, and {run} was trained on a packed set, not on a table of them: name the one it was made"
        needs = f"{needs} from" if packed else "the run's images: name its table"
        raise ValueError(f"--thumbnails needs {needs}, --table data.csv --image-column file.")
    if thumbnails and cases == 0:
        raise ValueError("--cases 0 names no errors, and --thumbnails shows them: leave out one of the two.")
    if not (thumbnails or examples) and (table is not None or image_column or allow_outside):
        raise ValueError(
            "--table, --image-column and --allow-outside are for --thumbnails and --examples: ask for one of them."
        )
    if examples and table is None and (image_column or allow_outside):
        raise ValueError("--image-column and --allow-outside are about a table: name it with --table.")
    output = Output(quiet=quiet, as_json=as_json)
    region = Region.asked(max_fpr, min_tpr)
    images = None
    if table is not None:
        images = ImageTable(path=table, image_column=image_column, allow_outside=allow_outside)
    Run(run)  # refused, where it is none, before anything is said
    with output.progress(f"Writing the report of {run}") as advance:
        written = write_report(
            run,
            baseline=baseline,
            metadata=columns,
            cases=cases or 0,
            thumbnails=images if thumbnails else None,
            region=region,
            repeats=repeat or (),
            out=out,
            command=command_line(context),
            force=force,
            progress=advance,
        )
    pictures = write_examples(run, table=images, out=out, force=force) if examples else None
    _show_aucs(output, written.findings)
    if baseline is not None and isinstance(written.findings.baseline, Absent):
        output.result(f"not tested against {baseline}: {written.findings.baseline.why}")
    output.result(f"Report: {written.html}")
    if pictures is not None:
        output.result(f"Examples: {pictures} (it shows images of patients: take care with whom you share it)")
    output.say("Not a medical device: nothing here is cleared for decisions about patients.")
    record = {
        "html": str(written.html),
        "markdown": str(written.markdown),
        "json": str(written.json),
        "figures": [str(path) for path in written.figures],
        "judged_part": written.findings.judged_part,
        "notes": list(written.findings.notes),
        "mean_auc": written.findings.mean_auc,
        "auc": {one.name: to_json(one.auc) for one in written.findings.labels},
    }
    output.record(record if pictures is None else {**record, "examples": str(pictures)})


def _show_aucs(output: Output, findings: RunFindings) -> None:
    from deepauc.reporting.evaluation.findings import Absent
    from deepauc.reporting.figures.label import interval_text
    from deepauc.reporting.folds import verdict

    rows = []
    for one in findings.labels:
        if isinstance(one.auc, Absent):
            output.say(f"{one.part}, {one.name}: no AUC, because {one.auc.why}")
            continue
        rows.append(
            [one.part, one.name, f"{one.counts.rows:,}", f"{one.counts.positives:,}", interval_text(one.auc.headline)]
        )
    folds = findings.record.folds
    for text in [] if folds is None else verdict(folds):
        output.say(text)
    if rows:
        output.table(["part", "label", "rows", "positives", "AUC"], rows, title="AUC with 95 % intervals")
    else:
        output.say(findings.part_note)
    for note in findings.notes:
        output.say(f"Caution. {note}")


def _no_subgroups(run: Run) -> list[str]:
    """Columns of the run's own table by which nothing is to be grouped unless asked for: labels, patients, parts."""
    data = run.record.data
    single = [data.group_column, data.split_column, data.image_column, data.weight_column]
    return [name for name in (*data.label_columns, *single) if name]
