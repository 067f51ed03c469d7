"""`predict --weight learned`: how much each run counts comes from the validation part of the runs and no other."""

import csv
import json

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from deepauc.cli.main import run
from deepauc.training.predict.table import predict_table

COLUMNS = ("--label-column", "target", "--id-column", "name", "--split-column", "part")
RUNS = {"strong": "clear", "weak": "dim"}


def table_rows(count=400):
    """`clear` says much of the label, `dim` a little, given the label independently of each other."""
    draw = np.random.default_rng(0)
    rows = []
    for number in range(count):
        label = int(draw.random() < 0.4)
        part = ("train", "train", "validation", "test")[number % 4]
        known = {"name": f"row-{number}", "target": label, "part": part}
        rows.append({**known, "clear": draw.normal(2.0 * label), "dim": draw.normal(0.7 * label)})
    return rows


@pytest.fixture(scope="module")
def clinic(tmp_path_factory, write_table):
    """Two runs, one on each column, with the same parts; trained once, and copied where a test damages them."""
    place = tmp_path_factory.mktemp("clinic")
    write_table(place / "t.csv", table_rows())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deepauc.pipeline.outcome.write_report", lambda run_dir, *, command: None)
        for name, column in RUNS.items():
            words = ["train", "--table", str(place / "t.csv"), "--metadata-column", column, *COLUMNS]
            with pytest.raises(SystemExit) as end:
                run([*words, "--out", str(place / name), "--epochs", "6", "--quiet"])
            assert not end.value.code
    return place


@pytest.fixture
def predicted(clinic, deepauc, tmp_path):
    """Predict with these words; (exit code, what it said, errors, rows by name)."""

    def call(*words, folder=clinic, table=clinic / "t.csv"):
        out = tmp_path / "s.csv"
        out.unlink(missing_ok=True)
        runs = [folder / name for name in RUNS]
        found = deepauc("predict", *runs, "--table", table, "--id-column", "name", *words, "--out", out)
        return *found, read(out) if out.exists() else None

    return call


@pytest.fixture
def copies(clinic, tmp_path, copy_to_edit):
    """The two runs, to be damaged."""
    for name in RUNS:
        copy_to_edit(clinic / name, tmp_path / "copies" / name)
    return tmp_path / "copies"


