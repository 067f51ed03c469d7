"""Batched augmentation against torchvision's functions, image by image, on the same parameters."""

import hashlib
import io
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms import InterpolationMode

from deepauc.data.augment import colour, geometry, mixup
from deepauc.data.augment.batch import _FIRST_HOLE, _PARAMETERS, Augment
from deepauc.data.counter import bits, hash_key, uniforms

EVERYTHING = Augment(
    vertical_flip=True,
    rotation=20,
    translation=0.1,
    scale=(0.8, 1.2),
    shear=10,
    resized_crop=(0.5, 1.0),
    brightness=0.4,
    contrast=0.4,
    saturation=0.4,
    hue=0.1,
    greyscale=0.2,
    coarse_dropout=3,
    hole_size=0.25,
    mixup=0.4,
)
NOTHING = Augment(flip=False, crop_padding=0)


def random_images(count: int, height: int, width: int, channels: int = 3, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, height, width, channels), dtype=torch.uint8, generator=generator)


def smooth_images(count: int, size: int, margin: int) -> torch.Tensor:
    """(B, 3, size, size) in [0, 1], black outside an inner square, so that nothing ever leaves the frame."""
    images = torch.zeros(count, 3, size, size)
    inner = torch.rand(count, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    side = size - 2 * margin
    images[:, :, margin:-margin, margin:-margin] = torch.nn.functional.interpolate(inner, (side, side), mode="bilinear")
    return images


# --- the table ---------------------------------------------------------------------------------------------------


def splitmix64(start: int, count: int) -> list[int]:
    """The published generator, step by step on Python's integers."""
    mask = 2**64 - 1
    state, out = start, []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        out.append(z ^ (z >> 31))
    return out


def test_counter_is_splitmix64():
    # The first outputs of the generator seeded with 1234567, as published with its reference implementation.
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert splitmix64(1234567, 4) == published
    assert bits(1234567, 4).tolist() == published
    assert bits(2**64 - 1, 50).tolist() == splitmix64(2**64 - 1, 50)
    u = uniforms(hash_key(0), 100_000)
    assert u.min() >= 0
    assert u.max() < 1
    assert np.array_equal(u, u.astype(np.float32))
    assert abs(u.mean() - 0.5) < 0.005
    assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 0.01
    neighbours = [np.corrcoef(u, uniforms(hash_key(*address), 100_000))[0, 1] for address in ((1,), (0, 0), (0, 1))]
    assert np.abs(neighbours).max() < 0.01


def test_table_is_the_same_everywhere():
    """A change of these hashes changes every recorded run."""
    digest = {
        name: hashlib.sha256(augment.draw(1000, seed=3, epoch=5, view=1).values.numpy().tobytes()).hexdigest()[:16]
        for name, augment in {"default": Augment(), "geometry": Augment(rotation=15, translation=0.05)}.items()
    }
    assert digest == {"default": "5a2afd3ec8e8c435", "geometry": "8db4f5529c6d9a92"}


def test_parameters_keep_their_numbers():
    """Another number is another random number, in every recorded run with this augmentation: add at the end."""
    assert _PARAMETERS[:20] == (
        *("flip", "vertical_flip", "crop_y", "crop_x", "angle", "shift_x", "shift_y", "zoom", "shear"),
        *("window_area", "window_ratio", "window_x", "window_y"),
        *("brightness", "contrast", "saturation", "hue", "greyscale", "mixup_weight", "mixup_key"),
    )
    assert len(set(_PARAMETERS)) == len(_PARAMETERS) < _FIRST_HOLE


def test_everything_is_everything():
    """Compiling, capturing, ranks and groups of images are tested with `EVERYTHING`: a new option has to be in it."""
    off = {
        option.name for option in fields(Augment) if option.init and getattr(NOTHING, option.name) in (0, (1.0, 1.0))
    }
    assert {name for name in off if getattr(EVERYTHING, name) == getattr(NOTHING, name)} == {
        "fill"
    }  # a grey, not a change


@settings(derandomize=True, deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**70), epoch=st.integers(0, 10**6), view=st.integers(0, 3), n=st.integers(0, 60))
def test_rows_depend_on_their_position_alone(seed, epoch, view, n):
    table = EVERYTHING.draw(n, seed=seed, epoch=epoch, view=view)
    longer = EVERYTHING.draw(n + 7, seed=seed, epoch=epoch, view=view)
    assert table.values.shape == (n, len(EVERYTHING.columns)) == (len(table), len(table.columns))
    assert torch.equal(longer.values[:n], table.values)
    if n > 5:
        for other in ((seed + 1, epoch, view), (seed, epoch + 1, view), (seed, epoch, view + 1)):
            changed = EVERYTHING.draw(n, seed=other[0], epoch=other[1], view=other[2])
            assert not torch.equal(changed.column("mixup_key"), table.column("mixup_key"))


