"""results/medical.md from made records: losses beside CE, ensembles, fusion, each recomputed."""

import numpy as np
import pytest
from scipy import stats
from sklearn.linear_model import LogisticRegression

from deepauc.metrics.auroc import auroc
from deepauc.metrics.comparison import compare_auroc
from deepauc.models.fusion import ensemble, fuse
from deepauc.studies.records.book import RecordBook
from experiments.clinical import page as medical_page
from experiments.clinical import scores as medical_scores
from experiments.clinical.cells import SEEDS
from experiments.clinical.scores import pooled, read_scores

PAGE = medical_page.PAGES["medical"]
LABELS = (np.arange(60) % 3 == 0).astype(float)


def record(study, seed, strength, *, tta=True, cut=None):
    generator = np.random.default_rng([seed, len(study), int(abs(strength) * 100)])
    plain, augmented = (generator.normal(size=60) + strength * LABELS for _ in range(2))
    scores = {"labels": 1, "plain": plain.astype("<f4"), "truth": LABELS.astype("i1")}
    if tta:
        scores["tta"] = augmented.astype("<f4")
    return {
        "study": study,
        "phase": "final",
        "run": f"{study}-{seed}",
        "seed": seed,
        "config": {"lr": 0.1},
        "auc": {"test": [float(auroc(plain.astype("f4"), LABELS)), 0.0, 1.0]},
        "alpha_zero_share": 0.25,
        "seconds": 12.0,
        "hardware": "a machine",
        "numerics": 1,
        "cut": cut or {},
        "test_scores": scores,
    }


@pytest.fixture
def results(tmp_path):
    book = RecordBook(tmp_path / "medical")
    for seed in range(SEEDS):
        for loss, strength in (("ce", 2.0), ("auc_m", 1.0), ("auc_s", 1.5)):
            book.add(record(f"breast-R-ours-{loss}", seed, strength, cut={"configs": "2 of 3"}))
    for fold in range(SEEDS):
        for loss in ("ce", "auc_m"):
            book.add(record(f"ham-R-64-{loss}", fold, 1.0))
            book.add(record(f"ham-meta-{loss}", fold, 1.5, tta=False))
            if fold < 2:
                book.add(record(f"ham-R-32-{loss}", fold, 3.0))
    return tmp_path


def cells_of(text, *starts):
    """The cells of the one line of a table that begins with these."""
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    (found,) = [line for line in lines if line[: len(starts)] == list(starts)]
    return found


def stacked(images, patients, key):
    """By fold: scikit-learn's logistic regression on the four other folds' scores, all standardised by fold."""
    columns = [np.stack([getattr(a, key), b.plain], axis=1) for a, b in zip(images, patients, strict=True)]
    z = [(one - one.mean(axis=0)) / one.std(axis=0) for one in columns]
    found = []
    for fold, own in enumerate(z):
        others = [one for number, one in enumerate(z) if number != fold]
        model = LogisticRegression(C=np.inf, tol=1e-8).fit(np.concatenate(others), np.tile(LABELS, len(others)))
        found.append(own @ model.coef_[0])
    return found


def start(found):
    return f"{float(found.difference):+.3f} [{float(found.low):+.3f}, "


def test_losses_are_compared_by_set_and_by_test_image(results):
    text, book = PAGE.markdown(results), RecordBook(results / "medical")
    own, base = ([r["auc"]["test"][0] for r in book.final(f"breast-R-ours-{loss}")] for loss in ("auc_m", "ce"))
    row = cells_of(text.split("## Single models")[1].split("\n## ")[0], "breast-R-ours", "AUC-M")
    low, high = stats.t.interval(0.95, 4, np.mean(np.subtract(own, base)), stats.sem(np.subtract(own, base)))
    assert row[7] == f"{np.mean(own) - np.mean(base):+.3f} [{low:+.3f}, {high:+.3f}]"
    both = [[read_scores(r).plain for r in book.final(f"breast-R-ours-{loss}")] for loss in ("auc_m", "ce")]
    expected = compare_auroc(*(ensemble(some, scale="sigmoid") for some in both), LABELS)
    assert row[8].startswith(start(expected))
    assert row[9:12] == ["60 (20)", "lr 0.1", "25.0 %"]
    assert row[-1] == "configs 2 of 3"
    found = PAGE.summary(results)["medical"]
    assert found["breast-R-ours"]["auc_m-ce"]["high"] == pytest.approx(high, abs=1e-6)
    assert found["counts"]["auc_m-ce"] == {
        "all": 4,
        "above": 0,
        "level": 3,
        "below": 1,
        "at_least": 1,
        "level_below": 2,
    }


