"""DDSM+: TFRecords and .npy files as published, found wherever they lie, read from the disk tile by tile."""

import pickle
import struct

import numpy as np
import pytest
from PIL import Image

from deepauc.data.datasets.catalogue import CATALOGUE, load_named
from deepauc.data.datasets.medical.ddsm import load_ddsm
from deepauc.data.datasets.medical.tfrecord import masked_crc32c
from deepauc.data.packed.sets import pack

CLASSES = {f"training10_{number}": [0, number, 0] for number in range(5)}
TEST = {"test10": [0, 2, 4, 0], "cv10": [1, 0, 0, 0, 3]}


def tile(name, row):
    return np.random.default_rng([*name.encode(), row]).integers(0, 256, (299, 299)).astype(np.uint8)


def varint(number):
    return bytes([number]) if number < 0x80 else bytes([number & 0x7F | 0x80]) + varint(number >> 7)


def field(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def record(label, lesion, image):
    def entry(name, kind, value):
        return field(1, field(1, name) + field(2, field(kind, field(1, value))))

    content = field(
        1, entry(b"label", 3, varint(label)) + entry(b"label_normal", 3, varint(lesion)) + entry(b"image", 1, image)
    )
    head = struct.pack("<Q", len(content))
    return b"".join([head, struct.pack("<I", masked_crc32c(head)), content, struct.pack("<I", masked_crc32c(content))])


@pytest.fixture
def ddsm(tmp_path):
    folder = tmp_path / "ddsm-mammography"
    for name, classes in CLASSES.items():
        (folder / name).mkdir(parents=True)
        records = [record(label, int(label != 0), tile(name, row).tobytes()) for row, label in enumerate(classes)]
        (folder / name / f"{name}.tfrecords").write_bytes(b"".join(records))
    for name, classes in TEST.items():
        (folder / f"{name}_data").mkdir()
        np.save(
            folder / f"{name}_data" / f"{name}_data.npy",
            np.stack([tile(name, row) for row in range(len(classes))])[..., None],
        )
        np.save(folder / f"{name}_labels.npy", np.array(classes))
    return folder


def test_all_parts(ddsm):
    task = load_ddsm(ddsm, size=None)
    assert (task.kind, task.label_names, task.source.shape) == ("binary", ("lesion",), (299, 299, 1))
    expected = [label != 0 for classes in (*CLASSES.values(), *TEST.values()) for label in classes]
    assert task.labels.tolist() == expected
    assert {part: len(rows) for part, rows in task.parts.items()} == {"train": 15, "test": 9}
    rows = [(name, row) for name, classes in (*CLASSES.items(), *TEST.items()) for row in range(len(classes))]
    order = np.random.default_rng(0).permutation(24)
    np.testing.assert_array_equal(task.inputs(order)[..., 0], [tile(*rows[place]) for place in order])
    assert task.ids[[0, 4, 15]].tolist() == ["training10_0/0", "training10_1/1", "test10_data/0"]
    assert task.groups is None
    named = load_named("ddsm", root=ddsm.parent)
    assert named.source.shape == CATALOGUE["ddsm"].shape


def test_resized_packed_and_sent_to_another_process(ddsm, tmp_path):
    task = load_ddsm(ddsm, size=(60, 50))
    image = Image.fromarray(tile("training10_2", 1)).resize((50, 60), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(task.inputs([7])[0, ..., 0], np.asarray(image))
    packed = pack(task, tmp_path / "packed").task()
    assert packed.data_hash() == task.data_hash() == load_ddsm(ddsm, size=(60, 50)).data_hash()
    np.testing.assert_array_equal(packed.inputs(np.arange(24)), task.inputs(np.arange(24)))
    assert load_ddsm(ddsm, size=None).data_hash() != task.data_hash()
    sent = pickle.loads(pickle.dumps(task.source))
    np.testing.assert_array_equal(sent(np.arange(3)), task.inputs(np.arange(3)))


def test_the_hash_sees_every_pixel(ddsm):
    before = load_ddsm(ddsm).data_hash()
    path = ddsm / "cv10_data" / "cv10_data.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert load_ddsm(ddsm).data_hash() != before


def test_test_part_with_fewer_positives(ddsm):
    task = load_ddsm(ddsm, test_imratio=0.25, seed=1)
    test = task.part("test")
    assert (len(test), task.labels[test].sum()) == (7, 2)  # all 5 negatives, and 2 of the 4 positives
    assert len(task.part("train")) == 15
    assert load_ddsm(ddsm, test_imratio=0.25, seed=1).data_hash() == task.data_hash()


def replace_record(folder, content):
    (folder / "training10_3" / "training10_3.tfrecords").write_bytes(content)


IMAGE = bytes(299 * 299)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (record(1, 1, IMAGE)[:-1], r"training10_3.tfrecords, record 0 is cut off"),
        (record(1, 1, IMAGE) + record(0, 0, IMAGE)[:40_000], "record 1 is cut off"),
        (record(1, 1, IMAGE)[:-1] + b"\x00", "record 0: its checksum is wrong"),
        (b"not records at all, but text", "checksum of its length is wrong"),
        (b"", "holds no records"),
        (record(1, 1, IMAGE[:-1]), "record 0: its image has 89,400 bytes, not 299 x 299"),
        (record(5, 1, IMAGE), "label 5 contradicts label_normal 1"),
        (record(2, 0, IMAGE), "label 2 contradicts label_normal 0"),
        (record(0, 1, IMAGE), "contradicts"),
    ],
)
def test_hostile_records(ddsm, content, message):
    replace_record(ddsm, content)
    with pytest.raises(ValueError, match=message):
        load_ddsm(ddsm)


