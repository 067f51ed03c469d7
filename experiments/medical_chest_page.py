"""Chest X-rays: at once and by disease, ensembles, readers beaten, uncertain labels, the cost of five labels."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from deepauc.metrics.auroc import auroc
from deepauc.metrics.comparison import compare_auroc
from deepauc.metrics.intervals import Estimate, auroc_interval
from deepauc.metrics.mean_interval import mean_interval
from deepauc.studies.records.book import Record
from deepauc.studies.records.file import read_named
from deepauc.studies.records.tables import Books, Figures, Page, Table, interval_figures, interval_text, mean_text
from deepauc.text_tables import auc_text
from experiments.medical_cells import comparison_text
from experiments.medical_readers import disease_ensembles
from experiments.medical_scores import RESAMPLES, read_scores
from experiments.recipes import TITLES

LOSSES = ("ce", "focal", "auc_s", "auc_m")
STAGES = {"at once": False, "apart": True}
WHERE = ("settings", "stage 2", "loss")
Runs = dict[tuple[str, int], list[float]]


def second_stages(books: Books, name: str) -> Iterator[tuple[str, list[Record]]]:
    """Runs of stage 2: those of the study itself, then those with other settings, whose records are beside them."""
    for where in (name, *(f"{name}/{other}" for other in books(name).others())):
        book = books(where)
        runs = [record for study in book.studies() for record in book.final(study) if "loss" in record]
        if runs:
            yield where.removeprefix(name).removeprefix("/").replace("=", " ").replace(",", ", ") or "as declared", runs


def labels_of(records: Sequence[Record]) -> list[str]:
    """In the order of a run on all of them; where there is none, those that have a run of their own."""
    whole = next((r for r in records if r["labels"] == "all"), None)
    return list(dict.fromkeys(label for r in ([whole] if whole else records) for label in r["auc"]["test"]))


def by_run(records: Sequence[Record], loss: str, apart: bool) -> Runs:
    """(network, seed) -> plain test AUC of each label; only runs that have all of them."""
    found: dict[tuple[str, int], dict[str, float]] = {}
    for record in records:
        if record["loss"] == loss and (record["labels"] != "all") == apart:
            values = {label: value for label, (value, *_) in record["auc"]["test"].items()}
            found.setdefault((record["network"], record["seed"]), {}).update(values)
    labels = labels_of(records)
    return {run: [v[label] for label in labels] for run, v in found.items() if set(v) >= set(labels)}


def minus_ce(records: Sequence[Record], loss: str, apart: bool, networks: Sequence[str] = ()) -> Estimate[float] | None:
    """Of the mean over labels, run by run; networks: only these."""
    own, base = (by_run(records, one, apart) for one in (loss, "ce"))
    common = sorted(run for run in own.keys() & base.keys() if not networks or run[0] in networks)
    if loss == "ce" or len(common) < 2:
        return None
    return mean_interval([fmean(own[run]) - fmean(base[run]) for run in common])


def _means(name: str) -> Table:
    def lines(books: Books) -> Iterator[list[str]]:
        for settings, records in second_stages(books, name):
            beaten = _readers(books, name) if settings == "as declared" else {}
            for stage, apart in STAGES.items():
                for loss in LOSSES:
                    if runs := by_run(records, loss, apart):
                        means, together = [fmean(values) for values in runs.values()], _ensemble(records, loss, apart)
                        minus = interval_text(minus_ce(records, loss, apart))
                        shown = [settings, stage, TITLES[loss], str(len(runs)), mean_text(means), minus, together]
                        yield [*shown, beaten.get((loss, apart), "-")]

    return Table(
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


def _ensemble(records: Sequence[Record], loss: str, apart: bool) -> str:
    found = disease_ensembles(records, labels_of(records), loss, apart=apart)
    return f"{fmean(float(auroc(*both)) for both in found):.3f}" if found else "-"


def _diseases(name: str) -> Table:
    def lines(books: Books) -> Iterator[list[str]]:
        for settings, records in second_stages(books, name):
            labels = labels_of(records)
            for stage, apart in STAGES.items():
                base = disease_ensembles(records, labels, "ce", apart=apart)
                patients = _patients(records, labels, apart)
                for loss in LOSSES:
                    together, runs = disease_ensembles(records, labels, loss, apart=apart), by_run(records, loss, apart)
                    for at, (scores, truth) in enumerate(together):
                        groups = patients[at]
                        drawn = auroc_interval(
                            scores, truth, groups=groups, method="bootstrap", n_resamples=RESAMPLES
                        )  # fmt: skip
                        delong = auroc_interval(scores, truth, groups=groups)
                        other = base[at][0] if base and loss != "ce" else None
                        yield [
                            *(settings, stage, TITLES[loss], labels[at]),
                            mean_text([values[at] for values in runs.values()]) if runs else "-",
                            auc_text(float(delong.value), float(delong.low), float(delong.high)),
                            f"[{float(drawn.low):.3f}, {float(drawn.high):.3f}]",
                            "-"
                            if other is None
                            else comparison_text(compare_auroc(scores, other, truth, groups=groups)),
                        ]

    return Table(
        title="Label by label",
        note=(
            "`single`: as above. `ensemble`: DeLong's interval, and the bootstrap's (BCa), both by whole patients; "
            "minus CE's ensemble by the paired test."
        ),
        header=(*WHERE, "label", "single", "ensemble [DeLong 95 %]", "[bootstrap 95 %]", "minus CE, paired"),
        lines=lines,
    )


def _patients(records: Sequence[Record], labels: Sequence[str], apart: bool) -> list[Any]:
    """Patients of the images that have a label, disease by disease; None where they are not known."""
    found: list[Any] = []
    for number, label in enumerate(labels):
        test = next((read_scores(r) for r in records if r["labels"] == (label if apart else "all")), None)
        if test is None or test.groups is None:
            found.append(None)
        else:
            truth = test.labels if apart else test.labels[:, number]
            found.append(test.groups[~np.isnan(truth)])
    return found


def _readers(books: Books, name: str) -> dict[tuple[str, bool], str]:
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


def policies(books: Books, name: str) -> dict[str, dict[int, float]]:
    """Mean test AUC over the labels by policy for uncertain labels and seed."""
    found: dict[str, dict[int, float]] = {}
    for study in books(name).studies():
        for record in books(name).final(study):
            if "policy" in record:
                test = read_scores(record)
                by_seed = found.setdefault(record["policy"], {})
                by_seed[record["seed"]] = float(np.mean(auroc(test.plain, test.labels)))
    return found


def _minus_ignore(found: Mapping[str, Mapping[int, float]], policy: str) -> Estimate[float] | None:
    values, base = found[policy], found.get("ignore", {})
    common = sorted(values.keys() & base.keys())
    if policy == "ignore" or len(common) < 2:
        return None
    return mean_interval([values[seed] - base[seed] for seed in common])


def _uncertain(name: str) -> Table:
    def lines(books: Books) -> Iterator[list[str]]:
        found = policies(books, name)
        for policy, values in found.items():
            shown = mean_text(list(values.values())), str(len(values)), interval_text(_minus_ignore(found, policy))
            yield [policy, *shown]

    return Table(
        title="Uncertain labels",
        note=(
            "Of each label 30 % of the training positives, and as many negatives, are marked as uncertain by the run's "
            "seed; CE then AUC-M, all labels at once. Smoothed policies are for CE; stage 2 takes their hard form."
        ),
        header=("policy", "mean AUC", "seeds", "minus ignore [95 %]"),
        lines=lines,
    )


def _cost(books: Books) -> Iterator[list[str]]:
    for name, record in sorted(read_named(books.results / "speed.jsonl").items()):
        for row in record["rows"] if name.startswith("multi-label-") else ():
            values = (f"{row[name]:.3g}" for name in ("single_ms", "five_ms", "ratio"))
            yield [record["hardware"], row["network"], *values]


COST = Table(
    title="What five labels cost",
    note="A training step of AUC-M and PESG, five labels at once against one: `python benchmarks/multi_label.py`.",
    header=("machine", "network", "one label, ms", "five labels, ms", "ratio"),
    lines=_cost,
)


def _figures(books: Books, name: str) -> Figures:
    """medical.NAME.(at_once or apart).LOSS: means by label and over them; `LOSS-ce`; of other settings below these."""
    tree: Figures = {}
    for settings, records in second_stages(books, name):
        key = settings.replace(", ", ",").replace(" ", "=").replace(".", "_")  # a point parts the names of a path
        part = tree if settings == "as declared" else tree.setdefault(key, {})
        labels = labels_of(records)
        for stage, apart in STAGES.items():
            place = part.setdefault(stage.replace(" ", "_"), {})
            for loss in LOSSES:
                if runs := by_run(records, loss, apart):
                    means = [fmean(values) for values in runs.values()]
                    each = {label: fmean(values[at] for values in runs.values()) for at, label in enumerate(labels)}
                    place[loss] = {"mean": fmean(means), "sets": means, "labels": each}
                    if found := disease_ensembles(records, labels, loss, apart=apart):
                        place[loss]["ensemble"] = fmean(float(auroc(*both)) for both in found)
                if (minus := minus_ce(records, loss, apart)) is not None:
                    place[f"{loss}-ce"] = interval_figures(minus)
                three = ("densenet121", "densenet169", "densenet201")  # those that were run with other settings, too
                if name == "chest-printed" and (minus := minus_ce(records, loss, apart, three)) is not None:
                    place[f"{loss}-ce-of-three"] = interval_figures(minus)
    marked = policies(books, name)
    minuses = ((policy, _minus_ignore(marked, policy)) for policy in marked)
    uncertain = {policy: interval_figures(one) for policy, one in minuses if one is not None}
    return {"medical": {name: {**tree, **({"uncertain": uncertain} if uncertain else {})}}} if tree else {}


def _page(name: str, title: str, note: str, *further: Table) -> Page:
    """The page of `chest`, `chest-printed` or `chexpert`."""
    return Page(
        name=name,
        title=title,
        note=note
        + (
            " The paper on CheXpert's hidden test part: .9305, 2.8 of 3 radiologists beaten; others .9065 (1.8), .9289 "
            "(2.8), .9299 (2.6), AUC-S .922."
        ),
        tables=(_means(name), _diseases(name), *further),
        figures=lambda books: _figures(books, name),
    )


CHEST = _page(
    "chest",
    "Chest X-rays of NIH",
    "ResNet20, five seeds; other data than the paper's.",
    *(_uncertain("chest"), COST),
)
CHEST_PRINTED = _page(
    "chest-printed",
    "Chest X-rays of NIH, CheXpert's settings as printed",
    "Five networks, one seed each; other data than the paper's. Rows with other settings came later, to find a cause.",
)
CHEXPERT = _page("chexpert", "CheXpert", "Five networks, one seed each.")
