"""The report's second half: training, leaks, cases, data, and where everything came from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from deepauc.names import leak_text
from deepauc.reporting.document.blocks import (
    Block,
    Caution,
    Code,
    DataTable,
    Facts,
    Gallery,
    Missing,
    Paragraph,
    Section,
    TableCell,
    shown,
)
from deepauc.reporting.document.cells import DASH, cells
from deepauc.reporting.evaluation.findings import Absent, History, LeakFinding, RunFindings
from deepauc.reporting.figures.cohort import cohort_picture
from deepauc.reporting.figures.history import history_pictures
from deepauc.text_tables import percent_text
from deepauc.training.plain import from_plain
from deepauc.training.recipe import Stage
from deepauc.training.run.record import DataRecord, RunRecord
from deepauc.training.run.scores import OOF


def training_section(findings: RunFindings) -> Section:
    """History figures and the stages of the recipe."""
    blocks: list[Block] = []
    record = findings.record
    if record.stages:
        header = ("Stage", "Objective", "Optimiser", "Length", "Batch", "Positives per batch", "Score bound", "Keeps")
        rows = tuple(_stage_row(number, stage.plain) for number, stage in enumerate(record.stages))
        blocks.append(DataTable(caption="Stages of the recipe", header=header, rows=rows))
    if decisions := _decisions(record):
        blocks.append(
            DataTable(caption="What was decided, and why", header=("Decision", "Value", "Reason"), rows=decisions)
        )
    histories = findings.fold_histories
    if isinstance(findings.history, History):
        histories = (findings.history,)
    if isinstance(findings.history, Absent) and not histories:
        blocks.append(Missing("training history", findings.history.why))
    elif pictures := history_pictures(histories, several_labels=len(findings.label_names) > 1):
        blocks.append(Gallery(tuple(pictures)))
    else:
        blocks.append(Missing("training figures", "history.csv holds no numbers to draw."))
    return Section(anchor="training", title="Appendix: training and decisions", blocks=tuple(blocks), folded=True)


def _stage_row(number: int, stage: Mapping[str, Any]) -> tuple[TableCell, ...]:
    length = f"{stage.get('iterations', '?')} iterations"
    if epochs := stage.get("epochs"):
        length = f"{epochs} epoch{'s' * (epochs != 1)}"
    quota = stage.get("positives_per_batch")
    return cells(
        *(number + 1, _spec_text(stage.get("objective")), _spec_text(stage.get("optimizer")), length),
        shown(str(stage.get("batch_size", "?"))),
        "as they come" if quota is None else shown(str(quota)),
        shown(_bound(stage)),
        f"{shown(str(stage.get('keep', '?')))} epoch",
    )


def _decisions(record: RunRecord) -> tuple[tuple[TableCell, ...], ...]:
    """The plan that `deepauc train` wrote down."""
    rows = [(one.name, one.value, one.reason) for one in record.plan.decisions]
    return tuple(cells(*(shown(text, longest=600) for text in row)) for row in rows)


def _bound(stage: Mapping[str, Any]) -> str:
    """What the scores passed before the loss; `auto` is the objective's own."""
    try:
        known = from_plain(dict(stage))
    except (ValueError, TypeError):  # a recipe of another version
        known = None
    return known.resolved_bound if isinstance(known, Stage) else str(stage.get("bound", "?"))


def _spec_text(spec: Any) -> str:
    """`PESGSpec(lr=0.1, gamma=0.002)` of a spec's plain form, without options that are off."""
    spec = spec if isinstance(spec, Mapping) else {}
    options = ", ".join(f"{k}={v}" for k, v in spec.items() if k != "type" and v not in (None, False, 0, 0.0))
    return shown(f"{spec.get('type', '?')}({options})", longest=200)


def leak_texts(leaks: LeakFinding) -> list[str]:
    """What was found in two parts, a sentence each; none where nothing was."""
    found = []
    if leaks.patients_in_two_parts:
        found.append(
            f"Leak: {leaks.patients_in_two_parts:,} of {leaks.patients:,} {leaks.group_word}s are in two "
            f"{leaks.between}, so the values in this report are too good. The command deepauc data check names them."
        )
    if leaks.possible:
        found.append(
            f"Possible leak: {leaks.possible:,} {leaks.group_word}{'s' * (leaks.possible != 1)} may be in two "
            f"{leaks.between} under different names. If so, the values in this report are too good."
        )
    kinds = dict(leaks.recorded or {})
    if leaks.patients_in_two_parts:
        kinds.pop("patient", None)  # the same ones, counted at training
    if kinds:
        words = ", ".join(leak_text(shown(kind), count, leaks.group_word) for kind, count in kinds.items())
        found.append(
            f"Leak, recorded at training: in two parts are {words}. The values in this report may be too good. The "
            "command deepauc data check names the rows."
        )
    return found


def leaks_section(findings: RunFindings) -> Section:
    """Patients in two parts, from the scores; identical inputs, where training recorded its check."""
    leaks = findings.leaks
    word = leaks.group_word
    blocks: list[Block] = []
    if leaks.patients_in_two_parts is None:
        blocks.append(
            Missing(
                "patient leak check",
                "the data name no patients or other groups (--group-column), so leaks between parts cannot be found.",
            )
        )
    elif leaks.patients_in_two_parts == 0:
        text = f"{word.capitalize()}s: none of the {leaks.patients:,} {word}s is in two {leaks.between}"
        blocks.append(Paragraph(f"{text}{' under one name' * bool(leaks.possible)} (checked in scores.csv)."))
    blocks += [Caution(text) for text in leak_texts(leaks)]
    if leaks.recorded is None:
        blocks.append(
            Missing(
                "check for identical inputs",
                "run.json records no such check. The command deepauc data check TABLE makes one.",
            )
        )
    elif not leaks.recorded:
        blocks.append(
            Paragraph(f"Recorded at training: no {word} and no identical input was found in two {leaks.between}.")
        )
    return Section(anchor="leaks", title="Leak check", blocks=tuple(blocks))


