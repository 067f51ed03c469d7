"""A run whose scores are means over copies: report, thumbnails, baseline and the summary of training say so."""

import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from deepauc.cli.console import Output
from deepauc.cli.training_summary import show_outcome
from deepauc.data.augment.batch import Augment
from deepauc.models.build import SmallCNNSpec
from deepauc.objectives.baselines import CrossEntropy
from deepauc.optim.standard import SGDSpec
from deepauc.pipeline.outcome import outcome_of
from deepauc.reporting.document.blocks import Caution, Paragraph
from deepauc.reporting.evaluation.run import evaluate_run
from deepauc.reporting.figures.thumbnails import ImageTable, thumbnails_section
from deepauc.reporting.report import write_report
from deepauc.training.engine.loop import train
from deepauc.training.recipe import Recipe, Stage

SAID = "over 4 augmented copies"


@pytest.fixture(scope="module")
def runs(spots_task, tmp_path_factory):
    """`copies` has scores of four copies, `plain` is the same network asked once; and the table of their images."""
    root, task = tmp_path_factory.mktemp("copies"), spots_task()
    stage = Stage(objective=CrossEntropy(), optimizer=SGDSpec(lr=0.3), epochs=6, batch_size=16,
                  augment=Augment(crop_padding=3))  # fmt: skip
    recipe = Recipe(model=SmallCNNSpec(widths=(4, 8)), stages=(stage,), tta=4)
    for name, one in (("copies", recipe), ("plain", replace(recipe, tta=0))):
        train(one, task, seed=0, run_dir=root / name)
    for name, image in zip(task.ids, task.source(np.arange(len(task))), strict=True):
        Image.fromarray(image[..., 0]).save(root / name)
    (root / "data.csv").write_text("\n".join(["file", *task.ids]) + "\n")
    return root


def texts(section, kind):
    return [block.text for block in section.blocks if isinstance(block, kind)]


def test_thumbnails_do_not_take_copies_for_changed_files(runs):
    where = ImageTable(path=runs / "data.csv", image_column="file")
    findings = evaluate_run(runs / "copies", cases=8)
    section = thumbnails_section(runs / "copies", findings, where)
    assert not any("another score" in text for text in texts(section, Caution))
    assert any("4 augmented copies" in text for text in texts(section, Paragraph))
    plain = thumbnails_section(runs / "plain", evaluate_run(runs / "plain", cases=8), where)
    assert not any("copies" in text for text in texts(plain, Paragraph))


def test_the_report_says_what_a_score_is_and_that_a_baseline_was_asked_otherwise(runs, tmp_path):
    written = write_report(runs / "copies", baseline=runs / "plain", out=tmp_path / "copies")
    page = written.markdown.read_text(encoding="utf-8")
    assert SAID in page
    assert "4 here, 0 there" in page
    alike = write_report(runs / "plain", baseline=runs / "plain", out=tmp_path / "plain").markdown.read_text("utf-8")
    assert "copies of an image" not in alike


def test_train_says_so_too(runs, tmp_path, capsys):
    from deepauc.training.run.run import Run

    for name, number in (("copies", 4), ("plain", 0)):
        for output in (Output(), Output(as_json=True)):
            show_outcome(output, outcome_of(Run(runs / name), state="trained", report=tmp_path / "report.html"))
        text, _, record = capsys.readouterr().out.partition("patients.\n")
        assert (SAID in " ".join(text.split())) == bool(number)
        assert json.loads(record)["tta"] == number
