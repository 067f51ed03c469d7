"""The declared ablations, their training sets counted by hand, and the page of claims."""

import numpy as np
import pytest

from deepauc.data.datasets.benchmarks.load import load_balanced
from deepauc.data.imbalance import imbalance_task
from deepauc.demo.toy import ToySettings
from deepauc.studies.records.book import RecordBook
from deepauc.studies.sources import Place
from deepauc.training.run.run import Run
from experiments.benchmarks import toy as toy_study
from experiments.benchmarks.ablation_tasks import ChangedSource, RankingSource
from experiments.benchmarks.ablations import NETWORKS, PAGE, ablations, claims, ranking_of


def final(name, seed, auc, **more):
    histogram = {"low": 0.0, "high": 1.0, "negative": [90, 0], "positive": [4, 6]}
    return {
        "study": name,
        "run": f"{name}{seed}",
        "phase": "final",
        "seed": seed,
        "config": {},
        "cut": {},
        "fixed": {"network": "D"},
        "task": {"name": "C2", "rows": {"train": 100}},
        "auc": {"test": [auc, auc - 0.01, auc + 0.01]},
        "alpha_zero_share": 0.5,
        "score_histogram": {"train": histogram, "test": histogram},
        "seconds": 3.0,
        "test_curve": [0.5, auc],
        **more,
    }


def table_rows(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]


def test_every_claim_is_about_declared_studies():
    names = {study.name for study in ablations().studies}
    rows = [row for network in NETWORKS for row in claims(network)]
    assert {row.study for row in rows} | {row.versus for row in rows} <= names
    assert {row.labels[0] for row in rows} == {"A2", "A3", "A4", "A5"}


def test_set_ups_as_in_the_spec():
    by_name = {study.name: study for study in ablations().studies}
    recipe = by_name["A3-D-noise_5-auc_m"].recipe({}, "final")
    assert recipe.stages[0].objective.margin == 0.3
    assert recipe.model.name == "densenet121"
    assert (recipe.test_curve, recipe.evaluate_every) == (True, 5)
    assert not by_name[ranking_of("D")].recipe({}, "final").test_curve
    assert by_name["A3-D-noise_5-auc_m"].task.noise == 0.05
    assert by_name["A4-D-easy_20-auc_m_reachable"].recipe({}, "final").stages[0].objective.margin == 0.1
    free = by_name["A5-D-alpha-free"].recipe({}, "final")
    assert (free.stages[0].objective.constrain_alpha, free.alpha_curve) == (False, True)
    assert (by_name["A5-D-alpha-free"].task.easy, by_name["A5-D-alpha-free"].task.noise) == (0.4, 0.01)
    raw = by_name["A2-D-C10_10-raw"].recipe({}, "final").stages[0]
    assert (raw.resolved_bound, raw.optimizer.lr) == ("none", 0.003)
    assert next(study.name for study in ablations().chosen(["A5"])) == "A4-D-ranking"


def test_both_networks_have_every_study_and_their_own_easy_positives():
    by_name = {study.name: study for study in ablations().studies}
    assert {name.replace("-R-", "-D-") for name in by_name if "-R-" in name} == {n for n in by_name if "-D-" in n}
    for name, study in by_name.items():
        network = name.split("-")[1]
        assert study.fixed["network"] == network
        assert study.task.needs == ((f"A4-{network}-ranking",) if "easy" in name or "A5" in name else ())
    with pytest.raises(ValueError, match="easy positives need a ranking"):
        ChangedSource(benchmark="C2", imratio=0.01, easy=0.1)


BELOW = {"A5-D-alpha-constrained": [0.0] * 5, "A5-D-alpha-free": [0.3, 0.4, 0.5, 0.4, 0.4]}


def test_the_page_confirms_refutes_or_leaves_open(tmp_path):
    book = RecordBook(tmp_path / "ablations")
    for seed in range(5):
        noise = 0.001 * (seed - 2)
        for name, auc in (
            ("A3-D-noise_1-auc_m", 0.75 + noise),
            ("A3-D-noise_1-auc_s", 0.73),
            ("A3-D-noise_5-auc_m", 0.70 + noise),
            ("A3-D-noise_5-auc_s", 0.73),
            ("A5-D-alpha-constrained", 0.80 + 10 * noise),
            ("A5-D-alpha-free", 0.80),
        ):
            alpha = {"steps_per_epoch": 2, "step": [0, 1, 2, 3, 20], "value": [0.0, 0.1, 0.2, 0.1, 0.0]}
            more = {"alpha": alpha, "alpha_negative_share": BELOW[name][seed]} if "A5" in name else {}
            book.add(final(name, seed, auc, **more))
    book.add(final("A2-D-C2_1-raw", 0, 0.5, failed="scores hold NaN or infinity"))
    rows = table_rows(PAGE.markdown(tmp_path))
    verdicts = {row[1]: row[5] for row in rows if len(row) == 7}
    assert verdicts["1 % noise, m = 0.3: AUC-M above AUC-S"] == "confirmed"
    assert verdicts["5 % noise, m = 0.3: AUC-M above AUC-S"] == "refuted"
    assert verdicts["40 % easy, 1 % noise, m = 0.1: alpha >= 0 helps"] == "open"
    runs = {row[0]: row[1:] for row in rows if len(row) == 10}
    assert runs["A5-D-alpha-constrained"][3:7] == ["10.0 %", "D", "50.0 %", "0.0 %"]
    assert runs["A5-D-alpha-free"][3:7] == ["10.0 %", "D", "50.0 %", "40.0 %"]
    assert runs["A3-D-noise_1-auc_m"][3:7] == ["10.0 %", "D", "50.0 %", "-"]
    assert runs["A2-D-C2_1-raw"] == ["-", "-", "1", *["-"] * 6]  # nothing but a run that diverged
    found = PAGE.summary(tmp_path)["ablations"]
    assert found["A3-D-noise_1"]["auc_m-auc_s"]["mean"] == pytest.approx(0.02)
    assert found["A3-D-noise_1"]["auc_m"]["mean"] == pytest.approx(0.75)


