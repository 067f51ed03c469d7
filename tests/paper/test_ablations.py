"""The declared ablations, their training sets counted by hand, and the page of claims."""

import numpy as np
import pytest
from scipy import stats

from deepauc.data.benchmarks.load import load_balanced
from deepauc.data.imbalance import imbalance_task
from deepauc.demo.toy import ToySettings
from deepauc.paper import ablation_page, toy_study
from deepauc.paper.ablation_tasks import ChangedSource, RankingSource
from deepauc.paper.ablations import ablations, claims, ranking_of
from deepauc.paper.study_figures import ablation_pictures
from deepauc.studies.records import RecordBook
from deepauc.studies.sources import Place
from deepauc.training.run import Run


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


def test_every_claim_is_about_declared_studies():
    names = {study.name for study in ablations().studies}
    assert {claim.better for claim in claims()} | {claim.worse for claim in claims()} <= names
    assert {claim.ablation for claim in claims()} == {"A2", "A3", "A4", "A5"}


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
    lines = ablation_page.page(tmp_path).split("## Not run")[0].splitlines()
    verdicts = {line.split("|")[2].strip(): line.split("|")[6].strip() for line in lines if line.startswith("| A")}
    assert verdicts["1 % noise, m = 0.3: AUC-M above AUC-S"] == "confirmed"
    assert verdicts["5 % noise, m = 0.3: AUC-M above AUC-S"] == "refuted"
    assert verdicts["40 % easy, 1 % noise, m = 0.1: alpha >= 0 helps"] == "open"
    below = "40 % easy, 1 % noise, m = 0.1: a free alpha goes below 0, share of steps"
    assert verdicts[below] == "confirmed"
    low, high = stats.t.interval(0.95, 4, 0.4, stats.sem(BELOW["A5-D-alpha-free"]))
    assert any(f"40.0 % [{100 * low:.1f}, {100 * high:.1f}]" in line for line in lines if below in line)
    runs = {cells[1].strip(): [cell.strip() for cell in cells] for line in lines if len(cells := line.split("|")) == 11}
    assert runs["A5-D-alpha-constrained"][6:8] == ["50.0 %", "0.0 %"]
    assert runs["A5-D-alpha-free"][6:8] == ["50.0 %", "40.0 %"]
    assert runs["A3-D-noise_1-auc_m"][6:8] == ["50.0 %", "-"]
    assert any("10.0 %" in line for line in lines if line.startswith("| A3-D-noise_1-auc_m"))
    drawn = ablation_pictures(tmp_path)
    assert [path.name for path in drawn] == ["A3-D-curves.png", "A5-D-curves.png", "A5-D-alpha.png"]
    assert all(path.stat().st_size < 100_000 for path in drawn)
    assert "![A5-D-alpha: alpha by step, first training set" in ablation_page.page(tmp_path)


def test_two_networks_are_not_compared(tmp_path):
    """As long as one of two studies has been run again with the other network there is no pair."""
    book = RecordBook(tmp_path / "ablations")
    for seed in range(3):
        book.add(final("A3-D-noise_1-auc_m", seed, 0.75 + 0.001 * seed))
        book.add(final("A3-D-noise_1-auc_s", seed, 0.70) | {"fixed": {"network": "other"}})
    assert "No pair of studies has records yet" in ablation_page.page(tmp_path)
    for seed in range(2):
        book.add(final("A3-D-noise_1-auc_s", seed, 0.70))
    (line,) = [line for line in ablation_page.page(tmp_path).splitlines() if "AUC-M above AUC-S" in line]
    assert [cell.strip() for cell in line.split("|")[3:5]] == ["D", "2"]


def test_records_without_the_share_below_zero_claim_nothing_of_it(tmp_path):
    book = RecordBook(tmp_path / "ablations")
    for seed in range(3):
        for name in BELOW:
            book.add(final(name, seed, 0.7 + 0.01 * seed))
    text = ablation_page.page(tmp_path)
    assert "alpha >= 0 helps" in text
    assert "a free alpha goes below 0" not in text


def test_a_free_alpha_that_never_goes_below_zero_refutes_the_claim(tmp_path):
    book = RecordBook(tmp_path / "ablations")
    for seed in range(3):
        for name in BELOW:
            book.add(final(name, seed, 0.7, alpha_negative_share=0.0))
    (line,) = [line for line in ablation_page.page(tmp_path).splitlines() if "a free alpha goes below 0" in line]
    assert line.split("|")[6].strip() == "refuted"


