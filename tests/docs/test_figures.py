"""Figures that the pages quote are those of the records under results/, or of the code they speak of.

One row of FIGURES a sentence: the page, the sentence with a group for each figure, and where the figures come from.
A test that fails here says that a record or a constant has moved on: write the new figures into the page.
"""

import json
import re
from functools import cache
from itertools import product
from pathlib import Path
from statistics import fmean

import pytest
from scipy.stats import ttest_1samp

from deepauc.metrics.auroc import auroc
from deepauc.metrics.comparison import compare_auroc
from deepauc.paper.benchmark_tables import CELLS, Cell, paper_tables
from deepauc.paper.benchmark_verdict import pooled
from deepauc.paper.best_averages import agreement, averaged_models
from deepauc.paper.best_decisions import Decision, decisions, end_of_search
from deepauc.paper.best_levers import lever_name
from deepauc.paper.best_verdict import differences, target_of
from deepauc.reporting.resamples import FULL, FULL_ROWS
from deepauc.studies.record_file import read_named
from deepauc.studies.records import RecordBook
from deepauc.training import plan_first_stage
from deepauc.training.choice import Choice
from deepauc.training.cost import multiply_adds
from deepauc.training.plan import Fingerprint, PlanOptions, make_plan
from deepauc.training.plan_length import BUDGET
from deepauc.training.recipe import Recipe

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
BOOK = RecordBook(RESULTS / "paper-tables")
TUNED = ("C10-R-1", "C2-R-1", "C100-R-1", "C10-R-10", "C2-R-10", "C100-R-10")
CHANGED = ("A4-easy_10", "A4-easy_20", "A3-noise_1", "A3-noise_5")
MILLIONS = (1_000_000, 5_000_000)
COMPARED = {
    "C10-R-1": "C10, ResNet20, 1 %",
    "C10-R-10": "C10, ResNet20, 10 %",
    "C2-R-1": "C2, ResNet20, 1 %",
    "C2-R-10": "C2, ResNet20, 10 %",
    "C100-R-1": "C100, ResNet20, 1 %",
    "C100-R-10": "C100, ResNet20, 10 %",
}
"""Cells that have both losses, by what choosing.md calls them."""


def shown(value: float, digits: int = 3, *, sign: bool = False) -> str:
    """.706 and, as a difference, -.031."""
    return f"{value:{'+' if sign else ''}.{digits}f}".replace("0.", ".", 1)


def signed(*values: float) -> tuple[str, ...]:
    return tuple(shown(value, sign=True) for value in values)


def record(path: str) -> dict:
    return json.loads((RESULTS / path).read_text(encoding="utf-8"))


def large_table(what: str, rows: int) -> dict:
    (found,) = (one for one in record("large-table.json")["measured"] if (one["what"], one["rows"]) == (what, rows))
    return found


def reading_a_large_table() -> tuple[str, ...]:
    one, five = (large_table("read", rows) for rows in MILLIONS)
    times = one["bytes"] / (8 * 20 * one["rows"])
    first = (f"{one['file_bytes'] / 1e6:.0f}", f"{one['seconds']:.0f}", f"{one['bytes'] / 1e6:.0f}", f"{times:.1f}")
    return *first, f"{five['seconds']:.0f}", f"{five['bytes'] / 1e6:,.0f}"


def samples_of_large_tables() -> tuple[str, ...]:
    ((auc, others),) = {
        (large_table(what, rows)["auc_samples"], large_table(what, rows)["other_samples"])
        for what, rows in product(("report", "report by patient"), MILLIONS)
    }
    return f"{FULL_ROWS:,}", f"{FULL.auc:,}", f"{FULL.others:,}", f"{auc}", f"{others}"


def benchmark(cell: str, loss: str) -> str:
    """Mean test AUC of a cell of the paper's tables."""
    return shown(fmean(run["auc"]["test"][0] for run in BOOK.final(f"{cell}-paper-{loss}")))


def cell_named(name: str) -> Cell:
    return next(cell for cell in CELLS if cell.name == name)


@cache
def difference(cell: str, first: str = "auc_m", second: str = "ce") -> tuple[float, float, float]:
    """Mean of the paired differences of test AUC over the training sets, and its 95 % t-interval."""
    values = [[run["auc"]["test"][0] for run in BOOK.final(f"{cell}-paper-{loss}")] for loss in (first, second)]
    pairs = [a - b for a, b in zip(*values, strict=True)]
    return fmean(pairs), *ttest_1samp(pairs, 0).confidence_interval()


