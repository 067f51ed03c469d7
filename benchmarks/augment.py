"""Batched augmentation against torchvision image by image, on one CPU thread: medians of interleaved runs.

python benchmarks/augment.py
"""

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
import torchvision.transforms.v2.functional as reference
from torch import Tensor
from torchvision.transforms import InterpolationMode

from deepauc.data.augment.batch import Augment, AugmentTable

CASES = {
    "flip + crop": Augment(),
    "affine": Augment(rotation=15, translation=0.05, scale=(0.95, 1.05), shear=5),
    "flip + crop + colour": Augment(brightness=0.4, contrast=0.4, saturation=0.4),
    "affine + colour + hue + 8 holes": Augment(
        rotation=15, scale=(0.9, 1.1), brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, coarse_dropout=8
    ),
}


def changed(augment: Augment, image: Tensor, row: dict[str, float]) -> Tensor:
    """One (C, H, W) uint8 image, with torchvision's functions."""
    height, width = image.shape[1:]
    image = reference.pad(image, [augment.crop_padding] * 4)
    image = reference.crop(image, int(row["crop_y"]), int(row["crop_x"]), height, width)
    if row["flip"]:
        image = reference.horizontal_flip(image)
    image = reference.to_dtype(image, torch.float32, scale=True)
    if "angle" in row:
        image = reference.affine(
            image,
            angle=row["angle"],
            translate=[row["shift_x"] * width, row["shift_y"] * height],
            scale=row["zoom"],
            shear=[row["shear"], 0.0],
            interpolation=InterpolationMode.BILINEAR,
        )
    for name in ("brightness", "contrast", "saturation", "hue"):
        if name in row:
            image = getattr(reference, f"adjust_{name}")(image, row[name])
    for hole in range(augment.coarse_dropout):
        half = augment.hole_size / 2
        x, y = row[f"hole_x{hole}"], row[f"hole_y{hole}"]
        top, left = max(0, round((y - half) * height)), max(0, round((x - half) * width))
        bottom, right = round((y + half) * height), round((x + half) * width)
        image = reference.erase(image, top, left, bottom - top, right - left, torch.zeros(1, 1, 1))
    return image


def one_by_one(augment: Augment, images: Tensor, table: AugmentTable) -> Tensor:
    """The same changes image after image, on (B, C, H, W) uint8."""
    rows = (dict(zip(table.columns, values, strict=True)) for values in table.values.tolist())
    return torch.stack([changed(augment, image, row) for image, row in zip(images, rows, strict=True)])


def medians(jobs: list[Callable[[], object]], rounds: int) -> list[float]:
    for job in jobs:
        job()
    times: list[list[float]] = [[] for _ in jobs]
    for _ in range(rounds):
        for job, spent in zip(jobs, times, strict=True):
            start = time.perf_counter()
            job()
            spent.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(spent) for spent in times]


def main() -> None:
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one CPU thread, batch 128")
    for size, rounds in ((32, 21), (224, 5)):
        images = torch.randint(0, 256, (128, size, size, 3), dtype=torch.uint8)
        channels_first = images.permute(0, 3, 1, 2).contiguous()
        for name, augment in CASES.items():
            table = augment.draw(128, seed=0, epoch=0)
            ours, loop = medians(
                [
                    partial(augment.apply, images, table.values),
                    partial(one_by_one, augment, channels_first, table),
                ],
                rounds,
            )
            print(f"{size:4d} px  {name:32s} batched {ours:8.1f} ms   torchvision {loop:8.1f} ms   x {loop / ours:.2f}")
    start = time.perf_counter()
    CASES["affine + colour + hue + 8 holes"].draw(50_000, seed=0, epoch=0)
    print(f"table of 50,000 rows, {len(CASES['affine + colour + hue + 8 holes'].columns)} columns:", end=" ")
    print(f"{1e3 * (time.perf_counter() - start):.0f} ms")


if __name__ == "__main__":
    main()
