"""`deepauc demo`: the paper's toy and the bundled digits, in minutes on a CPU, without the network."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deepauc.cli.console import Output

if TYPE_CHECKING:
    from deepauc.paper.digits import DigitsSettings
    from deepauc.paper.toy import ToySettings


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the report, the pictures and the record.")] = Path(
        "demo-output"
    ),
    seed: Annotated[int, typer.Option(min=0, help="The first seed of both parts.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say only where the files are.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON and nothing else.")] = False,
) -> None:
    """The paper's Figure 1 and four losses on scikit-learn's digits: pictures, tables and a record."""
    from deepauc.paper.digits import DigitsSettings
    from deepauc.paper.toy import ToySettings

    write_demo(
        out,
        toy=ToySettings(first_seed=seed),
        digits=DigitsSettings(first_seed=seed),
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


def write_demo(out: Path, *, toy: ToySettings, digits: DigitsSettings, output: Output) -> dict[str, Any]:
    """Run both parts, write demo.md, demo.json and the pictures into `out`, and return the record."""
    import torch

    from deepauc.training.folder import surroundings

    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file: name a folder, which is made if it is not there.")
    out.mkdir(parents=True, exist_ok=True)
    with _one_thread():
        parts = {"toy": _toy_part(out, toy, output), "digits": _digits_part(out, digits, output)}
        made_by = surroundings(torch.device("cpu"))
    total = sum(part.seconds for part in parts.values())
    pictures = [picture for part in parts.values() for picture in part.pictures]
    record = {
        **made_by,
        "seed": toy.first_seed,
        "seconds": {**{name: part.seconds for name, part in parts.items()}, "total": total},
        **{name: part.record for name, part in parts.items()},
        "files": ["demo.md", "demo.json", *(picture.name for picture in pictures)],
    }
    (out / "demo.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    versions = ", ".join(f"{name} {version}" for name, version in made_by["versions"].items())
    report = ["# deepauc demo", f"`deepauc demo --seed {toy.first_seed}`, {total:.0f} s on one thread, {versions}."]
    for number, part in enumerate(parts.values(), start=1):
        report += [f"## {number}. {part.title}", part.section]
    (out / "demo.md").write_text("\n\n".join(report) + "\n", encoding="utf-8")
    output.say(f"Finished in {total:.0f} s.")
    output.result(f"Report: {out / 'demo.md'}")
    output.result(f"Pictures: {', '.join(map(str, pictures))}")
    output.result(f"Record: {out / 'demo.json'}")
    output.record(record)
    return record


def _toy_part(out: Path, settings: ToySettings, output: Output) -> Part:
    from deepauc.paper import toy_report
    from deepauc.paper.toy import run_toy

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
        output.say("\n".join(toy_report.findings(result)) + "\n")
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
    from deepauc.paper import digits_report
    from deepauc.paper.digits import run_digits

    start = time.perf_counter()
    title = f"2. Digits at imratio {settings.imratio:.0%}: {settings.seeds} training sets"
    with output.progress(title) as advance:
        result = run_digits(settings, progress=advance)
    dots = digits_report.draw(result, out / "digits-auc.png")
    title = f"Test AUC with DeLong's 95 % interval, {result.train_positives} positives in training"
    output.table(digits_report.header(result), digits_report.rows(result), title=title)
    output.say("\n".join(digits_report.findings(result)) + "\n")
    return Part(
        title="Digits",
        section=digits_report.section(result, picture=dots.name),
        record=digits_report.record(result),
        pictures=(dots,),
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