def compared(cell: str) -> tuple[str, ...]:
    return benchmark(cell, "ce"), benchmark(cell, "auc_m"), *signed(*difference(cell))


def ahead(first: str, second: str) -> str:
    """In how many cells the first loss is above the second, its interval leaving out 0."""
    return str(sum(difference(cell, first, second)[1] > 0 for cell in COMPARED))


def open_cells() -> str:
    return str(sum(low <= 0 <= high for _, low, high in map(difference, COMPARED)))


def all_cells() -> tuple[str, ...]:
    """Cells of recipe `paper` where CE is above AUC-M; all of them; those where the interval holds 0."""
    lows_highs = [difference(cell)[1:] for cell in (*COMPARED, "C10-D-1")]
    level = sum(low <= 0 <= high for low, high in lows_highs)
    return str(sum(high < 0 for _, high in lows_highs)), str(len(lows_highs)), str(level)


def literal_cells() -> tuple[str, ...]:
    """How many cells have all of recipe `literal`, if cross-entropy has the highest mean in each of them."""
    losses = ("ce", "focal", "auc_s", "auc_m")
    cells = (*TUNED, "C10-D-1")
    whole = [cell for cell in cells if all(len(BOOK.final(f"{cell}-literal-{loss}")) == 5 for loss in losses)]
    for cell in whole:
        means = {loss: fmean(r["auc"]["test"][0] for r in BOOK.final(f"{cell}-literal-{loss}")) for loss in losses}
        assert max(means, key=means.get) == "ce"
        assert cell not in TUNED or means["auc_m"] < float(benchmark(cell, "auc_m"))
    return (str(len(whole)),)


@cache
def tuning(cell: str, loss: str) -> dict[tuple[tuple[str, float], ...], float]:
    """Mean validation AUC by setting."""
    found: dict = {}
    for run in BOOK.tuning(f"{cell}-paper-{loss}"):
        found.setdefault(tuple(sorted(run["config"].items())), []).append(run["auc"]["validation"][0])
    return {setting: fmean(values) for setting, values in found.items()}


def validation(cell: str, loss: str, **setting: float) -> str:
    """Of this setting, or of the best one."""
    found = tuning(cell, loss)
    return shown(found[tuple(sorted(setting.items()))] if setting else max(found.values()))


def best_rate(cell: str) -> str:
    found = tuning(cell, "auc_m")
    return f"{dict(max(found, key=found.get))['lr']:g}"


def densenet(loss: str) -> tuple[str, ...]:
    """Validation AUC of the setting that was chosen, and test AUC of the runs with it."""
    assert all(training_auc(run) > 0.985 for run in BOOK.final(f"C10-D-1-paper-{loss}"))
    return validation("C10-D-1", loss), benchmark("C10-D-1", loss)


def training_auc(run: dict) -> float:
    """From the histogram; pairs inside a bin count as ties."""
    bins = run["score_histogram"]["train"]
    below = [sum(bins["negative"][:i]) + count / 2 for i, count in enumerate(bins["negative"])]
    right = sum(count * lower for count, lower in zip(bins["positive"], below, strict=True))
    return right / sum(bins["positive"]) / sum(bins["negative"])


def printed_curve(loss: str) -> tuple[str, str]:
    """Recipe `literal` on DenseNet121: mean test AUC of the last epoch, and of the best one that was looked at."""
    runs = BOOK.final(f"C10-D-1-literal-{loss}")
    assert len(runs) == 5
    assert runs[0]["test_curve_epochs"] == list(range(5, 101, 5))
    means = [fmean(values) for values in zip(*(run["test_curve"] for run in runs), strict=True)]
    return shown(means[-1]), shown(max(means))


def first_lever(loss: str) -> tuple[str, str]:
    """Mean validation AUC over ten folds without a first stage and with one."""
    runs = RecordBook(RESULTS / "best").tuning(f"levers-{loss}-01-first")
    assert {run["task"]["rows"]["train"] for run in runs} == {20_202, 20_203}
    kinds = [
        [r["auc"]["validation"][0] for r in runs if r["config"]["first_stage"] == kind] for kind in ("none", "simclr")
    ]
    assert [len(values) for values in kinds] == [10, 10]
    return shown(fmean(kinds[0])), shown(fmean(kinds[1]))


