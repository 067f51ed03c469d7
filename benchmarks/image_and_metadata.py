"""HAM10000 at 64 px: melanoma by the images, by age, sex and site, and by both, with the commands of docs/metadata.md.

Nothing is set but the columns. Lesions of HAM10000 alone: the images of ISIC 2018 have no metadata. Needs DEEPAUC_DATA.

    python benchmarks/image_and_metadata.py            # writes results/image-and-metadata/ham10000-64.json if missing
    python benchmarks/image_and_metadata.py --table    # only writes results/image-and-metadata.md from that record
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from csv_to_report import RESULTS, Shell, busy_share, interval
from deepauc.training.run.folder import code_text

RECORD = RESULTS / "image-and-metadata" / "ham10000-64.json"
COLUMNS = ("--label-column", "target", "--group-column", "patient_id")
METADATA = ("--metadata-column", "age", "--metadata-column", "sex", "--metadata-column", "site", "--id-column", "file")
AVERAGES = {
    "sigmoid": ("--scale", "sigmoid"),
    "rank": ("--scale", "rank"),
    "learned": ("--weight", "learned"),
}


def export(folder: Path) -> None:
    from deepauc.data.datasets.catalogue import CATALOGUE, data_root
    from deepauc.data.datasets.medical.ham10000 import load_ham10000_sheets
    from deepauc.data.export import export_task

    root = data_root(None)
    assert root is not None, "set DEEPAUC_DATA"
    (path,) = CATALOGUE["ham10000-64"].found(root)
    export_task(load_ham10000_sheets(root / path, division="none", with_2018=False), folder)


def measure() -> dict[str, Any]:
    """Both runs and their means, judged by `evaluate` and `compare`."""
    busy = busy_share()
    with tempfile.TemporaryDirectory() as scratch:
        shell = Shell(Path(scratch))
        export(shell.folder / "ham")
        table, seconds = ("--table", "ham/table.csv"), {}
        words = {"images": ("--image-column", "file"), "metadata": (*METADATA, "--split-of", "images")}
        said = {}
        for name, columns in words.items():
            said[name] = json.loads(
                shell("train", *table, *columns, *COLUMNS, "--out", name, "--device", "cpu", "--json")
            )
            seconds[name] = shell.seconds["train"]
        files = {name: f"{name}/scores.csv" for name in words}
        learned = {}
        for average, how in AVERAGES.items():
            files[f"both, {average}"] = f"{average}.csv"
            fused = ("images", "metadata", *table, *COLUMNS, *how, "--parts", "--out", f"{average}.csv")
            learned = json.loads(shell("predict", *fused, "--device", "cpu", "--json")).get("learned_weights", learned)
        auc, counts, paired = {}, {}, {}
        for name, scores in files.items():
            found = json.loads(shell("evaluate", scores, "--json"))["results"]
            auc[name] = {one["part"]: one["auc"]["delong"] for one in found if one["part"] != "train"}
            counts = {one["part"]: {key: one["counts"][key] for key in ("rows", "positives")} for one in found}
        for name in [name for name in files if name.startswith("both")]:
            (test,) = json.loads(shell("compare", files[name], files["images"], "--json"))["labels"]
            paired[name] = {"difference": test["difference"], "p_value": test["p_value"]}
        records = {name: json.loads((shell.folder / name / "run.json").read_text(encoding="utf-8")) for name in words}
    first = records["images"]
    return {
        "set": "ham10000-64 without ISIC 2018",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commands": shell.typed,
        "wall_seconds": seconds,
        "busy_before": round(busy, 3),
        "cores": len(os.sched_getaffinity(0)),
        "hardware": first["hardware"],
        "counts": counts,
        "networks": {name: record["recipe"]["model"] for name, record in records.items()},
        "epochs": {name: [stage["epochs"] for stage in record["recipe"]["stages"]] for name, record in records.items()},
        "kept": {name: one["kept_objective"] for name, one in said.items()},
        "leaks": {name: one["leaks"] for name, one in said.items()},
        "auc": auc,
        "both_minus_images_on_test": paired,
        "learned_weights": dict(zip(words, learned["target"], strict=True)),
        "seed": first["identity"]["seed"],
        "data_hash": {name: record["identity"]["data"] for name, record in records.items()},
        "versions": first["versions"],
        "commit": first.get("commit"),
        "numerics": first.get("numerics", 1),
    }


def write_table() -> None:
    """results/image-and-metadata.md, from the record alone."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    test = record["counts"]["test"]
    lines = [
        "# Images, metadata, both",
        "",
        "Melanoma in HAM10000 at 64 px, lesions with metadata alone (one image a lesion; its patients are not known).",
        "`deepauc train` cuts the table; nothing is set but the columns; one seed, nothing is pretrained. Both: the",
        "mean of the two scores after a sigmoid, or of their ranks in the whole table, half and half; or of scores",
        "that are standardised, by weights learned on validation (`--weight learned`), so that its AUC there is a bit",
        "too good. DeLong's 95 % interval.",
        "Made by `python benchmarks/image_and_metadata.py`.",
        "",
        f"Test: {test['positives']:,} melanomas of {test['rows']:,}.",
        "",
        "| scores | validation AUC | test AUC | test, minus images | p |",
        "| --- | --- | --- | --- | ---: |",
    ]
    for name, auc in record["auc"].items():
        paired = record["both_minus_images_on_test"].get(name)
        gain = f"{interval(paired['difference'], '+')} | {paired['p_value']:.2g}" if paired else " | "
        lines.append(f"| {name} | {interval(auc['validation'])} | {interval(auc['test'])} | {gain} |")
    networks = "; ".join(
        f"{name}: {record['networks'][name]['type']}, {' + '.join(map(str, record['epochs'][name]))} epochs, "
        f"{record['kept'][name]} kept, {record['wall_seconds'][name]:.0f} s with the report"
        for name in record["networks"]
    )
    weights = ", ".join(f"{name} {weight:.2f}" for name, weight in record["learned_weights"].items())
    lines += ["", f"Learned weights: {weights}."]
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    lines += [
        "",
        f"{networks}. {record['hardware']} of {record['cores']} cores, {record['busy_before']:.0%} of them busy.",
    ]
    lines += ["", f"{record['date'][:10]}; {code_text(record)}; {versions}.", ""]
    (RESULTS / "image-and-metadata.md").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true")
    if not parser.parse_args().table and not RECORD.exists():
        RECORD.parent.mkdir(parents=True, exist_ok=True)
        RECORD.write_text(json.dumps(measure(), indent=1) + "\n", encoding="utf-8")
    write_table()
