"""`deepauc report --thumbnails` as a user types it."""

import json

import numpy as np
import pytest
from PIL import Image

from deepauc.cli.main import run


@pytest.fixture(scope="module")
def table(spots_task, tmp_path_factory):
    folder, task = tmp_path_factory.mktemp("table"), spots_task()
    for name, image in zip(task.ids, task.source(np.arange(len(task))), strict=True):
        Image.fromarray(image[..., 0]).save(folder / name)
    (folder / "data.csv").write_text("\n".join(["file", *task.ids]) + "\n")
    return folder / "data.csv"


@pytest.fixture
def deepauc(capsys):
    def call(*words):
        with pytest.raises(SystemExit) as end:
            run(["report", *map(str, words)])
        return end.value.code, *capsys.readouterr()

    return call


def test_they_are_there_when_asked_for(deepauc, run_folders, table, tmp_path):
    words = (run_folders / "auc", "--out", tmp_path, "--thumbnails", "--table", table, "--image-column", "file")
    code, out, err = deepauc(*words, "--cases", 1, "--json")
    assert (code, err) == (0, "")
    assert sum("thumbnail-" in name for name in json.loads(out)["figures"]) == 2
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert text.count('<img src="data:image/png;base64,') == 2
    assert "--thumbnails" in text  # the command that makes it again


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--thumbnails"], "name its table, --table data.csv --image-column file"),
        (["--table", "TABLE"], "are for --thumbnails"),
        (["--thumbnails", "--table", "TABLE", "--cases", "0"], "leave out one of the two"),
        (["--thumbnails", "--table", "TABLE"], "--image-column COLUMN"),
        (["--thumbnails", "--table", "TABLE", "--image-column", "fil"], "'file'"),
        (["--thumbnails", "--table", "OTHER", "--image-column", "file"], "Name the table that the run was trained on"),
    ],
)
def test_what_is_missing_is_said_in_one_line_and_nothing_is_written(deepauc, run_folders, table, tmp_path, words, part):
    (tmp_path / "other.csv").write_text("file\nelsewhere.png\n")
    names = {"TABLE": table, "OTHER": tmp_path / "other.csv"}
    code, out, err = deepauc(run_folders / "auc", "--out", tmp_path / "out", *(names.get(w, w) for w in words))
    assert code == 2
    assert out in ("", f"Writing the report of {run_folders / 'auc'}\n")
    assert len(err.splitlines()) == 1
    assert part in err
    assert not (tmp_path / "out").exists()


def test_the_help_says_whose_images_they_are(deepauc):
    _, out, _ = deepauc("--help")
    assert "patients' images" in " ".join(out.split())
    assert len(out.splitlines()) <= 30