def first_gain(loss: str) -> tuple[str, ...]:
    """With a first stage minus without one, paired by fold, and its interval."""
    runs = RecordBook(RESULTS / "best").tuning(f"levers-{loss}-01-first")
    by = {kind: {r["seed"]: r["auc"]["validation"][0] for r in runs if r["config"]["first_stage"] == kind}
          for kind in ("none", "simclr")}  # fmt: skip
    pairs = [by["simclr"][seed] - by["none"][seed] for seed in by["none"]]
    assert len(pairs) == 10
    return signed(fmean(pairs), *ttest_1samp(pairs, 0).confidence_interval())


def first_lengths() -> tuple[str, ...]:
    """Both losses over ten folds without a first stage, with 100 and with 300 epochs of it; with 32 copies."""
    assert all(lever(loss, "copies").chosen == {"tta": 32} for loss in ("auc_m", "ce"))
    return (*lever_means("auc_m", "first_kind")[:3], *lever_means("ce", "first_kind")[:3])


def first_rule() -> tuple[str, ...]:
    rule = plan_first_stage
    values = (rule.MOST_OF_RARER_CLASS, rule.LEAST_IMAGES, rule.LARGEST_SIDE, rule.LEAST_EPOCHS)
    return tuple(f"{value:,}" for value in (*values, *rule.MOST_EPOCHS.values()))


def planned_first(rows: int, positives: int, shape: tuple[int, int, int], kind: str) -> tuple[Choice, Recipe]:
    counts = {"positives": {"train": (positives,)}, "negatives": {"train": (rows - positives,)}}
    data = Fingerprint(rows={"train": rows}, **counts, shape=shape, file_sizes={}, groups=None)
    plan = make_plan(data, PlanOptions(), kind)
    (choice,) = [one for one in plan.choices if one.name == "first stage"]
    return choice, plan.recipe


def first_on_a_gpu() -> tuple[str, ...]:
    """Epochs, images, share of the budget; measured epochs and their seconds."""
    (row,) = read_named(RESULTS / "speed.jsonl")["first-stage"]["rows"]
    _, recipe = planned_first(25_253, 253, (32, 32, 3), "cuda")
    stage = recipe.stages[0]
    assert stage.batch_size == row["batch"]
    images = 25_253 // stage.batch_size * stage.batch_size
    share = 2 * 3 * stage.epochs * images * multiply_adds(recipe.model, (32, 32, 3)) / BUDGET["cuda"]
    budget = f"{share:.0%}".replace("%", " %")
    return str(stage.epochs), "25,253", budget, str(row["epochs"]), f"{row['seconds']:.0f}"


def first_on_a_cpu() -> tuple[str, ...]:
    """The minutes that are named."""
    reasons = [planned_first(8000, 500, (28, 28, 1), "cpu")[0].reason,
               planned_first(25_253, 253, (32, 32, 3), "cpu")[0].reason]  # fmt: skip
    named = [re.search(r"; (--minutes [^;]+) would allow it", reason) for reason in reasons]
    return tuple(found[1] for found in named if found)


def lever(loss: str, name: str) -> Decision:
    (found,) = [one for one in decisions(RecordBook(RESULTS / "best"), loss) if one.lever.name == name]
    assert found.folds == 10
    return found


def lever_means(loss: str, name: str) -> tuple[str, ...]:
    """Mean validation AUC of a lever's settings, in their order."""
    return tuple(shown(tried.mean) for tried in lever(loss, name).tried)


def lever_row(name: str, other: str | None = None) -> tuple[str, ...]:
    """Two columns of docs/best.md: AUC-M's means and those of cross-entropy, what was chosen in bold."""
    cells = []
    for loss, called in (("auc_m", name), ("ce", other or name)):
        found = lever(loss, called)
        means = zip(found.tried, lever_means(loss, called), strict=True)
        cells.append(", ".join(f"**{mean}**" if tried.setting == found.chosen else mean for tried, mean in means))
    return tuple(cells)


def gains(name: str) -> tuple[str, ...]:
    """What was chosen minus the simplest setting, for both losses, each with its interval."""
    found = (lever(loss, name).gain() for loss in ("auc_m", "ce"))
    return tuple(text for gain in found for text in signed(gain.value, gain.low, gain.high))


def between_searches() -> tuple[str, ...]:
    """AUC-M minus cross-entropy at the ends of their searches, paired by fold, and its interval."""
    first, second = (end_of_search(RecordBook(RESULTS / "best"), loss) for loss in ("auc_m", "ce"))
    pairs = [first[fold] - second[fold] for fold in first]
    assert len(pairs) == 10
    return signed(fmean(pairs), *ttest_1samp(pairs, 0).confidence_interval())


