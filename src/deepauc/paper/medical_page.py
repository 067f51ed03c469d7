"""results/medical.md, melanoma.md, ddsm.md and pcam.md: from the records alone, beside the paper's figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from deepauc.metrics.auroc import auroc
from deepauc.paper.medical_chest_page import chest_sections
from deepauc.paper.medical_scores import Floats, TestScores, against, intervals, joined_scores, pooled, read_scores
from deepauc.paper.medical_skin_page import SkinCells, skin_sections
from deepauc.paper.medical_studies import HAM_NETWORKS, LOSSES, MELANOMA_NETWORKS
from deepauc.paper.recipes import TITLES
from deepauc.paper.toy import mean_interval
from deepauc.reporting.tables import auc_text, markdown_table, percent_text
from deepauc.studies.records import Record, RecordBook
from deepauc.training.folder import code_version

HEADER = (
    *("cell", "loss", "paper", "ours", "DeLong 95 %", "bootstrap 95 %", "minus CE, by set", "minus CE, paired DeLong"),
    *("selected", "alpha = 0", "runs", "s a run"),
)
BEYOND = ("cell", "loss", "single, mean", "single, best", "TTA, mean", "ensemble", "ensemble + TTA", "above any single")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A row of four losses. paper: test AUC of CE, focal, AUC-S and AUC-M on the task it stands in for."""

    name: str
    paper: tuple[float, ...] | None = None
    folds: bool = False


_DDSM, _PCAM = (0.9392, 0.9495, 0.9469, 0.9544), (0.8394, 0.8556, 0.8703, 0.8896)
_MELANOMA = (0.9285, 0.9266, 0.9332, 0.9357)  # private part, EfficientNet-B5 at 384 px, without TTA
CELLS = {
    "medical": (
        *(Cell(name=f"breast-{which}", paper=_DDSM) for which in ("R-paper", "R-ours", "D-paper")),
        *(Cell(name=f"pneumonia-{which}") for which in ("R-paper", "R-ours")),
        *(Cell(name=f"path-{which}", paper=_PCAM) for which in ("R-paper", "R-ours", "D-paper")),
        *(Cell(name=f"ham-{which}", paper=_MELANOMA, folds=True) for which in HAM_NETWORKS),
        Cell(name="ham-meta", folds=True),
        Cell(name="isic-M", folds=True),
    ),
    "melanoma": (
        *(Cell(name=f"melanoma-{which}", paper=_MELANOMA, folds=True) for which in MELANOMA_NETWORKS),
        Cell(name="melanoma-meta", folds=True),
    ),
    "ddsm": (Cell(name="ddsm-D", paper=_DDSM),),
    "pcam": (Cell(name="pcam-D", paper=_PCAM),),
}
TITLE = {
    "medical": "Medical stand-ins",
    "melanoma": "SIIM-ISIC melanoma",
    "ddsm": "DDSM+",
    "pcam": "PatchCamelyon at 1 %",
}
SKIN = {
    "medical": SkinCells(name="ham", networks=HAM_NETWORKS),
    "melanoma": SkinCells(name="melanoma", networks=MELANOMA_NETWORKS),
}
PUBLISHED = (
    "Published, at 28 px on the official parts (training on train alone): PneumoniaMNIST .944 (ResNet-18 of MedMNIST "
    "v2), .973 (best seen), .966 and .987 (users of LibAUC, the latter trained on train + validation); BreastMNIST "
    ".901, .891 to .901, .888 to .923. Published DermaMNIST, PathMNIST and ChestMNIST figures are of other tasks "
    "(seven and nine classes, 14 labels) and are no measure for these rows."
)
ABOUT = (
    "`paper`: the figure the paper prints for the task this one stands in for. The data are others: it says how far "
    "the losses lie apart there, not what could be reached here. `-R-paper`: settings as printed (D7, D8) but for the "
    "length, with ResNet20, flips or small affine changes (the paper names none), and a part of the printed grids "
    "drawn by seed 14 (5 of 5, 8 of 45, 9 of 9, 12 of 36). HAM10000: D6 but for the length and the network; larger "
    "learning rates are tried too. `-R-ours`: learning rates that fall, more epochs, other grids. `-D`: DenseNet121 "
    "with what ResNet20 has selected. Nothing is pretrained. CE and focal loss have as many epochs as both stages of "
    "an AUC loss together; no guard puts CE's network in an AUC row. Settings are chosen on validation AUC. MedMNIST: "
    "tuned on the official validation part, then refitted on train + validation. PathMNIST: 69 tumours among 6,893 "
    "training patches, other positives dropped by seed, test part from another clinic. HAM10000: five folds by lesion "
    "of the 5,984 images with metadata (its patients are not known; one image a lesion), 1,511 images of ISIC 2018 in "
    "every training part and in no other. ISIC 2020: the true table of 33,126 rows, five folds by patient, no pixels."
)


def page(results: Path, name: str = "medical") -> str:
    """The whole page as markdown."""
    book = RecordBook(results / name)
    rows, beyond = [], []
    for cell in CELLS[name]:
        tests = {loss: book.final(f"{cell.name}-{loss}") for loss in LOSSES}
        rows += [_row(cell, loss, records, tests["ce"]) for loss, records in tests.items() if records]
        if not cell.folds:
            beyond += [_beyond(cell, loss, records) for loss, records in tests.items() if len(records) > 1]
    parts = [f"# {TITLE[name]}", _introduction(name, book)]
    parts += ["## Single models", markdown_table(HEADER, rows) if rows else "No final run is recorded yet.", _READING]
    if beyond:
        parts += [
            "## Ensembles and test-time augmentation",
            "The mean of the seeds' scores after a sigmoid; TTA: the mean raw score of 30 augmented copies.",
            markdown_table(BEYOND, beyond),
        ]
    if name in SKIN:
        parts += skin_sections(book, SKIN[name])
    if name == "medical":
        parts += chest_sections(results, "chest")
    return "\n\n".join(parts) + "\n"


