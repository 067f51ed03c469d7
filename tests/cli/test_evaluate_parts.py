"""`deepauc evaluate` of a file with parts: what is wrong with rows that are not judged matters to nobody."""

import json

import numpy as np
import pytest

ROWS = 90


@pytest.fixture
def scores(tmp_path):
    """A file of three parts with probabilities as scores; `cells` replaces scores by their row."""

    def write(name, cells, **columns):
        labels = np.arange(ROWS) % 3 == 0
        score = np.clip(np.random.default_rng(0).normal(0.4 + 0.2 * labels, 0.1), 0.01, 0.99).round(4).astype(object)
        for row, cell in cells.items():
            score[row] = cell
        table = {"part": np.repeat(["train", "validation", "test"], ROWS // 3), "label": labels.astype(int)}
        table |= {"score": score, **columns}
        path = tmp_path / name
        lines = [",".join(table), *(",".join(map(str, row)) for row in zip(*table.values(), strict=True))]
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


@pytest.mark.parametrize("cell", ["nan", "inf", "", "7"])
def test_a_score_of_another_part_does_not_matter(deepauc, scores, cell):
    """7 is no fault, but no probability either: it would take calibration from the test part."""
    whole = scores("whole.csv", {})
    changed = scores("changed.csv", {4: cell})
    for words in ((), ("--json",)):
        code, out, err = deepauc("evaluate", changed, "--part", "test", *words)
        assert (code, err) == (0, "")
        assert out.replace("changed.csv", "whole.csv") == deepauc("evaluate", whole, "--part", "test", *words)[1]
    assert "Brier" in deepauc("evaluate", changed, "--part", "test")[1]


def test_a_judged_row_without_a_score_is_refused_and_the_test_part_named_where_it_is_whole(deepauc, scores):
    path = scores("s.csv", {4: "nan", 40: "nan"})
    code, out, err = deepauc("evaluate", path)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "a finite score: 2, the first in line 6. Drop them" in err
    assert "or judge the test part alone, which has all its scores (--part test)." in err
    code, _, err = deepauc("evaluate", path, "--part", "validation")
    assert code == 2
    assert "a finite score: 1, the first in line 42." in err
    assert "--part" not in err


def test_thresholds_that_validation_cannot_give_are_told(deepauc, scores):
    path = scores("s.csv", {40: "nan"})
    code, out, _ = deepauc("evaluate", path, "--part", "test")
    assert code == 0
    assert "| test " in out
    assert "test, label: no thresholds, because scores in the validation part that are NaN or infinite: 1 of 30" in out
    (found,) = json.loads(deepauc("evaluate", path, "--part", "test", "--json")[1])["results"]
    assert "validation part" in found["operating_points"]["absent"]
    assert "no thresholds" not in deepauc("evaluate", path, "--part", "train")[1]  # nobody takes them from there


def test_ids_that_repeat_in_another_part_come_without_a_caution(deepauc, scores):
    path = scores("s.csv", {}, id=[f"a{max(row, 9)}" for row in range(ROWS)])  # ten rows of train are one
    said = "Caution. 9 rows have the id of an earlier row of the same part."
    assert said in deepauc("evaluate", path)[1]
    assert said not in deepauc("evaluate", path, "--part", "test")[1]
