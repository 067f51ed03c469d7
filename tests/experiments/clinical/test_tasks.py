"""Folds as seeds: patients stay together, outside data is never held out; the stand-ins' parts on the real files."""

import numpy as np
import pytest
from PIL import Image

from deepauc.data.splits import k_fold
from deepauc.data.task import ArrayInputs, Task
from deepauc.models.build import build_model
from deepauc.studies import sources
from deepauc.studies.sources import Place, fold_task
from experiments.clinical.packs import _OWN_SIDES
from experiments.clinical.studies import ddsm, medical
from experiments.clinical.tasks import MedicalSource, root_of


@pytest.fixture
def task():
    """60 patients of three images each, and 40 outside images of their own patients, one of whom is shared."""
    generator = np.random.default_rng(0)
    own = np.repeat(np.arange(60), 3)
    groups = [f"p{number}" for number in own] + [f"o{number}" for number in range(39)] + ["p0"]
    labels = np.concatenate([generator.random(60) < 0.3]).repeat(3)
    return Task(
        name="made",
        kind="binary",
        source=ArrayInputs(generator.random((220, 3)).astype(np.float32)),
        labels=np.concatenate([labels, generator.random(40) < 0.5]),
        label_names=("melanoma",),
        parts={"train": np.arange(220)},
        groups=np.array(groups),
    )


OUTSIDE = np.arange(180, 220)


@pytest.mark.parametrize("tuning", [False, True])
def test_a_fold_is_the_test_part_and_shares_no_patient(task, tuning):
    held = []
    for fold in range(5):
        made = fold_task(task, fold=fold, outside=OUTSIDE, tuning=tuning)
        parts = {part: set(made.groups[rows]) for part, rows in made.parts.items()}
        assert set(parts) == ({"train", "validation", "test"} if tuning else {"train", "test"})
        names = list(parts.values())
        assert sum(map(len, names)) == len(set.union(*names))
        held.append(made.part("test"))
        if tuning:
            assert not np.isin(OUTSIDE, made.part("validation")).any()
        held_out = set().union(*(parts[part] for part in parts if part != "train"))
        missing = OUTSIDE[~np.isin(OUTSIDE, made.part("train"))]
        assert missing.tolist() == ([219] if "p0" in held_out else [])
    assert np.array_equal(np.sort(np.concatenate(held)), np.arange(180))


def test_folds_are_the_same_for_every_seed_of_a_network(task):
    first, again = (fold_task(task, fold=2, outside=OUTSIDE).part("test") for _ in range(2))
    assert np.array_equal(first, again)
    other = fold_task(task, fold=2, outside=OUTSIDE, split_seed=1).part("test")
    assert not np.array_equal(first, other)


def test_folds_are_dealt_once_for_a_task(task, monkeypatch):
    dealt = []

    def noted(task, **options):
        dealt.append(options["seed"])
        return k_fold(task, **options)

    monkeypatch.setattr(sources, "k_fold", noted)
    for fold in range(5):
        fold_task(task, fold=fold, outside=OUTSIDE)
    fold_task(task, fold=0, outside=OUTSIDE, split_seed=1)
    assert dealt == [0, 1]
    assert not np.isin(OUTSIDE, fold_task(task, fold=0, outside=OUTSIDE).part("test")).any()
    assert np.isin(OUTSIDE, fold_task(task, fold=0).part("test")).any()  # all may be held out: dealt anew


def test_a_seed_that_is_no_fold_is_refused(task):
    with pytest.raises(ValueError, match="0 to 4, not 5"):
        fold_task(task, fold=5)


def test_an_unknown_set_names_the_nearest_and_a_missing_folder_the_remedy(monkeypatch):
    with pytest.raises(ValueError, match="breastmnist"):
        MedicalSource(dataset="breastmnst").load(0, tuning=True, place=Place())
    monkeypatch.delenv("DEEPAUC_DATA", raising=False)
    with pytest.raises(ValueError, match="--data"):
        root_of(Place())


def write_images(folder, names):
    folder.mkdir(parents=True)
    for name in names:
        Image.new("RGB", (8, 8), (int(name[-2:]) * 9, 80, 90)).save(folder / f"{name}.jpg")


