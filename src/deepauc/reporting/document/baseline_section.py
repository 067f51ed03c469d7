"""Paired tests: the network beside another run and a last stage that was not kept; the stages beside each other."""

from __future__ import annotations

from dataclasses import dataclass

from deepauc.reporting.document.blocks import Block, Caution, DataTable, Missing, Paragraph, Section, TableCell, shown
from deepauc.reporting.document.cells import DASH, cells, decimals, p_cell, signed_cell
from deepauc.reporting.evaluation.findings import (
    Absent,
    BaselineFinding,
    Paired,
    PairedPartial,
    RunFindings,
    StageFinding,
)
from deepauc.reporting.evaluation.label import rows_of


def baseline_section(findings: RunFindings) -> Section:
    """Paired tests against the baseline, against a last stage that was not kept, and between stages."""
    blocks: list[Block] = []
    title = "Against the baseline"
    if isinstance(findings.baseline, BaselineFinding):
        blocks += _baseline_blocks(findings.baseline, findings.label_names, _BASELINE_WORDS)
    elif findings.not_kept is not None:
        title = "Against the stage that was not kept"
        blocks.append(Paragraph(f"There is no test against a baseline: {findings.baseline.why}"))
    else:
        blocks.append(Missing("paired test against another run", findings.baseline.why))
    if isinstance(findings.not_kept, BaselineFinding):
        blocks += _baseline_blocks(findings.not_kept, findings.label_names, _NOT_KEPT_WORDS)
    elif findings.not_kept is not None:
        blocks.append(Missing("paired test against the last stage", findings.not_kept.why))
    if findings.stages:
        blocks += _stage_blocks(findings.stages)
    return Section(anchor="baseline", title=title, blocks=tuple(blocks))


@dataclass(frozen=True, kw_only=True)
class _Words:
    """How a comparison speaks of the other network."""

    what: str
    column: str
    caption: str


_BASELINE_WORDS = _Words(what="Baseline: run {name} ({objective})", column="baseline", caption="baseline")
_NOT_KEPT_WORDS = _Words(
    what="Not kept: the network of the last stage ({objective})", column="last stage", caption="stage that was not kept"
)


def _baseline_blocks(baseline: BaselineFinding, names: tuple[str, ...], words: _Words) -> list[Block]:
    test = f"clustered by {baseline.group_word} (Obuchowski)" if baseline.clustered else "DeLong"
    blocks: list[Block] = [
        Paragraph(
            f"{words.what.format(name=shown(baseline.name), objective=shown(baseline.objective))}, on the same rows of "
            f"{rows_of(baseline.part)}, {baseline.paired_by}. Paired test: {test}."
        )
    ]
    rows = []
    for name, found in zip(names, baseline.labels, strict=True):
        if isinstance(found, Absent):
            blocks.append(Missing(f"paired test of {shown(name)}", found.why))
            continue
        rows.append(_paired_row(name, found.auc, found.baseline_auc, found))
    if rows:
        difference = f"This run minus {words.column} [95 % interval]"
        header = ("Label", "AUC, this run", f"AUC, {words.column}", difference, "Two-sided p")
        caption = f"Paired comparison of AUC with the {words.caption}"
        blocks.append(DataTable(caption=caption, header=header, rows=tuple(rows)))
    blocks += _partial_blocks(baseline, names, words)
    if len(rows) > 1:
        blocks.append(Paragraph("The p-values are not corrected for testing several labels."))
    return blocks + [Caution(text) for text in baseline.cautions]


def _partial_blocks(baseline: BaselineFinding, names: tuple[str, ...], words: _Words) -> list[Block]:
    """The paired test of partial AUCs, where it was asked for."""
    rows, blocks = [], []
    regions = set()
    for name, pair in zip(names, baseline.labels, strict=True):
        found = pair.partial if isinstance(pair, Paired) else None
        if isinstance(found, Absent):
            blocks.append(Missing(f"paired test of the partial AUC of {shown(name)}", found.why))
        elif found is not None:
            regions.add(str(found.region))
            rows.append(_paired_row(name, found.area, found.baseline_area, found))
    if not rows:
        return list[Block](blocks)
    over = f"{baseline.group_word}s" if baseline.clustered else "rows"
    header = (
        *("Label", "Partial AUC, this run", f"Partial AUC, {words.column}"),
        *(f"This run minus {words.column} [95 % interval]", "Two-sided p"),
    )
    caption = f"Paired comparison of partial AUC ({regions.pop()}) with the {words.caption}, by a bootstrap over {over}"
    return [DataTable(caption=caption, header=header, rows=tuple(rows)), *blocks]


def _paired_row(name: str, ours: float, theirs: float, test: Paired | PairedPartial) -> tuple[TableCell, ...]:
    return cells(shown(name), decimals(ours), decimals(theirs), signed_cell(test.difference), p_cell(test.p_value))


def _stage_blocks(stages: tuple[StageFinding, ...]) -> list[Block]:
    rows = []
    for stage in stages:
        difference, p_value = DASH, DASH
        if stage.last_minus_this is not None and stage.p_value is not None:
            difference, p_value = signed_cell(stage.last_minus_this), p_cell(stage.p_value)
        name = f"{stage.number + 1}: {shown(stage.objective)}{' (kept)' if stage.kept else ''}"
        rows.append(cells(name, decimals(stage.validation_auc), difference, p_value))
    kept = next((stage for stage in stages if stage.kept), None)
    said = "" if kept is None else f" The network of stage {kept.number + 1} was kept, and this report judges it."
    if all(stage.p_value is None for stage in stages):
        said += " There is no test of their difference: it needs one label, with at least two rows of each class."
    return [
        Paragraph(f"After training, the stages of this run were compared on validation.{said}"),
        DataTable(
            caption="Stages on validation, the last one against each earlier one (paired)",
            header=("Stage", "Validation AUC", "Last stage minus this [95 % interval]", "Two-sided p"),
            rows=tuple(rows),
        ),
    ]
