"""results/speed.md from the records in results/speed.jsonl, and nothing else.

python benchmarks/summary.py [fast-step.json ...]    # records that a benchmark wrote with --json come in first, by name
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from deepauc.studies.records.file import append, read_named
from deepauc.training.run.folder import code_text

RESULTS = Path(__file__).resolve().parent.parent / "results"
RECORDS = RESULTS / "speed.jsonl"


def load(name: str) -> dict[str, Any] | None:
    return read_named(RECORDS).get(name)


def origin(record: dict[str, Any]) -> str:
    hardware = ", ".join(record["hardware"].values())
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    return f"{hardware}; {versions}; {record['date'][:10]}; {code_text(record)}."


def fast_step_table(record: dict[str, Any]) -> list[str]:
    rows = record["rows"]
    theirs = {row["model"]: row["step_ms"] for row in rows if row["engine"] == "libauc"}
    cross_entropy = {(r["model"], r["engine"], r["runs"]): r["step_ms"] for r in rows if r["loss"] == "CE"}
    lines = [
        "| network | loss | engine | runs side by side | ms a step and run | LibAUC's over it | over CE's "
        "| start-up, s | memory, GB |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        libauc = theirs[row["model"]] / row["step_ms_a_run"] if row["model"] in theirs else None
        ce = cross_entropy.get((row["model"], row["engine"], row["runs"]))
        shown = [
            f"{libauc:.1f}x" if libauc and row["engine"] != "libauc" else "-",
            f"{row['step_ms'] / ce:.3f}" if ce and row["loss"] != "CE" else "-",
            f"{row['start_up_s']:.0f}" if "start_up_s" in row else "-",
            f"{row['memory_gb']:.1f}" if "memory_gb" in row else "-",
        ]
        named = f"| {row['model']} | {row['loss']} | {row['engine']} | {row['runs']} | {row['step_ms_a_run']:.3f} | "
        lines.append(named + " | ".join(shown) + " |")
    return lines


def fast_step_history_table(record: dict[str, Any]) -> list[str]:
    lines = ["| convolutions | network | loss | engine | runs side by side | ms a step and run |"]
    lines.append("|---|---|---|---|---:|---:|")
    for part in record["sets"]:
        for row in part["rows"]:
            lines.append(
                f"| {part['what']} | {row['model']} | {row['loss']} | {row['engine']} | {row['runs']} "
                f"| {row['step_ms_a_run']:.2f} |"
            )
    return lines


def throughput_table(record: dict[str, Any]) -> list[str]:
    """Whatever a row has of: size, batch, engine, seed, time, images a second, memory, test AUC."""
    columns = {
        "what": str,
        "size": str,
        "batch": str,
        "engine": str,
        "seed": str,
        "step_ms": "{:.2f}".format,
        "images_a_second": "{:,.0f}".format,
        "memory_gb": "{:.2f}".format,
        "start_up_s": "{:.0f}".format,
        "seconds": "{:.0f}".format,
        "test_auc": "{:.3f}".format,
    }
    lines = ["| " + " | ".join(columns).replace("_", " ") + " |", "|" + "---|" * len(columns)]
    for row in record["rows"]:
        shown = [show(row[name]) if row.get(name) is not None else "-" for name, show in columns.items()]
        lines.append("| " + " | ".join(shown) + " |")
    return lines


def same_result_table(record: dict[str, Any]) -> list[str]:
    """Test AUC of both engines by seed, and the mean of what the fast one has more, with its standard error."""
    found: dict[int, dict[str, float]] = {}
    for row in record["rows"]:
        found.setdefault(row["seed"], {})[row["engine"]] = row["test_auc"]
    more = [both["fast"] - both["plain"] for both in found.values()]
    error = statistics.stdev(more) / len(more) ** 0.5
    lines = [f"{record['rows'][0]['what']}: test AUC.", "", "| seed | plain | fast |", "|---|---:|---:|"]
    lines += [f"| {seed} | {both['plain']:.3f} | {both['fast']:.3f} |" for seed, both in found.items()]
    return [*lines, "", f"Fast less plain: {statistics.mean(more):+.4f}, standard error {error:.4f}."]


def tile_table(record: dict[str, Any]) -> list[str]:
    """Rows of taps, and the tiles from the fastest packed on."""
    lines = [
        f"{record['unit'].capitalize()}.",
        "",
        "| channels | what | tile | alone | packed |",
        "|---:|---|---|---:|---:|",
    ]
    groups: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in record["rows"]:
        groups.setdefault((row["channels"], row["kind"]), []).append(row)
    for (channels, kind), rows in groups.items():
        for row in sorted(rows, key=lambda row: row["packed"]):
            tile = row["tile"] or {"rows of taps": ""}
            named = ", ".join(f"{name} {value}".strip() for name, value in tile.items())
            lines.append(f"| {channels} | {kind} | {named} | {row['alone']:.1f} | {row['packed']:.1f} |")
    return lines


def first_stage_table(record: dict[str, Any]) -> list[str]:
    """ResNet20 on as many images as C10 at 1 % has, two views."""
    lines = ["| epochs | batch | runs side by side | seconds a run | one epoch, compilation included |"]
    lines.append("|---:|---:|---:|---:|---:|")
    for row in record["rows"]:
        times = f"{row['seconds_a_run']:.1f} | {row['seconds_of_one_epoch']:.1f}"
        lines.append(f"| {row['epochs']} | {row['batch']} | {row['packed']} | {times} |")
    return lines


ENGINE = (
    ("fast-step", "A whole training step on one GPU", fast_step_table),
    ("fast-step-tiles", "The same step of ResNet20 with convolutions by tiles", fast_step_table),
    ("dropout", "DenseNet121 with dropout behind every dense layer", fast_step_table),
    ("objectives-step", "Every objective's step beside cross-entropy's", fast_step_table),
    ("fast-step-history", "The same step on the way there", fast_step_history_table),
    ("throughput", "Beside other people's loops", throughput_table),
    ("lanes", "Fewer streams than runs", fast_step_table),
    ("stacked-resnet", "ResNet20's runs in shared kernels", fast_step_table),
    ("deep-networks", "Deep networks: stacked, compiled, or neither", fast_step_table),
    ("tile-step", "Other tiles, a step", fast_step_table),
    ("tile_conv", "Convolutions by tiles, one by one", tile_table),
    ("first-stage", "A contrastive first stage", first_stage_table),
    ("same-result", "The plain loop and the fast engine", same_result_table),
)


def main() -> None:
    """Take the records in that are named, and write the page."""
    for path in map(Path, sys.argv[1:]):
        append(RECORDS, {"name": path.stem, **json.loads(path.read_text(encoding="utf-8"))})
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    import auroc
    import losses
    import pairwise
    import partial_auc
    import pesg_step

    lines = [
        "# Speed",
        "",
        "Made by `python benchmarks/summary.py` from `results/speed.jsonl`; see `benchmarks/README.md`.",
    ]
    for kind in ("cpu", "gpu"):
        record = load(kind)
        if record is None:
            continue
        lines += ["", f"## One {kind.upper()}", "", origin(record)]
        for module in (losses, pesg_step, auroc, pairwise, partial_auc):
            rows = record["rows"].get(module.__name__)
            if not rows:
                continue
            if module is pairwise:
                table = pairwise.markdown([pairwise.Row(**row) for row in rows])
            else:
                table = module.as_table(rows)
            lines += ["", f"### {module.__name__}", "", table]
    for name, title, module in (
        ("pesg-step-cpu", "PESG step on one CPU, measured again", pesg_step),
        ("partial-auc", "Partial AUC and average precision on one CPU", partial_auc),
        ("auroc-huge", "AUROC to 10^8 scores", auroc),
        ("auroc-gpu", "AUROC on one GPU", auroc),
    ):
        if (record := load(name)) is not None:
            lines += ["", f"## {title}", "", origin(record)]
            lines += ["", record["note"] + "."] if "note" in record else []
            lines += ["", module.as_table(record["rows"][module.__name__])]
    for name, title, table_of in ENGINE:
        if (record := load(name)) is not None:
            lines += ["", f"## {title}", "", origin(record)]
            lines += ["", record["note"]] if "note" in record else []
            lines += ["", *table_of(record)]
    (RESULTS / "speed.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