def other_losses() -> tuple[str, ...]:
    """AUC-S as chosen and its best on scores of unit RMS; all pairs as chosen."""
    square, pairs = lever("auc_s", "rate"), lever("pairwise", "rate")
    chosen = [next(one.mean for one in found.tried if one.setting == found.chosen) for found in (square, pairs)]
    rms = max(one.mean for one in square.tried if one.setting["bound"] == "rms")
    assert square.chosen["bound"] == "sigmoid"
    return shown(chosen[0]), shown(rms), shown(chosen[1])


def decided(loss: str) -> str:
    return str(sum(one.chosen is not None for one in decisions(RecordBook(RESULTS / "best"), loss)))


def best_cell(cell: str, loss: str) -> list[float]:
    """Test AUC of a cell of `best`, by training set."""
    runs = RecordBook(RESULTS / "best").final(f"{cell}-{loss}")
    assert [run["seed"] for run in runs] == list(range(5))
    return [run["auc"]["test"][0] for run in runs]


def best_row(cell: str) -> tuple[str, ...]:
    """The paper's AUC-M, ours, cross-entropy, the paired difference, both averaged."""
    ours, ce = (best_cell(cell, loss) for loss in ("auc_m", "ce"))
    pairs = [a - b for a, b in zip(ours, ce, strict=True)]
    between = signed(fmean(pairs), *ttest_1samp(pairs, 0).confidence_interval())
    published = shown(cell_named(cell).published("auc_m")[0])
    return published, shown(fmean(ours)), shown(fmean(ce)), *between, shown(fmean(both_losses(cell)))


def in_short(cell: str) -> tuple[str, ...]:
    """A row of README: the paper's AUC-M; CE and AUC-M of recipe `paper`, then of `best`; both averaged."""
    published, best_m, best_ce, *_, both = best_row(cell)
    return published, benchmark(cell, "ce"), benchmark(cell, "auc_m"), best_ce, best_m, both


@cache
def both_losses(cell: str) -> tuple[float, ...]:
    """By training set, the average of the two losses' models."""
    book = RecordBook(RESULTS / "best")
    pairs = zip(*(book.final(f"{cell}-{loss}") for loss in ("auc_m", "ce")), strict=True)
    return tuple(float(auroc(*averaged_models(pair))) for pair in pairs)


def best_pooled() -> tuple[str, ...]:
    found = pooled(differences(RecordBook(RESULTS / "best")))
    return signed(found.value, found.low, found.high)


def range_of_gains() -> tuple[str, ...]:
    """What the average of both losses adds to AUC-M, the least and the most of a cell."""
    gains = [fmean(both_losses(cell)) - fmean(best_cell(cell, "auc_m")) for cell in BEST]
    return signed(min(gains), max(gains))


def ablation(name: str, first: str = "auc_m", second: str = "auc_s") -> tuple[str, ...]:
    """The first minus the second (AUC-M minus AUC-S), paired, with its interval."""
    book = RecordBook(RESULTS / "ablations")
    values = [[run["auc"]["test"][0] for run in book.final(f"{name}-{loss}")] for loss in (first, second)]
    pairs = [a - b for a, b in zip(*values, strict=True)]
    return signed(fmean(pairs), *ttest_1samp(pairs, 0).confidence_interval())


def ablated(study: str) -> str:
    """Mean test AUC of a study of the ablations; README says that DenseNet121's are below ResNet20's on noise."""
    return shown(fmean(run["auc"]["test"][0] for run in RecordBook(RESULTS / "ablations").final(study)))


def most_at_zero() -> tuple[str, ...]:
    """Of all studies of AUC-M on easy and noisy data, by either network, in percent of the steps."""
    book = RecordBook(RESULTS / "ablations")
    names = [f"{name[:2]}-{network}{name[2:]}-auc_m" for name in CHANGED for network in ("D", "R")]
    return (f"{100 * max(fmean(run['alpha_zero_share'] for run in book.final(name)) for name in names):.1f}",)


def changed_data() -> tuple[str, ...]:
    """DenseNet121's least and largest gain; on how many of the sets ResNet20's interval lies above 0."""
    deep, small = ([ablation(f"{name[:2]}-{network}{name[2:]}") for name in CHANGED] for network in ("D", "R"))
    assert all(low.startswith("+") for _, low, _ in deep)
    above = sum(low.startswith("+") for _, low, _ in small)
    means = sorted(value for value, _, _ in deep)
    return means[0], means[-1], {1: "one"}[above]


