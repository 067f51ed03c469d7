"""MedMNIST files: a class against the rest, several labels, files too large for the memory; the PathMNIST subset."""

import pickle
import zipfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from deepauc.data.datasets.catalogue import CATALOGUE, load_named
from deepauc.data.datasets.medical import pathmnist
from deepauc.data.datasets.medical.medmnist import load_medmnist
from deepauc.data.datasets.medical.nih import FINDINGS
from deepauc.data.datasets.medical.pathmnist import load_pathmnist_subset
from deepauc.data.datasets.sheets import read_sheets
from deepauc.data.packed.sets import pack
from deepauc.data.splits import check_leaks
from tests.data.datasets.test_benchmarks import auc_of_simple_model

COUNTS = {"train": 12, "val": 5, "test": 7}
PARTS = {"train": "train", "val": "validation", "test": "test"}


def made(*, labels=1, channels=3, side=6, seed=0):
    generator = np.random.default_rng(seed)
    arrays = {}
    for part, count in COUNTS.items():
        shape = (count, side, side, channels) if channels > 1 else (count, side, side)
        arrays[f"{part}_images"] = generator.integers(0, 256, shape).astype(np.uint8)
        classes = np.arange(count) % 3 if labels == 1 else generator.integers(0, 2, (count, labels))
        arrays[f"{part}_labels"] = classes.reshape(count, labels).astype(np.uint8)
    return arrays


def save(path, arrays):
    np.savez_compressed(path, **arrays)
    return path


def test_a_class_against_the_rest(tmp_path):
    arrays = made()
    task = load_medmnist(save(tmp_path / "dermamnist.npz", arrays), positive=2)
    for key, part in PARTS.items():
        np.testing.assert_array_equal(task.inputs(task.part(part)), arrays[f"{key}_images"])
        np.testing.assert_array_equal(task.labels[task.part(part)], arrays[f"{key}_labels"][:, 0] == 2)
    assert (task.kind, task.label_names, task.name) == ("binary", ("class 2",), "dermamnist")
    assert task.ids[[0, 12, -1]].tolist() == ["train/0", "validation/0", "test/6"]
    for positive in (None, 3, -1):
        with pytest.raises(ValueError, match=r"has the classes \[0, 1, 2\]: positive must be one of them"):
            load_medmnist(tmp_path / "dermamnist.npz", positive=positive)


def test_several_labels_an_image(tmp_path):
    arrays = made(labels=14, channels=1)
    path = save(tmp_path / "chestmnist.npz", arrays)
    task = load_medmnist(path)
    assert (task.kind, task.label_names, task.source.shape) == ("multilabel", FINDINGS, (6, 6, 1))
    np.testing.assert_array_equal(task.labels[task.part("test")], arrays["test_labels"])
    one = load_medmnist(path, positive=9)
    assert (one.kind, one.label_names) == ("binary", ("Edema",))
    np.testing.assert_array_equal(one.labels, task.labels[:, 9])
    assert load_named("chestmnist", root=tmp_path).data_hash() == task.data_hash()
    with pytest.raises(ValueError, match="positive must be 0 to 13, not 14"):
        load_medmnist(path, positive=14)
    other = load_medmnist(save(tmp_path / "other.npz", made(labels=3)))
    assert other.label_names == ("label 0", "label 1", "label 2")
    with pytest.raises(ValueError, match="not all 0 or 1"):
        load_medmnist(save(tmp_path / "bad.npz", arrays | {"val_labels": arrays["val_labels"] + 1}))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("write", [np.savez_compressed, np.savez])
def test_a_file_too_large_for_the_memory(tmp_path, channels, write):
    path = tmp_path / "chestmnist_224.npz"
    write(path, **made(labels=14, channels=channels))
    whole, task = load_medmnist(path), load_medmnist(path, max_bytes=100)
    assert type(task.source) is not type(whole.source)
    assert task.data_hash() == whole.data_hash()
    for order in (np.arange(24), np.random.default_rng(1).permutation(24), np.array([23, 3, 3, 12, 11])):
        np.testing.assert_array_equal(task.inputs(order), whole.inputs(order))
    packed = pack(task, tmp_path / "packed").task()
    assert packed.data_hash() == whole.data_hash()
    np.testing.assert_array_equal(packed.inputs(np.arange(24)), whole.inputs(np.arange(24)))
    sent = pickle.loads(pickle.dumps(task.source))
    np.testing.assert_array_equal(sent(np.array([5])), whole.inputs([5]))


def test_a_large_file_asked_from_several_threads(tmp_path):
    path = save(tmp_path / "large.npz", made(side=32))
    whole, task = load_medmnist(path, positive=0), load_medmnist(path, positive=0, max_bytes=100)
    orders = [np.random.default_rng(seed).permutation(24) for seed in range(40)]
    with ThreadPoolExecutor(8) as pool:
        for order, found in zip(orders, pool.map(task.inputs, orders), strict=True):
            np.testing.assert_array_equal(found, whole.inputs(order))


def test_packing_unpacks_a_large_file_once(tmp_path, monkeypatch):
    path = tmp_path / "large.npz"
    arrays = made(side=64)
    np.savez_compressed(path, **arrays)
    task = load_medmnist(path, positive=0, max_bytes=100)
    opened, unwatched = [], zipfile.ZipFile.open
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda self, *args: opened.append(args) or unwatched(self, *args))
    for start in range(0, 24, 4):
        task.inputs(np.arange(start, start + 4))
    assert len(opened) == 3  # each part's images, from the front to the end


