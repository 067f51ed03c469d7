"""docs/medical/findings.md says what results/medical.md, results/chest.md and results/chest-printed.md have.

One row of FIGURES a sentence: the sentence with a group for each figure, and where the figures come from.
"""

import math
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import fmean

import pytest
from scipy.stats import ttest_1samp

from deepauc.data.medical.nih import COMPETITION_FINDINGS
from deepauc.studies.records import RecordBook

ROOT = Path(__file__).parents[2]
AUC = r"([+-]?\.\d+)"
INTERVAL = rf"{AUC} \[{AUC}, {AUC}\]"
AGAINST_CE = "AUC-M's own weights at least CE's mean"
ROW = rf"\| ([^|]+) \| {AUC} \| {AUC} \| {INTERVAL} \|"
THREE = ("densenet121", "densenet169", "densenet201")
Rows = list[dict[str, str]]


@cache
def table(page: str, heading: str) -> Rows:
    """The first table below a heading, a dict by column a row."""
    text = (ROOT / "results" / f"{page}.md").read_text(encoding="utf-8")
    below = text.split(f"\n{heading}\n", 1)[1]
    lines = re.search(r"(?:^\|.*\n)+", below, flags=re.MULTILINE)
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[0].splitlines())
    return [dict(zip(header, row, strict=True)) for row in rows]


def aims(aim: str) -> Rows:
    return [row for row in table("medical", "## Aims") if row["aim"] == aim]


def single(cell: str, loss: str) -> dict[str, str]:
    (row,) = [r for r in table("medical", "## Single models") if (r["cell"], r["loss"]) == (cell, loss)]
    return row


def short(text: str) -> tuple[str, ...]:
    """`+0.049 [+0.027, +0.072]` as the pages write it."""
    return tuple(number.replace("0.", ".") for number in re.findall(r"[+-]?\d\.\d{3}", text)[:3])


def mean(cell: str, loss: str) -> str:
    return short(single(cell, loss)["ours"])[0]


def first(text: str) -> float:
    return float(text.split(maxsplit=1)[0])


def against_ce(where: str) -> tuple[str, ...]:
    (row,) = [row for row in aims(AGAINST_CE) if row["where"] == where]
    return short(row["measured"])


def counts() -> tuple[str, ...]:
    reached = [row["reached"] for row in aims(AGAINST_CE)]
    return str(len(reached)), *(str(reached.count(word)) for word in ("yes", "no, within noise", "no"))


def below() -> tuple[str, ...]:
    cells = [row["where"] for row in aims(AGAINST_CE) if row["reached"] == "no"]
    assert cells == ["pneumonia-R-ours", "ham-R-32", "pneumonia-R-best", "chest-printed, apart"]
    order = (cells[0], cells[2], cells[1])
    apart = (short(chest("apart", loss, printed=True)["mean"])[0] for loss in ("CE", "AUC-M"))
    rows = [x for c in order for x in (c, mean(c, "CE"), mean(c, "AUC-M"), *against_ce(c))]
    return *rows, cells[3], *apart, *against_ce(cells[3])


def above() -> tuple[str, ...]:
    found = [row for row in aims(AGAINST_CE) if "[+" in row["measured"] and row["reached"] == "yes"]
    assert [row["where"] for row in found] == ["path-R-ours", "ham-printed-B3-32"]
    return *against_ce("path-R-ours"), *against_ce("ham-printed-B3-32")


def printed() -> tuple[str, ...]:
    rates = [single("breast-printed", loss)["selected"].split(", ")[0] for loss in ("CE", "AUC-M")]
    assert rates == ["lr 1e-05", "lr 1e-05"]
    small = [x for name in ("breast", "path")
             for x in (*(mean(f"{name}-printed", loss) for loss in ("CE", "AUC-M")),
                       *against_ce(f"{name}-printed"))]  # fmt: skip
    return tuple(small)


def printed_chest() -> tuple[str, ...]:
    rows = [chest("at once", "CE", printed=which) for which in (True, False)]
    means = [short(row[name])[0] for row in rows for name in ("mean", "ensemble, mean")]
    return *means, *against_ce("chest-printed, at once"), *against_ce("chest-printed, apart")


