"""The demo's first run: the figures are those of the run, the printed command is that run, only own files go."""

import ast
import inspect
import json
import shlex
import shutil
from dataclasses import astuple

import pytest

from deepauc.cli import demo_first_run, training_run
from deepauc.cli.console import Output
from deepauc.cli.demo_first_run import FirstRunSettings, require_replaceable, run_first
from deepauc.cli.main import run as deepauc
from deepauc.demo.digits_table import write_digits_table
from deepauc.pipeline import outcome
from deepauc.pipeline.fit import fit as fit_function
from deepauc.training.run.run import Run

SETTINGS = FirstRunSettings(epochs=2, model="small-cnn")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A whole first run, the real report included."""
    out = tmp_path_factory.mktemp("demo")
    table = write_digits_table(out / demo_first_run.TABLE_FOLDER)
    return out, run_first(out, table, SETTINGS, Output(quiet=True))


@pytest.fixture
def copy(made, tmp_path):
    return shutil.copytree(made[0] / demo_first_run.RUN_FOLDER, tmp_path / demo_first_run.RUN_FOLDER)


def without_report(monkeypatch):
    def write(run_dir, *, command):
        (run_dir / "report.html").write_text("<p>new report")

    monkeypatch.setattr(outcome, "write_report", write)


def test_figures_are_those_of_the_run(made):
    out, result = made
    run = Run(out / demo_first_run.RUN_FOLDER)
    for part in demo_first_run.PARTS:
        assert astuple(result.auc[result.kept][part]) == pytest.approx(astuple(run.auc(part)["target"]))
    guard = run.record.plain["results"]["guard"]
    for number, stage in enumerate(result.auc):
        assert float(result.auc[stage]["validation"].value) == pytest.approx(guard["validation_auc"][str(number)])
    assert result.report.read_text(encoding="utf-8").lstrip().lower().startswith("<!doctype html>")


def test_the_row_that_validation_prefers_is_marked_as_kept(made):
    _, result = made
    rows = demo_first_run.rows(result)
    assert [row[0] for row in rows] == ["CE", "AUC-M"]
    assert [row[0] for row in rows if row[-1] == "yes"] == [result.kept]
    values = {stage: float(auc["validation"].value) for stage, auc in result.auc.items()}
    assert result.kept == ("AUC-M" if values["AUC-M"] >= values["CE"] else "CE")


def test_the_printed_command_is_this_run(made, capsys):
    """Typed as printed, `deepauc train` finds its own run finished: same data, recipe and seed."""
    out, result = made
    words = shlex.split(result.command)
    assert words[:2] == ["deepauc", "train"]
    with pytest.raises(SystemExit) as end:
        deepauc([*words[1:], "--json"])
    assert end.value.code == 0
    said = json.loads(capsys.readouterr().out)
    assert said["state"] == "finished"
    assert said["run"] == str(out / demo_first_run.RUN_FOLDER)


def test_the_printed_call_of_fit_takes_the_table_of_this_run(made):
    out, result = made
    call = demo_first_run.python_call(result.table)
    (fit,) = [
        node
        for node in ast.walk(ast.parse(call))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "deepauc.fit"
    ]
    given = {word.arg: word.value.value for word in fit.keywords}
    settings = Run(out / demo_first_run.RUN_FOLDER).record.data
    assert fit.args[0].value == str(result.table)
    assert (given["image"], given["split"]) == (settings.image_column, settings.split_column)
    assert (given["label"],) == settings.label_columns
    assert set(given) <= set(inspect.signature(fit_function).parameters)
    assert call in demo_first_run.section(result, out)


def test_again_with_another_seed_replaces_the_run(made, tmp_path, monkeypatch):
    without_report(monkeypatch)
    out = shutil.copytree(made[0], tmp_path / "demo")
    table = write_digits_table(out / demo_first_run.TABLE_FOLDER)
    second = run_first(out, table, FirstRunSettings(seed=1, epochs=1, model="small-cnn"), Output(quiet=True))
    assert "--seed 1" in second.command
    assert Run(out / demo_first_run.RUN_FOLDER).record.plain["identity"]["seed"] == 1
    assert second.report.read_text() == "<p>new report"
    assert not (out / demo_first_run.RUN_FOLDER / "report-figures").exists()  # nothing is left of the first


def test_an_unfinished_run_goes_on_and_other_runs_do_not(made, tmp_path, monkeypatch):
    out = shutil.copytree(made[0], tmp_path / "demo")
    folder = out / demo_first_run.RUN_FOLDER
    (folder / "DONE").unlink()
    record = json.loads((folder / "run.json").read_text())
    here = record["command"].replace(str(made[0]), str(out))
    (folder / "run.json").write_text(json.dumps({**record, "command": here}))
    asked = []
    monkeypatch.setattr(training_run, "run_training", lambda *_, out, **__: asked.append((out / "run.json").exists()))
    monkeypatch.setattr(demo_first_run, "_result", lambda *_: None)
    table = write_digits_table(out / demo_first_run.TABLE_FOLDER)
    run_first(out, table, SETTINGS, Output(quiet=True))
    run_first(out, table, FirstRunSettings(seed=1), Output(quiet=True))
    assert asked == [True, False]


def test_a_folder_of_the_demo_can_be_replaced(copy, tmp_path):
    require_replaceable(copy)
    require_replaceable(tmp_path / "nothing there")
    (tmp_path / "empty").mkdir()
    require_replaceable(tmp_path / "empty")


@pytest.mark.parametrize("name", ["notes.txt", "baseline/notes.txt", "report-figures/notes.txt", "mine/run.json"])
def test_a_strange_file_stops_the_demo(copy, name):
    (copy / name).parent.mkdir(exist_ok=True)
    (copy / name).write_text("mine")
    with pytest.raises(ValueError, match=r"was not made by the demo\. Move it away"):
        require_replaceable(copy)
    assert (copy / name).read_text() == "mine"


@pytest.mark.parametrize("content", ['{"command": "deepauc train --out first-run"}', "[]", "{", None])
def test_a_run_of_the_users_stops_the_demo(copy, content):
    (copy / "run.json").unlink()
    if content is not None:
        (copy / "run.json").write_text(content)
    with pytest.raises(ValueError, match="was not made by the demo"):
        require_replaceable(copy)
    assert (copy / "model.safetensors").exists()


def test_a_link_or_a_file_stops_the_demo(copy, tmp_path):
    (tmp_path / "link").symlink_to(copy)
    (tmp_path / "file").write_text("mine")
    for name in ("link", "file"):
        with pytest.raises(ValueError, match="not a folder of the demo"):
            require_replaceable(tmp_path / name)
