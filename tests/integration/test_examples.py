"""The scripts in examples/, executed in a short form."""

import importlib.util
from pathlib import Path

import pytest

from deepauc.studies.records.book import RecordBook
from deepauc.training.config import read_settings
from experiments.search.recipe import best

EXAMPLES = Path(__file__).parents[2] / "examples"
BY_HAND = {"monai_densenet.py"}


def load(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_six_line_loop(capsys):
    assert load("six_line_loop").main(epochs=10) > 0.9
    assert "95 % interval" in capsys.readouterr().out


def test_csv_to_report(tmp_path):
    report = load("csv_to_report").main(out=tmp_path, epochs=1)
    assert report.exists()
    assert len((tmp_path / "scores.csv").read_text().splitlines()) == 1 + 1797


def test_fit(tmp_path, capsys):
    model = load("fit").main(out=tmp_path / "run", minutes=0.1)
    assert model.auc.value > 0.9
    assert "AUC here" in capsys.readouterr().out


def test_compare_losses(capsys):
    values = load("compare_losses").main(epochs=5)
    assert list(values) == ["cross-entropy", "focal", "AUC-S", "AUC-M"]
    assert min(values.values()) > 0.7
    assert capsys.readouterr().out.count("minus cross-entropy") == 4


def test_own_model_and_optimizer():
    assert load("own_model_and_optimizer").main(epochs=20) > 0.97


@pytest.mark.filterwarnings("ignore")
def test_lightning():
    pytest.importorskip("lightning")
    assert load("lightning_digits").main(epochs=4) > 0.6


@pytest.mark.filterwarnings("ignore")
def test_huggingface():
    pytest.importorskip("transformers")
    assert load("huggingface_text").main(epochs=8) > 0.9


@pytest.mark.parametrize(("name", "loss"), [("best", "auc_m"), ("best-ce", "ce")])
def test_best_is_what_the_search_has_chosen(name, loss):
    record = RecordBook(EXAMPLES.parent / "results" / "best").final(f"C10-R-1-{loss}")[0]
    recipe = read_settings(EXAMPLES / f"{name}.toml").recipe
    assert recipe == best(**{**record["fixed"], **record["config"]})


def test_every_example_is_run_here_or_by_hand():
    text = Path(__file__).read_text(encoding="utf-8")
    for script in EXAMPLES.glob("*.py"):
        assert script.name in BY_HAND or f'load("{script.stem}")' in text
