"""results/paper-tables.md: the paper's figures beside ours, made from the records alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

from deepauc.data.imbalance import positives_for
from deepauc.paper.benchmark_overfit import length_text, overfit_text, train_aucs
from deepauc.paper.benchmark_settings import (
    as_declared,
    cut_text,
    inheritance,
    settings_text,
    tried_text,
    tuning_text,
)
from deepauc.paper.benchmark_tables import CELLS, LOSSES, NOT_RUN, REMARKS, Cell, cell_study
from deepauc.paper.benchmark_verdict import COMPARED, interval_text, paired, verdict_section
from deepauc.paper.recipes import RECIPES, TITLES
from deepauc.paper.score_histograms import binned_auc
from deepauc.paper.study_figures import cells_without_curves, picture_links
from deepauc.reporting.tables import markdown_table, percent_text
from deepauc.studies.records import Record, RecordBook
from deepauc.training.folder import by_other_numerics

NEGATIVES = {"C2": 10_000, "C10": 25_000, "C100": 25_000, "S10": 2_500}
HEADER = (
    *("cell", "recipe", "loss", "paper", "ours", "reached", "seeds", "train AUC"),
    *("selected", "alpha = 0", "GPU s", "tuning", "cut"),
)
_NOTHING: dict[str, list[int]] = {"negative": [], "positive": []}


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
                if (tried := tried_text(book.tuning(cell.study_name(recipe, loss)))) is not None:
                    tuned.append([cell.name, recipe, TITLES[loss], str(tried[0]), tried[1]])
            differences += _differences(cell, recipe, book)
            left += _not_run(cell, recipe, book)
    parts = [
        "# The paper's benchmark tables",
        _introduction(book),
        *verdict_section(book),
        "## All cells",
        markdown_table(HEADER, rows) if rows else "No final run is recorded yet.",
        *overfit_text(book),
        *length_text(book),
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
            "Validation AUC of each setting, best first: mean over the tuning sets, ± its standard error where there "
            "are several. All settings of a row have seen the same sets.",
            markdown_table(("cell", "recipe", "loss", "sets", "settings"), tuned),
        ]
    if left:
        parts += [
            "## Not run",
            "GPU minutes of the study as declared, from the measured seconds a step of records with the same network "
            "on a GPU; a cut grid takes less. Runs that inherited more than their study does as declared count as "
            "missing.",
            markdown_table(("cell", "recipe", "final runs missing", "GPU minutes"), left),
        ]
    return "\n\n".join([*parts, *_curves_text(book), *picture_links(results, "paper-tables")]) + "\n"


def _introduction(book: RecordBook) -> str:
    finals = [record for name in book.studies() for record in book.final(name)]
    lines = [
        "Made by `deepauc study table paper-tables` from `results/paper-tables.jsonl`; `deepauc study run "
        "paper-tables` makes the records. Test AUC of the last epoch, mean ± standard deviation over random "
        "training sets, beside "
        "the paper's. Settings are chosen on validation AUC (three training sets at 1 %, one at 10 %, fewer where the "
        "last column says so), then refitted on all training images; no test score has a say. At 1 % a validation part "
        "holds 25 positives, so the standard error of one validation AUC is about .05, and of a mean of three about "
        ".03 (C2 has 10 there, and larger ones): the selection is noisy." + _inherited_text(book),
        "",
        "`literal` is Theorem 1 with its factor p(1 - p) and the printed grids at lr 0.1; `paper` divides by p(1 - p) "
        "and tunes the learning rate of each loss, but for what column `tuning` calls inherited "
        "(`deepauc.paper.recipes` says all of it). `alpha = 0` is the share of steps at which AUC-M's alpha was 0: "
        "where it is 0 %, AUC-M is the square loss with margin m. `train AUC`: of the last epoch on the training "
        f"images as they are{_bins_text(finals)}. GPU s: of one final run, its share of a pack, and longer "
        "than it would be alone where another study ran on the same GPU, as beside many of these. C2 has other pixels "
        "than the paper's (32 x 32 from a lossy copy, a split of our own); C100 draws from a fixed pool of 8,000 "
        "positives; S10: not run, images not available. `reached`: our mean is at least the paper's.",
    ]
    if finals:
        machines = sorted({record["hardware"] for record in finals})
        torches = sorted({record["versions"]["torch"] for record in finals})
        other = by_other_numerics(finals)
        made = f"{len(finals)} final runs on {', '.join(machines)}, torch {', '.join(torches)}"
        lines += ["", made + (f"; {other} of them by another numerics version." if other else ".")]
    return "\n".join(lines)


def _inherited_text(book: RecordBook) -> str:
    """Which cells did not choose for themselves, from the records."""
    whole, part, rates = dict[str, None](), dict[str, None](), False
    for cell in CELLS:
        for recipe in RECIPES:
            for loss in LOSSES:
                for record in book.final(cell.study_name(recipe, loss)):
                    found = inheritance(cell, recipe, loss, record)
                    if found is not None:
                        everything = set(found.axes) == set(record["config"])
                        (whole if everything else part)[f"{cell.name} (`{recipe}`) from {found.place}"] = None
                        rates |= "lr" in found.axes
    shown = ""
    if whole:
        tuned = ", learning rates and all, though they were tuned for another network" if rates else ""
        shown += f" Not chosen but inherited whole{tuned}: {', '.join(whole)}."
    if part:
        shown += f" Inherited in part, the rest tuned in the cell itself: {', '.join(part)}; `tuning` says what."
    return shown


def _bins_text(finals: Sequence[Record]) -> str:
    """How exact an AUC from bins is: for the test part the exact one is known."""
    off = [
        abs(found.value - record["auc"]["test"][0])
        for record in finals
        if (found := binned_auc(record.get("score_histogram", {}).get("test", _NOTHING))) is not None
    ]
    if not off:
        return ""
    return (
        f", from a histogram of 40 bins (test AUCs found in the same way are up to {max(off):.3f} off the exact ones)"
    )


def _curves_text(book: RecordBook) -> list[str]:
    """A7: which of the recorded cells have no curve of test AUC by epoch."""
    without = cells_without_curves(book)
    if not without:
        return []
    shown = "; ".join(f"`{recipe}`: {', '.join(names)}" for recipe, names in without.items())
    return [
        "## A7: test AUC by epoch",
        f"Drawn below where final runs have recorded it. Not recorded by the final runs of {shown} (`deepauc study run "
        "paper-tables --curves` records it).",
    ]


def _row(cell: Cell, recipe: str, loss: str, records: Sequence[Record], book: RecordBook) -> list[str]:
    values = [record["auc"]["test"][0] for record in records]
    mean, spread = cell.published(loss)
    shares = [r["alpha_zero_share"] for r in records if r["alpha_zero_share"] is not None and loss == "auc_m"]
    train = train_aucs(records)
    remark = f" ({REMARKS[cell.benchmark]})" if cell.benchmark in REMARKS else ""
    return [
        cell.name + remark,
        recipe,
        TITLES[loss],
        f"{mean:.3f} ± {spread:.3f}",
        f"{fmean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else ""),
        "yes" if fmean(values) >= mean else "no",
        str(len(values)),
        f"{fmean(one.value for one in train):.2f}" if train else "-",
        "; ".join(dict.fromkeys(settings_text(record["config"]) for record in records)) or "-",
        percent_text(fmean(shares)) if shares else "-",
        f"{fmean(record['seconds'] for record in records):.0f}",
        tuning_text(cell, recipe, loss, records, book),
        cut_text(cell, recipe, loss, records, book),
    ]


def _differences(cell: Cell, recipe: str, book: RecordBook) -> list[list[str]]:
    rows = []
    for first, second in COMPARED:
        found = paired(book, cell, recipe, first, second)
        if found is not None:
            names = f"{TITLES[first]} - {TITLES[second]}"
            shown = interval_text(found.interval)
            rows.append([cell.name, recipe, names, str(found.sets), shown, found.verdict])
    return rows


def _not_run(cell: Cell, recipe: str, book: RecordBook) -> list[list[str]]:
    """One row for a cell and recipe with final runs missing, none where all are there."""
    missing, steps = [], 0
    for loss in LOSSES:
        records = book.final(cell.study_name(recipe, loss))
        there = sum(as_declared(cell, recipe, loss, record) for record in records)
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
