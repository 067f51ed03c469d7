"""Figures of single runs on medical images that the pages quote are those of the records under results/.

One row of FIGURES a sentence: the page, the sentence with a group for each figure, and where the figures come from.
"""

import json
import re
from pathlib import Path
from statistics import fmean

import pytest

from deepauc.studies.records.file import read_named

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
AUC = r"([+-]?\.\d+)"
INTERVAL = rf"{AUC} \[{AUC}, {AUC}\]"


def shown(value: float, digits: int = 3, *, sign: bool = False) -> str:
    """.706 and, as a difference, -.031."""
    return f"{value:{'+' if sign else ''}.{digits}f}".replace("0.", ".", 1)


def signed(*values: float) -> tuple[str, ...]:
    return tuple(shown(value, sign=True) for value in values)


def record(path: str) -> dict:
    return json.loads((RESULTS / path).read_text(encoding="utf-8"))


def csv_to_report(name: str) -> tuple[str, ...]:
    """AUC-M minus CE on test."""
    found = record(f"csv-to-report/{name}.json")["paired_auc_stage_minus_ce"]["test"]["difference"]
    return signed(found["value"], found["low"], found["high"])


def fusion() -> tuple[str, ...]:
    """Rows of test; test AUC by images, by metadata, by both; the paired difference."""
    found = record("image-and-metadata/ham10000-64.json")
    gain = found["both_minus_images_on_test"]["both, sigmoid"]["difference"]
    aucs = [shown(found["auc"][name]["test"]["value"]) for name in ("images", "metadata", "both, sigmoid")]
    counts = found["counts"]["test"]
    return str(counts["positives"]), str(counts["rows"]), *aucs, *signed(gain["value"], gain["low"], gain["high"])


def learned_fusion() -> tuple[str, ...]:
    """The weights of images and metadata; test AUC by both; the paired difference."""
    found = record("image-and-metadata/ham10000-64.json")
    gain = found["both_minus_images_on_test"]["both, learned"]["difference"]
    weights = (shown(found["learned_weights"][name], 2) for name in ("images", "metadata"))
    auc = shown(found["auc"]["both, learned"]["test"]["value"])
    return *weights, auc, *signed(gain["value"], gain["low"], gain["high"])


def fusion_on_validation() -> tuple[str, ...]:
    auc = record("image-and-metadata/ham10000-64.json")["auc"]
    return tuple(shown(auc[name]["validation"]["value"]) for name in ("images", "both, sigmoid"))


def csv_aucs(name: str) -> tuple[str, ...]:
    return tuple(shown(values["test"]["value"]) for values in record(f"csv-to-report/{name}.json")["auc"].values())


def medmnist(name: str) -> tuple[str, ...]:
    """Mean test AUC of CE and of both stages, over three seeds."""
    found = read_named(RESULTS / "medmnist-cpu.jsonl")
    runs = {m: [found[f"{name}-{m}-{seed}"] for seed in range(3)] for m in ("ce", "ce-auc-m")}
    return tuple(shown(fmean(run["results"]["auc"]["test"]["class 0"][0] for run in some)) for some in runs.values())


def seconds() -> tuple[str, ...]:
    names = ("breastmnist", "pneumoniamnist")
    return tuple(f"{record(f'csv-to-report/{name}.json')['wall_seconds']['train_and_report']:.0f}" for name in names)


FIGURES = [
    ("choosing.md", rf"BreastMNIST {AUC} \(CE\) against {AUC} \(CE, then AUC-M\)", lambda: medmnist("breastmnist")),
    ("choosing.md", rf"PneumoniaMNIST {AUC} against {AUC}\.", lambda: medmnist("pneumoniamnist")),
    ("choosing.md", rf"one seed\): {AUC} against {AUC} and {AUC} against {AUC}\.",
     lambda: (*csv_aucs("breastmnist"), *csv_aucs("pneumoniamnist"))),
    ("index.md", rf"{INTERVAL} on BreastMNIST", lambda: csv_to_report("breastmnist")),
    ("index.md", rf"{INTERVAL} on PneumoniaMNIST", lambda: csv_to_report("pneumoniamnist")),
    ("metadata.md", rf"(\d+) melanomas among (\d+) lesions in test, these commands gave an AUC of {AUC} by the images, "
     rf"{AUC} by age, sex and site, and {AUC} by both: {INTERVAL} against the images", fusion),
    ("metadata.md", rf"validation said so: {AUC} by the images, {AUC} by both", fusion_on_validation),
    ("metadata.md", rf"learned`, which found {AUC} for the images and {AUC} for the rest, it was {AUC}, {INTERVAL}:",
     learned_fusion),
    ("scale.md", r"two MedMNIST runs took (\d+) s and (\d+) s", seconds),
]  # fmt: skip


@pytest.mark.parametrize(
    ("page", "sentence", "source"), FIGURES, ids=[f"{page}-{n}" for n, (page, *_) in enumerate(FIGURES)]
)
def test_a_page_quotes_the_record(page, sentence, source):
    text = " ".join((ROOT / "docs" / page).read_text(encoding="utf-8").split())
    (found,) = re.finditer(sentence, text)
    assert found.groups() == source()
