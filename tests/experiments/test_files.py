"""The files of experiments/ declare the repository's studies, each of them once."""

from pathlib import Path

from deepauc.studies.load import load_studies
from experiments import best, medical, objectives, paper, plan
from experiments.figures import entries

NAMES = ("paper", "best", "plan", "medical", "objectives")
FILES = [Path(__file__).parents[2] / "experiments" / f"{name}.py" for name in NAMES]


def test_every_study_is_in_one_file():
    declared = [name for path in FILES for name in load_studies(path).entries]
    assert sorted(declared) == sorted(entries())


def test_a_file_is_loaded_as_the_module_that_its_neighbours_import():
    for path, module in zip(FILES, (paper, best, plan, medical, objectives), strict=True):
        assert list(load_studies(path).entries.values()) == module.STUDIES
        assert module.__file__ == str(path)
