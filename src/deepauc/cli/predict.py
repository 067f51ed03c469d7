"""`deepauc predict`: scores of new rows by one run or the average of many."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from deepauc.cli import options
from deepauc.cli.console import Output
from deepauc.cli.short_help import HELP_ALL, rare
from deepauc.cli.table_report import columns_as_trained

if TYPE_CHECKING:
    from deepauc.training.predict.table import TablePrediction

Scale = Literal["sigmoid", "rank"]


def predict(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders; several runs are averaged.")],
    table: Annotated[Path, typer.Option(metavar="FILE", help="CSV, TSV or Parquet file.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="CSV file to write (-: standard output).")],
    image_column: options.ImageColumn = None,
    feature_column: options.FeatureColumns = None,
    label_column: Annotated[
        list[str] | None,
        typer.Option("--label-column", metavar="COLUMN", help="Labels to copy to the output; repeatable."),
    ] = None,
    group_column: Annotated[str | None, typer.Option(metavar="COLUMN", help="Patients to copy to the output.")] = None,
    positive: options.RarePositive = None,
    id_column: options.IdColumn = None,
    bag_column: options.RareBagColumn = None,
    per_group: options.RarePerGroup = None,
    tta: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", show_default=False, help="Test-time augmentation: average N copies."),
    ] = None,
    scale: Annotated[
        str | None, typer.Option(metavar="NAME", help="Average runs by sigmoid (default) or rank.")
    ] = None,
    weight: Annotated[
        list[str] | None,
        rare(
            "Weight of each run, in order; repeatable (default: equal). Or once: learned (on validation).", metavar="W"
        ),
    ] = None,
    probability: Annotated[
        bool, typer.Option("--probability", help="Add probabilities, recalibrated on validation.")
    ] = False,
    parts: Annotated[bool, rare("Add each row's part (train, test, ...) in the runs.", "--parts")] = False,
    seed: Annotated[int | None, rare("Random seed of --tta (default: 0).", metavar="N", min=0)] = None,
    device: options.RareDevice = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out rows with a problem.")] = False,
    allow_outside: options.RareAllowOutside = False,
    force: options.RareForce = False,
    spreadsheet_safe: Annotated[
        bool, rare("Write ' before ids that look like formulas.", "--spreadsheet-safe")
    ] = False,
    quiet: Annotated[bool, rare("Print only where the scores are.", "--quiet")] = False,
    as_json: options.AsJson = False,
    help_all: Annotated[bool, HELP_ALL] = False,
) -> None:
    """Score new rows with trained runs. Columns default to those of training."""
    del help_all  # it has shown itself by now
    weights = _weights(weight or [])
    if scale is not None and scale not in get_args(Scale):
        raise ValueError(f"--scale {scale}: write sigmoid or rank.")
    pooling = options.checked_pooling(per_group)
    output = Output.beside([out], quiet=quiet, as_json=as_json)
    _require_writable(out, table=table, runs=runs)  # before the rows are scored, which may take long
    from deepauc.training.predict.table import predict_table

    target = options.checked_device(device)
    with columns_as_trained(output, may_skip=not skip_bad), output.progress(f"Scoring {table}") as advance:
        found = predict_table(
            runs,
            table,
            image_column=image_column,
            feature_columns=feature_column or (),
            label_columns=label_column or (),
            group_column=group_column,
            positive=positive,
            id_column=id_column,
            bag_column=bag_column,
            per_group=pooling,
            tta=tta,
            scale=scale,  # type: ignore[arg-type]  # checked above
            weights=weights,
            probability=probability,
            parts=parts,
            seed=seed,
            device=target,
            skip_bad=skip_bad,
            allow_outside=allow_outside,
            force=force,
            progress=advance,
        )
    found.write(out, spreadsheet_safe=spreadsheet_safe)
    _show(output, found, out)


def _weights(words: Sequence[str]) -> Sequence[float] | Literal["learned"] | None:
    if list(words) == ["learned"]:
        return "learned"
    try:
        return [float(word) for word in words] or None
    except ValueError:
        raise ValueError(
            f"--weight {' --weight '.join(words)}: write one number per run, in their order, or --weight learned alone."
        ) from None


def _require_writable(out: Path, *, table: Path, runs: Sequence[Path]) -> None:
    """A place for the scores that takes nothing away: not the table itself, and no file of a run."""
    from deepauc.training.run.output_file import require_output

    require_output(out, "--out")
    if out.exists() and table.exists() and out.samefile(table):
        raise ValueError(f"--out {out} is the table itself, which would be lost: name another file.")
    for run in runs:
        if out.exists() and run.resolve() in out.resolve().parents:
            raise ValueError(f"--out {out} is a file of the run, which would be lost: name another file.")


def _show(output: Output, found: TablePrediction, out: Path) -> None:
    from deepauc.names import counted, rows_have

    if found.skipped:
        output.result(f"Rows left out because of a problem: {', '.join(map(str, found.skipped))}")
    output.say(f"Meaning of the scores: {found.meaning}. Not a medical device.")
    if found.probability_meaning is not None:
        output.say(f"{found.probability_meaning}.")
    if found.caution is not None:
        output.say(f"Caution. {found.caution[0].upper()}{found.caution[1:]}.")
    for text in found.file_cautions:
        output.result(f"Caution. {text}.")
    output.result(f"Scores: {out} ({counted(len(found.ids), 'row')})")
    if alone := found.without_labels():
        output.say(_unjudged(alone, [name for name in found.labels if name not in found.label_names]))
    if found.split_caution is not None:
        output.say(f"Caution. {found.split_caution[0].upper()}{found.split_caution[1:]}.")
    if found.rows_seen and found.parts is None:
        output.say(
            f"Caution. {rows_have(found.rows_seen)} the name of a training or validation row of the run. An AUC over "
            "such rows would be too good. The run's own scores.csv has the scores of held-out rows (part test or oof); "
            "--parts adds the part of each row."
        )
    for text in _unseen_texts(found):
        output.say(f"Caution. {text}")
    record: dict[str, Any] = {
        "scores": str(out),
        "rows": len(found.ids),
        "columns": found.columns(),
        "meaning": found.meaning,
        "skipped_rows": list(found.skipped),
        "rows_seen_in_training": found.rows_seen,
        "unseen_categories": {column: dict(unseen) for column, unseen in found.unseen.items()},
    }
    if found.learned_weights is not None:
        record["learned_weights"] = {name: list(counts) for name, counts in found.learned_weights.items()}
    known = {
        "scores_without_labels": list(alone) or None,
        "probability_meaning": found.probability_meaning,
        "caution": found.caution,
        "split_caution": found.split_caution,
        "file_cautions": list(found.file_cautions) or None,
    }
    record |= {name: value for name, value in known.items() if value is not None}
    output.record(record)


def _unseen_texts(found: TablePrediction) -> list[str]:
    """Categories that no training row had, a sentence for each column."""
    texts = []
    for column, unseen in found.unseen.items():
        rows = sum(unseen.values())
        names = sorted(unseen, key=lambda name: -unseen[name])[:3]
        shown = ", ".join(f"{name[:60]!r} ({unseen[name]:,})" for name in names) + ", ..." * (len(unseen) > len(names))
        texts.append(
            f"Column {column!r}: {rows:,} row{'s have' if rows != 1 else ' has'} a category that the training rows did "
            f"not have: {shown}. {'They count' if rows != 1 else 'It counts'} as an empty cell."
        )
    return texts


def _unjudged(alone: Sequence[str], strangers: Sequence[str]) -> str:
    """Which scores have no labels beside them, of several; strangers: columns copied that are no label of the runs."""
    text = f"No labels were copied for {', '.join(alone)}: deepauc evaluate cannot judge "
    text += f"{'its' if len(alone) == 1 else 'their'} scores. Name the column with --label-column"
    if not strangers:
        return f"{text}."
    return (
        f"{text}, or, if it has another name ({', '.join(strangers)}), tell evaluate which columns belong together: "
        f"--label-column 'label:{strangers[0]}' --score-column 'score:{alone[0]}'."
    )
