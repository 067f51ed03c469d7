"""The four benchmarks: exact images in the official order, the paper's imbalance, and a message for all else."""

import hashlib
import pickle

import numpy as np
import pytest
from PIL import Image
from torchvision import datasets

from deepauc.data.datasets.benchmarks.descriptions import BENCHMARKS
from deepauc.data.datasets.benchmarks.downloads import pool_positions, read_catdog, read_stl10_part
from deepauc.data.datasets.benchmarks.load import load, load_balanced
from deepauc.data.datasets.catalogue import load_named
from deepauc.data.datasets.sheets import read_sheets
from deepauc.metrics.auroc import auroc

OFFICIAL_SHA1 = {  # of the official binary release
    "cifar10_train_1": "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
    "cifar10_train_2": "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
    "cifar10_train_3": "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
    "cifar10_train_4": "aab85764eb3584312d3c7f65fd2fd016e36a258e",
    "cifar10_train_5": "26e2849e66a845b7f1e4614ae70f4889ae604628",
    "cifar10_test": "67eb016db431130d61cd03c7ad570b013799c88c",
    "cifar100_test": "8fb6623e830365ff53cf14adec797474f5478006",
}


def planes(images: np.ndarray) -> np.ndarray:
    """(N, H, W, 3) as rows of red, green and blue planes."""
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


# --- the real images -------------------------------------------------------------------------------------------------


@pytest.mark.data
@pytest.mark.parametrize("name", OFFICIAL_SHA1)
def test_cifar_files_are_the_official_records(data_root, name):
    sheets = read_sheets(data_root / f"{name}.npz")
    labels = [sheets.column("labels")]
    if "100" in name:
        labels.insert(0, sheets.column("coarse_labels"))
    records = np.concatenate([np.stack(labels, axis=1), planes(sheets.images)], axis=1)
    assert hashlib.sha1(records.tobytes()).hexdigest() == OFFICIAL_SHA1[name]


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "imratio", "positives", "negatives", "test"),
    [
        ("C2", 0.01, 101, 10_000, 5_000),
        ("C2", 0.1, 1_111, 10_000, 5_000),
        ("C10", 0.01, 253, 25_000, 10_000),
        ("C10", 0.1, 2_778, 25_000, 10_000),
        ("C100", 0.01, 253, 25_000, 10_000),
        ("C100", 0.1, 2_778, 25_000, 10_000),
        ("S10", 0.01, 25, 2_500, 8_000),
        ("S10", 0.1, 278, 2_500, 8_000),
    ],
)
def test_training_sets_are_the_papers(data_root, name, imratio, positives, negatives, test):
    whole = load(name, imratio=imratio, seed=0, root=data_root, validation=False)
    train = whole.labels[whole.part("train")]
    assert (train.sum(), (train == 0).sum()) == (positives, negatives)
    assert sorted(whole.parts) == ["test", "train"]
    assert len(whole.part("test")) == test
    assert whole.labels[whole.part("test")].mean() == 0.5
    tuning = load(name, imratio=imratio, seed=0, root=data_root)
    held = tuning.part("validation")
    assert sorted([*held, *tuning.part("train")]) == whole.part("train").tolist()
    assert abs(len(held) - 0.1 * len(train)) <= 1
    assert abs(tuning.labels[held].sum() - 0.1 * positives) <= 1
    other = load(name, imratio=imratio, seed=1, root=data_root, validation=False)
    assert len(other.part("train")) == len(train)
    assert not np.array_equal(other.part("train"), whole.part("train"))
    assert other.source is whole.source  # decoded once
    assert ("lossy" in whole.name) == (name in ("C2", "S10"))


@pytest.mark.data
def test_training_sets_never_change(data_root):
    """Seed 0 at 1 %, by the rows' own names in the official files."""
    digest = {}
    for name in ("C2", "C10", "C100", "S10"):
        task = load(name, imratio=0.01, seed=0, root=data_root, validation=False)
        digest[name] = hashlib.sha256("\n".join(task.ids[task.part("train")]).encode()).hexdigest()[:16]
    recorded = {"C2": "ae7408cc85085192", "C10": "57daa043b516369f", "C100": "db5ea7e85e901550"}
    assert digest == {**recorded, "S10": "d1abd7f9a9bb24e6"}


