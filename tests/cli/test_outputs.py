"""What the commands write to, that their scores are numbers, and that a run's files are its own."""

import csv
import hashlib
import json
import os
import shutil
import stat
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from deepauc.data.export import export_task
from deepauc.data.task import ArrayInputs, Task
from deepauc.models.build import MLPSpec
from deepauc.objectives.baselines import CrossEntropy
from deepauc.optim.standard import SGDSpec
from deepauc.training.engine.loop import train
from deepauc.training.predict.known_rows import split_like
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.run.folder import RunFolder

unix = pytest.mark.skipif(sys.platform == "win32", reason="links, pipes and devices as Linux and macOS have them")
NAMES = ["=1+1", "-1.5", "@x", "+cmd|' /C calc'!A0", "\tx", "plain"]


def made_of():
    """Recipe, task and notes of a run on numbers."""
    generator = np.random.default_rng(0)
    features = generator.normal(size=(80, 2)).astype(np.float32)
    task = Task(
        name="numbers",
        kind="binary",
        source=ArrayInputs(features),
        labels=(features[:, 0] + generator.normal(size=80) > 0).astype(np.float32),
        label_names=("y",),
        parts={"train": np.arange(40), "validation": np.arange(40, 60), "test": np.arange(60, 80)},
        ids=np.array([f"r{row}" for row in range(80)]),
    )
    stages = (Stage(objective=CrossEntropy(), optimizer=SGDSpec(lr=0.05), epochs=1, batch_size=16),)
    recipe = Recipe(model=MLPSpec(hidden=(4,)), stages=stages)
    notes = {"data": {"feature_columns": ["a", "b"], "id_column": "id"}}
    return recipe, task, notes


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two runs on the same numbers, by different seeds, and a table with nasty ids."""
    root = tmp_path_factory.mktemp("made")
    recipe, task, notes = made_of()
    for seed, name in enumerate(("one", "two")):
        train(recipe, task, seed=seed, run_dir=root / name, notes=notes)
    with (root / "new.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "a", "b"], *([name, row, -row] for row, name in enumerate(NAMES))])
    return root


@pytest.fixture
def run(made, tmp_path):
    return shutil.copytree(made / "one", tmp_path / "run")


@pytest.fixture
def predict(deepauc, made):
    def call(run, out, *words, table=None):
        return deepauc("predict", run, "--table", table or made / "new.csv", "--id-column", "id", "--out", out, *words)

    return call


def ids(path):
    with path.open(newline="") as file:
        return [row["id"] for row in csv.DictReader(file)]


@unix
@pytest.mark.parametrize("command", ["predict", "card"])
def test_pipes_and_links_stay_and_get_the_bytes(deepauc, predict, made, tmp_path, command):
    def write(out):
        return predict(made / "one", out) if command == "predict" else deepauc("export", made / "one", "--card", out)

    assert write(tmp_path / "plain")[0] == 0
    expected = (tmp_path / "plain").read_bytes()
    pipe, found = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()), daemon=True)
    reader.start()
    assert write(pipe)[0] == 0
    reader.join(20)
    assert found == [expected]
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    (tmp_path / "link").symlink_to("target")
    assert write(tmp_path / "link")[0] == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == expected
    assert write("/dev/null")[0] == 0
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    code, _, errors = write(tmp_path)
    assert (code, len(errors.splitlines())) == (2, 1)
    assert "is a folder" in errors
    code, text, errors = write("-")
    assert code == 0
    assert text.encode() == expected
    assert "not a medical device" in errors.lower()
    assert sorted(os.listdir(tmp_path)) == ["link", "pipe", "plain", "target"]


def test_stdout_is_not_for_two(predict, made):
    code, text, errors = predict(made / "one", "-", "--json")
    assert (code, text) == (2, "")
    assert "leave out --json" in errors


@unix
def test_a_report_is_written_through_its_links(deepauc, made, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "report.html").symlink_to("../page.html")
    assert deepauc("report", made / "one", "--out", tmp_path / "out")[0] == 0
    assert (tmp_path / "out" / "report.html").is_symlink()
    assert "<html" in (tmp_path / "page.html").read_text()


def test_rows_without_a_finite_score_are_named(predict, made, tmp_path):
    table = tmp_path / "extreme.csv"
    table.write_text("id,a,b\nfine,1,1\nhuge,3e38,-3e38\nalso,-3e38,3e38\n")
    (tmp_path / "scores.csv").write_text("old")
    code, _, errors = predict(made / "one", tmp_path / "scores.csv", table=table)
    assert (code, len(errors.splitlines())) == (2, 1)
    assert "2 of 3 rows are NaN or infinite (huge, also)" in errors
    assert (tmp_path / "scores.csv").read_text() == "old"


def unrecorded(run):
    """An older run folder, whose run.json has no hashes."""
    record = json.loads((run / "run.json").read_text())
    del record["sha256"]
    (run / "run.json").write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("name", "number"),
    [
        *(("std", number) for number in ("0", "-1.0", "1e-300", "1e300", "NaN", "Infinity", "-Infinity")),
        *(("mean", number) for number in ("1e300", "NaN", "Infinity", "-Infinity")),
    ],
)
def test_a_bundle_with_numbers_that_cannot_work_is_refused(predict, run, tmp_path, name, number):
    unrecorded(run)
    plain = json.loads((run / "bundle.json").read_text())
    plain["preprocessing"][name][1] = float(number)
    (run / "bundle.json").write_text(json.dumps(plain))
    code, _, errors = predict(run, tmp_path / "scores.csv")
    assert code == 2
    assert "no input can be standardised by" in errors
    assert not (tmp_path / "scores.csv").exists()


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(deepauc, predict, run, tmp_path, number):
    unrecorded(run)
    state = load_file(run / "model.safetensors")
    name = sorted(state)[-1]
    state[name].view(-1)[-1] = number
    save_file(state, run / "model.safetensors")
    for code, _, errors in (
        predict(run, tmp_path / "scores.csv"),
        deepauc("export", run, "--bundle", tmp_path / "bundle"),
    ):
        assert code == 2
        assert f"the tensor {name!r} holds NaN or infinity" in errors
    assert os.listdir(tmp_path) == ["run"]


def edit_scores(run):
    with (run / "scores.csv").open("a") as file:
        file.write("extra,test,,1,0.5\n")


def test_a_finished_run_knows_its_files(made):
    record = json.loads((made / "one" / "run.json").read_text())
    assert sorted(record["sha256"]) == ["bundle.json", "model.safetensors", "scores.csv"]


@pytest.mark.parametrize("name", ["model.safetensors", "bundle.json"])
def test_the_network_of_another_run_is_refused(deepauc, predict, made, run, tmp_path, name):
    shutil.copyfile(made / "two" / name, run / name)
    calls = [
        lambda *force: predict(run, tmp_path / "scores.csv", *force),
        lambda *force: deepauc("export", run, "--bundle", tmp_path / "bundle", *force),
        lambda *force: deepauc("export", run, "--card", tmp_path / "card.md", *force),
    ]
    for call in calls:
        code, _, errors = call()
        assert (code, len(errors.splitlines())) == (2, 1)
        assert f"{run / name} is not the file that this run wrote" in errors
    assert os.listdir(tmp_path) == ["run"]
    for call in calls:
        code, text, _ = call("--force")
        assert code == 0
        assert f"Caution. {run / name} is not the file that this run wrote" in text
    assert "**Caution.**" in (tmp_path / "card.md").read_text()
    shutil.rmtree(tmp_path / "bundle")
    unrecorded(run)
    for call in calls:  # a run of an older release says nothing
        code, text, _ = call()
        assert code == 0
        assert "is not the file" not in text


def test_edited_scores_are_refused(deepauc, predict, made, run, tmp_path):
    edit_scores(run)
    out = tmp_path / "report"
    calls = [
        lambda *force: deepauc("report", run, "--out", out, *force),
        lambda *force: deepauc("report", made / "two", "--baseline", run, "--out", tmp_path / "other", *force),
        lambda *force: deepauc("evaluate", run / "scores.csv", *force),
        lambda *force: deepauc("compare", made / "two" / "scores.csv", run / "scores.csv", "--common", *force),
        lambda *force: deepauc("export", run, "--card", tmp_path / "card.md", *force),
        lambda *force: predict(run, tmp_path / "parts.csv", "--parts", *force, table=tmp_path / "known.csv"),
    ]
    (tmp_path / "known.csv").write_text("id,a,b\nr1,0,0\n")
    for call in calls:
        code, _, errors = call()
        assert (code, len(errors.splitlines())) == (2, 1)
        assert f"{run / 'scores.csv'} is not the file that this run wrote" in errors
    assert sorted(os.listdir(tmp_path)) == ["known.csv", "run"]
    for call in calls:
        code, text, _ = call("--force")
        assert code == 0
        assert f"Caution. {run / 'scores.csv'} is not the file that this run wrote" in text
    assert "is not the file that this run wrote" in (out / "report.md").read_text()


@pytest.mark.parametrize("name", ["scores.csv", "model.safetensors"])
def test_what_a_command_does_not_use_is_told_of(deepauc, predict, made, run, tmp_path, name):
    if name == "scores.csv":
        edit_scores(run)
        calls = [predict(run, tmp_path / "new.csv"), deepauc("export", run, "--bundle", tmp_path / "bundle")]
    else:
        shutil.copyfile(made / "two" / name, run / name)
        calls = [
            deepauc("report", run, "--out", tmp_path / "report"),
            deepauc("evaluate", run / "scores.csv"),
            deepauc("compare", made / "two" / "scores.csv", run / "scores.csv"),
        ]
        assert "is not the file that this run wrote" in (tmp_path / "report" / "report.md").read_text()
    for code, text, _ in calls:
        assert code == 0
        assert text.count(f"{run / name} is not the file that this run wrote") == 1
    shutil.copyfile(run / "scores.csv", run / "mine.csv")
    assert "is not the file" not in deepauc("evaluate", run / "mine.csv")[1]


def test_csv_files_beside_any_run_json_are_read(deepauc, made, tmp_path):
    shutil.copyfile(made / "one" / "scores.csv", tmp_path / "scores.csv")
    for text in ("{", "[]", '{"sha256": 3}', '{"sha256": {"other.csv": "0"}}'):
        (tmp_path / "run.json").write_text(text)
        assert deepauc("evaluate", tmp_path / "scores.csv")[0] == 0


def test_ids_are_as_they_were_unless_a_spreadsheet_is_meant(predict, made, tmp_path):
    assert predict(made / "one", tmp_path / "plain.csv")[0] == 0
    assert predict(made / "one", tmp_path / "safe.csv", "--spreadsheet-safe")[0] == 0
    plain, safe = ids(tmp_path / "plain.csv"), ids(tmp_path / "safe.csv")
    assert "=1+1" in plain
    changed = {one: other for one, other in zip(plain, safe, strict=True) if one != other}
    assert changed == {name: f"'{name}" for name in plain if name[0] in "=+@\t"}
    assert "-1.5" in safe  # a number stays one
    with (tmp_path / "plain.csv").open() as one, (tmp_path / "safe.csv").open() as other:
        for first, second in zip(csv.DictReader(one), csv.DictReader(other), strict=True):
            assert first["score"] == second["score"]


def test_a_run_killed_before_it_is_done_ends_with_the_hashes_of_what_it_wrote(made, tmp_path, monkeypatch):
    def kill(_):
        raise KeyboardInterrupt

    recipe, task, notes = made_of()
    with monkeypatch.context() as killed:
        killed.setattr(RunFolder, "finish", kill)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, task, seed=0, run_dir=tmp_path / "run", notes=notes)
    edit_scores(tmp_path / "run")  # what is there is written again
    train(recipe, task, seed=0, run_dir=tmp_path / "run", notes=notes)
    digests = json.loads((tmp_path / "run" / "run.json").read_text())["sha256"]
    for name, digest in digests.items():
        content = (tmp_path / "run" / name).read_bytes()
        assert content == (made / "one" / name).read_bytes()
        assert digest == hashlib.sha256(content).hexdigest()


def test_training_does_not_start_from_or_split_like_mixed_up_files(made, run, tmp_path):
    recipe, task, _ = made_of()
    shutil.copyfile(made / "two" / "model.safetensors", run / "model.safetensors")
    later = replace(recipe, stages=(replace(recipe.stages[0], start_from=str(run)),))
    with pytest.raises(ValueError, match=r"model.safetensors is not the file that this run wrote"):
        train(later, task, seed=0, run_dir=tmp_path / "later")
    edit_scores(run)
    with pytest.raises(ValueError, match=r"scores.csv is not the file that this run wrote"):
        split_like(task, run)


@unix
def test_a_data_set_is_exported_through_a_link(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    images = ArrayInputs(np.zeros((2, 4, 4, 1), dtype=np.uint8))
    labels = np.array([0.0, 1.0], dtype=np.float32)
    task = Task(
        name="t", kind="binary", source=images, labels=labels, label_names=("y",), parts={"train": np.arange(2)}
    )
    export_task(task, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "empty" / "table.csv").is_file()


@unix
@pytest.mark.parametrize("command", [("pack",), ("pack", "--overwrite"), ("export",)])
@pytest.mark.parametrize("there", ["pipe", "link to nowhere"])
def test_data_sets_are_written_to_folders(deepauc, made, tmp_path, command, there):
    out, words = tmp_path / "out", ["--label-column", "a", "--feature-column", "b"]
    if there == "pipe":
        os.mkfifo(out)
    else:
        out.symlink_to("nowhere")
    code, _, err = deepauc("data", command[0], made / "new.csv", "--out", out, *words[: 4 * ("pack" in command)])
    assert code == 2
    assert f"{out} is a {'file' if there == 'pipe' else 'link'}" in err
    assert not (tmp_path / "nowhere").exists()
