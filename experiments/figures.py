"""`make figures`: the pages and summary.json of results/ from the records, and the figures of README and docs from it.

A figure in a page is followed by its name in results/summary.json, in a comment that readers do not see:

    a mean test AUC of .871<!-- fig: cells.C10-R-1.best.auc_m.mean -->
    above cross-entropy by +.002 [-.002, +.006]<!-- fig: best.pooled.auc_m-ce -->      mean, low and high: an interval
    at 8.5 %<!-- fig: medical.pneumonia-R-paper.auc_m.alpha_zero:.1% --> of the steps       a format of its own
    | C10 | .715 | .737, .706 <!-- fig: cells.C10-R-1.paper.{ce,auc_m}.mean --> |           the last two before the mark

    took 159<!-- fig: csv-to-report/breastmnist.wall_seconds.train_and_report:.0f --> s                 another record

Several names stand with spaces between, or in braces; a list is all its elements. A name that begins with a file of
results/ is looked up there. Without a format a number has three decimals; no zero stands before the point, but with
the format `g` and those that begin with 0 (`0.2f`). `tests/docs/test_figures.py` fails where a marked figure is not the
summary's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

from deepauc.studies.entry import Entry
from deepauc.studies.records.file import read_named
from deepauc.studies.records.tables import merged, rounded, summary_text
from experiments.bags import bag_figures
from experiments.bags import page as bag_page
from experiments.fold_study import fold_study_figures
from experiments.rules import other_figures, rule_figures
from experiments.speed import speed_figures

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
MARK = re.compile(r"<!-- fig: (.*?) -->", re.DOTALL)
NUMBER = r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d*\.\d+|\d+)(?: %)?"
FIGURE = re.compile(rf"(?<![\w.,+-]){NUMBER}(?: \[{NUMBER}, {NUMBER}\])?(?!\w)".replace(" ", r"\s+"))


def names_in(mark: str) -> list[str]:
    """`a.{b,c}.d e` -> a.b.d, a.c.d, e."""
    names = mark.split()
    while any("{" in name for name in names):
        found = (re.fullmatch(r"(.*?)\{([^{}]*)\}(.*)", name) for name in names)
        names = [
            whole
            for name, parts in zip(names, found, strict=True)
            for whole in ([f"{parts[1]}{one}{parts[3]}" for one in parts[2].split(",")] if parts else [name])
        ]
    return names


def texts_of(name: str, summary: dict[str, Any]) -> list[str]:
    """The figures of a name, as a page shows them."""
    path, _, form = name.partition(":")
    first, *parts = path.split(".")
    place, value = "summary", summary
    if "/" in first:
        place = first
        value = _named(json.loads((RESULTS / f"{first}.json").read_text(encoding="utf-8")))
    for part in parts if "/" in first else (first, *parts):
        try:
            value = value[int(part)] if isinstance(value, list) else value[part]
        except (KeyError, IndexError, ValueError, TypeError):
            raise ValueError(f"{name}: results/{place}.json has no {part!r} there. Run `make figures`.") from None
    return [_shown(one, form, name) for one in (value if isinstance(value, list) else [value])]


def _named(record: Any) -> Any:
    """A record whose keys can be parts of a name: `both_sigmoid` for "both, sigmoid"; an interval has its `mean`."""
    if not isinstance(record, dict):
        return record
    named = {re.sub(r"[^\w-]+", "_", key): _named(value) for key, value in record.items()}
    return {**named, "mean": named["value"]} if {"value", "low", "high"} <= named.keys() else named


def _shown(value: Any, form: str, name: str) -> str:
    if isinstance(value, dict) and {"mean", "low", "high"} <= value.keys():
        mean, low, high = (_shown(value[key], form or "+.3f", name) for key in ("mean", "low", "high"))
        return f"{mean} [{low}, {high}]"
    if isinstance(value, dict | str | None):
        raise ValueError(f"{name} is no figure but {type(value).__name__}.")
    if form.endswith("%"):
        return f"{100 * value:{form[:-1]}f} %"
    shown = f"{value:,}" if isinstance(value, int) and not form else f"{value:{form or '.3f'}}"
    return shown if form.startswith(("g", "0")) else re.sub(r"^([+-]?)0\.", r"\1.", shown)


def renewed(page: str, summary: dict[str, Any]) -> str:
    """The page with every marked figure as the summary has it."""
    parts, start = [], 0
    for mark in MARK.finditer(page):
        wanted = [text for name in names_in(mark[1]) for text in texts_of(name, summary)]
        before = page[start : mark.start()]
        found = list(FIGURE.finditer(before))[-len(wanted) :]
        if len(found) < len(wanted):
            raise ValueError(f"{mark[0]}: {len(wanted)} figures are named, but {len(found)} stand before the mark.")
        for old, new in zip(reversed(found), reversed(wanted), strict=True):
            if " ".join(old[0].split()) != new:
                before = before[: old.start()] + new + before[old.end() :]
        parts += [before, mark[0]]
        start = mark.end()
    return "".join([*parts, page[start:]])


def entries() -> dict[str, Entry]:
    """The studies of all files, by name."""
    from experiments import best, medical, objectives, paper, plan, pretrained

    files = (paper, medical, best, plan, objectives, pretrained)
    return {entry.name: entry for file in files for entry in file.STUDIES}


def recorded() -> dict[str, Entry]:
    """Those of which a page is there."""
    return {name: entry for name, entry in entries().items() if (RESULTS / f"{name}.md").exists()}


def own_figures() -> dict[str, Any]:
    """Figures that no study has; medical.medmnist_cpu.DATA.LOSS: mean test AUC."""
    runs: dict[str, dict[str, list[float]]] = {}
    for name, run in read_named(RESULTS / "medmnist-cpu.jsonl").items():
        data, loss = name.rpartition("-")[0].split("-", 1)
        (auc,) = run["results"]["auc"]["test"].values()
        runs.setdefault(data, {}).setdefault("auc_m" if loss == "ce-auc-m" else loss, []).append(auc[0])
    means = {data: {loss: fmean(aucs) for loss, aucs in some.items()} for data, some in runs.items()}
    own = {"medical": {"medmnist_cpu": means}, "speed": speed_figures(RESULTS), "rules": rule_figures()}
    studies = {**fold_study_figures(RESULTS), **bag_figures(RESULTS)}
    found: dict[str, Any] = rounded({**own, **other_figures(RESULTS), **studies})
    return found


def summary_of(recorded: Iterable[Entry]) -> dict[str, Any]:
    """All figures of these studies, and those that no study has."""
    return merged([*(entry.figures(RESULTS) for entry in recorded), own_figures()])


def main() -> None:
    for name, entry in recorded().items():
        (RESULTS / f"{name}.md").write_text(entry.markdown(RESULTS), encoding="utf-8")
    (RESULTS / "bags.md").write_text(bag_page(RESULTS), encoding="utf-8")
    summary = summary_of(recorded().values())
    (RESULTS / "summary.json").write_text(summary_text(summary) + "\n", encoding="utf-8")
    for path in PAGES:
        page = path.read_text(encoding="utf-8")
        path.write_text(renewed(page, summary), encoding="utf-8")


if __name__ == "__main__":
    main()
