"""results/objectives.md, objectives-cpu.md: each objective on each metric, beside the cross-entropy tuned by its own.

summary.json has SET.CELL.OBJECTIVE.METRIC (mean) and METRIC-ce (the paired difference and its interval).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from deepauc.metrics.intervals import Estimate
from deepauc.metrics.mean_interval import stratified_interval
from deepauc.studies.records import tables as t
from deepauc.studies.study import AUC, StudySet
from experiments.beyond.studies import MAX_FPR, METHODS, MIN_TPR, OWN

METRICS = {AUC: "AUROC", "fpr": f"FPR <= {MAX_FPR}", "tpr": f"TPR >= {MIN_TPR}", "ap": "AP"}
LARGEST = {AUC: 1.0, "fpr": MAX_FPR, "tpr": 1 - MIN_TPR, "ap": 1.0}
TITLES = {
    "ce": "CE",
    "auc_m": "AUC-M",
    "ce_auc_m": "CE, then AUC-M",
    "pairs": "all pairs",
    "fpr": f"partial AUC, FPR <= {MAX_FPR}",
    "tpr": f"partial AUC, TPR >= {MIN_TPR}",
    "ap": "average precision",
    "pdsca": "PDSCA",
}
Values = Mapping[int, float]  # by training set
NOTE = (
    "Test: means over the training sets; partial AUCs are divided by their largest value. Every objective was tuned "
    "on validation by its own metric, with the same number of runs. In brackets: the objective less the cross-entropy "
    "that was tuned by the same metric, on the same training sets, with a 95 % t-interval over them."
)


def values(books: t.Books, set_name: str, study: str, metric: str) -> dict[int, float]:
    """A metric on test by training set, 1 being the largest possible."""
    return {
        one["seed"]: (one["auc"]["test"][0] if metric == AUC else one["measures"]["test"][metric]) / LARGEST[metric]
        for one in books(set_name).final(study)
    }


def baseline(cell: str, metric: str) -> str:
    """The study of the cross-entropy that was tuned by this metric."""
    return f"{cell}-ce" if metric == AUC else f"{cell}-ce_by_{metric}"


def above_ce(books: t.Books, set_name: str, cell: str, objective: str, metric: str) -> dict[int, float]:
    """By training set, the objective less the cross-entropy tuned by the objective's own metric."""
    mine = values(books, set_name, f"{cell}-{objective}", metric)
    theirs = values(books, set_name, baseline(cell, OWN[objective]), metric)
    return {seed: mine[seed] - theirs[seed] for seed in sorted(mine.keys() & theirs.keys())}


def interval(differences: Values) -> Estimate[float] | None:
    return t.paired(differences, dict.fromkeys(differences, 0.0))


def page(studies: StudySet) -> t.Page:
    """A table for each task, and two of all of them: on its own metric, and who is highest on which."""
    cells = list(dict.fromkeys(study.group for study in studies.studies))
    name = studies.name

    def of_cell(cell: str) -> t.Table:
        return t.Table(
            title=cell,
            header=("objective", "tuned by", *METRICS.values(), "lr", "sets"),
            lines=lambda books: _objective_lines(books, name, cell),
            figures=lambda books: _figures(books, name, cell),
        )

    own = t.Table(
        title="On its own metric",
        note="The objective less the cross-entropy that was tuned by the same metric.",
        header=("objective", "metric", *cells, *(("mean", "beats CE") if len(cells) > 1 else ("beats CE",))),
        lines=lambda books: _own_lines(books, name, cells),
    )
    highest = t.Table(
        title="The highest on each metric",
        note="Of all objectives, by the mean on test: a description, not a test. In brackets as above, of this metric.",
        header=("metric", *cells),
        lines=lambda books: _highest_lines(books, name, cells),
    )
    return t.Page(name=name, title=studies.title, note=NOTE, tables=(*map(of_cell, cells), own, highest))


def _objective_lines(books: t.Books, name: str, cell: str) -> Iterator[list[str]]:
    for objective, title in TITLES.items():
        records = books(name).final(f"{cell}-{objective}")
        if not records:
            continue
        texts = []
        for metric in METRICS:
            mean = fmean(values(books, name, f"{cell}-{objective}", metric).values())
            more = interval(above_ce(books, name, cell, objective, metric))
            texts.append(f"{mean:.3f}" + (f" ({t.interval_text(more)})" if more and objective != "ce" else ""))
        rates = t.each_once(f"{record['config']['lr']:g}" for record in records)
        yield [title, METRICS[OWN[objective]], *texts, rates, str(len(records))]


def _own_lines(books: t.Books, name: str, cells: Sequence[str]) -> Iterator[list[str]]:
    for objective, metric in OWN.items():
        found = {cell: above_ce(books, name, cell, objective, metric) for cell in cells}
        whole = [(cell, one) for cell, one in found.items() if len(one) > 1]
        if objective == "ce" or not whole:
            continue
        pooled = stratified_interval(whole)
        each = [t.interval_text(interval(one)) for one in found.values()]
        verdict = {"confirmed": "yes", "refuted": "no, below", "open": "not shown"}[t.judged(pooled)]
        mean = [t.interval_text(pooled)] if len(cells) > 1 else []
        yield [TITLES[objective], METRICS[metric], *each, *mean, verdict]


def _highest_lines(books: t.Books, name: str, cells: Sequence[str]) -> Iterator[list[str]]:
    for metric, title in METRICS.items():
        texts = []
        for cell in cells:
            rows = {**{one: f"{cell}-{one}" for one in METHODS}, "ce": baseline(cell, metric)}
            found = {one: mine for one, study in rows.items() if (mine := values(books, name, study, metric))}
            if not found:
                texts.append("-")
                continue
            best = max(found, key=lambda one: fmean(found[one].values()))
            more = t.paired(found[best], found.get("ce", {}))
            beside = f" ({t.interval_text(more)})" if more and best != "ce" else ""
            texts.append(f"{TITLES[best]}, {fmean(found[best].values()):.3f}{beside}")
        if any(text != "-" for text in texts):
            yield [title, *texts]


def _figures(books: t.Books, name: str, cell: str) -> t.Figures:
    found: t.Figures = {}
    for objective in METHODS:
        for metric in METRICS:
            mine = values(books, name, f"{cell}-{objective}", metric)
            if mine:
                found.setdefault(objective, {})[metric] = fmean(mine.values())
            more = interval(above_ce(books, name, cell, objective, metric))
            if more and objective != "ce":
                found.setdefault(objective, {})[f"{metric}-ce"] = t.interval_figures(more)
    return {name: {cell: found}} if found else {}