def test_fusion_and_ensembles_within_folds(results):
    text, book = PAGE.markdown(results), RecordBook(results / "medical")
    both = [[read_scores(r) for r in book.final(f"ham-R-64-{loss}")] for loss in ("ce", "auc_m")]
    _, name = max((np.mean([auroc(s.tta, LABELS) for s in some]), n) for some, n in zip(both, "01", strict=True))
    single = both[int(name)]
    every = pooled(single, [ensemble([a.tta, b.tta], scale="sigmoid") for a, b in zip(*both, strict=True)])
    alone = pooled(single, [s.tta for s in single])
    expected = compare_auroc(every.plain, alone.plain, every.labels, groups=every.groups)
    section = text.split("## Ensembles within a fold: ham\n")[1]
    assert cells_of(section, f"best single: R-64-{['ce', 'auc_m'][int(name)]}")[1] == "5"
    assert cells_of(section, "all (2)")[4].startswith(start(expected))  # R-32 has two folds only: it takes none away
    images = [read_scores(r) for r in book.final("ham-R-64-auc_m")]
    patients = [read_scores(r) for r in book.final("ham-meta-auc_m")]
    fused = pooled(images, [fuse(a.plain, b.plain, scale="rank") for a, b in zip(images, patients, strict=True)])
    alone = pooled(images, [a.plain for a in images])
    expected = compare_auroc(fused.plain, alone.plain, fused.labels, groups=fused.groups)
    section = text.split("## TTA and metadata: ham-R-64\n")[1].split("\n## ")[0]
    row = cells_of(section, "AUC-M", "image + metadata, 0.5 : 0.5, rank")
    assert row[5].startswith(start(expected))
    assert row[5] == row[6]
    figures = PAGE.summary(results)["medical"]["ham-R-64"]["fusion"]["auc_m"]
    for end, key in (("", "plain"), ("_tta", "tta")):
        learned, alone = stacked(images, patients, key), pooled(images, [getattr(a, key) for a in images])
        joined = pooled(images, learned)
        expected = compare_auroc(joined.plain, alone.plain, joined.labels, groups=joined.groups)
        name = {"plain": "image", "tta": "image, TTA"}[key] + " + metadata, learned on the other folds"
        row = cells_of(section, "AUC-M", name)
        assert row[6].startswith(start(expected))
        assert figures[f"learned{end}"]["mean"] == pytest.approx(float(expected.difference), abs=1e-4)
        mean = np.mean([auroc(scores, LABELS) for scores in learned])
        assert row[2:4] == ["5", f"{mean:.3f}"]


def test_scores_that_say_nothing_leave_no_learned_row(tmp_path):
    book = RecordBook(tmp_path / "medical")
    for fold in range(SEEDS):
        book.add(record("ham-R-64-ce", fold, -2.0))
        book.add(record("ham-meta-ce", fold, -2.0, tta=False))
    text = PAGE.markdown(tmp_path)
    assert cells_of(text, "CE", "image + metadata, learned on the other folds")[2:] == ["-"] * 5
    fused = PAGE.summary(tmp_path)["medical"]["ham-R-64"]["fusion"]["ce"]
    assert "rank" in fused
    assert "learned" not in fused


def test_one_fold_has_no_others_to_learn_from(tmp_path):
    book = RecordBook(tmp_path / "medical")
    book.add(record("ham-R-64-ce", 0, 1.0))
    book.add(record("ham-meta-ce", 0, 1.0, tta=False))
    assert "+ metadata, learned on the other folds" not in PAGE.markdown(tmp_path)


def test_an_ensemble_is_compared_with_the_best_single_model(results):
    text = PAGE.markdown(results)
    runs = [read_scores(r) for r in RecordBook(results / "medical").final("breast-R-ours-ce")]
    every = [*(run.plain for run in runs), *(run.tta for run in runs)]
    aucs = [float(auroc(scores, LABELS)) for scores in every]
    plain, tta = aucs[: len(runs)], aucs[len(runs) :]
    together = ensemble([run.tta for run in runs], scale="sigmoid")
    row = cells_of(text.split("## Ensembles and test-time")[1], "breast-R-ours", "CE")
    assert [row[3], row[5]] == [f"{max(plain):.3f}", f"{max(tta):.3f}"]
    assert row[7].startswith(f"{auroc(together, LABELS):.3f} [")
    found = compare_auroc(together, every[int(np.argmax(aucs))], LABELS)  # the best, whether asked once or 30 times
    assert row[8].startswith(f"{float(found.difference):+.3f} [{float(found.low):+.3f}, {float(found.high):+.3f}]")
    assert row[9] == ("yes" if auroc(together, LABELS) > max(aucs) else "no")


def test_the_seconds_of_a_first_stage_stand_beside_those_of_its_runs(tmp_path):
    book = RecordBook(tmp_path / "medical")
    for seed, first in enumerate((30.0, 32.0)):
        told = {"fixed": {}, "selection": None, "first_stage": {"seconds": first}}
        book.add({**record("breast-R-best-auc_m", seed, 1.0), **told})
        book.add(record("breast-R-ours-auc_m", seed, 1.0))
    text = PAGE.markdown(tmp_path)
    single = text[text.index("## Single models") :]
    assert cells_of(single, "breast-R-best", "AUC-M", "0.9544")[-2] == "12 + 31"
    assert cells_of(single, "breast-R-ours", "AUC-M", "0.9544")[-2] == "12"


def test_the_bootstrap_is_drawn_where_it_is_shown_and_nowhere_else(results, monkeypatch):
    drawn = []
    real = medical_scores.auroc_interval

    def counted(scores, labels, *, method="delong", **options):
        drawn.append(method)
        return real(scores, labels, method=method, **options)

    monkeypatch.setattr(medical_scores, "auroc_interval", counted)
    text = PAGE.markdown(results)
    single = text.split("## Single models")[1].split("## ")[0]
    rows = [line for line in single.splitlines() if line.startswith("| ")][2:]
    assert drawn.count("bootstrap") == len(rows) == 9  # it takes a hundred times as long as DeLong's
    assert drawn.count("delong") > len(rows)