def gammas() -> tuple[str, ...]:
    """AUC-S with gamma 1/300 beside 1/100: better in how many of how many pairs, by how much; by the rate how much."""
    at = {(cell, g, lr): tuning(cell, "auc_s")[("gamma", 1 / g), ("lr", lr)]
          for cell, g, lr in product(TUNED, (100, 300), (0.03, 0.3))}  # fmt: skip
    gains = [at[cell, 300, lr] - at[cell, 100, lr] for cell, lr in product(TUNED, (0.03, 0.3))]
    by_rate = max(abs(at[cell, g, 0.3] - at[cell, g, 0.03]) for cell, g in product(TUNED, (100, 300)))
    worse = [gain for gain in gains if gain <= 0]
    assert len(worse) == 1
    return str(len(gains) - 1), str(len(gains)), shown(max(gains)), shown(-worse[0]), shown(by_rate)


def quotas() -> tuple[str, ...]:
    """What is planned for many rows with 1 % of positives."""
    counts = {"positives": {"train": (1000,)}, "negatives": {"train": (99_000,)}}
    rows = Fingerprint(rows={"train": 100_000}, **counts, shape=(28, 28, 1), file_sizes={}, groups=None)
    plans = [make_plan(rows, PlanOptions(), kind).recipe.stages[-1] for kind in ("cpu", "cuda")]
    return tuple(str(value) for stage in plans for value in (stage.positives_per_batch, stage.batch_size))


def with_momentum() -> tuple[str, ...]:
    runs = [r for r in record("unbounded-scores.json")["runs"] if (r["loss"], r["bound"]) == ("AUC-M, PESG", "sigmoid")]
    return tuple(shown(r["training_auc"], 2) for r in runs if (r["lr"], r["momentum"]) == (0.1, 0.9))


def loss_over_bce() -> tuple[str, ...]:
    (row,) = (row for row in read_named(RESULTS / "speed.jsonl")["cpu"]["rows"]["losses"] if row["size"] == 65_536)
    return (f"{row['over_bce']['AUCMarginLoss']:.2f}",)


def resnet20_steps(*runs: int) -> tuple[str, ...]:
    """Milliseconds a step and run of AUC-M, with so many runs side by side."""
    rows = [row for row in read_named(RESULTS / "speed.jsonl")["fast-step-tiles"]["rows"] if row["engine"] == "fast"]
    steps = {row["runs"]: row["step_ms_a_run"] for row in rows if (row["model"], row["loss"]) == ("ResNet20", "AUC-M")}
    return tuple(f"{steps[count]:.2f}" for count in runs)


