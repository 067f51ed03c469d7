"""Every study that `deepauc study list` names is wired up: its page, its rows, its packs, before a run has ended."""

import json
from dataclasses import replace

import pytest

from deepauc.training.plain import from_plain, recipe_hash, to_plain
from experiments.clinical.packs import _OWN_SIDES, _TABLES, pack_of
from experiments.clinical.tasks import DATASETS, MedicalSource
from experiments.figures import entries

MEDICAL = [entry for entry in entries().values() if entry.pack is pack_of]


@pytest.mark.parametrize("name", entries())
def test_a_page_can_be_made_before_anything_has_run(name, tmp_path):
    """A part of it that is missing would be missed when the last of the runs has ended."""
    entry = entries()[name]
    text = entry.markdown(tmp_path)
    assert text.startswith("# ")
    assert entry.figures(tmp_path) == {}
    assert entry.pictures(tmp_path) == []


@pytest.mark.parametrize("name", [name for name, entry in entries().items() if entry.studies is not None])
def test_every_recipe_travels(name):
    """From its record comes the recipe whose hash names the run."""
    for study in entries()[name].studies.studies:
        for config in study.configs:
            recipe = study.recipe(config, "tuning" if study.tuned else "final")
            again = from_plain(json.loads(json.dumps(to_plain(recipe))))
            assert recipe_hash(again) == recipe_hash(recipe)


def test_every_medical_data_set_is_known_to_the_packs():
    assert {*_OWN_SIDES, *_TABLES} == set(DATASETS)
    (study, *_) = MEDICAL[0].studies.studies
    with pytest.raises(ValueError, match="'spots' is not a known data set of"):
        pack_of(replace(study, task=MedicalSource(dataset="spots")))
    assert pack_of(replace(study, task=MedicalSource(dataset="spots", size=64))) >= 1
