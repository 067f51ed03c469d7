"""`deepauc predict`: scores of new rows by one run or the average of many."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from deepauc.cli.console import Output
from deepauc.cli.data import AllowOutside, FeatureColumns, GroupColumn, ImageColumn, refuse_table

if TYPE_CHECKING:
    from deepauc.training.predict_table import TablePrediction

Scale = Literal["sigmoid", "rank"]


def predict(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders; several are averaged.")],
    table: Annotated[Path, typer.Option(metavar="FILE", help="A csv, tsv or parquet file.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The csv file to write.")],
    image_column: ImageColumn = None,
    feature_column: FeatureColumns = None,
    label_column: Annotated[
        list[str] | None, typer.Option("--label-column", metavar="COLUMN", help="Labels to copy; repeatable.")
    ] = None,
    group_column: GroupColumn = None,
    tta: Annotated[
        int,
        typer.Option(min=0, metavar="N", show_default=False, help="Mean over N changed copies of each image."),
    ] = 0,
    scale: Annotated[
        str, typer.Option(metavar="NAME", show_default=False, help="Of several runs: sigmoid (default) or rank.")
    ] = "sigmoid",
    seed: Annotated[int, typer.Option(min=0, metavar="N", show_default=False, help="Of --tta; default: 0.")] = 0,
    device: Annotated[str | None, typer.Option(metavar="NAME", help="cpu or cuda; default: what there is.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave rows with a problem out.")] = False,
    allow_outside: AllowOutside = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say only where the scores are.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else.")] = False,
) -> None:
    """Score a table with trained runs; it needs no labels. Columns that are not named are called as in training."""
    if scale not in get_args(Scale):
        raise ValueError(f"--scale {scale}: write sigmoid or rank.")
    from dataclasses import asdict

    from deepauc.data.problems import TableError
    from deepauc.training.predict_table import predict_table

    output = Output(quiet=quiet, as_json=as_json)
    try:
        with output.progress(f"Scoring {table}") as advance:
            found = predict_table(
                runs,
                table,
                image_column=image_column,
                feature_columns=feature_column or (),
                label_columns=label_column or (),
                group_column=group_column,
                tta=tta,
                scale=scale,  # type: ignore[arg-type]  # checked above
                seed=seed,
                device=device,
                skip_bad=skip_bad,
                allow_outside=allow_outside,
                progress=advance,
            )
    except TableError as error:
        output.record({"ok": False, "problems": [asdict(problem) for problem in error.problems]})
        refuse_table(output, error.problems)
    found.write(out)
    _show(output, found, out)


def _show(output: Output, found: TablePrediction, out: Path) -> None:
    if found.skipped:
        output.result(f"left out for a problem: {len(found.skipped):,} rows ({', '.join(map(str, found.skipped))})")
    output.say(f"{found.meaning}; not a medical device.")
    output.result(f"Scores: {out} ({len(found.ids):,} rows)")
    record: dict[str, Any] = {
        "scores": str(out),
        "rows": len(found.ids),
        "columns": found.columns(),
        "meaning": found.meaning,
        "skipped_rows": list(found.skipped),
    }
    output.record(record)
