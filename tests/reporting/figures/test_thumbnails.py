"""Thumbnails: the right image beside its tinted twin, words for each, and a clear refusal where they cannot be had."""

import base64
import csv
import io
import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from deepauc.models.grad_cam import grad_cam
from deepauc.reporting.document.blocks import Caution, Thumbnails
from deepauc.reporting.evaluation.run import evaluate_run
from deepauc.reporting.figures.thumbnails import SIDE, ImageTable, side_by_side, thumbnails_section
from deepauc.reporting.report import write_report
from deepauc.training.run.bundle import Bundle


@pytest.fixture(scope="module")
def table(spots_task, tmp_path_factory):
    """The images of `spots_task` as files, their ids in column `file`; and a table that lists only the first."""

    def write(label_names):
        folder, task = tmp_path_factory.mktemp("table"), spots_task(label_names=label_names)
        for name, image in zip(task.ids, task.source(np.arange(len(task))), strict=True):
            Image.fromarray(image[..., 0]).save(folder / name)
        for file, ids in (("data.csv", task.ids), ("short.csv", task.ids[:3])):
            (folder / file).write_text("\n".join(["file", *ids]) + "\n")
        return folder / "data.csv"

    return {"auc": write(("spot",)), "multi": write(("spot", "coin & <b>", "عِلّة"))}


def halves(png):
    """(left, right, alpha of the gap) of a thumbnail."""
    sheet = np.asarray(Image.open(io.BytesIO(png)))
    width = (sheet.shape[1] - 6) // 2
    return sheet[:, :width, :3], sheet[:, width + 6 :, :3], sheet[:, width : width + 6, 3]


