"""CheXpert: both editions, views, labels, and tables that are not what was published."""

import numpy as np
import pytest

from deepauc.data.datasets.catalogue import load_named
from deepauc.data.datasets.medical.chexpert import COMPETITION_LABELS, LIBAUC_POLICY, OBSERVATIONS, load_chexpert
from deepauc.data.images import decode
from deepauc.data.images.decode import read_image_file
from deepauc.data.packed.sets import open_packed, pack
from deepauc.data.table.read import read_table
from deepauc.data.task import UNCERTAIN
from deepauc.data.uncertain import resolve_task

SMALL, FULL = "CheXpert-v1.0-small", "CheXpert-v1.0"
HEADER = (
    "Path,Sex,Age,Frontal/Lateral,AP/PA,No Finding,Enlarged Cardiomediastinum,Cardiomegaly,Lung Opacity,Lung Lesion,"
    "Edema,Consolidation,Pneumonia,Atelectasis,Pneumothorax,Pleural Effusion,Pleural Other,Fracture,Support Devices"
)
TRAIN = """\
{e}/train/patient90001/study1/view1_frontal.jpg,Female,61,Frontal,AP,,,1.0,,,-1.0,,,0.0,,1.0,,,1.0
{e}/train/patient90001/study1/view2_lateral.jpg,Female,61,Lateral,,,,1.0,,,-1.0,,,0.0,,1.0,,,1.0
{e}/train/patient90002/study3/view1_frontal.jpg,Male,48,Frontal,PA,1.0,,,,,,0.0,,,,0.0,,,
{e}/train/patient90003/study1/view1_frontal.jpg,Male,77,Frontal,AP,,-1.0,,1.0,,1.0,-1.0,-1.0,-1.0,0.0,,,,1.0
{e}/train/patient90004/study1/view1_frontal.jpg,Unknown,0,Frontal,LL,1.0,,,,,,,,,,,,,
"""
VALID = """\
{e}/valid/patient64541/study1/view1_frontal.jpg,Male,73,Frontal,AP,0.0,1.0,1.0,1.0,0.0,0.0,0.0,0.0,1.0,0.0,0.0,0.0,0.0,0.0
{e}/valid/patient64542/study1/view1_frontal.jpg,Male,70,Frontal,PA,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,1.0,0.0,0.0,1.0
{e}/valid/patient64542/study1/view2_lateral.jpg,Male,70,Lateral,,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,1.0,0.0,0.0,1.0
"""
U, N = UNCERTAIN, np.nan


@pytest.fixture
def chexpert(tmp_path, write_image):
    """Makes an edition's folder from the text of its two tables."""

    def make(edition=SMALL, train=TRAIN, valid=VALID, pictures=True):
        folder = tmp_path / edition
        folder.mkdir(exist_ok=True)
        for part, pattern in (("train", train), ("valid", valid)):
            text = pattern.replace("{e}", edition)
            (folder / f"{part}.csv").write_text(f"{HEADER}\n{text}")
            for seed, line in enumerate(text.splitlines() if pictures else []):
                name = line.split(",")[0].removeprefix(edition + "/")
                write_image(folder / name, seed=seed + 100 * (part == "valid"), size=(39 + seed, 32))
        return folder

    return make


