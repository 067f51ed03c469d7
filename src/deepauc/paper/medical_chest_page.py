"""Chest X-rays: by disease, at once and apart, ensembles, readers beaten, uncertain labels, the cost of five labels."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import numpy.typing as npt

from deepauc.metrics.auroc import auroc
from deepauc.metrics.comparison import compare_auroc
from deepauc.metrics.intervals import auroc_interval
from deepauc.metrics.mean_interval import MeanInterval, mean_interval
from deepauc.paper.medical_cells import comparison_text
from deepauc.paper.medical_readers import disease_ensembles
from deepauc.paper.medical_scores import RESAMPLES, read_scores
from deepauc.paper.recipes import TITLES
from deepauc.reporting.tables import auc_text, markdown_table
from deepauc.studies.record_file import read_named
from deepauc.studies.records import RecordBook

PAGE_TITLES = {
    "chexpert": "CheXpert",
    "chest": "Chest X-rays of NIH",
    "chest-printed": "Chest X-rays of NIH, CheXpert's settings as printed",
}
HEADINGS = {"chest-printed": "## Chest X-rays: five labels, CheXpert's settings as printed"}
LOSSES = ("ce", "focal", "auc_s", "auc_m")
PAPER = (
    "The paper on CheXpert's hidden test part, which is other data: .9305, 2.8 of 3 radiologists beaten; others .9065 "
    "(1.8), .9289 (2.8), .9299 (2.6), AUC-S .922. ChestMNIST (14 labels, 28 px): .768, .706 to .716 for AUC-M of "
    "LibAUC's users."
)


def chest_page(results: Path, *, name: str) -> str:
    """results/NAME.md; `medical` has the sections of the stand-ins, too."""
    sections = chest_sections(results, name) or [f"Not run yet: `deepauc study run {name}`."]
    return "\n\n".join([f"# {PAGE_TITLES[name]}", f"Made by `deepauc study table {name}`.", *sections]) + "\n"


def chest_sections(results: Path, *names: str) -> list[str]:
    """Markdown of these studies; nothing where no run is recorded."""
    parts = [part for name in names for part in _study_sections(results, name)]
    return parts + _cost(results) if parts else []


def _study_sections(results: Path, name: str) -> list[str]:
    """Runs with other settings come after those of the study itself."""
    parts = _sections(results, name)
    for other in RecordBook(results / name).others():
        if own := _sections(results, f"{name}/{other}"):
            parts += [f"## With {other.replace(',', ', ').replace('=', ' ')}", *own[1:]]
    return parts


def _sections(results: Path, name: str) -> list[str]:
    """Of one set of records, its own heading first."""
    book = RecordBook.of(results, name)
    records = [record for study in book.studies() for record in book.final(study)]
    second = [record for record in records if "loss" in record]
    if not second:
        return []
    labels = _labels(records)
    machines = ", ".join(sorted({record["hardware"] for record in records}))
    about = (
        f"{len(records)} runs on {machines}. Stage 1: cross-entropy on the five labels at once. Stage 2 from there, "
        "with a fresh classifier: `at once`, one network for all labels; `apart`, a network for each. Test AUC, mean ± "
        "standard deviation over seeds and networks. `minus CE`: of the mean over labels, run by run, 95 % t-interval. "
        "`ensemble, mean`: all runs' scores, with TTA where there is any, averaged after a sigmoid; mean over labels."
    )
    if any(record.get("hard_policy") for record in second):
        policy = next(record["hard_policy"] for record in second if record.get("hard_policy"))
        about += " Uncertain labels in stage 2: " + ", ".join(f"{key} {value}" for key, value in policy.items()) + "."
    if views := {record["views"] for record in second if "views" in record}:
        networks = dict.fromkeys(record["network"] for record in second)
        about += f" Views: {', '.join(sorted(views))}. Networks: {', '.join(networks)}."
    rows = [_row(second, labels, loss, apart) for apart in (False, True) for loss in LOSSES]
    header = ("stage 2", "loss", *labels, "mean", "minus CE", "ensemble, mean", "readers beaten")
    beaten = _readers(results / name / "readers.json")
    filled = [
        [*row, beaten.get(f"{loss}, {text}", "-")] for row, (loss, text) in zip(rows, _keys(), strict=True) if row
    ]
    parts = [HEADINGS.get(name, "## Chest X-rays: five labels"), PAPER, about]
    parts.append(markdown_table(header, filled) if filled else "No loss has runs of all labels yet.")
    parts += _in_no_row(second, labels)
    parts += _ensemble_tables(second, labels)
    return parts + _policies(records)


def _in_no_row(records: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> list[str]:
    """Run by run, the labels of a network and seed that has not yet all of them with this loss."""
    whole = {(loss, run) for loss in LOSSES for run in _by_run(records, labels, loss, True)}
    rows = [
        [record["study"], str(record["seed"]), *(f"{label} {value:.3f}" for label, (value, *_) in auc.items())]
        for record in records
        if len(auc := record["auc"]["test"]) == 1 and (record["loss"], (record["network"], record["seed"])) not in whole
    ]
    if not rows:
        return []
    return ["Runs of single labels, as long as a network has not all of them:",
            markdown_table(("run", "seed", "test AUC"), rows)]  # fmt: skip


def _labels(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """In the order of a run on all of them; where there is none, those that have a run of their own."""
    whole = next((r for r in records if r["labels"] == "all"), None)
    return list(dict.fromkeys(label for r in ([whole] if whole else records) for label in r["auc"]["test"]))


def _keys() -> list[tuple[str, str]]:
    return [(loss, text) for text in ("all at once", "each disease") for loss in LOSSES]


def _row(records: Sequence[Mapping[str, Any]], labels: Sequence[str], loss: str, apart: bool) -> list[str]:
    """One loss; empty where a label has no run."""
    own = _by_run(records, labels, loss, apart)
    if not own:
        return []
    columns = [[values[number] for values in own.values()] for number in range(len(labels))]
    means = {run: fmean(values) for run, values in own.items()}
    base = {run: fmean(values) for run, values in _by_run(records, labels, "ce", apart).items()}
    common = sorted(set(means) & set(base))
    difference = "-"
    if loss != "ce" and len(common) > 1:
        found = mean_interval(np.array([means[run] - base[run] for run in common]))
        difference = f"{found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"
    ensemble = disease_ensembles(records, labels, loss, apart=apart)
    together = f"{fmean(float(auroc(*both)) for both in ensemble):.3f}" if ensemble else "-"
    return [
        "apart" if apart else "at once",
        TITLES[loss],
        *(_spread(column) for column in columns),
        _spread(list(means.values())),
        difference,
        together,
    ]


def _ensemble_tables(records: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> list[str]:
    """The ensembles disease by disease, with intervals, and each loss beside CE on the same images."""
    values, drawn, differences = [], [], []
    for apart in (False, True):
        stage = "apart" if apart else "at once"
        base = disease_ensembles(records, labels, "ce", apart=apart)
        groups = _groups(records, labels, apart)
        for loss in LOSSES:
            found = disease_ensembles(records, labels, loss, apart=apart)
            if not found:
                continue
            shown = [auroc_interval(*both, groups=g) for both, g in zip(found, groups, strict=True)]
            values.append(
                [stage, TITLES[loss], *(auc_text(float(e.value), float(e.low), float(e.high)) for e in shown)]
            )
            by_draws = [
                auroc_interval(*both, groups=g, method="bootstrap", n_resamples=RESAMPLES)
                for both, g in zip(found, groups, strict=True)
            ]
            drawn.append([stage, TITLES[loss], *(f"[{float(e.low):.3f}, {float(e.high):.3f}]" for e in by_draws)])
            if base and loss != "ce":
                pairs = zip(found, base, groups, strict=True)
                tests = [compare_auroc(mine[0], other[0], mine[1], groups=g) for mine, other, g in pairs]
                differences.append([stage, TITLES[loss], *(comparison_text(test) for test in tests)])
    if not values:
        return []
    parts = [
        "### Ensembles by disease",
        "DeLong 95 %, clustered by patient.",
        markdown_table(("stage 2", "loss", *labels), values),
        "The same by the bootstrap (BCa, whole patients drawn):",
        markdown_table(("stage 2", "loss", *labels), drawn),
    ]
    if differences:
        parts += ["Minus CE, paired, clustered by patient:", markdown_table(("stage 2", "loss", *labels), differences)]
    return parts


def _groups(
    records: Sequence[Mapping[str, Any]], labels: Sequence[str], apart: bool
) -> list[npt.NDArray[np.int64] | None]:
    """Patients of the images that have a label, disease by disease."""
    found: list[npt.NDArray[np.int64] | None] = []
    for number, label in enumerate(labels):
        wanted = label if apart else "all"
        test = next((read_scores(r) for r in records if r.get("labels") == wanted), None)
        if test is None or test.groups is None:
            found.append(None)
            continue
        truth = test.labels if apart else test.labels[:, number]
        found.append(test.groups[~np.isnan(truth)])
    return found


def mean_by_run(results: Path, name: str) -> dict[str, MeanInterval]:
    """AUC-M minus CE, of the mean over labels, over runs: all at once, and each disease apart."""
    book = RecordBook(results / name)
    second = [r for study in book.studies() for r in book.final(study) if "loss" in r]
    labels = _labels(second)
    found = {}
    for text, apart in (("at once", False), ("apart", True)):
        own, base = (_by_run(second, labels, loss, apart) for loss in ("auc_m", "ce"))
        common = sorted(set(own) & set(base)) if labels else []
        if len(common) > 1:
            found[text] = mean_interval(np.array([fmean(own[run]) - fmean(base[run]) for run in common]))
    return found


def _by_run(
    records: Sequence[Mapping[str, Any]], labels: Sequence[str], loss: str, apart: bool
) -> dict[tuple[str, int], list[float]]:
    """(network, seed) -> plain test AUC of each label; only runs that have all of them."""
    found: dict[tuple[str, int], dict[str, float]] = {}
    for record in records:
        if record["loss"] == loss and (record["labels"] != "all") == apart:
            values = {label: value for label, (value, *_) in record["auc"]["test"].items()}
            found.setdefault((record["network"], record["seed"]), {}).update(values)
    return {run: [v[label] for label in labels] for run, v in found.items() if set(v) >= set(labels)}


def _spread(values: Sequence[float]) -> str:
    return f"{fmean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


def _readers(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    counts = json.loads(path.read_text(encoding="utf-8"))
    total = counts["readers"]
    found = {}
    for key, value in counts.items():
        if isinstance(value, dict):
            read = sum(count is not None for count in value["per_label"])
            some = "" if read == len(value["per_label"]) else f" ({read} label{'s' * (read > 1)} read)"
            found[key] = f"{value['mean']:.1f} of {total}{some}"
    return found


def _policies(records: Sequence[Mapping[str, Any]]) -> list[str]:
    by_policy: dict[str, dict[int, float]] = {}
    for record in records:
        if "policy" in record:
            test = read_scores(record)
            by_policy.setdefault(record["policy"], {})[record["seed"]] = float(np.mean(auroc(test.plain, test.labels)))
    if not by_policy:
        return []
    share = next(record["masked_share"] for record in records if "policy" in record)
    base = by_policy.get("ignore", {})
    rows = []
    for policy, values in by_policy.items():
        common = sorted(set(values) & set(base))
        shown = "-"
        if policy != "ignore" and len(common) > 1:
            found = mean_interval(np.array([values[seed] - base[seed] for seed in common]))
            shown = f"{found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"
        rows.append([policy, _spread(list(values.values())), str(len(values)), shown])
    text = (
        f"Of each label {share:.0%} of the training positives, and as many negatives, are marked as uncertain by the "
        "run's seed; CE then AUC-M, all labels at once. Smoothed policies are for CE; stage 2 takes their hard form. "
        "Mean test AUC over the labels."
    )
    table = markdown_table(("policy", "mean AUC", "seeds", "minus ignore"), rows)
    return ["## Uncertain labels", text, table]


def _cost(results: Path) -> list[str]:
    """The benchmark's record, where it has been run."""
    rows = []
    for name, record in sorted(read_named(results / "speed.jsonl").items()):
        for row in record["rows"] if name.startswith("multi-label-") else ():
            cells = [record["hardware"], row["network"], row["single_ms"], row["five_ms"], row["ratio"]]
            rows.append([cells[0], cells[1], *(f"{value:.3g}" for value in cells[2:])])
    if not rows:
        return []
    header = ("machine", "network", "one label, ms", "five labels, ms", "ratio")
    text = "A training step of AUC-M and PESG, five labels at once against one: `python benchmarks/multi_label.py`."
    return ["## What five labels cost", text, markdown_table(header, rows)]