def test_switching_one_augmentation_off_leaves_the_others():
    table = EVERYTHING.draw(50, seed=0, epoch=0)
    without = replace(EVERYTHING, crop_padding=0, hue=0.0, coarse_dropout=2, mixup=0.0).draw(50, seed=0, epoch=0)
    assert set(table.columns) - set(without.columns) == {
        *("crop_y", "crop_x", "hue", "hole_x2", "hole_y2", "mixup_weight", "mixup_key")
    }
    for name in without.columns:
        assert torch.equal(table.column(name), without.column(name)), name


def test_drawn_values_fill_their_ranges_evenly():
    table = EVERYTHING.draw(40_000, seed=1, epoch=0)
    for name, low, high in (
        ("crop_y", 0, 8),
        ("crop_x", 0, 8),
        ("angle", -20, 20),
        ("shift_x", -0.1, 0.1),
        ("shift_y", -0.1, 0.1),
        ("zoom", 0.8, 1.2),
        ("shear", -10, 10),
        ("brightness", 0.6, 1.4),
        ("hue", -0.1, 0.1),
        ("hole_x2", 0, 1),
    ):
        column = table.column(name).double()
        spread = (high - low) / 12**0.5
        assert column.min() >= low - 1e-6, name
        assert column.max() <= high + 1e-6, name
        assert abs(column.mean() - (low + high) / 2) < 5 * spread / 200, name
    assert set(table.column("crop_x").tolist()) == set(range(9))
    for name, share in (("flip", 0.5), ("vertical_flip", 0.5), ("greyscale", 0.2)):
        assert abs(table.column(name).mean() - share) < 0.015
    width, height = table.column("window_width"), table.column("window_height")
    assert (width * height <= 1).all()
    assert (width.maximum(height) <= 1).all()
    assert (table.column("window_x").abs() <= (1 - width) / 2 + 1e-6).all()
    cut = (width == 1) | (height == 1)
    assert ((width * height)[~cut] >= 0.5 - 1e-6).all()
    weight = table.column("mixup_weight").double()
    assert abs(weight.mean() - 0.5) < 0.01
    assert abs(weight.var() - 1 / (4 * (2 * 0.4 + 1))) < 0.003  # Beta(a, a) has variance 1 / (4 (2a + 1))
    correlations = np.corrcoef(table.values.numpy()[:, [table.columns.index(c) for c in ("flip", "crop_y", "angle")]].T)
    assert np.abs(correlations - np.eye(3)).max() < 0.02


# --- flips and crops: to the bit ---------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("fill", [0.0, 0.5])
def test_flip_and_crop_equal_torchvision(channels, layout, fill):
    images = random_images(40, 13, 17, channels)
    augment = Augment(vertical_flip=True, crop_padding=3, fill=fill)
    table = augment.draw(40, seed=2, epoch=1)
    given_images = images if layout == "NHWC" else images.permute(0, 3, 1, 2).contiguous()
    for batch in (given_images, reference.to_dtype(given_images, torch.float32, scale=True)):
        out = augment.apply(batch, table.values, layout=layout)
        for i, image in enumerate(images.permute(0, 3, 1, 2)):
            row = dict(zip(table.columns, table.values[i].tolist(), strict=True))
            padded = reference.pad(image, [3, 3, 3, 3], fill=round(255 * fill))
            expected = reference.crop(padded, int(row["crop_y"]), int(row["crop_x"]), 13, 17)
            expected = reference.horizontal_flip(expected) if row["flip"] else expected
            expected = reference.vertical_flip(expected) if row["vertical_flip"] else expected
            assert torch.equal(out[i], reference.to_dtype(expected, torch.float32, scale=True))
    assert out.shape == (40, channels, 13, 17)


