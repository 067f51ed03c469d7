"""`deepauc evaluate`, `compare` and `report`: any csv in, a table or JSON out; for bad input one line, exit code 2."""

import json
import shutil

import numpy as np
import pytest

from deepauc.cli.main import run
from deepauc.metrics.comparison import compare_auroc
from deepauc.metrics.intervals import Estimate, auroc_interval
from deepauc.reporting import external
from deepauc.reporting.external import External, ExternalLabel
from deepauc.reporting.report import write_report


@pytest.fixture
def deepauc(capsys):
    """Runs a command; its exit code, stdout and stderr."""

    def call(*arguments):
        with pytest.raises(SystemExit) as left:
            run([str(a) for a in arguments])
        said = capsys.readouterr()
        return left.value.code, said.out, said.err

    return call


@pytest.fixture
def refused(deepauc):
    """Runs a command that must end with code 2 and one line on stderr; the line."""

    def call(*arguments):
        code, out, err = deepauc(*arguments)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        assert "Traceback" not in err
        return err

    return call


def write_csv(path, columns):
    names = list(columns)
    lines = [",".join(names)] + [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def foreign(tmp_path):
    """What another program may have written: words for classes, its own names for columns, two rows a patient."""
    generator = np.random.default_rng(0)
    labels = np.arange(120) % 3 == 0
    columns = {
        "case": [f"c{i}" for i in range(120)],
        "who": [f"p{i // 2}" for i in range(120)],
        "truth": np.where(labels, "malignant", "benign"),
        "net": generator.normal(size=120) + labels,
        "other": generator.normal(size=120) + 0.4 * labels,
    }
    return write_csv(tmp_path / "foreign.csv", columns), labels.astype(int), columns


OPTIONS = ("--label-column", "truth", "--positive", "malignant", "--group-column", "who")


def test_evaluate_any_csv(deepauc, foreign):
    path, labels, columns = foreign
    code, out, _ = deepauc("evaluate", path, *OPTIONS, "--score-column", "net", "--json")
    (found,) = json.loads(out)["results"]
    assert code == 0
    plain = auroc_interval(columns["net"], labels)
    by_patient = auroc_interval(columns["net"], labels, groups=columns["who"], method="bootstrap")
    assert found["auc"]["delong"]["value"] == pytest.approx(plain.value)
    assert found["auc"]["delong"]["low"] == pytest.approx(plain.low)
    assert found["auc"]["bootstrap"]["high"] == pytest.approx(by_patient.high)
    assert found["counts"]["patients"] == 60
    assert "absent" in found["operating_points"]
    code, out, _ = deepauc("evaluate", path, *OPTIONS, "--score-column", "net", "--quiet")
    assert out.startswith("all  truth  0.")
    assert out.count("\n") == 1


def test_an_empty_column_of_groups_is_refused_where_it_was_asked_for(deepauc, refused, tmp_path):
    columns = {"label": [1, 0] * 15, "score": np.linspace(0, 1, 30), "group": [""] * 30}
    path = write_csv(tmp_path / "p.csv", columns)
    for command in (("evaluate", path), ("compare", path, path)):
        assert deepauc(*command)[0] == 0  # nobody asked for groups
        assert "column 'group' is empty in every row: leave --group-column out" in refused(
            *command, "--group-column", "group"
        )


def test_evaluate_a_run_part_by_part(deepauc, run_folders):
    scores = run_folders / "auc" / "scores.csv"
    code, out, _ = deepauc("evaluate", scores)
    assert code == 0
    for words in ("| train ", "| validation ", "| test ", "% specificity |"):
        assert words in out
    assert "Brier" not in out  # raw output lies outside [0, 1]
    code, out, _ = deepauc("evaluate", scores, "--part", "test")
    assert "| train " not in out
    assert "% specificity |" in out


def test_ids_that_repeat_come_with_a_caution(deepauc, tmp_path):
    columns = {"id": [f"{row % 30:03d}" for row in range(40)], "label": [1, 0] * 20, "score": np.arange(40)}
    code, out, _ = deepauc("evaluate", write_csv(tmp_path / "s.csv", columns))
    assert code == 0
    assert "10 rows" in out
    for remedy in (("--group-column", "id"), ("--part-column", "half")):
        path = write_csv(tmp_path / "s.csv", columns | {"half": ["a"] * 30 + ["b"] * 10})
        code, out, _ = deepauc("evaluate", path, *remedy)
        assert code == 0
        assert "10 rows" not in out


def test_a_row_without_label_and_score_does_not_hide_the_calibration(deepauc, tmp_path):
    scores = [*np.round(np.random.default_rng(0).random(40), 3), ""]
    path = write_csv(tmp_path / "p.csv", {"label": [*(np.arange(40) % 3 == 0).astype(int), ""], "score": scores})
    code, out, _ = deepauc("evaluate", path)
    assert code == 0
    assert "Brier" in out


def test_evaluate_several_labels_and_probabilities(deepauc, run_folders, tmp_path):
    code, out, _ = deepauc("evaluate", run_folders / "multi" / "scores.csv", "--part", "test", "--json")
    assert [one["name"] for one in json.loads(out)["results"]] == ["spot", "coin & <b>", "عِلّة"]
    path = write_csv(tmp_path / "p.csv", {"label": [1, 0] * 15, "score": np.linspace(0, 1, 30)})
    code, out, _ = deepauc("evaluate", path)
    assert code == 0
    assert "Brier" in out
    assert "Caution" not in out


def test_compare_two_columns_of_one_file(deepauc, foreign):
    path, labels, columns = foreign
    arguments = ("compare", path, path, *OPTIONS, "--score-column", "net", "--second-score-column", "other")
    code, out, _ = deepauc(*arguments, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["clustered"]
    expected = compare_auroc(columns["net"], columns["other"], labels, groups=columns["who"])
    assert found["labels"][0]["difference"]["value"] == pytest.approx(expected.difference)
    assert found["labels"][0]["p_value"] == pytest.approx(expected.p_value)
    code, out, _ = deepauc(*arguments)
    assert "clustered by group" in out


def test_compare_runs_on_their_test_part(deepauc, run_folders):
    code, out, _ = deepauc("compare", run_folders / "auc" / "scores.csv", run_folders / "ce" / "scores.csv")
    assert code == 0
    assert "80 rows" in out


def test_compare_joins_on_ids(deepauc, tmp_path):
    scores = np.linspace(-1, 1, 12)
    a = write_csv(tmp_path / "a.csv", {"id": range(12), "label": [0, 0, 1] * 4, "score": scores})
    b = write_csv(tmp_path / "b.csv", {"id": range(11, -1, -1), "label": [1, 0, 0] * 4, "score": scores[::-1] * 3})
    _, out, _ = deepauc("compare", a, b)
    assert "joined on 12 ids" in out
    assert "+0.000 [+0.000, +0.000]" in out


@pytest.mark.parametrize(
    ("other", "differs"),
    [
        (["x", "x", "y", "y", "z", "z"] * 2, False),  # other names for the same patients
        (["a", "b", "b", "c", "c", "a"] * 2, True),
        (["a", "a", "b", "b", "b", "b"] * 2, True),  # two of A's in one of B's
        (["a", "d", "b", "b", "c", "c"] * 2, True),  # and the other way round
    ],
)
def test_compare_says_where_the_files_part_the_rows_otherwise(deepauc, tmp_path, other, differs):
    columns = {"id": range(12), "label": [0, 0, 1] * 4, "score": np.linspace(-1, 1, 12)}
    a = write_csv(tmp_path / "a.csv", {**columns, "group": ["a", "a", "b", "b", "c", "c"] * 2})
    b = write_csv(tmp_path / "b.csv", {**columns, "score": np.linspace(1, -1, 12), "group": other})
    code, out, _ = deepauc("compare", a, b)
    assert code == 0
    assert ("Caution. " in out) == differs
    assert json.loads(deepauc("compare", a, b, "--json")[1])["groups_differ"] == differs


def test_bad_input_is_one_line_with_a_remedy(refused, foreign, tmp_path):
    path = foreign[0]
    assert "does not exist" in refused("evaluate", tmp_path / "none.csv")
    assert "--label-column" in refused("evaluate", path)
    assert "--positive" in refused("evaluate", path, "--label-column", "truth", "--score-column", "net")
    assert "it has no part column" in refused("evaluate", path, *OPTIONS, "--score-column", "net", "--part", "test")
    one_class = write_csv(tmp_path / "one.csv", {"label": [1, 1], "score": [1, 2]})
    assert "both classes" in refused("evaluate", one_class)
    nan = write_csv(tmp_path / "nan.csv", {"label": [1, 0], "score": ["nan", 2]})
    assert "line 2" in refused("evaluate", nan)
    short = write_csv(tmp_path / "short.csv", {"label": [1, 0], "score": [1, 2]})
    three = write_csv(tmp_path / "three.csv", {"label": [1, 0, 1], "score": [1, 2, 3]})
    assert "--id-column" in refused("compare", short, three)


def test_evaluate_shows_high_specificities_where_negatives_are_many(deepauc, tmp_path):
    generator, rows = np.random.default_rng(0), 4400
    labels = (np.arange(rows) % 44 == 0).astype(int)
    columns = {
        "part": np.where(np.arange(rows) < rows // 2, "validation", "test"),
        "label": labels,
        "score": generator.normal(2 * labels),
    }
    path = write_csv(tmp_path / "scores.csv", columns)
    _, out, _ = deepauc("evaluate", path)
    assert " 99.5 % specificity |" in out
    assert "left out" not in out
    short = write_csv(
        tmp_path / "short.csv", {name: values[rows // 2 - 300 : rows // 2 + 300] for name, values in columns.items()}
    )
    _, out, _ = deepauc("evaluate", short)
    assert " 99.5 % |" not in out
    assert "98 %, 99 %, 99.5 %" in out


def test_report_says_where_it_is(deepauc, run_folders, spots_task, tmp_path):
    task = spots_task()
    metadata = write_csv(tmp_path / "meta.csv", {"file": task.ids, "sex": task.metadata["sex"]})
    code, out, _ = deepauc(
        *("report", run_folders / "ce", "--baseline", run_folders / "auc", "--out", tmp_path / "out"),
        *("--metadata", metadata, "--id-column", "file", "--subgroup-column", "sex", "--json"),
    )
    found = json.loads(out)
    assert code == 0
    assert set(found["auc"]) == {"spot"}
    text = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert found["html"] == str(tmp_path / "out" / "report.html")
    assert "By sex" in text
    assert "deepauc report" in text
    assert f"--baseline {run_folders / 'auc'}" in text
    assert not (run_folders / "ce" / "report.html").exists()


def test_patients_labels_and_parts_are_no_subgroups_unless_asked_for(deepauc, run_folders, spots_task, tmp_path):
    task = spots_task()
    run = shutil.copytree(run_folders / "ce", tmp_path / "run")
    record = json.loads((run / "run.json").read_text())
    columns = {"label_columns": ["spot"], "group_column": "patient", "split_column": "part", "image_column": "file"}
    (run / "run.json").write_text(json.dumps({**record, "data": columns}))
    cells = {
        "file": task.ids,
        "sex": task.metadata["sex"],
        "spot": (task.labels == 1).astype(int),
        "patient": np.arange(len(task)) // 4,
        "part": np.where(np.arange(len(task)) % 2, "train", "test"),
    }
    words = ("report", run, "--metadata", write_csv(tmp_path / "meta.csv", cells), "--id-column", "file")
    for asked, expected in (((), {"sex"}), (("--subgroup-column", "part"), {"part"})):
        assert deepauc(*words, "--out", tmp_path / "out", *asked)[0] == 0
        text = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
        assert {name for name in cells if f"By {name}" in text} == expected


def test_report_says_where_a_baseline_could_not_be_tested_against(deepauc, run_folders, copy_to_edit, tmp_path):
    """It was asked for by name: that it is missing stands in the report, and is said."""
    other = tmp_path / "other"
    copy_to_edit(run_folders / "auc", other)
    scores = (other / "scores.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    (other / "scores.csv").write_text("".join([scores[0], *(f"x{line}" for line in scores[1:])]), encoding="utf-8")
    words = ("report", run_folders / "ce", "--out", tmp_path / "out", "--quiet")
    code, out, _ = deepauc(*words, "--baseline", other)
    assert code == 0
    assert out.splitlines()[0].startswith(f"not tested against {other}: ids in both files: 0")
    assert "deepauc compare --common" in out
    assert len(deepauc(*words, "--baseline", run_folders / "auc")[1].splitlines()) == 1


def test_report_refuses_columns_of_a_table_that_is_not_named(deepauc, run_folders, tmp_path):
    for option in ("--id-column", "--subgroup-column"):
        code, _, errors = deepauc("report", run_folders / "ce", option, "file", "--out", tmp_path / "out")
        assert code == 2
        assert f"{option} names a column of the metadata" in errors
    assert not (tmp_path / "out").exists()


def test_report_says_at_once_what_it_does(deepauc, run_folders, tmp_path):
    code, out, errors = deepauc("report", run_folders / "ce", "--out", tmp_path)
    assert (code, errors) == (0, "")
    assert out.splitlines()[0] == f"Writing the report of {run_folders / 'ce'}"
    _, out, _ = deepauc("report", run_folders / "ce", "--out", tmp_path, "--quiet")
    assert out == f"Report: {tmp_path / 'report.html'}\n"


def test_report_counts_its_steps(run_folders, tmp_path):
    told = []
    written = write_report(run_folders / "multi", out=tmp_path, progress=lambda done, of: told.append((done, of)))
    done, of = zip(*told, strict=True)
    assert len(told) == len(written.findings.labels) + len(written.figures)
    assert list(done) == sorted(set(done))
    assert set(of) == {done[-1]}
    assert done[2] == done[-1] / 2  # three labels judged: the figures are to come


def test_report_refuses_what_is_no_run(refused, run_folders, tmp_path):
    assert "no finished run" in refused("report", tmp_path)
    assert "--metadata" in refused("report", run_folders / "ce", "--subgroup-column", "sex")
    meta = write_csv(tmp_path / "meta.csv", {"file": ["x"], "sex": ["f"]})
    assert "--id-column" in refused("report", run_folders / "ce", "--metadata", meta)


def scored(tmp_path, name, *, rows=200, seed=0, strength=1.0, **columns):
    generator = np.random.default_rng(seed)
    labels = np.arange(rows) % 4 == 0
    cells = {"id": np.arange(rows), "label": labels.astype(int), "score": generator.normal(strength * labels)}
    return write_csv(tmp_path / name, {**cells, **columns})


def test_positive_says_what_else_there_is(deepauc, tmp_path):
    words = np.where(np.arange(200) % 4 == 0, "malignant", np.where(np.arange(200) % 3 == 0, "unknown", "benign"))
    path = scored(tmp_path, "words.csv", label=words)
    code, out, _ = deepauc("evaluate", path, "--positive", "malignant")
    assert code == 0
    assert "all but 'malignant' counts as negative: benign (100), unknown (50)." in " ".join(out.split())
    code, _, errors = deepauc("evaluate", path, "--positive", "bad")
    assert (code, "There are: benign (100)" in errors) == (2, True)
    capital = scored(tmp_path, "capital.csv", label=np.where(np.arange(200) == 8, "Malignant", words))
    code, _, errors = deepauc("evaluate", capital, "--positive", "malignant")
    assert (code, "only in capitals" in errors) == (2, True)
    numbers = scored(tmp_path, "numbers.csv", label=np.where(np.arange(200) % 4 == 0, "3.0", "1.0"))
    assert deepauc("evaluate", numbers, "--positive", "3")[0] == 0


def test_compare_pools_no_rows_of_several_parts(deepauc, tmp_path):
    parts = np.where(np.arange(200) < 100, "train", "holdout")
    a, b = (scored(tmp_path, name, seed=seed, part=parts) for seed, name in enumerate("ab"))
    code, _, errors = deepauc("compare", a, b)
    assert (code, "'train', 'holdout'" in errors, "--part" in errors) == (2, True, True)
    assert "100 rows (the holdout part)" in deepauc("compare", a, b, "--part", "holdout")[1]


def test_compare_takes_a_file_without_parts_on_either_side(deepauc, tmp_path):
    parts = np.where(np.arange(200) < 100, "test", "validation")
    whole = scored(tmp_path, "whole.csv", part=parts)
    half = write_csv(tmp_path / "half.csv", {"id": np.arange(100), "label": (np.arange(100) % 4 == 0).astype(int),
                                             "score": np.random.default_rng(5).normal(size=100)})  # fmt: skip
    for pair in ((whole, half), (half, whole)):
        code, out, errors = deepauc("compare", *pair)
        assert (code, errors) == (0, "")
        assert "100 rows (the test part)" in out


def test_compare_passes_on_what_evaluate_says_of_a_file(deepauc, tmp_path):
    ids = np.arange(200) // 2
    a, b = (scored(tmp_path, name, seed=seed, id=ids) for seed, name in enumerate("ab"))
    said = "100 rows have the id of an earlier row of the same part."
    assert said in deepauc("evaluate", a)[1]
    code, out, _ = deepauc("compare", a, b)
    assert (code, out.count(said)) == (0, 2)  # of either file


def test_compare_counts_labelled_rows_and_refuses_where_nothing_can_be_compared(deepauc, tmp_path):
    labels = np.where(np.arange(200) % 2 == 0, (np.arange(200) % 4 == 0).astype(int).astype(str), "")
    a, b = (scored(tmp_path, n, seed=s, label=labels, group=np.arange(200) // 2) for s, n in enumerate("ab"))
    out = deepauc("compare", a, b)[1]
    assert "100 rows (all rows)" in out
    assert "Test: DeLong." in out  # of two rows of a group one has a label
    two = {"label:x": np.zeros(200, int), "label:y": np.zeros(200, int)}
    two |= {f"score:{name}": np.random.default_rng(0).normal(size=200) for name in "xy"}
    c = write_csv(tmp_path / "c.csv", {"id": np.arange(200), **two})
    code, _, errors = deepauc("compare", c, c)
    assert (code, len(errors.splitlines())) == (2, 1)


def test_scores_without_labels_are_named(deepauc, tmp_path):
    generator = np.random.default_rng(0)
    cells = {"id": np.arange(40), "label:x": np.arange(40) % 4 == 0, "score:x": generator.normal(size=40)}
    path = write_csv(tmp_path / "s.csv", {**cells, "score:y": generator.normal(size=40)})
    code, out, _ = deepauc("evaluate", path)
    assert (code, "score:y: it has no column of labels" in out) == (0, True)


def test_control_characters_of_a_table_are_shown_and_not_obeyed(deepauc, tmp_path):
    """As a terminal would: here one that sets its title, and one that clears the screen."""
    path, label = tmp_path / "s.csv", "\x1b]0;title\x07\x9b2J"
    rows = "".join(f"{n % 2},{n}\n" for n in range(8))
    path.write_text(f"label:{label},score:{label}\n{rows}", encoding="utf-8")
    for words in ((path,), (path, "--quiet"), (path, "--label-column", "other")):
        _, out, err = deepauc("evaluate", *words)
        assert r"\x1b]0;title\x07\x9b2J" in out + err
        assert not set(out + err) & set("\x1b\x07\x9b")


def test_too_little_memory_is_one_line(deepauc, tmp_path, monkeypatch):
    def full(*_, **__):
        raise MemoryError("Unable to allocate 9.69 GiB")

    monkeypatch.setattr("deepauc.training.run.scores.read_scores", full)
    (tmp_path / "s.csv").write_text("label,score\n0,1\n1,2\n")
    code, _, err = deepauc("evaluate", tmp_path / "s.csv")
    assert (code, err) == (2, "deepauc: there is not enough memory: Unable to allocate 9.69 GiB\n")


def test_each_label_of_new_rows_has_its_own_line(deepauc, tmp_path, monkeypatch):
    def label(name, value, part):
        auc = Estimate(value, value - 0.1, value + 0.1)
        return ExternalLabel(name=name, rows=40, positives=9, auc=auc, training=auc, part=part)

    found = External(table="t.csv", labels=(label("ill", 0.7, "oof"), label("tired", 0.6, "test")))
    monkeypatch.setattr(external, "evaluate_table", lambda *_, **__: found)
    code, out, _ = deepauc("evaluate", tmp_path, "--table", tmp_path / "t.csv", "--quiet")
    assert (code, out) == (0, "ill  0.700 [0.600, 0.800]\ntired  0.600 [0.500, 0.700]\n")
    for words in (("--part", "test"), ("--part-column", "part"), ("--score-column", "score")):
        code, out, err = deepauc("evaluate", tmp_path, "--table", tmp_path / "t.csv", *words)
        assert (code, out) == (2, "")
        assert "leave them out with --table" in err
    assert [row[4].partition("(")[2] for row in found.rows()] == ["the held-out rows of all folds)", "the test part)"]