def test_sizes_of_two_editions_have_the_same_rows_and_folds(tmp_path):
    names = [f"ISIC_{number:07d}" for number in range(24)]
    columns = "image_name,patient_id,sex,age_approx,anatom_site_general_challenge,target"
    lines = [f"{name},IP_{row // 2:07d},male,45.0,torso,{row % 2}" for row, name in enumerate(names)]
    (tmp_path / "train.csv").write_text("\n".join([columns, *lines]) + "\n")
    write_images(tmp_path / "jpeg" / "train", names)
    resized = tmp_path / "jpeg-melanoma-8x8"
    write_images(resized / "train", names)
    folded = [f"{line},{-1 if row == 4 else row // 2}" for row, line in enumerate(lines)]
    (resized / "train.csv").write_text("\n".join([f"{columns},tfrecord", *folded]) + "\n")
    place = Place(data=tmp_path, runs=tmp_path / "runs")
    small, large = (MedicalSource(dataset="melanoma", size=size).load(2, tuning=False, place=place) for size in (8, 16))
    assert (small.source.shape, large.source.shape) == ((8, 8, 3), (16, 16, 3))
    assert len(small) == 23
    assert small.ids.tolist() == large.ids.tolist()
    assert small.part("test").tolist() == large.part("test").tolist()


@pytest.mark.data
@pytest.mark.parametrize(
    ("dataset", "tuning", "final"),
    [
        ("breastmnist", {"train": 546, "validation": 78}, {"train": 624, "test": 156}),
        ("pneumoniamnist", {"train": 4708, "validation": 524}, {"train": 5232, "test": 624}),
        ("pathmnist", {"train": 6893, "validation": 1000}, {"train": 6893, "test": 7180}),
        ("ham10000", {"train": 5820, "validation": 478}, {"train": 6298, "test": 1197}),
        ("isic2020", {"train": 23842, "validation": 2649}, {"train": 26491, "test": 6635}),
    ],
)
def test_parts_of_the_stand_ins(data_root, dataset, tuning, final):
    source, place = MedicalSource(dataset=dataset), Place(data=data_root)
    tuned, whole = (source.load(1, tuning=flag, place=place) for flag in (True, False))
    assert {part: len(rows) for part, rows in tuned.parts.items() if part != "test"} == tuning
    assert {part: len(rows) for part, rows in whole.parts.items()} == final
    if dataset == "pathmnist":
        assert whole.positive_share("train")[0] == pytest.approx(0.01, abs=1e-4)


def test_every_stand_in_has_images_that_its_network_takes():
    images = [study for study in medical().studies if study.task.dataset in _OWN_SIDES and not study.task.metadata]
    pairs = {(study.recipe(study.configs[0], "final").model, study.task) for study in images}
    sides = {(model, task.size or _OWN_SIDES[task.dataset]) for model, task in pairs}
    assert len(sides) == 6  # ResNet20 at 28, 32 and 64 px, DenseNet121 at 32, EfficientNets B3 and B5 at 32
    for model, side in sides:
        build_model(model, in_channels=3, num_outputs=1, seed=0, input_shape=(3, side, side))


@pytest.mark.data
@pytest.mark.parametrize("dataset", ["breastmnist", "pathmnist"])
def test_a_border_repeats_the_outermost_pixels(data_root, dataset):
    place, rows = Place(data=data_root), np.arange(0, 700, 7)
    own, wide = (MedicalSource(dataset=dataset, size=size).load(1, tuning=False, place=place) for size in (0, 32))
    at = np.clip(np.arange(-2, 30), 0, 27)
    assert np.array_equal(wide.inputs(rows), own.inputs(rows)[:, at][:, :, at])
    assert wide.parts["train"].tolist() == own.parts["train"].tolist()
    with pytest.raises(ValueError, match="28 pixels, or more with a border, not 20"):
        MedicalSource(dataset=dataset, size=20).load(1, tuning=False, place=place)


@pytest.mark.data
def test_images_and_metadata_of_a_fold_have_the_same_test_rows(data_root):
    place = Place(data=data_root)
    images = MedicalSource(dataset="ham10000", size=32).load(3, tuning=False, place=place)
    patients = MedicalSource(dataset="ham10000", metadata=True).load(3, tuning=False, place=place)
    assert images.source.shape == (32, 32, 3)
    assert images.ids[images.part("test")].tolist() == patients.ids[patients.part("test")].tolist()
    outside = np.char.startswith(images.ids, "ISIC_2018/")
    assert outside.sum() == 1511
    assert outside[images.part("train")].sum() == 1511