def test_nothing_is_the_identity():
    images = random_images(5, 8, 9)
    out = NOTHING.apply(images, NOTHING.draw(5, seed=0, epoch=0).values)
    assert torch.equal(out, images.permute(0, 3, 1, 2).float() * (1 / 255))
    assert out.max() <= 1


def test_large_batches_are_worked_off_in_groups():
    """On a CPU a batch beyond the cache is split: the result is that of the images one by one."""
    images = random_images(9, 300, 200)
    augment = Augment(rotation=5, brightness=0.2)
    table = augment.draw(9, seed=0, epoch=0)
    out = augment.apply(images, table.values)
    assert images.numel() > 2 * (1 << 19)
    for i in range(9):
        assert torch.equal(out[i], augment.apply(images[i : i + 1], table.values[i : i + 1])[0])


# --- the composed affine map -------------------------------------------------------------------------------------


def test_affine_equals_torchvision():
    images = torch.rand(24, 3, 20, 28, generator=torch.Generator().manual_seed(0))
    augment = Augment(flip=False, crop_padding=0, rotation=40, translation=0.2, scale=(0.7, 1.4), shear=25)
    table = augment.draw(24, seed=0, epoch=0)
    for fill in (0.0, 0.4):
        out = replace(augment, fill=fill).apply(images, table.values, layout="NCHW")
        for i, image in enumerate(images):
            row = dict(zip(table.columns, table.values[i].tolist(), strict=True))
            expected = reference.affine(
                image - fill,  # torchvision's own fill weighs the rim twice
                angle=row["angle"],
                translate=[row["shift_x"] * 28, row["shift_y"] * 20],
                scale=row["zoom"],
                shear=[row["shear"], 0.0],
                interpolation=InterpolationMode.BILINEAR,
            )
            assert (out[i] - fill - expected).abs().max() < 5e-5


def test_composed_map_equals_the_steps_one_after_the_other():
    """Where nothing leaves the frame on the way, one sampling equals crop, flips and affine in turn."""
    images = smooth_images(16, 48, 14)
    augment = Augment(vertical_flip=True, crop_padding=4, rotation=30, translation=0.05, scale=(0.8, 1.1), shear=8)
    table = augment.draw(16, seed=4, epoch=0)
    composed = augment.apply(images, table.values, layout="NCHW")
    moving = Augment(vertical_flip=True, crop_padding=4)
    moved = moving.apply(images, moving.draw(16, seed=4, epoch=0).values, layout="NCHW")
    for i, image in enumerate(moved):
        row = dict(zip(table.columns, table.values[i].tolist(), strict=True))
        expected = reference.affine(
            image,
            angle=row["angle"],
            translate=[row["shift_x"] * 48, row["shift_y"] * 48],
            scale=row["zoom"],
            shear=[row["shear"], 0.0],
            interpolation=InterpolationMode.BILINEAR,
        )
        assert (composed[i] - expected).abs().max() < 5e-5


def test_exact_path_and_affine_path_agree():
    images = random_images(32, 10, 12)
    exact = Augment(vertical_flip=True)
    sampled = Augment(vertical_flip=True, rotation=1e-9)
    a = exact.apply(images, exact.draw(32, seed=0, epoch=3).values)
    b = sampled.apply(images, sampled.draw(32, seed=0, epoch=3).values)
    assert (a - b).abs().max() < 1e-5


def test_resized_crop_equals_torchvision_inside():
    images = smooth_images(20, 64, 4)
    augment = Augment(flip=False, crop_padding=0, resized_crop=(0.2, 0.9))
    table = augment.draw(20, seed=0, epoch=0)
    out = augment.apply(images, table.values, layout="NCHW")
    compared = 0
    for i, image in enumerate(images):
        row = dict(zip(table.columns, table.values[i].tolist(), strict=True))
        width, height = round(row["window_width"] * 64), round(row["window_height"] * 64)
        left = round((row["window_x"] + 0.5) * 64 - width / 2)
        top = round((row["window_y"] + 0.5) * 64 - height / 2)
        # Torchvision cuts at whole pixels: give ours the same window.
        whole = table.values[i : i + 1].clone()
        for name, value in (
            ("window_width", width / 64),
            ("window_height", height / 64),
            ("window_x", (left + width / 2) / 64 - 0.5),
            ("window_y", (top + height / 2) / 64 - 0.5),
        ):
            whole[0, table.columns.index(name)] = value
        ours = augment.apply(image[None], whole, layout="NCHW")[0]
        expected = reference.resized_crop(image, top, left, height, width, [64, 64], antialias=False)
        inner = (slice(None), slice(4, -4), slice(4, -4))  # the window's rim: torchvision repeats it, ours looks on
        assert (ours[inner] - expected[inner]).abs().max() < 1e-4
        assert (ours - out[i]).abs().mean() < 0.05
        compared += 1
    assert compared == 20


