"""The report's sections: from a tree of findings to a document."""

from __future__ import annotations

from deepauc.metrics.intervals import Estimate
from deepauc.reporting.document.background_sections import (
    cases_section,
    data_section,
    leak_texts,
    leaks_section,
    provenance_section,
    training_section,
)
from deepauc.reporting.document.baseline_section import baseline_section
from deepauc.reporting.document.blocks import (
    Beside,
    Block,
    Caution,
    DataTable,
    Document,
    Gallery,
    Heading,
    Headline,
    Missing,
    Paragraph,
    Section,
    TableCell,
    shown,
)
from deepauc.reporting.document.cells import (
    DASH,
    brier_cell,
    cells,
    figure_cell,
    interval_cell,
    share_cell,
)
from deepauc.reporting.document.checklist import checklist_section
from deepauc.reporting.document.label_sections import Topic, auc_cell, interval_table, label_topics
from deepauc.reporting.document.operating_sections import operating_blocks, patient_blocks
from deepauc.reporting.document.trivial_section import trivial_cautions, trivial_section
from deepauc.reporting.document.variation_section import variation_section
from deepauc.reporting.evaluation.findings import (
    Absent,
    AucResult,
    BaselineFinding,
    CalibrationState,
    LabelEvaluation,
    Paired,
    RunFindings,
    SubgroupFinding,
)
from deepauc.reporting.evaluation.label import rows_of
from deepauc.reporting.figures.label import forest_picture, interval_text
from deepauc.reporting.folds import (
    AVERAGE_AT_THRESHOLDS,
    SINGLE_NETWORKS,
    candidates_section,
    kept_text,
    verdict_blocks,
)
from deepauc.training.run.scores import OOF

NOT_A_DEVICE = (
    "Not a medical device. For research only: nothing here was reviewed for use on patients. Base no diagnosis or "
    "treatment on it."
)


_AVERAGE = (
    "The test part was in no fold. Here the average of all networks, which deepauc predict uses, is judged on it, "
    "at the thresholds of all held-out rows."
)


def run_document(findings: RunFindings, *, command: str | None, thumbnails: Section | None = None) -> Document:
    """The whole report of a run; `command` is what makes it again, thumbnails a section that images were needed for."""
    sections = [_result(findings), *_against(findings)]
    if len(findings.labels) == 1:
        topics = _topics(findings, 0, "")
        sections += [Section(anchor=anchor, title=title, blocks=blocks) for anchor, title, blocks in topics]
    else:
        sections += [_label_section(findings, number) for number in range(len(findings.labels))]
    sections += [_average_on_test(findings)] if findings.average_on_test else []
    sections += [_subgroups(findings), variation_section(findings), data_section(findings), leaks_section(findings)]
    if findings.cases:
        sections.append(cases_section(findings))
    if thumbnails is not None:
        sections.append(thumbnails)
    sections += [checklist_section(findings), training_section(findings), provenance_section(findings, command)]
    task = f"{shown(findings.task)} · " if findings.task else ""
    return Document(
        title=f"Report of run {shown(findings.run)}",
        subtitle=f"{task}finished {findings.finished}",
        sections=tuple(sections),
        footer=NOT_A_DEVICE,
    )


def _against(findings: RunFindings) -> list[Section]:
    """What the network is compared with: candidates and trivial baselines, and another run."""
    choice = findings.record.choice
    sections = [] if choice is None else [candidates_section(choice, folds=bool(findings.folds))]
    if findings.folds:
        named = isinstance(findings.baseline, BaselineFinding)
        return [*sections, *([baseline_section(findings)] if named else [])]
    return [*sections, *(one for one in (trivial_section(findings), baseline_section(findings)) if one is not None)]