def test_two_networks_are_not_compared(tmp_path):
    """As long as one of two studies has been run again with the other network there is no pair."""
    book = RecordBook(tmp_path / "ablations")
    for seed in range(3):
        book.add(final("A3-D-noise_1-auc_m", seed, 0.75 + 0.001 * seed))
        book.add(final("A3-D-noise_1-auc_s", seed, 0.70) | {"fixed": {"network": "other"}})
    claim = "1 % noise, m = 0.3: AUC-M above AUC-S"
    (row,) = [row for row in table_rows(PAGE.markdown(tmp_path)) if claim in row]
    assert row[2:6] == ["D", "-", "-", "-"]
    for seed in range(2):
        book.add(final("A3-D-noise_1-auc_s", seed, 0.70))
    (row,) = [row for row in table_rows(PAGE.markdown(tmp_path)) if claim in row]
    assert row[2:4] == ["D", "2"]


@pytest.mark.data
def test_noisy_and_easy_sets_have_the_counts_of_the_paper(data_root, tmp_path):
    place = Place(data=data_root, results=tmp_path)
    noisy = ChangedSource(benchmark="C2", imratio=0.01, noise=0.05).load(0, tuning=False, place=place)
    labels = noisy.labels[noisy.part("train")]
    # 10,000 negatives and 101 positives; 500 negatives flipped; 495 of 9,899 removed positives come in as negatives
    assert (labels.sum(), len(labels)) == (101 + 500, 10_101 + 495)

    easy = ChangedSource(benchmark="C2", imratio=0.01, easy=0.1, ranking="A4-D-ranking")
    with pytest.raises(ValueError, match="A4-D-ranking"):
        easy.load(0, tuning=False, place=place)
    removed = imbalance_task(load_balanced("C2", root=data_root), imratio=0.01, seed=0).removed
    ranking = removed[::-1][: int(np.ceil(0.4 * len(removed)))].tolist()
    RecordBook(tmp_path / "ablations").add(final("A4-D-ranking", 0, 0.7, ranking=ranking))
    task = easy.load(0, tuning=False, place=place)
    added = set(task.part("train").tolist()) & set(removed.tolist())
    assert added == set(ranking[:990])
    assert task.labels[task.part("train")].sum() == 101 + 990

    both = ChangedSource(benchmark="C2", imratio=0.01, easy=0.4, noise=0.01, ranking="A4-D-ranking").load(
        0, tuning=False, place=place
    )
    assert both.labels[both.part("train")].sum() == 101 + 3_960 + 100
    RecordBook(tmp_path / "ablations").add(final("A4-D-ranking", 1, 0.7, ranking=ranking))
    with pytest.raises(ValueError, match="another training set"):
        easy.load(1, tuning=False, place=place)


@pytest.mark.data
def test_the_ranking_run_orders_the_removed_positives_by_score(data_root, monkeypatch):
    source = RankingSource(benchmark="C2", imratio=0.01)
    task = source.load(0, tuning=False, place=Place(data=data_root))
    removed = imbalance_task(load_balanced("C2", root=data_root), imratio=0.01, seed=0).removed
    rows = task.labelled("test")
    scores = np.random.default_rng(0).random(len(rows)).astype(np.float32)
    monkeypatch.setattr(Run, "__post_init__", lambda _: None)
    monkeypatch.setattr(Run, "scores", lambda _, part: (scores, task.labels[rows]))
    ranking = source.keep(Run(data_root), task, device=None)["ranking"]
    by_row = dict(zip(rows.tolist(), scores.tolist(), strict=True))
    assert ranking == sorted(removed.tolist(), key=lambda row: -by_row[row])[: len(ranking)]
    assert len(ranking) == 3_960


def test_the_toy_as_a_study(tmp_path):
    settings = ToySettings(seeds=2, steps=6, shown_step=3, pretraining_steps=5, margins=(1.0,), grid=8)
    assert "Not run yet" in toy_study.page(tmp_path)
    record = toy_study.run(Place(results=tmp_path), settings)
    assert toy_study.run(Place(results=tmp_path))["seconds"] == record["seconds"]  # a record that is there stays
    assert record["section"] in toy_study.page(tmp_path)
    assert [path.name for path in toy_study.ENTRY.pictures(tmp_path)] == ["boundaries.png", "paths.png"]
