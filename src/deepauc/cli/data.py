"""`deepauc data`: what data sets there are, what is in them, what is wrong with a table, packing and exporting."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from deepauc.cli import options
from deepauc.cli.console import Output, printable
from deepauc.cli.short_help import HELP_ALL, ShortHelp
from deepauc.cli.table_report import refuse, refuse_table, report_record, show_summary
from deepauc.data.datasets.benchmarks.load import data_root
from deepauc.data.datasets.catalogue import CATALOGUE, load_named
from deepauc.data.export import Exported, export_task
from deepauc.data.imbalance import imbalanced
from deepauc.data.packed.sets import pack as pack_task
from deepauc.data.table.cautions import shrinking_caution
from deepauc.data.table.problems import TableError
from deepauc.data.table.read import check_table, read_table
from deepauc.data.task import Kind, Task
from deepauc.names import counted
from deepauc.training.run.output_file import require_output_folder

app = typer.Typer(rich_markup_mode=None)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="A name from `data list`, or a packed set's folder.")]
Root = Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of data sets (default: $DEEPAUC_DATA).")]
Imratio = Annotated[float | None, typer.Option(metavar="SHARE", help="Remove positives until train has this share.")]
Seed = Annotated[int | None, typer.Option(min=0, metavar="N", help="Random seed of --imratio (default: 0).")]
Out = Annotated[Path, typer.Option(metavar="DIR", help="Folder to write.")]
Parts = Annotated[
    list[str] | None,
    typer.Option("--part", metavar="PART", help="train, validation or test; repeatable (default: all)."),
]


@app.callback(invoke_without_command=True)
def data(context: typer.Context) -> None:
    """List, check, pack and export data sets and tables."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("list")
def list_sets(root: Root = None, as_json: options.AsJson = False) -> None:
    """List the named data sets and whether they were found."""
    output, place = Output(as_json=as_json), data_root(root)
    found = {name: () if place is None else one.found(place) for name, one in CATALOGUE.items()}
    output.columns(
        ("name", "data set", "images", "size", "label 1", "found"),
        [
            (name, one.title, f"{one.images:,}", _size_text(one.shape), one.positive, "yes" if found[name] else "-")
            for name, one in CATALOGUE.items()
        ],
    )
    if place is None:
        output.result("There is no folder to look in: pass --root or set DEEPAUC_DATA.")
    else:
        output.result(f"Looked in {place}. `deepauc data info NAME` says how to get a missing one.")
    records = {
        name: {key: value for key, value in vars(one).items() if key not in ("read", "places")}
        | {"found": list(found[name])}
        for name, one in CATALOGUE.items()
    }
    output.record({"root": None if place is None else str(place), "sets": records})


@app.command()
def info(
    name: NameArgument, imratio: Imratio = None, seed: Seed = None, root: Root = None, as_json: options.AsJson = False
) -> None:
    """Show a data set: parts, positives, size, hash, licence."""
    output = Output(as_json=as_json)
    task = _named_task(name, root=root, imratio=imratio, seed=seed)
    inputs = "images" if len(task.source.shape) == 3 else "rows of features"
    output.result(f"{printable(task.name)}: {len(task):,} {inputs}, {_size_text(task.source.shape)}")
    counts, in_no_part = _counts(task), len(task) - sum(map(len, task.parts.values()))
    output.columns(
        ("part", "label", "rows", "positives", "share"),
        [
            (part, label, f"{one['rows']:,}", f"{one['positives']:,}", _share_text(one["share"]))
            for part, labels in counts.items()
            for label, one in labels.items()
        ],
    )
    if in_no_part:
        output.result(f"in no part: {counted(in_no_part, 'row')}")
    output.result(f"data hash: {task.data_hash()}")
    about = {}
    if name in CATALOGUE:
        one = CATALOGUE[name]
        about = {"label 1": one.positive, "licence": one.licence, "citation": one.citation, "to get it": one.get}
    for key, value in about.items():
        output.result(f"{key}: {value}")
    shape = list(task.source.shape)
    output.record(
        {"name": task.name, "shape": shape, "parts": counts, "in_no_part": in_no_part, "data_hash": task.data_hash()}
        | about
    )


