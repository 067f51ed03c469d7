"""The files of a report: one page that needs nothing else, the same as markdown, and strict JSON."""

import json
import re

import pytest

from deepauc.reporting.document.blocks import DataTable, Gallery, Missing
from deepauc.reporting.document.markdown import escaped
from deepauc.reporting.document.sections import run_document
from deepauc.reporting.report import write_report


@pytest.fixture(scope="session", params=["auc", "multi"])
def report(request, written_reports):
    return written_reports[request.param]


def test_the_page_needs_nothing_else(report, parse_page):
    page = parse_page(report.html.read_text(encoding="utf-8"))
    for _, attributes in page.tags:
        assert "src" not in attributes
        assert not any(name.startswith("on") for name in attributes)
        assert attributes.get("href", "#").startswith("#")
    assert len(page.all("script")) == 1
    assert not page.all("link")
    assert not page.all("img")
    assert report.html.stat().st_size < 1_500_000
    policy = next(meta for meta in page.all("meta") if "http-equiv" in meta)
    assert "default-src 'none'" in policy["content"]
    assert "sha256-" in policy["content"]


def test_ids_are_unique_and_every_reference_has_one(report, parse_page):
    text = report.html.read_text(encoding="utf-8")
    page = parse_page(text)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {attributes["href"][1:] for _, attributes in page.tags if "href" in attributes}
    targets |= set(re.findall(r"url\(#([^)]+)\)", text))
    targets |= {a["aria-labelledby"] for _, a in page.tags if "aria-labelledby" in a}
    assert targets <= set(ids)
    assert len(targets) > 20


def test_every_figure_has_words_and_takes_the_pages_colours(report, parse_page):
    text = report.html.read_text(encoding="utf-8")
    page = parse_page(text)
    figures = page.all("svg")
    assert len(figures) == len(report.figures) == len(page.all("figcaption")) > 8
    assert all(figure["role"] == "img" and figure["aria-labelledby"] for figure in figures)
    assert all(len(alt) > 20 for alt in re.findall(r"<title id=[^>]*>([^<]*)</title>", text))
    colours = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]+)", text[text.index("<svg") :]))
    assert colours <= {"#ffffff", "#000000"}, colours  # all else follows light and dark


def test_markdown_says_the_same(report):
    document = run_document(report.findings, command=None)
    text = report.markdown.read_text(encoding="utf-8")
    for section in document.sections:
        assert f"## {escaped(section.title)}" in text
        for block in section.blocks:
            if isinstance(block, DataTable):
                for row in block.rows:
                    for cell in row:
                        assert escaped(cell.text).replace("|", "\\|") in text
            elif isinstance(block, Missing):
                assert escaped(block.why) in text
            elif isinstance(block, Gallery):
                assert all(escaped(picture.caption) in text for picture in block.pictures)
    named = set(re.findall(r"\]\((report-figures/[^)]+)\)", text))
    assert named == {path.relative_to(report.html.parent).as_posix() for path in report.figures}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in report.figures)
    assert "Not a medical device" in text
    assert "Not a medical device" in report.html.read_text(encoding="utf-8")


def test_json_is_strict_and_complete(report):
    def refuse(name):
        raise AssertionError(name)

    found = json.loads(report.json.read_text(encoding="utf-8"), parse_constant=refuse)
    assert found["labels"][0]["auc"]["delong"]["value"] == report.findings.labels[0].auc.delong.value
    assert found["record"]["identity"] == report.findings.record.plain["identity"]
    assert len(found["history"]["columns"]["loss"]) == 9


def test_the_same_folder_gives_the_same_bytes(written_reports, run_folders, tmp_path):
    (tmp_path / "again" / "report-figures").mkdir(parents=True)
    (tmp_path / "again" / "report-figures" / "of-an-earlier-report.png").write_bytes(b"")
    again = write_report(run_folders / "multi", out=tmp_path / "again")
    assert set((tmp_path / "again" / "report-figures").iterdir()) == set(again.figures)
    first = written_reports["multi"]
    for name in ("html", "markdown", "json"):
        assert getattr(again, name).read_bytes() == getattr(first, name).read_bytes()
    assert [p.read_bytes() for p in again.figures] == [p.read_bytes() for p in first.figures]


def test_all_that_a_reviewer_asks_for_is_there(written_reports, parse_page):
    page = parse_page(written_reports["auc"].html.read_text(encoding="utf-8"))
    text = page.text("main").replace("\u00a0", " ")
    record = written_reports["auc"].findings.record.plain
    for words in (
        *("DeLong, clustered by patient", "Bootstrap over patients", "Paired comparison of AUC", "ROC curve"),
        *(
            "Precision-recall curve",
            "Scores of positives",
            "AUC after each epoch",
            "never negative and should fall",
            "share of steps with",
        ),
        *("Chosen for", "Brier score", "Calibration error (ECE)", "Decision curve", "By age", "By sex"),
        *("none of the 160 patients is in two parts", "Largest errors", "deepauc report auc --baseline ce"),
        *(
            record["identity"]["data"],
            record["identity"]["recipe"],
            record["commit"] or "Git commit",
            record["versions"]["torch"],
        ),
        "is judged here on other rows",
    ):
        assert words in text, words


def test_one_of_anything_is_singular(report, one_as_many):
    assert not one_as_many(report.markdown.read_text(encoding="utf-8"))
