"""SIIM-ISIC melanoma: the competition's layout, resized editions, outside images, patient folds."""

import gzip

import numpy as np
import pytest

from deepauc.data.datasets.catalogue import CATALOGUE, load_named
from deepauc.data.datasets.medical.melanoma import (
    OutsideImages,
    load_isic2020_table,
    load_melanoma,
    outside_rows,
)
from deepauc.data.packed.sets import pack
from deepauc.data.splits import k_fold

COLUMNS = [
    *("image_name", "patient_id", "sex", "age_approx", "anatom_site_general_challenge", "diagnosis"),
    *("benign_malignant", "target"),
]
RESIZED = [*COLUMNS, "tfrecord", "width", "height", "patient_code"]
SITES = ("head/neck", "torso", "", "palms/soles")


def competition_rows(patients=15, each=4):
    """One melanoma for each patient but every third, who has none; every fifth patient has nothing on record."""
    rows = []
    for patient in range(patients):
        sex, age = ("", "") if patient % 5 == 4 else (("male", "female")[patient % 2], f"{20 + 5 * patient}.0")
        for image in range(each):
            bad = int(image == 0 and patient % 3 > 0)
            name = f"ISIC_{1000 * (patient + 1) + image:07d}"
            diagnosis = ("melanoma", "malignant") if bad else ("unknown", "benign")
            rows.append([name, f"IP_{patient:07d}", sex, age, SITES[image % 4], *diagnosis, str(bad)])
    return rows


@pytest.fixture
def competition(tmp_path, write_csv, write_image):
    def make(rows=None, pictures=True):
        folder = tmp_path / "siim-isic-melanoma-classification"
        rows = competition_rows() if rows is None else rows
        write_csv(folder / "train.csv", COLUMNS, rows)
        write_csv(folder / "test.csv", COLUMNS[:5], [["ISIC_9999999", "IP_9999999", "male", "45.0", "torso"]])
        (folder / "jpeg" / "train").mkdir(parents=True, exist_ok=True)
        for seed, row in enumerate(rows if pictures else []):
            write_image(folder / "jpeg/train" / f"{row[0]}.jpg", seed=seed, size=(40 + seed % 3, 30), mode="RGB")
        return folder

    return make


@pytest.fixture
def resized(tmp_path, write_csv, write_image):
    def make(rows=None, fold=lambda patient: patient % 15, pictures=True):
        folder = tmp_path / "jpeg-melanoma-256x256"
        rows = competition_rows() if rows is None else rows
        full = [[*row, str(fold(int(row[1][3:]))), "6000", "4000", "7"] for row in rows]
        duplicate = [
            "ISIC_0999999",
            "IP_0000000",
            "male",
            "20.0",
            "torso",
            "unknown",
            "benign",
            "0",
            "-1",
            "1",
            "1",
            "7",
        ]
        write_csv(folder / "train.csv", RESIZED, [*full, duplicate])
        (folder / "train").mkdir(exist_ok=True)
        for seed, row in enumerate(rows if pictures else []):
            write_image(folder / "train" / f"{row[0]}.jpg", seed=seed, size=(32, 32), mode="RGB")
        return folder

    return make


@pytest.fixture
def outside(tmp_path, write_csv, write_image):
    """ISIC 2019 as its publisher has it: other columns, some metadata, no patients."""

    def make(names=("ISIC_0000001", "ISIC_0000002_downsampled"), targets=("1.0", "0.0"), name="isic2019"):
        folder = tmp_path / name
        header = ["image", "MEL", "NV", "age_approx", "sex", "anatom_site_general_challenge"]
        rows = [
            [one, target, "0.0", "nan", "male", site]
            for one, target, site in zip(names, targets, ("anterior torso", "left eyebrow"), strict=False)
        ]
        write_csv(folder / "truth.csv", header, rows)
        for seed, one in enumerate(names):
            write_image(folder / "images" / f"{one}.jpg", seed=500 + seed, mode="RGB")
        return OutsideImages(
            name=name, table=folder / "truth.csv", folder=folder / "images", image_column="image", target_column="MEL"
        )

    return make


def test_competition_edition(competition, tmp_path):
    folder = competition()
    task = load_melanoma(folder, size=(24, 32))
    rows = competition_rows()
    assert task.ids.tolist() == [row[0] for row in rows]
    assert task.labels.tolist() == [int(row[7]) for row in rows]
    assert task.groups.tolist() == [row[1] for row in rows]
    assert task.metadata.keys() == {"age", "sex", "site"}  # nothing that gives the answer away
    np.testing.assert_array_equal(task.metadata["age"], [float(row[3] or "nan") for row in rows])
    assert task.metadata["site"].tolist() == [row[4] for row in rows]
    assert {part: len(members) for part, members in task.parts.items()} == {"train": 60}
    assert task.inputs([3, 0]).shape == (2, 24, 32, 3)
    assert pack(task, tmp_path / "packed").task().data_hash() == task.data_hash()
    assert load_named("melanoma", root=tmp_path).source.shape == CATALOGUE["melanoma"].shape


