"""Chest X-rays in small: second stages from a first one's network, uncertain labels, readers beaten."""

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from deepauc.data.task import Task
from deepauc.metrics.auroc import auroc
from deepauc.metrics.intervals import auroc_interval
from deepauc.studies.records.book import RecordBook
from deepauc.studies.records.status import status_of
from deepauc.studies.running import execution
from deepauc.studies.running.missing import MissingRuns
from deepauc.studies.running.runner import run_studies
from deepauc.studies.sources import Place, TaskSource
from deepauc.studies.study import Study
from deepauc.training.engine.fast.packing import train_together
from deepauc.training.plain import from_plain, recipe_hash
from deepauc.training.run.bundle import Bundle
from deepauc.training.run.folder import RunFolder
from experiments.clinical.chest import (
    CHEXPERT_NETWORKS,
    REAL,
    STAND_IN,
    ChestDesign,
    chest_set,
    count_readers,
    with_settings,
)
from experiments.clinical.chest_page import PAGES
from experiments.clinical.chest_tasks import MASKED_SHARE, NIHImages, mask_labels, one_disease
from experiments.clinical.packs import pack_of, side_by_side
from experiments.clinical.readers import disease_ensembles
from experiments.clinical.recipes import METHODS
from experiments.clinical.scores import RESAMPLES, read_scores
from experiments.clinical.studies import ddsm, medical, melanoma, pcam

ce = METHODS["ce"]

NAMES = ("Edema", "Heart", "Water")
SMALL = {**STAND_IN.settings, "epochs": 2, "auc_epochs": 1, "milestones": (2, 4), "precision": "float32",
         "batch_size": 32}  # fmt: skip
DESIGN = ChestDesign(
    name="chest", networks=("S",), seeds=(0, 1), losses=("ce", "auc_m"), settings=SMALL, masked=True, tta=2,
    policy=dict.fromkeys(NAMES, "zeros"), labels=NAMES,
)  # fmt: skip
READERS = "label,reader,fpr,tpr\nEdema,a,1.0,0.0\nEdema,b,0.0,1.0\nHeart,a,0.9,0.01\nWater,b,0.0,1.0\n"


@dataclass(frozen=True, kw_only=True, eq=False)
class Given(TaskSource):
    task: Task
    name: str = "given"

    def load(self, seed, *, tuning, place):
        return self.task


def set_of(design, task):
    given = Given(task=task)
    return chest_set(replace(design, images=lambda _: given))


def run_chest(design, task, place, *, cells=(), **options):
    studies = set_of(design, task)
    outcome = run_studies(studies.name, studies.chosen(cells), place=place, device="cpu", **options)
    assert outcome.failed == []
    return outcome


@pytest.fixture(scope="module")
def done(tmp_path_factory, spots_task):
    root = tmp_path_factory.mktemp("chest")
    (root / "data").mkdir()
    (root / "data" / "readers.csv").write_text(READERS)
    place = Place(data=root / "data", runs=root / "runs", results=root / "results")
    task = spots_task(label_names=NAMES, rows=240)
    told = []
    outcome = run_chest(DESIGN, task, place, report=told.append)
    count_readers(DESIGN, place, "chest")
    return place, task, outcome, told


def records_of(place):
    book = RecordBook(place.results / "chest")
    return {(record["study"], record["seed"]): record for name in book.studies() for record in book.final(name)}


def test_one_first_stage_for_all_second_ones(done):
    place, task, outcome, told = done
    records = records_of(place)
    assert outcome.done == len(records) == 2 * (1 + 2 * (1 + 3) + 5)
    assert any(step.text.startswith("S-all-ce final, set 1: mean test AUC") for step in told)
    (status,) = [one for one in status_of(set_of(DESIGN, task), set_of(DESIGN, task).studies, place.results)
                 if one.study == "S-Heart-auc_m"]  # fmt: skip
    assert (status.final, status.seeds, status.outdated) == (2, 2, 0)
    for seed in (0, 1):
        first = records["S-stage1-ce", seed]
        assert first["parent"] is None
        assert list(first["auc"]["test"]) == list(NAMES)
        for labels in ("all", *NAMES):
            record = records[f"S-{labels}-auc_m", seed]
            assert record["parent"] == first["run"]
            (stage,) = record["recipe"]["stages"]
            assert stage["start_from"] is None  # a record holds no path; the run itself knows its place
            (begun,) = RunFolder(place.runs / record["run"]).record().plain["recipe"]["stages"]
            assert begun == {**stage, "start_from": str(place.runs / first["run"])}
            assert record["identity"]["recipe"] == recipe_hash(from_plain(record["recipe"]))
            assert stage["reset_classifier"]
            assert len(record["auc"]["test"]) == 3  # the AUC by label, or one with its interval
            assert isinstance(record["auc"]["test"], dict) is (labels == "all")