@pytest.mark.data
def test_stl10_files_are_in_the_official_order(data_root):
    """So that both sources draw the same training sets, and their images look alike class by class."""
    task = load_balanced("S10", root=data_root)
    assert task.source.shape == (96, 96, 3)
    assert task.ids.tolist() == [*(f"train/{n}" for n in range(5_000)), *(f"test/{n}" for n in range(8_000))]
    assert task.label_names == ("dog or horse or monkey or ship or truck",)
    blue = task.inputs(np.arange(5_000))[:, :, :, 2].mean((1, 2))
    classes = read_sheets(data_root / "stl10_train.npz").column("labels")
    means = [blue[classes == c].mean() for c in range(10)]
    assert {int(c) for c in np.argsort(means)[-2:]} == {0, 8}  # airplane and ship


def without_checksums(monkeypatch) -> None:
    """The layout of the public download with made files in it: torchvision's checksums cannot hold."""
    monkeypatch.setattr(datasets.CIFAR10, "_check_integrity", lambda self: True)
    monkeypatch.setattr(datasets.CIFAR10, "_load_meta", lambda self: None)


@pytest.mark.data
def test_cifar10_is_the_same_from_both_sources(data_root, tmp_path, monkeypatch):
    from_files = load("C10", imratio=0.01, seed=3, root=data_root)
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in BENCHMARKS["C10"].files:
        sheets = read_sheets(data_root / name)
        official = name.replace("cifar10_train_", "data_batch_").replace("cifar10_test", "test_batch")
        entry = {"data": planes(sheets.images), "labels": sheets.column("labels").tolist()}
        (folder / official.removesuffix(".npz")).write_bytes(pickle.dumps(entry))
    without_checksums(monkeypatch)
    public = load("C10", imratio=0.01, seed=3, root=tmp_path)
    assert np.array_equal(public.inputs(np.arange(60_000)), from_files.inputs(np.arange(60_000)))
    assert public.data_hash() == from_files.data_hash()
    assert public.ids.tolist() == from_files.ids.tolist()


@pytest.mark.data
def test_cifar100_keeps_the_same_rows_from_both_sources(data_root, tmp_path, monkeypatch):
    """The 17,000 images that the files leave out are blank here; their positions are known."""
    train = [read_sheets(data_root / name) for name in BENCHMARKS["C100"].files[:-1]]
    kept = np.concatenate([sheets.column("index") for sheets in train])
    fine, pixels = np.full(50_000, -1), np.zeros((50_000, 3072), dtype=np.uint8)
    fine[kept] = np.concatenate([sheets.column("labels") for sheets in train])
    pixels[kept] = planes(np.concatenate([sheets.images for sheets in train]))
    lacking = 500 - np.bincount(fine[kept], minlength=100)
    fine[fine < 0] = np.repeat(np.arange(100), lacking)
    test = read_sheets(data_root / "cifar100_test.npz")
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    (folder / "train").write_bytes(pickle.dumps({"data": pixels, "fine_labels": fine.tolist()}))
    entry = {"data": planes(test.images), "fine_labels": test.column("labels").tolist()}
    (folder / "test").write_bytes(pickle.dumps(entry))
    without_checksums(monkeypatch)
    from_files = load("C100", imratio=0.1, seed=2, root=data_root)
    public = load("C100", imratio=0.1, seed=2, root=tmp_path)
    assert public.data_hash() == from_files.data_hash()
    assert public.ids.tolist() == from_files.ids.tolist()
    # Another split of the classes: refused with the files, made from all 50,000 with the download.
    with pytest.raises(ValueError, match=r"It needs cifar-100-python/"):
        load("C100", imratio=0.1, seed=0, root=data_root, positive=range(50))
    other = load_balanced("C100", root=tmp_path, positive=range(50))
    assert len(other.part("train")) == 50_000
    assert other.labels[other.part("train")].sum() == 25_000