# --- colour and holes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation", "hue"])
def test_colour_equals_torchvision(name, channels):
    images = random_images(12, 9, 11, channels).permute(0, 3, 1, 2).float() / 255
    images[0] = 0.25  # grey: no hue, no chroma
    images[1, :, :4] = torch.tensor([1.0, 0.5, 0.5])[:channels, None, None]
    factors = torch.linspace(-0.5, 0.5, 12) if name == "hue" else torch.linspace(0, 2, 12)
    ours = getattr(colour, f"adjust_{name}")(images, factors)
    for image, factor, out in zip(images, factors, ours, strict=True):
        expected = getattr(reference, f"adjust_{name}")(image, float(factor))
        assert (out - expected).abs().max() < 2e-6


def test_colour_changes_follow_their_order():
    augment = Augment(flip=False, crop_padding=0, brightness=0.5, contrast=0.5, saturation=0.5, hue=0.2, greyscale=0.5)
    images = random_images(10, 7, 7)
    table = augment.draw(10, seed=0, epoch=0)
    out = augment.apply(images, table.values)
    for i, image in enumerate(images.permute(0, 3, 1, 2)):
        row = dict(zip(table.columns, table.values[i].tolist(), strict=True))
        expected = image.float() / 255
        expected = reference.adjust_brightness(expected, row["brightness"])
        expected = reference.adjust_contrast(expected, row["contrast"])
        expected = reference.adjust_saturation(expected, row["saturation"])
        expected = reference.adjust_hue(expected, row["hue"])
        expected = reference.rgb_to_grayscale(expected, 3) if row["greyscale"] else expected
        assert (out[i] - expected).abs().max() < 5e-6


def test_holes_are_where_the_table_says():
    augment = Augment(flip=False, crop_padding=0, coarse_dropout=4, hole_size=0.3, fill=0.2)
    images = torch.ones(9, 2, 20, 30)
    table = augment.draw(9, seed=0, epoch=0)
    out = augment.apply(images, table.values, layout="NCHW")
    for i in range(9):
        expected = np.ones((2, 20, 30), dtype=np.float32)
        for hole in range(4):
            cx, cy = (float(table.column(f"hole_{axis}{hole}")[i]) for axis in "xy")
            for y in range(20):
                for x in range(30):
                    if abs((x + 0.5) / 30 - cx) < 0.15 and abs((y + 0.5) / 20 - cy) < 0.15:
                        expected[:, y, x] = 0.2
        assert np.array_equal(out[i].numpy(), expected)


def test_normalise():
    images = torch.rand(4, 3, 5, 5)
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    expected = reference.normalize(images, list(mean), list(std))
    assert torch.allclose(colour.normalise(images, torch.tensor(mean), torch.tensor(std)), expected)


# --- mixup -------------------------------------------------------------------------------------------------------


def test_mixup_by_brute_force():
    augment = Augment(mixup=1.0)
    table = augment.draw(16, seed=0, epoch=0)
    images = torch.rand(16, 3, 4, 4)
    labels = (torch.arange(32).reshape(16, 2) % 3 == 0).double()
    labels[3, 0] = float("nan")
    mixed, soft = augment.mix(images, labels, table.values)
    order = sorted(range(16), key=lambda i: float(table.column("mixup_key")[i]))
    assert sorted(order) == list(range(16))
    for i, partner in enumerate(order):
        weight = float(table.column("mixup_weight")[i])
        assert torch.allclose(mixed[i], weight * images[i] + (1 - weight) * images[partner], atol=1e-6)
        expected = weight * labels[i] + (1 - weight) * labels[partner]
        assert torch.allclose(soft[i], expected, equal_nan=True)
        assert bool(soft[i, 0].isnan()) == (3 in (i, partner))
    assert soft.dtype == torch.float64


