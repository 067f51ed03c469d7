"""`deepauc study`: many runs, one table. Declared in a Python file, run here, told from small records."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deepauc.cli.console import Output
from deepauc.cli.options import AsJson
from deepauc.cli.short_help import HELP_ALL, ShortHelp, rare

if TYPE_CHECKING:
    from deepauc.studies.entry import Entry
    from deepauc.studies.running.runner import Step, StudiesOutcome
    from deepauc.studies.study import Study

app = typer.Typer(rich_markup_mode=None)

File = Annotated[Path, typer.Argument(metavar="FILE", help="Python file that defines STUDIES; it is executed.")]
Name = Annotated[str | None, typer.Argument(metavar="NAME", help="Which study of FILE, if it has several.")]
Results = Annotated[Path, typer.Option(metavar="DIR", help="Folder of records and tables.")]
Cells = Annotated[
    list[str] | None,
    typer.Option("--cells", metavar="CELL", help="Only these cells, such as '*-auc_m' or a,b; repeatable."),
]


@app.callback(invoke_without_command=True)
def study(context: typer.Context) -> None:
    """Run studies declared in a Python file, and print tables."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("list")
def list_studies(file: File, as_json: AsJson = False) -> None:
    """List the studies that FILE declares."""
    from deepauc.studies.load import load_studies

    output = Output(as_json=as_json)
    found = load_studies(file).entries
    counts = {name: entry.run_counts for name, entry in found.items()}
    rows = [
        [name, *(str(count or "-") for count in (len(entry.cells), *counts[name])), entry.title]
        for name, entry in found.items()
    ]
    output.table(["name", "cells", "tuning runs", "final runs", "what"], rows, title="Studies")
    output.record(
        {
            name: {
                "title": entry.title,
                "cells": list(entry.cells),
                "tuning_runs": counts[name][0],
                "final_runs": counts[name][1],
            }
            for name, entry in found.items()
        }
    )