@pytest.mark.parametrize("max_bytes", [1 << 30, 100])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"val_images": None}, "array 'val_images' is missing"),
        ({"test_labels": None}, "array 'test_labels' is missing"),
        ({"val_images": np.zeros((5, 7, 7, 3), dtype=np.uint8)}, "images of several sizes"),
        ({"val_images": np.zeros((5, 6, 6, 3), dtype=np.float32)}, "must be uint8|no uint8 images"),
        ({"val_labels": np.zeros((4, 1), dtype=np.uint8)}, r"labels \(4, 1\)"),
        ({"val_labels": np.zeros((5, 1))}, "not a MedMNIST file"),
        ({"val_labels": np.zeros((5, 2), dtype=np.uint8)}, "only some of its parts have several labels"),
        ({"val_labels": np.zeros((5, 1, 1), dtype=np.uint8)}, "not a MedMNIST file"),
        ({f"{key}_images": np.zeros((n, 6, 6, 6), dtype=np.uint8) for key, n in COUNTS.items()}, "3-D volumes"),
    ],
)
def test_hostile_files(tmp_path, max_bytes, changes, message):
    arrays = {name: array for name, array in (made() | changes).items() if array is not None}
    with pytest.raises(ValueError, match=message):
        load_medmnist(save(tmp_path / "bad.npz", arrays), positive=0, max_bytes=max_bytes)


def test_files_that_are_none(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        load_medmnist(tmp_path / "nothing.npz", positive=0)
    (tmp_path / "text.npz").write_text("text")
    with pytest.raises(ValueError, match=r"not a readable .npz file"):
        load_medmnist(tmp_path / "text.npz", positive=0)


@pytest.mark.parametrize(("place", "message"), [(200_000, "cannot be unpacked"), (-100, "cannot be read")])
def test_a_large_file_that_is_damaged(tmp_path, place, message):
    path, arrays = tmp_path / "damaged.npz", made(side=100)
    np.savez(path, **arrays)
    content = bytearray(path.read_bytes())
    content[content.find(arrays["train_images"].tobytes()) + place] ^= 1  # in the pixels, or in the header
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"damaged.npz: train_images {message}"):
        load_medmnist(path, positive=0, max_bytes=100).data_hash()


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("pneumoniamnist", {"train": (4708, 1214), "validation": (524, 135), "test": (624, 234)}),
        ("breastmnist", {"train": (546, 147), "validation": (78, 21), "test": (156, 42)}),
    ],
)
def test_real_files(data_root, name, counts):
    task = load_named(name, root=data_root)
    assert {part: (len(rows), int(task.labels[rows].sum())) for part, rows in task.parts.items()} == counts
    assert task.source.shape == CATALOGUE[name].shape
    assert load_medmnist(data_root / f"{name}.npz", positive=0, max_bytes=1000).data_hash() == task.data_hash()
    # The official files hold a few identical images across parts; they are found, and left.
    assert len(check_leaks(task)) == {"pneumoniamnist": 8, "breastmnist": 1}[name]


@pytest.fixture
def path_sheets(write_sheets):
    def make(**changes):
        arrays = {
            "labels": (np.arange(40) % 9).astype(np.uint8),
            "split": np.array(["train"] * 27 + ["val"] * 4 + ["test"] * 9),
            "index": np.arange(40) * 7,
        }
        return write_sheets((np.arange(40 * 12) % 251).astype(np.uint8).reshape(40, 2, 2, 3), **(arrays | changes))

    return make


def test_pathmnist_subset(path_sheets):
    task = load_pathmnist_subset(path_sheets())
    assert np.flatnonzero(task.labels).tolist() == [8, 17, 26, 35]
    assert {part: len(rows) for part, rows in task.parts.items()} == {"train": 27, "validation": 4, "test": 9}
    assert (task.label_names, task.ids[0], task.ids[27]) == (("tumour",), "train/0", "validation/189")
    np.testing.assert_array_equal(task.inputs([2]).ravel(), np.arange(24, 36))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": np.full(40, 9, dtype=np.uint8)}, "9 classes of PathMNIST"),
        ({"labels": np.zeros((40, 1, 2), dtype=np.uint8)}, "9 classes of PathMNIST"),
        ({"split": np.array(["train"] * 39 + ["later"])}, "must hold only the parts train, val, test"),
        ({"index": None}, "no array 'index'"),
    ],
)
def test_hostile_pathmnist_subsets(path_sheets, changes, message):
    with pytest.raises(ValueError, match=message):
        load_pathmnist_subset(path_sheets(**changes))


@pytest.fixture(scope="module")
def path_subset(data_root):
    """The file, decoded once for all tests."""
    sheets = read_sheets(data_root / "pathmnist_subset.npz")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pathmnist, "read_sheets", lambda path: sheets)
        yield data_root / "pathmnist_subset.npz"


@pytest.mark.data
def test_real_pathmnist_subset(path_subset, data_root):
    task = load_pathmnist_subset(path_subset)
    counts = {part: (len(rows), int(task.labels[rows].sum())) for part, rows in task.parts.items()}
    assert counts == {"train": (8000, 1176), "validation": (1000, 119), "test": (7180, 1233)}
    assert task.source.shape == CATALOGUE["pathmnist-subset"].shape
    assert load_named("pathmnist-subset", root=data_root).data_hash() == task.data_hash()


@pytest.mark.data
def test_real_pathmnist_images_and_labels_are_in_one_order(path_subset):
    """AUC of a logistic regression on principal components: .824 in the notes that came with the file."""
    task = load_pathmnist_subset(path_subset)
    pixels, train, test = task.source.array[:, ::2, ::2], task.part("train"), task.part("test")
    found = auc_of_simple_model(pixels[train], task.labels[train], pixels[test], task.labels[test])
    assert found == pytest.approx(0.824, abs=0.03)
