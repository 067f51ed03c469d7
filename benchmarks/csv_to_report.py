"""BreastMNIST and PneumoniaMNIST from png + csv to the report on the CPU, by the commands a user would type.

Nothing is set but the columns: network, lengths and stages are the plan's own. A third table is there for the time that
folds take: PneumoniaMNIST without its parts and all but the first 150 healthy children. Needs DEEPAUC_DATA.

    python benchmarks/csv_to_report.py            # runs what is missing, writes results/csv-to-report/*.json
    python benchmarks/csv_to_report.py --table    # only writes results/csv-to-report.md from those records
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deepauc.training.run.folder import code_text

RESULTS = Path(__file__).resolve().parent.parent / "results"
SETS = ("breastmnist", "pneumoniamnist")
FOLDS, HEALTHY = "pneumoniamnist-folds", 150
NAMES = {"CrossEntropy": "CE", "AUCMargin": "AUC-M"}
BUSY = 0.1  # share of the cores at work before the start: above it others were there, and the wall time is too long


def busy_share(seconds: float = 2.0) -> float:
    """Of the cores this may use, over a moment (Linux). A load average would still remember its own last run."""
    mine = {f"cpu{core}" for core in os.sched_getaffinity(0)}

    def ticks() -> tuple[int, int]:
        lines = [line.split() for line in Path("/proc/stat").read_text(encoding="utf-8").splitlines()]
        columns = [[int(n) for n in line[1:9]] for line in lines if line[0] in mine]
        return sum(map(sum, columns)), sum(core[3] + core[4] for core in columns)  # all; idle and waiting for a disk

    before = ticks()
    time.sleep(seconds)
    total, idle = (now - then for now, then in zip(ticks(), before, strict=True))
    return 1 - idle / total


class Shell:
    """Runs commands in one folder and keeps what was typed and how long it took."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.typed, self.seconds = folder, [], {}

    def __call__(self, *words: str) -> str:
        self.typed.append(shlex.join(["deepauc", *words]))
        print("$", self.typed[-1], flush=True)
        began = time.monotonic()
        program = [sys.executable, "-m", "deepauc_command"]
        done = subprocess.run([*program, *words], cwd=self.folder, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{self.typed[-1]}: exit code {done.returncode}\n{done.stderr}")
        self.seconds[words[0]] = round(time.monotonic() - began, 1)
        return done.stdout


def run_folds() -> dict[str, Any]:
    """Export, keep few of the rarer class, train in folds."""
    busy = busy_share()
    with tempfile.TemporaryDirectory() as scratch:
        shell = Shell(Path(scratch))
        exported = json.loads(shell("data", "export", "pneumoniamnist", "--out", "set", "--json"))
        image, label = exported["image_column"], exported["label_columns"][0]
        with (shell.folder / "set" / "table.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        sick, healthy = ([row for row in rows if float(row[label]) == value] for value in (0, 1))
        kept = sick + healthy[:HEALTHY]
        with (shell.folder / "set" / "few.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, (image, label), extrasaction="ignore")
            writer.writeheader()
            writer.writerows(kept)
        columns = ["--image-column", image, "--label-column", label]
        said = json.loads(
            shell("train", "--table", "set/few.csv", *columns, "--out", "run", "--device", "cpu", "--json")
        )
        records = [json.loads((shell.folder / "run" / one / "run.json").read_text()) for one in (".", "fold-1")]
    return {
        "set": FOLDS,
        "rows": {"all": len(kept), "rarer": HEALTHY},
        "plan": said["plan"],
        **circumstances(shell, busy, *records),
    }


def run_one(name: str) -> dict[str, Any]:
    """Export, train, and judge both stages with `evaluate` and `compare`."""
    busy = busy_share()
    with tempfile.TemporaryDirectory() as scratch:
        shell = Shell(Path(scratch))
        exported = json.loads(shell("data", "export", name, "--out", name, "--json"))
        table = ["--table", f"{name}/table.csv", "--image-column", exported["image_column"]]
        columns = ["--label-column", exported["label_columns"][0], "--split-column", exported["split_column"]]
        said = json.loads(shell("train", *table, *columns, "--out", "run", "--device", "cpu", "--json"))
        record = json.loads((shell.folder / "run" / "run.json").read_text(encoding="utf-8"))
        stages = [NAMES[stage["objective"]["type"]] for stage in record["recipe"]["stages"]]
        kept = said["kept_stage"]
        files = {stages[0]: "run/baseline/scores.csv", stages[1]: "run/last-stage/scores.csv"}
        files[stages[kept]] = "run/scores.csv"
        auc, counts = {}, {}
        for stage, scores in files.items():
            found = json.loads(shell("evaluate", scores, "--json"))["results"]
            auc[stage] = {one["part"]: one["auc"]["delong"] for one in found if one["part"] != "train"}
            counts = {one["part"]: {key: one["counts"][key] for key in ("rows", "positives")} for one in found}
        paired = {}
        for part in ("validation", "test"):
            words = ("compare", files[stages[1]], files[stages[0]], "--part", part, "--json")
            (test,) = json.loads(shell(*words))["labels"]
            paired[part] = {"difference": test["difference"], "p_value": test["p_value"]}
        size = (shell.folder / "run" / "report.html").stat().st_size
        zero = alpha_zero_share(shell.folder / "run" / "history.csv", stage=1)
    return {
        "set": name,
        "counts": counts,
        "plan": said["plan"],
        "leaks": said["leaks"],
        "kept": stages[kept],
        "auc": auc,
        "paired_auc_stage_minus_ce": paired,
        "alpha_zero_share": zero,
        "report_bytes": size,
        "data_hash": record["identity"]["data"],
        **circumstances(shell, busy, record, record),
    }


def circumstances(shell: Shell, busy: float, record: dict[str, Any], trained: dict[str, Any]) -> dict[str, Any]:
    """What was typed, where, and how long it took; `trained`: the record of a network."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commands": shell.typed,
        "wall_seconds": {"export": shell.seconds["data"], "train_and_report": shell.seconds["train"]},
        "busy_before": round(busy, 3),
        "niceness": os.nice(0),
        "cores": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "hardware": record["hardware"],
        "network": trained["recipe"]["model"],
        "epochs": [stage["epochs"] for stage in trained["recipe"]["stages"]],
        "seed": record["identity"]["seed"],
        "versions": record["versions"],
        "commit": record.get("commit"),
        "numerics": record.get("numerics", 1),
    }


def alpha_zero_share(history: Path, *, stage: int) -> float:
    """Of the steps of a stage on the AUC margin loss: where alpha is 0 the margin is reached."""
    with history.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if int(row["stage"]) == stage]
    return round(sum(float(row["alpha_zero_share"]) for row in rows) / len(rows), 4)


def interval(one: dict[str, float], sign: str = "") -> str:
    return f"{one['value']:{sign}.3f} [{one['low']:{sign}.3f}, {one['high']:{sign}.3f}]"


def write_table() -> None:
    """results/csv-to-report.md, from the records alone."""
    files = [RESULTS / "csv-to-report" / f"{name}.json" for name in (*SETS, FOLDS)]
    timed = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.exists()]
    records = [one for one in timed if one["set"] != FOLDS]
    lines = [
        "# From a csv to the report",
        "",
        "`deepauc data export` writes the sets as png files and a csv; `deepauc train` takes them to the report on the",
        "CPU with nothing set but the columns: network, lengths and stages are the plan's. Official parts, one seed.",
        "AUC with DeLong's 95 % interval from `deepauc evaluate`, the paired test from `deepauc compare`. A run keeps",
        "the stage that is better on validation; test has no say. Made by `python benchmarks/csv_to_report.py`.",
        "",
        "| set | stage | validation AUC | test AUC | kept |",
        "| --- | --- | --- | --- | --- |",
    ]
    for record in records:
        for stage, auc in record["auc"].items():
            kept = "yes" if stage == record["kept"] else ""
            parts = " | ".join(interval(auc[part]) for part in ("validation", "test"))
            lines.append(f"| {record['set']} | {stage} | {parts} | {kept} |")
    lines += [
        "",
        "alpha = 0: share of AUC-M's steps; at 0 % it is the square loss with its margin.",
        "",
        "| set | part | positives of rows | AUC-M - CE | p | alpha = 0 |",
        "| --- | --- | ---: | --- | ---: | ---: |",
    ]
    for record in records:
        for part, test in record["paired_auc_stage_minus_ce"].items():
            counts = record["counts"][part]
            lines.append(
                f"| {record['set']} | {part} | {counts['positives']:,} of {counts['rows']:,} | "
                f"{interval(test['difference'], '+')} | {test['p_value']:.2g} | {record['alpha_zero_share']:.1%} |"
            )
    lines += [
        "",
        f"`{FOLDS}` is PneumoniaMNIST without its parts and all but the first {HEALTHY} healthy children: five folds.",
        "",
        "| set | network, epochs | export | train + report | machine |",
        "| --- | --- | ---: | ---: | --- |",
    ]
    for record in timed:
        seconds = record["wall_seconds"]
        epochs = " + ".join(map(str, record["epochs"]))
        shared = record["busy_before"] > BUSY
        busy = "shared with other programs, so the time is too long" if shared else "idle otherwise"
        lines.append(
            f"| {record['set']} | {record['network']['type']}, {epochs} | {seconds['export']:.0f} s | "
            f"{seconds['train_and_report']:.0f} s | {record['hardware']} of {record['cores']} cores, "
            f"{record['busy_before']:.0%} of them busy before: {busy} |"
        )
    lines.append("")
    for record in timed:
        versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
        lines.append(f"- {record['set']}: {record['date'][:10]}; {code_text(record)}; {versions}.")
    (RESULTS / "csv-to-report.md").write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    (RESULTS / "csv-to-report").mkdir(parents=True, exist_ok=True)
    for name in (*SETS, FOLDS):
        target = RESULTS / "csv-to-report" / f"{name}.json"
        if not options.table and not target.exists():
            found = run_folds() if name == FOLDS else run_one(name)
            target.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    write_table()
