"""run.json and scores.csv: those of the first version are read by today's, whatever is missing or damaged in them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from deepauc.metrics.intervals import Estimate
from deepauc.reporting.evaluation.run import evaluate_run
from deepauc.reporting.model_card import model_card
from deepauc.training.predict.known_rows import known_parts
from deepauc.training.predict.table import predict_table
from deepauc.training.run.folder import RunFolder
from deepauc.training.run.record import Guard, Identity, Results, RunRecord
from deepauc.training.run.run import Run
from deepauc.training.run.scores import read_run_scores

# Made by commit 606eb7f: deepauc train --table first-version-run.csv --label-column y --group-column patient
# --feature-column f0 --feature-column f1 --feature-column f2 --epochs 2
OLD = Path(__file__).parents[2] / "golden" / "first-version-run"


@pytest.fixture
def old(tmp_path):
    return Path(shutil.copytree(OLD, tmp_path / "run"))


def test_the_record_of_the_first_version():
    record = Run(OLD).record
    assert record.identity == Identity(
        recipe="d8abded8c9c30704ac79dd726596852f216e6ad5b2e16de90dc50a3fc54917be",
        data="787f81f94c62d2011e0d7172c29761d9cdb276c97c1f2178a849f0c45c36ece7",
        seed=0,
    )
    assert record.objectives == ["cross-entropy", "AUC-M"]
    assert (record.kept_stage, record.baseline_stage, record.tta, record.network) == (0, 0, 0, "MLPSpec")
    assert (record.task.name, record.task.kind, record.task.labels, record.task.shape) == ("t", "binary", ("y",), (3,))
    assert record.task.rows == {"train": 56, "validation": 12, "test": 12}
    assert record.data.feature_columns == ("f0", "f1", "f2")
    assert (record.data.group_column, record.data.id_column, record.data.names_rows) == ("patient", None, False)
    assert record.results.auc["validation"]["y"] == Estimate(0.96875, 0.639401263503067, 0.9981582727566134)
    assert record.results.guard.validation_auc == {0: 0.96875, 1: 0.84375}
    assert record.results.guard.last_minus_stage[0].difference == -0.125
    assert record.results.seconds == 3.873
    assert (record.results.scoring_seconds, record.sha256, record.numerics, record.commit) == (None,) * 4
    assert record.made_by["numerics"] == 1
    assert (record.leaks, record.possible_leaks) == ({}, None)
    assert [one.name for one in record.plan.decisions][:2] == ["parts", "network"]
    assert len(record.recipe().stages) == 2


def test_the_scores_of_the_first_version():
    table = read_run_scores(OLD)
    assert {part: len(table.part(part)) for part in table.part_names} == {"train": 56, "validation": 12, "test": 12}
    assert table.ids[:2].tolist() == ["2", "3"]
    assert table.groups[:2].tolist() == ["p0", "p0"]
    scores, labels = Run(OLD).scores("train")
    assert scores.dtype == labels.dtype == np.float32
    assert scores[:2].tolist() == [np.float32(1.03456521), np.float32(0.853207648)]
    assert known_parts(OLD)["2"] == "train"


def test_a_run_of_the_first_version_predicts_and_is_reported(old):
    found = predict_table([old], OLD.with_suffix(".csv"))
    by_line = dict(zip(read_run_scores(old).ids.tolist(), read_run_scores(old).scores[:, 0], strict=True))
    assert found.scores[:, 0] == pytest.approx([by_line[name] for name in found.ids.tolist()], abs=1e-5)
    findings = evaluate_run(old)
    assert findings.judged_part == "test"
    assert findings.labels[0].auc.delong_by_patient.value == pytest.approx(Run(old).auc("test")["y"].value)
    assert "cross-entropy" in str(findings.stages)
    assert findings.record.identity.data in model_card(old)


def test_what_is_written_is_what_is_read(old):
    folder = RunFolder(old)
    results = Results.of(folder.record().plain["results"])
    assert results.to_plain() == folder.record().plain["results"]
    folder.write_record(folder.record())
    assert (old / "run.json").read_bytes() == (OLD / "run.json").read_bytes()
    changed = folder.record().changed(leaks=[{"what": "patient"}, "image 3"], plan=None)
    folder.write_record(changed)
    assert folder.record().leaks == {"patient": 1, "image": 1}
    assert "plan" not in json.loads((old / "run.json").read_text())


@pytest.mark.parametrize("damage", [None, 3, "text", [], [3], {"a": None}, {"stages": 3}, {"stages": [3, None]}])
@pytest.mark.parametrize(
    "name", ["identity", "recipe", "task", "data", "plan", "results", "leaks", "versions", "sha256"]
)
def test_a_damaged_entry_is_as_good_as_none(name, damage):
    record = RunRecord.of({**json.loads((OLD / "run.json").read_text()), name: damage})
    assert record.plain[name] == damage
    assert record.kept_stage in (0, 1)
    assert record.data.group_word in ("patient", "group")
    if name == "results":
        assert record.results == Results()
    if name == "identity":
        assert record.identity == Identity()


def test_a_guard_with_an_impossible_winner_keeps_the_last_stage():
    results = Results(guard=Guard(winner=7, validation_auc={}, last_minus_stage={}))
    assert Run(OLD).record.changed(results=results.to_plain()).kept_stage == 1


def test_soft_labels_are_kept_for_the_run_and_missing_for_a_judge(tmp_path):
    (tmp_path / "scores.csv").write_text("id,part,group,label,score\na,train,,0.7,1\nb,train,,1,2\nc,test,,,3\n")
    kept, judged = (read_run_scores(tmp_path, other_labels=how) for how in ("kept", "missing"))
    assert kept.labels[:2, 0].tolist() == [0.7, 1]
    assert np.isnan(judged.labels[:, 0]).tolist() == [True, False, True]
    assert judged.notes[0].endswith(": 1.")
    (tmp_path / "scores.csv").write_text("id,part,group,label,score\na,train,,maybe,1\n")
    with pytest.raises(ValueError, match="line 2: the label 'maybe'"):
        read_run_scores(tmp_path, other_labels="kept")