def other_rates() -> tuple[str, ...]:
    """AUC-M minus CE of three networks: as printed, with another schedule, with another rate."""
    found: list[str] = []
    for other in ("", "milestones=52,210", "auc_lr=0.01"):
        book = RecordBook(ROOT / "results" / "chest-printed", other=other)
        for labels in (("all",), COMPETITION_FINDINGS):
            minus = [_mean_auc(book, net, labels, "auc_m") - _mean_auc(book, net, labels, "ce") for net in THREE]
            found += signed(fmean(minus), *ttest_1samp(minus, 0).confidence_interval())
    return tuple(found)


def _mean_auc(book: RecordBook, network: str, labels: Sequence[str], loss: str) -> float:
    runs = [book.final(f"{network}-{label}-{loss}") for label in labels]
    return fmean(value[0] for (run,) in runs for value in run["auc"]["test"].values())


def efficientnets() -> tuple[str, ...]:
    """Loss of CE in the last epoch, that of a constant, and test AUC of CE, ResNet20 and AUC-M."""
    book = RecordBook(ROOT / "results" / "medical")
    losses, shares = [], []
    for network in ("B5", "B3"):
        runs = book.final(f"ham-printed-{network}-32-ce")
        losses.append(fmean(run["history"]["loss"][-1] for run in runs))
        shares += [sum(run["score_histogram"]["train"]["positive"]) / run["task"]["rows"]["train"] for run in runs]
        assert {len(run["history"]["loss"]) for run in runs} == {51}
    constant = fmean(-p * math.log(p) - (1 - p) * math.log(1 - p) for p in shares)
    cells = ("ham-printed-B5-32", "ham-printed-B3-32")
    auc_m = (figure for cell in cells for figure in (mean(cell, "AUC-M"), *against_ce(cell)))
    return (*(f"{x:.3f}"[1:] for x in (*losses, constant)), *(mean(cell, "CE") for cell in (*cells, "ham-R-32")),
            *auc_m)  # fmt: skip


def half_and_half() -> tuple[str, ...]:
    rows = {row["where"]: short(row["measured"]) for row in aims("image + metadata above the image alone")}
    ranks = (rows[f"ham-printed-B5-32, {loss}, rank"] for loss in ("CE", "AUC-M"))
    learned = (rows[f"ham-printed-B5-32, {loss}, learned"][0] for loss in ("CE", "AUC-M"))
    return *(figure for interval in ranks for figure in interval), *learned


def six() -> tuple[str, ...]:
    where = "ham-printed, 6 against B3-32-auc_m"
    (row,) = [row for row in aims("ensemble + TTA above any single model") if row["where"] == where]
    return short(row["measured"])


def signed(*values: float) -> tuple[str, ...]:
    return tuple(f"{value:+.3f}".replace("0.", ".") for value in values)


def without_margin() -> tuple[str, ...]:
    rows = [row for row in table("medical", "## Single models") if row["loss"] == "AUC-M"]
    book = RecordBook(ROOT / "results" / "medical")
    never = [not any(run["alpha_zero_share"] for run in book.final(f"{row['cell']}-auc_m")) for row in rows]
    shares = [single(f"pneumonia-R-{which}", "AUC-M")["alpha = 0"].strip(" %") for which in ("paper", "ours")]
    assert shares == sorted((row["alpha = 0"].strip(" %") for row in rows), key=float)[:-3:-1]
    same = ("ours", "DeLong 95 %", "bootstrap 95 %", "minus CE, paired DeLong")
    as_auc_s = [
        row["cell"]
        for row in table("medical", "## Single models")
        if row["loss"] == "AUC-S" and all(row[name] == single(row["cell"], "AUC-M")[name] for name in same)
    ]
    assert as_auc_s == [
        "breast-R-ours",
        "breast-printed",
        "ham-R-64",
        "ham-meta",
        "ham-printed-B5-32",
        "ham-printed-meta",
    ]
    assert all("m 1" in single(cell, "AUC-M")["selected"].split(", ") for cell in as_auc_s)
    within = [row["where"] for row in aims(AGAINST_CE) if "-R-" in row["where"] and abs(first(row["measured"])) > 0.005]
    assert within == ["breast-R-paper"]
    return str(sum(never)), str(len(never)), *shares


