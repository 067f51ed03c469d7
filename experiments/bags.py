"""results/bags.md and its figures, from the records of `benchmarks/bags.py` alone: `python -m experiments.bags`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deepauc.metrics.intervals import Estimate
from deepauc.metrics.mean_interval import mean_interval
from deepauc.studies.records.file import read_named
from deepauc.text_tables import markdown_table
from deepauc.training.run.folder import code_text

RESULTS = Path(__file__).parents[1] / "results"
TITLES = {
    "pathology": "PathMNIST, 10 tiles per bag, 1 to 3 of them tumour",
    "patients": "NIH chest X-rays, 3 per patient, effusion in any of them",
    "dermatology": "HAM10000, 3 lesions per bag, 1 of them a melanoma",
}
LOSSES = ("CE", "AUC-M")
COPIED = (("copied", "mean"), ("copied", "max"), ("copied", "noisy-or"))
BAGS = (("smooth-max", "smooth-max"), ("attention", "attention"))

Sets = Mapping[int, float]  # test AUC by set
Key = tuple[str, str, str, str]  # data, method, how its scores were pooled, loss

INTRODUCTION = """# Bags: one label for several images

Test AUC per bag: the mean over sets with the 95 % t-interval over sets. `copied label`: each image is trained with the
label of its bag, and the scores of a bag's images are pooled afterwards. `bags`: the network pools, and is trained on
bags. Bags, network, rates, margin, lengths and poolings were fixed in `benchmarks/bags.py` before any score was seen,
one setting for each loss; the last epoch counts and nothing is chosen. `max` inside the network was planned too, and
left out for time. Differences are paired by set. HAM10000's file has one image of each lesion and names no patients, so
its bags are drawn; real patients are those of the chest X-rays. That `smooth-max` is the default of `deepauc train` was
decided after the first of these results were seen.

Made by `python benchmarks/bags.py`, then `python -m experiments.bags`."""


def aucs_by_set(results: Path) -> dict[Key, Sets]:
    """By data, method, pooling and loss."""
    found: dict[Key, dict[int, float]] = {}
    for one in read_named(results / "bags.jsonl").values():
        for how, auc in one["auc"].items():
            found.setdefault((one["data"], one["method"], how, one["loss"]), {})[one["set"]] = auc[0]
    return {key: dict(sorted(sets.items())) for key, sets in found.items()}


def difference(first: Sets, second: Sets) -> list[float]:
    """By the sets that both have."""
    return [first[number] - second[number] for number in first if number in second]


def bag_figures(results: Path) -> dict[str, Any]:
    """bags.DATA.METHOD.LOSS, bags.DATA.METHOD.auc_m-ce, bags.DATA.POOLING-METHOD.LOSS: intervals over sets."""
    aucs, found = aucs_by_set(results), dict[str, Any]()

    def interval(values: Sequence[float]) -> dict[str, float]:
        return {"mean": (one := mean_interval(values)).value, "low": one.low, "high": one.high}

    for data in dict.fromkeys(key[0] for key in aucs):
        own: dict[str, Any] = {}
        for method in (*COPIED, *BAGS):
            sets = {loss: aucs.get((data, *method, loss), {}) for loss in LOSSES}
            if min(map(len, sets.values())) < 2:
                continue
            entry = {_short(loss): interval(list(sets[loss].values())) for loss in LOSSES}
            entry["auc_m-ce"] = interval(difference(sets["AUC-M"], sets["CE"]))
            own[_name(method)] = entry
            for other in COPIED if method in BAGS else ():
                own[f"{_name(method)}-{_name(other)}"] = {
                    _short(loss): interval(difference(sets[loss], aucs[(data, *other, loss)])) for loss in LOSSES
                }
        if own:
            found[data] = own
    return {"bags": found}


def page(results: Path) -> str:
    """All of results/bags.md."""
    aucs, records = aucs_by_set(results), list(read_named(results / "bags.jsonl").values())
    blocks = [INTRODUCTION]
    for data, title in TITLES.items():
        mine = [one for one in records if one["data"] == data]
        if not mine:
            continue
        bags, positives = mine[0]["bags"], mine[0]["positives"]
        blocks += [
            f"## {title}",
            f"Train: {bags['train']} bags, {positives['train']} positive. Test: {bags['test']} bags, "
            f"{positives['test']} positive.",
            _auc_table(data, aucs),
            _difference_table(data, aucs),
        ]
    cpu, first = sum(one["cpu_seconds"] for one in records) / 60, records[0]
    blocks.append(
        f"{len(records)} runs, {cpu:.0f} minutes of one core; {first['hardware']}; torch {first['versions']['torch']}; "
        f"{code_text(first)}. DeLong intervals of each set are in the records."
    )
    return "\n\n".join(blocks) + "\n"


def _auc_table(data: str, aucs: Mapping[Key, Sets]) -> str:
    rows = []
    for method in (*COPIED, *BAGS):
        sets = {loss: aucs.get((data, *method, loss), {}) for loss in LOSSES}
        numbers = sorted({len(own) for own in sets.values()})
        if not any(numbers):
            continue
        rows.append(
            [
                "copied label" if method in COPIED else "bags",
                method[1],
                " and ".join(map(str, numbers)),
                *(_text(list(sets[loss].values())) for loss in LOSSES),
                _text(difference(sets["AUC-M"], sets["CE"]), signed=True),
            ]
        )
    return markdown_table(["training", "pooling", "sets", *LOSSES, "AUC-M - CE"], rows)


def _difference_table(data: str, aucs: Mapping[Key, Sets]) -> str:
    rows = []
    for method in BAGS:
        for other in COPIED:
            both = [(aucs.get((data, *method, loss), {}), aucs.get((data, *other, loss), {})) for loss in LOSSES]
            if any(mine for mine, _ in both):
                texts = [_text(difference(*pair), signed=True) for pair in both]
                rows.append([f"bags, {method[1]} - copied label, {other[1]}", *texts])
    return markdown_table(["difference", *LOSSES], rows) if rows else ""


def _text(values: Sequence[float], *, signed: bool = False) -> str:
    if len(values) < 2:
        return f"{values[0]:{'+' if signed else ''}.3f}" if values else "-"
    found: Estimate[float] = mean_interval(values)
    mean, low, high = (f"{one:{'+' if signed else ''}.3f}" for one in (found.value, found.low, found.high))
    return f"{mean} [{low}, {high}]"


def _name(method: tuple[str, str]) -> str:
    parts = method if method[0] != method[1] else method[:1]
    return "_".join(parts).replace("-", "_")


def _short(loss: str) -> str:
    return {"CE": "ce", "AUC-M": "auc_m"}[loss]


if __name__ == "__main__":
    (RESULTS / "bags.md").write_text(page(RESULTS), encoding="utf-8")
