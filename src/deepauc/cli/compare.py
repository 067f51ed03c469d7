"""`deepauc compare`: is one model's AUC better than another's on the same samples?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepauc.cli.console import Output
from deepauc.cli.evaluate import GroupColumn, LabelColumns, PartColumn, Positive, ScoreColumns, all_notes
from deepauc.cli.options import AsJson, RareForce, RareMaxFpr, RareMinTpr, RarePerGroup, checked_pooling
from deepauc.cli.short_help import HELP_ALL

if TYPE_CHECKING:
    from deepauc.reporting.evaluation.table import TableComparison
    from deepauc.training.run.scores import Scores


def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="CSV, TSV or Parquet file of scores and labels.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another such file, of the same samples.")],
    label_column: LabelColumns = None,
    score_column: ScoreColumns = None,
    second_score_column: Annotated[
        list[str] | None,
        typer.Option("--second-score-column", metavar="COLUMN", help="Scores in B (default: as in A)."),
    ] = None,
    group_column: GroupColumn = None,
    part_column: PartColumn = None,
    part: Annotated[str | None, typer.Option(metavar="NAME", help="The part (default: test, else validation).")] = None,
    id_column: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Row ids to join on (default: id, if any).")
    ] = None,
    common: Annotated[bool, typer.Option("--common", help="Use only the rows that both files have.")] = False,
    positive: Positive = None,
    per_group: RarePerGroup = None,
    max_fpr: RareMaxFpr = None,
    min_tpr: RareMinTpr = None,
    force: RareForce = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print one line per result.")] = False,
    as_json: AsJson = False,
    help_all: Annotated[bool, HELP_ALL] = False,
) -> None:
    """Test whether two AUCs on the same samples differ.

    DeLong's test, clustered by patient. Rows are joined by id, else by order.
    """
    del help_all  # it has shown itself by now
    from deepauc.metrics.partial import Region
    from deepauc.names import counted
    from deepauc.reporting.document.cells import p_text
    from deepauc.reporting.evaluation.findings import Absent, to_json
    from deepauc.reporting.evaluation.table import compare_tables
    from deepauc.reporting.figures.label import signed_text
    from deepauc.training.run.own_files import require_own
    from deepauc.training.run.scores import OOF, read_scores

    output = Output(quiet=quiet, as_json=as_json)
    region = Region.asked(max_fpr, min_tpr)
    cautions = [text for path in (first, second) for text in require_own(path.parent, path.name, force=force)]
    tables = []
    for path, columns in ((first, score_column), (second, second_score_column or score_column)):
        table = read_scores(
            path,
            label_columns=label_column or (),
            score_columns=columns or (),
            group_column=group_column,
            part_column=part_column,
            id_column=id_column,
            positive=positive,
        )
        tables.append(_pooled(table, per_group))
    a, b = tables
    part = part or _shared_part(a, b)
    if part == OOF and region is not None:
        raise ValueError(
            "deepauc cannot compare partial AUCs on held-out rows (part oof): leave out --max-fpr and --min-tpr."
        )
    for table in (a, b):
        (table if part is None or table.parts is None else table.part(part)).require_finite_scores()
    found = compare_tables(a, b, part=part, common=common, region=region)
    if len(a.label_names) > 1 and all(isinstance(one, Absent) for one in found.labels):
        raise ValueError(f"{first}, {second}: {getattr(found.labels[0], 'why', 'nothing to compare.')}")
    notes = [f"Caution. {text}." for text in cautions]
    notes += [f"{path}: {text}" for path, table in ((first, a), (second, b)) for text in all_notes(table)]
    for note in notes:
        output.say(note)
    rows = []
    for name, one in zip(a.label_names, found.labels, strict=True):
        if isinstance(one, Absent):
            if len(a.label_names) == 1:
                raise ValueError(one.why)
            output.result(f"{name}: not compared, because {one.why}")
            continue
        difference = signed_text(one.difference)
        rows.append([name, f"{one.auc:.3f}", f"{one.baseline_auc:.3f}", difference, p_text(one.p_value)])
        if quiet:
            output.result(f"{name}  {difference}  {p_text(one.p_value)}")
    test = f"clustered by {found.group_word}" if found.clustered else "DeLong"
    test += ", within folds" if part == OOF else ""
    where = "all rows" if part is None else f"the {part} part"
    output.say(f"{counted(found.rows, 'row')} ({where}), paired {found.paired_by}. Test: {test}.")
    if found.groups_differ:
        output.say(
            f"Caution. A and B do not agree on which rows belong to one {found.group_word}; the groups of A are "
            "used. Is --group-column the right column in both?"
        )
    if any(not isinstance(one, Absent) and one.same_scores for one in found.labels):
        output.say("Caution. A and B have the same score in every row: there is nothing to compare.")
    output.table(
        ["label", "AUC of A", "AUC of B", "A - B [95 % interval]", "two-sided p"], rows, title=f"A {first}, B {second}"
    )
    _show_partial(output, a.label_names, found)
    record = {name: value for name, value in to_json(found).items() if name != "labels"}
    labels = [
        {k: v for k, v in to_json(one).items() if k not in ("baseline_fpr", "baseline_tpr")} for one in found.labels
    ]
    output.record({"a": str(first), "b": str(second), "notes": notes, **record, "labels": labels})


def _pooled(table: Scores, per_group: str | None) -> Scores:
    """With --per-group, each group as one row."""
    from deepauc.training.run import pooled_scores

    pooling = checked_pooling(per_group)
    return table if pooling is None else pooled_scores.per_group(table, pooling)


def _show_partial(output: Output, names: tuple[str, ...], found: TableComparison) -> None:
    from deepauc.reporting.document.cells import p_text
    from deepauc.reporting.evaluation.findings import Absent, Paired
    from deepauc.reporting.figures.label import signed_text

    rows, regions = [], set()
    for name, pair in zip(names, found.labels, strict=True):
        partial = pair.partial if isinstance(pair, Paired) else None
        if isinstance(partial, Absent):
            output.result(f"{name}: partial AUC not compared, because {partial.why}")
        elif partial is not None:
            difference, p_value = signed_text(partial.difference), p_text(partial.p_value)
            rows.append([name, f"{partial.area:.3f}", f"{partial.baseline_area:.3f}", difference, p_value])
            regions.add(str(partial.region))
            if output.quiet:
                output.result(f"{name}  {difference}  {p_value}  ({partial.region})")
    if rows:
        over = f"{found.group_word}s" if found.clustered else "rows"
        header = ["label", "partial AUC of A", "of B", "A - B [95 % interval]", "two-sided p"]
        output.table(header, rows, title=f"Partial AUC ({regions.pop()}), by a bootstrap over {over}")


def _shared_part(a: Scores, b: Scores) -> str | None:
    """The first of these that both have (or one has it, and the other no parts at all); None: there are none."""
    for name in ("test", "validation", "oof"):
        there = [table.parts is None or name in table.part_names for table in (a, b)]
        if all(there) and name in (*a.part_names, *b.part_names):
            return name
    names = list(dict.fromkeys([*a.part_names, *b.part_names]))
    if len(names) > 1:
        raise ValueError(
            f"the files have the parts {', '.join(map(repr, names))}, and no test or validation part that both have: "
            "name the part to compare on with --part. An AUC on training rows is too good."
        )
    return None
