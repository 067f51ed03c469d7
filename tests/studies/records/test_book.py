"""What a record keeps of the curves in a run folder, counted again from the folder's files."""

import csv
from dataclasses import replace
from types import SimpleNamespace

import pytest

from deepauc.studies.records.book import RecordBook, _curves, validation_curve
from deepauc.studies.running.runner import run_studies
from deepauc.studies.selection import TriedSetting
from deepauc.studies.sources import Place, comparable
from deepauc.studies.study import Study
from experiments.benchmarks.recipes import METHODS
from experiments.benchmarks.smoke import DigitsSource

auc_m = METHODS["auc_m"]


def sparse(*, margin=0.05, constrain_alpha=False, epochs=5):
    """AUC-M with a margin that is met at once, so that a free alpha falls below 0; a test AUC every second epoch."""
    recipe = auc_m(
        margin=margin,
        constrain_alpha=constrain_alpha,
        bound="sigmoid",
        network="S",
        epochs=epochs,
        batch_size=64,
        augmented=False,
        precision="float32",
    )
    return replace(recipe, evaluate_every=2)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    task = DigitsSource(imratio=0.1)
    curves = {"test_curve": True, "alpha_curve": True, "seeds": (0,)}
    studies = [
        Study(name="free", task=task, method=sparse, **curves),
        Study(name="constrained", task=task, method=sparse, fixed={"constrain_alpha": True}, **curves),
        Study(name="silent", task=task, method=sparse, seeds=(0,)),
    ]
    place = Place(runs=folder / "runs", results=folder / "results")
    assert run_studies("s", studies, place=place, device="cpu").failed == []
    return folder, RecordBook(folder / "results" / "s")


def test_the_share_of_steps_with_alpha_below_zero(finished):
    folder, book = finished
    (free,) = book.final("free")
    with (folder / "runs" / free["run"] / "alpha.csv").open() as file:
        values = [float(row["alpha0"]) for row in csv.DictReader(file)]
    assert len(values) == free["steps"]
    assert 0 < free["alpha_negative_share"] == pytest.approx(sum(v < 0 for v in values) / len(values), abs=1e-6)
    (constrained,) = book.final("constrained")
    assert constrained["alpha_negative_share"] == 0
    (silent,) = book.final("silent")
    assert "alpha_negative_share" not in silent


def test_a_curve_knows_its_epochs(finished):
    _, book = finished
    (record,) = book.final("free")
    assert record["test_curve_epochs"] == [2, 4, 5]
    assert len(record["test_curve"]) == 3


def test_epochs_go_on_over_stages(tmp_path):
    (tmp_path / "test_curve.csv").write_text("stage,epoch,test_auc\n0,1,.5\n0,2,.6\n1,1,.7\n1,3,.8\n")
    epochs = [("0", "0"), ("0", "1"), ("0", "2"), ("1", "0"), ("1", "1"), ("1", "2"), ("1", "3")]
    history = [{"stage": stage, "epoch": epoch} for stage, epoch in epochs]
    found = _curves(SimpleNamespace(path=tmp_path, history=history))
    assert found == {"test_curve": [0.5, 0.6, 0.7, 0.8], "test_curve_epochs": [2, 3, 5, 7]}


def test_alpha_counts_epochs_of_the_stage_that_has_one(tmp_path):
    """Cross-entropy in one large batch first, then AUC-M in 50 steps an epoch: all of its first two are kept."""
    (tmp_path / "alpha.csv").write_text("step,alpha0\n" + "".join(f"{step},0.5\n" for step in range(150)))
    history = [{"stage": "0", "iteration": "1", "alpha_zero_share": ""}]
    history += [{"stage": "1", "iteration": str(50 * epoch), "alpha_zero_share": "0.0"} for epoch in (1, 2, 3)]
    found = _curves(SimpleNamespace(path=tmp_path, history=history))["alpha"]
    assert found["steps_per_epoch"] == 50
    assert found["step"] == [*range(100), 100, 120, 140]


def test_a_run_with_copies_is_chosen_by_its_final_scores_alone():
    history = {"validation_auc": [0.5, 0.6, 0.7]}
    plain = {"recipe": {}, "history": history, "auc": {"validation": [0.7, 0.6, 0.8]}}
    copies = {"recipe": {"tta": 8}, "history": history, "auc": {"validation": [0.9, 0.8, 1.0]}}
    assert validation_curve(plain) == (0.5, 0.6, 0.7)
    tried = [TriedSetting(config={"tta": n}, validation=(validation_curve(r),)) for n, r in ((0, plain), (8, copies))]
    for epochs in (1, 3):  # a mean over epochs would be of two kinds of score
        assert tried[1].values(epochs=epochs) == (0.9,)


def test_an_uncertain_label_is_no_second_class():
    task = DigitsSource(imratio=0.1).load(0, tuning=True, place=Place())
    labels, rows = task.labels.copy(), task.part("validation")
    labels[rows[labels[rows] == 1]] = -1
    assert comparable(task) is task
    with pytest.raises(ValueError, match=r"validation part .* has one class only"):
        comparable(replace(task, labels=labels))
