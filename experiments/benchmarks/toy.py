"""A1, the paper's Figure 1, as the study `toy` of experiments/paper.py: its record and pictures, on a CPU."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from deepauc.demo import toy_report
from deepauc.demo.toy import ToySettings, run_toy
from deepauc.studies.entry import Entry, WholeRun
from deepauc.studies.sources import Place
from deepauc.training.run.folder import surroundings
from deepauc.training.run.output_file import write_atomically

NAME = "toy"


def record_path(results: Path) -> Path:
    return results / NAME / "toy.json"


def run(place: Place, settings: ToySettings | None = None) -> dict[str, Any]:
    """Both variants of the figure, raw scores and behind a sigmoid, over all seeds; a record that is there stays."""
    path, start, raw_settings = record_path(place.results), time.monotonic(), settings or ToySettings()
    folder = path.parent
    if path.exists():
        return json.loads(path.read_text(encoding="utf-8"))
    folder.mkdir(parents=True, exist_ok=True)
    raw, bounded = run_toy(raw_settings), run_toy(replace(raw_settings, sigmoid=True, lr=0.1))
    pictures = [
        toy_report.draw_boundaries(raw, folder / "boundaries.png"),
        toy_report.draw_paths(raw, folder / "paths.png"),
    ]
    section = toy_report.section(
        raw, bounded, boundaries_picture=f"{NAME}/{pictures[0].name}", paths_picture=f"{NAME}/{pictures[1].name}"
    )
    record = {
        **surroundings(torch.device("cpu")),
        "seconds": round(time.monotonic() - start, 1),
        "raw": toy_report.record(raw),
        "sigmoid": toy_report.record(bounded),
        "section": section,
    }
    write_atomically(path, (json.dumps(record, indent=1) + "\n").encode())
    return record


def page(results: Path) -> str:
    """The section on the figure, from the record."""
    path = record_path(results)
    if not path.exists():
        return "# Figure 1 (A1)\n\nNot run yet: `deepauc study run experiments/paper.py toy`.\n"
    record = json.loads(path.read_text(encoding="utf-8"))
    made = f"Made by `deepauc study run experiments/paper.py toy`; {record['seconds']:.0f} s on {record['hardware']}."
    return f"# Figure 1 (A1)\n\n{made}\n\n{record['section']}\n"


ENTRY = Entry(
    name=NAME,
    title="The paper's Figure 1 (A1): easy points and flipped labels in the plane, 20 seeds, on a CPU",
    own=WholeRun(run=run, path=record_path),
    table=page,
    pictures=lambda results: sorted((results / NAME).glob("*.png")),
)
