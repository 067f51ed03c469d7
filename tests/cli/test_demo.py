"""The demo at a hundredth of its length: every file is written, and what is said agrees with what is recorded."""

import json
import re
from importlib.metadata import version

import pytest
import torch
from PIL import Image

from deepauc.cli.console import Output
from deepauc.cli.demo import write_demo
from deepauc.cli.demo_first_run import FirstRunSettings
from deepauc.demo.digits import METHODS, DigitsSettings
from deepauc.demo.toy import ToySettings
from deepauc.pipeline import outcome
from deepauc.text_tables import percent_text
from deepauc.training.run.folder import NUMERICS_VERSION

TOY = ToySettings(seeds=2, steps=6, shown_step=3, pretraining_steps=5, margins=(0.5, 1.0), grid=12)
DIGITS = DigitsSettings(seeds=2, epochs=1)
FIRST_RUN = FirstRunSettings(epochs=1, model="small-cnn")


@pytest.fixture
def no_report(monkeypatch):
    """One demo with the real report is enough."""

    def write(run_dir, *, command):
        (run_dir / "report.html").write_text("<p>report")

    monkeypatch.setattr(outcome, "write_report", write)


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "new" / "folder"
    return out, write_demo(out, toy=TOY, digits=DIGITS, first_run=FIRST_RUN, output=Output(quiet=True))


def test_files_are_what_the_record_lists(demo):
    out, record = demo
    assert sorted(path.name for path in out.iterdir()) == sorted(record["files"] + record["folders"])
    assert json.loads((out / "demo.json").read_text()) == json.loads(json.dumps(record))


def test_pictures_are_not_blank(demo):
    out, record = demo
    pictures = [name for name in record["files"] if name.endswith(".png")]
    assert len(pictures) == 3
    for name in pictures:
        image = Image.open(out / name).convert("RGB")
        assert min(image.size) > 300
        assert len(image.getcolors(maxcolors=1 << 24)) > 20


def test_record_says_what_it_was_made_by(demo):
    _, record = demo
    assert record["seed"] == 0
    assert record["versions"]["torch"] == version("torch")
    assert record["numerics"] == NUMERICS_VERSION
    assert record["seconds"]["total"] == pytest.approx(
        sum(record["seconds"][part] for part in ("toy", "digits", "first_run"))
    )


def test_record_holds_every_cell(demo):
    _, record = demo
    for scores in ("raw", "sigmoid"):
        assert record["toy"][scores]["settings"]["sigmoid"] == (scores == "sigmoid")
        assert len(record["toy"][scores]["comparisons"]) == 2 * 3 * len(TOY.margins)  # steps, sets, margins
    assert {(row["seed"], row["method"]) for row in record["digits"]["test_auc"]} == {
        (seed, method.name) for seed in range(2) for method in METHODS
    }
    for row in record["digits"]["test_auc"]:
        assert 0 <= row["low"] < row["value"] < row["high"] <= 1


def test_report_shows_the_pictures_and_the_recorded_numbers(demo):
    out, record = demo
    report = (out / "demo.md").read_text()
    for name in re.findall(r"!\[[^]]*\]\(([^)]+)\)", report):
        assert (out / name).exists()
    for row in record["digits"]["test_auc"]:
        assert f"{row['value']:.3f} [{row['low']:.3f}, {row['high']:.3f}]" in report
    for comparison in (one for scores in record["toy"].values() for one in scores["comparisons"]):
        assert percent_text(*(comparison["difference"][part] for part in ("value", "low", "high"))) in report


@pytest.mark.usefixtures("no_report")
def test_json_is_all_that_is_printed(tmp_path, capsys):
    threads = torch.get_num_threads()
    record = write_demo(tmp_path, toy=TOY, digits=DIGITS, first_run=FIRST_RUN, output=Output(as_json=True))
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(record))
    assert torch.get_num_threads() == threads


@pytest.mark.usefixtures("no_report")
def test_quiet_says_where_things_are(tmp_path, capsys):
    write_demo(tmp_path, toy=TOY, digits=DIGITS, first_run=FIRST_RUN, output=Output(quiet=True))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["Report", "Pictures", "Record", "The first run's report"]


@pytest.mark.usefixtures("no_report")
def test_elsewhere_than_in_a_terminal_tables_are_whole(tmp_path, capsys):
    write_demo(tmp_path, toy=TOY, digits=DIGITS, first_run=FIRST_RUN, output=Output())
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "…" not in out
    assert out.count("| mean ± std") == 1
    assert f'deepauc.fit("{tmp_path / "digits-table" / "table.csv"}"' in out


@pytest.mark.usefixtures("no_report")
def test_seeds_change_the_draw(tmp_path, demo):
    _, first = demo
    digits = DigitsSettings(seeds=2, epochs=1, first_seed=1)
    second = write_demo(tmp_path, toy=TOY, digits=digits, first_run=FIRST_RUN, output=Output(quiet=True))
    mine = {(r["seed"], r["method"]): r["value"] for r in second["digits"]["test_auc"]}
    theirs = {(r["seed"], r["method"]): r["value"] for r in first["digits"]["test_auc"]}
    assert mine[1, "AUC-M"] == theirs[1, "AUC-M"]  # seed 1 is seed 1, whichever comes first
    assert mine[2, "AUC-M"] != theirs[0, "AUC-M"]
