"""The study `objectives`: the same menu for all, a selection by each one's own metric, and its page, end to end."""

import re
from dataclasses import replace
from statistics import fmean

import pytest

from deepauc.metrics.mean_interval import mean_interval
from deepauc.optim.pdsca import PDSCASpec
from deepauc.studies.running.runner import run_studies
from deepauc.studies.sources import Place
from deepauc.studies.study import StudySet
from experiments.benchmarks.smoke import DigitsSource
from experiments.beyond import page as pages
from experiments.beyond.studies import LEARNING_RATES, METHODS, OWN, cell, objectives, on_a_cpu

SMALL = {"network": "S", "epochs": 2, "batch_size": 128, "quota": 16, "augmented": False, "precision": "float32"}


@pytest.mark.parametrize("studies", [objectives(), on_a_cpu()], ids=lambda one: one.name)
def test_every_objective_has_the_same_menu(studies):
    for name in dict.fromkeys(study.group for study in studies.studies):
        own = [study for study in studies.studies if study.group == name]
        assert {study.name.removeprefix(f"{name}-") for study in own} == {
            *METHODS,
            *(f"ce_by_{metric}" for metric in ("fpr", "tpr", "ap")),
        }
        assert len({(study.task, study.tuning_seeds, study.seeds, repr(study.grid)) for study in own}) == 1
        recipes = [study.recipe({"lr": 0.1}, "final") for study in own]
        assert len({sum(stage.epochs for stage in recipe.stages) for recipe in recipes}) == 1
        shared = ("batch_size", "positives_per_batch", "augment", "precision")
        assert len({tuple(getattr(s, x) for x in shared) for r in recipes for s in r.stages}) == 1
        assert {(s.optimizer.lr, s.optimizer.momentum) for r in recipes for s in r.stages} == {(0.1, 0.9)}
        by_name = {study.name.removeprefix(f"{name}-"): study.chosen_by for study in own}
        assert {one: by_name[one] for one in METHODS} == OWN
        assert all(by_name[f"ce_by_{metric}"] == metric for metric in ("fpr", "tpr", "ap"))


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Tuned, chosen and refitted on the digits, all objectives side by side."""
    folder = tmp_path_factory.mktemp("objectives")
    studies = [
        replace(one.cut_to(configs=2), seeds=(0, 1))
        for one in cell("digits", DigitsSource(imratio=0.1), sets=1, fixed=SMALL)
    ]
    place = Place(runs=folder / "runs", results=folder)
    outcome = run_studies("some", studies, place=place, device="cpu", pack=24)
    return folder, StudySet(name="some", title="Some", studies=tuple(studies)), outcome


def test_it_runs_from_end_to_end_and_cross_entropy_is_trained_once(done):
    folder, studies, outcome = done
    assert not outcome.failed
    assert outcome.done == 11 * (2 + 2)
    book = pages.t.Books(folder)("some")
    tuned = {study.name: {record["run"] for record in book.tuning(study.name)} for study in studies.studies}
    for metric in ("fpr", "tpr", "ap"):
        assert tuned[f"digits-ce_by_{metric}"] == tuned["digits-ce"]
    for study in studies.studies:
        if study.chosen_by != "auc":
            best = max(book.tuning(study.name), key=lambda one: one["measures"]["validation"][study.chosen_by])
            assert {one["config"]["lr"] for one in book.final(study.name)} == {best["config"]["lr"]}
    (stage,) = book.final("digits-pdsca")[0]["recipe"]["stages"]
    assert stage["optimizer"]["type"] == PDSCASpec.__name__
    assert {one["config"]["lr"] for one in book.everything()} <= set(LEARNING_RATES)


def test_the_page_is_made_of_the_records(done):
    folder, studies, _ = done
    made = pages.page(studies)
    books = pages.t.Books(folder)
    book = books("some")
    figures = made.summary(folder)["some"]["digits"]
    for metric, largest in (("fpr", 0.3), ("tpr", 0.2), ("ap", 1.0)):
        mine, theirs = (
            [one["measures"]["test"][metric] / largest for one in book.final(f"digits-{name}")]
            for name in (metric, f"ce_by_{metric}")
        )
        assert figures[metric][metric] == pytest.approx(fmean(mine), abs=1e-6)
        expected = mean_interval([a - b for a, b in zip(mine, theirs, strict=True)])
        assert figures[metric][f"{metric}-ce"]["low"] == pytest.approx(expected.low, abs=1e-6)
        assert 0 < fmean(mine) <= 1
    aucs = [[one["auc"]["test"][0] for one in book.final(f"digits-{name}")] for name in ("ap", "ce_by_ap")]
    assert figures["ap"]["auc-ce"]["mean"] == pytest.approx(fmean(aucs[0]) - fmean(aucs[1]), abs=1e-6)
    text = re.sub(" +", " ", made.markdown(folder))
    for title in (*pages.TITLES.values(), *pages.METRICS.values()):
        assert f"| {title} |" in text
    highest = [line for line in text.splitlines() if line.startswith("| AP | ")][-1]
    rows = {**{one: f"digits-{one}" for one in METHODS}, "ce": "digits-ce_by_ap"}
    means = {one: fmean(pages.values(books, "some", study, "ap").values()) for one, study in rows.items()}
    assert highest.startswith(f"| AP | {pages.TITLES[max(means, key=means.get)]}, ")
