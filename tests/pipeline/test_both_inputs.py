"""Images and metadata with one split: what is shipped scores as its members do, and the call resumes to the bit."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from deepauc.metrics.crossval import choosing
from deepauc.metrics.recalibration import fit_temperature
from deepauc.pipeline import both_inputs, outcome
from deepauc.pipeline.events import AlreadyFinished, Resumed
from deepauc.pipeline.folding import dealt_folds
from deepauc.pipeline.job import read
from deepauc.pipeline.model import load
from deepauc.pipeline.run import run
from deepauc.reporting.export import copy_bundle
from deepauc.reporting.model_card import model_card
from deepauc.reporting.report import write_report
from deepauc.training.config import DataSettings, Settings
from deepauc.training.plan.inputs import PlanOptions
from deepauc.training.predict.table import predict_table
from deepauc.training.run.bundle import Bundle
from deepauc.training.run.folder import RunFolder

CPU = torch.device("cpu")
PARTS = {"train": 36, "validation": 24, "test": 24}


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """Brighter images and older people are ill; the site `late` has no row in train."""
    generator, folder = np.random.default_rng(0), tmp_path_factory.mktemp("both")
    lines, parts = ["file,person,part,age,site,ill"], [part for part, rows in PARTS.items() for _ in range(rows)]
    for number, part in enumerate(parts):
        ill = int(number % 3 == 0)
        pixels = np.clip(generator.normal(100 + 60 * ill, 40, (8, 8)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        age = "" if number % 10 == 0 else f"{50 + 10 * ill + generator.normal():.1f}"
        site = "late" if part != "train" and number % 4 == 0 else f"s{number % 2}"
        lines.append(f"{number}.png,p{number // 2},{part},{age},{site},{ill}")
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    data = DataSettings(
        table=str(folder / "table.csv"),
        image_column="file",
        metadata_columns=("age", "site"),
        label_columns=("ill",),
        group_column="person",
        split_column="part",
    )
    return Settings(data=data, plan=PlanOptions(epochs=1, model="small-cnn"), folds=0)


@pytest.fixture(autouse=True)
def no_report(monkeypatch):
    """The report is slow, and has a test of its own."""
    monkeypatch.setattr(outcome, "write_report", lambda run_dir, *, command: (run_dir / "report.html").touch())


def trained(settings, out, events=None):
    heard = [] if events is None else events
    return run(settings, out=out, device=CPU, command="test", listen=heard.append)


def rows_of(folder):
    with (folder / "scores.csv").open(newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


@pytest.mark.parametrize("kept", ["ce_auc_m with metadata", "ce_auc_m", "metadata"])
def test_the_model_scores_as_its_members_do(settings, tmp_path, monkeypatch, kept):
    monkeypatch.setattr("deepauc.training.run.run._guard", lambda trainer, made: None)  # the last stage
    monkeypatch.setattr(choosing._Board, "pick", lambda board: (kept, None))
    out, table = tmp_path / "run", settings.data.table
    trained(settings, out)
    encoder = Bundle.load(out / "metadata").metadata["columns"]
    assert encoder[1]["categories"] == ["s0", "s1"]
    with Path(table).open(newline="") as file:
        ages = [float(row["age"]) for row in csv.DictReader(file) if row["part"] == "train" and row["age"]]
    assert encoder[0]["mean"] == pytest.approx(np.mean(ages))

    columns = {"id_column": "file"} if kept == "metadata" else {}
    found = predict_table([out], table, probability=True, **columns)
    mean, close, members = np.zeros(84), 5e-6, [{"ce_auc_m": "images"}.get(name, name) for name in kept.split(" with ")]
    for name in members:
        validation = [row for row in rows_of(out / name).values() if row["part"] == "validation"]
        scores, labels = (np.array([float(row[column]) for row in validation]) for column in ("score", "label"))
        own = predict_table([out / name], table, id_column="file" if name == "metadata" else None).scores
        scaling = fit_temperature(scores, labels)
        mean += scaling.apply(own)[:, 0] / len(members)
        close = close if scaling.slope > 0 else 2e-3  # one that ranks backwards keeps an order, and has no vote
    np.testing.assert_allclose(found.probabilities[:, 0], mean, atol=close)

    written = rows_of(out)
    by_id = dict(zip(found.ids.tolist(), found.scores[:, 0], strict=True))
    assert len(written) == 84
    assert all(by_id[name] == pytest.approx(float(row["score"]), abs=1e-5) for name, row in written.items())
    model = load(out)
    assert set(model.leaderboard.candidate[model.leaderboard.kept]) == {kept}
    assert set(model.leaderboard.candidate) == {
        *("ce", "ce_auc_m", "metadata", "ce_auc_m with metadata", "logistic", "brightness")
    }
    assert len(model.oof) == 24
    assert "AUC not given, too few positives to estimate (8)" in model.summary
    assert model.aucs["ill"] == RunFolder(out).record().results.auc["test"]["ill"]
    copy_bundle(out, tmp_path / "bundle")
    again = predict_table([tmp_path / "bundle"], table, **(columns or {"image_column": "file"}))
    np.testing.assert_array_equal(again.scores, found.scores)
    write_report(out, command="deepauc report run")
    page = (out / "report.md").read_text()
    assert ("Baseline: run images" in page) == (kept != "ce_auc_m")
    assert "metadata" in model_card(out)


def test_it_resumes_to_the_bit(settings, tmp_path, monkeypatch):
    trained(settings, tmp_path / "whole")

    class Stopped(Exception):
        pass

    def stop(*args, **options):
        raise Stopped

    out = tmp_path / "run"
    for name in ("plan", "conclude", "save_average"):
        with monkeypatch.context() as patch:
            patch.setattr(both_inputs, name, stop)
            with pytest.raises(Stopped):
                trained(settings, out)
        assert not RunFolder(out).done
    events = []
    trained(settings, out, events)
    assert sum(isinstance(event, Resumed) for event in events) == 1
    for name in ("scores.csv", "model.safetensors", "bundle.json"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    events = []
    trained(settings, out, events)
    assert sum(isinstance(event, AlreadyFinished) for event in events) == 1
    with pytest.raises(ValueError, match="holds another run"):
        trained(replace(settings, seed=1), out)
    with pytest.raises(ValueError, match="holds another run"):
        trained(replace(settings, data=replace(settings.data, metadata_columns=("age",))), out)


def test_folds_auto_and_test_time_augmentation(settings, tmp_path):
    with pytest.raises(ValueError, match="tta does not work with images and metadata"):
        trained(replace(settings, plan=replace(settings.plan, tta=2)), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    auto = replace(settings, folds="auto")
    assert dealt_folds(auto, read(auto, device=CPU)) is None  # a validation part of its own asks for one split


def test_the_first_split_of_the_images_is_that_of_the_metadata(settings, tmp_path):
    drawn = replace(settings, data=replace(settings.data, split_column=None))
    trained(drawn, tmp_path / "run")
    parts = [
        {name: row["part"] for name, row in rows_of(tmp_path / "run" / one).items()} for one in ("images", "metadata")
    ]
    assert parts[0] == parts[1] == {name: row["part"] for name, row in rows_of(tmp_path / "run").items()}