AUC = r"([+-]?\.\d+)"
RATE = r"([\d.]+)"
INTERVAL = rf"{AUC} \[{AUC}, {AUC}\]"
BENCHMARK_ROWS = [
    ("choosing.md", rf"\| {re.escape(title)} \| {AUC} \| {AUC} \| {INTERVAL} \|", lambda cell=cell: compared(cell))
    for cell, title in COMPARED.items()
]
BEST = {
    "C10-R-1": "C10, ResNet20",
    "C2-R-1": "C2, ResNet20",
    "C100-R-1": "C100, ResNet20",
    "C10-D-1": "C10, DenseNet121",
}
"""Cells of `best` that have been run, by what docs/best.md calls them."""
SEARCHED = {
    "first stage on": ("first",),
    "mixup": ("mixup",),
    "positives of": ("positives",),
    "augmentation": ("augment",),
    "gamma": ("gamma", "momentum"),
    "margin and": ("margin", "smoothing"),
    "copies at": ("copies",),
    "first stage once": ("first_kind",),
}
"""Rows of docs/best.md by how they begin: AUC-M's lever and, where it is another, that of cross-entropy."""
FIGURES = [
    ("choosing.md", r"(\d+) of (\d+) on a CPU, (\d+) of (\d+) on a GPU", quotas),
    ("choosing.md", rf"(\d+) of (\d+) pairs .*?at most {AUC} .*?worse by {AUC} .*?up to {AUC}\.", gammas),
    ("choosing.md", rf"training AUC {AUC} and {AUC} against 1\.00", with_momentum),
    ("choosing.md", rf"best at {RATE} on C10, {RATE} on C2 and {RATE} on C100 .*?at {RATE}, {RATE} and {RATE} with",
     lambda: tuple(map(best_rate, TUNED))),
    ("choosing.md", rf"without momentum it had a validation AUC of {AUC} and {AUC} on C10",
     lambda: tuple(validation(cell, "ce", lr=0.1, momentum=0.0) for cell in ("C10-R-1", "C10-R-10"))),
    ("choosing.md", rf"below AUC-M's {AUC} and {AUC};",
     lambda: tuple(validation(cell, "auc_m") for cell in ("C10-R-1", "C10-R-10"))),
    ("choosing.md", rf"with momentum 0\.9 it had {AUC} and {AUC}, and it is ahead on test",
     lambda: tuple(validation(cell, "ce", lr=0.1, momentum=0.9) for cell in ("C10-R-1", "C10-R-10"))),
    ("choosing.md", r"takes ([\d.]+) times torch's BCE", loss_over_bce),
    *BENCHMARK_ROWS,
    ("choosing.md", r"ahead in (\d+) of these (\d+) cells, in (\d+) the interval holds 0, and AUC-M is ahead in (\d+)",
     lambda: (ahead("ce", "auc_m"), str(len(COMPARED)), open_cells(), ahead("auc_m", "ce"))),
    ("choosing.md", r"AUC-M is above AUC-S in (\d+) cells \(C10 and C100 at 10 %, C2 at 1 %\) and below it in (\d+)",
     lambda: (ahead("auc_m", "auc_s"), ahead("auc_s", "auc_m"))),
    ("choosing.md", r"cross-entropy is the best of the four in the (\d+) cells that have been run", literal_cells),
    ("choosing.md", rf"AUC-M had a validation AUC of {AUC} after these 20 and {AUC} on test",
     lambda: densenet("auc_m")),
    ("choosing.md", rf"where the paper has {AUC}; AUC-S {AUC} and {AUC};",
     lambda: (shown(cell_named("C10-D-1").published("auc_m")[0]), *densenet("auc_s"))),
    ("choosing.md", rf"cross-entropy went from {AUC} to {AUC}, focal", lambda: densenet("ce")),
    ("choosing.md", rf"focal loss from {AUC} to {AUC}\.", lambda: densenet("focal")),
    ("choosing.md", rf"AUC-M ends at {AUC} and was never above {AUC} on the way .*? cross-entropy ends at {AUC}\.",
     lambda: (*printed_curve("auc_m"), printed_curve("ce")[0])),
    ("choosing.md", rf"AUC-M is above AUC-S by {INTERVAL}, with 20 % by {INTERVAL}; with 1 % and 5 % of noisy labels "
     rf"by {INTERVAL} and {INTERVAL} \(",
     lambda: tuple(x for name in CHANGED for x in ablation(f"{name[:2]}-D{name[2:]}"))),
    ("choosing.md", rf"easy ones {INTERVAL} and {INTERVAL}, noisy labels {INTERVAL} and {INTERVAL}\.",
     lambda: tuple(x for name in CHANGED for x in ablation(f"{name[:2]}-R{name[2:]}"))),
    ("choosing.md", rf"with 1 % AUC-M and AUC-S end at {AUC} and {AUC}, where ResNet20 has {AUC} and {AUC}\.",
     lambda: tuple(ablated(f"A3-{network}-noise_1-{loss}") for network in ("D", "R") for loss in ("auc_m", "auc_s"))),
    ("choosing.md", r"alpha was 0 at ([\d.]+) % of the steps at most, and", most_at_zero),
    ("choosing.md", rf"above sigmoid scores by {INTERVAL} and level with raw ones, {INTERVAL}; at 10 % below sigmoid "
     rf"scores, {INTERVAL}, and above raw ones, {INTERVAL}\.",
     lambda: (*ablation("A2-R-C2_1", "bsn", "sigmoid"), *ablation("A2-R-C2_1", "bsn", "raw"),
              *ablation("A2-R-C2_10", "bsn", "sigmoid"), *ablation("A2-R-C2_10", "bsn", "raw"))),
    ("choosing.md", rf"DenseNet121 at 1 %: level with sigmoid scores, {INTERVAL},",
     lambda: ablation("A2-D-C2_1", "bsn", "sigmoid")),
    ("csv.md", rf"AUC of AUC-M rose from {AUC} to {AUC}, that of cross-entropy from {AUC} to {AUC} \(",
     lambda: (*first_lever("auc_m"), *first_lever("ce"))),
    ("csv.md", rf"of cross-entropy rose from {AUC} to {AUC} with 8 copies and to {AUC} with 32, that of AUC-M from "
     rf"{AUC} to {AUC} and {AUC} \(", lambda: (*lever_means("ce", "copies"), *lever_means("auc_m", "copies"))),
    ("choosing.md", r"few rows \| ([\d,]+) at most .*? without \| ([\d,]+) at least .*? up to (\d+) pixels .*?"
     r"(\d+) epochs at least, (\d+) at most on a CPU, (\d+) on a GPU", first_rule),
    ("choosing.md", r"a GPU (\d+) epochs on ([\d,]+) images of 32 pixels are (\d+ %) of the budget; "
     r"(\d+) take (\d+) s on an H200",
     first_on_a_gpu),
    ("choosing.md", r"too small for it unless the images are tiny: .*? names `([^`]+)`, .*? in colour `([^`]+)`\.",
     first_on_a_cpu),
    ("choosing.md", rf"AUC of AUC-M rose by {INTERVAL}, that of cross-entropy by {INTERVAL}\.",
     lambda: (*first_gain("auc_m"), *first_gain("ce"))),
    ("choosing.md", rf"AUC-M had {AUC} without, {AUC} after 100 epochs of it and {AUC} after 300, cross-entropy {AUC}, "
     rf"{AUC} and {AUC}\.", first_lengths),
    ("choosing.md", rf"of 128 gave AUC-M a validation AUC of {AUC}, {AUC}, {AUC} and {AUC}, cross-entropy {AUC}, "
     rf"{AUC}, {AUC} and {AUC}\.", lambda: (*lever_means("auc_m", "positives"), *lever_means("ce", "positives"))),
    ("choosing.md", rf"margin 1 and \.5 had a validation AUC of {AUC} and {AUC}, scores of .*? had {AUC} and {AUC};",
     lambda: lever_means("auc_m", "margin")),
    ("choosing.md", rf"AUC-M had {AUC} without it, {AUC} with \.002 and {AUC} with \.01\.",
     lambda: lever_means("auc_m", "gamma")),
    ("best.md", r"of twelve levers AUC-M has decided (\d+) and cross-entropy (\d+)\.",
     lambda: (decided("auc_m"), decided("ce"))),
    *(("best.md", rf"\| {title} [^|]*\|[^|]*\| ([^|]+) \| ([^|]+) \|", lambda names=names: lever_row(*names))
      for title, names in SEARCHED.items()),
    ("best.md", rf"a first stage is worth {INTERVAL} to AUC-M and {INTERVAL} to cross-entropy\.",
     lambda: gains("first_kind")),
    ("best.md", rf"is worth as much, {INTERVAL} and {INTERVAL}; the mean", lambda: gains("positives")),
    ("best.md", rf"over copies of an image {INTERVAL} and {INTERVAL}\.", lambda: gains("copies")),
    ("best.md", rf"AUC-M minus cross-entropy is {INTERVAL} on these folds", between_searches),
    ("best.md", rf"AUC-S at the rate chosen {AUC} on sigmoid scores, at most {AUC} on scores of unit RMS, the squared "
     rf"hinge over all pairs {AUC}\.", other_losses),
    *(("best.md", rf"\| {title} \| {AUC} \| {AUC} \| {AUC} \| {INTERVAL} \| {AUC} \|", lambda cell=cell: best_row(cell))
      for cell, title in BEST.items()),
    ("best.md", rf"over the four cells AUC-M minus cross-entropy is {INTERVAL},", best_pooled),
    ("best.md", rf"above AUC-M alone in every cell, by {AUC} to {AUC}\.", range_of_gains),
    ("best.md", rf"for one AUC-M model \({AUC}, {AUC}, {AUC} and {AUC}\) are reached on C2 only",
     lambda: tuple(shown(target_of(cell_named(cell))) for cell in BEST)),
    ("../README.md", r"it is ahead in (\d+) of (\d+) benchmark cells and level in (\d+) ", all_cells),
    ("../README.md", rf"AUC-M is above AUC-S by {AUC} to {AUC} in all four .*?, with ResNet20 in (one) of four \(",
     changed_data),
    ("../README.md", rf"memorise 253 positives \({AUC}; the paper's {AUC}\)",
     lambda: (benchmark("C10-D-1", "auc_m"), shown(cell_named("C10-D-1").published("auc_m")[0]))),
    ("../README.md", rf"the two are level, {INTERVAL} over the four cells", best_pooled),
    *(("../README.md", rf"\| {title} \| {AUC} \| {AUC}, {AUC} \| {AUC}, {AUC} \| {AUC} \|",
       lambda cell=cell: in_short(cell))
      for cell, title in BEST.items()),
    ("scale.md", r"a file of (\d+) MB, took (\d+) s and at most (\d+) MB beside the program itself, ([\d.]+) times the "
     r"numbers in 64 bits; five million took (\d+) s and ([\d,]+) MB\.", reading_a_large_table),
    ("scale.md", r"took (\d+) s for a million rows and (\d+) s for five million \((\d+) s and (\d+) s with patients",
     lambda: tuple(f"{large_table(what, rows)['seconds']:.0f}" for what in ("report", "report by patient")
                   for rows in MILLIONS)),
    ("scale.md", r"Up to ([\d,]+) labelled rows it draws ([\d,]+) bootstrap samples for the AUC and ([\d,]+) for "
     r"bands, .*? from a million on (\d+) and (\d+),", samples_of_large_tables),
    ("scale.md", r"bfloat16 takes ([\d.]+) ms, and ([\d.]+) ms a step and run with 8", lambda: resnet20_steps(1, 8)),
]  # fmt: skip