def test_a_record_without_a_label(ddsm):
    content = field(1, field(1, field(1, b"image") + field(2, field(1, field(1, IMAGE)))))
    head = struct.pack("<Q", len(content))
    whole = [head, struct.pack("<I", masked_crc32c(head)), content, struct.pack("<I", masked_crc32c(content))]
    replace_record(ddsm, b"".join(whole))
    with pytest.raises(ValueError, match="record 0: it has 0 integers 'label', not one"):
        load_ddsm(ddsm)


def test_files_that_are_missing_or_there_twice(ddsm):
    copy = ddsm / "copy" / "cv10_labels.npy"
    copy.parent.mkdir()
    copy.write_bytes((ddsm / "cv10_labels.npy").read_bytes())
    with pytest.raises(ValueError, match=r"cv10_labels.npy 2 times"):
        load_ddsm(ddsm)
    copy.unlink()
    (ddsm / "training10_4" / "training10_4.tfrecords").unlink()
    with pytest.raises(ValueError, match=r"training10_4.tfrecords is not in"):
        load_ddsm(ddsm)
    with pytest.raises(ValueError, match="does not exist"):
        load_ddsm(ddsm / "nothing")


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("test10_labels.npy", np.array([0, 2, 4, 5]), "labels outside 0 to 4"),
        ("test10_labels.npy", np.array([0.0, 2, 4, 0]), "not whole numbers"),
        ("test10_labels.npy", np.array([0, 2, 4]), "has 4 tiles, but .* 3 labels"),
        ("test10_data/test10_data.npy", np.zeros((4, 298, 299, 1), dtype=np.uint8), "not uint8"),
        ("test10_data/test10_data.npy", np.zeros((4, 299, 299, 1), dtype=np.float32), "not uint8"),
        ("test10_data/test10_data.npy", np.array([object()]), "pickled"),
    ],
)
def test_hostile_arrays(ddsm, name, array, message):
    np.save(ddsm / name, array)
    with pytest.raises(ValueError, match=message):
        load_ddsm(ddsm)


def test_an_array_that_is_cut_off(ddsm):
    path = ddsm / "test10_data" / "test10_data.npy"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match=r"test10_data.npy is cut off"):
        load_ddsm(ddsm)
