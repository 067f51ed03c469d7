"""PatchCamelyon: h5 files as published, reduced to an imratio; and the competition's edition."""

import pickle

import numpy as np
import pytest

from deepauc.data.datasets.catalogue import CATALOGUE, load_named
from deepauc.data.datasets.medical.pcam import load_pcam
from deepauc.data.packed.sets import pack
from deepauc.data.task import ArrayInputs

STEM = "camelyonpatch_level_2_split"
COUNTS = {"train": 40, "valid": 12, "test": 10}


def arrays(part):
    """Images that all differ, half of them positive."""
    generator = np.random.default_rng(list(COUNTS).index(part))
    images = np.zeros((COUNTS[part], 96, 96, 3), dtype=np.uint8)
    images[:, :2, :2] = generator.integers(0, 256, (COUNTS[part], 2, 2, 3))
    return images, (np.arange(COUNTS[part]) % 2).astype(np.uint8)


@pytest.fixture
def pcam(tmp_path, write_csv):
    h5py = pytest.importorskip("h5py")

    def make(meta=False, **changes):
        folder = tmp_path / "pcam"
        folder.mkdir()
        for part, count in COUNTS.items():
            images, labels = arrays(part)
            contents = {"x": images, "y": labels.reshape(-1, 1, 1, 1)}
            for what, content in contents.items():
                with h5py.File(folder / f"{STEM}_{part}_{what}.h5", "w") as file:
                    changed = changes.get(f"{part}_{what}", content)
                    file.create_dataset(changes.get("name", what), data=changed, chunks=True)
            if meta:
                rows = [["1", "2", "True", "True", f"camelyon16_{part}_{row // 4:03d}"] for row in range(count)]
                header = ["coord_y", "coord_x", "tumor_patch", "center_tumor_patch", "wsi"]
                write_csv(folder / f"{STEM}_{part}_meta.csv", header, rows)
        return folder

    return make


def test_all_images(pcam, tmp_path):
    folder = pcam()
    task = load_pcam(folder, imratio=None)
    images, labels = (np.concatenate(column) for column in zip(*map(arrays, COUNTS), strict=True))
    np.testing.assert_array_equal(task.labels, labels)
    assert {part: len(rows) for part, rows in task.parts.items()} == {"train": 52, "test": 10}
    order = np.random.default_rng(0).permutation(62)
    np.testing.assert_array_equal(task.inputs(order), images[order])
    repeated = np.array([61, 39, 40, 40, 0, 39, 52, 51])
    np.testing.assert_array_equal(task.inputs(repeated), images[repeated])
    assert task.inputs([]).shape == (0, 96, 96, 3)
    assert task.source.digest() == ArrayInputs(images).digest()
    assert task.ids[[0, 40, 61]].tolist() == ["train/0", "valid/0", "test/9"]
    assert task.groups is None
    sent = pickle.loads(pickle.dumps(task.source))
    np.testing.assert_array_equal(sent(np.array([5])), images[[5]])
    assert load_named("pcam", root=tmp_path).source.shape == CATALOGUE["pcam"].shape


def test_train_and_valid_are_reduced_and_test_is_not(pcam, tmp_path):
    folder = pcam()
    task = load_pcam(folder, imratio=0.1, seed=2)
    train, test = task.part("train"), task.part("test")
    assert (len(train), task.labels[train].sum()) == (29, 3)  # 26 negatives, and 3 positives to the nearest integer
    assert (len(test), task.labels[test].sum()) == (10, 5)
    assert len(task) == 39  # what was dropped is not in the task, nor packed
    packed = pack(task, tmp_path / "packed").task()
    assert packed.data_hash() == task.data_hash() == load_pcam(folder, imratio=0.1, seed=2).data_hash()
    np.testing.assert_array_equal(packed.inputs(np.arange(39)), task.inputs(np.arange(39)))
    assert load_pcam(folder, imratio=0.1, seed=3).data_hash() != task.data_hash()
    assert len(load_pcam(folder).part("train")) == 27  # 1 %: at least one positive


def test_slides_are_groups(pcam):
    task = load_pcam(pcam(meta=True), imratio=None)
    assert task.groups[[0, 3, 4, 40, 52]].tolist() == [
        *("camelyon16_train_000", "camelyon16_train_000", "camelyon16_train_001"),
        *("camelyon16_valid_000", "camelyon16_test_000"),
    ]


def test_hostile_slides(pcam):
    folder = pcam(meta=True)
    path = folder / f"{STEM}_test_meta.csv"
    path.write_text(path.read_text().replace("camelyon16_test_001", "camelyon16_train_001"))
    with pytest.raises(ValueError, match="slide 'camelyon16_train_001' is in train and in test"):
        load_pcam(folder)
    path.write_text("\n".join(path.read_text().splitlines()[:-1]))
    with pytest.raises(ValueError, match="9 rows for 10 images"):
        load_pcam(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test_y": np.full((10, 1, 1, 1), 2, dtype=np.uint8)}, r"test_y.h5 holds labels other than 0 and 1"),
        ({"valid_y": np.zeros((11, 1, 1, 1), dtype=np.uint8)}, "valid has 12 images but 11 labels"),
        ({"valid_y": np.zeros(12, dtype=np.uint8)}, "not uint8"),
        ({"train_x": np.zeros((40, 96, 96), dtype=np.uint8)}, "not uint8"),
        ({"train_x": np.zeros((40, 96, 96, 3), dtype=np.float32)}, "float32"),
        ({"name": "images"}, r"train_x.h5 is damaged, or not an h5 file with a dataset 'x'"),
    ],
)
def test_hostile_files(pcam, changes, message):
    with pytest.raises(ValueError, match=message):
        load_pcam(pcam(**changes))


def test_missing_damaged_and_packed_files(pcam):
    folder = pcam()
    path = folder / f"{STEM}_train_x.h5"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"train_x.h5 is damaged, or not an h5 file"):
        load_pcam(folder)
    path.write_bytes(b"text")
    with pytest.raises(ValueError, match=r"train_x.h5 is damaged, or not an h5 file"):
        load_pcam(folder)
    path.rename(folder / f"{STEM}_train_x.h5.gz")
    with pytest.raises(ValueError, match=r"train_x.h5 does not exist. Unpack it: gunzip"):
        load_pcam(folder)
    (folder / f"{STEM}_train_x.h5.gz").unlink()
    with pytest.raises(ValueError, match="Download all six files"):
        load_pcam(folder)


def test_without_h5py(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    for part in COUNTS:
        for what in "xy":
            (tmp_path / f"{STEM}_{part}_{what}.h5").touch()
    with pytest.raises(ValueError, match=r"pip install 'deepauc\[pcam\]'"):
        load_pcam(tmp_path)