def test_the_second_stage_begins_with_the_first_ones_weights(done):
    """Wherever PESG moved them to from there: nearer than another seed's network is."""
    place, _, _, _ = done
    records = records_of(place)

    def weights(study, seed):
        folder = place.runs / records[study, seed]["run"]
        return next(iter(Bundle.load(folder).network(folder).parameters())).detach().flatten()

    child = weights("S-Heart-auc_m", 0)
    assert (child - weights("S-stage1-ce", 0)).norm() < 0.5 * (child - weights("S-stage1-ce", 1)).norm()


def test_the_same_call_again_trains_nothing(done, monkeypatch):
    place, task, _, _ = done
    before = records_of(place)
    monkeypatch.setattr("deepauc.studies.running.execution.train", None)
    assert run_chest(DESIGN, task, place).done == 0
    assert records_of(place) == before


def test_records_of_a_time_when_linked_runs_were_no_studies_count(done, tmp_path, monkeypatch):
    place, task, _, _ = done
    elsewhere = replace(place, results=tmp_path / "results")
    later = ("config", "method", "fixed", "source", "cut", "selection")
    for record in records_of(place).values():
        RecordBook(elsewhere.results / "chest").add({k: v for k, v in record.items() if k not in later})
    found = status_of(set_of(DESIGN, task), set_of(DESIGN, task).studies, elsewhere.results)
    assert {(one.final, one.seeds, one.outdated) for one in found} == {(2, 2, 0)}
    monkeypatch.setattr("deepauc.studies.running.execution.train", None)
    run_chest(DESIGN, task, elsewhere)
    assert records_of(elsewhere) == records_of(place)


def test_a_lost_parent_is_trained_again_for_a_new_child(done, tmp_path):
    place, task, _, _ = done
    elsewhere = replace(
        place, runs=tmp_path / "runs", results=Path(shutil.copytree(place.results, tmp_path / "results"))
    )
    path = elsewhere.results / "chest.jsonl"
    lost = records_of(place)["S-Heart-auc_m", 0]["run"]
    path.write_text(
        "".join(line for line in path.read_text().splitlines(keepends=True) if f'"run":"{lost}"' not in line)
    )
    run_chest(replace(DESIGN, masked=False), task, elsewhere)
    assert len(list((tmp_path / "runs").iterdir())) == 2  # the child and its parent
    assert records_of(elsewhere)["S-Heart-auc_m", 0]["auc"] == records_of(place)["S-Heart-auc_m", 0]["auc"]


def test_side_by_side_gives_what_one_by_one_gives(done, tmp_path):
    place, task, _, _ = done
    elsewhere = Place(data=place.data, runs=tmp_path / "runs", results=tmp_path / "results")
    run_chest(replace(DESIGN, seeds=(0,), masked=False), task, elsewhere, cells=["*-auc_m"], pack=4)
    alone, packed = records_of(place), records_of(elsewhere)
    assert len(packed) == 5
    for (study, seed), record in packed.items():
        assert record["packed"] == (1 if record["labels"] == "all" else 3)
        assert read_scores(record).plain == pytest.approx(read_scores(alone[study, seed]).plain, abs=1e-3)


def test_what_there_is_no_time_for_is_left_to_the_next_call(done, tmp_path):
    place, task, _, _ = done
    elsewhere = Place(data=place.data, runs=tmp_path / "runs", results=tmp_path / "results")
    design = replace(DESIGN, seeds=(0,), masked=False)
    assert run_chest(design, task, elsewhere, max_minutes=1e-4).out_of_time
    assert not run_chest(design, task, elsewhere).out_of_time
    mine, whole = records_of(elsewhere), records_of(place)
    assert len(mine) == 9
    for key, record in mine.items():
        assert record["auc"] == whole[key]["auc"]  # resumed to the bit


def test_runs_that_see_other_rows_of_one_task_are_not_packed_together(done):
    place, task, _, _ = done
    labels = task.labels.copy()
    labels[task.part("train")[:40]] = -1  # all of them: whoever ignores uncertain labels has these rows no more
    for some, shapes in ((task, 1), (task.with_labels(labels), 2)):
        studies = [one for one in set_of(DESIGN, some).studies if one.group == "policy"]
        planner = MissingRuns(studies, RecordBook(place.results / "none"), place)
        runs = [planner.run(one, "final", one.configs[0], 0) for one in studies]
        assert len({run.shape for run in runs}) == shapes
        assert len({run.shape for run in runs[1:]}) == 1


