"""Whatever a settings file holds: Settings, or one ValueError that names the file."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepauc.data.augment.batch import Augment
from deepauc.models.build import FactorySpec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.baselines import CrossEntropy
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import SGDSpec
from deepauc.training.config import DataSettings, Settings, read_settings, settings_toml
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.schedule import Steps
from tests.fuzz import share_of

FUZZ = share_of(3)
STAGES = (
    Stage(objective=CrossEntropy(), optimizer=SGDSpec(), epochs=2, uncertain={"a": "ones"}),
    Stage(
        objective=AUCMargin(margin=(0.5, 1)),
        optimizer=PESGSpec(),
        iterations=7,
        schedule=Steps(milestones=(2, 4)),
        augment=Augment(rotation=8, scale=(0.9, 1.1)),
        positives_per_batch=4,
    ),
)
GOOD = settings_toml(
    Settings(
        seed=3,
        data=DataSettings(table="a.csv", label_columns=("x", "y"), image_size=(28, 30)),
        recipe=Recipe(model=FactorySpec(factory="a.b:c", arguments={"n": 3}), stages=STAGES, guard=True),
    )
)
LINES = GOOD.splitlines()
ODD = [
    *(
        "inf",
        "-inf",
        "nan",
        "1e400",
        "-1",
        "0",
        "0x10",
        "9" * 400,
        "9" * 5000,
        "true",
        "1979-05-27T07:32:00Z",
        "07:32:00",
    ),
    *("[]", "{}", "[[]]", "[1, 'x']", "{type = 3}", "{type = []}", "{type = 'Steps', milestones = []}", "''", "'\\'"),
    *('"\\u0000"', '"\\ud800"', '"""\n"""', "=", "[" * 3000, "{a=" * 3000, "{a.b.c.d = 1}", "0.1.2", "'AUCMargin'", ""),
]
VALUES = st.sampled_from(ODD) | st.integers(-(2**70), 2**70).map(str) | st.floats().map(str) | st.text(max_size=8)


def outcome(path):
    try:
        return read_settings(path)
    except ValueError as error:
        fault = error
    assert type(fault) is ValueError
    assert path.name in str(fault)
    return None


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.toml"


@FUZZ
@given(content=st.binary(max_size=300), start=st.sampled_from(["", "[recipe]\n", "seed = ", GOOD]))
def test_any_bytes(path, content, start):
    path.write_bytes(start.encode() + content)
    outcome(path)


@FUZZ
@given(changes=st.lists(st.tuples(st.integers(0, len(LINES) - 1), VALUES, st.booleans()), min_size=1, max_size=3))
def test_odd_values_and_names_in_a_good_file(path, changes):
    lines = list(LINES)
    for place, value, is_name in changes:
        name, mark, old = lines[place].partition(" = ")
        if is_name:
            lines[place] = value + mark + old if mark else f"[{value}]"
        else:
            lines[place] = f"{name} = {value}"
    path.write_text("\n".join(lines), encoding="utf-8", errors="replace")
    outcome(path)


@FUZZ
@given(data=st.data())
def test_lines_left_out_doubled_and_moved(path, data):
    order = data.draw(st.lists(st.integers(0, len(LINES) - 1), max_size=len(LINES) + 5))
    kept = [LINES[place] for place in (sorted(order) if data.draw(st.booleans()) else order)]
    path.write_text("\n".join(kept), encoding="utf-8")
    outcome(path)


def test_the_good_file_is_read_and_what_is_no_file_is_refused(path, tmp_path):
    path.write_text(GOOD)
    assert outcome(path).recipe.stages == STAGES
    os.mkfifo(tmp_path / "pipe.toml")  # not opened: that would wait for ever
    for other in (tmp_path / "pipe.toml", tmp_path, tmp_path / "a\0b"):
        with pytest.raises(ValueError, match="does not exist"):
            read_settings(other)
    path.write_text("a = 1\n" * 300_000)
    with pytest.raises(ValueError, match="too large"):
        read_settings(path)