@pytest.mark.parametrize("edition", [SMALL, FULL])
def test_frontal_views_of_both_editions(chexpert, edition):
    folder = chexpert(edition)
    task = load_chexpert(folder, size=16)
    assert task.kind == "multilabel"
    assert task.label_names == COMPETITION_LABELS
    assert task.source.shape == (16, 16, 1)
    assert {part: rows.tolist() for part, rows in task.parts.items()} == {"train": [0, 1, 2, 3], "validation": [4, 5]}
    expected = [[1, U, 0, 0, 1], [0, 0, 0, 0, 0], [0, 1, U, U, 0], [0, 0, 0, 0, 0], [1, 0, 0, 1, 0], [0, 0, 0, 0, 1]]
    np.testing.assert_array_equal(task.labels, expected)
    assert task.groups.tolist() == [f"patient{n}" for n in (90001, 90002, 90003, 90004, 64541, 64542)]
    assert task.ids[0] == "train/patient90001/study1/view1_frontal.jpg"
    np.testing.assert_array_equal(task.metadata["age"], [61, 48, 77, 0, 73, 70])
    assert task.metadata["sex"].tolist() == ["Female", "Male", "Male", "Unknown", "Male", "Male"]
    assert edition in task.name
    name = "chexpert-small" if edition == SMALL else "chexpert"
    assert load_named(name, root=folder.parent).source.shape == (320, 320, 1)


def test_all_views_and_the_choices(chexpert):
    folder = chexpert()
    task = load_chexpert(folder, size=16, views="all", not_mentioned="ignore", valid_part="test")
    assert {part: len(rows) for part, rows in task.parts.items()} == {"train": 5, "test": 3}
    np.testing.assert_array_equal(task.labels[:3], [[1, U, N, 0, 1], [1, U, N, 0, 1], [N, N, 0, N, 0]])
    assert task.unlabelled().tolist() == [4]
    assert task.groups.tolist().count("patient90001") == 2
    assert "all views" in task.name
    edema = load_chexpert(folder, size=16, labels=["Edema"])
    assert edema.kind == "binary"
    np.testing.assert_array_equal(edema.labels, [U, 0, 1, 0, 0, 0])
    assert load_chexpert(folder, size=16, labels=OBSERVATIONS).num_labels == 14


def test_a_stage_decides_about_uncertain_labels(chexpert):
    task = resolve_task(load_chexpert(chexpert(), size=16), LIBAUC_POLICY)
    np.testing.assert_array_equal(task.labels[0], [1, 1, 0, 0, 1])
    np.testing.assert_array_equal(task.labels[2], [0, 1, 0, 1, 0])


def test_pixels_are_those_of_the_same_files_in_a_table(chexpert, write_csv):
    folder = chexpert()
    task = load_chexpert(folder, size=(12, 16))
    write_csv(folder / "table.csv", ["file", "label"], [[name, row % 2] for row, name in enumerate(task.ids)])
    table, _ = read_table(
        folder / "table.csv", label_columns=["label"], kind="binary", image_column="file", size=(12, 16)
    )
    np.testing.assert_array_equal(task.inputs(np.arange(6)), table.inputs(np.arange(6)))
    assert task.source.digest() == table.source.digest()
    assert len({image.tobytes() for image in task.inputs(np.arange(6))}) == 6


def test_packing_reads_every_file_once_and_keeps_the_hash(chexpert, tmp_path, monkeypatch):
    folder, read = chexpert(), []
    monkeypatch.setattr(decode, "read_image_file", lambda path: read.append(path) or read_image_file(path))
    task = load_chexpert(folder, size=16)
    assert not read  # nothing is opened before it is asked for
    pack(task, tmp_path / "packed")
    assert len(read) == len(set(read)) == 6
    packed = open_packed(tmp_path / "packed").task()
    assert packed.data_hash() == task.data_hash() == load_chexpert(folder, size=16).data_hash()
    np.testing.assert_array_equal(packed.labels, task.labels)
    hashes = {task.data_hash()} | {
        load_chexpert(folder, **options).data_hash()
        for options in ({"size": 17}, {"size": 16, "views": "all"}, {"size": 16, "not_mentioned": "ignore"})
    }
    assert len(hashes) == 4