def published() -> tuple[str, ...]:
    cells = [f"pneumonia-R-{which}" for which in ("paper", "ours", "best")]
    each = [sorted(mean(cell, loss) for cell in cells) for loss in ("AUC-M", "CE")]
    return tuple(one[index] for one in each for index in (0, -1))


def breast() -> tuple[str, ...]:
    ours = (mean(f"breast-{which}", "AUC-M") for which in ("R-paper", "R-ours", "printed"))
    best = (mean("breast-R-best", loss) for loss in ("AUC-M", "CE"))
    return *ours, *best, *gain("breast", "AUC-M"), *gain("breast", "CE")


def gain(name: str, loss: str) -> tuple[str, ...]:
    rows = table("medical", "## `best` on the stand-ins")
    (row,) = [row for row in rows if (row["cell"], row["loss"]) == (f"{name}-R-best", loss)]
    return short(row["minus"])


def ensembles() -> tuple[str, ...]:
    rows = table("medical", "## Ensembles and test-time augmentation")
    assert all(float(row["ensemble"]) > float(row["single, mean"]) for row in rows)
    return str(len(rows)), str(sum(row["above any single"] == "yes" for row in rows))


def ahead() -> tuple[str, ...]:
    rows = table("medical", "## Ensembles and test-time augmentation")
    others = [row["minus the best single"] for row in rows if row["above any single"] == "no"]
    highs = [re.search(r"\[.*?, (.*?)\]", text)[1] for text in others]
    return str(sum(not high.startswith("-") for high in highs)), str(len(others))


def copies() -> tuple[str, ...]:
    found = []
    rows = table("medical", "## Ensembles and test-time augmentation")
    for name in ("path", "breast", "pneumonia"):
        of_set = [row for row in rows if row["cell"].startswith(name) and row["TTA, mean"] != "-"]
        up = sum(float(row["TTA, mean"]) > float(row["single, mean"]) for row in of_set)
        found += [str(up), str(len(of_set))]
    (row,) = [row for row in rows if (row["cell"], row["loss"]) == ("pneumonia-R-ours", "CE")]
    return *found, *short(row["single, mean"]), *short(row["TTA, mean"])


def eight() -> tuple[str, ...]:
    (row,) = [row for row in aims("ensemble + TTA above any single model") if row["where"].startswith("ham, 8")]
    return short(row["measured"])


def chest(how: str, loss: str, *, printed: bool = False) -> dict[str, str]:
    heading = "## Chest X-rays: five labels"
    rows = table("chest-printed", f"{heading}, CheXpert's settings as printed") if printed else table("chest", heading)
    (row,) = [row for row in rows if (row["stage 2"], row["loss"]) == (how, loss)]
    return row


def at_once() -> tuple[str, ...]:
    cost = [row["ratio"] for row in table("chest", "## What five labels cost") if "H200" in row["machine"]]
    means = [short(chest(how, "AUC-M")["mean"])[0] for how in ("at once", "apart")]
    edema = [short(chest(how, loss)["Edema"])[0] for loss in ("CE", "AUC-M", "AUC-S") for how in ("at once", "apart")]
    return *cost, *means, *edema


def uncertain() -> tuple[str, ...]:
    rows = {row["policy"]: row["minus ignore"] for row in table("chest", "## Uncertain labels")}
    level = [policy for policy, text in rows.items() if "[-" in text and ", +" in text]
    assert sorted(level) == ["ones", "smooth_zeros", "zeros"]
    return short(rows["smooth_ones"])


def modes() -> tuple[str, ...]:
    rows = table("medical", "## A8: training scores of melanoma and the rest")
    (two,) = [row for row in rows if row["two modes"] == "yes"]
    assert (two["cell"], two["loss"]) == ("ham-R-best", "AUC-M")
    (ce,) = [row for row in rows if (row["cell"], row["loss"]) == ("ham-R-best", "CE")]
    sd = (row["class means apart, sd"].split()[0] for row in (two, ce))
    return *sd, *against_ce("ham-R-best")


def in_the_readme() -> tuple[str, ...]:
    """Chest at once: cross-entropy, AUC-M."""
    return tuple(short(chest("at once", loss)["mean"])[0] for loss in ("CE", "AUC-M"))


