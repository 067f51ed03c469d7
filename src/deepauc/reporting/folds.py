"""What a report says of cross-validation: the result in a sentence, the candidates, the folds, the thresholds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from deepauc.metrics.folds import auroc_by_fold, fold_auroc_interval, labels_with_pairs
from deepauc.metrics.intervals import Estimate
from deepauc.metrics.operating_points import operating_point
from deepauc.reporting.document.background_sections import leak_texts
from deepauc.reporting.document.blocks import (
    Block,
    Caution,
    DataTable,
    Document,
    Headline,
    Paragraph,
    Section,
    TableCell,
    shown,
)
from deepauc.reporting.evaluation.findings import AucResult, RunFindings
from deepauc.reporting.figures.label import interval_text, signed_text
from deepauc.text_tables import percent_text
from deepauc.training.run.fold_record import FoldsRecord, KeptCandidate
from deepauc.training.run.operating import thresholds_of
from deepauc.training.run.scores import OOF, Scores
from deepauc.training.trivial import TITLES

SINGLE_NETWORKS = (
    "This AUC judges the networks of the single folds on rows that they were not trained on, not the average of all "
    "networks, which is what `predict` uses; and it holds for these folds."
)
NOMINAL = (
    "Thresholds are the scores at which the held-out rows reach a specificity or a sensitivity. They come from the "
    "networks of single folds; the average of all networks, which `predict` uses, was not judged at them. On six small "
    "data sets with a test part the average reached what was asked for in the mean, but on single tables it was some "
    "percentage points off in either direction. Check them on labelled rows of your own: `deepauc evaluate` with "
    "`--table`."
)
NAMES = {
    "ce": "cross-entropy",
    "ce_auc_m": "cross-entropy, then AUC-M",
    "average": "the average of both",
    "metadata": "metadata",
    **TITLES,
}


@dataclass(frozen=True, kw_only=True)
class FoldAuc:
    """The mean AUC within folds of one label."""

    label: str
    folds: int
    rows: int
    positives: int
    auc: Estimate[float]


def fold_aucs(table: Scores) -> list[FoldAuc]:
    """Of the held-out rows of a table, label by label; a label that no fold can judge is left out."""
    rows = table.part(OOF)
    assert rows.folds is not None
    found = []
    for j, label in enumerate(rows.label_names):
        known = ~np.isnan(rows.labels[:, j])
        scores, labels, folds = rows.scores[known, j], rows.labels[known, j], rows.folds[known]
        if known.any() and labels_with_pairs(labels, folds).any():
            groups = None if rows.groups is None else rows.groups[known]
            auc = fold_auroc_interval(scores, labels, folds, groups=groups).floats()
            count = len(np.unique(folds))
            found.append(FoldAuc(label=label, folds=count, rows=len(labels), positives=int(labels.sum()), auc=auc))
    return found


def candidate_text(name: str) -> str:
    """`cross-entropy, then AUC-M` of `ce_auc_m`, and so of two that are averaged."""
    return " with ".join(NAMES.get(one, one) for one in name.split(" with "))


def verdict(folds: FoldsRecord) -> list[str]:
    """The result in sentences; the first one says where the network is not clearly better than a trivial baseline."""
    choice = folds.choice
    assert choice is not None
    name = candidate_text(choice.kept)
    if choice.with_trivial is not None:
        name = f"{name}, averaged with {candidate_text(choice.with_trivial)}"
    over = f"mean over {len(choice.aucs)} labels, " if len(choice.aucs) > 1 else ""
    result = f"AUC {interval_text(choice.auc)} ({over}{len(folds.names)} folds; kept: {name})"
    if choice.lead is None or choice.trivial is None:
        return [result]
    lead = signed_text(choice.lead)
    other = candidate_text(choice.trivial)
    if not choice.clearly_better:
        return [f"The network is not clearly better than {other}: AUC {lead}.", result]
    return [result, f"The network is better than {other} by {lead}."]


def with_folds(document: Document, findings: RunFindings, table: Scores) -> Document:
    """The document of a run with what cross-validation has found in place of its first sections."""
    folds = findings.record.folds
    assert folds is not None
    assert folds.choice is not None
    own = (_result(findings, folds, folds.choice), _candidates(folds.choice), _folds(table, folds), _thresholds(table))
    kept = tuple(section for section in document.sections if section.anchor not in ("result", "baseline"))
    return replace(document, sections=(*own, *kept))


def _result(findings: RunFindings, folds: FoldsRecord, choice: KeptCandidate) -> Section:
    first, *rest = verdict(folds)
    what = "mean AUC over labels" if len(choice.aucs) > 1 else f"AUC · {shown(next(iter(choice.aucs), ''))}"
    blocks: list[Block] = [
        Headline(
            value=f"{choice.auc.value:.3f}",
            label=f"{what}, within {len(folds.names)} folds",
            details=(f"95 % interval {choice.auc.low:.3f} to {choice.auc.high:.3f}",),
        )
    ]
    sentence = Caution(first) if choice.clearly_better is False else Paragraph(first)
    blocks += [sentence, *map(Paragraph, rest), Paragraph(SINGLE_NETWORKS)]
    if len(choice.aucs) > 1:
        rows = tuple((TableCell(shown(label)), _auc_cell(auc)) for label, auc in choice.aucs.items())
        header = ("Label", "AUC [95 % interval]")
        blocks.append(DataTable(caption="Labels, mean AUC within folds", header=header, rows=rows))
    for label in findings.labels:
        if isinstance(label.auc, AucResult):
            text = f"{label.part} part, {shown(label.name)}: AUC {interval_text(label.auc.headline)}"
            blocks.append(Paragraph(f"{text} of the average of all networks."))
    blocks += [Caution(text) for text in (*folds.cautions, *leak_texts(findings.leaks), *findings.notes)]
    return Section(anchor="result", title="Result", blocks=tuple(blocks))


def _candidates(choice: KeptCandidate) -> Section:
    rows = tuple(
        (
            TableCell(candidate_text(row.candidate)),
            TableCell(shown(row.label)),
            _auc_cell(row.auc),
            TableCell(f"{row.seconds:,.0f} s", row.seconds),
            TableCell("kept" if row.kept else "trivial baseline" if row.trivial else ""),
        )
        for row in choice.board
    )
    header = ("Candidate", "Label", "AUC [95 % interval]", "Training time", "")
    why = (
        f"The default is {candidate_text(choice.default)}. Another candidate replaces it only if its AUC is higher by "
        "more than one paired standard error. The AUC above is corrected for this choice; those in the table are not."
    )
    table = DataTable(caption="Mean AUC within folds", header=header, rows=rows)
    return Section(anchor="candidates", title="Candidates", blocks=(Paragraph(why), table))


def _folds(table: Scores, folds: FoldsRecord) -> Section:
    rows_of = table.part(OOF)
    assert rows_of.folds is not None
    cells = []
    for number, name in enumerate(folds.names):
        own = rows_of.rows(rows_of.folds == name)
        for j, label in enumerate(table.label_names):
            known = ~np.isnan(own.labels[:, j])
            scores, labels = own.scores[known, j], own.labels[known, j]
            auc = float(auroc_by_fold(scores, labels, np.zeros(len(labels)))[0]) if known.any() else float("nan")
            cells.append(
                (
                    TableCell(shown(name), number),
                    TableCell(shown(label)),
                    TableCell(f"{len(labels):,}", len(labels)),
                    TableCell(f"{int(labels.sum()):,}", float(labels.sum())),
                    TableCell("—") if np.isnan(auc) else TableCell(f"{auc:.3f}", auc),
                )
            )
    header = ("Fold", "Label", "Rows", "Positives", "AUC")
    found = DataTable(caption="Each fold, by the network that did not see it", header=header, rows=tuple(cells))
    return Section(anchor="folds", title="Folds", blocks=(found,))


def _thresholds(table: Scores) -> Section:
    rows_of, cells = table.part(OOF), []
    for j, label in enumerate(table.label_names):
        known = ~np.isnan(rows_of.labels[:, j])
        scores, labels = rows_of.scores[known, j], rows_of.labels[known, j]
        if len(np.unique(labels)) < 2:
            continue
        for asked, cut in thresholds_of(scores, labels).items():
            point = operating_point(scores, labels, cut)
            cells.append(
                (
                    TableCell(shown(label)),
                    TableCell(asked),
                    TableCell(f"{cut:.4g}", cut),
                    *(TableCell(percent_text(one), one) for one in map(_value, (point.sensitivity, point.specificity))),
                )
            )
    header = ("Label", "Asked for", "Threshold (log odds)", "Nominal sensitivity", "Nominal specificity")
    caption = "On the held-out rows of all folds"
    blocks = (Caution(NOMINAL), DataTable(caption=caption, header=header, rows=tuple(cells)))
    return Section(anchor="thresholds-folds", title="Thresholds", blocks=blocks)


def _value(share: Estimate[Any]) -> float:
    return float(share.value)


def _auc_cell(auc: Estimate[float]) -> TableCell:
    return TableCell(interval_text(auc), auc.value)
