"""The checklist: what this report answers of TRIPOD+AI and CLAIM, and what is left to the author."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from deepauc.reporting.document.blocks import DataTable, Paragraph, Section, shown
from deepauc.reporting.document.cells import cells
from deepauc.reporting.evaluation.findings import Absent, RunFindings
from deepauc.text_tables import percent_text
from deepauc.training.run.scores import OOF

AUTHOR = "For the author"
_SOURCES = (
    "Item numbers are those of TRIPOD+AI (Collins et al., BMJ 2024) and of CLAIM (Mongan et al., Radiology: Artificial "
    "Intelligence 2020). The table fills in what the run records. It does not say that an item is reported well enough."
)


@dataclass(frozen=True)
class Item:
    """One topic of both lists, by their numbers. answer: what the findings say of it; None: the author has to."""

    topic: str
    tripod: str
    claim: str
    answer: Callable[[RunFindings], str | None] = lambda _: None


def checklist_section(findings: RunFindings) -> Section:
    """Both lists as one table."""
    rows = []
    for item in ITEMS:
        answer = item.answer(findings)
        rows.append(cells(item.topic, item.tripod or "—", item.claim or "—", AUTHOR if answer is None else answer))
    header = ("Topic", "TRIPOD+AI item", "CLAIM item", "In this report")
    table = DataTable(caption="Reporting checklist: TRIPOD+AI and CLAIM", header=header, rows=tuple(rows))
    return Section(anchor="checklist", title="Reporting checklist", blocks=(Paragraph(_SOURCES), table))


def _flow(findings: RunFindings) -> str | None:
    flow = findings.cohort
    if flow is None:
        return None
    used = [f"{rows:,} {shown(part)}" for part, rows in flow.parts.items()]
    if flow.folds:
        used.insert(0, f"{sum(flow.folds.values()):,} in {len(flow.folds)} folds")
    return f"{flow.read:,} rows read, {sum(flow.left_out.values()):,} left out; {', '.join(used)} (section Data)"


def _missing(findings: RunFindings) -> str | None:
    data = findings.record.data
    if data.rows is None:
        return None
    return (
        f"{data.unlabelled or 0:,} rows without a label and {data.skipped_rows:,} with a problem were not used for "
        "supervised training or judging"
    )


def _partitions(findings: RunFindings) -> str | None:
    split = next((one for one in findings.record.plan.decisions if one.name in ("parts", "folds")), None)
    if split is None:
        return None
    value = f"{split.value} folds" if split.name == "folds" else split.value
    return shown(f"{value}: {split.reason}", longest=400)


def _disjoint(findings: RunFindings) -> str | None:
    leaks = findings.leaks
    if leaks.patients_in_two_parts is None:
        return "Rows. The data name no patients, so a patient may be in two parts"
    if leaks.patients_in_two_parts:
        return f"{leaks.patients_in_two_parts:,} {leaks.group_word}s are in two {leaks.between} (section Leak check)"
    return f"The {leaks.group_word}: none of {leaks.patients:,} is in two {leaks.between}"


def _called(part: str) -> str:
    return "all folds" if part == OOF else shown(part)


def _events(findings: RunFindings) -> str | None:
    first = {(one.part, one.label): one.counts for one in findings.parts}
    said = [f"{_called(part)} {counts.positives:,} of {counts.rows:,}" for (part, _), counts in first.items()]
    alone = len(findings.label_names) == 1
    return f"Positives: {', '.join(said)}. The authors must justify the sample size" if alone else None


def _imbalance(findings: RunFindings) -> str | None:
    train = [one for one in findings.parts if one.part in ("train", OOF) and one.counts.rows]
    said = [f"{shown(one.label)} {percent_text(one.counts.positives / one.counts.rows)}" for one in train]
    return (
        f"Positive in training: {', '.join(said)}. The appendix says how the loss and the batches deal with it"
        if said
        else None
    )


def _model(findings: RunFindings) -> str | None:
    stages = ", then ".join(shown(name) for name in findings.record.objectives)
    return f"{shown(findings.record.network).removesuffix('Spec')}, trained by {stages} (appendix)"


def _software(findings: RunFindings) -> str | None:
    versions = findings.record.versions
    return ", ".join(f"{shown(name)} {shown(version)}" for name, version in versions.items()) or None


def _selection(findings: RunFindings) -> str | None:
    if findings.record.folds is not None:
        return "By AUC on held-out rows of all folds, which is corrected for the choice (section Candidates)"
    if not findings.stages:
        return "The network of the last stage"
    kept = next((one for one in findings.stages if one.kept), None)
    return None if kept is None else f"Stage {kept.number + 1}, the best of {len(findings.stages)} on validation"


def _performance(findings: RunFindings) -> str | None:
    if findings.record.folds is not None:
        return "AUC, sensitivity, specificity and predictive values within folds, with 95 % intervals"
    if findings.judged_part is None:
        return None
    return (
        f"AUC, sensitivity, specificity and predictive values on the {findings.judged_part} part, with 95 % intervals"
    )


def _calibration(findings: RunFindings) -> str | None:
    known = any(not isinstance(label.calibration, Absent) for label in findings.labels)
    return "Reliability, Brier score, calibration error, decision curve" if known else None


def _subgroups(findings: RunFindings) -> str | None:
    if isinstance(findings.subgroups, Absent):
        return None
    columns = dict.fromkeys(one.column for one in findings.subgroups)
    return f"By {', '.join(shown(name) for name in columns)} (section Subgroups)"


def _output(findings: RunFindings) -> str | None:
    known = any(not isinstance(label.calibration, Absent) for label in findings.labels)
    on = "held-out rows" if findings.record.folds is not None else "validation"
    return "A raw score that ranks" + (f"; a probability after recalibration on {on}" if known else "")


def _explainability(findings: RunFindings) -> str | None:
    images = len(findings.record.task.shape) == 3
    return "Grad-CAM of example images is on a separate page: deepauc report RUN --examples" if images else None


def _errors(findings: RunFindings) -> str | None:
    return "The largest errors, by id (section Largest errors)" if findings.cases else None


def _ensemble(findings: RunFindings) -> str | None:
    number, folds = findings.record.tta, findings.record.folds
    networks = "One network" if folds is None else f"The average of the networks of {len(folds.names)} folds"
    return f"{networks}; a score is the mean over {number:,} augmented copies of an image" if number else networks


def _reuse(findings: RunFindings) -> str | None:
    return f"Hashes, seed {findings.record.identity.seed}, versions, commands (section Where this comes from)"


ITEMS = (
    Item("Title and abstract", "1, 2", "1, 2"),
    Item("Background, intended use, objectives", "3a-3c, 4", "3, 4"),
    Item("Study design and goal", "4", "5, 6"),
    Item("Source and dates of the data, setting", "5a, 5b, 6a", "7"),
    Item("Eligibility, treatments, choice of subsets", "6b, 6c", "8, 10"),
    Item("Preprocessing, de-identification", "7", "9, 12"),
    Item("Outcome, reference standard, annotators", "8a-8c", "14-18"),
    Item("Predictors", "9a-9c", "11"),
    Item("Sample size and number of events", "10", "19", _events),
    Item("Missing data", "11", "13", _missing),
    Item("How the data were partitioned", "12a", "20", _partitions),
    Item("Level at which parts are disjoint", "12a", "21", _disjoint),
    Item("Model, initialisation and training", "12c, 22", "22, 24, 25", _model),
    Item("Software", "12c", "23", _software),
    Item("Selection of the final model", "12c", "26", _selection),
    Item("Ensembles, test-time augmentation", "12c", "27", _ensemble),
    Item("Measures of performance and their uncertainty", "12e, 23a", "28, 29, 35, 36", _performance),
    Item("Calibration and clinical usefulness", "12e, 23a", "28", _calibration),
    Item("Class imbalance", "13", "", _imbalance),
    Item("Fairness, heterogeneity, subgroups", "14, 23b", "30", _subgroups),
    Item("Model output", "15", "", _output),
    Item("Explainability", "", "31", _explainability),
    Item("External test data", "16", "32"),
    Item("Ethics, funding, conflicts, registration, protocol", "17, 18a-18d", "40-42"),
    Item("Availability of data, code and model", "18e, 18f", "41", _reuse),
    Item("Patient and public involvement", "19", ""),
    Item("Flow of participants, numbers in each analysis", "20a, 21", "33", _flow),
    Item("Characteristics of participants", "20b, 20c", "34"),
    Item("Failure analysis", "", "37", _errors),
    Item("Model updating", "24", ""),
    Item("Interpretation, limitations, usability", "25, 26, 27a-27c", "38, 39"),
)
