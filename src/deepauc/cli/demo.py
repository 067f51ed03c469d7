"""`deepauc demo`: the paper's toy, four losses on the bundled digits, a first run of `deepauc train` on them.

In minutes on a CPU, without the network. Again into the same folder, it replaces what it made there and nothing else.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deepauc.cli import demo_first_run
from deepauc.cli.console import Output
from deepauc.cli.demo_first_run import FirstRunSettings

if TYPE_CHECKING:
    from deepauc.data.export import Exported
    from deepauc.demo.digits import DigitsSettings
    from deepauc.demo.toy import ToySettings


def demo(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for the report, the pictures and the record.")
    ] = Path("demo-output"),
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="First random seed of each part.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only where the files are.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the result, as JSON.")] = False,
) -> None:
    """Show what deepauc does, on bundled data, in a few minutes.

    It draws the paper's Figure 1, compares four losses on scikit-learn's digits, and runs `deepauc train` from a
    table to its report.
    """
    from deepauc.demo.digits import DigitsSettings
    from deepauc.demo.toy import ToySettings

    write_demo(
        out,
        toy=ToySettings(first_seed=seed),
        digits=DigitsSettings(first_seed=seed),
        first_run=FirstRunSettings(seed=seed),
        output=Output(quiet=quiet, as_json=as_json),
    )


@dataclass(frozen=True, kw_only=True)
class Part:
    """What a part of the demo leaves behind."""

    title: str
    section: str
    record: dict[str, Any]
    pictures: tuple[Path, ...]
    seconds: float


def write_demo(
    out: Path, *, toy: ToySettings, digits: DigitsSettings, first_run: FirstRunSettings, output: Output
) -> dict[str, Any]:
    """Run all parts, write demo.md, demo.json, the pictures, the table and the run into `out`; returns the record.

    What an earlier demo left in `out` is replaced. A file in the table's or the run's folder that no demo made stops
    this before anything is done.
    """
    import torch

    from deepauc.demo.digits_table import write_digits_table
    from deepauc.training.run.folder import surroundings
    from deepauc.training.run.output_file import require_output_folder, write_atomically

    require_output_folder(out)
    out.mkdir(parents=True, exist_ok=True)
    demo_first_run.require_replaceable(out / demo_first_run.RUN_FOLDER)
    table = write_digits_table(out / demo_first_run.TABLE_FOLDER)
    with _one_thread():
        parts = {
            "toy": _toy_part(out, toy, output),
            "digits": _digits_part(out, digits, output),
            "first_run": _first_run_part(out, table, first_run, output),
        }
        made_by = surroundings(torch.device("cpu"))
    total = sum(part.seconds for part in parts.values())
    pictures = [picture for part in parts.values() for picture in part.pictures]
    record = {
        **made_by,
        "seed": toy.first_seed,
        "seconds": {**{name: part.seconds for name, part in parts.items()}, "total": total},
        **{name: part.record for name, part in parts.items()},
        "files": ["demo.md", "demo.json", *(picture.name for picture in pictures)],
        "folders": [demo_first_run.TABLE_FOLDER, demo_first_run.RUN_FOLDER],
    }
    write_atomically(out / "demo.json", (json.dumps(record, indent=2) + "\n").encode())
    versions = ", ".join(f"{name} {version}" for name, version in made_by["versions"].items())
    report = ["# deepauc demo", f"`deepauc demo --seed {toy.first_seed}`, {total:.0f} s on one thread, {versions}."]
    for number, part in enumerate(parts.values(), start=1):
        report += [f"## {number}. {part.title}", part.section]
    write_atomically(out / "demo.md", ("\n\n".join(report) + "\n").encode())
    output.say(f"Finished in {total:.0f} s.")
    output.result(f"Report: {out / 'demo.md'}")
    output.result(f"Pictures: {', '.join(map(str, pictures))}")
    output.result(f"Record: {out / 'demo.json'}")
    output.result(f"The first run's report: {out / parts['first_run'].record['report']}")
    output.record(record)
    return record


def _toy_part(out: Path, settings: ToySettings, output: Output) -> Part:
    from deepauc.demo import toy_report
    from deepauc.demo.toy import run_toy

    start = time.perf_counter()
    results = []
    # behind a sigmoid gradients are smaller: the package's usual learning rate
    for number, variant in enumerate((settings, replace(settings, sigmoid=True, lr=0.1))):
        scores = ("raw scores", "scores behind a sigmoid")[number]
        title = (
            f"1{'ab'[number]}. The paper's Figure 1, {scores}: {settings.seeds} seeds, {len(settings.margins)} margins"
        )
        with output.progress(title) as advance:
            result = run_toy(variant, progress=advance)
        for step in toy_report.steps_reported(result):
            title = f"Share of the window that changed side after {step} retraining steps, {scores}"
            output.table(toy_report.HEADER, toy_report.rows(result, step=step), title=title)
        results.append(result)
    raw, bounded = results
    boundaries = toy_report.draw_boundaries(raw, out / "toy-boundaries.png")
    paths = toy_report.draw_paths(raw, out / "toy-paths.png")
    return Part(
        title="Figure 1 of the paper",
        section=toy_report.section(raw, bounded, boundaries_picture=boundaries.name, paths_picture=paths.name),
        record={"raw": toy_report.record(raw), "sigmoid": toy_report.record(bounded)},
        pictures=(boundaries, paths),
        seconds=time.perf_counter() - start,
    )


def _digits_part(out: Path, settings: DigitsSettings, output: Output) -> Part:
    from deepauc.demo import digits_report
    from deepauc.demo.digits import run_digits

    start = time.perf_counter()
    title = f"2. Digits at imratio {settings.imratio:.0%}: {settings.seeds} training sets"
    with output.progress(title) as advance:
        result = run_digits(settings, progress=advance)
    dots = digits_report.draw(result, out / "digits-auc.png")
    title = f"Test AUC with DeLong's 95 % interval, {result.train_positives} positives in training"
    output.table(digits_report.header(result), digits_report.rows(result), title=title)
    return Part(
        title="Digits",
        section=digits_report.section(result, picture=dots.name),
        record=digits_report.record(result),
        pictures=(dots,),
        seconds=time.perf_counter() - start,
    )


def _first_run_part(out: Path, table: Exported, settings: FirstRunSettings, output: Output) -> Part:
    start = time.perf_counter()
    output.say(f"3. A first run: {sum(table.parts.values()):,} digits as png files and {table.table}, then")
    result = demo_first_run.run_first(out, table, settings, output)
    output.say()
    title = "Summary of the first run: AUC with DeLong's 95 % interval"
    output.table(demo_first_run.header(), demo_first_run.rows(result), title=title)
    output.say(demo_first_run.KEPT + "\n")
    output.say(
        f"The same on your own table, with your paths and column names (leave out --epochs):\n{result.command}\n"
    )
    output.say(f"The same from Python:\n{demo_first_run.python_call(result.table)}\n")
    return Part(
        title="A first run, from csv to report",
        section=demo_first_run.section(result, out),
        record=demo_first_run.record(result, out),
        pictures=(),
        seconds=time.perf_counter() - start,
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Networks this small lose more by waiting for a second thread than they gain, above all on a busy machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
