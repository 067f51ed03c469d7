"""Images and patient metadata from one table: two runs, one split, the mean of their scores."""

import csv
import json

import numpy as np
import pytest
from PIL import Image

from deepauc.models.fusion import MetadataEncoder

LABELS = ("--label-column", "target", "--group-column", "patient_id")
IMAGES = ("--image-column", "file", *LABELS, "--model", "small-cnn")
METADATA = (*LABELS, "--metadata-column", "age", "--metadata-column", "sex", "--category-column", "site")
NAMED = (*METADATA, "--id-column", "file")
SHORT = ("--epochs", "1", "--quiet")


def table_rows(folder, count=120):
    """Pictures that say a little, ages that say a little, two rows to a patient; sites are codes."""
    draw = np.random.default_rng(0)
    (folder / "images").mkdir()
    rows = []
    for number in range(count):
        label = int(draw.random() < 0.4)
        picture = np.clip(draw.normal(110 + 8 * label, 40, (8, 8)), 0, 255).astype(np.uint8)
        Image.fromarray(picture).save(folder / f"images/{number}.png")
        age = "" if number % 10 == 3 else int(draw.normal(50 + 10 * label, 10))
        sex = ("f", "m", "")[number % 3]
        part = ("train", "train", "validation", "test")[number // 2 % 4]
        known = {"file": f"images/{number}.png", "target": label, "patient_id": f"p{number // 2}"}
        rows.append({**known, "age": age, "sex": sex, "site": (7, 12)[number % 2], "part": part})
    return rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory, write_table):
    place = tmp_path_factory.mktemp("clinic")
    write_table(place / "t.csv", table_rows(place))
    return place


@pytest.fixture
def runs(folder, deepauc, no_report):
    """A run on images, and one on metadata with the same split, trained once for all tests."""
    splits = (*IMAGES, "--split-column", "part"), (*NAMED, "--split-of", folder / "images-run")
    for name, words in zip(("images", "patients"), splits, strict=True):
        out = folder / f"{name}-run"
        if not out.exists():
            code, _, errors = deepauc("train", "--table", folder / "t.csv", *words, "--out", out, *SHORT)
            assert (code, errors) == (0, "")
    return folder / "images-run", folder / "patients-run"


