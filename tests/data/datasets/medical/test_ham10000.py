"""HAM10000: the download's layout, and the real file of 64 px."""

import numpy as np
import pytest

from deepauc.data.datasets.catalogue import CATALOGUE, load_named
from deepauc.data.datasets.medical import ham10000
from deepauc.data.datasets.medical.ham10000 import load_ham10000, load_ham10000_sheets
from deepauc.data.datasets.sheets import read_sheets
from deepauc.data.splits import check_leaks, k_fold

HEADER = ["lesion_id", "image_id", "dx", "dx_type", "age", "sex", "localization"]
ROWS = [
    ["HAM_0000118", "ISIC_0027419", "bkl", "histo", "80.0", "male", "scalp"],
    ["HAM_0000118", "ISIC_0025030", "bkl", "histo", "80.0", "male", "scalp"],
    ["HAM_0002730", "ISIC_0026769", "mel", "histo", "", "unknown", "unknown"],
    ["HAM_0001466", "ISIC_0031633", "nv", "follow_up", "75.0", "female", "ear"],
]


@pytest.fixture
def ham(tmp_path, write_csv, write_image):
    def make(rows=ROWS, table="HAM10000_metadata.csv", folders=("HAM10000_images_part_1", "HAM10000_images_part_2")):
        folder = tmp_path / "ham10000"
        write_csv(folder / table, HEADER, rows)
        for seed, row in enumerate(ROWS):
            write_image(folder / folders[seed % len(folders)] / f"{row[1]}.jpg", seed=seed, mode="RGB")
        return folder

    return make


@pytest.mark.parametrize("table", ["HAM10000_metadata.csv", "HAM10000_metadata"])
@pytest.mark.parametrize(
    "folders", [("HAM10000_images_part_1", "HAM10000_images_part_2"), ("ham10000_images_part_1",), ("images",)]
)
def test_download(ham, table, folders):
    folder = ham(table=table, folders=folders)
    task = load_ham10000(folder, size=16)
    assert task.labels.tolist() == [0, 0, 1, 0]
    assert task.groups.tolist() == [row[0] for row in ROWS]
    assert task.ids.tolist() == [row[1] for row in ROWS]
    assert task.metadata.keys() == {"age", "sex", "site"}  # neither the diagnosis nor how it was made
    np.testing.assert_array_equal(task.metadata["age"], [80, 80, np.nan, 75])
    assert len({image.tobytes() for image in task.inputs(np.arange(4))}) == 4
    assert load_ham10000(folder, size=16, positive="bkl").labels.tolist() == [1, 1, 0, 0]
    assert load_named("ham10000", root=folder.parent).source.shape == CATALOGUE["ham10000"].shape


def changed(column, value):
    return [[*ROWS[0][:column], value, *ROWS[0][column + 1 :]], *ROWS[1:]]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (changed(2, "melanoma"), r"HAM10000_metadata.csv, line 2, dx: 'melanoma': expected 'akiec'"),
        (changed(2, ""), "line 2, dx"),
        (changed(0, "x"), "line 2, lesion_id"),
        (changed(1, "../x"), "line 2, image_id"),
        (changed(1, "ISIC_0025030"), "line 3, image_id: .*occurs twice"),
        (changed(1, "ISIC_0999999"), r"lacks 1 of 4 image files.*ISIC_0999999.jpg"),
        (changed(4, "old"), "line 2, age"),
        (changed(5, "M"), "line 2, sex"),
    ],
)
def test_hostile_downloads(ham, rows, message):
    with pytest.raises(ValueError, match=message):
        load_ham10000(ham(rows))


def test_choices(ham, tmp_path):
    with pytest.raises(ValueError, match="positive must be one of"):
        load_ham10000(ham(), positive="melanoma")
    with pytest.raises(ValueError, match=r"has no HAM10000_metadata.csv"):
        load_ham10000(tmp_path)
    with pytest.raises(ValueError, match="division must be"):
        load_ham10000_sheets(tmp_path / "x.npz", division="random")


@pytest.fixture
def ham_sheets(write_sheets):
    def make(**changes):
        arrays = {
            "dx": np.array([4, 5, 0, 4, 5, 4], dtype=np.uint8),
            "dx_names": np.array(["akiec", "bcc", "bkl", "df", "mel", "nv", "vasc"]),
            "image_id": np.array([f"ISIC_{number:07d}" for number in (10, 11, 12, 13, 14, 15)]),
            "lesion_id": np.array(["HAM_1", "HAM_2", "HAM_3", "HAM_4", "unknown", "unknown"]),
            "dx_type": np.array(["histo", "follow_up", "histo", "histo", "", ""]),
            "age": np.array([5, 50, -1, 85, -1, -1], dtype=np.float32),
            "sex": np.array(["male", "female", "male", "female", "unknown", "unknown"]),
            "localization": np.array(["back", "ear", "face", "scalp", "unknown", "unknown"]),
            "split": np.array(["train", "train", "val", "test", "test2018", "test2018"]),
        }
        return write_sheets(np.arange(6 * 12, dtype=np.uint8).reshape(6, 2, 2, 3), **(arrays | changes))

    return make


