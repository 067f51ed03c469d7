"""results/medical.md, melanoma.md, ddsm.md and pcam.md: from the records alone, beside the paper's figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

from deepauc.paper.benchmark_settings import settings_text
from deepauc.paper.medical_cells import (
    CELLS,
    SKINS,
    Cell,
    by_set,
    comparison_text,
    ensemble_of,
    interval_text,
    paired,
    tests_of,
    together,
)
from deepauc.paper.medical_chest_page import chest_sections
from deepauc.paper.medical_chest_plan import PRINTED_STAND_IN, STAND_IN
from deepauc.paper.medical_losses import LOSSES
from deepauc.paper.medical_modes import mode_sections
from deepauc.paper.medical_scores import against, bootstrap_interval, delong_interval
from deepauc.paper.medical_skin_page import SkinCells, skin_sections
from deepauc.paper.medical_targets import not_run, target_sections
from deepauc.paper.recipes import TITLES
from deepauc.paper.study_figures import picture_links
from deepauc.reporting.tables import auc_text, markdown_table, percent_text
from deepauc.studies.records import Record, RecordBook
from deepauc.training.folder import by_other_numerics

HEADER = (
    *("cell", "loss", "paper", "published", "ours", "DeLong 95 %", "bootstrap 95 %"),
    *("minus CE, by set", "minus CE, paired DeLong", "test images (positive)"),
    *("selected", "alpha = 0", "runs", "s a run"),
)
BEYOND = (
    *("cell", "loss", "single, mean", "single, best", "TTA, mean", "TTA, best", "ensemble", "ensemble + TTA [95 %]"),
    *("minus the best single", "above any single"),
)
TITLE = {
    "medical": "Medical stand-ins",
    "melanoma": "SIIM-ISIC melanoma",
    "ddsm": "DDSM+",
    "pcam": "PatchCamelyon at 1 %",
}
PUBLISHED = (
    "`published`: the best seen of others on this task. At 28 px on the official parts, trained on train alone (ours "
    "have seen the validation part too, once tuned on it): PneumoniaMNIST .944 (ResNet-18 of MedMNIST "
    "v2), .973 (best seen), .966 and .987 (users of LibAUC, the latter trained on train + validation); BreastMNIST "
    ".901, .891 to .901, .888 to .923. Published DermaMNIST, PathMNIST and ChestMNIST figures are of other tasks "
    "(seven and nine classes, 14 labels) and are no measure for these rows."
)
ABOUT = (
    "`paper`: the figure the paper prints for the task this one stands in for. The data are others: it says how far "
    "the losses lie apart there, not what could be reached here. `-printed`: the paper's settings (D6, D7, D8) to the "
    "letter, but for task, image size and epochs: its networks, its grids in full. DenseNet121 takes no image below "
    "29 px: those of 28 have a border of 2. `-R-paper`: settings as printed (D7, D8) but for the "
    "length, with ResNet20, flips or small affine changes (the paper names none), and a part of the printed grids "
    "drawn by seed 14 (5 of 5, 8 of 45, 9 of 9, 12 of 36). Other cells of HAM10000: D6 but for the length and the "
    "network; larger learning rates are tried too. `-R-ours`: learning rates that fall, more epochs, other grids. "
    '`-R-best`: see "`best` on the stand-ins". Nothing is pretrained. CE and focal '
    "loss have as many epochs as both stages of "
    "an AUC loss together; no guard puts CE's network in an AUC row. Settings are chosen on validation AUC. MedMNIST: "
    "tuned on the official validation part, then refitted on train + validation. PathMNIST: 69 tumours among 6,893 "
    "training patches, other positives dropped by seed, test part from another clinic. HAM10000: five folds by lesion "
    "of the 5,984 images with metadata (its patients are not known; one image a lesion), 1,511 images of ISIC 2018 in "
    "every training part and in no other. ISIC 2020: the true table of 33,126 rows, five folds by patient, no pixels."
)

OF_THE_PAPER = {
    "melanoma": (
        "`paper`: EfficientNet-B5 at 384 px on the competition's private part, no TTA, whatever the row's network. "
        "The rows are of other images: those of `train.csv`, each scored by the network of the fold that has not "
        "seen its patient."
    ),
    "ddsm": "`paper`: its figure for this task; which positives it dropped from the test part is not known.",
    "pcam": "`paper`: its figure for this task; which positives it dropped from the training part is not known.",
}


def page(results: Path, name: str = "medical") -> str:
    """The whole page as markdown."""
    book = RecordBook(results / name)
    skins = [SkinCells(name=family, networks=networks) for family, networks in SKINS.get(name, ())]
    rows, beyond = [], []
    for cell in CELLS[name]:
        tests = tests_of(book, cell)
        rows += [_row(cell, loss, records, tests["ce"]) for loss, records in tests.items() if records]
        if not cell.folds:
            beyond += [_beyond(cell, loss, records) for loss, records in tests.items() if len(records) > 1]
    parts = [f"# {TITLE[name]}", _introduction(name, book)]
    if name == "medical":
        parts += target_sections(results, book, CELLS[name], skins)
    parts += ["## Single models", markdown_table(HEADER, rows) if rows else "No final run is recorded yet.", _READING]
    if beyond:
        parts += [
            "## Ensembles and test-time augmentation",
            "The mean of the seeds' scores after a sigmoid; TTA: the mean raw score of 30 augmented copies. "
            "`best` is the best of the seeds on this very test part: no choice of a model, but what an ensemble has to "
            "pass, with TTA or without. The difference to it is paired (DeLong), its interval that of the test images.",
            markdown_table(BEYOND, beyond),
        ]
    for skin in skins:
        parts += skin_sections(book, skin)
    if name == "medical":
        parts += chest_sections(results, STAND_IN.name, PRINTED_STAND_IN.name)
    parts += mode_sections(book, CELLS[name])
    parts += not_run(results, book, name, CELLS[name])
    return "\n\n".join([*parts, *picture_links(results, name)]) + "\n"


_READING = (
    "`ours`: mean test AUC of the last epoch over training sets or folds, ± standard deviation. Intervals and the "
    "paired test (DeLong, clustered by patient where patients are known; the bootstrap, BCa, "
    "draws whole patients) are those of the mean of the seeds' scores, or of out-of-fold scores as ranks within their "
    "fold. `minus CE, by set`: mean difference with a 95 % t-interval over sets. `alpha = 0`: share of AUC-M's steps; "
    "where it is 0 %, AUC-M is the square loss with margin m. `s a run`: training and its scores, those of a pack "
    "divided by its runs; behind a plus sign the first stage, which the losses of a cell may share."
)


def _introduction(name: str, book: RecordBook) -> str:
    lines = [
        f"Made by `deepauc study table {name}` from `results/{name}.jsonl`; `deepauc study run {name}` makes those."
    ]
    if name == "medical":
        lines += ["", ABOUT, "", PUBLISHED]
    else:
        lines += ["", OF_THE_PAPER[name]]
    finals = [record for study in book.studies() for record in book.final(study)]
    if finals:
        machines = ", ".join(sorted({record["hardware"] for record in finals}))
        other = by_other_numerics(finals)
        flagged = f"; {other} of them by another numerics version." if other else "."
        lines += ["", f"{len(finals)} final runs on {machines}{flagged}{_cuts(finals)}"]
    return "\n".join(lines)


def _cuts(finals: Sequence[Record]) -> str:
    """What was left out of the declared studies, and where."""
    where: dict[str, list[str]] = {}
    for record in finals:
        if record["cut"]:
            text = ", ".join(f"{key} {value}" for key, value in record["cut"].items())
            where.setdefault(text, []).append(record["study"])
    shown = [f"{text} ({', '.join(dict.fromkeys(names))})" for text, names in where.items()]
    return f" Cut, of what is declared: {'; '.join(shown)}." if shown else ""


def _row(cell: Cell, loss: str, records: Sequence[Record], baseline: Sequence[Record]) -> list[str]:
    values = [record["auc"]["test"][0] for record in records]
    test = together(cell, records)
    delong, bootstrap = delong_interval(test.plain, test), bootstrap_interval(test.plain, test)
    shares = [r["alpha_zero_share"] for r in records if r["alpha_zero_share"] is not None and loss == "auc_m"]
    test_by_ce = None if loss == "ce" else paired(cell, records, baseline)
    return [
        cell.name,
        TITLES[loss],
        "-" if cell.paper is None else f"{cell.paper[LOSSES.index(loss)]:.4f}",
        "-" if cell.published is None else f"{cell.published:.3f}",
        f"{fmean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else ""),
        auc_text(float(delong.value), float(delong.low), float(delong.high)),
        f"[{float(bootstrap.low):.3f}, {float(bootstrap.high):.3f}]",
        "-" if loss == "ce" else interval_text(by_set(records, baseline)),
        "-" if test_by_ce is None else comparison_text(test_by_ce),
        f"{len(test.labels):,} ({int((test.labels == 1).sum()):,})",
        "; ".join(dict.fromkeys(settings_text(record["config"]) for record in records)) or "-",
        percent_text(fmean(shares)) if shares else "-",
        str(len(records)),
        _seconds(records),
    ]


def _beyond(cell: Cell, loss: str, records: Sequence[Record]) -> list[str]:
    found = ensemble_of(records)
    delong = delong_interval(found.scores, found.test)
    value = float(delong.value)
    return [
        cell.name,
        TITLES[loss],
        f"{fmean(found.single):.3f}",
        f"{max(found.single):.3f}",
        *((f"{fmean(found.tta):.3f}", f"{max(found.tta):.3f}") if found.tta else ("-", "-")),
        f"{found.plain:.3f}",
        auc_text(value, float(delong.low), float(delong.high)),
        comparison_text(against(found.scores, found.best_single, found.test)),
        "yes" if value > found.to_pass else "no",
    ]


def _seconds(records: Sequence[Record]) -> str:
    """`12`, or `12 + 30` after a first stage: its seconds are in no run's own."""
    own = _seconds_text(fmean(record["seconds"] for record in records))
    first = [record["first_stage"]["seconds"] for record in records if record.get("first_stage")]
    return f"{own} + {_seconds_text(fmean(first))}" if first else own


def _seconds_text(seconds: float) -> str:
    return f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.1f}"