def text_of(page: str) -> str:
    return " ".join((ROOT / "docs" / page).read_text(encoding="utf-8").split())


@pytest.mark.parametrize(
    ("page", "sentence", "source"), FIGURES, ids=[f"{page}-{n}" for n, (page, *_) in enumerate(FIGURES)]
)
def test_a_page_quotes_the_record(page, sentence, source):
    (found,) = re.finditer(sentence, text_of(page))
    assert found.groups() == source()


def test_densenet_has_its_own_rates():
    runs = {loss: BOOK.final(f"C10-D-1-paper-{loss}") for loss in ("ce", "focal", "auc_s", "auc_m")}
    assert {loss: len(found) for loss, found in runs.items()} == dict.fromkeys(runs, 5)
    assert all(f"{run['config']['lr']:g}" == best_rate("C10-D-1") == "0.03" for run in runs["auc_m"])


def test_a_free_alpha_went_below_0_at_no_step():
    assert "a free alpha went below 0 at no step of five runs with either network" in text_of("choosing.md")
    for network in ("D", "R"):
        runs = RecordBook(RESULTS / "ablations").final(f"A5-{network}-alpha-free")
        assert [run["alpha_negative_share"] for run in runs] == [0.0] * 5


def test_raw_scores_do_not_train_densenet():
    assert "four of five runs diverged within two epochs" in text_of("choosing.md")
    book = RecordBook(RESULTS / "ablations")
    name = "A2-D-C2_1-raw"
    assert (sorted(run["seed"] for run in book.diverged(name)), len(book.final(name))) == ([0, 1, 3, 4], 1)
    steps = [int(re.search(r"stopped at step (\d+)", run["failed"])[1]) for run in book.diverged(name)]
    assert max(steps) < 2 * (10_101 // 128)


def test_with_a_quota_alpha_was_0_at_no_step_of_the_search():
    assert "With a quota of positives alpha was 0 at no step" in text_of("best.md")
    book = RecordBook(RESULTS / "best")
    runs = [run for lever in range(1, 13) for run in book.tuning(lever_name("auc_m", lever))]
    assert {run["alpha_zero_share"] for run in runs if run["config"].get("positives") != 0} == {0.0}
    assert max(run["alpha_zero_share"] for run in runs) > 0  # without one, at a few


def test_which_loss_is_above_in_the_cells_of_best():
    text = text_of("best.md")
    book = RecordBook(RESULTS / "best")
    reached = [cell for cell in BEST if fmean(best_cell(cell, "auc_m")) >= target_of(cell_named(cell))]
    assert reached == ["C2-R-1"]
    assert "it is below that of cross-entropy in three cells" in text
    averaged = {cell: [averaged_models(book.final(f"{cell}-{loss}")) for loss in ("auc_m", "ce")] for cell in BEST}
    found = [compare_auroc(mine[0], other[0], mine[1]) for mine, other in averaged.values()]
    assert sum(one.high < 0 for one in found) == 3
    assert "Models of AUC-M on different training sets are more alike" in text
    for cell in BEST:
        alike, other = (agreement(book.final(f"{cell}-{loss}")) for loss in ("auc_m", "ce"))
        assert alike > other


def test_the_table_of_unbounded_scores_is_the_measured_one():
    measured = [
        " ".join(row.split()) for row in (RESULTS / "unbounded-scores.md").read_text().splitlines() if "|" in row
    ]
    assert len(measured) == 8
    assert all(row in text_of("faq.md") for row in measured if "---" not in row)


def test_the_cell_to_begin_with_is_one_cell():
    (cell,) = re.findall(
        r"study run experiments/paper.py paper-tables --cells (\S+)", (ROOT / "docs" / "reproduce.md").read_text()
    )
    assert {study.name.rsplit("-", 2)[0] for study in paper_tables().chosen([cell])} == {"C10-R-1"}