def _result(findings: RunFindings) -> Section:
    blocks: list[Block] = []
    if not findings.labels:
        blocks.append(Missing("AUC", findings.part_note))
    elif len(findings.labels) == 1:
        label = findings.labels[0]
        if isinstance(label.auc, AucResult):
            blocks.append(_headline(findings, label, label.auc))
        blocks += [
            *trivial_cautions(findings),
            *verdict_blocks(findings),
            *([] if findings.folds else _part_blocks(findings)),
            *operating_blocks(label),
            *(_part_blocks(findings) if findings.folds else []),
            *(Caution(text) for text in label.cautions),
        ]
        blocks += [*patient_blocks(label), *interval_table(label), *_kept_blocks(findings), *_copies_blocks(findings)]
    else:
        blocks += _several_labels(findings)
    blocks += [Caution(note) for note in findings.notes]
    return Section(anchor="result", title="Result", blocks=tuple(blocks))


def _part_blocks(findings: RunFindings) -> list[Block]:
    """What the reader has to know before the figures: the part, leaks."""
    held_out = findings.judged_part in ("test", OOF)
    part = Paragraph(findings.part_note) if held_out else Caution(findings.part_note)
    single: list[Block] = [Paragraph(SINGLE_NETWORKS)] if findings.folds else []
    chosen = any(not isinstance(one.operating_points, Absent) for one in findings.labels)
    if findings.folds and chosen and not findings.average_on_test:
        single.append(Caution(AVERAGE_AT_THRESHOLDS))
    return [part, *single, *(Caution(text) for text in leak_texts(findings.leaks))]


def _copies_blocks(findings: RunFindings) -> list[Block]:
    """What a score is, where it is not that of the image alone."""
    number = findings.record.tta
    if not number:
        return []
    return [
        Paragraph(
            f"Validation and test scores are means over {number:,} augmented copies of each image. Training scores, "
            "and the AUC after each epoch, are measured without augmentation."
        )
    ]


def _kept_blocks(findings: RunFindings) -> list[Block]:
    """Which stage's network all of this is about, where there was a choice."""
    kept = next((stage for stage in findings.stages if stage.kept), None)
    if kept is None or findings.record.inputs is not None:
        return []
    last = max(findings.stages, key=lambda stage: stage.number)
    name = f"stage {kept.number + 1}, {shown(kept.objective)}"
    if findings.not_kept is None:
        return [Paragraph(f"This report judges the network of the last stage ({name}), the best on validation.")]
    measure, values = "AUC", (last.validation_auc, kept.validation_auc)
    if (guard := findings.record.results.guard) is not None and guard.chosen_by is not None:
        measure, values = shown(guard.measure), (guard.measured[last.number], guard.measured[kept.number])
    return [
        Paragraph(
            f"This report judges the network of {name}. The last stage, {shown(last.objective)}, was not kept: its "
            f"{measure} on validation is {values[0]:.3f}, and that of the kept stage is {values[1]:.3f}."
        )
    ]


def _headline(findings: RunFindings, label: LabelEvaluation, auc: AucResult) -> Headline:
    counts = label.counts
    method = f"DeLong, clustered by {counts.group_word}" if auc.delong_by_patient else "DeLong"
    over = f"bootstrap over {counts.group_word}s" if counts.clustered else "bootstrap"
    patients = f" of {counts.patients:,} {counts.group_word}s" if counts.patients is not None else ""
    known = f"95 % interval {_range(auc.headline)} ({method})"
    if auc.bootstrap is not None:
        known += f", {_range(auc.bootstrap)} ({over})"
    if label.too_few is not None:
        known = "The table of intervals below shows what was computed nevertheless. Do not quote it as a result."
    where = f"on {rows_of(label.part)}"
    if findings.record.folds is not None and label.part == OOF:
        where = f"within {len(findings.record.folds.names)} folds"
    positive = findings.record.data.positive
    meant = "" if positive is None else f" ({shown(positive)})"
    details = [known, f"{counts.positives:,} positive{meant} and {counts.negatives:,} negative rows{patients}"]
    details += [*kept_text(findings), *(_on_test(one) for one in findings.average_on_test)]
    return Headline(
        value=f"{auc.headline.value:.3f}" if label.too_few is None else label.too_few,
        label=f"AUC {where} · {shown(label.name)}",
        details=tuple(details),
    )


