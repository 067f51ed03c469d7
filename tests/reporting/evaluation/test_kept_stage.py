"""A run whose guard kept the first stage: the report says so, compares the two stages, never a network with itself."""

import csv
import json
import re
import shlex
import shutil

import numpy as np
import pytest

from deepauc.cli.console import Output
from deepauc.cli.main import run as deepauc
from deepauc.cli.training_summary import show_outcome
from deepauc.metrics.auroc import auroc
from deepauc.metrics.comparison import compare_auroc
from deepauc.metrics.intervals import auroc_interval
from deepauc.models.build import SmallCNNSpec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.baselines import CrossEntropy
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import SGDSpec
from deepauc.pipeline.outcome import outcome_of
from deepauc.reporting.document.blocks import Caution, Paragraph
from deepauc.reporting.document.sections import run_document
from deepauc.reporting.evaluation.findings import Absent, BaselineFinding
from deepauc.reporting.evaluation.kept_stage import auc_intervals, score_last_stage
from deepauc.reporting.evaluation.run import evaluate_run
from deepauc.reporting.model_card import model_card
from deepauc.reporting.report import write_report
from deepauc.training.engine.loop import train
from deepauc.training.predict.predict import predict
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.run.baseline import baseline_run
from deepauc.training.run.bundle import Bundle
from deepauc.training.run.run import Run


@pytest.fixture(scope="module")
def ruined(tmp_path_factory, spots_task):
    """Cross-entropy, then an AUC stage that a huge weight decay ruins, with all that `deepauc train` leaves."""
    ce = Stage(objective=CrossEntropy(), optimizer=SGDSpec(lr=0.05), epochs=4, batch_size=16)
    bad = Stage(objective=AUCMargin(margin=0.5), optimizer=PESGSpec(lr=0.1, weight_decay=2.0), epochs=2, batch_size=16)
    path, task = tmp_path_factory.mktemp("ruined") / "run", spots_task()
    run = train(Recipe(model=SmallCNNSpec(widths=(4, 8)), stages=(ce, bad), guard=True), task, seed=0, run_dir=path)
    assert run.record.kept_stage == 0
    baseline_run(run, task)
    score_last_stage(run, task)
    return run, task


def column(path, name, part):
    with path.open(newline="") as file:
        return np.array([row[name] for row in csv.DictReader(file) if row["part"] == part])


def words_of(findings):
    document = run_document(findings, command=None)
    texts = {section.anchor: section for section in document.sections}
    return document, " ".join(
        block.text for block in texts["baseline"].blocks if isinstance(block, Paragraph | Caution)
    )


def test_the_last_stages_scores_are_those_of_its_weights(ruined, tmp_path, copy_to_edit):
    run, task = ruined
    other = tmp_path / "last"
    copy_to_edit(run.path, other)
    shutil.copyfile(run.path / "stage-1.safetensors", other / "model.safetensors")
    stored = column(run.path / "last-stage" / "scores.csv", "score", "test").astype(np.float32)
    assert stored == pytest.approx(predict(other, task, rows=task.labelled("test")), abs=1e-6)
    for name in ("id", "group", "label"):
        assert (
            column(run.path / "last-stage" / "scores.csv", name, "test")
            == column(run.path / "scores.csv", name, "test")
        ).all()
    assert not np.array_equal(stored, column(run.path / "scores.csv", "score", "test").astype(np.float32))


def test_what_training_has_scored_is_not_scored_again(ruined, tmp_path, monkeypatch):
    run, task = ruined
    monkeypatch.delattr(Bundle, "scores")
    copy = Run(shutil.copytree(run.path, tmp_path / "run", ignore=shutil.ignore_patterns("baseline")))
    assert score_last_stage(copy, task) == copy.path / "last-stage" / "scores.csv"
    first = baseline_run(copy, task)  # its network is the one that was kept
    assert (first.path / "scores.csv").read_bytes() == (run.path / "scores.csv").read_bytes()
    assert first.record.results.auc == run.record.results.auc


def test_it_is_scored_once_and_only_where_it_was_not_kept(ruined, run_folders, spots_task):
    run, task = ruined
    path = run.path / "last-stage" / "scores.csv"
    before = path.stat().st_mtime_ns
    assert score_last_stage(run, task) == path
    assert path.stat().st_mtime_ns == before
    kept_last = type(run)(run_folders / "multi")  # no guard: the last stage is the one kept
    assert kept_last.record.kept_stage == 1
    assert score_last_stage(kept_last, spots_task()) is None
    assert not (run_folders / "multi" / "last-stage").exists()


