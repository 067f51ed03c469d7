"""What the tests of the commands share: a call, a small table, a run without its report."""

import csv
import os
import signal
from itertools import count
from pathlib import Path

import pytest

from deepauc.cli.main import run
from deepauc.cli.training_progress import TrainingProgress
from deepauc.pipeline import outcome


@pytest.fixture
def deepauc(capsys, one_as_many):
    """Run the command; (exit code, stdout, stderr).

    The tables here are small, and `train` would cross-validate them: one split is meant unless a test names folds.
    """

    def call(*words):
        if words[0] == "train" and "--folds" not in words:
            words = (*words, "--folds", 0)
        with pytest.raises(SystemExit) as end:
            run(list(map(str, words)))
        said, errors = capsys.readouterr()
        assert not one_as_many(f"{said}\n{errors}")
        return end.value.code, said, errors

    return call


@pytest.fixture
def no_report(monkeypatch):
    """The report is slow and has tests of its own."""

    def write(run_dir, *, command):
        (Path(run_dir) / "report.html").write_text("<p>report")

    monkeypatch.setattr(outcome, "write_report", write)


@pytest.fixture
def interrupt_at(monkeypatch):
    """Ctrl-C once, when training has told of its n-th step."""

    def arm(step):
        told, shown = count(1), TrainingProgress.__call__

        def press(self, *what):
            if next(told) == step:
                os.kill(os.getpid(), signal.SIGINT)
            shown(self, *what)

        monkeypatch.setattr(TrainingProgress, "__call__", press)

    return arm


@pytest.fixture(scope="session")
def write_table():
    """Write rows (dicts) as a csv file; its path."""

    def write(path, rows):
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        return path

    return write
