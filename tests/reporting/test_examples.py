"""examples.html: which rows it shows, that their images stand there and nowhere else."""

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

from deepauc.reporting.examples import EACH, THRESHOLD, find_examples, write_examples
from deepauc.reporting.figures.thumbnails import ImageTable
from deepauc.reporting.report import write_report
from deepauc.training.run.bundle import Bundle
from deepauc.training.run.scores import Scores, read_run_scores

LABELS = {"auc": ("spot",), "multi": ("spot", "coin & <b>", "عِلّة")}


@pytest.fixture(scope="module")
def tables(spots_task, tmp_path_factory):
    """The images of the runs as files, with their table."""
    found = {}
    for name, labels in LABELS.items():
        folder, task = tmp_path_factory.mktemp(name), spots_task(label_names=labels)
        for file, image in zip(task.ids, task.source(np.arange(len(task))), strict=True):
            Image.fromarray(image[..., 0]).save(folder / file)
        (folder / "data.csv").write_text("\n".join(["file", *task.ids]) + "\n")
        found[name] = ImageTable(path=folder / "data.csv", image_column="file")
    return found


def scores_of(values, labels):
    n = len(values)
    return Scores(
        source="x",
        label_names=("ill",),
        labels=np.array(labels, dtype=float)[:, None],
        scores=np.array(values, dtype=float)[:, None],
        lines=np.arange(n),
        ids=np.array([f"r{row}" for row in range(n)]),
    )


def by_kind(cases):
    found = {}
    for case in cases:
        found.setdefault(case.kind, []).append(case.id)
    return found


def test_the_ends_of_the_ranking_and_the_rows_at_the_threshold():
    labels = [1] * 15 + [0] * 15
    values = [*range(15), *(-v for v in range(15))]
    found = by_kind(find_examples(scores_of(values, labels), 0, "ill", 7.2, each=2))
    assert found == {
        "positive with a high score": ["r14", "r13"],
        "positive with a low score": ["r0", "r1"],
        "positive near the threshold": ["r7", "r8"],
        "negative with a high score": ["r15", "r16"],
        "negative with a low score": ["r29", "r28"],
        "negative near the threshold": ["r17", "r18"],
    }


@pytest.mark.parametrize("positives", [0, 1, 2, 3, 5, 40])
@pytest.mark.parametrize("threshold", [None, 0.3])
def test_no_row_is_shown_twice_and_few_rows_are_shared_out(positives, threshold):
    generator = np.random.default_rng(positives)
    labels = np.array([1] * positives + [0] * 9 + [np.nan] * 3)
    cases = find_examples(scores_of(generator.normal(size=len(labels)), labels), 0, "ill", threshold)
    ids = [case.id for case in cases]
    assert len(set(ids)) == len(ids)
    assert all(len(kind) <= EACH for kind in by_kind(cases).values())
    assert len([case for case in cases if case.kind.startswith("positive")]) >= min(1, positives)
    assert not {f"r{row}" for row in range(positives + 9, len(labels))} & set(ids)
    assert any(case.kind.endswith("threshold") for case in cases) == (threshold is not None)


@pytest.mark.parametrize("name", ["auc", "multi"])
def test_the_page_shows_these_images_and_the_report_none(run_folders, tables, tmp_path, name):
    folder = run_folders / name
    page = write_examples(folder, table=tables[name], out=tmp_path)
    text = page.read_text(encoding="utf-8")
    assert page == tmp_path / "examples.html"
    bundle, judged = Bundle.load(folder), read_run_scores(folder).part("test")
    cases = [
        case
        for j, label in enumerate(bundle.label_names)
        for case in find_examples(judged, j, label, bundle.thresholds[label][THRESHOLD])
    ]
    pictures = re.findall(r'<img src="data:image/png;base64,([^"]+)"', text)
    assert len(pictures) == len(cases) > 12
    first = np.asarray(Image.open(io.BytesIO(base64.b64decode(pictures[0]))))
    side = first.shape[0]
    image = Image.open(tables[name].path.parent / cases[0].id)
    assert np.array_equal(first[:, :side, 0], np.asarray(image.resize((side, side), Image.Resampling.NEAREST)))
    write_report(folder, out=tmp_path)
    assert "data:image" not in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_same_run_gives_the_same_bytes(run_folders, tables, tmp_path):
    pages = [write_examples(run_folders / "auc", table=tables["auc"], out=tmp_path / str(n)) for n in range(2)]
    assert pages[0].read_bytes() == pages[1].read_bytes()


def test_a_network_without_maps_shows_the_images_alone(run_folders, tables, tmp_path, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise ValueError("Grad-CAM needs a convolutional network.")

    monkeypatch.setattr("deepauc.reporting.figures.thumbnails.grad_cam", refuse)
    text = write_examples(run_folders / "auc", table=tables["auc"], out=tmp_path).read_text(encoding="utf-8")
    assert "Grad-CAM needs a convolutional network." in text
    picture = re.search(r'<img src="data:image/png;base64,([^"]+)"', text)[1]
    width, height = Image.open(io.BytesIO(base64.b64decode(picture))).size
    assert width == height


def test_without_a_table_the_run_has_to_know_its_own(run_folders, tmp_path):
    with pytest.raises(ValueError, match="does not record its table: name the table"):
        write_examples(run_folders / "auc", out=tmp_path)


def test_a_run_without_a_part_to_judge_has_no_examples(run_folders, copy_to_edit, tables, tmp_path):
    folder = copy_to_edit(run_folders / "auc", tmp_path / "run")
    lines = (folder / "scores.csv").read_text().splitlines()
    (folder / "scores.csv").write_text("\n".join([lines[0], *(one for one in lines if ",train," in one)]) + "\n")
    with pytest.raises(ValueError, match="neither a test nor a validation part"):
        write_examples(folder, table=tables["auc"], out=tmp_path)
