"""results/medical.md from made records: aims, ensembles with intervals, what was not run."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from deepauc.metrics.auroc import auroc
from deepauc.metrics.comparison import compare_auroc
from deepauc.models.fusion import ensemble, fuse
from deepauc.paper import medical_chest, medical_chest_plan, medical_page, medical_scores
from deepauc.paper.medical_cells import CELLS, SEEDS
from deepauc.paper.medical_scores import pooled, read_scores
from deepauc.paper.medical_studies import medical, melanoma
from deepauc.studies.record_file import append
from deepauc.studies.records import RecordBook

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
    rows = [{"network": n, "single_ms": 1.0, "five_ms": r, "ratio": r} for n, r in (("fast", 1.05), ("slow", 1.2))]
    append(tmp_path / "speed.jsonl", {"name": "multi-label-cpu", "hardware": "a machine", "rows": rows})
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


def test_aims_are_judged_by_the_records(results):
    text = medical_page.page(results)
    book = RecordBook(results / "medical")
    aims = text.split("## Aims")[1].split("## Single models")[0]
    own, base = ([r["auc"]["test"][0] for r in book.final(f"breast-R-ours-{loss}")] for loss in ("auc_m", "ce"))
    row = cells_of(aims, "AUC-M's own weights at least CE's mean", "breast-R-ours")
    assert row[2].startswith(f"{np.mean(own) - np.mean(base):+.3f} [")
    assert row[3] == "no"  # a whole standard deviation apart, in all sets
    row = cells_of(aims, "AUC-M above the published 0.901", "breast-R-ours")
    assert row[2].startswith(f"mean {np.mean(own):.3f}, ensemble + TTA 0.")
    assert row[3] == "no"
    row = cells_of(aims, "ensemble + TTA above any single model", "breast-R-ours")
    assert row[3] in ("yes", *(f"{n} of 3" for n in range(3)))
    both = [[read_scores(r) for r in book.final(f"ham-R-64-{loss}")] for loss in ("ce", "auc_m")]
    _, name = max((np.mean([auroc(s.tta, LABELS) for s in some]), n) for some, n in zip(both, "01", strict=True))
    single = both[int(name)]
    every = pooled(single, [ensemble([a.tta, b.tta], scale="sigmoid") for a, b in zip(*both, strict=True)])
    alone = pooled(single, [s.tta for s in single])
    expected = compare_auroc(every.plain, alone.plain, every.labels, groups=every.groups)
    row = cells_of(aims, "ensemble + TTA above any single model", f"ham, 2 against R-64-{['ce', 'auc_m'][int(name)]}")
    assert row[2].startswith(f"{float(expected.difference):+.3f} [{float(expected.low):+.3f}, ")
    images = [read_scores(r) for r in book.final("ham-R-64-auc_m")]
    patients = [read_scores(r) for r in book.final("ham-meta-auc_m")]
    fused = pooled(images, [fuse(a.plain, b.plain, scale="rank") for a, b in zip(images, patients, strict=True)])
    alone = pooled(images, [a.plain for a in images])
    expected = compare_auroc(fused.plain, alone.plain, fused.labels, groups=fused.groups)
    row = cells_of(aims, "image + metadata above the image alone", "ham-R-64, AUC-M, rank")
    assert row[2].startswith(f"{float(expected.difference):+.3f} [{float(expected.low):+.3f}, ")
    assert row[3] == "yes"
    for how, key in (("learned", "plain"), ("learned, TTA in both", "tta")):
        learned, alone = stacked(images, patients, key), pooled(images, [getattr(a, key) for a in images])
        joined = pooled(images, learned)
        expected = compare_auroc(joined.plain, alone.plain, joined.labels, groups=joined.groups)
        row = cells_of(aims, "image + metadata above the image alone", f"ham-R-64, AUC-M, {how}")
        assert row[2].startswith(f"{float(expected.difference):+.3f} [{float(expected.low):+.3f}, ")
        name = {"plain": "image", "tta": "image, TTA"}[key] + " + metadata, learned on the other folds"
        section = text.split("### AUC-M")[1].split("###")[0]
        mean = np.mean([auroc(scores, LABELS) for scores in learned])
        assert cells_of(section, name)[1:3] == ["5", f"{mean:.3f}"]
    assert "not fully nested" in text
    cost = "five labels at most 1.1 of one label's step"
    assert [cells_of(aims, cost, f"{name}, a machine")[3] for name in ("fast", "slow")] == ["yes", "no"]


def test_scores_that_say_nothing_leave_no_learned_row(tmp_path):
    book = RecordBook(tmp_path / "medical")
    for fold in range(SEEDS):
        book.add(record("ham-R-64-ce", fold, -2.0))
        book.add(record("ham-meta-ce", fold, -2.0, tta=False))
    text = medical_page.page(tmp_path)
    assert cells_of(text, "image + metadata, learned on the other folds")[2:] == [
        "-",
        "no score rises with the label",
        "-",
    ]
    assert "ham-R-64, CE, rank" in text
    assert "ham-R-64, CE, learned" not in text


def test_one_fold_has_no_others_to_learn_from(tmp_path):
    book = RecordBook(tmp_path / "medical")
    book.add(record("ham-R-64-ce", 0, 1.0))
    book.add(record("ham-meta-ce", 0, 1.0, tta=False))
    assert "on the other folds`" not in medical_page.page(tmp_path)


def test_an_ensemble_is_compared_with_the_best_single_model(results):
    text = medical_page.page(results)
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
    text = medical_page.page(tmp_path)
    single = text[text.index("## Single models") :]
    assert cells_of(single, "breast-R-best", "AUC-M", "0.9544")[-1] == "12 + 31"
    assert cells_of(single, "breast-R-ours", "AUC-M", "0.9544")[-1] == "12"


def test_what_was_not_run_and_what_was_cut_is_said(results):
    text = medical_page.page(results)
    left = text.split("## Not run")[1]
    assert "- breast-R-ours: Focal 5 of 5\n" in left
    assert "- pneumonia-R-ours: all 20 runs\n" in left
    assert "- ham-R-32: CE 3 of 5, AUC-M 3 of 5\n" in left
    assert "- ham-D-32: all 10 runs\n" in left
    assert "150 of 150 runs" in left
    assert "not at hand" in left
    assert "Cut, of what is declared: configs 2 of 3 (breast-R-ours-auc_m, " in text
    assert "| 60 (20) |" in text.replace("  ", " ").replace("  ", " ").replace("  ", " ").replace("  ", " ")
    # R-32 has two folds only: it does not take the others' away.
    row = cells_of(text.split("### Ensembles within a fold")[1], "four losses, R-64 (2)")
    assert row[1] == "5"


def test_the_cells_of_the_pages_are_those_of_the_studies():
    for name, studies in (("medical", medical()), ("melanoma", melanoma())):
        declared = {study.name for study in studies.studies}
        assert {f"{cell.name}-{loss}" for cell in CELLS[name] for loss in cell.losses} == declared


@pytest.mark.parametrize("masked", [True, False])
def test_the_number_of_expected_chest_runs_is_that_of_the_links(masked, spots_task):
    task = spots_task(label_names=("a", "b", "c"), rows=240)
    plan = medical_chest_plan.ChestPlan(
        name="chest", settings=medical_chest_plan.STAND_IN.settings, masked=masked, seeds=(0, 1)
    )
    links = medical_chest.chest_links(plan, task) + (medical_chest.policy_links(plan, task) if masked else [])
    assert medical_chest_plan.expected_runs(plan, labels=3) == len(links)
    assert medical_chest_plan.expected_runs(medical_chest_plan.STAND_IN) == 150


def test_the_bootstrap_is_drawn_where_it_is_shown_and_nowhere_else(results, monkeypatch):
    drawn = []
    real = medical_scores.auroc_interval

    def counted(scores, labels, *, method="delong", **options):
        drawn.append(method)
        return real(scores, labels, method=method, **options)

    monkeypatch.setattr(medical_scores, "auroc_interval", counted)
    text = medical_page.page(results)
    single = text.split("## Single models")[1].split("## ")[0]
    rows = [line for line in single.splitlines() if line.startswith("| ")][2:]
    assert drawn.count("bootstrap") == len(rows) == 9  # it takes a hundred times as long as DeLong's
    assert drawn.count("delong") > len(rows)