def test_resized_edition(resized, tmp_path):
    task = load_melanoma(resized(), size=32)
    assert len(task) == len(task.part("train")) == 60  # the row of fold -1, a duplicate without a file, is dropped
    assert load_named("melanoma-256", root=tmp_path).source.shape == CATALOGUE["melanoma-256"].shape


def test_patient_folds(competition):
    task = load_melanoma(competition(), size=16)
    folds = k_fold(task, folds=5, seed=3)
    held_out = np.concatenate([fold.part("validation") for fold in folds])
    assert sorted(held_out.tolist()) == list(range(60))
    for fold in folds:
        train, validation = fold.part("train"), fold.part("validation")
        assert not set(task.groups[train]) & set(task.groups[validation])
        assert task.labels[validation].sum() == 2


def test_outside_images_are_only_trained_on(competition, outside):
    task = load_melanoma(competition(), size=16, outside=[outside(), outside(("x.1",), ("1",), name="more")])
    assert task.ids[60:].tolist() == ["isic2019/ISIC_0000001", "isic2019/ISIC_0000002_downsampled", "more/x.1"]
    assert outside_rows(task).tolist() == [60, 61, 62]
    assert task.labels[60:].tolist() == [1, 0, 1]
    assert len(set(task.groups[60:])) == 3  # no patient is named: each image is its own
    assert task.metadata["sex"][60] == "male"
    assert np.isnan(task.metadata["age"][60])
    assert task.metadata["site"][60:].tolist() == ["torso", "", "torso"]  # as the competition says it, or missing
    for fold in k_fold(task, folds=5, seed=0, outside=outside_rows(task)):
        assert {60, 61, 62} <= set(fold.part("train").tolist())
        assert max(fold.part("validation")) < 60
    assert "isic2019" in task.name
    assert len({image.tobytes() for image in task.inputs([60, 61, 62])}) > 1


def test_outside_sets_in_the_resized_layout(competition, tmp_path, write_csv, write_image):
    rows = [
        ["ISIC_0500000", "-1", "female", "45.0", "torso", "MEL", "malignant", "1", "0", "1", "1", "0"],
        ["ISIC_0500001", "IP_0000003", "", "", "", "NV", "benign", "0", "3", "1", "1", "0"],
        ["ISIC_0500002", "IP_0000003", "", "", "", "NV", "benign", "0", "-1", "1", "1", "0"],
    ]
    write_csv(tmp_path / "isic2019/train.csv", RESIZED, rows)
    for row in rows[:2]:
        write_image(tmp_path / "isic2019/train" / f"{row[0]}.jpg", mode="RGB")
    more = OutsideImages(name="more", table=tmp_path / "isic2019/train.csv", folder=tmp_path / "isic2019/train")
    task = load_melanoma(competition(), size=16, outside=[more])
    assert task.groups[60:].tolist() == ["more/ISIC_0500000", "IP_0000003"]
    assert task.metadata["age"][60] == 45
    # Row 61 is of a patient of the competition: never trained on while held out.
    for fold in k_fold(task, folds=5, seed=0, outside=outside_rows(task)):
        held_out = "IP_0000003" in fold.groups[fold.part("validation")]
        assert (61 in fold.part("train")) == (not held_out)
        assert 60 in fold.part("train")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("ISIC_0001000", "b"), "ISIC_0001000 is also in the competition's table"),
        (("a", "../../secret"), r"truth.csv, line 3, image"),
        (("a", "a"), r"line 3, image: 'a': it occurs twice"),
    ],
)
def test_hostile_outside_sets(competition, outside, names, message):
    with pytest.raises(ValueError, match=message):
        load_melanoma(competition(), outside=[outside(names)])


def test_more_hostile_outside_sets(competition, outside):
    folder = competition()
    with pytest.raises(ValueError, match=r"line 3, MEL: '0.5'"):
        load_melanoma(folder, outside=[outside(targets=("1", "0.5"))])
    with pytest.raises(ValueError, match="another outside set"):
        load_melanoma(folder, outside=[outside(), outside(name="again")])
    with pytest.raises(ValueError, match="name of an outside set"):
        load_melanoma(folder, outside=[OutsideImages(name="a/b", table="t.csv", folder="f")])
    without_target = OutsideImages(name="x", table=outside().table, folder="f", image_column="image")
    with pytest.raises(ValueError, match="no column 'target'"):
        load_melanoma(folder, outside=[without_target])