def test_the_kept_network_is_compared_with_the_one_that_was_not(ruined):
    run, _ = ruined
    findings = evaluate_run(run.path)
    assert isinstance(findings.baseline, Absent)
    assert findings.kept_objective == "CrossEntropy"
    (found,) = findings.not_kept.labels
    ours, theirs = (
        column(path, "score", "test").astype(float)
        for path in (run.path / "scores.csv", run.path / "last-stage" / "scores.csv")
    )
    labels, groups = (column(run.path / "scores.csv", name, "test") for name in ("label", "group"))
    expected = compare_auroc(ours, theirs, labels.astype(float), groups=groups)
    assert found.difference.value == pytest.approx(expected.difference)
    assert found.p_value == pytest.approx(expected.p_value)
    assert found.auc != found.baseline_auc


def test_the_report_says_what_was_kept_and_shows_no_self_comparison(ruined, tmp_path):
    run, _ = ruined
    written = write_report(run.path, out=tmp_path)
    text = written.markdown.read_text(encoding="utf-8")
    guard = run.record.plain["results"]["guard"]["validation_auc"]
    result = text.split("## Result")[1].split("## ")[0]
    for said in ("stage 1, cross-entropy", f"{guard['1']:.3f}", f"{guard['0']:.3f}"):
        assert said in result
    assert "AUC, baseline" not in text
    assert "+0.000 \\[+0.000, +0.000\\]" not in text
    assert "last stage, not kept" in written.html.read_text(encoding="utf-8")  # the curve in the ROC figure
    calibration = text.split("## Calibration")[1].split("## ")[0]
    assert "trained by cross-entropy" in calibration
    assert "AUC loss" not in calibration
    assert json.loads(written.json.read_text())["not_kept"]["objective"] == "AUC-M"


@pytest.mark.parametrize("name", ["baseline", "."])
def test_naming_the_run_itself_as_its_baseline_changes_nothing(ruined, name):
    run, _ = ruined
    findings = evaluate_run(run.path, baseline=run.path / name)
    assert isinstance(findings.baseline, Absent)
    assert isinstance(findings.not_kept, BaselineFinding)


def test_a_baseline_with_the_same_scores_is_not_tested(run_folders, tmp_path):
    shutil.copytree(run_folders / "ce", tmp_path / "copy")
    found = evaluate_run(run_folders / "ce", baseline=tmp_path / "copy").baseline
    assert isinstance(found, Absent)
    assert "the same network" in found.why


def test_without_the_scores_the_recorded_test_is_all_there_is(ruined, tmp_path):
    run, _ = ruined
    shutil.copytree(run.path, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "last-stage")
    findings = evaluate_run(tmp_path / "run")
    assert isinstance(findings.not_kept, Absent)
    document, _ = words_of(findings)
    (section,) = [section for section in document.sections if section.anchor == "baseline"]
    assert any("table of stages" in getattr(block, "why", "") for block in section.blocks)
    assert "Stages on validation" in section.blocks[-1].caption


@pytest.mark.parametrize("content", ["", "id,part\n1,test\n", "id,part,group,label,score\nx,test,,1,0.5\n"])
def test_damaged_scores_of_the_last_stage_are_a_reason_not_a_crash(ruined, tmp_path, content):
    run, _ = ruined
    shutil.copytree(run.path, tmp_path / "run")
    (tmp_path / "run" / "last-stage" / "scores.csv").write_text(content)
    assert isinstance(evaluate_run(tmp_path / "run").not_kept, Absent)


def test_where_the_last_stage_is_kept_that_is_said_and_calibration_speaks_of_an_auc_loss(written_reports):
    findings = written_reports["auc"].findings
    assert findings.not_kept is None
    assert findings.kept_objective == "AUCMargin"
    text = written_reports["auc"].markdown.read_text(encoding="utf-8")
    assert "(stage 2, AUC-M)" in text
    assert "trained by cross-entropy" not in text.split("## Calibration")[1].split("## ")[0]
    assert "AUC, baseline" in text


