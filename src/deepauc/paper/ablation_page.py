"""results/ablations.md: each claim of section 5 beside what the records say, and the margins of A6."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from deepauc.paper.ablation_tasks import SET
from deepauc.paper.ablations import Claim, ablations, claims
from deepauc.paper.benchmark_tables import CELLS
from deepauc.paper.recipes import RECIPES
from deepauc.paper.study_figures import picture_links
from deepauc.paper.toy import mean_interval
from deepauc.reporting.tables import markdown_table, percent_text
from deepauc.studies.records import Record, RecordBook

PAPER_MARGINS = {"C2": 0.7, "C10": 0.8, "S10": 0.7, "C100": 0.5}  # A6: average best m


def page(results: Path) -> str:
    """The whole page as markdown."""
    book = RecordBook(results / SET)
    rows = [row for claim in claims() if (row := _claim_row(claim, book)) is not None]
    runs = [
        _study_row(study.name, records) for study in ablations().studies if (records := book.final(study.name))
    ]  # fmt: skip
    missing = [study.name for study in ablations().studies if not book.final(study.name)]
    parts = [
        "# The paper's ablations",
        "Made by `deepauc study table ablations` from `results/ablations/` (A2 to A5) and `results/paper-tables/` "
        "(A6). Test AUC of the last epoch over the training sets that both sides have, paired, with a 95 % t-interval; "
        "a claim is confirmed or refuted where the interval leaves out 0. Cat&Dog has other pixels than the paper's. "
        "A1 is `deepauc study table toy`.",
        "## Claims",
        markdown_table(("ablation", "claim", "sets", "difference [95 %]", "verdict", "alpha = 0"), rows)
        if rows
        else "No pair of studies has records yet.",
    ]
    if runs:
        header = ("study", "test AUC", "sets", "positives in training", "network", "alpha = 0", "seconds", "cut")
        parts += ["## Runs", markdown_table(header, runs)]
    margins = _margins(RecordBook(results / "paper-tables"))
    if margins:
        parts += [
            "## A6: the margin",
            "Average of the selected m over the cells of a set, beside the paper's average over its trials.",
            markdown_table(("set", "recipe", "paper", "ours", "cells"), margins),
        ]
    if missing:
        parts += ["## Not run", ", ".join(f"`{name}`" for name in missing)]
    return "\n\n".join([*parts, *picture_links(results, SET)]) + "\n"


def difference(claim: Claim, book: RecordBook) -> tuple[list[int], list[float]]:
    """Training sets that both studies have, and test AUC of the better minus the worse on each."""
    better, worse = (
        {record["seed"]: record["auc"]["test"][0] for record in book.final(name)}
        for name in (claim.better, claim.worse)
    )
    common = sorted(set(better) & set(worse))
    return common, [better[seed] - worse[seed] for seed in common]


def _claim_row(claim: Claim, book: RecordBook) -> list[str] | None:
    common, values = difference(claim, book)
    if len(common) < 2:
        return None
    found = mean_interval(np.array(values))
    verdict = "confirmed" if found.low > 0 else "refuted" if found.high < 0 else "open"
    shares = [r["alpha_zero_share"] for r in book.final(claim.better) if r["alpha_zero_share"] is not None]
    shown = f"{found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"
    zero = percent_text(fmean(shares)) if shares else "-"
    return [claim.ablation, claim.text, str(len(common)), shown, verdict, zero]


def _study_row(name: str, records: Sequence[Record]) -> list[str]:
    values = [record["auc"]["test"][0] for record in records]
    shares = [record["alpha_zero_share"] for record in records if record["alpha_zero_share"] is not None]
    positives = [sum(record["score_histogram"]["train"]["positive"]) for record in records]
    rows = [record["task"]["rows"]["train"] for record in records]
    return [
        name,
        f"{fmean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else ""),
        str(len(values)),
        percent_text(sum(positives) / sum(rows)),
        ", ".join(sorted({record["fixed"]["network"] for record in records})),
        percent_text(fmean(shares)) if shares else "-",
        f"{fmean(record['seconds'] for record in records):.0f}",
        "; ".join(dict.fromkeys(_cut(record["cut"]) for record in records)) or "-",
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
