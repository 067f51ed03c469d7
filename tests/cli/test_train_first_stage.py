"""`deepauc train --first-stage contrastive`: three stages from the command line to the report and the model card."""

import csv
import json
import os
import signal
from functools import partial

import numpy as np
import pytest
from PIL import Image

from deepauc.cli.console import Output
from deepauc.cli.training_progress import TrainingProgress
from deepauc.pipeline import job
from deepauc.pipeline.stages import StageLength
from deepauc.training.engine.trainer import Progress
from deepauc.training.plan import first_stage as plan_first_stage
from deepauc.training.plan.timing import Pace

IMAGES = ("--image-column", "file", "--label-column", "target", "--model", "small-cnn")
FIRST = ("--first-stage", "contrastive")


@pytest.fixture
def deepauc(deepauc):
    return partial(deepauc, "train")


@pytest.fixture(scope="module")
def table(tmp_path_factory, write_table):
    """A bright spot or none, in colour; four of 120 rows have no label."""
    folder = tmp_path_factory.mktemp("data")
    generator = np.random.default_rng(0)
    labels = generator.random(120) < 0.35
    (folder / "images").mkdir()
    rows = []
    for number, label in enumerate(labels):
        picture = generator.integers(0, 150, (8, 8, 3)).astype(np.uint8)
        picture[2:5, 2:5] += np.uint8(60 * label)
        Image.fromarray(picture).save(folder / f"images/{number}.png")
        part = "train" if number < 80 else "val" if number < 100 else "test"
        target = "" if number < 4 else int(label)
        rows.append({"file": f"images/{number}.png", "target": target, "split": part})
    return write_table(folder / "data.csv", rows)


@pytest.fixture
def words(table):
    return ("--table", table, *IMAGES, "--split-column", "split")


def record_of(folder):
    return json.loads((folder / "run.json").read_text())


def objectives(folder):
    return [stage["objective"]["type"] for stage in record_of(folder)["recipe"]["stages"]]


def test_to_the_report_and_the_card(deepauc, words, tmp_path):
    out = tmp_path / "run"
    code, text, errors = deepauc(*words, *FIRST, "--epochs", 2, "--out", out)
    assert (code, errors) == (0, "")
    assert "epochs: 2 + 2 + 2" in text
    first = record_of(out)["recipe"]["stages"][0]
    assert (first["batch_size"], first["views"], first["augment"]["flip"]) == (16, 2, False)
    assert record_of(out)["data"]["unlabelled_rows"]["joined"] == 4
    assert "stage 1 of 3 (contrastive), epoch 2 of 2" in text
    assert objectives(out) == ["Contrastive", "CrossEntropy", "AUCMargin"]
    assert objectives(out / "baseline") == ["Contrastive", "CrossEntropy"]
    kept = record_of(out)["results"]["guard"]["winner"]
    assert kept in (1, 2)
    # The stage that was not kept stands beside the one that was: the baseline, or the last stage.
    assert ("cross-entropy (stage 2)" if kept == 2 else "AUC-M (not kept)") in text
    report = json.loads((out / "report.json").read_text())
    assert [stage["number"] for stage in report["stages"]] == [1, 2]
    if kept == 2:
        assert report["baseline"]["objective"] == "contrastive, then cross-entropy"
    else:
        assert report["baseline"]["why"].endswith("that of stage 2.")
    from deepauc.reporting.model_card import model_card

    card = model_card(out)
    assert "| 2: cross-entropy" in card
    assert "1: Contrastive" not in card  # it has no scores to be compared by
    assert card.count("recorded in run.json") == 0  # each of the others has a file with its scores