def test_intervals_by_part_are_clustered_as_the_report_has_them(ruined):
    run, _ = ruined
    found = auc_intervals(run.path, ["spot"])
    assert set(found) == {"train", "validation", "test"}
    scores, labels, groups = (column(run.path / "scores.csv", name, "test") for name in ("score", "label", "group"))
    expected = auroc_interval(scores.astype(float), labels.astype(float), groups=groups)
    one = found["test"]["spot"]
    assert (one.value, one.low, one.high) == pytest.approx((expected.value, expected.low, expected.high))


def test_the_card_names_the_loss_that_was_kept(ruined):
    card = model_card(ruined[0].path)
    assert "trained by cross-entropy" in card
    assert "the AUC-M stage" in card  # which was not kept


@pytest.mark.parametrize("patients", [False, True])
def test_a_card_of_too_few_positives_for_an_interval(ruined, tmp_path, copy_to_edit, patients):
    """One positive row, or those of one patient: the interval is from 0 to 1, as it is in run.json."""
    path = copy_to_edit(ruined[0].path, tmp_path / "run")
    with (path / "scores.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["part"] == "test"]
    positives = [row for row in rows if row["label"] == "1"]
    for number, row in enumerate(rows):
        row["group"] = f"n{number // 2}"
    for row in positives if patients else ():
        row["group"] = "p"
    kept = [row for row in rows if row["label"] == "0" or patients or row is positives[0]]
    with (path / "scores.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(kept)
    line = next(line for line in model_card(path).splitlines() if line.startswith("| test "))
    _, _, _, auc, by_patient, *_ = (cell.strip() for cell in line.split("|"))
    value = auroc([float(row["score"]) for row in kept], [float(row["label"]) for row in kept])
    nothing = f"{value:.3f} [0.000, 1.000]"
    assert auc.startswith(f"{value:.3f}")
    assert (auc == nothing, by_patient) == (not patients, nothing)


def test_every_figure_of_the_card_comes_out_of_the_command_beside_it(ruined, monkeypatch, capsys):
    run, _ = ruined
    card = model_card(run.path)
    monkeypatch.chdir(run.path.parent)

    def answer(command):
        with pytest.raises(SystemExit) as end:
            deepauc([*shlex.split(command)[1:], "--json"])
        assert end.value.code == 0
        return json.loads(capsys.readouterr().out)["results"]

    checked = 0
    for line in card.splitlines():
        for command in re.findall(r"`(deepauc evaluate [^`]+)`", line):
            found = answer(command)
            if line.startswith("|"):
                (one,) = found
                assert f"{one['auc']['delong']['value']:.3f}" in line
                checked += 1
            else:
                for one in found:
                    assert re.search(rf"\| {one['part']} +\| +{one['counts']['rows']} \|", card)
                test = next(one for one in found if one["part"] == "test")
                for row in test["operating_points"]:
                    assert f"{row['threshold']:.6g}" in card
                checked += 1
    assert checked == 4 + 2  # two parts, two stages; thresholds, parts
    front = card.split("---")[1]
    values = [float(value) for value in re.findall(r"value: ([0-9.]+)", front)]
    expected = [answer(f"deepauc evaluate run/scores.csv --part {part}")[0] for part in ("test", "validation")]
    assert values == [pytest.approx(one["auc"]["delong"]["value"], abs=5e-5) for one in expected]


def test_train_says_what_was_kept_and_how_the_other_stage_did(ruined, tmp_path, capsys):
    run, _ = ruined
    write_report(run.path, out=tmp_path)
    last = run.path / "last-stage" / "scores.csv"
    baseline = Run(run.path / "baseline")
    report = tmp_path / "report.html"
    outcome = outcome_of(run, state="trained", report=report, baseline=baseline, last_stage=last)
    for output in (Output(), Output(as_json=True)):
        show_outcome(output, outcome)
    text, _, record = capsys.readouterr().out.partition("patients.\n")
    assert "cross-entropy (kept)" in text
    assert "AUC-M (not kept)" in text
    assert "first stage" not in text  # it is the kept one
    record = json.loads(record)
    assert (record["kept_stage"], record["kept_objective"]) == (0, "cross-entropy")
    (test,) = record["paired_tests"]
    assert (test["against"], test["part"]) == ("AUC-M", "test")
    assert f"AUC-M on test is {test['value']:+.3f} [{test['low']:+.3f}, {test['high']:+.3f}]" in text
    expected = auc_intervals(last.parent, ["spot"])["test"]["spot"]
    assert record["not_kept_auc"]["test"]["spot"] == [expected.value, expected.low, expected.high]