def read(path):
    with path.open(newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def sigmoid(rows):
    return {name: 1 / (1 + np.exp(-float(row["score"]))) for name, row in rows.items()}


def encoder(run):
    return {column["name"]: column for column in json.loads((run / "bundle.json").read_text())["metadata"]["columns"]}


def test_fused_scores_are_the_mean_of_both_after_a_sigmoid(runs, folder, deepauc, tmp_path):
    images, patients = (read(run / "scores.csv") for run in runs)
    assert {name: row["part"] for name, row in images.items()} == {name: row["part"] for name, row in patients.items()}
    words = ("--table", folder / "t.csv", *LABELS, "--parts")
    for order in (runs, runs[::-1]):
        assert deepauc("predict", *order, *words, "--out", tmp_path / "fused.csv")[0] == 0
        fused = read(tmp_path / "fused.csv")
        first, second = sigmoid(images), sigmoid(patients)
        for name, row in fused.items():
            assert float(row["score"]) == pytest.approx((first[name] + second[name]) / 2, abs=1e-6)
            assert (row["part"], row["label"], row["group"]) == tuple(
                images[name][column] for column in ("part", "label", "group")
            )
    code, text, _ = deepauc("compare", tmp_path / "fused.csv", runs[0] / "scores.csv", "--json")
    assert code == 0
    found = json.loads(text)
    assert (found["part"], found["rows"], found["clustered"]) == (
        *("test", sum(row["part"] == "test" for row in images.values()), True),
    )
    assert found["labels"][0]["difference"]["low"] < found["labels"][0]["difference"]["high"]
    code, text, _ = deepauc("evaluate", tmp_path / "fused.csv", "--json")
    assert code == 0
    assert {one["part"] for one in json.loads(text)["results"]} == {"train", "validation", "test"}


def test_the_encoder_comes_from_the_rows_of_train_alone(folder, deepauc, no_report, tmp_path, write_table):
    with (folder / "t.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        if row["part"] != "train":
            row.update(age="900", sex="x", site="99")
    write_table(tmp_path / "t.csv", rows)
    words = ("--table", tmp_path / "t.csv", *METADATA, "--split-column", "part", "--out", tmp_path / "run", *SHORT)
    assert deepauc("train", *words)[0] == 0
    ages = [float(row["age"]) for row in rows if row["part"] == "train" and row["age"]]
    found = encoder(tmp_path / "run")
    assert (found["age"]["mean"], found["age"]["scale"]) == pytest.approx((np.mean(ages), np.std(ages)))
    assert (found["sex"]["categories"], found["site"]["categories"]) == (["f", "m"], ["12", "7"])
    assert found["age"]["missing_seen"]
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["data"]["metadata_columns"] == ["age", "sex"]
    assert record["data"]["category_columns"] == ["site"]
    assert "nothing was changed" in deepauc("train", *words[:-1])[1]


def test_new_patients_are_encoded_as_in_training(runs, deepauc, tmp_path):
    """An unknown sex counts as a missing one; codes are the same however they are written; no image is needed."""
    (tmp_path / "new.csv").write_text("who,age,sex,site\na,61,,7\nb,61,other,7.0\nc,61,f,12\nd,,m,7\n")
    words = ("--table", tmp_path / "new.csv", "--id-column", "who", "--out", tmp_path / "s.csv")
    assert deepauc("predict", runs[1], *words)[0] == 0
    rows = read(tmp_path / "s.csv")
    assert list(rows) == ["a", "b", "c", "d"]
    assert rows["a"]["score"] == rows["b"]["score"]
    assert len({row["score"] for row in rows.values()}) == 3
    for extra in (("--feature-column", "age"), ("--image-column", "who")):
        code, _, errors = deepauc("predict", runs[1], *words, *extra)
        assert code == 2
        assert "finds its columns by name" in errors


def test_a_word_among_numbers_is_named_by_its_line(runs, folder, deepauc, tmp_path):
    new = tmp_path / "new.csv"
    new.write_text("who,age,sex,site\na,61,f,7\nb,sixty,f,7\n")
    out = ("--id-column", "who", "--out", tmp_path / "s.csv")
    code, text, _ = deepauc("predict", runs[1], "--table", new, *out)
    assert code == 2
    assert "3    age     no number  'sixty': leave it empty" in text
    assert deepauc("predict", runs[1], "--table", new, *out, "--skip-bad")[0] == 0
    assert list(read(tmp_path / "s.csv")) == ["a"]
    lines = (folder / "t.csv").read_text().splitlines()
    cells = lines[6].split(",")
    lines[6] = ",".join([*cells[:3], "4O", *cells[4:]])
    (tmp_path / "typo.csv").write_text("\n".join(lines))
    for command in (("data", "check"), ("train", "--out", tmp_path / "run", "--table")):
        code, text, _ = deepauc(*command, tmp_path / "typo.csv", *METADATA)
        assert code == 2
        assert "7    age     no number  '4O': most cells of the column are numbers" in text


def test_runs_of_different_splits_are_told(runs, folder, deepauc, no_report, tmp_path):
    other = tmp_path / "other"
    words = ("--table", folder / "t.csv", *NAMED, "--out", other, *SHORT)
    assert deepauc("train", *words)[0] == 0
    both = ("predict", runs[0], other, "--table", folder / "t.csv", "--out", tmp_path / "fused.csv")
    code, _, errors = deepauc(*both, "--parts")
    assert code == 2
    assert "not trained on the same split" in errors
    assert "--split-of" in errors
    assert not (tmp_path / "fused.csv").exists()
    first, second = (read(run / "scores.csv") for run in (runs[0], other))
    apart = sum(row["part"] != second[name]["part"] for name, row in first.items())
    code, text, _ = deepauc(*both)
    assert code == 0
    assert "Caution. " in text
    assert f": {apart} (" in " ".join(text.split())


def test_rows_that_the_other_run_has_not_are_in_no_part(runs, folder, deepauc, no_report, tmp_path):
    table = tmp_path / "more.csv"
    lines = (folder / "t.csv").read_text().splitlines()
    table.write_text(
        "\n".join([*lines[:-1], "images/new.png,1,p0,90,f,7,"])
    )  # one row less, one more, of a known patient
    words = ("--table", table, *NAMED, "--split-of", runs[0], "--out", tmp_path / "run", *SHORT)
    assert deepauc("train", *words)[0] == 0
    assert read(tmp_path / "run" / "scores.csv").keys() == read(runs[0] / "scores.csv").keys() - {"images/119.png"}
    split = json.loads((tmp_path / "run" / "run.json").read_text())["plan"]["choices"][0]
    assert (split["rests_on"]["left"], split["rests_on"]["gone"]) == (1, 1)


def test_a_run_that_calls_rows_by_lines_cannot_say_its_parts(runs, folder, deepauc, no_report, tmp_path):
    words = ("--table", folder / "t.csv", *METADATA, "--out", tmp_path / "lines", *SHORT)
    assert deepauc("train", *words)[0] == 0
    both = ("--table", folder / "t.csv", "--parts", "--out", tmp_path / "fused.csv")
    code, _, errors = deepauc("predict", runs[0], tmp_path / "lines", *both)
    assert code == 2
    assert "lines knows none of these rows by name" in errors


def test_parts_of_rows_that_no_run_knows(runs, folder, deepauc, tmp_path):
    (folder / "more.csv").write_text("file,age,sex,site\nimages/0.png,50,f,7\nimages/../images/1.png,50,f,7\n")
    words = ("--table", folder / "more.csv", "--parts", "--out", tmp_path / "s.csv")
    assert deepauc("predict", *runs, *words)[0] == 0
    known = read(runs[0] / "scores.csv")["images/0.png"]["part"]
    assert [row["part"] for row in read(tmp_path / "s.csv").values()] == [known, "none"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda columns: columns.pop(),
        lambda columns: columns[0].update(scale=0),
        lambda columns: columns[0].update(mean="x"),
        lambda columns: columns[0].update(kind="image"),
        lambda columns: columns[1].update(categories=[1, 2]),
        lambda columns: columns[1].pop("name"),
    ],
)
def test_a_damaged_encoder_is_refused(runs, folder, deepauc, tmp_path, damage):
    bundle = json.loads((runs[1] / "bundle.json").read_text())
    damage(bundle["metadata"]["columns"])
    (tmp_path / "bundle.json").write_text(json.dumps(bundle))
    (tmp_path / "model.safetensors").write_bytes((runs[1] / "model.safetensors").read_bytes())
    code, _, errors = deepauc("predict", tmp_path, "--table", folder / "t.csv", "--out", tmp_path / "s.csv")
    assert code == 2
    assert "metadata do not fit the inputs" in errors
    assert len(errors.splitlines()) == 1


def test_an_onnx_file_says_how_its_features_are_made(runs, folder, deepauc, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    assert deepauc("export", runs[1], "--onnx", tmp_path / "m.onnx")[0] == 0
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    about = session.get_modelmeta().custom_metadata_map
    assert "as `metadata` encodes them" in about["inputs"]
    with (folder / "t.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    columns = {
        "age": np.array([float(row["age"] or "nan") for row in rows]),
        "sex": np.array([row["sex"] or None for row in rows], dtype=object),
        "site": np.array([row["site"] for row in rows], dtype=object),
    }
    features = MetadataEncoder.from_dict(json.loads(about["metadata"])).transform(columns)
    found = session.run(["scores"], {"inputs": features})[0][:, 0]
    known = read(runs[1] / "scores.csv")
    assert found == pytest.approx([float(known[row["file"]]["score"]) for row in rows], abs=1e-5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*IMAGES, "--metadata-column", "age", "--folds", "0", "--tta", "2"), "tta does not work with images"),
        ((*IMAGES, "--metadata-column", "age", "--examples"), "leave it out, or the metadata"),
        ((*METADATA, "--feature-column", "part"), "feature columns and metadata columns cannot be used together"),
        ((*IMAGES, "--feature-column", "age"), "feature columns and an image column cannot be used together"),
        (LABELS, "the input columns are missing"),
        ((*LABELS, "--metadata-column", "file"), "names, not categories"),
        ((*LABELS, "--metadata-column", "target"), "'target' is named for two purposes"),
        ((*METADATA, "--metadata-column", "site"), "'site' is named for two purposes"),
        ((*METADATA, "--split-of", "images-run"), "name the column of ids, --id-column"),
        ((*NAMED, "--split-of", "images-run", "--split-column", "part"), "leave out the split column"),
        ((*METADATA, "--id-column", "number", "--split-of", "images-run"), "knows none of these rows by name"),
        ((*NAMED, "--split-of", "nothing"), "holds no finished run"),
    ],
)
def test_what_is_refused_is_one_line(runs, folder, deepauc, monkeypatch, words, message):
    monkeypatch.chdir(folder)
    with (folder / "t.csv").open(newline="") as file:
        lines = [line.rstrip("\r\n") for line in file]
    numbers = ["number", *map(str, range(1, len(lines)))]
    (folder / "numbered.csv").write_text("\n".join(f"{a},{b}" for a, b in zip(lines, numbers, strict=True)))
    code, _, errors = deepauc("train", "--table", "numbered.csv", *words, "--out", "refused", *SHORT)
    assert code == 2
    assert message in errors
    assert len(errors.splitlines()) == 1
    assert not (folder / "refused").exists()
