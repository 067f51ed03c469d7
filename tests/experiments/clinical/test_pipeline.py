"""The melanoma study from made JPEG files to its page: folds, two stages, TTA, metadata, fusion, ensembles."""

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from deepauc.data.augment.batch import Augment
from deepauc.metrics.auroc import auroc
from deepauc.models.build import SmallCNNSpec
from deepauc.models.fusion import fuse
from deepauc.objectives.baselines import CrossEntropy
from deepauc.optim.standard import SGDSpec
from deepauc.studies.records.book import RecordBook
from deepauc.studies.running.runner import run_studies
from deepauc.studies.sources import Place
from deepauc.studies.study import cut_all
from deepauc.training.engine.loop import train
from deepauc.training.predict.predict import predict
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.run.run import Run
from experiments.clinical import scores as medical_scores
from experiments.clinical.cells import SkinCells
from experiments.clinical.scores import TestScores, kept_scores, pooled, read_scores
from experiments.clinical.skin_page import ensembles, folds_of, ways
from experiments.clinical.studies import melanoma
from experiments.figures import entries

CELLS = ["melanoma-B5-384-ce", "melanoma-B5-384-auc_m", "melanoma-B6-512-ce", "melanoma-meta-auc_m"]
FOLDS = 5


def write_edition(root):
    """30 patients of four images; bright ones are melanomas. Six outside images in a folder of their own."""
    generator = np.random.default_rng(0)
    (root / "train").mkdir(parents=True)
    (root / "outside" / "other" / "train").mkdir(parents=True)
    header = ["image_name", "patient_id", "sex", "age_approx", "anatom_site_general_challenge", "diagnosis",
              "benign_malignant", "target"]  # fmt: skip
    with (root / "train.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for number in range(120):
            target = int(number % 4 == 0)
            name = f"ISIC_{number:07d}"
            age = "70.0" if target else "35.0"
            writer.writerow([name, f"IP_{number // 4:07d}", "male", age, "torso", "unknown", "benign", target])
            pixels = generator.integers(0, 120, (12, 12, 3)) + 60 * target
            Image.fromarray(pixels.astype(np.uint8)).save(root / "train" / f"{name}.jpg", quality=95)
    with (root / "outside" / "other" / "train.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "MEL"])
        for number in range(6):
            writer.writerow([f"X{number}", float(number % 2)])
            pixels = generator.integers(0, 120, (12, 12, 3)) + 60 * (number % 2)
            path = root / "outside" / "other" / "train" / f"X{number}.jpg"
            Image.fromarray(pixels.astype(np.uint8)).save(path, quality=95)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    root = tmp_path_factory.mktemp("melanoma")
    write_edition(root / "data")
    place = Place(data=root / "data", runs=root / "runs", results=root / "results")
    chosen = cut_all(
        melanoma().chosen(CELLS),
        configs=1,
        options={"network": "S", "pretrained": False, "epochs": 2, "auc_epochs": 1, "batch_size": 16,
                 "precision": "float32", "milestones": ()},
    )  # fmt: skip
    chosen = tuple(
        replace(study, fixed={**study.fixed, "network": "M"} if "-meta-" in study.name else study.fixed,
                task=replace(study.task, size=12 if "512" not in study.name else 16, tta=3))
        for study in chosen
    )  # fmt: skip
    parents = cut_all(melanoma().parents(chosen), configs=1)
    outcome = run_studies("melanoma", chosen, place=place, parents=parents, device="cpu")
    return place, chosen, outcome


def test_every_fold_of_every_study_is_recorded(done):
    place, chosen, outcome = done
    assert outcome.failed == []
    assert outcome.unavailable == {}
    assert outcome.done == FOLDS * len(chosen)
    book = RecordBook(place.results / "melanoma")
    for study in chosen:
        records = book.final(study.name)
        assert [record["seed"] for record in records] == list(range(FOLDS))
        assert sum(record["task"]["rows"]["test"] for record in records) == 120
        assert {record["task"]["rows"]["train"] for record in records} == {96 + 6}  # the outside images in all


def test_kept_scores_are_those_of_the_run(done):
    place, chosen, _ = done
    book = RecordBook(place.results / "melanoma")
    study = chosen[1]
    record = book.final(study.name)[2]
    run, test = Run(place.runs / record["run"]), read_scores(record)
    scores, labels = run.scores("test")
    assert np.array_equal(test.plain, scores)
    assert np.array_equal(test.labels, labels)
    task = study.task.load(2, tuning=False, place=place)
    rows = task.labelled("test")
    assert np.array_equal(test.tta, predict(run, task, rows=rows, tta=3, device="cpu").astype(np.float32))
    assert record["test_scores"]["tta_copies"] == 3
    assert record["auc"]["test"][0] == pytest.approx(auroc(test.plain, test.labels), abs=1e-6)
    same = task.groups[rows][:, None] == task.groups[rows][None]
    assert np.array_equal(test.groups[:, None] == test.groups[None], same)


def test_copies_are_scored_on_the_study_s_device_not_on_any_gpu(done, monkeypatch):
    place, chosen, _ = done
    record = RecordBook(place.results / "melanoma").final(chosen[1].name)[0]
    run, task = Run(place.runs / record["run"]), chosen[1].task.load(0, tuning=False, place=place)
    asked = []

    def predicted(run, task, *, rows, tta, device):
        asked.append(device)
        return np.zeros(len(rows))

    monkeypatch.setattr(medical_scores, "predict", predicted)
    second = torch.device("cuda", 1)
    chosen[1].task.keep(run, task, device=second)
    assert asked == [second]


def test_the_page_has_fusion_and_ensembles_with_the_right_numbers(done):
    place, _, _ = done
    book = RecordBook(place.results / "melanoma")
    text = entries()["melanoma"].markdown(place.results)
    for row in ("image + metadata, 0.5 : 0.5, sigmoid", "image + metadata, 0.5 : 0.5, rank", "image, TTA", "all (3)",
                "AUC-M B5-384 + metadata, with B6-512-ce, ranks", ".9505"):  # fmt: skip
        assert row in text
    images = {r["seed"]: read_scores(r) for r in book.final("melanoma-B5-384-auc_m")}
    patients = {r["seed"]: read_scores(r) for r in book.final("melanoma-meta-auc_m")}
    fused = [auroc(fuse(images[k].plain, patients[k].plain, scale="rank"), images[k].labels) for k in images]
    lines = ([cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines())
    (row,) = [row for row in lines if row[:2] == ["AUC-M", "image + metadata, 0.5 : 0.5, rank"]]
    assert row[3] == f"{np.mean(fused):.3f}"


def test_fusion_refuses_other_test_rows(done, tmp_path):
    place, _, _ = done
    book = RecordBook(tmp_path)
    for record in RecordBook(place.results / "melanoma").final("melanoma-B5-384-auc_m"):
        book.add(record)
    for record in RecordBook(place.results / "melanoma").final("melanoma-meta-auc_m"):
        scores = record["test_scores"]
        book.add({**record, "test_scores": {**scores, "truth": 1 - np.asarray(scores["truth"])}})
    with pytest.raises(ValueError, match="different test rows"):
        list(ways(folds_of(book, "melanoma-B5-384-auc_m"), folds_of(book, "melanoma-meta-auc_m")))


def test_networks_with_other_test_images_are_in_no_ensemble(done, tmp_path):
    place, _, _ = done
    book, cells = RecordBook(tmp_path), SkinCells(name="melanoma", networks=("B5-384", "B6-512"))
    for name in ("melanoma-B5-384-ce", "melanoma-B5-384-auc_m"):
        for record in RecordBook(place.results / "melanoma").final(name):
            book.add(record)
    for record in RecordBook(place.results / "melanoma").final("melanoma-B6-512-ce"):
        test = read_scores(record)
        entry = dict(record["test_scores"])  # one image less, as where duplicates are left out
        for key, values in {"plain": test.plain, "tta": test.tta, "truth": test.labels, "groups": test.groups}.items():
            entry[key] = values[1:].astype("<i4" if key == "groups" else "<f4")
        book.add({**record, "test_scores": entry})
    assert [what for what, *_ in ensembles(book, cells)][-1] == "all (2)"
    whole = RecordBook(place.results / "melanoma")
    assert "all (3)" in [what for what, *_ in ensembles(whole, cells)]


def test_pooled_folds_keep_patients_and_order_apart():
    folds = [
        TestScores(plain=np.array([5.0, 1.0, 3.0]), labels=np.array([1.0, 0, 1]), tta=None, groups=np.array([0, 0, 1])),
        TestScores(plain=np.array([-9.0, -8.0]), labels=np.array([0.0, 1]), tta=None, groups=None),
    ]
    found = pooled(folds)
    assert found.plain == pytest.approx([1, 1 / 3, 2 / 3, 1 / 2, 1])
    assert found.groups.tolist() == [0, 0, 1, 2, 3]
    assert found.labels.tolist() == [1, 0, 1, 0, 1]


def test_plain_scores_are_plain_where_the_run_has_copies_of_its_own(spots_task, tmp_path):
    task, moved = spots_task(), Augment(crop_padding=2)
    stage = Stage(objective=CrossEntropy(), optimizer=SGDSpec(lr=0.1), epochs=2, batch_size=32, augment=moved)
    recipe = Recipe(model=SmallCNNSpec(widths=(4, 8)), stages=(stage,), tta=3)
    copied = train(recipe, task, seed=0, run_dir=tmp_path / "copied")
    plain = train(replace(recipe, tta=0), task, seed=0, run_dir=tmp_path / "plain")
    found, expected = (kept_scores(run, task, tta=5)["test_scores"] for run in (copied, plain))
    assert (copied.scores("test")[0] != plain.scores("test")[0]).any()
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in found)


def test_scores_of_several_labels_with_gaps(run_folders, spots_task):
    task = spots_task(label_names=("spot", "coin & <b>", "عِلّة"), name="three labels")
    kept = kept_scores(Run(run_folders / "multi"), task, tta=5)
    test = read_scores(kept)
    assert kept["test_scores"]["tta_copies"] == 0  # trained without augmentation
    assert test.plain.shape == test.labels.shape == (80, 3)
    assert np.isnan(test.labels).sum() == 1
