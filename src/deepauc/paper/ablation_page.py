"""results/ablations.md: each claim of section 5 beside what the records say, and the margins of A6."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from deepauc.metrics.mean_interval import mean_interval
from deepauc.paper.ablation_tasks import SET
from deepauc.paper.ablations import Claim, ablations, claims
from deepauc.paper.benchmark_tables import CELLS
from deepauc.paper.recipes import RECIPES
from deepauc.paper.study_figures import picture_links
from deepauc.reporting.tables import markdown_table, percent_text
from deepauc.studies.records import Record, RecordBook
from deepauc.studies.study import Study

PAPER_MARGINS = {"C2": 0.7, "C10": 0.8, "S10": 0.7, "C100": 0.5}  # A6: average best m
PAPER_MEDICAL_MARGINS = {"Melanoma": 0.8, "CheXpert": 0.8, "DDSM+": 0.5, "PatchCamelyon": 0.7}
# Sets of studies and beginnings of their names: the task itself, and those that stand in for it.
MEDICAL_STUDIES = {
    "Melanoma": (("melanoma", "melanoma-"), ("medical", "ham-"), ("medical", "isic-")),
    "CheXpert": (("chexpert", ""), ("chest", "")),
    "DDSM+": (("ddsm", "ddsm-"), ("medical", "breast-")),
    "PatchCamelyon": (("pcam", "pcam-"), ("medical", "path-")),
}


def page(results: Path) -> str:
    """The whole page as markdown."""
    book = RecordBook(results / SET)
    rows = [row for claim in claims() if (row := _claim_row(claim, book)) is not None]
    runs = [
        _study_row(study.name, records) for study in ablations().studies if (records := book.final(study.name))
    ]  # fmt: skip
    missing = [row for study in ablations().studies if (row := _missing_row(study, book)) is not None]
    parts = [
        "# The paper's ablations",
        "Made by `deepauc study table ablations` from `results/ablations.jsonl` (A2 to A5) and "
        "`results/paper-tables.jsonl` and the medical records (A6). Test AUC of the last epoch (or the share of "
        "steps, where a claim is of that) "
        "over the training sets that both sides have, paired, with a 95 % t-interval; a claim is confirmed or refuted "
        "where the interval leaves out 0. Cat&Dog has other pixels than the paper's. A1 is `deepauc study table toy`.",
        "## Claims",
        markdown_table(("ablation", "claim", "network", "sets", "difference [95 %]", "verdict", "alpha = 0"), rows)
        if rows
        else "No pair of studies has records yet.",
        *_alpha_text(book),
    ]
    if runs:
        shares = ("alpha = 0", "alpha < 0")
        header = ("study", "test AUC", "sets", "positives in training", "network", *shares, "seconds", "cut")
        explained = "`alpha = 0`, `alpha < 0`: shares of steps; the latter where alpha of each step was kept."
        parts += ["## Runs", explained, markdown_table(header, runs)]
    margins, medical = _margins(RecordBook(results / "paper-tables")), _medical_margins(results)
    if margins or medical:
        parts.append("## A6: the margin")
    if margins:
        without = ", ".join(name for name in PAPER_MARGINS if name not in {row[0] for row in margins})
        parts += [
            "Average of the selected m over the cells of a set, beside the paper's average over its trials."
            + (f" No m selected yet: {without}." if without else ""),
            markdown_table(("set", "recipe", "paper", "ours", "cells"), margins),
        ]
    if medical:
        without = ", ".join(name for name in PAPER_MEDICAL_MARGINS if name not in {row[0] for row in medical})
        parts += [
            "Medical tasks: the m selected in each study beside the paper's average; studies of the set `medical` are "
            "on data that stand in for the paper's." + (f" No m selected yet: {without}." if without else ""),
            markdown_table(("task", "paper", "ours", "set and study"), medical),
        ]
    if missing:
        parts += [
            "## Not run",
            "Runs of each study as declared (D: DenseNet121, R: ResNet20) that have no test AUC, and what became of "
            "some: with another setting, or diverged (scores that are no numbers any more).",
            markdown_table(("study", "network", "final runs missing", "instead"), missing),
        ]
    return "\n\n".join([*parts, *picture_links(results, SET)]) + "\n"


def difference(claim: Claim, book: RecordBook) -> tuple[list[int], list[float]]:
    """Training sets in which both studies have the claim's measure, and that of the better minus the worse on each.

    By the same network: while the studies are run again with another one (`--set network=S`), the two may differ.
    """
    better, worse = (
        {
            (record["seed"], record["fixed"]["network"]): value
            for record in book.final(name)
            if (value := _measured(claim, record)) is not None
        }
        for name in (claim.better, claim.worse)
    )
    common = sorted(set(better) & set(worse))
    return [seed for seed, _ in common], [better[both] - worse[both] for both in common]


def _measured(claim: Claim, record: Record) -> float | None:
    value: float | None = record["auc"]["test"][0] if claim.measure == "test_auc" else record.get(claim.measure)
    return value


def _claim_row(claim: Claim, book: RecordBook) -> list[str] | None:
    common, values = difference(claim, book)
    if len(common) < 2:
        return None
    found = mean_interval(np.array(values))
    verdict = "confirmed" if found.low > 0 else "refuted" if found.high < 0 else "open"
    shown = f"{found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"
    if claim.measure != "test_auc":
        shown = percent_text(found.value, found.low, found.high)
        verdict = verdict if any(values) else "refuted"  # a share that is 0 in every run
    records = book.final(claim.better)
    zero = _share_text([r for r in records if claim.measure == "test_auc"], "alpha_zero_share")
    network = ", ".join(sorted({record["fixed"]["network"] for record in records}))
    return [claim.ablation, claim.text, network, str(len(common)), shown, verdict, zero]


def _alpha_text(book: RecordBook) -> list[str]:
    """What a claim on AUC-M is about where its constraint never held anything back."""
    compared = [claim for claim in claims() if claim.measure == "test_auc" and len(difference(claim, book)[0]) > 1]
    shares = [
        [r["alpha_zero_share"] for r in book.final(claim.better) if r["alpha_zero_share"] is not None]
        for claim in compared
    ]
    never = [some for some in shares if some and not any(some)]
    if not never:
        return []
    return [
        f"alpha was 0 at no step in {len(never)} of {len(compared)} of these comparisons of AUC: the margin was never "
        "met, AUC-M is the square loss with margin m there, and what sets it apart from AUC-S is m, not the constraint "
        "alpha >= 0."
    ]


def _share_text(records: Sequence[Record], name: str) -> str:
    shares = [record[name] for record in records if record.get(name) is not None]
    return percent_text(fmean(shares)) if shares else "-"


def _study_row(name: str, records: Sequence[Record]) -> list[str]:
    values = [record["auc"]["test"][0] for record in records]
    positives = [sum(record["score_histogram"]["train"]["positive"]) for record in records]
    rows = [record["task"]["rows"]["train"] for record in records]
    return [
        name,
        f"{fmean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else ""),
        str(len(values)),
        percent_text(sum(positives) / sum(rows)),
        ", ".join(sorted({record["fixed"]["network"] for record in records})),
        _share_text(records, "alpha_zero_share"),
        _share_text(records, "alpha_negative_share"),
        f"{fmean(record['seconds'] for record in records):.0f}",
        "; ".join(dict.fromkeys(_cut(record["cut"]) for record in records)) or "-",
    ]


def _missing_row(study: Study, book: RecordBook) -> list[str] | None:
    """None where every training set has a record as declared."""
    network, records = study.fixed["network"], book.final(study.name)
    declared = [r for r in records if not r["cut"] and r["fixed"]["network"] == network]
    missing = set(study.seeds) - {record["seed"] for record in declared}
    if not missing:
        return None
    others = [_cut(r["cut"]) or f"network {r['fixed']['network']}" for r in records if r not in declared]
    others += ["diverged" for r in book.diverged(study.name) if r["fixed"]["network"] == network]
    return [
        study.name,
        network,
        f"{len(missing)} of {len(study.seeds)}",
        "; ".join(f"{text}: {others.count(text)}" for text in dict.fromkeys(others)) or "-",
    ]


def _cut(cut: dict[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in cut.items())


def _margins(book: RecordBook) -> list[list[str]]:
    rows = []
    for benchmark, published in PAPER_MARGINS.items():
        for recipe in RECIPES:
            chosen = [
                records[0]["config"]["margin"]
                for cell in CELLS
                if cell.benchmark == benchmark and cell.network == "R"
                if (records := book.final(cell.study_name(recipe, "auc_m")))
            ]
            if chosen:
                rows.append([benchmark, recipe, f"{published:g}", f"{fmean(chosen):.2f}", str(len(chosen))])
    return rows


def _medical_margins(results: Path) -> list[list[str]]:
    """One row a study of AUC-M that has selected a margin for itself."""
    rows = []
    books = {name: RecordBook(results / name) for some in MEDICAL_STUDIES.values() for name, _ in some}
    for task, published in PAPER_MEDICAL_MARGINS.items():
        for set_name, beginning in MEDICAL_STUDIES[task]:
            book = books[set_name]
            for study in book.studies():
                records = book.final(study)
                if not study.startswith(beginning) or not study.endswith("-auc_m") or not records:
                    continue
                selection = records[0].get("selection") or {}
                own = "rule" in selection or "inherited from" not in selection  # stage 1 may be another study's
                if own and "margin" in records[0].get("config", {}):  # runs on chest X-rays tune nothing
                    margins = sorted({record["config"]["margin"] for record in records})
                    shown = ", ".join(f"{margin:g}" for margin in margins)
                    rows.append([task, f"{published:g}", shown, f"`{set_name}`: {study.removesuffix('-auc_m')}"])
    return rows
