"""Every string of a run's record may come from data: whichever of them is hostile, none becomes markup."""

import json

import pytest

from deepauc.reporting.report import write_report

HOSTILE = "</script></style></svg></title>--><script>alert(1)</script><img src=x onerror=alert(2)>\"'`&{{7*7}}"
STRUCTURE = ("type", "kind", "uncertain", "bound", "keep", "precision")  # words that the report branches on


def poisoned(value, name=""):
    """The record with every string replaced, but those that say what it is."""
    if isinstance(value, dict):
        return {k: v if k in STRUCTURE else poisoned(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [poisoned(v, name) for v in value]
    return HOSTILE + name if isinstance(value, str) else value


@pytest.mark.parametrize("which", ["auc", "ce"])
def test_a_record_of_hostile_strings(run_folders, copy_to_edit, tmp_path, parse_page, which):
    run = tmp_path / "run"
    copy_to_edit(run_folders / which, run)
    record = json.loads((run / "run.json").read_text())
    names = record["task"]["labels"]
    poisonous = poisoned(record)
    for key in ("results", "identity"):  # numbers under the labels' names; the labels' own test is another
        poisonous[key] = record[key]
    poisonous["task"]["labels"] = names
    poisonous["data"] = {"table": HOSTILE, "image_column": HOSTILE, "group_column": HOSTILE, "label_columns": [HOSTILE]}
    poisonous["notes"], poisonous["command"] = HOSTILE, [HOSTILE]
    (run / "run.json").write_text(json.dumps(poisonous))
    written = write_report(run, out=tmp_path / "report", command=HOSTILE)
    text = written.html.read_text(encoding="utf-8")
    page = parse_page(text)
    assert len(page.all("script")) == 1
    assert not page.all("img")
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert "alert" not in page.text("script")
    assert "{{7*7}}" in text or "alert" not in text  # shown as it is, or not at all; never evaluated
    assert "<script>alert" not in text