def cases_section(findings: RunFindings) -> Section:
    """The rows the model is most wrong about, by id."""
    rows = tuple(
        cells(
            *(shown(case.id), shown(case.label), case.kind),
            TableCell(f"{case.score:.4g}", case.score),
            TableCell(percent_text(case.wrong_side_of), case.wrong_side_of),
        )
        for case in findings.cases
    )
    header = ("Id", "Label", "What it is", "Score", "Share of the other class ranked on the wrong side")
    caption = "Highest-scored negatives and lowest-scored positives"
    if findings.folds:
        caption = "Negatives ranked highest and positives ranked lowest within their fold"
    return Section(
        anchor="cases",
        title="Largest errors",
        blocks=(
            Caution("Ids may name patients or customers: take care with whom you share this page."),
            DataTable(caption=caption, header=header, rows=rows),
        ),
    )


def _groups_title(findings: RunFindings) -> str:
    """`Patients`, or `Groups (account)` of a column that is named otherwise."""
    word = findings.leaks.group_word
    column = findings.record.data.group_column
    return f"{word.capitalize()}s" + ("" if word == "patient" else f" ({shown(str(column))})")


def data_section(findings: RunFindings) -> Section:
    """Rows, classes and patients by part and label."""
    rows = []
    for one in findings.parts:
        counts = one.counts
        share = counts.positives / counts.rows if counts.rows else 0.0
        rows.append(
            cells(
                *("all folds" if one.part == OOF else shown(one.part), shown(one.label), counts.rows, counts.positives),
                TableCell(percent_text(share) if counts.rows else "—", share),
                counts.missing,
                DASH if counts.patients is None else counts.patients,
            )
        )
    header = ("Part", "Label", "Labelled rows", "Positives", "Share", "Label missing", _groups_title(findings))
    shape = " × ".join(str(side) for side in findings.record.task.shape) or "not recorded"
    pairs = [("Task", shown(findings.task) or "not recorded"), ("Kind", shown(findings.kind))]
    data = findings.record.data
    if rows_text := _rows_of_the_table(data):
        pairs.append((f"Rows of the {'packed set' if data.packed else 'table'}", rows_text))
    if data.bag_column is not None:
        inside = "" if data.images is None else f", {data.images:,} images in all"
        pairs.append(("A row is", f"a bag: the rows of the table with one entry in {shown(data.bag_column)}{inside}"))
    facts = Facts((*pairs, ("One input", shown(shape))))
    table = DataTable(caption="Rows by part", header=header, rows=tuple(rows))
    flow: tuple[Block, ...] = ()
    if findings.cohort is not None:
        flow = (Gallery((cohort_picture(findings.cohort, findings.parts, findings.folds),)),)
    return Section(anchor="data", title="Data", blocks=(facts, *flow, table))


def _rows_of_the_table(data: DataRecord) -> str:
    """Where every row went: judged by its label, without one, or left out; empty where training recorded nothing."""
    if data.rows is None or data.labelled is None or data.unlabelled is None:
        return ""
    text = f"{data.rows:,}: {data.labelled:,} labelled, {data.unlabelled:,} without a label, "
    text += f"{data.skipped_rows:,} left out because of a problem"
    same = data.sets_of_identical_inputs
    images = data.image_column is not None or (data.packed is not None and data.packed.images)
    if images and same:  # numbers repeat by chance, pictures do not
        text += f"; {same:,} set{'s' * (same != 1)} of identical images"
    return text


def provenance_section(findings: RunFindings, command: str | None) -> Section:
    """Commands, seeds, hashes, versions; the record as it is."""
    record = findings.record
    identity, seconds = record.identity, record.results.seconds
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    pairs = [
        ("Trained by", record.command or "not recorded (trained from Python)"),
        ("This report by", command or "not recorded (written from Python)"),
        ("Seed", _told(identity.seed)),
        ("Data, SHA-256", _told(identity.data)),
        ("Recipe, SHA-256", _told(identity.recipe)),
        ("Git commit", _told(record.commit)),
        ("Numerics version", _told(record.numerics)),
        ("Versions", versions or "not recorded"),
        ("Hardware", _told(record.hardware)),
        ("Training time", "—" if seconds is None else f"{seconds:,.0f} s"),
    ]
    blocks: list[Block] = [Facts(tuple((term, shown(text, longest=600)) for term, text in pairs))]
    for title, content in (
        ("Recipe", record.plain.get("recipe")),
        ("The rest of run.json", {k: v for k, v in record.plain.items() if k != "recipe"}),
    ):
        text = json.dumps(content, indent=2, ensure_ascii=False)
        blocks.append(Code(title=title, text="\n".join(shown(line, longest=2000) for line in text.splitlines())))
    blocks.append(
        Paragraph(
            "Every number above can be computed again from run.json, history.csv and scores.csv in the run folder, "
            "without images and without a GPU. report.json beside this file holds the numbers unrounded."
        )
    )
    return Section(anchor="provenance", title="Where this comes from", blocks=tuple(blocks))


def _told(value: object) -> str:
    return "not recorded" if value is None else str(value)
