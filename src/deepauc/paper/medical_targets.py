"""What the stand-ins were to reach, beside what they have; and what was not run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from deepauc.metrics.comparison import Comparison
from deepauc.metrics.mean_interval import MeanInterval
from deepauc.paper.benchmark_settings import settings_text
from deepauc.paper.medical_best import LENGTHS
from deepauc.paper.medical_cells import (
    SEEDS,
    Cell,
    by_set,
    comparison_text,
    ensemble_of,
    interval_text,
    tests_of,
)
from deepauc.paper.medical_chest_page import mean_by_run
from deepauc.paper.medical_chest_plan import PRINTED_STAND_IN, STAND_IN, expected_runs
from deepauc.paper.medical_scores import delong_interval
from deepauc.paper.medical_skin_page import SkinCells, ensemble_gain, fusion_gains
from deepauc.paper.recipes import TITLES
from deepauc.reporting.tables import auc_text, markdown_table
from deepauc.studies.record_file import read_named
from deepauc.studies.records import RecordBook

CHEST = (STAND_IN, PRINTED_STAND_IN)
COST = 1.1  # of a step on five labels, in steps on one
ENSEMBLE = "ensemble + TTA above any single model"
BESIDE_BEST = {"ham": "ham-R-64"}  # where it is not NAME-R-ours
HEADER = ("aim", "where", "measured", "reached")


def target_sections(results: Path, book: RecordBook, cells: Sequence[Cell], skins: Sequence[SkinCells]) -> list[str]:
    """One row an aim and place, then the cells of `best`; nothing where nothing was run."""
    rows = [*_against_ce(results, book, cells), *_against_published(book, cells), *_ensembles(book, cells)]
    rows += [*(row for skin in skins for row in _skin(book, skin)), *_cost(results)]
    text = (
        "Nothing here was chosen on test parts, but for `learned`: how much metadata count comes from the test scores "
        "of the other folds, see below. That `ham-D-32`, `ham-R-best` and `ham-printed` are at 32 px, for their time, "
        "was decided when the test AUC of ResNet20 at both sizes was known. `no, within noise`: below, but the "
        "interval holds 0. CE's rows have as many epochs as both stages of AUC-M together; in `-R-best` each has what "
        "its search has chosen."
    )
    aims = ["## Aims", text, markdown_table(HEADER, rows)] if rows else []
    return [*aims, *_best(book)]


def _best(book: RecordBook) -> list[str]:
    """The cells of `best`: by which search their settings were chosen, and what they gain over the cell beside them."""
    rows = []
    for name in LENGTHS:
        beside = BESIDE_BEST.get(name, f"{name}-R-ours")
        for loss in ("ce", "auc_m"):
            records = book.final(f"{name}-R-best-{loss}")
            if not records:
                continue
            origins = ((record["selection"] or {}).get("inherited from", "not recorded") for record in records)
            named = ({k: v for k, v in r["fixed"].items() if k not in ("loss", "network")} for r in records)
            gain = interval_text(by_set(records, book.final(f"{beside}-{loss}")))
            shown = [f"{name}-R-best", TITLES[loss], beside, gain, ", ".join(dict.fromkeys(origins))]
            rows.append([*shown, "; ".join(dict.fromkeys(map(settings_text, named)))])
    if not rows:
        return []
    text = (
        "`-R-best`: the recipe of `deepauc study run best`, first stage on views of the training images of that set "
        "or fold; cross-entropy with what its own search has chosen. Nothing is tuned on these tasks: `settings "
        "from` names the last complete lever of the search on C10 at 1 %, or the defaults. Lengths are the task's own. "
        "`minus`: test AUC minus that of the cell beside it, the same loss, by set, 95 % t-interval."
    )
    header = ("cell", "loss", "beside", "minus", "settings from", "settings")
    return ["## `best` on the stand-ins", text, markdown_table(header, rows)]


def _against_ce(results: Path, book: RecordBook, cells: Sequence[Cell]) -> list[list[str]]:
    aim, rows = "AUC-M's own weights at least CE's mean", []
    for cell in cells:
        tests = tests_of(book, cell)
        if (found := by_set(tests["auc_m"], tests["ce"])) is not None:
            rows.append([aim, cell.name, interval_text(found), _reached(found)])
    for plan in CHEST:
        for text, found in mean_by_run(results, plan.name).items():
            rows.append([aim, f"{plan.name}, {text}", interval_text(found), _reached(found)])
    return rows


def _reached(found: MeanInterval) -> str:
    if found.value >= 0:
        return "yes"
    return "no, within noise" if found.high >= 0 else "no"


def _against_published(book: RecordBook, cells: Sequence[Cell]) -> list[list[str]]:
    """Of single models: their mean over training sets, and beside it the ensemble."""
    rows = []
    for cell in (one for one in cells if one.published is not None):
        records = tests_of(book, cell)["auc_m"]
        if not records or cell.published is None:
            continue
        mean = fmean(record["auc"]["test"][0] for record in records)
        measured = f"mean {mean:.3f}"
        if len(records) > 1:
            together = ensemble_of(records)
            found = delong_interval(together.scores, together.test)
            measured += f", ensemble + TTA {auc_text(float(found.value), float(found.low), float(found.high))}"
        rows.append(
            [
                f"AUC-M above the published {cell.published:.3f}",
                cell.name,
                measured,
                "yes" if mean > cell.published else "no",
            ]
        )
    return rows


def _ensembles(book: RecordBook, cells: Sequence[Cell]) -> list[list[str]]:
    rows = []
    for cell in (one for one in cells if not one.folds):
        found = {loss: ensemble_of(records) for loss, records in tests_of(book, cell).items() if len(records) > 1}
        if found:
            above = {
                TITLES[loss]: float(delong_interval(one.scores, one.test).value) > one.to_pass
                for loss, one in found.items()
            }
            yes = [title for title, is_above in above.items() if is_above]
            measured = f"above: {', '.join(yes) or 'none'}; of {', '.join(above)}"
            reached = "yes" if len(yes) == len(above) else f"{len(yes)} of {len(above)}"
            rows.append([ENSEMBLE, cell.name, measured, reached])
    return rows


def _skin(book: RecordBook, skin: SkinCells) -> list[list[str]]:
    rows = []
    if (found := ensemble_gain(book, skin)) is not None:
        text, gain = found
        rows.append([ENSEMBLE, f"{skin.name}, {text}", comparison_text(gain), _above(gain)])
    for (loss, how), gain in fusion_gains(book, skin).items():
        where = f"{skin.name}-{skin.networks[0]}, {TITLES[loss]}, {how}"
        rows.append(["image + metadata above the image alone", where, comparison_text(gain), _above(gain)])
    return rows


def _above(gain: Comparison) -> str:
    if float(gain.difference) > 0:
        return "yes"
    return "no, within noise" if float(gain.high) >= 0 else "no"


def _cost(results: Path) -> list[list[str]]:
    rows = []
    for name, record in sorted(read_named(results / "speed.jsonl").items()):
        for row in record["rows"] if name.startswith("multi-label-") else ():
            reached = "yes" if row["ratio"] <= COST else "no"
            where = f"{row['network']}, {record['hardware']}"
            rows.append([f"five labels at most {COST} of one label's step", where, f"{row['ratio']:.3f}", reached])
    return rows


def not_run(results: Path, book: RecordBook, name: str, cells: Sequence[Cell]) -> list[str]:
    """What is declared and has no final record, so that a short table is not taken for the whole."""
    lines = []
    for cell in cells:
        found = tests_of(book, cell)
        missing = {loss: SEEDS - len(records) for loss, records in found.items() if len(records) < SEEDS}
        if len(missing) == len(found) and all(count == SEEDS for count in missing.values()):
            lines.append(f"- {cell.name}: all {SEEDS * len(found)} runs")
        elif missing:
            lines.append(
                f"- {cell.name}: " + ", ".join(f"{TITLES[loss]} {n} of {SEEDS}" for loss, n in missing.items())
            )
    if name == "medical":
        for plan in CHEST:
            chest = RecordBook(results / plan.name)
            left = expected_runs(plan) - sum(len(chest.final(study)) for study in chest.studies())
            if left > 0:
                lines.append(f"- {plan.name} (`deepauc study run {plan.name}`): {left} of {expected_runs(plan)} runs")
        if not _cost(results):
            lines.append("- the cost of five labels: `python benchmarks/multi_label.py`")
        lines.append(
            "- the real downloads (CheXpert, SIIM-ISIC melanoma, DDSM+, PatchCamelyon): not at hand; "
            "`deepauc study run chexpert`, `melanoma`, `ddsm` and `pcam` are for those who have them"
        )
    return ["## Not run", "\n".join(lines)] if lines else []
