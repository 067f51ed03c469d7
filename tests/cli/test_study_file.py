"""`deepauc study` on a file of one's own: run with worker processes, status, table; errors in one line."""

import json

import pytest

from deepauc.cli.main import run

RECIPES = """
from deepauc import Recipe, Stage
from deepauc.models.build import MLPSpec
from deepauc.objectives.baselines import CrossEntropy
from deepauc.optim.standard import AdamSpec


def ce(*, lr=0.01, epochs=2):
    stage = Stage(objective=CrossEntropy(), optimizer=AdamSpec(lr=lr), epochs=epochs, batch_size=32)
    return Recipe(model=MLPSpec(), stages=(stage,))
"""
OWN = """
from dataclasses import dataclass

import numpy as np
from own_recipes import ce

from deepauc.data.imbalance import tuning_task
from deepauc.data.task import ArrayInputs, Task
from deepauc.studies.study import Study, StudySet


@dataclass(frozen=True)
class Clouds:
    apart: float
    needs = ()

    @property
    def name(self):
        return f"clouds {self.apart} apart"

    def load(self, seed, *, tuning, place):
        draw, labels = np.random.default_rng(seed), np.arange(300) % 5 == 0
        points = (draw.normal(size=(300, 2)) + self.apart * labels[:, None]).astype(np.float32)
        parts = {"train": np.arange(200), "test": np.arange(200, 300)}
        task = Task(name=self.name, kind="binary", source=ArrayInputs(points), labels=labels, label_names=("x",),
                    parts=parts)
        return tuning_task(task, seed=seed) if tuning else task

    def keep(self, run, task, *, device):
        return {}


STUDIES = [
    StudySet(
        name="clouds",
        title="Two clouds",
        studies=(
            Study(name="near", task=Clouds(0.5), method=ce, seeds=(0, 1), group="all"),
            Study(name="far", task=Clouds(3.0), method=ce, grid={"lr": (0.01, 0.03)}, seeds=(0, 1), group="all"),
        ),
    )
]
"""


def call(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        run(["study", *map(str, arguments)])
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


def test_a_file_of_ones_own_with_worker_processes(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_recipes.py").write_text(RECIPES)
    (tmp_path / "own.py").write_text(OWN)
    code, out, _ = call(capsys, "list", "own.py", "--json")
    assert (code, json.loads(out)["clouds"]["cells"]) == (0, ["near", "far"])
    code, out, err = call(capsys, "run", "own.py", "--jobs", "2", "--device", "cpu", "--json")
    assert (code, err) == (0, "")
    outcome = json.loads(out)
    assert (outcome["done"], outcome["failed"], outcome["unavailable"]) == (6, [], {})
    code, out, _ = call(capsys, "run", "own.py", "clouds", "--device", "cpu", "--json")
    assert (code, json.loads(out)["done"]) == (0, 0)
    code, out, _ = call(capsys, "status", "own.py", "--json")
    status = {one["study"]: (one["tuned"], one["final"]) for one in json.loads(out)["clouds"]}
    assert (code, status) == (0, {"near": (0, 2), "far": (2, 2)})
    code, out, _ = call(capsys, "table", "own.py", "--json")
    lines = (tmp_path / "results" / "clouds.md").read_text().splitlines()
    assert (code, lines[0]) == (0, "# Two clouds")
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    rows = {name: rest for name, *rest in cells}
    assert rows["near"][1:] == ["2", "-", "-"]
    assert rows["far"][2] in ("lr 0.01", "lr 0.03")
    assert float(rows["far"][0].split(" ± ")[0]) > float(rows["near"][0].split(" ± ")[0])


@pytest.mark.parametrize("command", ["list", "run", "status", "table"])
def test_a_file_that_does_not_load_is_one_line_and_exit_code_2(capsys, tmp_path, command):
    (tmp_path / "broken.py").write_text("STUDIES = [\n    undefined,\n]\n")
    for name, message in (("absent.py", "does not exist"), ("broken.py", "line 2: NameError: name 'undefined'")):
        code, out, err = call(capsys, command, tmp_path / name)
        assert (code, out, len(err.strip().splitlines())) == (2, "", 1)
        assert message in err