@app.command()
def check(
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="CSV or TSV (also .gz) or Parquet file.")],
    label_column: Annotated[list[str], options.LABELS],
    image_column: options.ImageColumn = None,
    feature_column: options.FeatureColumns = None,
    group_column: options.GroupColumn = None,
    split_column: options.SplitColumn = None,
    weight_column: options.WeightColumn = None,
    id_column: options.IdColumn = None,
    metadata_column: options.MetadataInputs = None,
    category_column: options.CategoryColumns = None,
    positive: options.Positive = None,
    allow_outside: options.AllowOutside = False,
    as_json: options.AsJson = False,
) -> None:
    """Check a table and its images before training.

    It decodes every image. Problems name the line of the file; the exit code is then 2.
    """
    output = Output(as_json=as_json)
    metadata = bool(metadata_column or category_column)
    if (image_column is not None and feature_column) or not (image_column or feature_column or metadata):
        raise ValueError(
            "name the column of image files (--image-column), or numeric columns (--feature-column), or patient data "
            "(--metadata-column)."
        )
    with output.progress(f"Checking {table.name}") as advance:
        report = check_table(
            table,
            label_columns=label_column,
            kind=_kind(label_column),
            image_column=image_column,
            feature_columns=feature_column or (),
            group_column=group_column,
            id_column=id_column,
            split_column=split_column,
            weight_column=weight_column,
            positive=positive,
            metadata_columns=metadata_column or (),
            category_columns=category_column or (),
            allow_outside=allow_outside,
            progress=advance,
        )
    if report.sizes:
        report = replace(report, cautions=(*report.cautions, *_shrinking(report.sizes)))
    # Without a column of parts all rows are in train, which would read as if nothing were left to test on.
    show_summary(output, report if split_column else replace(report, parts={}))
    output.record(report_record(report))
    if report.problems:
        every_row = len({one.row for one in report.problems} - {None}) == report.rows
        refuse_table(output, report.problems, may_skip=True, every_row=every_row, skip="train --skip-bad")


@app.command(cls=ShortHelp)
def pack(
    source: Annotated[str, typer.Argument(metavar="TABLE|NAME", help="A table's file, or a name from `data list`.")],
    out: Out,
    label_column: Annotated[list[str] | None, options.LABELS] = None,
    image_column: options.ImageColumn = None,
    feature_column: options.FeatureColumns = None,
    group_column: options.GroupColumn = None,
    split_column: options.SplitColumn = None,
    weight_column: options.RareWeightColumn = None,
    id_column: options.RareIdColumn = None,
    metadata_column: options.MetadataColumns = None,
    size: Annotated[str | None, typer.Option(metavar="HxW", help="Resize images; 224 means 224x224.")] = None,
    positive: options.RarePositive = None,
    skip_bad: options.RareSkipBad = False,
    allow_outside: options.RareAllowOutside = False,
    imratio: Imratio = None,
    seed: Seed = None,
    root: Root = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing packed set.")] = False,
    as_json: options.AsJson = False,
    help_all: Annotated[bool, HELP_ALL] = False,
) -> None:
    """Decode the images of a table or data set once, for fast training."""
    del help_all  # it has shown itself by now
    output = Output(as_json=as_json)
    require_output_folder(out)
    if out.exists() and not overwrite:
        raise ValueError(f"--out {out} exists already: name another folder, or replace it with --overwrite.")
    skipped: tuple[int, ...] = ()
    if Path(source).is_file():
        if not label_column:
            raise ValueError("name the column of labels, for example --label-column target.")
        if image_column is None and not feature_column:
            raise ValueError("name an image column (--image-column) or numeric columns (--feature-column).")
        if size is not None and image_column is None:
            raise ValueError("--size needs --image-column: without it there are no images to resize.")
        if root is not None:
            raise ValueError("--root is the folder of named data sets, and this is a table: leave --root out.")
        _require_use_of(seed, imratio=imratio)
        try:
            with output.progress(f"Checking {Path(source).name}") as advance:
                task, report = read_table(
                    source,
                    label_columns=label_column,
                    kind=_kind(label_column),
                    image_column=image_column,
                    feature_columns=feature_column or (),
                    group_column=group_column,
                    id_column=id_column,
                    split_column=split_column,
                    weight_column=weight_column,
                    positive=positive,
                    metadata_columns=metadata_column or (),
                    size=None if size is None else options.parse_size(size, option="--size"),
                    skip_bad=skip_bad,
                    allow_outside=allow_outside,
                    progress=advance,
                )
        except TableError as error:
            refuse(output, error, may_skip=not skip_bad)
        skipped = report.skipped
        task = task if imratio is None else imbalanced(task, imratio=imratio, seed=seed or 0)
    else:
        columns = (label_column, image_column, feature_column, group_column, id_column, split_column, weight_column)
        if any((*columns, metadata_column, size, positive, skip_bad, allow_outside)):
            raise ValueError(f"{source} is not a table: leave out the options about columns.")
        task = _named_task(source, root=root, imratio=imratio, seed=seed)
    with output.progress(f"Packing {counted(len(task), 'row')}") as advance:
        packed = pack_task(task, out, overwrite=overwrite, progress=advance)
    byte_count = sum(file.stat().st_size for file in packed.folder.iterdir())
    if skipped:
        output.result(f"Rows left out because of a problem: {', '.join(map(str, skipped))}")
    output.result(f"packed {counted(len(task), 'row')}, {byte_count / 1e6:,.1f} MB: {packed.folder}")
    output.result(f"data hash: {task.data_hash()}")
    output.record(
        {
            "folder": str(packed.folder),
            "rows": len(task),
            "shape": list(task.source.shape),
            "bytes": byte_count,
            "skipped": list(skipped),
            "data_hash": task.data_hash(),
        }
    )