@pytest.mark.parametrize("shape", [(8, 8, 1), (28, 20, 3), (300, 200, 1)])
def test_the_image_stands_beside_the_same_image_tinted_where_the_map_is(shape):
    image = np.random.default_rng(0).integers(0, 100, shape).astype(np.uint8)
    heat = np.zeros(shape[:2], dtype=np.float32)
    heat[: shape[0] // 2] = 1  # the upper half
    left, right, gap = halves(side_by_side(image, heat))
    assert left.shape == right.shape
    assert max(left.shape) == SIDE
    assert abs(left.shape[0] / left.shape[1] - shape[0] / shape[1]) < 0.02
    assert not gap.any()
    if max(shape) <= SIDE:  # pixels are repeated, none is invented
        assert set(left[..., 0].ravel()) == set(image[..., 0].ravel())
    quarter = left.shape[0] // 4
    assert (right[:quarter, :, 0] > left[:quarter, :, 0]).all()  # towards orange
    lower = slice(left.shape[0] - quarter, None)
    np.testing.assert_array_equal(right[lower], left[lower])
    rows = np.flatnonzero((right == 255).all(axis=(1, 2)))
    assert len(rows) == 1  # the outline is one line across, about the middle, with a black one under it
    assert abs(rows[0] - left.shape[0] / 2) < left.shape[0] / 5
    assert not right[rows[0] + 1].any()


def test_a_map_of_nothing_changes_nothing():
    image = np.full((10, 10, 1), 90, dtype=np.uint8)
    left, right, _ = halves(side_by_side(image, np.zeros((10, 10))))
    np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("name", ["auc", "multi"])
def test_each_case_gets_its_own_image_and_map(run_folders, table, spots_task, name):
    run = run_folders / name
    findings = evaluate_run(run, cases=2)
    where = ImageTable(path=table[name], image_column="file")
    section = thumbnails_section(run, findings, where)
    assert thumbnails_section(run, findings, where) == section  # to the byte
    shown = [image for block in section.blocks if isinstance(block, Thumbnails) for image in block.images]
    assert len(shown) == len(findings.cases) == 4 * len(findings.label_names)
    assert any(isinstance(block, Caution) and "patients" in block.text for block in section.blocks)
    assert not any("scores.csv" in block.text for block in section.blocks if isinstance(block, Caution))
    task = spots_task(label_names=findings.label_names)
    bundle = Bundle.load(run)
    model = bundle.network(run)
    for case, thumbnail in zip(findings.cases, shown, strict=True):
        image = task.source(np.flatnonzero(task.ids == case.id))
        inputs = bundle.preprocessing(torch.from_numpy(image))
        heat = grad_cam(model, inputs, label=findings.label_names.index(case.label))[0].numpy()
        left, right, _ = halves(thumbnail.png)
        expected_left, expected_right, _ = halves(side_by_side(image[0], heat))
        np.testing.assert_array_equal(left, expected_left)
        assert np.abs(right.astype(int) - expected_right).mean() < 1
        assert case.id in thumbnail.alt
        assert f"score {case.score:.3g}" in thumbnail.alt
        assert (" 0 (negative)" in thumbnail.alt) == case.kind.startswith("negative")


def test_page_and_markdown_hold_them_and_forget_them(run_folders, table, tmp_path, parse_page):
    where = ImageTable(path=table["auc"], image_column="file")
    written = write_report(run_folders / "auc", thumbnails=where, out=tmp_path)
    text = written.html.read_text(encoding="utf-8")
    page = parse_page(text)
    images = page.all("img")
    assert len(images) == 8  # four of each kind
    files = sorted((tmp_path / "report-figures").glob("thumbnail-*.png"), key=lambda p: int(p.stem.split("-")[1]))
    assert set(files) <= set(written.figures)
    for image, file in zip(images, files, strict=True):
        assert base64.b64decode(image["src"].removeprefix("data:image/png;base64,")) == file.read_bytes()
        assert len(image["alt"]) > 20
        assert f"](report-figures/{file.name})" in written.markdown.read_text(encoding="utf-8")
    policy = next(meta for meta in page.all("meta") if "http-equiv" in meta)["content"]
    assert policy.startswith("default-src 'none'")
    assert policy.endswith("img-src data:")
    assert not re.search(r'(?:src|href)="(?!#|data:image/png)', text)
    assert "images of patients" in text

    plain = write_report(run_folders / "auc", out=tmp_path)  # without being asked: none, and none left over
    assert "data:" not in plain.html.read_text(encoding="utf-8")
    assert "thumbnail-" not in plain.markdown.read_text(encoding="utf-8")
    assert not list((tmp_path / "report-figures").glob("thumbnail-*"))


def test_ids_are_escaped(run_folders, copy_to_edit, table, tmp_path, parse_page):
    evil = '"><img src=x onerror=alert(1)> ](x) \u202e&amp;.png'
    run, images = tmp_path / "run", tmp_path / "images"
    copy_to_edit(run_folders / "auc", run)
    shutil.copytree(table["auc"].parent, images)
    worst = evaluate_run(run, cases=1).cases[0].id
    (run / "scores.csv").write_text(
        (run / "scores.csv").read_text().replace(f"{worst},", '"' + evil.replace('"', '""') + '",')
    )
    shutil.copy(images / worst, images / evil)
    with (images / "data.csv").open("a", newline="", encoding="utf-8") as file:
        csv.writer(file).writerow([evil])
    where = ImageTable(path=images / "data.csv", image_column="file")
    written = write_report(run, cases=1, thumbnails=where)
    page = parse_page(written.html.read_text(encoding="utf-8"))
    assert len(page.all("img")) == 2
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert page.all("img")[0]["alt"].startswith(evil.replace("\u202e", ""))  # an id has no format characters
    line = next(row for row in written.markdown.read_text(encoding="utf-8").splitlines() if "thumbnail-0.png" in row)
    assert "\\<img" in line
    assert "\\](x)" in line


def test_changed_images_are_noticed(run_folders, table, tmp_path):
    shutil.copytree(table["auc"].parent, tmp_path / "images")
    findings = evaluate_run(run_folders / "auc", cases=2)
    Image.fromarray(np.full((8, 8), 255, dtype=np.uint8)).save(tmp_path / "images" / findings.cases[1].id)
    where = ImageTable(path=tmp_path / "images" / "data.csv", image_column="file")
    section = thumbnails_section(run_folders / "auc", findings, where)
    cautions = [block.text for block in section.blocks if isinstance(block, Caution)]
    assert any("scores.csv: 1 " in text for text in cautions)


def test_refusals_name_the_remedy(run_folders, table, tmp_path):
    run, where = run_folders / "auc", ImageTable(path=table["auc"], image_column="file")
    findings = evaluate_run(run, cases=2)
    with pytest.raises(
        ValueError, match=r"ids that are not in column 'file'.*: 4 of 4.*Name the table that the run was trained on"
    ):
        thumbnails_section(run, findings, replace(where, path=table["auc"].parent / "short.csv"))
    with pytest.raises(ValueError, match="--image-column COLUMN"):
        thumbnails_section(run, findings, replace(where, image_column=None))
    with pytest.raises(ValueError, match="does not exist"):
        thumbnails_section(run, findings, replace(where, path=tmp_path / "none.csv"))
    moved = tmp_path / "data.csv"
    shutil.copy(table["auc"], moved)
    with pytest.raises(ValueError, match=r"images that cannot be shown: 4 of 4; .*the file does not exist"):
        thumbnails_section(run, findings, replace(where, path=moved))
    shutil.copytree(run, tmp_path / "features")
    bundle = json.loads((run / "bundle.json").read_text())
    plain = {"mean": [0.0] * 5, "std": [1.0] * 5, "images": False}
    (tmp_path / "features" / "bundle.json").write_text(json.dumps(bundle | {"shape": [5], "preprocessing": plain}))
    with pytest.raises(ValueError, match="not trained on images, so there are none to show"):
        thumbnails_section(tmp_path / "features", findings, where)


def test_without_cases_the_section_says_so(run_folders, table):
    findings = replace(evaluate_run(run_folders / "auc"), cases=())
    section = thumbnails_section(run_folders / "auc", findings, ImageTable(path=table["auc"], image_column="file"))
    assert not any(isinstance(block, Thumbnails) for block in section.blocks)
    assert "There are none" in section.blocks[0].text
