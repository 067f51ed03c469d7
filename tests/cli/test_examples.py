"""`--examples` of `train` and of `report`, as a user types it."""

import json

import numpy as np
import pytest
from PIL import Image


@pytest.fixture(scope="module")
def trained(tmp_path_factory, write_table):
    """A table of images, and where its run goes."""
    folder, generator, rows = tmp_path_factory.mktemp("examples"), np.random.default_rng(0), []
    for number in range(60):
        label = int(number % 3 == 0)
        image = generator.normal(90, 20, (12, 12))
        image[3:8, 3:8] += 70 * label
        Image.fromarray(image.clip(0, 255).astype(np.uint8)).save(folder / f"i{number}.png")
        rows.append({"file": f"i{number}.png", "lesion": label})
    return write_table(folder / "data.csv", rows), folder / "run"


WORDS = ("--image-column", "file", "--label-column", "lesion", "--epochs", 1, "--auc-stage", "none", "--json")


def test_training_writes_them_when_asked_and_not_otherwise(deepauc, trained):
    table, out = trained
    code, said, err = deepauc("train", "--table", table, *WORDS, "--out", out)
    assert (code, err) == (0, "")
    assert "examples" not in json.loads(said)
    assert not (out / "examples.html").exists()
    code, said, err = deepauc("train", "--table", table, *WORDS, "--out", out, "--examples")
    assert (code, err) == (0, "")
    assert json.loads(said)["examples"] == str(out / "examples.html")
    assert (out / "examples.html").read_text(encoding="utf-8").count("data:image/png") > 6
    assert "data:image" not in (out / "report.html").read_text(encoding="utf-8")


def test_the_report_finds_the_runs_own_table(deepauc, trained, tmp_path):
    _, run = trained
    code, said, err = deepauc("report", run, "--examples", "--out", tmp_path, "--json")
    assert (code, err) == (0, "")
    assert json.loads(said)["examples"] == str(tmp_path / "examples.html")
    assert "data:image" not in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["report", "RUN", "--examples", "--image-column", "file"], "name it with --table"),
        (["report", "RUN", "--table", "TABLE"], "ask for one of them"),
        (
            ["train", "--table", "TABLE", "--feature-column", "x", "--label-column", "y", "--out", "OUT", "--examples"],
            "image files",
        ),
        (["train", "--table", "TABLE", "--print-config", "--examples"], "leave out one of the two"),
    ],
)
def test_what_is_missing_is_said_in_one_line(deepauc, trained, tmp_path, words, part):
    names = {"RUN": trained[1], "TABLE": trained[0], "OUT": tmp_path / "new"}
    code, _, err = deepauc(*(names.get(word, word) for word in words))
    assert code == 2
    assert part in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "new").exists()