def test_a_missing_label_stays_missing_at_every_weight():
    labels = torch.tensor([1.0, float("nan")])
    for weight in (0.0, 0.3, 1.0):
        assert mixup.mix(labels, labels.flip(0), torch.full((2,), weight)).isnan().all()


def test_mixup_keeps_the_share_of_positives():
    augment = Augment(mixup=0.3)
    table = augment.draw(128 * 200, seed=0, epoch=0)
    labels = (torch.arange(128) < 13).long()
    batches = table.values.split(128)
    means = torch.stack([augment.mix(torch.zeros(128, 1), labels, rows)[1].mean() for rows in batches])
    assert abs(means.mean() - 13 / 128) < 0.002
    partners = torch.stack([mixup.partners(rows[:, augment.columns.index("mixup_key")]) for rows in batches])
    assert abs((partners[:, :13] < 13).float().mean() - 13 / 128) < 0.03  # not tied to the order of the batch
    assert Augment().mix(torch.zeros(3, 1), labels[:3], Augment().draw(3, seed=0, epoch=0).values)[1] is not None


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.4, 1.0, 3.0, 50.0])
def test_mixing_weights_are_the_quantiles_of_the_beta_distribution(alpha):
    from scipy.special import betaincinv

    step = 2.0**-24
    ends = [0, step, 2 * step, 0.5 - step, 0.5, 0.5 + step, 1 - 2 * step, 1 - step]
    uniforms = np.concatenate([ends, np.floor(np.random.default_rng(0).random(500) / step) * step])
    weights = mixup.mixing_weights(uniforms, alpha)
    assert weights == pytest.approx(betaincinv(alpha, alpha, uniforms + step / 2), abs=1e-6)
    assert (np.diff(weights[np.argsort(uniforms, kind="stable")]) >= 0).all()


def test_mixup_wants_floating_images():
    augment = Augment(mixup=1.0)
    with pytest.raises(ValueError, match="apply the augmentation first"):
        augment.mix(random_images(2, 4, 4), torch.zeros(2), augment.draw(2, seed=0, epoch=0).values)


# --- graph safety, batches, messages -----------------------------------------------------------------------------