def test_margins_of_medical_tasks_stand_beside_the_papers(tmp_path):
    medical = RecordBook(tmp_path / "medical")
    for seed in range(2):
        medical.add(final("isic-M-auc_m", seed, 0.7, config={"margin": 0.7, "lr": 0.1}))
        chosen = {"rule": {"type": "BestMeanValidation"}, "inherited from": "breast-R-ours-ce"}  # all but its lr
        medical.add(final("breast-R-ours-auc_m", seed, 0.7, config={"margin": 0.5}, selection=chosen))
        medical.add(final("breast-R-ours-auc_s", seed, 0.7, config={"margin": 0.1}))
        inherited = {"inherited from": "breast-R-ours-auc_m"}
        medical.add(final("breast-printed-auc_m", seed, 0.7, config={"margin": 0.5}, selection=inherited))
    RecordBook(tmp_path / "pcam").add(final("pcam-D-auc_m", 0, 0.7, config={"margin": 1.0}))
    on_chests = final("R-Edema-auc_m", 0, 0.7)
    del on_chests["config"]  # nothing is tuned there
    RecordBook(tmp_path / "chest").add(on_chests)
    text = ablation_page.page(tmp_path)
    section = text.split("## A6: the margin")[1].split("## Not run")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("|")]
    assert rows[2:] == [
        ["Melanoma", "0.8", "0.7", "`medical`: isic-M"],
        ["DDSM+", "0.5", "0.5", "`medical`: breast-R-ours"],
        ["PatchCamelyon", "0.7", "1", "`pcam`: pcam-D"],
    ]
    assert "No m selected yet: CheXpert." in section


def test_sets_without_a_selected_margin_are_named(tmp_path):
    RecordBook(tmp_path / "paper-tables").add(final("C10-R-1-paper-auc_m", 0, 0.7, config={"margin": 0.5}))
    assert "over its trials. No m selected yet: C2, S10, C100." in ablation_page.page(tmp_path)


def test_what_was_not_run_as_declared_is_listed(tmp_path):
    """Runs with another network, or with another cut, are no runs of the study as declared."""
    book = RecordBook(tmp_path / "ablations")
    other = {"fixed": {"network": "R"}, "cut": {"network": "R"}}
    for seed in range(5):
        book.add(final("A3-D-noise_1-auc_m", seed, 0.7))
        book.add(final("A3-D-noise_1-auc_s", seed, 0.7, **other))
    for seed in range(3):
        book.add(final("A3-D-noise_5-auc_m", seed, 0.7))
    book.add(final("A3-D-noise_5-auc_m", 3, 0.7, cut={"epochs": 2}))
    book.add(final("A3-D-noise_5-auc_m", 4, 0.7, failed="scores hold NaN or infinity"))
    section = ablation_page.page(tmp_path).split("## Not run")[1]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("| A")]
    listed = {row[0]: row[1:] for row in rows}
    assert set(listed) == {study.name for study in ablations().studies} - {"A3-D-noise_1-auc_m"}
    assert listed["A3-D-noise_1-auc_s"] == ["D", "5 of 5", "network R: 5"]
    assert listed["A3-D-noise_5-auc_m"] == ["D", "2 of 5", "epochs 2: 1; diverged: 1"]
    assert listed["A2-D-S10_10-raw"] == ["D", "5 of 5", "-"]


def test_without_records_nothing_is_claimed(tmp_path):
    assert "No pair of studies has records yet" in ablation_page.page(tmp_path)
    assert ablation_pictures(tmp_path) == []


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
    assert [path.name for path in toy_study.pictures(tmp_path)] == ["boundaries.png", "paths.png"]


def test_where_the_margin_was_never_met_the_page_says_what_a_claim_is_about(tmp_path):
    book = RecordBook(tmp_path / "ablations")
    for name, share in (("A3-D-noise_1", 0.0), ("A3-R-noise_1", 0.5)):
        for seed in range(2):
            book.add(final(f"{name}-auc_m", seed, 0.75) | {"alpha_zero_share": share})
            book.add(final(f"{name}-auc_s", seed, 0.70))
    assert "alpha was 0 at no step in 1 of 2 of these comparisons of AUC" in ablation_page.page(tmp_path)
    for seed in range(2):
        book.add(final("A3-D-noise_1-auc_m", seed, 0.75) | {"alpha_zero_share": 0.01 * seed})
    assert "alpha was 0 at no step" not in ablation_page.page(tmp_path)