def changed(place, column, value):
    rows = competition_rows()
    rows[place][column] = value
    return rows


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (changed(1, 7, "2"), r"train.csv, line 3, target: '2': expected"),
        (changed(1, 7, ""), r"line 3, target: ''"),
        (changed(1, 0, "../ISIC_1"), "line 3, image_name"),
        (changed(1, 0, "ISIC_0001000"), "line 3, image_name: 'ISIC_0001000': it occurs twice"),
        (changed(1, 1, ""), "line 3, patient_id"),
        (changed(1, 2, "m"), "line 3, sex: 'm': expected 'male', 'female', nothing"),
        (changed(1, 3, "-5"), "line 3, age_approx"),
        (changed(1, 4, "moon"), "line 3, anatom_site_general_challenge"),
    ],
)
def test_hostile_tables(competition, rows, message):
    with pytest.raises(ValueError, match=message):
        load_melanoma(competition(rows, pictures=False))


def test_a_patient_in_two_folds(resized):
    folder = resized()
    text = (folder / "train.csv").read_text().splitlines()
    text[2] = text[2].replace(",0,6000", ",1,6000")
    (folder / "train.csv").write_text("\n".join(text))
    with pytest.raises(ValueError, match="patient 'IP_0000000' is in 0 and in 1"):
        load_melanoma(folder)


def test_files_that_are_missing(competition, tmp_path):
    folder = competition()
    (folder / "jpeg/train/ISIC_0001001.jpg").unlink()
    with pytest.raises(ValueError, match=r"lacks 1 of 60 image files.*ISIC_0001001.jpg"):
        load_melanoma(folder)
    with pytest.raises(ValueError, match="neither jpeg/train/"):
        load_melanoma(tmp_path)


def test_metadata_table(tmp_path):
    rows = [["ISIC_0000001", "IP_0000001", "IL_1", "male", "40", "torso", "unknown", "benign", "0"]]
    rows += [["ISIC_0000002", "IP_0000001", "IL_2", "", "", "", "melanoma", "malignant", "1"]]
    rows += [["ISIC_0000003", "IP_0000002", "IL_3", "female", "60", "oral/genital", "nevus", "benign", "0"]]
    header = ",".join([*COLUMNS[:2], "lesion_id", *COLUMNS[2:]])
    path = tmp_path / "isic2020_train_metadata.csv.gz"
    with gzip.open(path, "wt") as file:
        file.write("\n".join([header, *(",".join(row) for row in rows)]))
    task = load_isic2020_table(path)
    expected = np.array(
        [
            [0.4, 0, 1, 0, 1, 0, 0, 0, 0, 0],
            [0.5, 1, 0, 0, 0, 0, 0, 0, 0, 0],
            [0.6, 0, 0, 1, 0, 0, 0, 0, 0, 1],
        ],
        dtype=np.float32,
    )
    np.testing.assert_array_equal(task.inputs([0, 1, 2]), expected)
    assert task.labels.tolist() == [0, 1, 0]
    assert task.groups.tolist() == ["IP_0000001", "IP_0000001", "IP_0000002"]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="cannot be read"):
        load_isic2020_table(path)


@pytest.mark.data
def test_real_table(data_root):
    task = load_named("isic2020-table", root=data_root)
    assert (len(task), int(task.labels.sum()), len(np.unique(task.groups))) == (33_126, 584, 2_056)
    assert task.source.shape == CATALOGUE["isic2020-table"].shape
    sites = dict(zip(*np.unique(task.metadata["site"], return_counts=True), strict=True))
    assert (sites["torso"], sites["oral/genital"], sites[""]) == (16_845, 124, 527)
    assert np.isnan(task.metadata["age"]).sum() == 68
    number = np.array([int(group[3:]) % 5 for group in task.groups])
    folds = [((number == k).sum(), int(task.labels[number == k].sum())) for k in range(5)]
    assert folds == [(6280, 99), (6615, 136), (6390, 112), (7037, 107), (6804, 130)]

    own = k_fold(task, folds=5, seed=0)
    shares = [fold.positive_share("validation")[0] for fold in own]
    assert max(shares) - min(shares) < 0.0005  # stratified to 1.76 %
    for fold in own:
        assert not set(fold.groups[fold.part("train")]) & set(fold.groups[fold.part("validation")])

    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    inputs = task.inputs(np.arange(len(task)))
    model = LogisticRegression(C=0.1, class_weight="balanced", max_iter=300).fit(
        inputs[number > 0], task.labels[number > 0]
    )
    found = roc_auc_score(task.labels[number == 0], model.decision_function(inputs[number == 0]))
    assert found == pytest.approx(0.681, abs=0.01)