README = rf"NIH chest X-rays, five labels \| - \| {AUC}, {AUC} \|"
FIGURES = [
    (r"Of (\d+) cells it is there in (\d+), below it within noise in (\d+), and below it beyond noise in (\d+):",
     counts),
    (rf"\|---\| {ROW} {ROW} {ROW} {ROW}", below),
    (rf"beyond noise in two: path-R-ours, {INTERVAL}, and ham-printed-B3-32, {INTERVAL}, where", above),
    (rf"BreastMNIST {AUC} and {AUC}, {INTERVAL}; on PathMNIST {AUC} and {AUC}, {INTERVAL}\.", printed),
    (rf"has {AUC} at once and {AUC} as an ensemble of five networks, where ResNet20 has {AUC} and {AUC}\. .*? "
     rf"at once {INTERVAL}, with a network for each label {INTERVAL}\.", printed_chest),
    (rf"\| as printed \| {INTERVAL} \| {INTERVAL} \| .*? of the stage \| {INTERVAL} \| {INTERVAL} \| .*? from the "
     rf"start \| {INTERVAL} \| {INTERVAL} \|", other_rates),
    (rf"a training loss of {AUC} with B5 and {AUC} with B3, .*? has {AUC}; on test {AUC} and {AUC}, where .*? has "
     rf"{AUC}\. .*? gets further: {AUC}, {INTERVAL}, and {AUC}, {INTERVAL}\.", efficientnets),
    (rf"a learned weight: {INTERVAL} as ranks .*?, {INTERVAL} with AUC-M, where the learned one adds {AUC} and {AUC}\.",
     half_and_half),
    (rf"below the best by {INTERVAL}\.", six),
    (r"In (\d+) of the (\d+) cells .*? pneumonia-R-paper and -R-ours, ([\d.]+) % and ([\d.]+) % of the steps",
     without_margin),
    (rf"at once {INTERVAL}, a network", lambda: against_ce("chest, at once")),
    (rf"for each {INTERVAL}\.", lambda: against_ce("chest, apart")),
    (rf"AUC-M {AUC} to {AUC}, cross-entropy {AUC} to {AUC}\.", published),
    (rf"AUC-M {AUC}, {AUC} and {AUC}\. .*? another length: {AUC}, and {AUC} with cross-entropy; "
     rf"against our own setting {INTERVAL} and {INTERVAL}\.", breast),
    (rf"gains nothing: pneumonia {INTERVAL}, path {INTERVAL}, HAM10000, at half the size, {INTERVAL} with AUC-M",
     lambda: (*gain("pneumonia", "AUC-M"), *gain("path", "AUC-M"), *gain("ham", "AUC-M"))),
    (r"in all of (\d+) rows\. .*? with copies or without, in (\d+)\.", ensembles),
    (r"interval in (\d+) of the (\d+) rows", ahead),
    (rf"PathMNIST, (\d+) of (\d+) rows, and on BreastMNIST, (\d+) of (\d+), .*? PneumoniaMNIST, (\d+) of (\d+): .*? "
     rf"take {AUC} to {AUC}\.", copies),
    (rf"above the best of them by {INTERVAL}; the six", eight),
    (rf"cost a training step ([\d.]+) times .*? and ([\d.]+) times .*?: {AUC} against {AUC} with AUC-M\. .*? "
     rf"cross-entropy {AUC} at once and {AUC} apart, AUC-M {AUC} and {AUC}, AUC-S {AUC} and {AUC}\.", at_once),
    (rf"above leaving them out by {INTERVAL}; zeros", uncertain),
    (rf"AUC-M's: ([\d.]+) against ([\d.]+) of cross-entropy\. .*? \({INTERVAL} on test\)", modes),
]  # fmt: skip


def test_the_readme_quotes_the_tables():
    page = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    (quoted,) = re.finditer(README, page)
    assert quoted.groups() == in_the_readme()


@pytest.mark.parametrize(("sentence", "source"), FIGURES, ids=range(len(FIGURES)))
def test_the_page_quotes_the_tables(sentence, source):
    page = " ".join((ROOT / "docs" / "medical" / "findings.md").read_text(encoding="utf-8").split())
    page = page.replace("|---|---:|---:|---|", "|---|")
    (quoted,) = re.finditer(sentence, page)
    assert quoted.groups() == source()
