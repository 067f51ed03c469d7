"""results/ablations.md: each claim of section 5 beside what the records say, and the margins of A6."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from deepauc.studies.records.book import Record
from deepauc.studies.records.tables import (
    ALPHA_ZERO,
    CUT,
    DIFFERENCE,
    DIVERGED,
    MEAN,
    PAIRS,
    SECONDS,
    SETS,
    VERDICT,
    Books,
    Column,
    Figures,
    Page,
    Row,
    Table,
    between,
    each_once,
    figures_of,
    interval_figures,
    merged,
    share_text,
    study_table,
)
from deepauc.text_tables import percent_text
from experiments.ablation_tasks import SET
from experiments.ablations import ablations, claims
from experiments.benchmark_tables import CELLS
from experiments.recipes import RECIPES

PAPER_MARGINS = {"C2": 0.7, "C10": 0.8, "S10": 0.7, "C100": 0.5}  # A6: average best m
PAPER_MEDICAL_MARGINS = {"Melanoma": 0.8, "CheXpert": 0.8, "DDSM+": 0.5, "PatchCamelyon": 0.7}
# Sets of studies and beginnings of their names: the task itself, and those that stand in for it.
MEDICAL_STUDIES = {
    "Melanoma": (("melanoma", "melanoma-"), ("medical", "ham-"), ("medical", "isic-")),
    "CheXpert": (("chexpert", ""), ("chest", "")),
    "DDSM+": (("ddsm", "ddsm-"), ("medical", "breast-")),
    "PatchCamelyon": (("pcam", "pcam-"), ("medical", "path-")),
}


def _positives(records: list[Record]) -> str:
    positives = sum(sum(record["score_histogram"]["train"]["positive"]) for record in records)
    return percent_text(positives / sum(record["task"]["rows"]["train"] for record in records))


def _margins(books: Books) -> Iterator[list[str]]:
    for benchmark, published in PAPER_MARGINS.items():
        for recipe in RECIPES:
            own = [cell for cell in CELLS if cell.benchmark == benchmark and cell.network == "R"]
            runs = (books("paper-tables").final(cell.study_name(recipe, "auc_m"))[:1] for cell in own)
            if chosen := [record["config"]["margin"] for some in runs for record in some]:
                yield [benchmark, recipe, f"{published:g}", f"{fmean(chosen):.2f}", str(len(chosen))]


def _medical_margins(books: Books) -> Iterator[list[str]]:
    """Of each study of AUC-M that has selected a margin for itself."""
    for task, published in PAPER_MEDICAL_MARGINS.items():
        for set_name, beginning in MEDICAL_STUDIES[task]:
            names = [n for n in books(set_name).studies() if n.startswith(beginning) and n.endswith("-auc_m")]
            for name in names:
                records = books(set_name).final(name)
                selection = (records[0].get("selection") if records else None) or {}
                own = "rule" in selection or "inherited from" not in selection  # stage 1 may be another study's
                if records and own and "margin" in records[0].get("config", {}):
                    chosen = each_once(f"{record['config']['margin']:g}" for record in records)
                    yield [task, f"{published:g}", chosen, set_name, name.removesuffix("-auc_m")]


def _figures(books: Books) -> Figures:
    """ablations.A3-D-noise_1: `auc_m` and `auc_s`, and `auc_m-auc_s`, their paired difference."""
    parts: list[Figures] = []
    for study in ablations().studies:
        if records := books(SET).final(study.name):
            group, _, kind = study.name.rpartition("-")
            parts.append({group: {kind: figures_of(records)}})
    for claim in claims():
        if (found := between(books(SET).final(claim.better), books(SET).final(claim.worse))) is not None:
            group, _, kind = claim.better.rpartition("-")
            parts.append({group: {f"{kind}-{claim.worse.rpartition('-')[2]}": interval_figures(found)}})
    return {"ablations": merged(parts)} if parts else {}


PAGE = Page(
    name=SET,
    title="The paper's ablations",
    note=(
        "Test AUC of the last epoch; D: DenseNet121, R: ResNet20. A claim is confirmed or refuted where the paired 95 "
        "% t-interval leaves out 0. Where alpha is never 0, the margin is never met: AUC-M is the square loss with "
        "margin m, and what sets it apart from AUC-S is m, not the constraint alpha >= 0. Cat&Dog (C2) has other "
        "pixels than the paper's. A1 is on the page of the study `toy`."
    ),
    tables=(
        study_table(
            SET,
            title="Claims",
            labels=("ablation", "claim"),
            rows=tuple(
                Row(labels=(claim.ablation, claim.text), study=claim.better, versus=claim.worse) for claim in claims()
            ),
            columns=(
                Column("network", lambda line: each_once(record["fixed"]["network"] for record in line.final)),
                *(PAIRS, DIFFERENCE, VERDICT, ALPHA_ZERO),
            ),
        ),
        study_table(
            SET,
            title="Runs",
            note=(
                "`alpha = 0`, `alpha < 0`: shares of steps, the latter where alpha of each step was kept. `diverged`: "
                "runs that ended without a test AUC."
            ),
            labels=("study",),
            rows=tuple(Row(labels=(study.name,), study=study.name) for study in ablations().studies),
            columns=(
                *(MEAN, SETS, DIVERGED, Column("positives in training", lambda line: _positives(line.final))),
                Column("network", lambda line: each_once(record["fixed"]["network"] for record in line.final)),
                *(ALPHA_ZERO, Column("alpha < 0", lambda line: share_text(line.final, "alpha_negative_share"))),
                *(SECONDS, CUT),
            ),
        ),
        Table(
            title="A6: the margin",
            note="Average of the selected m over the cells of a set, beside the paper's average over its trials.",
            header=("set", "recipe", "paper", "ours", "cells"),
            lines=_margins,
        ),
        Table(
            title="A6: the margin, medical tasks",
            note="Studies of the set `medical` are on data that stand in for the paper's.",
            header=("task", "paper", "ours", "set", "study"),
            lines=_medical_margins,
        ),
    ),
    figures=_figures,
)