def test_sheets(ham_sheets):
    task = load_ham10000_sheets(ham_sheets())
    assert task.labels.tolist() == [1, 0, 0, 1, 0, 1]
    parts = {part: rows.tolist() for part, rows in task.parts.items()}
    assert parts == {"train": [1, 2], "validation": [0], "test": [3, 4, 5]}  # image 10, divisible by 5
    assert task.groups.tolist() == ["HAM_1", "HAM_2", "HAM_3", "HAM_4", "ISIC_0000014", "ISIC_0000015"]
    np.testing.assert_array_equal(task.metadata["age"], [5, 50, np.nan, 85, np.nan, np.nan])
    assert task.metadata.keys() == {"age", "sex", "site"}
    np.testing.assert_array_equal(task.inputs([5]).ravel(), np.arange(60, 72))
    official = load_ham10000_sheets(ham_sheets(), division="dermamnist", with_2018=False, positive="nv")
    assert official.labels.tolist() == [0, 1, 0, 0]
    assert {part: rows.tolist() for part, rows in official.parts.items()} == {
        "train": [0, 1],
        "validation": [2],
        "test": [3],
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dx": np.array([4, 5, 0, 4, 5, 7], dtype=np.uint8)}, "7 diagnoses"),
        ({"dx": np.array([4, 5, 0, 4, 5, -1], dtype=np.int8)}, "7 diagnoses"),
        ({"dx": np.zeros(6)}, "7 diagnoses"),
        ({"dx_names": np.array(["mel"])}, "7 diagnoses"),
        ({"dx_names": None}, "7 diagnoses"),
        ({"split": np.array(["train"] * 5 + ["later"])}, "must hold the parts"),
        ({"image_id": np.array(["x"] * 6)}, "names of the form"),
        ({"age": np.zeros(5, dtype=np.float32)}, "no array 'age'"),
        ({"lesion_id": None}, "no array 'lesion_id'"),
    ],
)
def test_hostile_sheets(ham_sheets, changes, message):
    with pytest.raises(ValueError, match=message):
        load_ham10000_sheets(ham_sheets(**changes))


@pytest.fixture(scope="module")
def real_sheets(data_root):
    """The file, decoded once for all tests."""
    sheets = read_sheets(data_root / "ham10000_64.npz")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ham10000, "read_sheets", lambda path: sheets)
        yield data_root / "ham10000_64.npz"


@pytest.fixture(scope="module")
def real_task(real_sheets):
    return load_named("ham10000-64", root=real_sheets.parent)


def counts(task):
    return {part: (len(rows), int(task.labels[rows].sum())) for part, rows in task.parts.items()}


@pytest.mark.data
def test_real_file(real_task):
    task = real_task
    assert counts(task) == {"train": (4043, 353), "validation": (1033, 95), "test": (2419, 214)}
    assert task.source.shape == CATALOGUE["ham10000-64"].shape
    assert len(np.unique(task.groups)) == 7_495 == CATALOGUE["ham10000-64"].images
    assert np.isnan(task.metadata["age"]).sum() == 36 + 1_511
    assert not check_leaks(task)


@pytest.mark.data
def test_real_file_in_other_divisions(real_sheets):
    task = load_ham10000_sheets(real_sheets, division="dermamnist", with_2018=False)
    assert counts(task) == {"train": (4624, 433), "validation": (452, 15), "test": (908, 43)}
    whole = load_ham10000_sheets(real_sheets, division="none", with_2018=False)
    assert counts(whole) == {"train": (5984, 491)}
    assert (whole.metadata["sex"] != "unknown").mean() > 0.9
    folds = k_fold(whole, folds=5, seed=0)
    assert all(abs(fold.labels[fold.part("validation")].sum() - 98.2) < 1 for fold in folds)


@pytest.mark.data
def test_real_images_and_labels_are_in_one_order(real_task):
    """AUC of a logistic regression on principal components: .783 in the notes that came with the file."""
    from sklearn.decomposition import PCA
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.preprocessing import StandardScaler

    small = real_task.source.array.reshape(-1, 16, 4, 16, 4, 3).mean(axis=(2, 4), dtype=np.float32).reshape(-1, 768)
    train, held_out = real_task.part("train"), real_task.part("validation")
    components = PCA(60, svd_solver="covariance_eigh").fit(small[train])
    inputs = StandardScaler().fit(components.transform(small[train])).transform(components.transform(small))
    model = LogisticRegression(C=0.1, class_weight="balanced", max_iter=500).fit(inputs[train], real_task.labels[train])
    found = roc_auc_score(real_task.labels[held_out], model.decision_function(inputs[held_out]))
    assert found == pytest.approx(0.783, abs=0.02)
