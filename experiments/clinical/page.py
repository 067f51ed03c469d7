"""results/medical.md, melanoma.md, ddsm.md and pcam.md: losses by cell, ensembles, metadata, modes of the scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import fmean

from deepauc.metrics.intervals import Estimate
from deepauc.studies.records import tables as t
from deepauc.studies.records.book import Record, RecordBook
from deepauc.studies.records.score_histograms import Separation, separation
from deepauc.text_tables import auc_text, percent_text
from experiments.benchmarks.recipes import TITLES
from experiments.clinical.best import LENGTHS
from experiments.clinical.cells import MEDICAL_CELLS, SKINS, Ensemble, MedicalCell, ensemble_of, paired, together
from experiments.clinical.chest_page import STAGES, minus_ce, second_stages
from experiments.clinical.recipes import LOSSES
from experiments.clinical.scores import against, comparison_text, interval
from experiments.clinical.skin_page import skin_figures, skin_tables

BESIDE_BEST = {"ham": "ham-R-64"}  # where it is not NAME-R-ours
TWO_LOSSES = ("auc_m", "ce")


def _singles(name: str) -> t.Table:
    by_name = {cell.name: cell for cell in MEDICAL_CELLS[name]}

    def column(title: str, text: Callable[[MedicalCell, t.Line], str]) -> t.Column:
        return t.Column(title, lambda line: text(by_name[line.row.labels[0]], line))

    return t.study_table(
        name,
        title="Single models",
        note=(
            "`paper`: printed for the task that this one is, or stands in for. `published`: the best seen of others "
            "on this very task. Test AUC of the last epoch, mean ± standard deviation over training sets or folds. "
            "The intervals and the paired test (DeLong, clustered by patient where patients are known; the bootstrap, "
            "BCa, draws whole patients) are those of the mean of the seeds' scores, or of out-of-fold scores as ranks "
            "within their fold. `minus CE, by set`: paired, 95 % t-interval. Where `alpha = 0` is 0 %, AUC-M is the "
            "square loss with margin m. `s per run`: its share of a pack; behind a plus sign the first stage, which "
            "losses may share."
        ),
        labels=("cell", "loss", "paper", "published"),
        rows=tuple(
            t.Row(
                labels=(
                    *(one.name, TITLES[loss]),
                    "-" if one.paper is None else f"{one.paper[LOSSES.index(loss)]:.4f}",
                    "-" if one.published is None else f"{one.published:.3f}",
                ),
                study=f"{one.name}-{loss}",
                versus=None if loss == "ce" else f"{one.name}-ce",
                key=("medical", one.name, loss),
            )
            for one in MEDICAL_CELLS[name]
            for loss in one.losses
        ),
        columns=(
            t.MEAN,
            column("DeLong 95 %", _delong),
            column("bootstrap 95 %", _bootstrap),
            t.Column("minus CE, by set", t.DIFFERENCE.text),
            column("minus CE, paired DeLong", _minus_ce),
            column("test images (positive)", _images),
            *(t.SETTINGS, t.ALPHA_ZERO, t.SETS, t.SECONDS, t.CUT),
        ),
    )


def _delong(cell: MedicalCell, line: t.Line) -> str:
    test = together(cell, line.final)
    found = interval(test.plain, test)
    return auc_text(found.value, found.low, found.high)


def _bootstrap(cell: MedicalCell, line: t.Line) -> str:
    test = together(cell, line.final)
    found = interval(test.plain, test, method="bootstrap")
    return f"[{found.low:.3f}, {found.high:.3f}]"


def _minus_ce(cell: MedicalCell, line: t.Line) -> str:
    found = paired(cell, line.final, line.versus) if line.versus else None
    return "" if found is None else comparison_text(found)


def _images(cell: MedicalCell, line: t.Line) -> str:
    labels = together(cell, line.final).labels
    return f"{len(labels):,} ({int((labels == 1).sum()):,})"


def _joined(book: RecordBook, name: str) -> Iterator[tuple[MedicalCell, str, Ensemble]]:
    """Of the cells whose training sets share a test part."""
    for cell in (one for one in MEDICAL_CELLS[name] if not one.folds):
        for loss in cell.losses:
            if len(records := book.final(f"{cell.name}-{loss}")) > 1:
                yield cell, loss, ensemble_of(records)


def _ensembles(name: str) -> t.Table:
    def lines(books: t.Books) -> Iterator[list[str]]:
        for cell, loss, found in _joined(books(name), name):
            delong = interval(found.scores, found.test)
            tta = (fmean(found.tta), max(found.tta)) if found.tta else ()
            yield [
                *(cell.name, TITLES[loss], f"{fmean(found.single):.3f}", f"{max(found.single):.3f}"),
                *([f"{value:.3f}" for value in tta] or ["-", "-"]),
                f"{found.plain:.3f}",
                auc_text(delong.value, delong.low, delong.high),
                comparison_text(against(found.scores, found.best_single, found.test)),
                "yes" if delong.value > found.to_pass else "no",
            ]

    return t.Table(
        title="Ensembles and test-time augmentation",
        note=(
            "The mean of the seeds' scores after a sigmoid; TTA: the mean raw score of 30 augmented copies. `best` is "
            "the best of the seeds on this very test part: no choice of a model, but what an ensemble has to pass, "
            "with TTA or without. The difference to it is paired (DeLong), its interval that of the test images."
        ),
        header=(
            *("cell", "loss", "single, mean", "single, best", "TTA, mean", "TTA, best", "ensemble"),
            *("ensemble + TTA [95 %]", "minus the best single", "above any single"),
        ),
        lines=lines,
    )


def _best() -> t.Table:
    return t.study_table(
        "medical",
        title="`best` on the stand-ins",
        note=(
            "`-R-best`: the recipe of the study `best`, first stage on views of the training images of that "
            "set or fold. Nothing is tuned on these tasks: `settings from` names the last lever of the search on C10 "
            "at 1 %. Lengths are the task's own. `minus`: the cell beside it, the same loss, by set."
        ),
        labels=("cell", "loss", "beside"),
        rows=tuple(
            t.Row(
                labels=(f"{name}-R-best", TITLES[loss], _beside(name)),
                study=f"{name}-R-best-{loss}",
                versus=f"{_beside(name)}-{loss}",
            )
            for name in LENGTHS
            for loss in ("ce", "auc_m")
        ),
        columns=(
            t.Column("minus [95 %]", t.DIFFERENCE.text),
            t.Column("settings from", lambda line: t.each_once(map(_origin, line.final))),
            t.Column("settings", lambda line: t.each_once(map(_fixed, line.final))),
        ),
    )


def _origin(record: Record) -> str:
    return str((record.get("selection") or {}).get("inherited from", ""))


def _fixed(record: Record) -> str:
    return t.settings_text({name: v for name, v in record["fixed"].items() if name not in ("loss", "network")})


def _beside(family: str) -> str:
    return BESIDE_BEST.get(family, f"{family}-R-ours")


def separations(book: RecordBook, study: str) -> dict[int, Separation]:
    """By fold, of the training scores of each run that has kept them and whose bins tell them apart."""
    kept = (record for record in book.final(study) if "train" in record.get("score_histogram", {}))
    found = {record["seed"]: separation(record["score_histogram"]["train"]) for record in kept}
    return {fold: one for fold, one in found.items() if one is not None}


def _modes(name: str) -> t.Table:
    def lines(books: t.Books) -> Iterator[list[str]]:
        for cell in (one for one in MEDICAL_CELLS[name] if one.folds):
            by_loss = {loss: separations(books(name), f"{cell.name}-{loss}") for loss in TWO_LOSSES}
            apart = {loss: {fold: one.apart for fold, one in found.items()} for loss, found in by_loss.items()}
            for loss, found in by_loss.items():
                if found:
                    minus = t.paired(apart["auc_m"], apart["ce"]) if loss == "auc_m" else None
                    shown = t.mean_text(list(apart[loss].values()), 2), t.interval_text(minus, 2)
                    overlap = percent_text(fmean(one.overlap for one in found.values()))
                    yield [cell.name, TITLES[loss], str(len(found)), *shown, overlap]

    return t.Table(
        title="A8: training scores of melanoma and the rest",
        note=(
            "The paper's claim: with AUC-M (and metadata) the training predictions make two well-separated patterns, "
            "with CE they are more mixed. Raw scores of the last epoch. `class means apart`: in root mean square "
            "standard deviations of the two classes (without folds in which a few scores far out leave most of both "
            "classes in one bin of 40); two normals of one width and one weight have two modes above 2. `minus CE`: "
            "by fold (folds share training rows: too narrow). `overlap`: the area that the classes' histograms have "
            "in common. isic-M and -meta cells see age, sex and site alone."
        ),
        header=("cell", "loss", "folds", "class means apart, sd", "minus CE [95 %]", "overlap"),
        lines=lines,
    )


def _figures(books: t.Books, name: str) -> t.Figures:
    """medical.CELL, beside the losses' own: `ensemble`, `tta`, `apart`; `fusion` of skin; `LOSS-beside` of `best`."""
    book, parts = books(name), list[t.Figures]()
    for cell, loss, one in _joined(book, name):
        gain = against(one.scores, one.best_single, one.test)
        value = interval(one.scores, one.test).value
        found: t.Figures = {"ensemble": {"mean": one.plain, "tta": value, "to_pass": one.to_pass}}
        found["ensemble"]["minus_best"] = [float(x) for x in (gain.difference, gain.low, gain.high)]
        parts.append({cell.name: {loss: found | ({"tta": fmean(one.tta)} if one.tta else {})}})
    for cell in MEDICAL_CELLS[name]:
        for loss in TWO_LOSSES:
            if apart := separations(book, f"{cell.name}-{loss}"):
                parts.append({cell.name: {loss: {"apart": fmean(one.apart for one in apart.values())}}})
    for family in LENGTHS if name == "medical" else ():
        for loss in TWO_LOSSES:
            both = (book.final(f"{cell}-{loss}") for cell in (f"{family}-R-best", _beside(family)))
            if (minus := t.between(*both)) is not None:
                parts.append({f"{family}-R-best": {f"{loss}-beside": t.interval_figures(minus)}})
    parts += [skin_figures(book, skin) for skin in SKINS.get(name, ())]
    if name == "medical" and book.studies():
        parts.append({"counts": _counts(books, t.merged([_singles(name).figures(books)["medical"], *parts]))})
    found = t.merged(parts)
    return {"medical": found} if found else {}


