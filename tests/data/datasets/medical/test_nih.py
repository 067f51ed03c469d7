"""NIH ChestX-ray14: the complete download's layout in both editions, and the real file of its first archive."""

import numpy as np
import pytest

from deepauc.data.datasets.catalogue import CATALOGUE, load_named
from deepauc.data.datasets.medical.nih import COMPETITION_FINDINGS, FINDINGS, load_nih_cxr14, load_nih_sheets
from deepauc.data.splits import check_leaks

HEADER = (
    "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position,"
    "OriginalImage[Width,Height],OriginalImagePixelSpacing[x,y]"
)
ROWS = """\
00000001_000.png,Cardiomegaly|Emphysema,0,1,58,M,PA,2682,2749,0.143,0.143
00000001_001.png,No Finding,1,1,58,M,AP,2894,2729,0.143,0.143
00000002_000.png,Effusion,0,2,061Y,F,PA,2500,2048,0.168,0.168
00000003_000.png,Pleural_Thickening|Hernia|Effusion,0,3,412,F,PA,2500,2048,0.168,0.168
00000004_000.png,No Finding,0,4,006M,F,AP,2500,2048,0.168,0.168
"""
TRAIN_LIST, TEST_LIST = "00000001_000.png\n00000001_001.png\n00000004_000.png\n", "00000002_000.png\n00000003_000.png\n"


@pytest.fixture
def nih(tmp_path, write_image):
    def make(rows=ROWS, table="Data_Entry_2017_v2020.csv", train=TRAIN_LIST, test=TEST_LIST, archives=False):
        folder = tmp_path / "nih-cxr14"
        folder.mkdir()
        end = ",\n" if table == "Data_Entry_2017.csv" else "\n"  # that edition ends each line with a comma
        (folder / table).write_text("".join(line + end for line in [HEADER, *rows.splitlines()]))
        (folder / "train_val_list.txt").write_text(train)
        (folder / "test_list.txt").write_text(test)
        for number, name in enumerate((TRAIN_LIST + TEST_LIST).split()):
            place = f"images_{number + 1:03d}/images" if archives else "images"
            write_image(
                folder / place / name, seed=int(name[:8]) * 10 + int(name[9:12]), mode="RGBA" if number else "L"
            )
        return folder

    return make


@pytest.mark.parametrize("table", ["Data_Entry_2017_v2020.csv", "Data_Entry_2017.csv"])
@pytest.mark.parametrize("archives", [False, True])
def test_complete_download(nih, table, archives):
    folder = nih(table=table, archives=archives)
    task = load_nih_cxr14(folder, size=16)
    assert task.label_names == FINDINGS
    assert [[FINDINGS[c] for c in np.flatnonzero(row)] for row in task.labels] == [
        ["Cardiomegaly", "Emphysema"],
        [],
        ["Effusion"],
        ["Effusion", "Pleural_Thickening", "Hernia"],
        [],
    ]
    assert {part: rows.tolist() for part, rows in task.parts.items()} == {"train": [0, 1, 4], "test": [2, 3]}
    assert task.groups.tolist() == ["1", "1", "2", "3", "4"]
    np.testing.assert_allclose(task.metadata["age"], [58, 58, 61, np.nan, 0.5])
    assert task.metadata["view"].tolist() == ["PA", "AP", "PA", "PA", "AP"]
    assert task.inputs([0, 3]).shape == (2, 16, 16, 1)
    assert len(CATALOGUE["nih-cxr14"].found(folder.parent)) == 3
    assert load_named("nih-cxr14", root=folder.parent).source.shape == CATALOGUE["nih-cxr14"].shape
    five = load_nih_cxr14(folder, size=16, labels=COMPETITION_FINDINGS)
    np.testing.assert_array_equal(five.labels, task.labels[:, [1, 9, 8, 0, 2]])
    effusion = load_nih_cxr14(folder, size=16, labels=["Effusion"])
    assert (effusion.kind, effusion.labels.tolist()) == ("binary", [0, 0, 1, 1, 0])


def test_layout_and_edition_do_not_change_the_hash(nih, tmp_path):
    first = load_nih_cxr14(nih(), size=16).data_hash()
    (tmp_path / "nih-cxr14").rename(tmp_path / "old")
    assert load_nih_cxr14(nih(table="Data_Entry_2017.csv", archives=True), size=16).data_hash() == first


def test_some_archives_only(nih):
    folder = nih(archives=True)
    (folder / "images_002/images/00000001_001.png").unlink()
    with pytest.raises(ValueError, match=r"lacks 1 of 5 image files.*00000001_001.png"):
        load_nih_cxr14(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": ROWS.replace("Effusion,0,2", "Efusion,0,2")}, r"line 4, Finding Labels: 'Efusion'"),
        ({"rows": ROWS.replace("Effusion,0,2", ",0,2")}, r"line 4, Finding Labels"),
        ({"rows": ROWS.replace("Effusion,0,2", "No Finding|Effusion,0,2")}, r"line 4, Finding Labels"),
        ({"rows": ROWS.replace("00000002_000.png", "../../passwd.png")}, r"line 4, Image Index"),
        ({"rows": ROWS.replace("00000001_001.png", "00000001_000.png")}, r"line 3, Image Index.*twice"),
        ({"rows": ROWS.replace(",0,2,", ",0,two,")}, "line 4, Patient ID"),
        ({"rows": ROWS.replace(",0,2,", ",0,1,")}, "patient '1' is in train and in test"),
        ({"test": TEST_LIST + "00000001_000.png\n"}, r"test_list.txt: '00000001_000.png' is listed twice"),
        ({"test": TEST_LIST + "00000009_000.png\n"}, r"'00000009_000.png' is not in the table"),
        ({"test": "00000002_000.png"}, "lists lack 1 image, such as 00000003_000.png"),
        ({"test": "\x00\x01"}, "not in the table"),
        ({"table": "labels.csv"}, "neither Data_Entry_2017_v2020.csv nor"),
    ],
)
def test_hostile_downloads(nih, change, message):
    with pytest.raises(ValueError, match=message):
        load_nih_cxr14(nih(**change))