def _on_test(label: LabelEvaluation) -> str:
    """The average of a run with folds on its test part, in a line."""
    found = "no AUC" if isinstance(label.auc, Absent) else f"AUC {interval_text(label.auc.headline)}"
    return f"Average of all networks on the test part: {found if label.too_few is None else label.too_few}"


def _average_on_test(findings: RunFindings) -> Section:
    blocks: list[Block] = [Paragraph(_AVERAGE)]
    several = len(findings.average_on_test) > 1
    for number, label in enumerate(findings.average_on_test):
        prefix = f"test-{number + 1}-"
        blocks += [Heading(shown(label.name), f"test-{number + 1}")] if several else []
        blocks += [Paragraph(f"{_on_test(label)}."), *operating_blocks(label)]
        blocks += [*(Caution(text) for text in label.cautions), *patient_blocks(label), *interval_table(label)]
        for anchor, title, topic in label_topics(label, prefix, other=None, objective=findings.kept_objective):
            blocks += [Heading(f"{title}: {shown(label.name)}" if several else title, anchor), *topic]
    return Section(anchor="average-on-test", title="The average on the test part", blocks=tuple(blocks))


def _several_labels(findings: RunFindings) -> list[Block]:
    blocks: list[Block] = []
    judged = [label for label in findings.labels if isinstance(label.auc, AucResult)]
    counted = [label for label in judged if label.too_few is None]
    left_out = [f"{shown(label.name)}: {label.too_few}" for label in judged if label.too_few is not None]
    folds = findings.record.folds
    details = ["Each label has its own interval in the table; the mean has none."]
    where = f"on {findings.judged_part}"
    if folds is not None and folds.choice is not None:
        where = f"within {len(folds.names)} folds"
        details = [f"95 % interval {_range(folds.choice.auc)}"] if folds.choice.counted == len(counted) else details
    if left_out:
        details.append(f"Left out of the mean: {'; '.join(left_out)}.")
    details += kept_text(findings)
    if findings.mean_auc is not None:
        blocks.append(
            Headline(
                value=f"{findings.mean_auc:.3f}",
                label=f"mean AUC over {len(counted)} of {len(findings.labels)} labels {where}",
                details=tuple(details),
            )
        )
    elif left_out:
        blocks.append(Missing("mean AUC", f"no label has enough rows of both classes. {'; '.join(left_out)}."))
    blocks += [*trivial_cautions(findings), *verdict_blocks(findings)]
    blocks += [] if findings.folds else _part_blocks(findings)
    blocks.append(
        DataTable(
            caption="Labels, with 95 % intervals",
            header=(
                *("Label", "Positives", "Negatives", "AUC [95 % interval]", "Average precision [95 % interval]"),
                *(
                    "Sensitivity at the threshold for 90 % specificity, %",
                    "Brier, recalibrated [95 % interval]",
                ),
            ),
            rows=tuple(_label_row(label) for label in findings.labels),
        )
    )
    blocks += _part_blocks(findings) if findings.folds else []
    blocks += [
        Missing(f"AUC of {shown(one.name)}", one.auc.why) for one in findings.labels if isinstance(one.auc, Absent)
    ]
    if careful := [shown(label.name) for label in findings.labels if label.cautions]:
        blocks.append(Caution(f"The sections of these labels have cautions: {', '.join(careful)}."))
    rows = [(one.name, one.auc.headline) for one in counted if isinstance(one.auc, AucResult)]
    if rows:
        best = max(rows, key=lambda row: row[1].value)
        worst = min(rows, key=lambda row: row[1].value)
        alt = (
            f"AUC with interval of {len(rows)} labels, from {interval_text(worst[1])} ({shown(worst[0])}) to "
            f"{interval_text(best[1])} ({shown(best[0])})."
        )
        caption = "AUC and 95 % interval by label; dashed: their mean."
        picture = forest_picture("labels-auc", rows, overall=findings.mean_auc, caption=caption, alt=alt)
        blocks.append(Gallery((picture,)))
    return [*blocks, *_kept_blocks(findings), *_copies_blocks(findings)]


