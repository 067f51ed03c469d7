"""`deepauc report`: the report of a finished run, made (again) from its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deepauc.cli.console import Output
from deepauc.cli.train import command_line


def report(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    baseline: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Another run on the same samples, for the paired test.")
    ] = None,
    metadata: Annotated[Path | None, typer.Option(metavar="FILE", help="A table to look at subgroups by.")] = None,
    id_column: Annotated[
        str, typer.Option(metavar="COLUMN", help="Of that table; it joins on scores.csv's id.")
    ] = "id",
    subgroup_column: Annotated[
        list[str] | None, typer.Option("--subgroup-column", metavar="COLUMN", help="Repeatable; default: all.")
    ] = None,
    cases: Annotated[int, typer.Option(min=0, metavar="N", help="Name the N largest errors of each kind by id.")] = 0,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Default: the run's folder.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say only where the report is.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else.")] = False,
) -> None:
    """Write report.html, report.md with figures and report.json from a run folder.

    No images, no GPU, no network. Without --baseline the run's own first stage is taken, where it was kept.
    """
    from deepauc.reporting.figures import interval_text
    from deepauc.reporting.findings import Absent, to_json
    from deepauc.reporting.report import write_report
    from deepauc.reporting.subgroups import read_metadata

    if subgroup_column and metadata is None:
        raise ValueError("--subgroup-column names columns of a table: name that too, with --metadata table.csv.")
    columns = None
    if metadata is not None:
        columns = read_metadata(metadata, id_column=id_column, columns=subgroup_column or ())
    output = Output(quiet=quiet, as_json=as_json)
    written = write_report(
        run, baseline=baseline, metadata=columns, cases=cases, out=out, command=command_line(context)
    )
    rows = []
    for one in written.findings.labels:
        if isinstance(one.auc, Absent):
            output.say(f"{one.part}, {one.name}: no AUC, because {one.auc.why}")
            continue
        rows.append(
            [one.part, one.name, f"{one.counts.rows:,}", f"{one.counts.positives:,}", interval_text(one.auc.headline)]
        )
    if rows:
        output.table(["part", "label", "rows", "positives", "AUC"], rows, title="AUC with 95 % intervals")
    else:
        output.say(written.findings.part_note)
    output.result(f"Report: {written.html}")
    output.say("Not a medical device: nothing here is cleared for decisions about patients.")
    record = {
        "html": str(written.html),
        "markdown": str(written.markdown),
        "json": str(written.json),
        "figures": [str(path) for path in written.figures],
        "judged_part": written.findings.judged_part,
        "mean_auc": written.findings.mean_auc,
        "auc": {one.name: to_json(one.auc) for one in written.findings.labels},
    }
    output.record(record)