def test_lists_must_be_there(nih):
    folder = nih()
    (folder / "test_list.txt").unlink()
    with pytest.raises(ValueError, match="does not exist"):
        load_nih_cxr14(folder)
    with pytest.raises(ValueError, match="labels must be among"):
        load_nih_cxr14(folder, labels=["Flu"])


@pytest.fixture(scope="module")
def real_task(data_root):
    return load_named("nih-cxr14-96", root=data_root)


@pytest.mark.data
def test_real_first_archive(real_task):
    task = real_task
    assert task.source.shape == CATALOGUE["nih-cxr14-96"].shape
    assert len(task) == CATALOGUE["nih-cxr14-96"].images
    counts = {part: task.labels[rows].sum(axis=0).astype(int).tolist() for part, rows in task.parts.items()}
    assert counts == {
        "train": [263, 129, 305, 531, 107, 145, 38, 126, 121, 60, 67, 110, 102, 25],
        "validation": [78, 39, 96, 137, 16, 34, 14, 35, 45, 14, 25, 30, 32, 1],
        "test": [119, 28, 86, 162, 38, 35, 13, 38, 39, 16, 33, 32, 31, 1],
    }
    assert [len(rows) for rows in task.parts.values()] == [3040, 924, 1035]
    assert len(np.unique(task.groups)) == 1335
    assert (np.unique(task.metadata["sex"], return_counts=True)[1] == [2391, 2608]).all()
    assert not check_leaks(task)


@pytest.mark.data
def test_real_images_and_labels_are_in_one_order(real_task):
    """AUC of a logistic regression on principal components: .757 and .734 in the notes that came with the file."""
    from sklearn.decomposition import PCA
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.preprocessing import StandardScaler

    small = real_task.source.array.reshape(-1, 24, 4, 24, 4).mean(axis=(2, 4), dtype=np.float32)
    train, held_out = real_task.part("train"), real_task.part("validation")
    components = PCA(60, svd_solver="covariance_eigh").fit(small.reshape(-1, 576)[train])
    scaler = StandardScaler().fit(components.transform(small.reshape(-1, 576)[train]))
    inputs = scaler.transform(components.transform(small.reshape(-1, 576)))
    for name, expected in (("Cardiomegaly", 0.757), ("Effusion", 0.734)):
        labels = real_task.labels[:, FINDINGS.index(name)]
        model = LogisticRegression(C=0.1, class_weight="balanced", max_iter=500).fit(inputs[train], labels[train])
        found = roc_auc_score(labels[held_out], model.decision_function(inputs[held_out]))
        assert found == pytest.approx(expected, abs=0.02)


def test_sheets_that_are_not_these(tmp_path, nih_sheets):
    with pytest.raises(ValueError, match="patient '3' is in train and in test"):
        load_nih_sheets(nih_sheets(patient_id=np.array([1, 3, 3], dtype=np.int32)))
    with pytest.raises(ValueError, match="the part 'later' is unknown"):
        load_nih_sheets(nih_sheets(split=np.array(["train", "later", "test"])))
    with pytest.raises(ValueError, match="does not hold the 14 findings"):
        load_nih_sheets(nih_sheets(label_names=np.array(FINDINGS[::-1])))
    with pytest.raises(ValueError, match="does not hold the 14 findings"):
        load_nih_sheets(nih_sheets(labels=np.full((3, 14), 2, dtype=np.uint8)))
    with pytest.raises(ValueError, match="does not exist"):
        load_nih_sheets(tmp_path / "nothing.npz")
    task = load_nih_sheets(nih_sheets(), labels=["Mass"])
    assert (task.kind, task.labels.tolist(), task.ids.tolist()) == ("binary", [0, 1, 0], ["a", "b", "c"])
    np.testing.assert_array_equal(task.inputs([0, 1, 2]).ravel(), np.arange(12))
    assert {part: rows.tolist() for part, rows in task.parts.items()} == {"train": [0, 1], "test": [2]}


@pytest.fixture
def nih_sheets(write_sheets):
    def make(**changes):
        labels = np.zeros((3, 14), dtype=np.uint8)
        labels[1, FINDINGS.index("Mass")] = 1
        arrays = {
            "labels": labels,
            "label_names": np.array(FINDINGS),
            "image_index": np.array(["a", "b", "c"]),
            "patient_id": np.array([1, 2, 3], dtype=np.int32),
            "age": np.array([9, 50, 94], dtype=np.int16),
            "sex": np.array(["M", "F", "F"]),
            "view": np.array(["PA", "AP", "PA"]),
            "split": np.array(["train", "train", "test"]),
        }
        return write_sheets(np.arange(12, dtype=np.uint8).reshape(3, 2, 2), **(arrays | changes))

    return make
