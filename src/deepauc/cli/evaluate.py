"""`deepauc evaluate`: what the scores in any csv are worth, or a finished run on a new table of labelled rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepauc.cli import options
from deepauc.cli.console import Output
from deepauc.cli.short_help import HELP_ALL, rare

if TYPE_CHECKING:
    from deepauc.reporting.evaluation.findings import Absent, LabelEvaluation, PartialAuc
    from deepauc.reporting.external import External
    from deepauc.reporting.folds import FoldAuc
    from deepauc.training.run.scores import Scores

LabelColumns = Annotated[
    list[str] | None, typer.Option("--label-column", metavar="COLUMN", help="Labels; repeatable (default: label).")
]
ScoreColumns = Annotated[
    list[str] | None, typer.Option("--score-column", metavar="COLUMN", help="Scores; repeatable (default: score).")
]
GroupColumn = Annotated[str | None, typer.Option(metavar="COLUMN", help="Patients (default: group, if any).")]
PartColumn = Annotated[str | None, typer.Option(metavar="COLUMN", help="train, test, ... (default: part, if any).")]
Positive = Annotated[str | None, typer.Option(metavar="VALUE", help="The positive label, if labels are not 0 and 1.")]


def evaluate(
    scores: Annotated[
        Path, typer.Argument(metavar="SCORES", help="CSV, TSV or Parquet file; with --table: a run's folder.")
    ],
    table: Annotated[
        Path | None, typer.Option(metavar="FILE", help="New labelled rows, to be scored by the run.")
    ] = None,
    image_column: options.RareImageColumn = None,
    image_root: options.RareImageRoot = None,
    recalibrate: Annotated[bool, rare("With --table: recalibrate to its prevalence.", "--recalibrate")] = False,
    label_column: LabelColumns = None,
    score_column: ScoreColumns = None,
    group_column: GroupColumn = None,
    part_column: PartColumn = None,
    part: Annotated[str | None, typer.Option(metavar="NAME", help="Only this part (default: every part).")] = None,
    positive: Positive = None,
    per_group: options.RarePerGroup = None,
    bag_column: options.RareBagColumn = None,
    max_fpr: options.RareMaxFpr = None,
    min_tpr: options.RareMinTpr = None,
    force: options.RareForce = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print one line per result.")] = False,
    as_json: options.AsJson = False,
    device: options.RareDevice = None,
    help_all: Annotated[bool, HELP_ALL] = False,
) -> None:
    """Compute AUCs with intervals from a file of scores and labels.

    With --table, SCORES is a finished run, which scores the new rows first.
    """
    del help_all  # it has shown itself by now
    from deepauc.metrics.partial import Region

    pooling = options.checked_pooling(per_group)
    region = Region.asked(max_fpr, min_tpr)
    if table is not None:
        if score_column or part_column or part:
            raise ValueError(
                "--score-column, --part-column and --part choose from a file of scores: leave them out with --table."
            )
        from deepauc.cli.table_report import columns_as_trained
        from deepauc.reporting.external import evaluate_table

        output = Output(quiet=quiet, as_json=as_json)
        with columns_as_trained(output, may_skip=False):
            external = evaluate_table(
                scores,
                table,
                label_columns=label_column or (),
                image_column=image_column,
                image_root=image_root,
                group_column=group_column,
                positive=positive,
                recalibrate=recalibrate,
                per_group=pooling,
                bag_column=bag_column,
                region=region,
                device=options.checked_device(device),
                force=force,
            )
        _show_external(output, external, run=scores)
        return
    if recalibrate or image_column or image_root or bag_column:
        raise ValueError(
            "--recalibrate, --image-column, --image-root and --bag-column need a run and --table: name both."
        )
    import numpy as np

    from deepauc.reporting.evaluation.findings import AucResult, to_json
    from deepauc.reporting.evaluation.table import evaluate_part
    from deepauc.reporting.folds import fold_aucs
    from deepauc.training.run.own_files import require_own
    from deepauc.training.run.pooled_scores import per_group as pooled_by_group
    from deepauc.training.run.scores import OOF, read_scores

    output = Output(quiet=quiet, as_json=as_json)
    cautions = require_own(scores.parent, scores.name, force=force)
    read = read_scores(
        scores,
        label_columns=label_column or (),
        score_columns=score_column or (),
        group_column=group_column,
        part_column=part_column,
        positive=positive,
    )
    if pooling is not None:
        (read if part is None else read.part(part)).require_finite_scores()
        read = pooled_by_group(read, pooling)
    judged = read if part is None else read.part(part)
    judged.require_finite_scores()
    parts: tuple[str | None, ...] = (part,) if part is not None else read.part_names or (None,)
    folds = fold_aucs(read, region=region) if OOF in parts and read.folds is not None else None
    if folds is not None:  # scores of different networks are not pooled
        parts = tuple(name for name in parts if name != OOF)
    within = bool(((judged.scores >= 0) & (judged.scores <= 1) | np.isnan(judged.labels)).all())
    found = [
        one for name in parts for one in evaluate_part(read, name, curves=False, probabilities=within, region=region)
    ]
    if not any(isinstance(one.auc, AucResult) for one in found) and not folds:
        raise ValueError(f"{scores}: {getattr(found[0].auc, 'why', 'nothing to judge.')}")
    notes = [*(f"Caution. {text}." for text in cautions), *all_notes(judged)]
    for note in notes:
        output.say(note)
    if folds is not None:
        _show_folds(output, folds)
    if found:
        _show(output, found, within=within)
    record: dict[str, object] = {"file": str(scores), "notes": notes}
    if folds is not None:
        record["folds"] = [to_json(one) for one in folds]
    output.record({**record, "results": [_record(one, within) for one in found]})


def _show_external(output: Output, found: External, *, run: Path) -> None:
    """A finished run on new labelled rows, beside its figures in training."""
    from deepauc.reporting.evaluation.findings import to_json
    from deepauc.reporting.external import HEADER
    from deepauc.reporting.figures.label import interval_text

    for note in found.notes:
        output.say(note)
    output.table(list(HEADER), found.rows(), title=f"{run} on {found.table}, with 95 % intervals")
    rows = [
        [one.name, point.name, interval_text(point.sensitivity), interval_text(point.specificity)]
        for one in found.labels
        for point in one.thresholds
    ]
    if rows:
        header = ["label", "threshold of training", "sensitivity here", "specificity here"]
        output.table(header, rows, title="At the thresholds of training")
    for one in found.labels:
        if output.quiet:
            output.result(f"{one.name}  {interval_text(one.auc)}")
        if one.shift is not None:
            output.say(f"{one.name}: recalibrated by adding {one.shift:+.3f} to the log odds of each probability.")
    _show_partial_aucs(output, ["label"], [([one.name], one.partial_auc) for one in found.labels])
    output.record({"run": str(run), **to_json(found)})


def _show_folds(output: Output, found: Sequence[FoldAuc]) -> None:
    from deepauc.reporting.figures.label import interval_text
    from deepauc.training.run.scores import OOF

    rows = [[one.label, f"{one.folds}", f"{one.rows:,}", f"{one.positives:,}", interval_text(one.auc)] for one in found]
    header = ["label", "folds", "rows", "positives", "mean AUC within folds"]
    output.table(header, rows, title="Held-out rows of cross-validation (part oof), with 95 % intervals")
    if output.quiet:
        for row in rows:
            output.result(f"oof  {row[0]}  {row[4]}")
    _show_partial_aucs(output, ["part", "label"], [([OOF, one.label], one.partial_auc) for one in found])


def all_notes(table: Scores) -> list[str]:
    """What a reader of figures from this table should know."""
    return [*table.notes, *_repeated_ids(table)]


def _repeated_ids(table: Scores) -> list[str]:
    """A sample in several rows of a part makes intervals too narrow, unless groups hold its rows together."""
    if table.ids is None or table.groups is not None:
        return []
    from deepauc.names import rows_have

    parts = [""] * len(table) if table.parts is None else table.parts.tolist()
    named = [key for key in zip(parts, table.ids.tolist(), strict=True) if key[1]]
    if not (repeated := len(named) - len(set(named))):
        return []
    return [
        f"Caution. {rows_have(repeated)} the id of an earlier row of the same part. All rows count as independent "
        "samples, which makes the intervals too narrow: drop the duplicates, or use the ids as groups (--group-column)."
    ]


def _show(output: Output, found: list[LabelEvaluation], *, within: bool) -> None:
    from deepauc.reporting.evaluation.findings import Absent
    from deepauc.reporting.figures.label import interval_text

    judged = []
    for one in found:
        if isinstance(one.auc, Absent):
            output.result(f"{one.part}, {one.name}: no AUC, because {one.auc.why}")
            continue
        judged.append(one)
        if output.quiet:
            output.result(f"{one.part}  {one.name}  {interval_text(one.auc.headline)}")
    _show_aucs(output, judged, found[0].counts.group_word)
    _show_partial_aucs(output, ["part", "label"], [([one.part, one.name], one.partial_auc) for one in judged])
    _show_operating_points(output, judged)
    if within:
        _show_calibration(output, judged)
    for text in dict.fromkeys(f"{one.part}, {one.name}: {text}" for one in found for text in one.cautions):
        output.say(f"Caution. {text}")


def _show_aucs(output: Output, judged: list[LabelEvaluation], group_word: str) -> None:
    from deepauc.reporting.evaluation.findings import Absent
    from deepauc.reporting.figures.label import figure_text, interval_text

    header = ["part", "label", "rows", "positives", f"{group_word}s"]
    header += ["AUC [DeLong]", f"[by {group_word}]", "[bootstrap]", "average precision"]
    rows = []
    for one in judged:
        assert not isinstance(one.auc, Absent)
        counts, by_patient = one.counts, one.auc.delong_by_patient
        rows.append(
            [
                *(one.part, one.name, f"{counts.rows:,}", f"{counts.positives:,}"),
                "-" if counts.patients is None else f"{counts.patients:,}",
                interval_text(one.auc.delong),
                "-" if by_patient is None else interval_text(by_patient),
                "-" if one.auc.bootstrap is None else interval_text(one.auc.bootstrap),
                figure_text(one.auc.average_precision, one.auc.average_precision_interval),
            ]
        )
    output.table(header, rows, title="AUC with 95 % intervals")


def _show_partial_aucs(
    output: Output, of: list[str], areas: Sequence[tuple[list[str], PartialAuc | Absent | None]]
) -> None:
    """of: the heads of the cells that say what each area is of."""
    from deepauc.reporting.evaluation.findings import Absent
    from deepauc.reporting.figures.label import interval_text

    rows = []
    for names, found in areas:
        if isinstance(found, Absent):
            output.say(f"{', '.join(names)}: no partial AUC, because {found.why}")
        elif found is not None:
            cells = (interval_text(found.area), f"{found.chance:.3f}", f"{found.most:.3f}")
            rows.append([*names, str(found.region), *cells])
            if output.quiet:
                output.result("  ".join([*names, interval_text(found.area), f"({found.region})"]))
    if rows:
        header = [*of, "region", "partial AUC [bootstrap]", "chance", "at most"]
        output.table(header, rows, title="Partial AUC with 95 % intervals")


def _show_operating_points(output: Output, judged: list[LabelEvaluation]) -> None:
    from deepauc.reporting.document.operating_sections import asked_text
    from deepauc.reporting.evaluation.findings import Absent
    from deepauc.reporting.evaluation.table import NO_TEST, NO_VALIDATION, NOT_TEST
    from deepauc.reporting.figures.label import interval_text

    rows, left_out = [], []
    for one in judged:
        if isinstance(one.operating_points, Absent):
            if one.operating_points.why not in (NO_TEST, NO_VALIDATION, NOT_TEST):  # validation is there, and no use
                output.say(f"{one.part}, {one.name}: no thresholds, because {one.operating_points.why}")
            continue
        rows += [
            [
                *(one.name, asked_text(row), f"{row.threshold:.6g}"),
                *(interval_text(row.sensitivity), interval_text(row.specificity)),
            ]
            for points in (one.operating_points, one.sensitivity_points)
            for row in (() if isinstance(points, Absent) else points)
        ]
        if one.operating_points_left_out is not None:
            left_out.append(f"{one.part}, {one.name}, left out: {one.operating_points_left_out.why}")
    if rows:
        header = ["label", "chosen for", "threshold", "sensitivity", "specificity"]
        output.table(header, rows, title="On test, at thresholds chosen on other rows")
        for text in left_out:
            output.say(text)


def _show_calibration(output: Output, judged: list[LabelEvaluation]) -> None:
    from deepauc.reporting.evaluation.findings import Calibration, CalibrationState
    from deepauc.reporting.figures.label import figure_text

    rows = []
    for one in judged:
        before = one.calibration.before if isinstance(one.calibration, Calibration) else None
        if isinstance(before, CalibrationState):
            error = figure_text(before.expected_calibration_error, before.expected_calibration_error_interval)
            rows.append([one.part, one.name, figure_text(before.brier, before.brier_interval), error])
    if rows:
        output.table(["part", "label", "Brier", "ECE"], rows, title="Scores taken as probabilities")


def _record(one: LabelEvaluation, within: bool) -> dict[str, object]:
    from deepauc.reporting.evaluation.findings import to_json

    operating = ("operating_points", "operating_points_left_out", "sensitivity_points", "patients", "too_few")
    kept = ("name", "part", "counts", "auc", "resamples", *operating, "cautions", *(("calibration",) if within else ()))
    kept = (*kept, *(("partial_auc",) if one.partial_auc is not None else ()))
    return {name: to_json(getattr(one, name)) for name in kept}
