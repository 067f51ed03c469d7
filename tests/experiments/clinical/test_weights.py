"""Pretrained weights that are not on this machine: told before anything is trained, once for each study."""

from dataclasses import replace
from pathlib import Path

import pytest

from deepauc.models import build
from deepauc.models.pretrained import FoundWeights
from deepauc.studies.records.book import RecordBook
from deepauc.studies.running.missing import MissingRuns, weights_not_here
from deepauc.studies.running.runner import run_studies
from deepauc.studies.sources import Place
from deepauc.studies.study import Study
from experiments.clinical.chest import STAND_IN, chest_set
from experiments.clinical.recipes import METHODS

ce = METHODS["ce"]

HERE, NOT_HERE = "test_resnet", "test_efficientnet"  # timm's own, small


@pytest.fixture
def cache(monkeypatch):
    """One network's weights are there; looked for by name alone."""

    def look(name):
        if name != HERE:
            raise ValueError(f"the weights of {name} are not on this machine")
        return FoundWeights(file=Path("w.safetensors"), source="file", origin="here", licence=None)

    monkeypatch.setattr(build, "find_weights", look)


def test_all_networks_of_the_chest_study_are_looked_for(cache, tmp_path):
    design = replace(STAND_IN, networks=(HERE, NOT_HERE), pretrained=True, masked=False, seeds=(0,), losses=("ce",))
    told = weights_not_here(chest_set(design).studies, RecordBook(tmp_path / "chest"))
    assert told == [f"the weights of {NOT_HERE} are not on this machine"]
    misspelt = replace(design, networks=("test_resnt",), pretrained=False)
    (told,) = weights_not_here(chest_set(misspelt).studies, RecordBook(tmp_path / "chest"))
    assert "timm has no network named 'test_resnt'" in told


def test_a_file_of_weights_that_is_not_there_is_told(tmp_path):
    spec = build.TimmSpec(name=HERE, weights=str(tmp_path / "w.safetensors"))
    with pytest.raises(ValueError, match="does not exist"):
        spec.require_files()
    (tmp_path / "w.safetensors").touch()
    spec.require_files()  # what is in it is read when the network is built


def test_studies_that_are_complete_need_no_weights(cache, tmp_path):
    (study,) = [
        Study(name="s", task=Spots(None), method=ce, fixed={"network": NOT_HERE, "pretrained": True}, seeds=(0,))
    ]
    assert len(weights_not_here([study], RecordBook(tmp_path))) == 1
    RecordBook(tmp_path).add({"study": "s", "seed": 0, "phase": "final", "run": "r"})
    assert weights_not_here([study], RecordBook(tmp_path)) == []


class Spots:
    """One small task for every seed."""

    name, needs = "spots", ()

    def __init__(self, task):
        self.task = task

    def load(self, seed, *, tuning, place):
        return self.task


def test_a_study_without_its_weights_is_told_once_and_costs_no_run(cache, tmp_path, spots_task):
    source = Spots(spots_task())
    studies = [
        Study(name=name, task=source, method=ce, fixed={"network": name, "pretrained": True}, seeds=(0, 1))
        for name in (HERE, NOT_HERE)
    ]
    place = Place(runs=tmp_path / "runs", results=tmp_path / "results")
    outcome = run_studies("s", studies[1:], place=place, device="cpu")
    assert outcome.failed == []
    assert outcome.unavailable == {NOT_HERE: f"the weights of {NOT_HERE} are not on this machine"}
    book = RecordBook(tmp_path / "results" / "s")
    planner = MissingRuns(studies, book, place)
    assert [run.study.name for run in planner.ready()] == [HERE, HERE]
    assert len(MissingRuns(studies, book, place).expected(NOT_HERE)) == 2  # a display counts them, whatever they miss
    elsewhere = MissingRuns(
        studies[1:], book, place, trains_here=False
    )  # a cluster's machines have weights of their own
    assert len(elsewhere.ready()) == 2
