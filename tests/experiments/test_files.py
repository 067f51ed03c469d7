"""The files of experiments/ declare the repository's studies, each of them once."""

import re
from pathlib import Path

import pytest

from deepauc.studies.load import load_studies
from experiments import best, medical, objectives, paper, plan, pretrained
from experiments.figures import entries

MODULES = {
    "paper": paper,
    "best": best,
    "plan": plan,
    "medical": medical,
    "objectives": objectives,
    "pretrained": pretrained,
}
FILES = [Path(__file__).parents[2] / "experiments" / f"{name}.py" for name in MODULES]


def test_every_study_is_in_one_file():
    declared = [name for path in FILES for name in load_studies(path).entries]
    assert sorted(declared) == sorted(entries())


def test_a_file_is_loaded_as_the_module_that_its_neighbours_import():
    for path, module in zip(FILES, MODULES.values(), strict=True):
        assert list(load_studies(path).entries.values()) == module.STUDIES
        assert module.__file__ == str(path)


README = Path(__file__).parents[2] / "experiments" / "README.md"
CALLS = re.findall(r"(\w+)\.py (\S+) '([^']+)'", README.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("file", "name", "cells"), CALLS)
def test_the_order_of_work_names_cells_that_exist(file, name, cells):
    entry = {one.name: one for one in MODULES[file].STUDIES}[name]
    assert entry.studies.chosen(cells.split(","))


def test_the_order_of_work_is_read():
    assert {"released", "fair", "pretrained"} <= {name for _, name, _ in CALLS}