def read(path):
    with path.open(newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def rewrite(path, change):
    """scores.csv with each row as `change` makes it, without those for which it gives None."""
    with path.open(newline="") as file:
        rows = [made for row in csv.DictReader(file) if (made := change(row)) is not None]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def flipped(*parts):
    return lambda row: {**row, "label": "01"[row["label"] == "0"]} if row["part"] in parts else row


def without_validation(row):
    return None if row["part"] == "validation" else row


def raw(clinic, part):
    """Scores of both runs (n, 2) and labels (n,) of a part, by scores.csv."""
    first, second = (read(clinic / name / "scores.csv") for name in RUNS)
    rows = [row for row, cells in first.items() if cells["part"] == part]
    scores = np.array([[float(one[row]["score"]) for one in (first, second)] for row in rows])
    return rows, scores, np.array([int(first[row]["label"]) for row in rows])


def test_the_weights_are_those_of_a_logistic_regression_on_validation(clinic, predicted):
    _, scores, labels = raw(clinic, "validation")
    centre, spread = scores.mean(axis=0), scores.std(axis=0)
    z, (n, p) = (scores - centre) / spread, np.bincount(labels)
    targets = np.where(labels == 1, (p + 1) / (p + 2), 1 / (n + 2))
    model = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(
        np.concatenate([z, z]), np.repeat([1, 0], len(z)), sample_weight=np.concatenate([targets, 1 - targets])
    )
    shares = model.coef_[0] / model.coef_[0].sum()
    assert 0.55 < shares[0] < 0.95  # both say something, the first more
    code, text, errors, _ = predicted("--weight", "learned")
    assert (code, errors) == (0, "")
    assert f"mean over 2 runs that count {shares[0]:.3g}, {shares[1]:.3g} (learned on validation)" in " ".join(
        text.split()
    )
    words = ("--weight", "learned", "--probability", "--parts", "--label-column", "target", "--json")
    code, text, _, rows = predicted(*words)
    assert code == 0
    assert json.loads(text)["learned_weights"]["target"] == pytest.approx(shares, abs=1e-5)
    assert f"({100 * p / (n + p):.3g} % positive)" in json.loads(text)["probability_meaning"]
    names, scores, _ = raw(clinic, "test")
    found = np.array([[float(rows[name][column]) for column in ("score", "probability")] for name in names])
    assert found[:, 0] == pytest.approx((scores - centre) / spread @ shares, abs=1e-4)
    assert found[:, 1] == pytest.approx(model.predict_proba((scores - centre) / spread)[:, 1], abs=1e-4)


def test_the_function_gives_what_the_command_gives(clinic, predicted):
    rows = predicted("--weight", "learned", "--probability")[-1]
    folders = [clinic / name for name in RUNS]
    found = predict_table(folders, clinic / "t.csv", id_column="name", weights="learned", probability=True)
    assert found.ids.tolist() == list(rows)
    for column, values in (("score", found.scores), ("probability", found.probabilities)):
        assert [float(row[column]) for row in rows.values()] == values[:, 0].tolist()


def test_labels_of_test_and_train_and_of_the_table_change_nothing(clinic, predicted, copies, tmp_path, write_table):
    before = predicted("--weight", "learned")[-1]
    for name in RUNS:
        rewrite(copies / name / "scores.csv", flipped("test", "train"))
    table = write_table(tmp_path / "new.csv", [{**row, "target": 1 - row["target"]} for row in table_rows()])
    assert predicted("--weight", "learned", folder=copies, table=table)[-1] == before
    for name in RUNS:
        rewrite(copies / name / "scores.csv", lambda row: row if int(row["id"][4:]) % 5 else flipped("validation")(row))
    assert predicted("--weight", "learned", folder=copies)[-1] != before


def test_new_rows_get_the_same_weights_one_by_one(clinic, predicted, tmp_path, write_table):
    """What is scored has no part in it: a table of one row that no run has seen."""
    known = predicted("--weight", "learned")[-1]["row-7"]["score"]
    (row,) = (row for row in table_rows() if row["name"] == "row-7")
    table = write_table(tmp_path / "one.csv", [{"name": "new", "clear": row["clear"], "dim": row["dim"]}])
    assert float(predicted("--weight", "learned", table=table)[-1]["new"]["score"]) == pytest.approx(
        float(known), abs=1e-6
    )


def few(count):
    """Only the first `count` positives of validation stay."""
    kept = []

    def change(row):
        if row["part"] == "validation" and row["label"] == "1":
            if len(kept) == count:
                return None
            kept.append(row)
        return row

    return change


BACKWARDS = lambda row: {**row, "score": str(-float(row["score"]))}  # noqa: E731
EQUAL = lambda row: {**row, "score": "0.1"}  # noqa: E731


@pytest.mark.parametrize("change", [BACKWARDS, EQUAL])
def test_a_run_that_ranks_backwards_or_not_at_all_counts_nothing(predicted, copies, change):
    rewrite(copies / "weak" / "scores.csv", change)
    code, text, _, _ = predicted("--weight", "learned", "--json", folder=copies)
    assert code == 0
    assert json.loads(text)["learned_weights"]["target"] == [1, 0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weak": without_validation}, "weak was trained without a validation part"),
        ({name: few(9) for name in RUNS}, "validation has 9 positives and"),
        ({"weak": flipped("validation")}, "have different labels for the same ids"),
        ({"weak": lambda row: {**row, "part": "train"} if row["id"] == "row-2" else row}, "not trained on the same sp"),
        ({"weak": lambda row: {**row, "id": row["id"] + "b"}}, "have different ids"),
        ({"weak": lambda row: {**row, "id": row["id"].replace("row-6", "row-2")}}, "two validation rows have the id"),
        ({"weak": lambda row: {**row, "score": "x"}}, "scores.csv is damaged"),
        (dict.fromkeys(RUNS, BACKWARDS), "no model's scores rise with the label"),
    ],
)  # fmt: skip
def test_what_cannot_be_learned_from_is_one_line(predicted, copies, changes, message):
    for name, change in changes.items():
        rewrite(copies / name / "scores.csv", change)
    code, _, errors, rows = predicted("--weight", "learned", folder=copies)
    assert (code, rows) == (2, None)
    assert message in errors
    assert len(errors.splitlines()) == 1


def test_a_validation_part_that_is_missing_or_small_names_the_remedy(predicted, copies):
    for name in RUNS:
        rewrite(copies / name / "scores.csv", few(10))
    assert predicted("--weight", "learned", folder=copies)[0] == 0  # ten are enough
    for name in RUNS:
        rewrite(copies / name / "scores.csv", without_validation)
    _, _, errors, _ = predicted("--weight", "learned", folder=copies)
    assert "train it with one, or give the weight of each run yourself (--weight 0.8 --weight 0.2)" in errors
    (copies / "weak" / "scores.csv").unlink()
    (copies / "strong" / "scores.csv").unlink()
    assert "name the folder of the run itself" in predicted("--weight", "learned", folder=copies)[2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--weight", "learned", "--scale", "rank"), "leave scale out"),
        (("--weight", "learned", "--weight", "1"), "--weight learned --weight 1: write one number per run"),
        (("--weight", "half"), "--weight half: write one number per run, in their order, or --weight learned alone"),
    ],
)
def test_words_that_do_not_go_together(predicted, words, message):
    code, _, errors, rows = predicted(*words)
    assert (code, rows) == (2, None)
    assert message in errors


def test_one_run_has_nothing_to_weigh(clinic, deepauc, tmp_path):
    words = ("--table", clinic / "t.csv", "--id-column", "name", "--weight", "learned", "--out", tmp_path / "s.csv")
    code, _, errors = deepauc("predict", clinic / "strong", *words)
    assert code == 2
    assert "this is one run: leave them out" in errors