def test_studies_that_are_tuned_do_not_start_from_one_another():
    task = Given(task=None)
    with pytest.raises(ValueError, match="only studies that are not tuned"):
        Study(name="s", task=task, method=METHODS["auc_m"], grid={"margin": (0.5, 1.0)}, starts_from="other")


def test_readers_beaten_by_the_ensemble(done):
    place, _, _, _ = done
    counts = json.loads((place.results / "chest" / "readers.json").read_text())
    # (1, 0) and (.9, .01) lie under every curve that is worth anything, (0, 1) under none.
    assert counts["auc_m, each disease"]["per_label"] == [1, 1, 0]
    assert counts["auc_m, all at once"]["mean"] == pytest.approx(2 / 3)
    assert "0.7 of 2" in PAGES["chest"].markdown(place.results)


def test_the_page_shows_labels_policies_and_the_mean(done):
    place, _, _, _ = done
    rows = table_rows(PAGES["chest"].markdown(place.results))
    records = list(records_of(place).values())
    scores = disease_ensembles(records, NAMES, "ce", apart=False)
    mean = np.mean([auroc(*both) for both in scores])
    (row,) = [row for row in rows if row[:3] == ["as declared", "at once", "CE"] and row[3] not in NAMES]
    assert row[6] == f"{mean:.3f}"
    patients = read_scores(records_of(place)["S-all-ce", 0]).groups
    drawn = auroc_interval(*scores[0], groups=patients, method="bootstrap", n_resamples=RESAMPLES)
    (row,) = [row for row in rows if row[:4] == ["as declared", "at once", "CE", NAMES[0]]]
    assert row[6] == f"[{float(drawn.low):.3f}, {float(drawn.high):.3f}]"
    own, base = ({r["seed"]: np.mean([v[0] for v in r["auc"]["test"].values()]) for r in records if r["study"] == name}
                 for name in ("S-all-auc_m", "S-all-ce"))  # fmt: skip
    gains = [own[seed] - base[seed] for seed in own]
    found = PAGES["chest"].summary(place.results)["medical"]["chest"]
    assert found["at_once"]["auc_m-ce"]["mean"] == pytest.approx(np.mean(gains), abs=1e-6)
    assert found["at_once"]["ce"]["ensemble"] == pytest.approx(mean, abs=1e-6)
    assert {row[0] for row in rows} >= {"smooth_ones", "ignore"}


def table_rows(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]


def test_a_label_that_is_missing_in_test_leaves_its_row_out(done):
    place, task, _, _ = done
    records = list(records_of(place).values())
    lengths = [len(truth) for _, truth in disease_ensembles(records, NAMES, "ce", apart=True)]
    assert lengths == [60, 59, 60]
    assert read_scores(records_of(place)["S-Heart-ce", 0]).plain.shape == (59,)
    assert len(one_disease(task, "Heart").part("test")) == 59


def test_a_label_with_one_class_in_test_is_refused_before_anything_is_trained(done, tmp_path):
    place, task, _, _ = done
    labels = task.labels.copy()
    labels[task.part("test"), NAMES.index("Water")] = 0
    elsewhere = Place(data=place.data, runs=tmp_path / "runs", results=tmp_path / "results")
    outcome = run_chest(replace(DESIGN, masked=False), task.with_labels(labels), elsewhere)
    assert "one class only of 'Water'" in outcome.unavailable["S-stage1-ce"]
    assert "S-stage1-ce" in outcome.unavailable["S-all-ce"]
    assert not (tmp_path / "runs").exists()


def test_masked_labels_are_half_positive_and_depend_on_the_seed_alone(spots_task):
    task = spots_task(label_names=NAMES)
    masked = mask_labels(task, share=0.3, seed=4)
    train = task.part("train")
    for column in range(len(NAMES)):
        hidden = train[masked.labels[train, column] == -1]
        truth = task.labels[hidden, column]
        assert (truth == 1).sum() == (truth == 0).sum() == round(0.3 * (task.labels[train, column] == 1).sum())
    others = np.setdiff1d(np.arange(len(task)), train)
    assert np.array_equal(masked.labels[others], task.labels[others], equal_nan=True)
    assert np.array_equal(mask_labels(task, share=0.3, seed=4).labels, masked.labels, equal_nan=True)
    assert not np.array_equal(mask_labels(task, share=0.3, seed=5).labels, masked.labels, equal_nan=True)
    with pytest.raises(ValueError, match="share"):
        mask_labels(task, share=0.0, seed=0)


