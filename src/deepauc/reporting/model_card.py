"""A model card for Hugging Face from a run's records; every figure stands beside the command that makes it again."""

from __future__ import annotations

import html
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepauc.metrics.intervals import Estimate
from deepauc.reporting.tables import auc_text, markdown_table
from deepauc.training.bundle import Bundle
from deepauc.training.run import Run

NOTICE = (
    "**Not a medical device.** It has not been cleared for any decision about patients. Its figures hold for data like "
    "the table it was judged on; other scanners, clinics and populations can differ."
)


def model_card(run_dir: str | Path) -> str:
    """Markdown with the front matter that Hugging Face reads."""
    run = Run(Path(run_dir))
    record, bundle = run.record, Bundle.load(run_dir)
    sections = [
        f"# {_text(record['task']['name'])}: {_text(', '.join(bundle.label_names))}",
        NOTICE,
        "## What it does\n\n" + _purpose(bundle, record),
        "## Results\n\n" + _results(run, record),
        "## Operating points\n\n" + _thresholds(bundle, run),
        "## Data\n\n" + _data(record),
        "## Training\n\n" + _training(record),
        "## How to use it\n\n" + _usage(bundle),
        "## Where it comes from\n\n" + _provenance(record),
    ]
    return _front_matter(run, record) + "\n" + "\n\n".join(sections) + "\n"


def _front_matter(run: Run, record: Mapping[str, Any]) -> str:
    """YAML; strings as JSON, which is YAML too, so that nothing from the data can break out."""
    results = [
        f"    - type: auc\n      name: {json.dumps(f'AUC, {part}, {label}')}\n      value: {float(e.value):.4f}"
        for part, label, e in _estimates(run, record)
    ]
    name = json.dumps(str(record["task"]["name"]))
    lines = [
        "---",
        "library_name: deepauc",
        "tags:\n- auc-maximisation\n- imbalanced-classification\n- not-a-medical-device",
        "model-index:",
        f"- name: {name}\n  results:\n  - task:\n      type: {_task_type(record)}",
        f"    dataset:\n      type: table\n      name: {name}",
    ]
    return "\n".join([*lines, *(["    metrics:", *results] if results else []), "---", ""])


def _task_type(record: Mapping[str, Any]) -> str:
    return "image-classification" if len(record["task"]["shape"]) == 3 else "tabular-classification"


def _estimates(run: Run, record: Mapping[str, Any]) -> list[tuple[str, str, Estimate]]:
    """(part, label, AUC) of the parts that were not trained on, test first."""
    parts = [part for part in ("test", "validation") if part in record["results"]["auc"]]
    return [(part, label, found) for part in parts for label, found in run.auc(part).items()]


def _purpose(bundle: Bundle, record: Mapping[str, Any]) -> str:
    shape = " x ".join(map(str, bundle.shape))
    inputs = f"an image of {shape} (height, width, channels)" if bundle.preprocessing.images else f"{shape} numbers"
    return (
        f"It gives {inputs} a score for {_text(', '.join(bundle.label_names))}: higher for more likely positive. "
        "Scores rank, they are no probabilities (a recalibration fitted on validation is part of the bundle). The network is "
        f"`{_text(record['recipe']['model']['type'])}`, trained to maximise the area under the ROC curve."
    )


def _results(run: Run, record: Mapping[str, Any]) -> str:
    rows = [
        [part, _text(label), auc_text(float(e.value), float(e.low), float(e.high)), f"`{_evaluate(run, part)}`"]
        for part, label, e in _estimates(run, record)
    ]
    if not rows:
        return "No part was held out: there is no figure to give."
    caution = ""
    if "test" not in record["results"]["auc"]:
        caution = (
            "\n\nThere is no test part: choices may have been made on these rows, so the values are likely too good."
        )
    table = markdown_table(["part", "label", "AUC [95 % interval]", "made again by"], rows)
    return f"{table}\n\nIntervals are DeLong's, on the logit scale.{_guard(record)}{caution}"


def _guard(record: Mapping[str, Any]) -> str:
    guard = record["results"].get("guard")
    if not guard:
        return ""
    names = [stage["objective"]["type"] for stage in record["recipe"]["stages"]]
    aucs = ", ".join(f"{names[int(k)]} {value:.3f}" for k, value in guard["validation_auc"].items())
    return f" Of the stages ({aucs} on validation) the network of {names[guard['winner']]} is kept."


def _thresholds(bundle: Bundle, run: Run) -> str:
    rows = [
        [_text(label), name, f"{value:.6g}"]
        for label, points in bundle.thresholds.items()
        for name, value in points.items()
    ]
    if not rows:
        return "None: there was no validation part to take thresholds from."
    table = markdown_table(["label", "reached on validation", "raw score at least"], rows)
    return f"{table}\n\nWhat they give on held-out rows: `deepauc report {shlex.quote(run.path.name)}`."


def _data(record: Mapping[str, Any]) -> str:
    rows = [[part, f"{count:,}"] for part, count in record["task"]["rows"].items()]
    lines = [markdown_table(["part", "labelled rows"], rows)]
    data = record.get("data") or {}
    for label, positives in (data.get("positives") or {}).items():
        known = positives + data["negatives"][label]
        lines.append(f"- {_text(label)}: {positives:,} of {known:,} positive ({positives / max(1, known):.2%})")
    if data.get("groups") is not None:
        lines.append(f"- patients: {data['groups']:,}")
    leaks = record.get("leaks")
    if leaks is not None:
        found = ", ".join(f"{count:,} x the same {kind}" for kind, count in leaks.items())
        lines.append(f"- in two parts: {found or 'nothing found'} (`deepauc data check`)")
    lines.append(f"- SHA-256 of the data: `{record['identity']['data']}`")
    return lines[0] + "\n\n" + "\n".join(lines[1:])


def _training(record: Mapping[str, Any]) -> str:
    choices = (record.get("plan") or {}).get("choices") or []
    lines = [f"- {_text(c['name'])}: {_text(c['value'])} ({_text(c['reason'])})" for c in choices]
    command = record.get("command")
    if command:
        lines.append(f"- trained by: `{_code(command)}`")
    lines.append(f"- seed {record['identity']['seed']}; {_text(record['hardware'])}")
    return "\n".join(lines)


def _usage(bundle: Bundle) -> str:
    column = "--image-column file" if bundle.preprocessing.images else "--feature-column a --feature-column b"
    return (
        "`model.safetensors` and `bundle.json` are all that is needed (`deepauc export RUN --bundle DIR`):\n\n"
        f"```\npip install deepauc\ndeepauc predict DIR --table new.csv {column} --out scores.csv\n```"
    )


def _provenance(record: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    return "\n".join(
        [
            f"- recipe, SHA-256: `{record['identity']['recipe']}`",
            f"- code, SHA-256: `{record['code_version']}`",
            f"- versions: {_text(versions)}",
        ]
    )


def _evaluate(run: Run, part: str) -> str:
    return f"deepauc evaluate {shlex.quote(f'{run.path.name}/scores.csv')} --part {part}"


def _text(value: Any) -> str:
    """What comes from data, on one line and without a meaning in markdown or HTML."""
    line = " ".join(str(value).split())
    return "".join("\\" + letter if letter in "\\`*_[]|#" else letter for letter in html.escape(line, quote=False))


def _code(value: str) -> str:
    return " ".join(value.split()).replace("`", "'")
