"""What a report says of cross-validation alone: the result in a sentence, and the candidates."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from deepauc.metrics.crossval.folds import labels_with_pairs
from deepauc.metrics.intervals import Estimate
from deepauc.metrics.partial import Region
from deepauc.reporting.document.blocks import Block, Caution, DataTable, Paragraph, Section, TableCell, shown
from deepauc.reporting.document.cells import cells, interval_cell, signed_cell
from deepauc.reporting.evaluation.findings import ONLY_IF_ASKED, Absent, PartialAuc, RunFindings
from deepauc.reporting.evaluation.label import partial_auc_of
from deepauc.reporting.evaluation.sample import sample_of
from deepauc.reporting.evaluation.within_folds import part_interval
from deepauc.reporting.figures.label import interval_text, signed_text
from deepauc.training.run.fold_record import FoldsRecord, KeptCandidate
from deepauc.training.run.scores import OOF, Scores
from deepauc.training.trivial import TITLES

SINGLE_NETWORKS = (
    "This AUC judges the networks of the single folds on rows that they were not trained on. It holds for these "
    "folds. It does not judge the average of all networks, which deepauc predict uses."
)
AVERAGE_AT_THRESHOLDS = (
    "The average of all networks, which deepauc predict uses, was not judged at these thresholds. On six small data "
    "sets with a large test part, its mean sensitivity or specificity was within 3 percentage points of what was asked "
    "for; on single tables it was up to 12 points off. Check the thresholds on labelled rows of your own: deepauc "
    "evaluate with --table."
)
THRESHOLDS_OF_FOLDS = (
    "Thresholds are chosen on the held-out rows of all folds. The values reached were counted fold by fold, with "
    f"the network of that fold, at the threshold that the other folds choose. {AVERAGE_AT_THRESHOLDS}"
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
    partial_auc: PartialAuc | Absent | None = field(default=None, metadata=ONLY_IF_ASKED)


def fold_aucs(table: Scores, *, region: Region | None = None) -> list[FoldAuc]:
    """Of the held-out rows of a table, label by label; a label that no fold can judge is left out.

    region: also the partial AUC there.
    """
    rows, found = table.part(OOF), list[FoldAuc]()
    for j, label in enumerate(rows.label_names):
        sample = sample_of(rows, j, part=OOF).labelled()
        assert sample.folds is not None
        if len(sample.labels) and labels_with_pairs(sample.labels, sample.folds).any():
            found.append(
                FoldAuc(
                    label=label,
                    folds=len(np.unique(sample.folds)),
                    rows=len(sample.labels),
                    positives=int(sample.labels.sum()),
                    auc=part_interval(sample),
                    partial_auc=partial_auc_of(sample, region),
                )
            )
    return found


def candidate_text(name: str) -> str:
    """`cross-entropy, then AUC-M` of `ce_auc_m`, and so of two that are averaged."""
    return " with ".join(NAMES.get(one, one) for one in name.split(" with "))


def verdict(folds: FoldsRecord) -> list[str]:
    """The result in sentences; the first one says where the network is not clearly better than a trivial baseline."""
    choice = folds.choice
    assert choice is not None
    name = kept_name(choice)
    over = ""
    if len(choice.aucs) > 1:
        of = f" of {len(choice.aucs)}" if choice.too_few else ""
        over = f"mean over {choice.counted}{of} labels, "
    auc = interval_text(choice.auc)
    if choice.counted == 0:
        auc = "not given, " + "; ".join(choice.too_few.values())
    result = f"AUC {auc} ({over}{len(folds.names)} folds; kept: {name})"
    lead = _lead(choice)
    if lead is None:
        return [result]
    return [result, lead] if choice.clearly_better else [lead, result]


def kept_name(choice: KeptCandidate) -> str:
    name = candidate_text(choice.kept)
    return name if choice.with_trivial is None else f"{name}, averaged with {candidate_text(choice.with_trivial)}"


def _lead(choice: KeptCandidate) -> str | None:
    """The network against the best trivial baseline."""
    if choice.lead is None or choice.trivial is None:
        return None
    lead, other = signed_text(choice.lead), candidate_text(choice.trivial)
    if not choice.clearly_better:
        return f"The network is not clearly better than {other}: AUC difference {lead}."
    return f"The network is better than {other} by {lead}."


def verdict_blocks(findings: RunFindings) -> list[Block]:
    """The result of cross-validation in sentences, and what can mislead; nothing of a run without folds."""
    folds = findings.record.folds
    if folds is None or folds.choice is None:
        return []
    lead = _lead(folds.choice)
    said: list[Block] = [] if lead is None else [(Paragraph if folds.choice.clearly_better else Caution)(lead)]
    return [*said, *map(Caution, folds.cautions)]


def kept_text(findings: RunFindings) -> list[str]:
    """Which candidate was kept, in a line."""
    choice = findings.record.choice
    return [] if choice is None else [f"Kept: {kept_name(choice)}"]


def candidates_section(choice: KeptCandidate, *, folds: bool) -> Section:
    """The leaderboard: networks, their average, trivial baselines."""
    rows = tuple(
        cells(
            *(candidate_text(row.candidate), shown(row.label), interval_cell(row.auc)),
            "-" if row.less_kept is None else signed_cell(row.less_kept),
            TableCell(f"{row.seconds:,.0f} s", row.seconds),
            "kept" if row.kept else "trivial baseline" if row.trivial else "",
        )
        for row in choice.board
    )
    header = (
        *("Candidate", "Label", "AUC [95 % interval]", "Minus the kept one [95 %]"),
        *("Training time", "Remark"),
    )
    why = (
        f"The default is {candidate_text(choice.default)}. Another candidate replaces it only if its AUC is higher by "
        "more than one paired standard error. "
        + (
            "The AUC above is corrected for this choice; those in the table are not."
            if folds
            else "The choice was made on validation; images and metadata each have a run and a report of their own in "
            "the folder of this run."
        )
    )
    caption = "Mean AUC within folds" if folds else "AUC on validation"
    table = DataTable(caption=caption, header=header, rows=rows)
    return Section(anchor="candidates", title="Candidates", blocks=(Paragraph(why), table))