def _counts(books: t.Books, cells: t.Figures) -> t.Figures:
    """Of AUC-M against CE over the cells and the chest X-rays; of alpha; of ensembles."""
    against_ce = [Estimate(*cell["auc_m-ce"].values()) for cell in cells.values() if "auc_m-ce" in cell]
    for name in ("chest", "chest-printed"):
        own = next((records for _, records in second_stages(books, name)), [])
        against_ce += [one for apart in STAGES.values() if (one := minus_ce(own, "auc_m", apart)) is not None]
    never = [cell["auc_m"].get("alpha_zero") == 0 for cell in cells.values() if "auc_m" in cell]
    rows = [(name, one) for name, cell in cells.items() for one in cell.values() if "ensemble" in one and "sets" in one]
    above = [one["ensemble"]["tta"] > one["ensemble"]["to_pass"] for _, one in rows]
    level = [
        one["ensemble"]["minus_best"][2] >= 0 for (_, one), is_above in zip(rows, above, strict=True) if not is_above
    ]
    copies = {}
    for start in ("breast", "pneumonia", "path"):
        own = [one for name, one in rows if name.startswith(start) and "tta" in one]
        copies[start] = {"rows": len(own), "up": sum(round(one["tta"], 3) > round(one["mean"], 3) for one in own)}
    below = [one.high >= 0 for one in against_ce if one.value < 0]
    told = {"at_least": len(against_ce) - len(below), "level_below": sum(below)}
    return {
        "auc_m-ce": {**t.counted(against_ce), **told},
        "alpha": {"cells": len(never), "never": sum(never)},
        "ensembles": {"rows": len(rows), "above": sum(above), "not_above": len(level), "level": sum(level)},
        "copies": copies,
    }


