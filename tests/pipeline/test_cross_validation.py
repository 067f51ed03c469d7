"""Runs with folds: what is in the folder, that it resumes to the bit, and that the average is what it says."""

import csv
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from deepauc.data.table.read import read_table
from deepauc.metrics.crossval import choosing
from deepauc.metrics.crossval.folds import fold_auroc, fold_auroc_interval
from deepauc.metrics.recalibration import fit_temperature
from deepauc.models.resnet20 import ResNet20Spec
from deepauc.models.small import SmallCNNSpec
from deepauc.pipeline import cross_validation, job
from deepauc.pipeline import run as run_module
from deepauc.pipeline.candidates import HeldOut, choose_candidate, cross_fitted, log_odds_of_mean, recalibrations
from deepauc.pipeline.events import AlreadyFinished, Estimated, FoldBegan, Resumed, Stepped
from deepauc.pipeline.folding import dealt_folds
from deepauc.pipeline.job import plan, read
from deepauc.pipeline.run import run
from deepauc.pipeline.single import save_single
from deepauc.reporting.document.checklist import ITEMS
from deepauc.reporting.export import copy_bundle, export_onnx
from deepauc.reporting.model_card import model_card
from deepauc.reporting.report import write_report
from deepauc.training.config import DataSettings, Settings, SplitSettings
from deepauc.training.plan import length
from deepauc.training.plan.inputs import PlanOptions
from deepauc.training.plan.timing import Pace
from deepauc.training.predict.cost import prediction_cost
from deepauc.training.predict.predict import predict
from deepauc.training.predict.table import predict_table
from deepauc.training.prepare.prepare import split_rows
from deepauc.training.run.bundle import Bundle
from deepauc.training.run.folder import RunFolder

CPU = torch.device("cpu")


