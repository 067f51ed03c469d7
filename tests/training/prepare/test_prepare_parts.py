"""Parts that a table names, and rows in them that have no label."""

import numpy as np
import pytest

from deepauc.training.config import DataSettings, Settings
from deepauc.training.prepare.prepare import prepare


def table(folder, unlabelled):
    draw = np.random.default_rng(0)
    part = np.repeat(["train", "validation", "test"], [115, 45, 40])
    rows = [
        f"{draw.normal():.4f},{'' if name in unlabelled else int(i % 3 == 0)},{name}" for i, name in enumerate(part)
    ]
    (folder / "t.csv").write_text("\n".join(["x,y,part", *rows]) + "\n")
    data = DataSettings(table=str(folder / "t.csv"), feature_columns=("x",), label_columns=("y",), split_column="part")
    return Settings(data=data)


def test_parts_without_any_label_are_refused_rather_than_cut_anew(tmp_path):
    with pytest.raises(ValueError, match=r"85 rows into validation and test, and none of them has a label"):
        prepare(table(tmp_path, {"validation", "test"}), "cpu")


@pytest.mark.parametrize(("part", "count"), [("validation", 45), ("test", 40)])
def test_a_part_without_labels_is_said_to_be_left_out(tmp_path, part, count):
    prepared = prepare(table(tmp_path, {part}), "cpu")
    assert "unlabelled left out" in prepared.split.reason
    assert prepared.split.rests_on["left_out"] == count
    own = "test" if part == "validation" else "validation"
    assert len(prepared.task.part(own)) == 85 - count