def test_another_pool_is_refused():
    with pytest.raises(ValueError, match="recorded pool"):
        pool_positions(np.arange(50_000) % 100)


def auc_of_simple_model(
    train: np.ndarray, train_labels: np.ndarray, test: np.ndarray, test_labels: np.ndarray
) -> float:
    """Class-balanced logistic regression (C = 0.1) on 60 standardised principal components of the pixels."""
    from sklearn.decomposition import PCA
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    def pixels(images: np.ndarray) -> np.ndarray:
        return images.reshape(len(images), -1).astype(np.float32) / 255

    model = make_pipeline(
        PCA(60, svd_solver="randomized", random_state=0),
        StandardScaler(),
        LogisticRegression(C=0.1, class_weight="balanced", max_iter=1000),
    )
    model.fit(pixels(train), train_labels)
    return float(auroc(model.decision_function(pixels(test)), test_labels))


@pytest.mark.data
@pytest.mark.parametrize(("name", "least"), [("C10", 0.6), ("C2", 0.6), ("C100", 0.55)])
def test_images_and_labels_belong_together(data_root, name, least):
    """A simple model sees something; with the labels in another order it would be at one half."""
    task = load_balanced(name, root=data_root)
    train, test = task.part("train")[::7], task.part("test")[::2]
    found = auc_of_simple_model(task.inputs(train), task.labels[train], task.inputs(test), task.labels[test])
    assert found > least


@pytest.mark.data
@pytest.mark.parametrize(("name", "known"), [("pneumoniamnist", 0.927), ("breastmnist", 0.820)])
def test_medmnist_has_the_known_auc(data_root, name, known):
    task = load_named(name, root=data_root)
    train, test = task.part("train"), task.part("test")
    found = auc_of_simple_model(task.inputs(train), task.labels[train], task.inputs(test), task.labels[test])
    assert abs(found - known) < 0.01


# --- made files ----------------------------------------------------------------------------------------------------


def stl10_images(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 96, 96, 3), dtype=np.uint8)


def write_stl10(folder, part: str, count: int, images: np.ndarray) -> None:
    """The official layout, image by image: three planes, each column by column. Images not given are black."""
    folder.mkdir(exist_ok=True)
    with open(folder / f"{part}_X.bin", "wb") as file:
        for image in images:
            for channel in range(3):
                for column in range(96):
                    file.write(image[:, column, channel].tobytes())
        file.truncate(count * 96 * 96 * 3)  # the rest is a hole in the file
    (folder / f"{part}_y.bin").write_bytes(bytes(1 + row % 10 for row in range(count)))


def test_stl10_layout(tmp_path):
    images = stl10_images(4)
    write_stl10(tmp_path, "train", 10, images)
    found, classes = read_stl10_part(tmp_path, "train", count=10)
    assert np.array_equal(found[:4], images)
    assert not found[4:].any()
    assert classes.tolist() == list(range(10))
    with pytest.raises(ValueError, match=r"train_X\.bin has 276480 bytes instead of 304128"):
        read_stl10_part(tmp_path, "train", count=11)
    (tmp_path / "train_y.bin").write_bytes(bytes(10))
    with pytest.raises(ValueError, match="outside 1 to 10"):
        read_stl10_part(tmp_path, "train", count=10)