def write_people(path, *, count=80, seed=0, test=0):
    """Numbers of people, two rows each; ill by x and chance, tired by y. The last `test` rows are a test part."""
    generator = np.random.default_rng(seed)
    lines = ["name,person,site,part,x,y,ill,tired"]
    for number in range(count):
        x, y = generator.normal(size=2)
        ill, tired = (int(one + generator.normal() > 0.8) for one in (x, y))
        part = "test" if number >= count - test else "train"
        lines.append(f"r{number},p{number // 2},s{number // 2 % 3},{part},{x:.3f},{y:.3f},{ill},{tired}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    return write_people(tmp_path_factory.mktemp("data") / "people.csv")


def settings_of(table, *, labels=("ill",), folds=3, split=None, **plan):
    return Settings(
        data=DataSettings(
            table=str(table),
            feature_columns=("x", "y"),
            label_columns=labels,
            group_column="person",
            id_column="name",
            split_column=split,
        ),
        plan=PlanOptions(**(plan or {"epochs": 2})),
        folds=folds,
    )


@pytest.fixture(autouse=True)
def no_report(monkeypatch):
    """The report is slow, and has a test of its own."""

    def write(run_dir, *, command):
        (run_dir / "report.html").write_text("<p>report")

    monkeypatch.setattr(cross_validation, "write_report", write)


def trained(settings, out, **options):
    return run(settings, out=out, device=CPU, command="test", **options)


@pytest.fixture(scope="module")
def finished(people, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cross_validation, "write_report", lambda run_dir, *, command: (run_dir / "report.html").touch())
        trained(settings_of(people), out)
    return out


def rows_of(out):
    with (out / "scores.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_folder_and_the_figure(finished):
    rows = rows_of(finished)
    assert len(rows) == 80
    assert {row["part"] for row in rows} == {"oof"}
    assert {row["fold"] for row in rows} == {"1", "2", "3"}
    by_person = {}
    for row in rows:
        by_person.setdefault(row["group"], set()).add(row["fold"])
    assert all(len(folds) == 1 for folds in by_person.values())
    for number in (1, 2, 3):
        fold = RunFolder(finished / f"fold-{number}")
        assert fold.done
        assert RunFolder(fold.path / "baseline").done
        assert (fold.path / "trivial" / "logistic" / "trivial.json").exists()
        held = {row["id"] for row in rows_of(fold.path) if row["part"] == "test"}
        assert held == {row["id"] for row in rows if row["fold"] == str(number)}
        assert not held & {row["id"] for row in rows_of(fold.path) if row["part"] == "train"}
    record = RunFolder(finished).record()
    choice = record.folds.choice
    assert {row.candidate for row in choice.board} >= {"ce", "ce_auc_m", "average", "logistic"}
    assert choice.default == "ce_auc_m"
    assert sum(row.kept for row in choice.board) == 1
    kept = next(row for row in choice.board if row.kept)
    scores, labels = ([float(row[name]) for row in rows] for name in ("score", "label"))
    assert kept.auc.value == pytest.approx(fold_auroc(scores, labels, [row["fold"] for row in rows]))
    for row in choice.board:
        assert (row.less_kept is None) == row.kept
        if row.less_kept is not None:
            assert row.less_kept.value == pytest.approx(row.auc.value - kept.auc.value)
            assert row.less_kept.low <= row.less_kept.value <= row.less_kept.high
    assert record.results.auc["oof"]["ill"] == choice.aucs["ill"]
    assert record.plan.pace  # measured once, for the estimate and for the next start


def test_new_rows_get_the_mean_of_the_members_by_hand(finished, tmp_path):
    table = write_people(tmp_path / "new.csv", count=20, seed=5)
    found = predict_table([finished], table, probability=True)
    choice = RunFolder(finished).record().folds.choice
    places = {"ce": "baseline", "ce_auc_m": "", "logistic": "trivial/logistic"}
    members = ["ce", "ce_auc_m"] if choice.kept == "average" else [choice.kept]
    shares = {name: (0.5 if choice.with_trivial else 1.0) / len(members) for name in members}
    if choice.with_trivial:
        shares[choice.with_trivial] = 0.5
    task, _ = read_table(table, label_columns=["ill"], kind="binary", feature_columns=["x", "y"], id_column="name")
    whole = {row["id"]: row for row in rows_of(finished)}
    mean = np.zeros(20)
    for name, share in shares.items():
        pooled = [[], []]
        held = []
        for number in (1, 2, 3):
            folder = finished / f"fold-{number}" / places[name]
            own = [row for row in rows_of(folder) if row["part"] == "test"]
            held.append([[float(row["score"]) for row in own], [float(whole[row["id"]]["label"]) for row in own]])
            for place, values in enumerate(held[-1]):
                pooled[place] += values
        for number in (1, 2, 3):
            scores, labels = held[number - 1]
            enough = min(labels.count(0.0), labels.count(1.0)) >= 10
            scaling = fit_temperature(scores, labels) if enough else fit_temperature(*pooled)
            raw = predict(finished / f"fold-{number}" / places[name], task)
            mean += share / 3 * scaling.apply(raw)
    np.testing.assert_allclose(found.probabilities[:, 0], mean, atol=2e-6)
    np.testing.assert_allclose(found.scores[:, 0], np.log(mean / (1 - mean)), atol=2e-5)
    copy_bundle(finished, tmp_path / "bundle")
    again = predict_table([tmp_path / "bundle"], table, feature_columns=("x", "y"), probability=True)
    np.testing.assert_array_equal(again.scores, found.scores)


def test_onnx_holds_all_members(finished, tmp_path):
    pytest.importorskip("onnxruntime")
    exported = export_onnx(finished, tmp_path / "model.onnx")
    assert exported.max_difference < 1e-4


@pytest.mark.parametrize("default", ["ce", "average"])
def test_a_single_network_and_what_it_costs(people, tmp_path, monkeypatch, default):
    """Its probabilities are those of one fold, its thresholds those of the held-out rows of its own candidate."""
    monkeypatch.setattr(choosing, "STANDARD_ERRORS", 1e9)  # the default is kept
    monkeypatch.setattr(cross_validation, "default_candidate", lambda recipe: default)
    out, alone = tmp_path / "run", tmp_path / "single"
    trained(settings_of(people), out)
    alone.mkdir()
    single = save_single(out, alone)
    names, fold = {"ce": "baseline", "ce_auc_m": ""}, int(single.fold)
    board = {row.candidate: row.auc.value for row in RunFolder(out).record().folds.choice.board}
    assert single.candidate == ("ce" if default == "ce" else max(names, key=board.get))
    counts = [sum(row["fold"] == str(number) for row in rows_of(out)) for number in (1, 2, 3)]
    assert fold == 1 + counts.index(min(counts))
    table = write_people(tmp_path / "new.csv", count=20, seed=5)
    task, _ = read_table(table, label_columns=["ill"], kind="binary", feature_columns=["x", "y"], id_column="name")
    folders = [out / f"fold-{number}" / names[single.candidate] for number in (1, 2, 3)]
    held = [[row for row in rows_of(folder) if row["part"] == "test"] for folder in folders]
    truth = {row["id"]: float(row["label"]) for row in rows_of(out)}
    rows = held_out(
        {single.candidate: [float(row["score"]) for some in held for row in some]},
        {},
        labels=[truth[row["id"]] for some in held for row in some],
        fold=np.repeat([0, 1, 2], list(map(len, held))),
    )
    (scaling,) = recalibrations(rows, single.candidate)[fold - 1].labels
    expected = scaling.slope * predict(folders[fold - 1], task) + scaling.intercept
    np.testing.assert_allclose(predict(alone, task), expected, atol=1e-5)
    odds, labels = cross_fitted(rows, single.candidate)[:, 0], rows.labels[:, 0]
    threshold = Bundle.load(alone).thresholds["ill"]["sensitivity 0.9"]
    assert (odds[labels == 1] >= threshold).sum() == np.ceil(0.9 * (labels == 1).sum())
    small, large = prediction_cost(alone), prediction_cost(out)
    assert (small.networks, large.networks) == (1, 3 if default == "ce" else 6)
    assert 0 < small.bytes < large.bytes
    with pytest.raises(ValueError, match="one split"):
        save_single(out / "fold-1", alone)


class Stopped(Exception):
    pass


@pytest.mark.parametrize("fold", [1, 2])
def test_killed_between_and_inside_folds_it_goes_on_to_the_bit(finished, people, tmp_path, fold):
    """Killed in the middle of a fold's steps, or right before the first of them."""
    out, told, steps = tmp_path / "run", [], [0]

    def kill(event):
        told.append(event)
        if isinstance(event, Stepped) and sum(isinstance(one, FoldBegan) for one in told) == fold:
            steps[0] += 1
            if fold == 1 and steps[0] == 5:
                raise Stopped
        if isinstance(event, FoldBegan) and event.number == fold == 2:
            raise Stopped

    with pytest.raises(Stopped):
        trained(settings_of(people), out, listen=kill)
    assert not (out / "DONE").exists()
    first = (out / "fold-1" / "model.safetensors").stat().st_mtime_ns if fold == 2 else None
    told.clear()
    outcome = trained(settings_of(people), out, listen=told.append)
    assert outcome.state == "continued"
    assert Resumed(out=out) in told
    if first is not None:
        assert (out / "fold-1" / "model.safetensors").stat().st_mtime_ns == first
    for name in ("scores.csv", "model.safetensors", "bundle.json"):
        assert (out / name).read_bytes() == (finished / name).read_bytes()


def test_a_finished_run_is_left_alone_and_another_is_refused(finished, people):
    told = []
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    assert trained(settings_of(people), finished, listen=told.append).state == "finished"
    assert AlreadyFinished(out=finished) in told
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before
    with pytest.raises(ValueError, match="another run"):
        trained(settings_of(people, folds=4), finished)
    with pytest.raises(ValueError, match="another run"):
        trained(settings_of(people, folds=0), finished)


def test_a_column_names_the_folds(people, tmp_path):
    out = tmp_path / "run"
    trained(settings_of(people, folds="site"), out)
    sites = {row["name"]: row["site"] for row in csv.DictReader(people.read_text().splitlines())}
    assert all(sites[row["id"]] == row["fold"] for row in rows_of(out))
    assert RunFolder(out).record().folds.column == "site"
    with pytest.raises(ValueError, match="nowhere"):
        trained(settings_of(people, folds="nowhere"), tmp_path / "other")


def test_several_labels_and_a_test_part(tmp_path):
    table = write_people(tmp_path / "people.csv", count=100, test=20)
    out = tmp_path / "run"
    trained(settings_of(table, labels=("ill", "tired"), split="part"), out)
    rows = rows_of(out)
    assert [sum(row["part"] == part for row in rows) for part in ("oof", "test")] == [80, 20]
    choice = RunFolder(out).record().folds.choice
    assert set(choice.aucs) == {"ill", "tired"}
    assert set(RunFolder(out).record().results.auc["test"]) == {"ill", "tired"}
    assert len({row.candidate for row in choice.board if row.kept}) == 1
    task, _ = read_table(
        table, label_columns=["ill", "tired"], kind="multilabel", feature_columns=["x", "y"], split_column="part"
    )
    again = predict(out, task, rows=task.labelled("test"))
    written = [[float(row[f"score:{name}"]) for name in ("ill", "tired")] for row in rows if row["part"] == "test"]
    np.testing.assert_allclose(again, written, rtol=1e-6)


def test_minutes_are_shared_out_and_the_pace_is_kept(people, tmp_path):
    out, told = tmp_path / "run", []
    settings = settings_of(people, minutes=0.05)

    def stop(event):
        told.append(event)
        if isinstance(event, FoldBegan) and event.number == 2:
            raise Stopped

    with pytest.raises(Stopped):
        trained(settings, out, listen=stop)
    (estimate,) = [event for event in told if isinstance(event, Estimated)]
    assert estimate.seconds < 3
    record = RunFolder(out).record()
    assert record.plain["plan"]["minutes"] == 0.05
    epochs = next(one for one in record.plan.decisions if one.name == "epochs")
    assert "3 folds" in epochs.reason
    pace = record.plain["plan"]["pace"]
    trained(settings, out)  # by the recorded pace: another one would give another recipe, which is refused
    assert RunFolder(out).record().plain["plan"]["pace"] == pace


def test_minutes_that_are_left_buy_further_seeds(people, tmp_path, monkeypatch):
    monkeypatch.setattr(cross_validation, "MOST_SEEDS", 2)
    monkeypatch.setattr(choosing._Board, "pick", lambda board: ("ce", None))
    monkeypatch.setattr(length, "MOST_EPOCHS", (3, 3))
    out, told = tmp_path / "run", []
    trained(settings_of(people, minutes=20), out, listen=told.append)
    began = [str(event) for event in told if isinstance(event, FoldBegan)]
    assert began[:3] == [f"Fold {fold} of 3, network {n} of 2" for fold, n in ((1, 1), (1, 2), (2, 1))]
    record = RunFolder(out).record()
    assert next(one.value for one in record.plan.decisions if one.name == "networks per fold") == "2"
    seconds = {row.candidate: row.seconds for row in record.folds.choice.board}
    assert 0 < seconds["ce"] < seconds["ce_auc_m"] == seconds["average"]  # AUC-M goes on from cross-entropy
    seeds = [RunFolder(out / "fold-1" / place).record().identity.seed for place in ("", "seed-2")]
    assert seeds == [0, cross_validation.SEED_STEP]
    assert {row.candidate for row in record.folds.choice.board} == {"ce", "ce_auc_m", "average", "logistic"}
    table = write_people(tmp_path / "new.csv", count=20, seed=5)
    found = predict_table([out], table, probability=True)
    truth = {row["id"]: float(row["label"]) for row in rows_of(out)}
    mean = np.zeros(20)
    for place in ("baseline", "seed-2/baseline"):
        folders = [out / f"fold-{one}" / place for one in (1, 2, 3)]
        parts = [[row for row in rows_of(folder) if row["part"] == "test"] for folder in folders]
        rows = held_out(
            {"ce": [float(row["score"]) for part in parts for row in part]},
            {},
            labels=[truth[row["id"]] for part in parts for row in part],
            fold=np.repeat([0, 1, 2], list(map(len, parts))),
        )
        for folder, scaling in zip(folders, recalibrations(rows, "ce"), strict=True):
            scores = predict_table([folder], table, feature_columns=("x", "y"), id_column="name").scores
            mean += scaling.apply(scores)[:, 0] / 6
    np.testing.assert_allclose(found.probabilities[:, 0], mean, atol=1e-5)


def test_auto_asks_for_folds_where_the_rows_are_few(people, tmp_path):
    settings = settings_of(people, folds="auto")
    rows = read(settings, device=CPU)
    dealt = dealt_folds(settings, rows)
    assert len(dealt.folds) == 5
    assert dealt.decision.reason[0] == "few groups"
    one_split = [
        replace(settings, folds=0),
        replace(settings, tune=2),
        replace(settings, split=SplitSettings(train=0.6, validation=0.2, test=0.2)),
        replace(settings, data=replace(settings.data, split_of="runs/first")),
    ]
    assert [dealt_folds(one, rows) for one in one_split] == [None] * 4
    with pytest.raises(ValueError, match="split of another run"):
        dealt_folds(replace(one_split[3], folds=3), rows)
    with pytest.raises(ValueError, match="leave out folds"):
        replace(settings, tune=2, folds=3)
    with pytest.raises(ValueError, match="not 1"):
        replace(settings, folds=1)
    # An unfinished run of one split goes on as such.
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.record_path.write_text(json.dumps({"identity": {"seed": 0}}))
    assert dealt_folds(settings, rows, folder) is None


def test_metadata_are_encoded_by_the_training_rows_of_each_fold(tmp_path):
    """A category of one fold alone is unknown to its own network; the average is the members' mean all the same."""
    lines = write_people(tmp_path / "people.csv").read_text().splitlines()
    cells = [line.split(",") for line in lines]
    for number, row in enumerate(cells[1:]):
        row[4] = "" if number % 7 == 0 else row[4]  # x
    table = tmp_path / "cells.csv"
    table.write_text("\n".join(map(",".join, cells)) + "\n")
    settings = settings_of(table, folds="site")
    data = replace(settings.data, feature_columns=(), metadata_columns=("x", "site"))
    out = tmp_path / "run"
    trained(replace(settings, data=data), out)
    encoded = [Bundle.load(out / f"fold-{one}").metadata["columns"] for one in (1, 2, 3)]
    assert [site["categories"] for _, site in encoded] == [["s1", "s2"], ["s0", "s2"], ["s0", "s1"]]
    assert len({x["mean"] for x, _ in encoded}) == 3
    new = tmp_path / "new.csv"
    new.write_text("name,x,site\na,0.5,s0\nb,,s1\nc,-1,\nd,2,other\n")
    found = predict_table([out], new, id_column="name", probability=True)
    choice = RunFolder(out).record().folds.choice
    places = {"ce": "baseline", "ce_auc_m": "", "logistic": "trivial/logistic"}
    members = ["ce", "ce_auc_m"] if choice.kept == "average" else [choice.kept]
    members += [choice.with_trivial] if choice.with_trivial else []
    held = {row["id"]: row for row in rows_of(out)}
    mean = np.zeros(4)
    for name in members:
        folders = [out / f"fold-{one}" / places[name] for one in (1, 2, 3)]
        parts = [[row for row in rows_of(folder) if row["part"] == "test"] for folder in folders]
        rows = held_out(
            {name: [float(row["score"]) for part in parts for row in part]},
            {},
            labels=[float(held[row["id"]]["label"]) for part in parts for row in part],
            fold=np.repeat([0, 1, 2], list(map(len, parts))),
        )
        for folder, scaling in zip(folders, recalibrations(rows, name), strict=True):
            share = 0.5 / 3 if choice.with_trivial else 1 / 3 / len(members)
            mean += share * scaling.apply(predict_table([folder], new, id_column="name").scores)[:, 0]
    np.testing.assert_allclose(found.probabilities[:, 0], mean, atol=1e-5)


def pictures(folder):
    """48 small images of 24 people, a quarter of them the test part, with their ages and sites."""
    generator = np.random.default_rng(0)
    lines = ["file,person,part,age,site,ill"]
    for number in range(48):
        ill = int(number % 3 == 0)
        pixels = np.clip(generator.normal(100 + 60 * ill, 40, (8, 8)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        age = "" if number % 10 == 0 else f"{50 + 10 * ill + generator.normal():.1f}"
        lines.append(f"{number}.png,p{number // 2},{'test' if number >= 36 else 'train'},{age},s{number % 2},{ill}")
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    return DataSettings(
        table=str(folder / "table.csv"),
        image_column="file",
        label_columns=("ill",),
        group_column="person",
        split_column="part",
    )


@pytest.mark.parametrize(("tta", "copies"), [(None, 8), (0, 0)])
def test_minutes_buy_copies_after_all_seeds_unless_none_are_wanted(tmp_path, monkeypatch, tta, copies):
    monkeypatch.setattr(cross_validation, "MOST_SEEDS", 2)
    monkeypatch.setattr(length, "MOST_EPOCHS", (3, 3))
    plan = PlanOptions(minutes=20, model="small-cnn", tta=tta)
    settings, out, told = Settings(data=pictures(tmp_path), plan=plan, folds=2), tmp_path / "run", []
    trained(settings, out, listen=told.append)
    record = RunFolder(out).record()
    assert next(one.value for one in record.plan.decisions if one.name == "networks per fold") == "2"
    assert record.tta == copies
    (estimate,) = (event.seconds for event in told if isinstance(event, Estimated))
    assert estimate < 20 * 60
    written = {row["id"]: float(row["score"]) for row in rows_of(out) if row["part"] == "test"}
    found = {}
    for number in {None, 0, copies}:
        scored = predict_table([out], tmp_path / "table.csv", image_column="file", tta=number)
        found[number] = dict(zip(scored.ids.tolist(), scored.scores[:, 0], strict=True))
    own = [found[None][name] for name in written]
    np.testing.assert_allclose(own, list(written.values()), rtol=1e-5)
    np.testing.assert_array_equal(own, [found[copies][name] for name in written])
    assert (own == [found[0][name] for name in written]) == (copies == 0)
    (out / "DONE").unlink()
    trained(settings, out)  # by the recorded pace


@pytest.mark.parametrize(("minutes", "step", "name"), [(1.0, 1.0, "small-cnn"), (0.01, 1e-5, "resnet20")])
@pytest.mark.parametrize("folds", [0, 2])
def test_timed_steps_choose_the_network_against_the_estimate(tmp_path, monkeypatch, minutes, step, name, folds):
    settings = Settings(data=pictures(tmp_path), plan=PlanOptions(minutes=minutes * max(folds, 1)), folds=folds)
    rows = read(settings, device=CPU)
    reckoned = plan(replace(settings, plan=PlanOptions(minutes=minutes)), split_rows(rows, settings), device=CPU)
    spec = {"small-cnn": SmallCNNSpec, "resnet20": ResNet20Spec}[name]
    assert not isinstance(reckoned.recipe.model, spec)
    timed = []

    def measure(recipe, task, **_):
        timed.append(recipe.model)
        seconds = step if isinstance(recipe.model, ResNet20Spec) else 1e-5
        return Pace(step=(seconds,) * 2, end=(0.0,) * 2, row=0.0, per_epoch=(2, 2), device="cpu")

    monkeypatch.setattr(job, "measure_pace", measure)

    def planned_now():
        if not folds:
            return run_module.planned(settings, rows, device=CPU)
        return cross_validation.plan_folds(settings, rows, dealt_folds(settings, rows), device=CPU).job

    made = planned_now()
    assert isinstance(made.recipe.model, spec)
    assert [type(model) for model in timed] == [ResNet20Spec, *([SmallCNNSpec] if spec is SmallCNNSpec else [])]
    assert made.pace.spent == pytest.approx(300 * step / (60 * minutes * 0.9))
    network = next(one for one in made.decisions if one.name == "network")
    assert network.reason == ("slow here" if spec is SmallCNNSpec else "in time",)
    again = job.fit_minutes(reckoned, pace=made.pace)  # as a run that goes on has it
    assert isinstance(again.recipe.model, spec)
    own = replace(settings, plan=replace(settings.plan, model="small-cnn"))
    assert isinstance(job.plan(own, split_rows(rows, own), device=CPU).recipe.model, SmallCNNSpec)


@pytest.mark.parametrize("joined", ["ce_auc_m with metadata", "ce_auc_m", "metadata"])
def test_images_and_metadata_in_one_run(tmp_path, monkeypatch, joined):
    """Whatever is kept, the shipped network scores as its members do, each fed with its own inputs."""
    data = replace(pictures(tmp_path), metadata_columns=("age", "site"))
    table = tmp_path / "table.csv"
    settings = Settings(data=data, plan=PlanOptions(epochs=1, model="small-cnn"), folds=2)
    monkeypatch.setattr(choosing._Board, "pick", lambda board: (joined, None))
    out = tmp_path / "run"
    trained(settings, out)
    board = RunFolder(out).record().folds.choice.board
    assert {row.candidate for row in board if row.kept} == {joined}
    assert {row.candidate for row in board if not row.trivial} == {
        *("ce", "ce_auc_m", "average", "metadata", "ce_auc_m with metadata")
    }
    columns = {"id_column": "file"} if joined == "metadata" else {}
    found = predict_table([out], table, probability=True, **columns)
    mean = np.zeros(48)
    places = {"ce_auc_m": "", "metadata": "metadata"}
    members = joined.split(" with ")
    truth = {row["id"]: float(row["label"]) for row in rows_of(out)}
    for name in members:
        folders = [out / f"fold-{one}" / places[name] for one in (1, 2)]
        parts = [[row for row in rows_of(folder) if row["part"] == "test"] for folder in folders]
        rows = held_out(
            {name: [float(row["score"]) for part in parts for row in part]},
            {},
            labels=[truth[row["id"]] for part in parts for row in part],
            fold=np.repeat([0, 1], list(map(len, parts))),
        )
        for folder, scaling in zip(folders, recalibrations(rows, name), strict=True):
            scores = predict_table([folder], table, id_column="file" if name == "metadata" else None).scores
            mean += scaling.apply(scores)[:, 0] / 2 / len(members)
    np.testing.assert_allclose(found.probabilities[:, 0], mean, atol=5e-6)
    written = {row["id"]: float(row["score"]) for row in rows_of(out) if row["part"] == "test"}
    by_id = dict(zip(found.ids.tolist(), found.scores[:, 0], strict=True))
    assert len(written) == 12
    assert all(by_id[name] == pytest.approx(score, abs=1e-5) for name, score in written.items())
    copy_bundle(out, tmp_path / "bundle")
    columns = columns or {"image_column": "file"}
    again = predict_table([tmp_path / "bundle"], table, **columns)
    np.testing.assert_array_equal(again.scores, found.scores)
    (tmp_path / "single").mkdir()
    single = save_single(out, tmp_path / "single")
    assert single.candidate == members[0]
    alone = predict_table([tmp_path / "single"], table, **columns).scores[:, 0]
    assert np.isfinite(alone).all()
    before = (out / "model.safetensors").read_bytes()
    (out / "DONE").unlink()
    trained(settings, out)  # the same call goes on
    assert (out / "model.safetensors").read_bytes() == before


def held_out(networks, trivial, *, labels, fold):
    return HeldOut(
        label_names=("ill",),
        labels=np.array(labels, dtype=float)[:, None],
        fold=np.array(fold),
        groups=None,
        networks={name: np.array(one, dtype=float)[:, None] for name, one in networks.items()},
        trivial={name: np.array(one, dtype=float)[:, None] for name, one in trivial.items()},
    )


def test_a_held_out_score_does_not_see_its_own_folds_labels():
    generator = np.random.default_rng(0)
    fold = np.repeat([0, 1, 2], 20)
    labels = generator.random(60) < 0.4
    scores = labels + generator.normal(size=60)
    seconds = {"ce": 1.0, "ce_auc_m": 2.0, "logistic": 0.1}

    def odds(truth):
        rows = held_out({"ce": scores, "ce_auc_m": 3 * scores + 1}, {"logistic": -scores}, labels=truth, fold=fold)
        return choose_candidate(rows, default="ce_auc_m", seconds=seconds)

    first = odds(labels)
    assert first.choice.kept == "ce_auc_m"
    assert first.choice.with_trivial is None
    assert first.choice.clearly_better
    changed = labels.copy()
    changed[:20] = np.roll(changed[:20], 7)
    second = odds(changed)
    np.testing.assert_array_equal(first.scores[:20], second.scores[:20])
    assert not np.array_equal(first.scores[20:], second.scores[20:])


def test_the_auc_of_a_single_network_is_that_of_its_raw_scores():
    """Also where the other folds rank backwards: a slope of 0 would tie all rows of a fold, at an AUC of 0.5."""
    generator = np.random.default_rng(0)
    fold = np.repeat([0, 1, 2], 40)
    labels = np.arange(120) % 3 == 0
    raw = np.where(fold == 0, 1.0, -1.0) * labels + generator.normal(size=120)
    rows = held_out({"ce": raw}, {"logistic": -raw}, labels=labels, fold=fold)
    found = choose_candidate(rows, default="ce", seconds={"ce": 1.0, "logistic": 0.1})
    board = {row.candidate: row.auc for row in found.choice.board}
    for name, scores in (("ce", raw), ("logistic", -raw)):
        expected = fold_auroc_interval(scores, labels, fold).floats()
        assert board[name].value == pytest.approx(expected.value, abs=1e-12)
        assert (board[name].low, board[name].high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert np.ptp(cross_fitted(rows, "ce")[fold == 0]) < 0.1  # an order alone, and no vote in an average


def test_the_time_of_a_candidate_is_that_of_all_it_needs():
    generator = np.random.default_rng(0)
    fold = np.repeat([0, 1, 2], 20)
    labels = generator.random(60) < 0.4
    names = ("ce", "ce_auc_m", "ce, seed 2", "ce_auc_m, seed 2")
    rows = held_out({name: generator.normal(size=60) for name in names}, {}, labels=labels, fold=fold)
    rows = replace(rows, metadata=generator.normal(size=(60, 1)))
    seconds = dict(zip((*names, "metadata"), (10.0, 3.0, 20.0, 4.0, 0.5), strict=True))
    found = choose_candidate(rows, default="ce_auc_m", seconds=seconds)
    assert {row.candidate: row.seconds for row in found.choice.board} == {
        "ce": 30.0,
        "ce_auc_m": 37.0,
        "average": 37.0,
        "metadata": 0.5,
        "ce_auc_m with metadata": 37.5,
    }


def test_a_small_fold_is_recalibrated_by_all():
    generator = np.random.default_rng(0)
    fold = np.array([0] * 60 + [1] * 8)
    labels = np.array([0, 1] * 34)
    rows = held_out({"ce": generator.normal(size=68) + labels}, {}, labels=labels, fold=fold)
    own, pooled = recalibrations(rows, "ce")
    raw = rows.networks["ce"][:, 0]
    assert own.labels[0] == fit_temperature(raw[:60], labels[:60])
    assert pooled.labels[0] == fit_temperature(raw, labels)


def test_log_odds_of_a_mean_do_not_tie_at_the_ends():
    odds = [np.array([-800.0, 0.0, 40.0, 41.0]), np.array([-800.0, 2.0, 40.0, 41.0])]
    found = log_odds_of_mean(odds, [0.5, 0.5])
    p = (1 / (1 + np.exp(-0.0)) + 1 / (1 + np.exp(-2.0))) / 2
    np.testing.assert_allclose(found, [-800.0, np.log(p / (1 - p)), 40.0, 41.0])


def test_the_report_of_a_run_with_folds(finished, tmp_path):
    copy = shutil.copytree(finished, tmp_path / "run")
    written = write_report(copy)
    text = written.markdown.read_text()
    choice = RunFolder(copy).record().folds.choice
    assert f"{choice.auc.value:.3f}" in text
    assert "cross-entropy, then AUC-M" in text
    assert "Candidates" in text
    assert written.findings.judged_part == "oof"
    assert [row.fold for row in written.findings.folds] == ["1", "2", "3"]
    assert written.findings.labels[0].auc.headline == choice.auc
    (label,) = written.findings.labels
    asked = {f"specificity {row.asked_specificity:g}": row for row in label.operating_points}
    asked |= {f"sensitivity {row.asked_sensitivity:g}": row for row in label.sensitivity_points}
    card = model_card(copy)
    for name, cut in Bundle.load(copy).thresholds["ill"].items():
        assert asked[name].threshold == pytest.approx(cut)  # the report, the bundle and the card say the same
        assert f"{asked[name].true_positives}, {asked[name].false_negatives}" in card
    folds = RunFolder(copy).record().folds
    answers = {item.topic: item.answer(written.findings) for item in ITEMS}
    assert answers["How the data were partitioned"].startswith(f"{len(folds.names)} folds: ")
    assert f"{len(folds.names)} folds" in answers["Ensembles, test-time augmentation"]
    assert "all folds" in answers["Selection of the final model"]


def test_a_label_with_too_few_positives_neither_chooses_nor_counts():
    generator = np.random.default_rng(0)
    labels = np.zeros((90, 2))
    labels[:, 0] = np.arange(90) % 3 == 0
    labels[[0, 31, 62], 1] = 1
    good = np.stack([labels[:, 0], generator.normal(size=90)], axis=1) + 0.3 * generator.normal(size=(90, 2))
    noise = np.stack([generator.normal(size=90), labels[:, 1]], axis=1)  # perfect for the label that does not count
    rows = HeldOut(
        label_names=("common", "rare"),
        labels=labels,
        fold=np.repeat([0, 1, 2], 30),
        groups=None,
        networks={"first": noise, "second": good},
        trivial={},
    )
    choice = choose_candidate(rows, default="second", seconds={"first": 1.0, "second": 1.0}).choice
    assert choice.kept == "second"
    assert list(choice.too_few) == ["rare"]
    assert choice.counted == 1
    assert choice.auc.value == pytest.approx(choice.aucs["common"].value)
    assert set(choice.aucs) == {"common", "rare"}