@app.command("run", cls=ShortHelp)
def run_study(
    context: typer.Context,
    file: File,
    name: Name = None,
    cells: Cells = None,
    runs: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the runs.")] = Path("runs"),
    results: Results = Path("results"),
    data: Annotated[
        Path | None, typer.Option("--data", "--root", metavar="DIR", help="Data folder (default: $DEEPAUC_DATA).")
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="cpu or cuda (default: a GPU if there is one).")
    ] = None,
    pack: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Runs trained together (default: GPU up to 24, else 1).")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="Local processes, if --pack is 1.")] = 1,
    max_minutes: Annotated[
        float | None, typer.Option(min=0.01, metavar="M", help="Time limit; run again to resume.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run on Ray: local, auto or HOST:PORT.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(metavar="0,1,...", help="Only these final training sets.")] = None,
    configs: Annotated[int | None, rare("Try at most N settings per grid.", metavar="N", min=1)] = None,
    tune_epochs: Annotated[int | None, rare("Epochs per tuning run.", metavar="N", min=1)] = None,
    tune_sets: Annotated[int | None, rare("Number of training sets to tune on.", metavar="N", min=1)] = None,
    options: Annotated[
        list[str] | None, rare("Change a method's argument; repeatable.", "--set", metavar="KEY=VALUE")
    ] = None,
    curves: Annotated[bool, rare("Record the test AUC after each epoch of final runs.", "--curves")] = False,
    task_gpus: Annotated[
        float | None, rare("GPUs per task on Ray; with 0.5 two tasks share one.", metavar="X", min=0)
    ] = None,
    task_cpus: Annotated[int, rare("CPUs per task on Ray.", metavar="N", min=1)] = 1,
    retries: Annotated[int, rare("Retries of a task on Ray whose worker was lost.", metavar="N", min=0)] = 3,
    quiet: Annotated[bool, rare("Print only the result.", "--quiet")] = False,
    as_json: AsJson = False,
    help_all: Annotated[bool, HELP_ALL] = False,
) -> None:
    """Train the runs that are not recorded yet. Run again to resume."""
    del help_all  # it has shown itself by now
    from dataclasses import replace

    from deepauc.cli.study_parts import (
        refuse_what_does_not_apply,
        refuse_without_cluster,
        refuse_without_effect,
    )
    from deepauc.studies.decoded import telling
    from deepauc.studies.load import load_studies
    from deepauc.studies.records.book import RecordBook
    from deepauc.studies.running.cluster import Cluster
    from deepauc.studies.running.missing import weights_not_here
    from deepauc.studies.running.runner import run_studies
    from deepauc.studies.sources import Place, is_for_choosing
    from deepauc.studies.study import cut_all

    output, entry = Output(quiet=quiet, as_json=as_json), load_studies(file).find(name)
    place = Place(data=data, runs=runs, results=results)
    if entry.own is not None:
        refuse_what_does_not_apply(context, entry.name)
        record = entry.own.run(place)
        _write_page(entry, results, output)
        output.record(record)
        return
    assert entry.studies is not None
    if cluster is None:
        refuse_without_cluster(context)
    cuts: dict[str, int | None] = {"configs": configs, "tune_epochs": tune_epochs, "tune_sets": tune_sets}
    studies, changes, only = entry.studies, _options(options or []), None if seeds is None else _numbers(seeds)
    if entry.varied is not None:
        studies, changes, only = entry.varied(changes, only), {}, None
    chosen = studies.chosen(_split(cells))
    parents = studies.parents(chosen)
    refuse_without_effect(chosen, parents, **cuts, seeds=seeds, curves=curves)
    chosen, parents = (cut_all(some, **cuts, options=changes) for some in (chosen, parents))
    if entry.settled is not None:
        chosen, further = entry.settled(chosen, results)
        parents += further
    if curves:
        chosen = tuple(replace(one, test_curve=True) for one in chosen)
    if only is not None:
        chosen = tuple(one if is_for_choosing(one.task) else replace(one, seeds=_declared(one, only)) for one in chosen)
    tasks = None if cluster is None else Cluster(address=cluster, gpus=task_gpus, cpus=task_cpus, retries=retries)
    output.say(_announcement(entry, chosen))
    for message in weights_not_here(chosen, RecordBook.of(results, studies.name)) if tasks is None else ():
        output.say(message)
    with telling(output.say), _told(output) as report:
        outcome = run_studies(
            studies.name,
            chosen,
            place=place,
            parents=parents,
            device=device,
            pack=entry.pack if pack is None else pack,
            jobs=jobs,
            max_minutes=max_minutes,
            cluster=tasks,
            report=report,
        )
    _finish(outcome, output)
    if not (outcome.done or outcome.failed) and chosen and {one.name for one in chosen} <= set(outcome.unavailable):
        raise typer.Exit(2)  # nothing could be run: the page stays as it is
    entry.finish(place, studies.name)
    if entry.page_after_run and not outcome.out_of_time:
        _write_page(entry, results, output)
    if outcome.failed:
        raise typer.Exit(1)


@app.command("status")
def status(
    file: File,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Which study of FILE (default: all).")] = None,
    cells: Cells = None,
    results: Results = Path("results"),
    as_json: AsJson = False,
) -> None:
    """Show how many runs of each study are recorded.

    Separate columns count runs of another numerics version, cut runs and outdated runs.
    """
    from deepauc.studies.load import load_studies
    from deepauc.studies.records.book import RecordBook
    from deepauc.studies.records.status import status_of

    output, declared = Output(as_json=as_json), load_studies(file)
    record: dict[str, Any] = {}
    for entry in [declared.find(name)] if name else declared.entries.values():
        if entry.own is not None:
            path = entry.own.path(results)
            record[entry.name] = {"recorded": path.exists()}
            output.result(f"{entry.name}: recorded runs: {int(path.exists())} of 1, in {path}")
            continue
        assert entry.studies is not None
        chosen = entry.studies.chosen(_split(cells))
        parents: tuple[Study, ...] = ()
        if entry.settled is not None:
            chosen, parents = entry.settled(chosen, results)
        found = status_of(entry.studies, chosen, results, parents=parents)
        record[entry.name] = [vars(one) for one in found]
        begun = [one for one in found if one.tuned or one.final or one.outdated or name]
        rows = [
            [
                *(one.study, f"{one.tuned} of {one.to_tune}", f"{one.final} of {one.seeds}"),
                *map(str, (one.failed, one.other, one.cut, one.outdated)),
            ]
            for one in begun
        ]
        if rows:
            header = ["study", "tuning runs", "final runs", "failed", "other numerics", "cut", "outdated"]
            output.table(header, rows, title=f"{entry.name}: {entry.title}")
            if any(one.cut for one in begun):
                output.say(
                    "Cut: runs with fewer settings, epochs or training sets than declared; `study table` says which."
                )
            if any(one.outdated for one in begun):
                output.say("Outdated: records that no declared study needs any more; no other column counts them.")
        else:
            output.result(f"{entry.name}: no records in {results / entry.name}.jsonl")
        for other in RecordBook(results / entry.name).others():
            book = RecordBook(results / entry.name, other=other)
            count = sum(len(book.final(study)) for study in book.studies())
            output.result(f"{entry.name}, with {other}: {count} recorded in {book.path}")
    output.record(record)


@app.command("table")
def table(
    file: File,
    name: Name = None,
    results: Results = Path("results"),
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only where the files are.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a study's results page from its records, and print it.

    The page is RESULTS/NAME.md; its pictures lie beside it.
    """
    from deepauc.studies.load import load_studies

    output = Output(quiet=quiet, as_json=as_json)
    output.record(_write_page(load_studies(file).find(name), results, output))


def _write_page(entry: Entry, results: Path, output: Output) -> dict[str, Any]:
    """RESULTS/NAME.md and its pictures, told; the record of both."""
    from deepauc.studies.records.tables import update_summary
    from deepauc.training.run.output_file import write_atomically

    path = results / f"{entry.name}.md"
    endings = ("", ".json", ".jsonl")
    if path.exists() and not any((results / f"{entry.name}{ending}").exists() for ending in endings):
        raise ValueError(f"{path} exists, but {results} holds no record to make it from: is it the right folder?")
    pictures = entry.pictures(results)  # first: the page shows those that are there
    text = entry.markdown(results)
    results.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (text.rstrip() + "\n").encode())
    output.say(text)
    figures = entry.figures(results)
    summary = [update_summary(results, figures)] if figures else []
    for written in (path, *pictures, *summary):
        output.result(f"Written: {written}")
    return {"table": str(path), "pictures": [str(picture) for picture in pictures], "text": text}


def _split(cells: list[str] | None) -> list[str]:
    return [cell for given in cells or [] for cell in given.split(",") if cell]


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--seeds takes whole numbers separated by commas, such as 0,1,2, not {text!r}.") from None


def _declared(study: Study, wanted: tuple[int, ...]) -> tuple[int, ...]:
    """ValueError for training sets that are not the study's: their runs would count in its tables."""
    if others := sorted(set(wanted) - set(study.seeds)):
        there = ", ".join(map(str, study.seeds))
        raise ValueError(f"--seeds {', '.join(map(str, others))}: {study.name} has the final training sets {there}.")
    return wanted


def _options(given: list[str]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for option in given:
        key, sign, text = option.partition("=")
        if not sign or not key:
            raise ValueError(f"--set takes KEY=VALUE, such as epochs=60, not {option!r}.")
        above, slash, below = text.partition("/")
        try:
            changes[key] = int(above) / int(below) if slash else json.loads(text)  # gamma=1/300, as papers print it
        except (ValueError, ZeroDivisionError):
            changes[key] = text
    return changes


def _announcement(entry: Entry, chosen: Sequence[Study]) -> str:
    from deepauc.studies.entry import tuning_and_final

    tuning, final = tuning_and_final(chosen)
    studies = "1 study" if len(chosen) == 1 else f"{len(chosen)} studies"
    return f"{entry.name}: {studies}; tuning runs: {tuning}, final runs: {final}. Recorded runs are not run again."


@contextmanager
def _told(output: Output) -> Iterator[Callable[[Step], None]]:
    """A bar in a terminal; elsewhere one line a run."""
    if output.quiet or output.as_json or not sys.stdout.isatty():
        yield lambda step: output.say(_line(step))
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console()) as bar:  # see `Output.progress`
        task = bar.add_task("first runs", total=None)

        def report(step: Step) -> None:
            bar.console.print(step.text, markup=False, highlight=False)
            bar.update(task, description=_left(step), completed=step.done, total=step.done + step.left)

        yield report


def _line(step: Step) -> str:
    return f"[{step.seconds / 60:.1f} min, {step.done} done, {_left(step)}] {step.text}"


def _left(step: Step) -> str:
    time = "" if step.seconds_left is None else f", about {step.seconds_left / 60:.1f} min"
    return f"{step.left} left in this group{time}"


def _finish(outcome: StudiesOutcome, output: Output) -> None:
    for text, message in outcome.failed:
        output.result(f"Failed: {text}: {message}")
    for name, message in outcome.unavailable.items():
        output.result(f"Not run: {name}: {message}")
    ending = " The time limit was reached. Run the same command again to resume." if outcome.out_of_time else ""
    output.result(f"Runs recorded: {outcome.done}, in {outcome.seconds / 60:.1f} min.{ending}")
    output.record(vars(outcome))
