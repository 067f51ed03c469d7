"""Chest X-rays: at once and by disease, ensembles, readers beaten, uncertain labels."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from deepauc.metrics.auroc import auroc
from deepauc.metrics.comparison import compare_auroc
from deepauc.metrics.intervals import Estimate, auroc_interval
from deepauc.studies.records import tables as t
from deepauc.studies.records.book import Record
from deepauc.text_tables import auc_text
from experiments.benchmarks.recipes import TITLES
from experiments.clinical.readers import disease_ensembles
from experiments.clinical.recipes import LOSSES
from experiments.clinical.scores import RESAMPLES, comparison_text, read_scores

STAGES = {"at once": False, "apart": True}
WHERE = ("settings", "stage 2", "loss")
OWN = "as declared"


def second_stages(books: t.Books, name: str) -> Iterator[tuple[str, list[Record]]]:
    """Runs of stage 2: those of the study itself, then those with other settings, whose records are beside them."""
    for where in (name, *(f"{name}/{other}" for other in books(name).others())):
        runs = [record for study in books(where).studies() for record in books(where).final(study) if "loss" in record]
        if runs:
            yield where.removeprefix(name).removeprefix("/").replace("=", " ").replace(",", ", ") or OWN, runs


def labels_of(records: Sequence[Record]) -> list[str]:
    """In the order of a run on all of them; where there is none, those that have a run of their own."""
    whole = next((r for r in records if r["labels"] == "all"), None)
    return list(dict.fromkeys(label for r in ([whole] if whole else records) for label in _aucs(r)))


def _aucs(record: Record) -> dict[str, list[float]]:
    """Test AUC with its interval by label; of a task with one label a record may have no more than that."""
    found = record["auc"]["test"]
    return found if isinstance(found, dict) else {record["task"]["labels"][0]: found}


def by_run(records: Sequence[Record], loss: str, apart: bool) -> dict[tuple[str, int], dict[str, float]]:
    """(network, seed) -> plain test AUC of each label; only runs that have all of them."""
    found: dict[tuple[str, int], dict[str, float]] = {}
    for record in records:
        if record["loss"] == loss and (record["labels"] != "all") == apart:
            values = {label: value for label, (value, *_) in _aucs(record).items()}
            found.setdefault((record["network"], record["seed"]), {}).update(values)
    labels = labels_of(records)
    return {run: {label: v[label] for label in labels} for run, v in found.items() if set(v) >= set(labels)}


def minus_ce(records: Sequence[Record], loss: str, apart: bool, networks: Sequence[str] = ()) -> Estimate[float] | None:
    """Of the mean over labels, run by run; networks: only these."""
    own, base = (
        {run: fmean(v.values()) for run, v in by_run(records, one, apart).items() if not networks or run[0] in networks}
        for one in (loss, "ce")
    )
    return None if loss == "ce" else t.paired(own, base)


def _ensemble(records: Sequence[Record], loss: str, apart: bool) -> float | None:
    found = disease_ensembles(records, labels_of(records), loss, apart=apart)
    return fmean(float(auroc(*both)) for both in found) if found else None


def _means(name: str) -> t.Table:
    def lines(books: t.Books) -> Iterator[list[str]]:
        for settings, records in second_stages(books, name):
            beaten = _readers(books, name) if settings == OWN else {}
            for stage, apart in STAGES.items():
                for loss in LOSSES:
                    if runs := by_run(records, loss, apart):
                        together = _ensemble(records, loss, apart)
                        yield [
                            *(settings, stage, TITLES[loss], str(len(runs))),
                            t.mean_text([fmean(values.values()) for values in runs.values()]),
                            t.interval_text(minus_ce(records, loss, apart)),
                            "-" if together is None else f"{together:.3f}",
                            beaten.get((loss, apart), "-"),
                        ]

    return t.Table(
        title="Mean over the labels",
        note=(
            "Stage 1: cross-entropy on the labels at once. Stage 2 from there, with a fresh classifier: `at once`, one "
            "network for all labels; `apart`, a network for each. Test AUC, mean ± standard deviation over seeds and "
            "networks. `minus CE`: run by run, 95 % t-interval. `ensemble`: all runs' scores, with TTA where there is "
            "any, averaged after a sigmoid."
        ),
        header=(*WHERE, "runs", "mean AUC", "minus CE [95 %]", "ensemble", "readers beaten"),
        lines=lines,
    )


def _diseases(name: str) -> t.Table:
    def lines(books: t.Books) -> Iterator[list[str]]:
        for settings, records in second_stages(books, name):
            labels = labels_of(records)
            for stage, apart in STAGES.items():
                base = disease_ensembles(records, labels, "ce", apart=apart)
                for loss in LOSSES:
                    runs = by_run(records, loss, apart).values()
                    for at, (scores, truth) in enumerate(disease_ensembles(records, labels, loss, apart=apart)):
                        groups = _patients(records, labels[at], at, apart)
                        delong = auroc_interval(scores, truth, groups=groups)
                        drawn = auroc_interval(
                            scores, truth, groups=groups, method="bootstrap", n_resamples=RESAMPLES
                        )  # fmt: skip
                        compared = base and loss != "ce"
                        yield [
                            *(settings, stage, TITLES[loss], labels[at]),
                            t.mean_text([values[labels[at]] for values in runs]) if runs else "-",
                            auc_text(float(delong.value), float(delong.low), float(delong.high)),
                            f"[{float(drawn.low):.3f}, {float(drawn.high):.3f}]",
                            comparison_text(compare_auroc(scores, base[at][0], truth, groups=groups))
                            if compared
                            else "-",
                        ]

    return t.Table(
        title="Label by label",
        note=(
            "`single`: as above. `ensemble`: DeLong's interval, and the bootstrap's (BCa), both by whole patients; "
            "minus CE's ensemble by the paired test."
        ),
        header=(*WHERE, "label", "single", "ensemble [DeLong 95 %]", "[bootstrap 95 %]", "minus CE, paired"),
        lines=lines,
    )


def _patients(records: Sequence[Record], label: str, at: int, apart: bool) -> Any:
    """Patients of the images that have this label, the at-th; None where they are not known."""
    test = next((read_scores(r) for r in records if r["labels"] == (label if apart else "all")), None)
    if test is None or test.groups is None:
        return None
    return test.groups[~np.isnan(test.labels if apart else test.labels[:, at])]


def _readers(books: t.Books, name: str) -> dict[tuple[str, bool], str]:
    """By loss, and whether each disease has its own networks."""
    path = books.results / name / "readers.json"
    counts = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    found = {}
    for key, value in counts.items():
        if isinstance(value, dict):
            loss, _, how = key.partition(", ")
            read = sum(count is not None for count in value["per_label"])
            some = "" if read == len(value["per_label"]) else f" (labels read: {read})"
            found[loss, how == "each disease"] = f"{value['mean']:.1f} of {counts['readers']}{some}"
    return found


def policies(books: t.Books, name: str) -> Iterator[tuple[str, dict[int, float], Estimate[float] | None]]:
    """Policy for uncertain labels, mean test AUC over the labels by seed, and minus that of ignoring them."""
    found: dict[str, dict[int, float]] = {}
    for study in books(name).studies():
        for record in books(name).final(study):
            if "policy" in record:
                test = read_scores(record)
                auc = float(np.mean(auroc(test.plain, test.labels)))
                found.setdefault(record["policy"], {})[record["seed"]] = auc
    for policy, values in found.items():
        yield policy, values, None if policy == "ignore" else t.paired(values, found.get("ignore", {}))


def _uncertain(name: str) -> t.Table:
    return t.Table(
        title="Uncertain labels",
        note=(
            "Of each label 30 % of the training positives, and as many negatives, are marked as uncertain by the run's "
            "seed; CE then AUC-M, all labels at once. Smoothed policies are for CE; stage 2 takes their hard form."
        ),
        header=("policy", "mean AUC", "seeds", "minus ignore [95 %]"),
        lines=lambda books: (
            [policy, t.mean_text(list(values.values())), str(len(values)), t.interval_text(minus)]
            for policy, values, minus in policies(books, name)
        ),
    )


def _figures(books: t.Books, name: str) -> t.Figures:
    """medical.NAME.(at_once or apart).LOSS: means by label and over them; `LOSS-ce`; of other settings below these."""
    tree: t.Figures = {}
    for settings, records in second_stages(books, name):
        key = settings.replace(", ", ",").replace(" ", "=").replace(".", "_")  # a point parts the names of a path
        part = tree if settings == OWN else tree.setdefault(key, {})
        for stage, apart in STAGES.items():
            place = part.setdefault(stage.replace(" ", "_"), {})
            for loss in LOSSES:
                if runs := by_run(records, loss, apart):
                    means = [fmean(values.values()) for values in runs.values()]
                    each = {label: fmean(v[label] for v in runs.values()) for label in labels_of(records)}
                    place[loss] = {"mean": fmean(means), "sets": means, "labels": each}
                    if (together := _ensemble(records, loss, apart)) is not None:
                        place[loss]["ensemble"] = together
                minuses = {f"{loss}-ce": minus_ce(records, loss, apart)}
                if name == "chest-printed":  # those that were run with other settings, too
                    three = ("densenet121", "densenet169", "densenet201")
                    minuses[f"{loss}-ce-of-three"] = minus_ce(records, loss, apart, three)
                place |= {minus: t.interval_figures(one) for minus, one in minuses.items() if one is not None}
    marked = {policy: t.interval_figures(one) for policy, _, one in policies(books, name) if one is not None}
    return {"medical": {name: {**tree, **({"uncertain": marked} if marked else {})}}} if tree else {}


def _page(name: str, title: str, note: str, *further: t.Table) -> t.Page:
    """The page of `chest`, `chest-printed` or `chexpert`."""
    return t.Page(
        name=name,
        title=title,
        note=f"{note} The paper on CheXpert's hidden test part: .9305, 2.8 of 3 radiologists beaten; others .9065 "
        "(1.8), .9289 (2.8), .9299 (2.6), AUC-S .922.",
        tables=(_means(name), _diseases(name), *further),
        figures=lambda books: _figures(books, name),
    )


PAGES = {
    "chest": _page(
        *("chest", "Chest X-rays of NIH", "ResNet20, five seeds; other data than the paper's."), _uncertain("chest")
    ),
    "chest-printed": _page(
        "chest-printed",
        "Chest X-rays of NIH, CheXpert's settings as printed",
        "Five networks, one seed each; other data than the paper's. Rows with other settings came later, to find a "
        "cause.",
    ),
    "chexpert": _page("chexpert", "CheXpert", "Five networks, one seed each."),
}