def test_the_real_plan_is_the_papers():
    studies = {study.name: study for study in chest_set(REAL).studies}
    assert len(studies) == 5 * (1 + 4 * 6)
    recipes = {name: study.recipe({}, "final") for name, study in studies.items()}
    first = recipes["densenet121-stage1-ce"].stages[0]
    assert first.uncertain["Edema"] == "smooth_ones"
    assert first.uncertain["Cardiomegaly"] == "smooth_zeros"
    assert first.objective.soft_labels
    (single,) = recipes["densenet121-Pleural_Effusion-auc_m"].stages
    assert single.uncertain == {"Pleural Effusion": "zeros"}
    assert single.objective.margin == 0.8
    assert {recipe.model.name for recipe in recipes.values()} == set(CHEXPERT_NETWORKS)


def test_a_part_of_the_study_by_name_and_seed(done, tmp_path):
    place, task, _, _ = done
    elsewhere = Place(data=place.data, runs=tmp_path / "runs", results=tmp_path / "results")
    run_chest(with_settings(DESIGN, {}, (1,)), task, elsewhere, cells=["S-Heart-auc_m"])
    assert sorted(records_of(elsewhere)) == [("S-Heart-auc_m", 1), ("S-stage1-ce", 1)]  # with what it starts from
    assert records_of(elsewhere)["S-Heart-auc_m", 1]["auc"] == records_of(place)["S-Heart-auc_m", 1]["auc"]
    heart = records_of(place)["S-Heart-auc_m", 1]["auc"]["test"][0]
    (row,) = [row for row in table_rows(PAGES["chest"].markdown(elsewhere.results)) if row[3] == "Heart"]
    assert row[1:5] == ["apart", "AUC-M", "Heart", f"{heart:.3f}"]
    for record in records_of(place).values():
        if record["study"] in ("S-all-ce", "S-all-auc_m"):
            RecordBook(elsewhere.results / "chest").add(record)
    stages = {
        tuple(row[1:3]) for row in table_rows(PAGES["chest"].markdown(elsewhere.results)) if row[0] == "as declared"
    }
    assert stages == {("at once", "CE"), ("at once", "AUC-M")}
    with pytest.raises(ValueError, match="did you mean 'S-Heart-auc_m'"):
        run_chest(DESIGN, task, elsewhere, cells=["S-Hart-auc_m"])
    with pytest.raises(ValueError, match="distinct"):
        set_of(with_settings(DESIGN, {}, (1, 1)), task)


def test_other_settings_have_records_of_their_own(done, tmp_path):
    place, task, _, _ = done
    elsewhere = Place(data=place.data, runs=place.runs, results=Path(shutil.copytree(place.results, tmp_path / "r")))
    other = with_settings(DESIGN, {"gamma": 1 / 300, "losses": "auc_m"}, (0,))
    assert run_chest(other, task, elsewhere, cells=["S-all"]).done == 2
    assert records_of(elsewhere) == records_of(place)  # untouched
    book = RecordBook(elsewhere.results / "chest", other="gamma=0.00333333")
    (record,) = book.final("S-all-auc_m")
    assert record["recipe"]["stages"][0]["optimizer"]["gamma"] == 1 / 300
    assert record["changed"] == {"gamma": 1 / 300}
    (first,) = book.final("S-stage1-ce")
    assert first["run"] == records_of(place)["S-stage1-ce", 0]["run"]  # gamma is none of its settings: not trained anew
    settings = {row[0] for row in table_rows(PAGES["chest"].markdown(elsewhere.results)) if row[1:2] == ["at once"]}
    assert settings == {"as declared", "gamma 0.00333333"}