def test_interrupted_in_the_first_stage_it_goes_on_to_the_bit(deepauc, no_report, words, tmp_path, monkeypatch):
    words = (*words, *FIRST, "--epochs", 2)
    assert deepauc(*words, "--out", tmp_path / "whole")[0] == 0
    shown, steps = TrainingProgress.__call__, []

    def press(self, step):
        steps.append(step.stage)
        if len(steps) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        shown(self, step)

    monkeypatch.setattr(TrainingProgress, "__call__", press)
    out = tmp_path / "run"
    assert deepauc(*words, "--out", out)[0] == 130
    assert set(steps) == {0}
    code, text, _ = deepauc(*words, "--out", out)
    assert code == 0
    assert "Resuming the unfinished run" in text
    for name in ("model.safetensors", "scores.csv"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    code, _, errors = deepauc(*words[:-4], "--epochs", 2, "--out", out)  # without the first stage it is another run
    assert code == 2
    assert "another run" in errors


def test_minutes_leave_it_out_or_have_it_by_the_clock(deepauc, words, monkeypatch):
    monkeypatch.setattr(plan_first_stage, "LEAST_IMAGES", 50)
    pace = Pace(step=(0.05, 0.001, 0.001), end=(0.0,) * 3, row=0.0, per_epoch=(5, 4, 5), device="cpu")
    monkeypatch.setattr(job, "measure_pace", lambda *_, **__: pace)
    whole = 100 * 5 * 0.05 + 100 * 4 * 0.001 + 50 * 5 * 0.001  # seconds, as all stages would like it
    for minutes, epochs in ((whole / 60 / 0.9 + 0.01, "100 + 100 + 50"), (0.25, "51 + 100 + 50"), (0.2, "100 + 50")):
        code, text, errors = deepauc(*words, "--minutes", minutes, "--print-config")
        assert (code, errors) == (0, "")
        assert f"# epochs: {epochs}\n" in text
        assert text.count("[[recipe.stages]]") == epochs.count("+") + 1
    code, text, _ = deepauc(*words, "--minutes", 0.2, *FIRST, "--print-config")
    assert code == 0
    assert "# epochs: 42 + 42\n" in text
    code, text, _ = deepauc(*words, "--minutes", 0.2, *FIRST, "--auc-stage", "always", "--print-config")
    assert code == 0
    assert "# epochs: 42 + 42 + 21\n" in text


def test_a_run_with_minutes_goes_on_with_the_pace_it_was_planned_by(deepauc, no_report, words, tmp_path, monkeypatch):
    monkeypatch.setattr(plan_first_stage, "LEAST_IMAGES", 50)
    monkeypatch.setattr(plan_first_stage, "MOST_EPOCHS", {"cpu": 50, "cuda": 50})
    slow = Pace(step=(9.0, 0.001, 0.01), end=(0.0,) * 3, row=0.0, per_epoch=(5, 4, 5), device="cpu")
    measured = []
    monkeypatch.setattr(job, "measure_pace", lambda *_, **__: measured.append(0) or slow)
    command = (*words, "--minutes", 0.04, "--out", tmp_path / "run")
    for _ in range(2):
        code, _, errors = deepauc(*command)
        assert (code, errors) == (0, "")
        assert objectives(tmp_path / "run") == ["CrossEntropy", "AUCMargin"]  # the first stage was too slow
    assert len(measured) == 1
    assert record_of(tmp_path / "run")["plan"]["pace"]["step"] == [9.0, 0.001, 0.01]


def test_numbers_and_config_files(deepauc, no_report, words, tmp_path, write_table):
    generator = np.random.default_rng(0)
    rows = [{"age": value, "target": int(value + generator.normal() > 0)} for value in generator.normal(size=60)]
    numbers = write_table(tmp_path / "numbers.csv", rows)
    options = ("--table", numbers, "--feature-column", "age", "--label-column", "target", "--out", tmp_path / "n")
    code, _, errors = deepauc(*options, *FIRST)
    assert code == 2
    assert "for numbers leave first_stage out" in errors
    assert len(errors.splitlines()) == 1
    (tmp_path / "plan.toml").write_text('[plan]\nfirst_stage = "contrastive"\nepochs = 1\n')
    code, text, _ = deepauc(*words, "--config", tmp_path / "plan.toml", "--print-config")
    assert code == 0
    assert text.count("[[recipe.stages]]") == 3
    (tmp_path / "whole.toml").write_text(text)
    code, _, errors = deepauc("--config", tmp_path / "whole.toml", "--first-stage", "none", "--out", tmp_path / "r")
    assert code == 2
    assert "change first_stage in the recipe itself" in errors
    code, text, _ = deepauc(*words, "--config", tmp_path / "plan.toml", "--first-stage", "none", "--print-config")
    assert text.count("[[recipe.stages]]") == 2
    assert "# first stage: none\n" in text


def test_tuned(deepauc, no_report, words, tmp_path):
    code, _, errors = deepauc(*words, *FIRST, "--epochs", 1, "--tune", 2, "--out", tmp_path / "run")
    assert (code, errors) == (0, "")
    assert any(choice["rests_on"].get("tried") == 2 for choice in record_of(tmp_path / "run")["plan"]["choices"])
    with (tmp_path / "run" / "history.csv").open(newline="") as file:
        assert [row["stage"] for row in csv.DictReader(file)] == ["0", "1", "2"]


def test_the_time_left_counts_images_not_steps(monkeypatch, capsys):
    """Ten steps of 512 images take as long as eighty of 64."""
    clock = [0.0]
    monkeypatch.setattr("deepauc.cli.training_progress.time.monotonic", lambda: clock[0])
    first = StageLength(name="Contrastive", steps=10, steps_per_epoch=5, rows_per_step=512)
    second = StageLength(name="CrossEntropy", steps=80, steps_per_epoch=80, rows_per_step=64)
    shown = TrainingProgress(Output(), [first, second], bar=None)
    for step in range(1, 11):
        clock[0] += 8.0  # seconds
        epoch = (step - 1) // 5
        shown(Progress(stage=0, stages=2, epoch=epoch, iteration=step, iterations=10, validation_auc=None))
    text = capsys.readouterr().out
    # After six steps four more of eight seconds are left, and the second stage's 80 s.
    assert text == "stage 1 of 2 (Contrastive), epoch 1 of 2, about 1 min 52 s left\n"