def medical_page(name: str, title: str, note: str) -> t.Page:
    """The page of one of the four sets of studies."""
    skins = [table for skin in SKINS.get(name, ()) for table in skin_tables(name, skin)]
    best = [_best()] if name == "medical" else []
    return t.Page(
        name=name,
        title=title,
        note=note,
        tables=(_singles(name), _ensembles(name), *best, *skins, _modes(name)),
        figures=lambda books: _figures(books, name),
    )


PAGES = {
    "medical": medical_page(
        "medical",
        "Medical stand-ins",
        "The data are others than the paper's: its figure says how far the losses lie apart there, not what could be "
        "reached here. `-printed`: the paper's settings (D6, D7, D8) to the letter, but for task, image size and "
        "epochs. DenseNet121 takes no image below 29 px: those of 28 have a border of 2. `-R-paper`: settings as "
        "printed (D7, D8) but for the length, with ResNet20, flips or small affine changes, and a part of the printed "
        "grids drawn by seed 14. Other cells of HAM10000: D6 but for the length and the network; larger learning "
        "rates are tried too. `-R-ours`: learning rates that fall, more epochs, other grids. Nothing is pretrained. "
        "CE and focal loss have as many epochs as both stages of an AUC loss together; no guard puts CE's network in "
        "an AUC row. Settings are chosen on validation AUC. MedMNIST: tuned on the official validation part, then "
        "refitted on train + validation. PathMNIST: 69 tumours among 6,893 training patches, test part from another "
        "clinic. HAM10000: five folds by lesion of the 5,984 images with metadata, 1,511 images of ISIC 2018 in every "
        "training part and in no other. ISIC 2020: the true table of 33,126 rows, five folds by patient, no pixels. "
        "That `ham-D-32`, `ham-R-best` and `ham-printed` are at 32 px, for their time, was decided when the test AUC "
        "of ResNet20 at both sizes was known.\n\nPublished at 28 px on the official parts, trained on train alone: "
        "PneumoniaMNIST .944 (ResNet-18 of MedMNIST v2), .973 (best seen), .966 and .987 (users of LibAUC, the latter "
        "trained on train + validation); BreastMNIST .901, .891 to .901, .888 to .923. Published DermaMNIST, "
        "PathMNIST and ChestMNIST figures are of other tasks.",
    ),
    "melanoma": medical_page(
        "melanoma",
        "SIIM-ISIC melanoma",
        "`paper`: EfficientNet-B5 at 384 px on the competition's private part, no TTA, whatever the row's network. "
        "The rows are of other images: those of `train.csv`, each scored by the network of the fold that has not seen "
        "its patient.",
    ),
    "ddsm": medical_page("ddsm", "DDSM+", "Which positives the paper dropped from the test part is not known."),
    "pcam": medical_page(
        "pcam", "PatchCamelyon at 1 %", "Which positives the paper dropped from the training part is not known."
    ),
}