def test_s10_from_made_files_in_full_size(tmp_path):
    images = stl10_images(3)
    write_stl10(tmp_path / "stl10_binary", "train", 5_000, images)
    write_stl10(tmp_path / "stl10_binary", "test", 8_000, images[::-1])
    task = load("S10", imratio=0.1, seed=0, root=tmp_path, validation=False)
    assert np.array_equal(task.inputs([0, 1, 2, 5_000]), images[[0, 1, 2, 2]])
    train = task.labels[task.part("train")]
    assert (train.sum(), (train == 0).sum()) == (278, 2_500)
    assert task.label_names == ("dog or horse or monkey or ship or truck",)
    assert len(task.part("test")) == 8_000
    reference = datasets.STL10.__dict__["_STL10__loadfile"]
    found, labels = reference(
        type("Folder", (), {"root": tmp_path, "base_folder": "stl10_binary"})(), "train_X.bin", "train_y.bin"
    )
    assert np.array_equal(task.inputs(np.arange(5)), found[:5].transpose(0, 2, 3, 1))
    assert np.array_equal(task.labels[:5_000], labels >= 5)
    (tmp_path / "stl10_binary" / "test_y.bin").write_bytes(bytes([1]) * 8_000)
    (tmp_path / "damaged").mkdir()  # another name: the images of this one are kept
    (tmp_path / "stl10_binary").rename(tmp_path / "damaged" / "stl10_binary")
    with pytest.raises(ValueError, match=r"the classes of STL-10 have \[8000, 0, .*\] test images"):
        load_balanced("S10", root=tmp_path / "damaged")


def test_catdog_folder(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "train").mkdir()
    blocks = {}
    for animal in ("cat", "dog"):
        for number in range(6):
            block = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
            blocks[f"{animal}.{number}.jpg"] = block
            picture = Image.fromarray(np.kron(block, np.ones((8, 16, 1), dtype=np.uint8)))  # 32 x 64, to be squashed
            picture.save(tmp_path / "train" / f"{animal}.{number}.jpg", quality=100, subsampling=0)
    train, test = read_catdog(tmp_path, size=4, per_class=6, first_test=4)
    assert (train[1].tolist(), test[1].tolist()) == ([0] * 4 + [1] * 4, [0] * 2 + [1] * 2)
    assert test[2] == ["cat.4.jpg", "cat.5.jpg", "dog.4.jpg", "dog.5.jpg"]
    for name, image in zip([*train[2], *test[2]], [*train[0], *test[0]], strict=True):
        assert np.abs(image.astype(int) - blocks[name]).max() <= 3
    (tmp_path / "train" / "dog.5.jpg").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"dog\.5\.jpg"):
        read_catdog(tmp_path, size=4, per_class=6, first_test=4)
    with pytest.raises(ValueError, match=r"lacks 19988 of 20000 images, such as cat\.6\.jpg"):
        load("C2", imratio=0.1, seed=0, root=tmp_path)


# --- messages ----------------------------------------------------------------------------------------------------


def test_messages(tmp_path, monkeypatch):
    monkeypatch.delenv("DEEPAUC_DATA", raising=False)
    with pytest.raises(ValueError, match="C2, C10, C100, S10"):
        load("MNIST", imratio=0.1, seed=0)
    with pytest.raises(ValueError, match="set DEEPAUC_DATA"):
        load("C10", imratio=0.1, seed=0)
    for name in BENCHMARKS:
        with pytest.raises(ValueError, match="does not hold"):
            load(name, imratio=0.1, seed=0, root=tmp_path)
    for name in ("cifar-10-batches-py", "stl10_binary"):
        (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match="torchvision finds no complete CIFAR10"):
        load("C10", imratio=0.1, seed=0, root=tmp_path)
    with pytest.raises(ValueError, match=r"train_X\.bin"):
        load("S10", imratio=0.1, seed=0, root=tmp_path)
    with pytest.raises(ValueError, match="cannot be downloaded"):
        load("C2", imratio=0.1, seed=0, root=tmp_path, download=True)
    for positive in ((), range(10), (10,)):
        with pytest.raises(ValueError, match="class ids 0 to 9"):
            load("C10", imratio=0.1, seed=0, root=tmp_path, positive=positive)
    for name in BENCHMARKS["C10"].files:
        (tmp_path / name).write_bytes(b"PK nonsense")
    with pytest.raises(ValueError, match=r"cifar10_train_1\.npz is not a readable"):
        load("C10", imratio=0.1, seed=0, root=tmp_path)