def test_compiles_in_one_piece_without_a_generator():
    images, labels = random_images(6, 16, 16), torch.zeros(6)
    table = EVERYTHING.draw(6, seed=0, epoch=0)

    def step(batch: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return EVERYTHING.mix(EVERYTHING.apply(batch, rows), labels, rows)

    torch.manual_seed(0)
    before = torch.get_rng_state()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for result, expected in zip(compiled(images, table.values), step(images, table.values), strict=True):
        assert torch.allclose(result, expected, atol=1e-6)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.gpu
def test_captured_in_a_cuda_graph():
    images, labels = random_images(64, 32, 32).cuda(), torch.zeros(64, device="cuda")
    for augment in (Augment(), EVERYTHING):
        table = augment.draw(64 * 3, seed=0, epoch=0).to("cuda")
        rows, stream, graph = table.values[:64].clone(), torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            augment.mix(augment.apply(images, rows), labels, rows)
        with torch.cuda.graph(graph):
            captured, _ = augment.mix(augment.apply(images, rows), labels, rows)
        for batch in table.values.split(64):
            rows.copy_(batch)
            graph.replay()
            on_cpu, _ = augment.mix(augment.apply(images.cpu(), batch.cpu()), labels.cpu(), batch.cpu())
            assert (captured.cpu() - on_cpu).abs().max() < 1e-3
        if augment == Augment():
            assert torch.equal(captured.cpu(), on_cpu)


def test_a_batch_equals_its_images_one_by_one():
    """The parts of a batch, on any number of ranks, give what the whole gives."""
    images = random_images(12, 16, 16)
    table = EVERYTHING.draw(12, seed=0, epoch=0)
    whole = EVERYTHING.apply(images, table.values)
    parts = [EVERYTHING.apply(images[i : i + 3], table.values[i : i + 3]) for i in range(0, 12, 3)]
    assert torch.allclose(whole, torch.cat(parts), atol=1e-6)
    empty = EVERYTHING.apply(images[:0], table.values[:0])
    assert empty.shape == (0, 3, 16, 16)


@pytest.mark.parametrize(
    "options",
    [
        {"crop_padding": -1},
        {"crop_padding": 1.5},
        {"rotation": -5.0},
        {"rotation": float("nan")},
        {"translation": float("inf")},
        {"scale": (1.2, 0.8)},
        {"scale": (0.0, 1.0)},
        {"scale": (1.0,)},
        {"resized_crop": (0.5, 1.5)},
        {"hue": 0.6},
        {"greyscale": 1.5},
        {"fill": 2.0},
        {"coarse_dropout": -2},
        {"coarse_dropout": 2**70},  # a name for each would fill any memory
        {"shear": 95},
        {"mixup": -0.1},
        {"enlarged_crop": 0.0},
        {"enlarged_crop": 30},
    ],
)
def test_wrong_options_are_refused_by_name(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Augment(**options)


def test_an_enlarged_crop_is_torchvisions():
    """The releases' images: RandomCrop(30) without padding, a flip, Resize(32), all of tensors in [0, 1]."""
    augment = Augment(crop_padding=0, enlarged_crop=30 / 32)
    images = random_images(40, 32, 32)
    table = augment.draw(40, seed=0, epoch=0)
    found = augment.apply(images, table.values)
    assert found.shape == (40, 3, 32, 32)
    tops, lefts = ((table.column(f"enlarged_{axis}") * 3).floor().int().tolist() for axis in "yx")
    assert {*tops} == {*lefts} == {0, 1, 2}
    for image, top, left, flip, mine in zip(images, tops, lefts, table.column("flip"), found, strict=True):
        cut = image.permute(2, 0, 1)[:, top : top + 30, left : left + 30].float() / 255
        cut = cut.flip(2) if flip else cut
        for antialias in (True, False):
            wanted = reference.resize(cut, [32, 32], InterpolationMode.BILINEAR, antialias=antialias)
            torch.testing.assert_close(mine, wanted, atol=2e-6, rtol=0)
    turned = replace(augment, rotation=10.0, mixup=0.2)
    other = turned.draw(40, seed=0, epoch=0)
    assert torch.equal(other.column("enlarged_y"), table.column("enlarged_y"))
    assert turned.apply(images, other.values).shape == found.shape


def test_an_enlarged_crop_compiles_in_one_piece_and_stays_inside():
    augment = Augment(crop_padding=0, enlarged_crop=0.7)
    images, table = random_images(4, 10, 7), torch.full((4, len(augment.columns)), 1 - 2**-24)
    compiled = torch.compile(augment.apply, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(images, table), augment.apply(images, table))
    assert augment.apply(images, table).max() <= 1


@pytest.mark.parametrize("other", [{}, {"crop_padding": 0, "resized_crop": (0.5, 1.0)}])
def test_two_crops_are_refused(other):
    with pytest.raises(ValueError, match="crop_padding=0"):
        Augment(enlarged_crop=0.9, **other)


def test_wrong_input_is_refused():
    augment = Augment()
    rows = augment.draw(4, seed=0, epoch=0).values
    with pytest.raises(ValueError, match="rows of this Augment's own table"):
        augment.apply(random_images(5, 8, 8), rows)
    with pytest.raises(ValueError, match="layout"):
        augment.apply(random_images(4, 8, 8)[0], rows)
    with pytest.raises(ValueError, match="uint8"):
        augment.apply(random_images(4, 8, 8).long(), rows)
    jitter = Augment(contrast=0.3)
    with pytest.raises(ValueError, match="1 or 3 channels"):
        jitter.apply(random_images(4, 8, 8, channels=2), jitter.draw(4, seed=0, epoch=0).values)
    with pytest.raises(ValueError, match="epoch"):
        augment.draw(4, seed=0, epoch=-1)


def test_augment_compares_and_travels_by_value():
    buffer = io.BytesIO()
    torch.save(EVERYTHING.draw(3, seed=0, epoch=0).values, buffer)
    assert replace(EVERYTHING) == EVERYTHING
    assert hash(replace(EVERYTHING)) == hash(EVERYTHING)
    assert Augment(scale=[0.9, 1.1]) == Augment(scale=(0.9, 1.1))
    assert geometry.Affine.identity(torch.zeros(2)).xx.tolist() == [1, 1]