def test_patchcamelyon_joins_train_and_valid_at_one_per_cent(tmp_path):
    h5py = pytest.importorskip("h5py")
    generator = np.random.default_rng(0)
    for part, rows in {"train": 240, "valid": 60, "test": 40}.items():
        stem = tmp_path / f"camelyonpatch_level_2_split_{part}"
        with h5py.File(f"{stem}_x.h5", "w") as file:
            file["x"] = generator.integers(0, 255, (rows, 96, 96, 3), dtype=np.uint8)
        with h5py.File(f"{stem}_y.h5", "w") as file:
            file["y"] = (np.arange(rows) % 3 == 0).astype(np.uint8).reshape(-1, 1, 1, 1)
    source, place = MedicalSource(dataset="pcam"), Place(data=tmp_path, runs=tmp_path / "runs")
    whole = source.load(0, tuning=False, place=place)
    assert {part: len(rows) for part, rows in whole.parts.items()} == {"train": 202, "test": 40}
    assert whole.labels[whole.part("train")].sum() == 2
    other = source.load(1, tuning=False, place=place)
    assert other.ids[other.part("train")].tolist() != whole.ids[whole.part("train")].tolist()


def test_ddsm_is_read_once_at_the_size_and_share_of_the_study(tmp_path, monkeypatch, task):
    asked = []

    def read(root, *, size, test_imratio):
        asked.append((root, size, test_imratio))
        return task.with_parts({"train": np.arange(150), "test": np.arange(150, 220)})

    monkeypatch.setattr("experiments.clinical.tasks.load_ddsm", read)
    source = next(study.task for study in ddsm().studies)
    place = Place(data=tmp_path, runs=tmp_path / "runs")
    tuned, whole = (source.load(0, tuning=flag, place=place) for flag in (True, False))
    assert asked == [(tmp_path, 224, 0.04)]
    assert set(tuned.parts) == {"train", "validation", "test"}
    assert len(tuned.part("train")) + len(tuned.part("validation")) == len(whole.part("train")) == 150


@pytest.fixture
def melanoma_folder(tmp_path):
    """A resized edition of 24 images, and six images of 2018 outside it."""
    names = [f"ISIC_{number:07d}" for number in range(24)]
    lines = [f"{name},IP_{row // 2:07d},male,45.0,torso,{row % 2}" for row, name in enumerate(names)]
    columns = "image_name,patient_id,sex,age_approx,anatom_site_general_challenge,target"
    edition, other = tmp_path / "jpeg-melanoma-8x8", tmp_path / "outside" / "ISIC2018"
    write_images(edition / "train", names)
    (edition / "train.csv").write_text("\n".join([columns, *lines]) + "\n")
    write_images(other / "train", [f"X{number:02d}" for number in range(6)])
    (other / "train.csv").write_text("image,MEL\n" + "".join(f"X{row:02d},{row % 2}.0\n" for row in range(6)))
    return tmp_path


def load_melanoma_fold(root, size=8):
    source = MedicalSource(dataset="melanoma", size=size)
    return source.load(0, tuning=False, place=Place(data=root, runs=root / "runs"))


@pytest.mark.parametrize("change", [("image,MEL", '"image","MEL"'), (",", ";"), ("image,MEL", "\ufeffimage,MEL")])
def test_outside_tables_as_other_software_saves_them(melanoma_folder, change):
    table = melanoma_folder / "outside" / "ISIC2018" / "train.csv"
    table.write_text(table.read_text().replace(*change))
    (melanoma_folder / "outside" / ".hidden").mkdir()
    task = load_melanoma_fold(melanoma_folder)
    assert np.char.startswith(task.ids[task.part("train")], "ISIC2018/").sum() == 6


def test_an_outside_folder_without_its_table_is_not_passed_over(melanoma_folder):
    table = melanoma_folder / "outside" / "ISIC2018" / "train.csv"
    table.rename(table.with_name("GroundTruth.csv"))
    with pytest.raises(ValueError, match=r"ISIC2018 has no train.csv, a table with the columns image_name and target"):
        load_melanoma_fold(melanoma_folder)


def test_an_outside_table_of_another_encoding_is_named(melanoma_folder):
    (melanoma_folder / "outside" / "ISIC2018" / "train.csv").write_bytes(b"\xff\xfeimage,MEL\n")
    with pytest.raises(ValueError, match=r"train.csv is not UTF-8"):
        load_melanoma_fold(melanoma_folder)


def test_a_size_that_is_not_there_names_the_folders_it_would_be_in(melanoma_folder):
    with pytest.raises(ValueError, match=r"neither jpeg-melanoma-16x16/train/ nor the competition's jpeg/train/"):
        load_melanoma_fold(melanoma_folder, size=16)