_READING = (
    "`ours`: mean test AUC of the last epoch over training sets or folds, ± standard deviation. Intervals and the "
    "paired test (DeLong, clustered by patient where patients are known; the bootstrap, BCa, "
    "draws whole patients) are those of the mean of the seeds' scores, or of out-of-fold scores as ranks within their "
    "fold. `minus CE, by set`: mean difference with a 95 % t-interval over sets. `alpha = 0`: share of AUC-M's steps; "
    "where it is 0 %, AUC-M is the square loss with margin m."
)


def _introduction(name: str, book: RecordBook) -> str:
    lines = [f"Made by `deepauc study table {name}` from `results/{name}/`; `deepauc study run {name}` makes those."]
    if name == "medical":
        lines += ["", ABOUT, "", PUBLISHED]
    finals = [record for study in book.studies() for record in book.final(study)]
    if finals:
        machines = ", ".join(sorted({record["hardware"] for record in finals}))
        other = sum(record["code_version"] != code_version() for record in finals)
        cuts = sorted({f"{key}={value}" for record in finals for key, value in record["cut"].items()})
        made = f"{len(finals)} final runs on {machines}; {other} of them by other code than this page's."
        lines += ["", made + (f" Cut: {', '.join(cuts)}." if cuts else "")]
    return "\n".join(lines)


def _row(cell: Cell, loss: str, records: Sequence[Record], baseline: Sequence[Record]) -> list[str]:
    values = [record["auc"]["test"][0] for record in records]
    test = together(cell, records)
    delong, bootstrap = intervals(test.plain, test)
    shares = [r["alpha_zero_share"] for r in records if r["alpha_zero_share"] is not None and loss == "auc_m"]
    paper = "-" if cell.paper is None else f"{cell.paper[LOSSES.index(loss)]:.4f}"
    return [
        cell.name,
        TITLES[loss],
        paper,
        f"{fmean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else ""),
        auc_text(float(delong.value), float(delong.low), float(delong.high)),
        f"[{float(bootstrap.low):.3f}, {float(bootstrap.high):.3f}]",
        *(("-", "-") if loss == "ce" else _differences(cell, records, baseline)),
        "; ".join(dict.fromkeys(_settings(record["config"]) for record in records)) or "-",
        percent_text(fmean(shares)) if shares else "-",
        str(len(records)),
        f"{fmean(record['seconds'] for record in records):.0f}",
    ]


def together(cell: Cell, records: Sequence[Record]) -> TestScores:
    """All runs of a loss as one: the mean over seeds of one test part, or the folds side by side."""
    scores = [read_scores(record) for record in records]
    if cell.folds:
        return pooled(scores, [one.plain for one in scores])
    mean = joined_scores([one.plain for one in scores])
    return TestScores(plain=mean, labels=scores[0].labels, tta=None, groups=scores[0].groups)


def _differences(cell: Cell, records: Sequence[Record], baseline: Sequence[Record]) -> tuple[str, str]:
    """Over the sets that both have."""
    ours = {record["seed"]: record for record in records}
    theirs = {record["seed"]: record for record in baseline}
    common = sorted(set(ours) & set(theirs))
    if not common:
        return "-", "-"
    by_set = "-"
    if len(common) > 1:
        found = mean_interval(
            np.array([ours[seed]["auc"]["test"][0] - theirs[seed]["auc"]["test"][0] for seed in common])
        )
        by_set = f"{found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"
    mine, other = (together(cell, [some[seed] for seed in common]) for some in (ours, theirs))
    return by_set, paired_text(mine.plain, other.plain, mine)


def paired_text(scores: Floats, other: Floats, test: TestScores) -> str:
    """`+0.012 [-0.003, +0.027], p .11`."""
    found = against(scores, other, test)
    p = float(found.p_value)
    shown = "p < .001" if p < 0.001 else f"p {p:.3f}".replace("0.", ".")
    return f"{float(found.difference):+.3f} [{float(found.low):+.3f}, {float(found.high):+.3f}], {shown}"


def _beyond(cell: Cell, loss: str, records: Sequence[Record]) -> list[str]:
    scores = [read_scores(record) for record in records]
    labels = scores[0].labels
    single = [float(auroc(one.plain, labels)) for one in scores]
    tta = [float(auroc(one.tta, labels)) for one in scores if one.tta is not None]
    plain = float(auroc(joined_scores([one.plain for one in scores]), labels))
    both = float(auroc(joined_scores([one.best for one in scores]), labels))
    return [
        cell.name,
        TITLES[loss],
        f"{fmean(single):.3f}",
        f"{max(single):.3f}",
        f"{fmean(tta):.3f}" if tta else "-",
        f"{plain:.3f}",
        f"{both:.3f}" if tta else "-",
        "yes" if (both if tta else plain) > max(single) else "no",
    ]


def _settings(config: dict[str, object]) -> str:
    names = {"margin": "m", "focal_alpha": "alpha", "focal_gamma": "gamma"}
    shown = []
    for name, value in config.items():
        number = f"1/{1 / value:.0f}" if name == "gamma" and isinstance(value, float) else f"{value:g}"
        shown.append(f"{names.get(name, name)} {number}")
    return ", ".join(shown)
