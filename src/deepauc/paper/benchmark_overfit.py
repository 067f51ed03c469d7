"""Which cells of the paper's tables fitted their training images too well, by the records alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from deepauc.paper.benchmark_settings import inheritance
from deepauc.paper.benchmark_tables import CELLS, LOSSES
from deepauc.paper.recipes import RECIPES, TITLES
from deepauc.paper.score_histograms import BinnedAuc, binned_auc
from deepauc.studies.records import Record, RecordBook

FALL = 0.1  # twice the standard error of a validation AUC averaged over three training sets


def train_aucs(records: Sequence[Record]) -> list[BinnedAuc]:
    """AUC on the training images of each run, from its histogram."""
    kept = [record["score_histogram"]["train"] for record in records if "train" in record.get("score_histogram", {})]
    return [found for histogram in kept if (found := binned_auc(histogram)) is not None]


def overfit_text(book: RecordBook) -> list[str]:
    """Runs with a setting from elsewhere that fit their training images better than its owner, and the test worse."""
    found = []
    for cell in CELLS:
        for recipe in RECIPES:
            for loss in LOSSES:
                records = book.final(cell.study_name(recipe, loss))
                parent = inheritance(cell, recipe, loss, records[0]) if records else None
                owners = book.final(parent.study) if parent is not None else []
                mine, theirs = train_aucs(records), train_aucs(owners)
                if parent is None or "lr" not in parent.axes or not mine or not theirs:
                    continue
                test, other = (fmean(record["auc"]["test"][0] for record in some) for some in (records, owners))
                if fmean(one.low for one in mine) > fmean(one.high for one in theirs) and test < other:
                    train, theirs_train = (fmean(one.value for one in some) for some in (mine, theirs))
                    found.append(
                        f"{cell.name} {TITLES[loss]} (`{recipe}`), training AUC {train:.2f} and test AUC {test:.3f}, "
                        f"against {theirs_train:.2f} and {other:.3f} in {parent.place}"
                    )
    if not found:
        return []
    return [
        "Overfitted at an inherited learning rate, by these records (training AUC above that of the cell the setting "
        "comes from, even if every pair inside a bin spoke against it, and test AUC below it): "
        f"{'; '.join(found)}."
    ]


def length_text(book: RecordBook) -> list[str]:
    """Losses whose setting was chosen in shorter runs and whose full runs end far below."""
    found = []
    for cell in CELLS:
        for recipe in RECIPES:
            for loss in LOSSES:
                fall = _fall(book.final(cell.study_name(recipe, loss)))
                if fall is not None and fall.chosen - fall.test > FALL:
                    found.append(
                        f"{cell.name} {TITLES[loss]} (`{recipe}`), {fall.chosen:.3f} after {fall.short} epochs and "
                        f"{fall.test:.3f} after {fall.whole}"
                    )
    if not found:
        return []
    return [
        f"Worse by more than {FALL:g} after all epochs than in the shorter runs that chose the setting (test AUC here, "
        f"validation AUC there): {'; '.join(found)}."
    ]


@dataclass(frozen=True)
class _Fall:
    chosen: float
    test: float
    short: int
    whole: int


def _fall(records: Sequence[Record]) -> _Fall | None:
    """From the validation AUC of the chosen setting, tuned in runs cut short, to the test AUC of the final runs."""
    kept = [record for record in records if "tune_epochs" in record.get("cut", {})]
    validation = kept[0]["selection"].get("validation_auc") if kept else None
    if not validation:
        return None
    test = fmean(record["auc"]["test"][0] for record in kept)
    return _Fall(fmean(validation), test, kept[0]["cut"]["tune_epochs"], kept[0]["recipe"]["stages"][-1]["epochs"])