def test_settings_that_the_study_takes():
    real = REAL
    design = with_settings(real, {"views": "all", "losses": ["ce"], "networks": "densenet121,densenet169", "lr": 1})
    assert (design.views, design.losses, design.networks) == ("all", ("ce",), ("densenet121", "densenet169"))
    assert design.settings["lr"] == 1.0
    assert design.records == "chexpert/lr=1,views=all"
    assert [study.name for study in chest_set(replace(design, labels=("Edema",))).studies] == [
        f"{network}-{rest}"
        for network in ("densenet121", "densenet169")
        for rest in ("stage1-ce", "all-ce", "Edema-ce")
    ]
    assert with_settings(real, {"views": "frontal", "gamma": 1 / 500}).records == "chexpert"
    for several in ("52,210", [52, 210]):
        earlier = with_settings(real, {"milestones": several})
        assert (earlier.settings["milestones"], earlier.records) == ((52, 210), "chexpert/milestones=52,210")
    for given, message in (
        ({"view": "all"}, "did you mean 'views'"),
        ({"views": "lateral"}, "views must be"),
        ({"losses": "ce,mse"}, "not a known loss"),
        ({"losses": ""}, "another type"),
        ({"epochs": 1.5}, "another type"),
        ({"epochs": True}, "another type"),
        ({"gamma": "small"}, "another type"),
        ({"milestones": "52,late"}, "another type"),
        ({"pretrained": 0}, "another type"),
    ):
        with pytest.raises(ValueError, match=message):
            with_settings(real, given)
    assert with_settings(STAND_IN, {"networks": "R,S"}).masked
    assert not with_settings(STAND_IN, {"networks": "S"}).masked  # its policies would take the place of ResNet20's
    with pytest.raises(ValueError, match="not a known setting of chest"):
        with_settings(STAND_IN, {"views": "all"})


def test_large_images_are_not_packed():
    images = {side: (side, side, 1) for side in (28, 96, 128, 129, 320)}
    recipe = ce(network="densenet121", batch_size=32)
    assert [side_by_side(recipe, images[side]) for side in (28, 96, 128, 129, 320)] == [24, 24, 24, 1, 1]
    heavy = ce(network="densenet161", batch_size=256)
    # 256 images of 128 x 128 at 2,403 bytes a pixel: 9.4 GiB of the 16.
    assert side_by_side(heavy, images[128]) == 1
    assert side_by_side(ce(network="densenet161", batch_size=256, accumulate=8), images[128]) == 13
    assert side_by_side(ce(network="M"), (10,)) == 24
    packs = {study.name: pack_of(study) for one in (medical(), melanoma(), ddsm(), pcam()) for study in one.studies}
    assert packs["ddsm-D-auc_m"] == packs["melanoma-B3-256-ce"] == 1
    assert packs["melanoma-meta-ce"] == packs["isic-M-ce"] == packs["breast-R-paper-ce"] == 24
    (small,) = medical().chosen(["ham-D-32-ce"])
    large = replace(small, task=replace(small.task, size=64))
    assert 1 < pack_of(large) < packs["ham-R-64-ce"] < packs["ham-D-32-ce"] == 24
    assert 1 < packs["pcam-D-ce"] <= 24


def test_a_pack_that_does_not_fit_is_halved(done, tmp_path, monkeypatch):
    place, task, _, _ = done
    elsewhere = Place(data=place.data, runs=tmp_path / "runs", results=tmp_path / "results")
    packs = []

    def fits_alone(jobs, *, device):
        packs.append(len(jobs))
        if len(jobs) > 1:
            raise torch.OutOfMemoryError("too large")
        return train_together(jobs, device=device)

    monkeypatch.setattr(execution, "train_together", fits_alone)
    run_chest(DESIGN, task, elsewhere, cells=["S-stage1"], pack=2)
    assert packs == [2, 1, 1]
    assert {record["packed"] for record in records_of(elsewhere).values()} == {1}


@pytest.mark.data
def test_the_stand_in_on_the_real_file(data_root):
    task = NIHImages().load(0, tuning=False, place=Place(data=data_root))
    assert {part: len(rows) for part, rows in task.parts.items()} == {"train": 3040 + 924, "test": 1035}
    assert task.label_names == ("Cardiomegaly", "Edema", "Consolidation", "Atelectasis", "Effusion")
    train = task.part("train")
    masked = mask_labels(task, share=MASKED_SHARE, seed=0).labels[train]
    assert (masked == -1).sum(axis=0).tolist() == [2 * round(0.3 * n) for n in (168, 74, 166, 341, 401)]


@pytest.mark.data
def test_a_run_on_the_real_file_is_called_as_its_record_is(data_root):
    results = Path(__file__).parents[3] / "results"
    studies, place = chest_set(STAND_IN).studies, Place(data=data_root, results=results)
    planner = MissingRuns(studies, RecordBook(results / "chest"), place)
    runs = [planner.run(study, "final", study.configs[0], seed) for study in studies for seed in (0, 4)]
    assert all(planner.book.find(run.study.name, "final", run.id) is not None for run in runs)
    assert len({run.id for run in runs}) == 2 * 30