def test_the_hash_follows_the_pixels_and_not_the_place(chexpert, write_image, tmp_path):
    folder = chexpert()
    before = load_chexpert(folder, size=16).data_hash()
    moved = tmp_path / "elsewhere"
    folder.rename(moved)
    assert load_chexpert(moved, size=16).data_hash() == before
    task = load_chexpert(moved, size=16)
    assert task.data_hash() == before
    write_image(moved / "train/patient90002/study3/view1_frontal.jpg", seed=999)
    with pytest.raises(ValueError, match=r"patient90002.* has changed since it was first read"):
        task.inputs([0, 1, 2])
    assert load_chexpert(moved, size=16).data_hash() != before


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("1.0,,,-1.0,,,0.0,,1.0", "2.0,,,-1.0,,,0.0,,1.0", r"train.csv, line 2, Cardiomegaly: '2.0': expected '1.0'"),
        ("patient90002/study3", "patient90001/../../../etc", "line 4, Path: .*no such value"),
        ("{e}/train/patient90002", "/etc/patient90002", "line 4, Path"),
        ("{e}/train/patient90002", "{e}/valid/patient90002", "train.csv may only list images in train/"),
        ("patient90002/study3/view1_frontal", "patient90001/study1/view1_frontal", "line 4, Path: .*occurs twice"),
        ("view1_frontal.jpg,Male,48,Frontal", "view1_frontal.jpg,Male,48,Lateral", "disagree"),
        ("Male,48", "Mann,48", "Sex: 'Mann': expected"),
        ("Male,48", "Male,old", "Age: 'old'"),
        (",PA,1.0,,,,,,0.0,,,,0.0,,,", ",PA,1.0", "line 4: 6 fields under 19"),
        (TRAIN, "", "no rows"),
    ],
)
def test_hostile_train_tables(chexpert, old, new, message):
    assert old in TRAIN
    with pytest.raises(ValueError, match=message):
        load_chexpert(chexpert(train=TRAIN.replace(old, new), pictures=False))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("64541", "90001", "patient 'patient90001' is in train and in validation"),
        ("0.0,1.0,1.0,1.0,0.0,0.0", "0.0,1.0,-1.0,1.0,0.0,0.0", "valid.csv, line 2, Cardiomegaly: '-1.0'"),
        ("0.0,1.0,1.0,1.0,0.0,0.0", "0.0,1.0,,1.0,0.0,0.0", "valid.csv, line 2, Cardiomegaly: ''"),
    ],
)
def test_hostile_valid_tables(chexpert, old, new, message):
    with pytest.raises(ValueError, match=message):
        load_chexpert(chexpert(valid=VALID.replace(old, new), pictures=False))


def test_missing_and_broken_files(chexpert):
    folder = chexpert()
    (folder / "train/patient90003/study1/view1_frontal.jpg").write_bytes(b"no picture")
    task = load_chexpert(folder, size=16)
    with pytest.raises(ValueError, match=r"patient90003.*not an image that can be read"):
        task.inputs([2])
    (folder / "train/patient90002/study3/view1_frontal.jpg").unlink()
    with pytest.raises(ValueError, match=r"patient90002/study3/view1_frontal.jpg: the file does not exist"):
        task.data_hash()
    with pytest.raises(ValueError, match="lacks 1 of 6 image files"):
        load_chexpert(folder)
    (folder / "valid.csv").unlink()
    with pytest.raises(ValueError, match=r"valid.csv does not exist"):
        load_chexpert(folder)


def test_a_folder_around_the_edition_names_the_edition(chexpert, tmp_path):
    with pytest.raises(ValueError, match=r"has no train.csv. Name the unpacked folder, which holds train.csv"):
        load_chexpert(tmp_path)
    folder = chexpert()
    with pytest.raises(ValueError, match=rf"has no train.csv. Name {folder}\."):
        load_chexpert(tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        {"views": "lateral"},
        {"labels": ["Flu"]},
        {"labels": "Edema"},
        {"labels": []},
        {"valid_part": "train"},
        {"not_mentioned": "ones"},
        {"size": 0},
    ],
)
def test_options_that_there_are_not(chexpert, options):
    with pytest.raises(ValueError, match=r"must be"):
        load_chexpert(chexpert(), **options)