def _label_row(label: LabelEvaluation) -> tuple[TableCell, ...]:
    points, calibration = label.operating_points, label.calibration
    ninety = [] if isinstance(points, Absent) else [row for row in points if row.asked_specificity == 0.9]
    after = None if isinstance(calibration, Absent) else calibration.after
    precision = DASH
    if isinstance(label.auc, AucResult):
        precision = figure_cell(label.auc.average_precision, label.auc.average_precision_interval)
    return cells(
        *(shown(label.name), label.counts.positives, label.counts.negatives, auc_cell(label), precision),
        share_cell(ninety[0].sensitivity if ninety else None),
        brier_cell(after) if isinstance(after, CalibrationState) else DASH,
    )


def _label_section(findings: RunFindings, number: int) -> Section:
    label, prefix = findings.labels[number], f"label-{number + 1}-"
    cautions = [Caution(text) for text in label.cautions]
    blocks: list[Block] = [*operating_blocks(label), *cautions, *patient_blocks(label), *interval_table(label)]
    for anchor, title, topic in _topics(findings, number, prefix):
        blocks += [Heading(title, anchor), *topic]
    return Section(anchor=f"label-{number + 1}", title=f"Label {shown(label.name)}", blocks=tuple(blocks))


def _topics(findings: RunFindings, number: int, prefix: str) -> list[Topic]:
    other = None
    for name, found in (("baseline", findings.baseline), ("last stage, not kept", findings.not_kept)):
        if other is None and isinstance(found, BaselineFinding) and isinstance(pair := found.labels[number], Paired):
            other = name, pair
    return label_topics(findings.labels[number], prefix, other=other, objective=findings.kept_objective)


def _subgroups(findings: RunFindings) -> Section:
    found = findings.subgroups
    if isinstance(found, Absent):
        blocks: list[Block] = [Missing("subgroups", found.why)]
    else:
        several, word = len(findings.label_names) > 1, findings.leaks.group_word
        where = "the other folds" if findings.judged_part == OOF else "validation"
        blocks = [
            Paragraph(
                f"AUC within each subgroup, with its 95 % interval (DeLong, clustered by {word} if {word}s have "
                "several rows). Sensitivity and specificity are at the threshold for 90 % specificity on all of "
                f"{where}. Subgroups are small and many, and nothing corrects for the number of comparisons: a "
                "difference seen here is a question, not an answer."
            )
        ]
        for number, one in enumerate(found):
            blocks.append(_subgroup_block(findings, one, number, several))
    return Section(anchor="subgroups", title="Subgroups", blocks=tuple(blocks))


def _subgroup_block(findings: RunFindings, one: SubgroupFinding, number: int, several: bool) -> Block:
    title = f"By {shown(one.column)}" + (f", label {shown(one.label)}" if several else "")
    rows = []
    for row in one.rows:
        auc = TableCell("— (one class only)" if row.positives in (0, row.rows) else "— (too few)")
        if isinstance(row.auc, Estimate):
            auc = interval_cell(row.auc)
        shares = (share_cell(row.sensitivity), share_cell(row.specificity)) if one.threshold is not None else ()
        rows.append(cells(shown(row.group), row.rows, row.positives, auc, *shares))
    header = ["Group", "Rows", "Positives", "AUC [95 % interval]"]
    header += ["Sensitivity, %", "Specificity, %"] if one.threshold is not None else []
    table = DataTable(caption=title, header=tuple(header), rows=tuple(rows))
    drawn = [(row.group, row.auc) for row in one.rows if isinstance(row.auc, Estimate)]
    if len(drawn) < 2:
        return table
    label = next((label for label in findings.labels if label.name == one.label), None)
    overall = label.auc.headline.value if label and isinstance(label.auc, AucResult) else None
    alt = f"{title}: " + "; ".join(f"{shown(name)} {interval_text(auc)}" for name, auc in drawn) + "."
    caption = "AUC and 95 % interval; dashed: all rows."
    picture = forest_picture(f"subgroup-{number + 1}-auc", drawn, overall=overall, caption=caption, alt=alt)
    return Beside((table,), picture)


def _range(one: Estimate[float]) -> str:
    return f"{one.low:.3f} to {one.high:.3f}"