@app.command()
def export(
    name: NameArgument,
    out: Out,
    imratio: Imratio = None,
    seed: Seed = None,
    part: Parts = None,
    root: Root = None,
    as_json: options.AsJson = False,
) -> None:
    """Write a data set as PNG files and a table.

    `deepauc train --table DIR/table.csv` trains on them.
    """
    output = Output(as_json=as_json)
    require_output_folder(out)
    task = _named_task(name, root=root, imratio=imratio, seed=seed)
    with output.progress(f"Exporting {printable(task.name)}") as advance:
        exported = export_task(task, out, parts=part, progress=advance)
    counts = ", ".join(f"{name} {rows:,}" for name, rows in exported.parts.items())
    output.result(f"wrote {exported.table} ({counts})")
    output.result(f"to train on it: {_train_command(exported)}")
    output.record(
        {**asdict(exported), "table": str(exported.table), "task": task.name, "source_data_hash": task.data_hash()}
    )


def _named_task(name: str, *, root: Path | None, imratio: float | None, seed: int | None) -> Task:
    _require_use_of(seed, imratio=imratio)
    if root is not None and name not in CATALOGUE and Path(name).is_dir():
        raise ValueError(f"--root is the folder of named data sets, and {name} is a folder itself: leave it out.")
    task = load_named(name, root=root)
    return task if imratio is None else imbalanced(task, imratio=imratio, seed=seed or 0)


def _require_use_of(seed: int | None, *, imratio: float | None) -> None:
    if seed is not None and imratio is None:
        raise ValueError("--seed chooses which positives --imratio keeps: add --imratio, or leave out --seed.")


def _counts(task: Task) -> dict[str, dict[str, dict[str, Any]]]:
    """part -> label -> rows, positives, and the positives' share of the known labels (None where none is known)."""
    counts: dict[str, dict[str, dict[str, Any]]] = {}
    for part in task.parts:
        labels = task.labels[task.part(part)].reshape(-1, task.num_labels)
        counts[part] = {
            name: {
                "rows": len(labels),
                "positives": int((labels[:, place] == 1).sum()),
                "share": None if np.isnan(share) else float(share),
            }
            for place, (name, share) in enumerate(zip(task.label_names, task.positive_share(part), strict=True))
        }
    return counts


def _shrinking(sizes: Mapping[tuple[int, int], int]) -> tuple[str, ...]:
    """A caution where `deepauc train` on this machine would shrink the images very much."""
    from deepauc.training.engine.loop import chosen_device
    from deepauc.training.plan.network import planned_size

    size = planned_size(sizes, "cpu" if chosen_device(None).type == "cpu" else "cuda")
    caution = None if size is None else shrinking_caution(sizes, size)
    return () if caution is None else (caution,)


def _kind(label_columns: Sequence[str]) -> Kind:
    return "multilabel" if len(label_columns) > 1 else "binary"


def _train_command(exported: Exported) -> str:
    words = ["deepauc", "train", "--table", str(exported.table), "--image-column", exported.image_column]
    for name in exported.label_columns:
        words += ["--label-column", name]
    if exported.group_column is not None:
        words += ["--group-column", exported.group_column]
    if exported.weight_column is not None:
        words += ["--weight-column", exported.weight_column]
    return shlex.join([*words, "--split-column", exported.split_column, "--out", "DIR"])


def _size_text(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


def _share_text(share: float | None) -> str:
    return "-" if share is None else f"{share:.2%}"
