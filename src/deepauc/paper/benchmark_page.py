"""results/paper-tables.md: the paper's figures beside ours, made from the records alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from deepauc.data.imbalance import positives_for
from deepauc.paper.benchmark_tables import CELLS, LOSSES, NOT_RUN, REMARKS, Cell, cell_study
from deepauc.paper.recipes import RECIPES, TITLES
from deepauc.paper.study_figures import picture_links
from deepauc.paper.toy import MeanInterval, mean_interval
from deepauc.reporting.tables import markdown_table, percent_text
from deepauc.studies.records import Record, RecordBook
from deepauc.training.folder import code_version

NEGATIVES = {"C2": 10_000, "C10": 25_000, "C100": 25_000, "S10": 2_500}
HEADER = (
    *("cell", "recipe", "loss", "paper", "ours", "reached", "seeds"),
    *("selected", "alpha = 0", "GPU s", "tuning", "cut"),
)
COMPARED = (("auc_m", "ce"), ("auc_m", "auc_s"), ("auc_s", "ce"))
SELECTED_NAMES = {"margin": "m", "focal_alpha": "alpha"}


def page(results: Path) -> str:
    """The whole page as markdown."""
    book = RecordBook(results / "paper-tables")
    rows, differences, tuned, left = [], [], [], []
    for cell in CELLS:
        for recipe in RECIPES:
            for loss in LOSSES:
                records = book.final(cell.study_name(recipe, loss))
                if records:
                    rows.append(_row(cell, recipe, loss, records, book))
                tuned += _tuning_row(cell, recipe, loss, book)
            differences += _differences(cell, recipe, book)
            left += _not_run(cell, recipe, book)
    parts = [
        "# The paper's benchmark tables",
        _introduction(book),
        markdown_table(HEADER, rows) if rows else "No final run is recorded yet.",
    ]
    if differences:
        parts += [
            "## Paired differences of test AUC",
            "Mean over the training sets that both losses have, with a 95 % t-interval. A difference is confirmed or "
            "refuted where the interval leaves out 0; elsewhere it is open.",
            markdown_table(("cell", "recipe", "difference", "sets", "mean [95 %]", "verdict"), differences),
        ]
    if tuned:
        parts += [
            "## What tuning saw",
            "Validation AUC of each setting, mean over the tuning sets, best first. With so few positives differences "
            "of .03 are noise.",
            markdown_table(("cell", "recipe", "loss", "sets", "settings"), tuned),
        ]
    if left:
        parts += [
            "## Not run",
            "GPU minutes of the study as declared, from the measured seconds a step of records with the same network "
            "on a GPU; a cut grid takes less.",
            markdown_table(("cell", "recipe", "final runs missing", "GPU minutes"), left),
        ]
    return "\n\n".join([*parts, *picture_links(results, "paper-tables")]) + "\n"


def _introduction(book: RecordBook) -> str:
    finals = [record for name in book.studies() for record in book.final(name)]
    lines = [
        "Made by `deepauc study table paper-tables` from `results/paper-tables/`; `deepauc study run paper-tables` "
        "makes the records. Test AUC of the last epoch, mean ± standard deviation over random training sets, beside "
        "the paper's. Settings are chosen on validation AUC (three training sets at 1 %, one at 10 %, fewer where the "
        "last column says so), then refitted on all training images; no test score has a say. At 1 % a validation part "
        "holds 25 positives, so the standard error of one validation AUC is about .05, and of a mean of three about "
        ".03 (C2 has 10 there, and larger ones): the selection is noisy.",
        "",
        "`literal` is Theorem 1 with its factor p(1 - p) and the printed grids at lr 0.1; `paper` divides by p(1 - p) "
        "and tunes the learning rate of each loss (`deepauc.paper.recipes` says all of it). `alpha = 0` is the share "
        "of steps at which AUC-M's alpha was 0: where it is 0 %, AUC-M is the square loss with margin m. GPU s: of one "
        "final run, its share of a pack. C2 has other pixels than the paper's (32 x 32 from a lossy copy, a split of "
        "our own); C100 draws from a fixed pool of 8,000 positives; S10: not run, images not available. `reached`: our "
        "mean is at least the paper's.",
    ]
    if finals:
        machines = sorted({record["hardware"] for record in finals})
        torches = sorted({record["versions"]["torch"] for record in finals})
        other = sum(record["code_version"] != code_version() for record in finals)
        made = f"{len(finals)} final runs on {', '.join(machines)}, torch {', '.join(torches)}"
        lines += ["", made + (f"; {other} of them by another version of the code than this page." if other else ".")]
    return "\n".join(lines)


def _row(cell: Cell, recipe: str, loss: str, records: Sequence[Record], book: RecordBook) -> list[str]:
    study = cell.study_name(recipe, loss)
    values = [record["auc"]["test"][0] for record in records]
    mean, spread = cell.published(loss)
    shares = [r["alpha_zero_share"] for r in records if r["alpha_zero_share"] is not None and loss == "auc_m"]
    tuning = book.tuning(study)
    remark = f" ({REMARKS[cell.benchmark]})" if cell.benchmark in REMARKS else ""
    return [
        cell.name + remark,
        recipe,
        TITLES[loss],
        f"{mean:.3f} ± {spread:.3f}",
        f"{fmean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else ""),
        "yes" if fmean(values) >= mean else "no",
        str(len(values)),
        "; ".join(dict.fromkeys(_settings(record["config"]) for record in records)) or "-",
        percent_text(fmean(shares)) if shares else "-",
        f"{fmean(record['seconds'] for record in records):.0f}",
        _tuning_text(tuning),
        "; ".join(dict.fromkeys(_settings(record["cut"]) for record in records)) or "-",
    ]


def _tuning_text(tuning: Sequence[Record]) -> str:
    if not tuning:
        return "-"
    failed = sum("failed" in record for record in tuning)
    seconds = sum(record.get("seconds", 0.0) for record in tuning)
    return f"{len(tuning)} runs, {seconds:.0f} s" + (f", {failed} diverged" if failed else "")


def _tuning_row(cell: Cell, recipe: str, loss: str, book: RecordBook) -> list[list[str]]:
    """One row where something was tuned: each setting with its mean validation AUC."""
    by_setting: dict[str, list[float]] = {}
    for record in book.tuning(cell.study_name(recipe, loss)):
        if "failed" not in record:
            by_setting.setdefault(_settings(record["config"]), []).append(record["auc"]["validation"][0])
    if not by_setting:
        return []
    best_first = sorted(by_setting.items(), key=lambda item: -fmean(item[1]))
    shown = "; ".join(f"{fmean(values):.3f} ({setting})" for setting, values in best_first)
    return [[cell.name, recipe, TITLES[loss], str(max(len(values) for values in by_setting.values())), shown]]


def _settings(config: dict[str, object]) -> str:
    shown = []
    for name, value in config.items():
        if name in ("gamma",) and isinstance(value, float) and value:
            shown.append(f"gamma 1/{1 / value:.0f}")
        else:
            number = f"{value:g}" if isinstance(value, float) else str(value)
            shown.append(f"{SELECTED_NAMES.get(name, name)} {number}")
    return ", ".join(shown)


@dataclass(frozen=True)
class Difference:
    """One loss minus another over the training sets both have."""

    first: str
    second: str
    interval: MeanInterval
    sets: int

    @property
    def verdict(self) -> str:
        if self.interval.low > 0:
            return "confirmed"
        return "refuted" if self.interval.high < 0 else "open"


def paired(book: RecordBook, cell: Cell, recipe: str, first: str, second: str) -> Difference | None:
    """Test AUC of `first` minus `second`, training set by training set; None with fewer than two in common."""
    a, b = (
        {record["seed"]: record["auc"]["test"][0] for record in book.final(cell.study_name(recipe, loss))}
        for loss in (first, second)
    )
    common = sorted(set(a) & set(b))
    if len(common) < 2:
        return None
    interval = mean_interval(np.array([a[seed] - b[seed] for seed in common]))
    return Difference(first, second, interval, len(common))


def _differences(cell: Cell, recipe: str, book: RecordBook) -> list[list[str]]:
    rows = []
    for first, second in COMPARED:
        found = paired(book, cell, recipe, first, second)
        if found is not None:
            shown = f"{found.interval.value:+.3f} [{found.interval.low:+.3f}, {found.interval.high:+.3f}]"
            names = f"{TITLES[first]} - {TITLES[second]}"
            rows.append([cell.name, recipe, names, str(found.sets), shown, found.verdict])
    return rows


def _not_run(cell: Cell, recipe: str, book: RecordBook) -> list[list[str]]:
    """One row for a cell and recipe with final runs missing, none where all are there."""
    missing, steps = [], 0
    for loss in LOSSES:
        there = len(book.final(cell.study_name(recipe, loss)))
        wanted = len(cell_study(cell, recipe, loss).seeds)
        if there < wanted:
            missing.append(f"{TITLES[loss]} {wanted - there}")
            steps += steps_of(cell, recipe, loss, finals_there=there)
    if not missing:
        return []
    if cell.benchmark in NOT_RUN:
        return [[cell.name, recipe, "all", f"not run: {NOT_RUN[cell.benchmark]}"]]
    rate = seconds_a_step(book, cell.network)
    return [[cell.name, recipe, ", ".join(missing), "-" if rate is None else f"{steps * rate / 60:.0f}"]]


def seconds_a_step(book: RecordBook, network: str) -> float | None:
    """Measured GPU seconds of one step of one run, mean over the records of a network; None without any."""
    records = [
        record
        for cell in CELLS
        if cell.network == network
        for recipe in RECIPES
        for loss in LOSSES
        for record in (*book.final(cell.study_name(recipe, loss)), *book.tuning(cell.study_name(recipe, loss)))
        if "seconds" in record and not record["hardware"].startswith("CPU") and record["fixed"]["network"] == network
    ]
    steps = sum(record["steps"] for record in records)
    return sum(record["seconds"] for record in records) / steps if steps else None


def steps_of(cell: Cell, recipe: str, loss: str, *, finals_there: int = 0) -> int:
    """Optimisation steps of the declared study: the whole grid on 90 %, then the seeds that are missing."""
    study = cell_study(cell, recipe, loss)
    stage = study.recipe(study.configs[0], "final").stages[0]
    negatives = NEGATIVES[cell.benchmark]
    rows = negatives + positives_for(negatives, cell.percent / 100)
    tuning = len(study.configs) * len(study.tuning_seeds) if study.tuned and not finals_there else 0
    final = len(study.seeds) - finals_there
    return (stage.epochs or 0) * (tuning * int(0.9 * rows) + final * rows) // stage.batch_size
