"""Events for TensorBoard: the history's numbers and nothing else, once; without the package, a word before training."""

import csv
import sys
from pathlib import Path

import pytest

from deepauc.cli.main import run
from deepauc.training.run import tensorboard
from deepauc.training.run.tensorboard import SCALARS, summary_writer, write_events

ROWS = [
    {"stage": 0, "epoch": 0, "lr": 0.1, "loss": 0.7, "validation_auc": 0.6},
    {"stage": 0, "epoch": 1, "lr": 0.1, "loss": 0.5, "validation_auc": "nan"},
    {"stage": 1, "epoch": 0, "lr": 0.05, "loss": 0.2, "validation_auc": 0.8}
    | {"A_M": 0.3, "gap": 0.01, "a": 0.9, "b": 0.2, "alpha": 0.4, "alpha_zero_share": 0.5},
]


class FakeWriter:
    """What SummaryWriter does, on one line a scalar."""

    made = 0

    def __init__(self, log_dir):
        Path(log_dir).mkdir(parents=True, exist_ok=True)
        FakeWriter.made += 1
        self.file = (Path(log_dir) / f"events.out.tfevents.{FakeWriter.made}").open("w")

    def add_scalar(self, tag, value, step, walltime):
        assert walltime > 0
        self.file.write(f"{tag},{value},{step}\n")

    def close(self):
        self.file.close()


@pytest.fixture
def history(tmp_path):
    with (tmp_path / "history.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(ROWS[-1]), restval="")
        writer.writeheader()
        writer.writerows(ROWS)
    return tmp_path


@pytest.fixture
def not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)  # import then fails as for a missing package


def events(folder):
    (file,) = folder.iterdir()
    found = [line.split(",") for line in file.read_text().splitlines()]
    return {(tag, int(step)): float(value) for tag, value, step in found}


def test_the_history_is_written_once_however_often(history, monkeypatch):
    monkeypatch.setattr(tensorboard, "summary_writer", lambda: FakeWriter)
    folder = write_events(history)
    assert folder == history / "tensorboard"
    expected = {
        (tag, step): float(row[column])
        for step, row in enumerate(ROWS, start=1)
        for column, tag in SCALARS.items()
        if column in row and row[column] != "nan"
    }
    assert len(expected) == 13
    assert events(folder) == expected
    assert write_events(history) == folder
    assert events(folder) == expected


def test_nothing_else_in_the_folder_is_touched(history, monkeypatch):
    monkeypatch.setattr(tensorboard, "summary_writer", lambda: FakeWriter)
    (history / "tensorboard").mkdir()
    (history / "tensorboard" / "notes.txt").write_text("mine")
    write_events(history)
    write_events(history)
    assert len(list((history / "tensorboard").iterdir())) == 2
    assert (history / "tensorboard" / "notes.txt").read_text() == "mine"


def test_without_a_history(tmp_path, monkeypatch):
    monkeypatch.setattr(tensorboard, "summary_writer", lambda: FakeWriter)
    with pytest.raises(ValueError, match=r"history\.csv does not exist"):
        write_events(tmp_path)
    assert not list(tmp_path.iterdir())


def test_without_the_package(history, not_installed):
    for call in (summary_writer, lambda: write_events(history)):
        with pytest.raises(ValueError, match=r"pip install 'deepauc\[tensorboard\]'"):
            call()
    assert not (history / "tensorboard").exists()


def write_table(folder):
    lines = ["x,y,target", *(f"{i},{i % 5 + (i % 3 == 0) * 3},{int(i % 3 == 0)}" for i in range(90))]
    (folder / "data.csv").write_text("\n".join(lines) + "\n")
    columns = ("--feature-column", "x", "--feature-column", "y", "--label-column", "target")
    return ["train", "--table", str(folder / "data.csv"), *columns, "--out", str(folder / "run"), "--epochs", "2"]


def test_train_says_so_before_it_starts(tmp_path, not_installed, capsys):
    with pytest.raises(SystemExit) as stopped:
        run([*write_table(tmp_path), "--tensorboard"])
    said = capsys.readouterr()
    assert stopped.value.code == 2
    assert said.err == "deepauc: TensorBoard is not installed: pip install 'deepauc[tensorboard]'.\n"
    assert said.out == ""
    assert not (tmp_path / "run").exists()


def test_train_writes_those_of_each_fold(tmp_path, monkeypatch):
    monkeypatch.setattr(tensorboard, "summary_writer", lambda: FakeWriter)
    with pytest.raises(SystemExit) as stopped:
        run([*write_table(tmp_path), "--quiet", "--tensorboard", "--folds", "2"])
    assert stopped.value.code == 0
    folders = sorted(path.parent.name for path in (tmp_path / "run").rglob("tensorboard"))
    assert folders == ["fold-1", "fold-2"]


def test_train_writes_them_and_again(tmp_path, monkeypatch):
    monkeypatch.setattr(tensorboard, "summary_writer", lambda: FakeWriter)
    monkeypatch.setattr("deepauc.pipeline.outcome.write_report", lambda *_, **__: None)
    words = [*write_table(tmp_path), "--quiet", "--tensorboard", "--folds", "0"]
    found = []
    for _ in range(2):
        with pytest.raises(SystemExit) as stopped:
            run(words)
        assert stopped.value.code == 0
        found.append(events(tmp_path / "run" / "tensorboard"))
    assert found[0] == found[1]
    assert ("validation/auc", 1) in found[0]
    assert any(tag == "auc_loss/alpha" for tag, _ in found[0])


def test_the_real_writer(history):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs the extra tensorboard"
    )
    for _ in range(2):
        folder = write_events(history)
        read = accumulator.EventAccumulator(str(folder)).Reload()
        assert [event.step for event in read.Scalars("validation/auc")] == [1, 3]
        assert [event.value for event in read.Scalars("train/loss")] == pytest.approx([0.7, 0.5, 0.2])
