"""A file that declares studies: what is wrong with it is one line; worker processes load it themselves."""

import multiprocessing
import pickle
import sys
from concurrent.futures import ProcessPoolExecutor

import pytest

from deepauc.studies import load
from deepauc.studies.entry import Entry
from deepauc.studies.load import Parcel, load_studies
from deepauc.studies.running.cluster import unpack_and_carry_out
from deepauc.studies.study import StudySet
from experiments.benchmarks.toy import ENTRY as TOY

EMPTY = """from deepauc.studies.study import StudySet
STUDIES = [StudySet(name=name, title="t", studies=()) for name in {}]
"""


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    """Nothing that a test has loaded is left behind."""
    monkeypatch.setattr(load, "_loaded", {})
    monkeypatch.setattr(sys, "path", [*sys.path])
    modules = set(sys.modules)
    yield
    for name in set(sys.modules) - modules:
        if name.startswith(("deepauc_study_", "mine")):
            del sys.modules[name]


def written(folder, text, name="mine.py"):
    path = folder / name
    path.write_text(text)
    return path


def test_names_may_be_left_out_where_there_is_one(tmp_path):
    one = load_studies(written(tmp_path, EMPTY.format(["only"])))
    assert one.find() is one.find("only") is one.entries["only"]
    two = load_studies(written(tmp_path, EMPTY.format(["first", "second"])))
    assert list(two.entries) == ["first", "second"]
    with pytest.raises(ValueError, match="declares 2 studies; name one of them: first, second"):
        two.find()
    with pytest.raises(ValueError, match="did you mean 'second'"):
        two.find("secnd")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "defines no STUDIES"),
        ("STUDIES = []\n", "at least one"),
        ("STUDIES = 3\n", "must be a list"),
        ("STUDIES = ['smoke']\n", "holds a str"),
        (EMPTY.format(["a", "b", "a"]), "two entries of STUDIES are called 'a'"),
        ("x = 1\nif x\n    pass\n", r"mine.py, line 2: SyntaxError: expected ':'"),
        ("def f():\n    return 1 / 0\n\n\nf()\n", r"mine.py, line 2: ZeroDivisionError: division by zero"),
        ("import json\njson.loads('{')\n", r"mine.py, line 2: JSONDecodeError: "),
        ("import no_such_package\n", r"mine.py, line 1: ModuleNotFoundError: No module named 'no_such_package'"),
        ("raise SystemExit('bye')\n", r"mine.py, line 1: SystemExit: bye"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(tmp_path, text, message):
    path = written(tmp_path, text)
    with pytest.raises(ValueError, match=message) as raised:
        load_studies(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_not_there_or_no_python(tmp_path):
    with pytest.raises(ValueError, match="smoke does not exist: name a Python file that defines STUDIES"):
        load_studies(tmp_path.joinpath("smoke").relative_to(tmp_path))
    with pytest.raises(ValueError, match=r"must end in \.py"):
        load_studies(written(tmp_path, "a,b\n", "mine.csv"))


def test_neighbours_can_be_imported(tmp_path):
    written(tmp_path, "NAMES = ['next']\n", "mine_names.py")
    path = written(tmp_path, "from mine_names import NAMES\n" + EMPTY.format("NAMES"))
    assert list(load_studies(path).entries) == ["next"]


def test_a_file_in_a_package_is_its_module(tmp_path):
    package = tmp_path / "mine_package"
    package.mkdir()
    written(package, "", "__init__.py")
    written(package, "NAMES = ['below']\n", "names.py")
    path = written(package, "from mine_package.names import NAMES\n" + EMPTY.format("NAMES"), "tables.py")
    assert list(load_studies(path).entries) == ["below"]
    assert sys.modules["mine_package.tables"].__file__ == str(path)


def test_an_entry_has_one_kind_of_runs_and_one_name():
    studies = StudySet(name="a", title="A", studies=())
    assert Entry(studies=studies).name == "a"
    for fields, message in (
        ({}, "either studies or own"),
        ({"studies": studies, "own": TOY.own}, "either studies or own"),
        ({"studies": StudySet(name="b", title="B", studies=())}, "called b; use one name"),
        ({"own": TOY.own}, "give page= or table="),
    ):
        with pytest.raises(ValueError, match=message):
            Entry(name="a", title="A", **fields)


OWN = """
from dataclasses import dataclass
from mine_neighbour import twice

@dataclass(frozen=True)
class Thing:
    number: int

def doubled(thing):
    return twice(thing.number)
"""


def opened(parcel):
    function, thing = parcel.open()
    return function(thing), sorted(name for name in sys.modules if name.startswith("mine"))


def test_another_process_loads_the_file_before_it_reads_what_it_was_sent(tmp_path, monkeypatch):
    written(tmp_path, "def twice(number):\n    return 2 * number\n", "mine_neighbour.py")
    load_studies(written(tmp_path, OWN + EMPTY.format(["own"])))
    own = sys.modules["deepauc_study_mine"]
    parcel = Parcel.of((own.doubled, own.Thing(21)))
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one != str(tmp_path)])  # a worker is given this path
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(opened, parcel).result() == (42, ["mine_neighbour"])
        again = pool.submit(opened, parcel)  # the same classes: the file is not executed a second time
        assert again.result()[0] == 42
        lost = Parcel((tmp_path / "elsewhere.py",), pickle.dumps(0))
        with pytest.raises(ValueError, match=r"elsewhere\.py does not exist"):
            pool.submit(unpack_and_carry_out, lost).result()


def test_what_no_other_process_could_find_is_refused():
    with pytest.raises(ValueError, match="define its functions and classes at the top level"):
        Parcel.of(lambda: 0)
