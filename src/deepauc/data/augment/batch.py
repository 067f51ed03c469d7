"""Augmentation of whole batches on the device, from a table of parameters drawn per epoch.

`Augment` says what may happen. `draw` gives a table with one row for each position in the epoch's order; a row
depends on (seed, epoch, view, position) alone, so step t of a run reads rows tB to (t + 1)B, whatever came before and
however many ranks share them. `apply` is a pure function of images and rows: it draws nothing, its shapes do not
depend on values, and it can be captured in a CUDA graph or compiled in one piece.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from deepauc.data.augment import colour, mixup
from deepauc.data.augment.geometry import (
    Affine,
    coarse_dropout,
    crop_and_flip,
    diagonal,
    enlarged_crop,
    inverse_affine,
    sample_affine,
)
from deepauc.data.counter import hash_key, uniforms

Layout = Literal["NHWC", "NCHW"]
Numbers = npt.NDArray[np.float64]

# The number of a parameter is part of its address: switching one augmentation on or off leaves the others as they are.
# A new one goes to the end, whatever it is next to below: another place would renumber, and so change, recorded runs.
_PARAMETERS = (
    *("flip", "vertical_flip", "crop_y", "crop_x", "angle", "shift_x", "shift_y", "zoom", "shear"),
    *("window_area", "window_ratio", "window_x", "window_y"),
    *("brightness", "contrast", "saturation", "hue", "greyscale", "mixup_weight", "mixup_key"),
    *("enlarged_y", "enlarged_x"),
)
_NUMBERS = {name: number for number, name in enumerate(_PARAMETERS)}
_CACHE_VALUES = 1 << 19  # float32 values of one group of images: 2 MB
_FIRST_HOLE = 1000
MOST_HOLES = 1000  # each has a place in every row of the table
_WINDOW_RATIOS = (3 / 4, 4 / 3)


@dataclass(frozen=True)
class AugmentTable:
    """The parameters of one epoch: `values` is (n, k) float32, row by position in the epoch's order."""

    values: Tensor
    columns: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.values)

    def column(self, name: str) -> Tensor:
        """One parameter, (n,)."""
        return self.values[:, self.columns.index(name)]

    def to(self, device: torch.device | str) -> AugmentTable:
        return AugmentTable(self.values.to(device), self.columns)


@dataclass(frozen=True, kw_only=True)
class Augment:
    """What may happen to a training image, in this order; every default but flip and crop is 'nothing'.

    First a random window, enlarged to the image's size. Then one geometric map: random resized crop, crop with
    padding, flips, then shear, rotation, zoom and translation. Flips and whole-pixel crops alone move bytes (exact);
    with anything more the composed map is sampled once, bilinearly. Then colour: brightness, contrast, saturation, hue,
    grey. Then coarse dropout. Mixup is a step of its own (`mix`), since it changes labels too.

    Args:
        flip: Mirror half of the images, left and right.
        vertical_flip: Mirror half of the images, up and down.
        crop_padding: Pixels added on each side before a crop back to the image's size.
        rotation: Degrees, either way.
        translation: Share of the side, either way.
        scale: Smallest and largest zoom.
        shear: Degrees along x, either way.
        resized_crop: Smallest and largest share of the area; the ratio of the sides is 3:4 to 4:3.
        brightness: b: a factor from max(0, 1 - b) to 1 + b.
        contrast: Likewise.
        saturation: Likewise.
        hue: Share of the colour circle, either way; at most 0.5.
        greyscale: Share of the images that lose their colour.
        coarse_dropout: Number of boxes per image.
        hole_size: Side of a box, as a share of the image's.
        mixup: alpha of Beta(alpha, alpha); 0 is none.
        fill: What shows outside the image and in the boxes: 0 is black, 1 white.
        enlarged_crop: Side of the random window of whole pixels, as a share of the image's; 30 / 32 with crop_padding=0
            is that of LibAUC's first releases.
    """

    flip: bool = True
    vertical_flip: bool = False
    crop_padding: int = 4
    rotation: float = 0.0
    translation: float = 0.0
    scale: tuple[float, float] = (1.0, 1.0)
    shear: float = 0.0
    resized_crop: tuple[float, float] = (1.0, 1.0)
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    greyscale: float = 0.0
    coarse_dropout: int = 0
    hole_size: float = 0.2
    mixup: float = 0.0
    fill: float = 0.0
    enlarged_crop: float = 1.0
    columns: tuple[str, ...] = field(init=False, repr=False, compare=False)  # the names of a row's entries

    def __post_init__(self) -> None:
        for name in (option.name for option in fields(self) if option.init):
            value = getattr(self, name)
            if isinstance(value, tuple | list):
                _check_range(name, tuple(value))
                object.__setattr__(self, name, (float(value[0]), float(value[1])))
            elif not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be finite and not negative, not {value}; 0 switches it off.")
        for name in ("crop_padding", "coarse_dropout"):
            if getattr(self, name) != int(getattr(self, name)):
                raise ValueError(f"{name} must be a whole number, not {getattr(self, name)}.")
        if not 0 < self.enlarged_crop <= 1:
            raise ValueError(
                f"enlarged_crop must lie in (0, 1], not {self.enlarged_crop}: it is a share of the side, and 30 of 32 "
                "pixels are 0.9375; 1 switches it off."
            )
        if self.enlarged_crop < 1 and (self.crop_padding or self._windowed):
            raise ValueError("enlarged_crop is a crop of its own: set crop_padding=0, and leave resized_crop out.")
        if self.resized_crop[1] > 1:
            raise ValueError(f"resized_crop gives shares of the area, at most 1, not {self.resized_crop}.")
        limits = {"hue": 0.5, "greyscale": 1, "fill": 1, "hole_size": 1, "shear": 89, "coarse_dropout": MOST_HOLES}
        for name, limit in limits.items():
            if getattr(self, name) > limit:
                raise ValueError(f"{name} must be at most {limit}, not {getattr(self, name)}.")
        object.__setattr__(self, "columns", tuple(name for name, _ in self._parameters(_Draws(0, ()))))

    @property
    def _windowed(self) -> bool:
        return self.resized_crop != (1.0, 1.0)

    @property
    def _turned(self) -> bool:
        return bool(self.rotation or self.translation or self.shear) or self.scale != (1.0, 1.0)

    @property
    def _recoloured(self) -> bool:
        return bool(self.brightness or self.contrast or self.saturation or self.hue or self.greyscale)

    @property
    def _filled(self) -> float:
        return round(255 * self.fill) / 255  # the same grey for uint8 and for float images

    def require_fit(self, height: int, width: int) -> None:
        """Raise ValueError if images of this size may be moved out of the picture: batches of nothing would remain."""
        if self.crop_padding >= min(height, width):
            raise ValueError(
                f"crop_padding={self.crop_padding} may move an image of {height} x {width} out of the picture: "
                f"set it to {min(height, width) - 1} at most."
            )

    def draw(self, n: int, *, seed: int, epoch: int, view: int = 0) -> AugmentTable:
        """The table of one epoch, (n, k), on the CPU. `view` tells apart several views of the same images."""
        for name, value in (("n", n), ("seed", seed), ("epoch", epoch), ("view", view)):
            if value < 0:
                raise ValueError(f"{name} must not be negative, not {value}.")
        draws = _Draws(n, (seed, *b"augment", epoch, view))
        values = np.empty((n, len(self.columns)), dtype=np.float32)
        for place, (_, column) in enumerate(self._parameters(draws)):
            values[:, place] = column
        return AugmentTable(torch.from_numpy(values), self.columns)

    def _parameters(self, draws: _Draws) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """Each column's name, and how it follows from the epoch's uniform numbers."""
        yield from self._moves(draws)
        for name in ("brightness", "contrast", "saturation"):
            if strength := getattr(self, name):
                yield name, draws.between(name, max(0.0, 1 - strength), 1 + strength)
        if self.hue:
            yield "hue", draws.between("hue", -self.hue, self.hue)
        if self.greyscale:
            yield "greyscale", draws("greyscale") < self.greyscale
        for hole in range(self.coarse_dropout):
            for place, axis in enumerate("xy"):
                yield f"hole_{axis}{hole}", draws.numbered(_FIRST_HOLE + 2 * hole + place)
        if self.enlarged_crop < 1:
            yield "enlarged_y", draws("enlarged_y")
            yield "enlarged_x", draws("enlarged_x")
        if self.mixup:
            yield "mixup_weight", mixup.mixing_weights(draws("mixup_weight"), self.mixup)
            yield "mixup_key", draws("mixup_key")

    def _moves(self, draws: _Draws) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        if self.flip:
            yield "flip", draws("flip") < 0.5
        if self.vertical_flip:
            yield "vertical_flip", draws("vertical_flip") < 0.5
        if self.crop_padding:
            for name in ("crop_y", "crop_x"):
                yield name, np.floor(draws(name) * (2 * self.crop_padding + 1))
        if self._windowed:  # sides and centre, as shares of the image's sides: area uniform, ratio log-uniform
            area = draws.between("window_area", *self.resized_crop)
            ratio = np.exp(draws.between("window_ratio", *map(math.log, _WINDOW_RATIOS)))
            width, height = (np.minimum(np.sqrt(one), 1) for one in (area * ratio, area / ratio))
            yield "window_width", width  # where it would be above 1, torchvision would draw again
            yield "window_height", height
            yield "window_x", (draws("window_x") - 0.5) * (1 - width)  # from the image's centre
            yield "window_y", (draws("window_y") - 0.5) * (1 - height)
        if self._turned:
            yield "angle", draws.between("angle", -self.rotation, self.rotation)
            for name in ("shift_x", "shift_y"):
                yield name, draws.between(name, -self.translation, self.translation)
            yield "zoom", draws.between("zoom", *self.scale)
            yield "shear", draws.between("shear", -self.shear, self.shear)

    def apply(self, images: Tensor, parameters: Tensor, *, layout: Layout = "NHWC") -> Tensor:
        """Images, uint8 or floating in [0, 1], with their rows (B, k) of the table -> floating (B, C, H, W) in [0, 1].

        uint8 becomes float32. No memory format is promised; flips and crops of NHWC images stay channels_last.
        """
        if layout not in get_args(Layout) or images.ndim != 4:
            raise ValueError(f"images must be (B, H, W, C) or, with layout='NCHW', (B, C, H, W), not {images.shape}.")
        count = images.shape[0]  # of no fixed size where the network is exported, which len() would fix
        if parameters.shape != (count, len(self.columns)):
            raise ValueError(
                f"parameters have shape {tuple(parameters.shape)}; a batch of {count} images needs "
                f"({count}, {len(self.columns)}): the rows of this Augment's own table."
            )
        nhwc = images if layout == "NHWC" else images.permute(0, 2, 3, 1)
        if nhwc.device.type != "cpu" or torch.compiler.is_compiling():
            return self._changed(nhwc, parameters)
        group = _CACHE_VALUES // max(1, nhwc[0].numel()) if count else 0
        if count <= group:
            return self._changed(nhwc, parameters)
        # On a CPU group by group: a chain of changes that leaves the cache costs up to five times as much.
        group = max(1, group)
        parts = zip(torch.split(nhwc, group), torch.split(parameters, group), strict=True)
        return torch.cat([self._changed(some, rows) for some, rows in parts])

    def _changed(self, nhwc: Tensor, parameters: Tensor) -> Tensor:
        at = {name: parameters[:, place] for place, name in enumerate(self.columns)}
        if self.enlarged_crop < 1:
            nhwc = enlarged_crop(nhwc, share=self.enlarged_crop, y=at["enlarged_y"], x=at["enlarged_x"])
        if self._windowed or self._turned:
            out = colour.to_unit(nhwc.permute(0, 3, 1, 2))
            out = sample_affine(out, self._source_of(at, height=nhwc.shape[1], width=nhwc.shape[2]), fill=self._filled)
        else:
            moved = self._moved(nhwc, at).permute(0, 3, 1, 2)
            out = colour.to_unit(moved.contiguous() if self._recoloured else moved)
        return self._holes(self._coloured(out, at), at)

    def _moved(self, images: Tensor, at: dict[str, Tensor]) -> Tensor:
        if not (self.flip or self.vertical_flip or self.crop_padding):
            return images
        zero = torch.zeros(images.shape[0], device=images.device)
        return crop_and_flip(
            images,
            padding=self.crop_padding,
            crop_y=at.get("crop_y", zero),
            crop_x=at.get("crop_x", zero),
            flip=at.get("flip", zero),
            vertical_flip=at.get("vertical_flip", zero),
            fill=self._filled if images.is_floating_point() else round(255 * self.fill),
        )

    def _source_of(self, at: dict[str, Tensor], *, height: int, width: int) -> Affine:
        """The composed map from output to input pixels: the last change of the image is undone first."""
        like = next(iter(at.values()))
        zero = torch.zeros_like(like)
        source = Affine.identity(like)
        if self._turned:
            source = source.then(
                inverse_affine(
                    angle=at["angle"],
                    shift_x=at["shift_x"] * width,
                    shift_y=at["shift_y"] * height,
                    zoom=at["zoom"],
                    shear=at["shear"],
                )
            )
        if self.flip or self.vertical_flip or self.crop_padding:
            mirror_x, mirror_y = 1 - 2 * at.get("flip", zero), 1 - 2 * at.get("vertical_flip", zero)
            crop_x, crop_y = (
                at[name] - self.crop_padding if self.crop_padding else zero for name in ("crop_x", "crop_y")
            )
            source = source.then(diagonal(mirror_x, mirror_y, crop_x, crop_y))
        if self._windowed:
            x, y = at["window_x"] * width, at["window_y"] * height
            source = source.then(diagonal(at["window_width"], at["window_height"], x, y))
        return source

    def _coloured(self, images: Tensor, at: dict[str, Tensor]) -> Tensor:
        if self.brightness:
            images = colour.adjust_brightness(images, at["brightness"])
        if self.contrast:
            images = colour.adjust_contrast(images, at["contrast"])
        if self.saturation:
            images = colour.adjust_saturation(images, at["saturation"])
        if self.hue:
            images = colour.adjust_hue(images, at["hue"])
        if self.greyscale:
            images = colour.adjust_saturation(images, 1 - at["greyscale"])
        return images

    def _holes(self, images: Tensor, at: dict[str, Tensor]) -> Tensor:
        if not self.coarse_dropout:
            return images
        centre_x, centre_y = (
            torch.stack([at[f"hole_{axis}{hole}"] for hole in range(self.coarse_dropout)], dim=1) for axis in "xy"
        )
        return coarse_dropout(images, centre_x=centre_x, centre_y=centre_y, size=self.hole_size, fill=self._filled)

    def mix(self, images: Tensor, labels: Tensor, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Mixup of floating images (B, ...) and of labels (B,) or (B, L), which become soft; NaN stays missing.

        Mean labels: partners are a permutation of the batch and E[weight] = 1/2, so p is kept in expectation.
        """
        if not self.mixup:
            return images, labels
        if not images.is_floating_point():
            raise ValueError("mixup needs floating-point images: apply the augmentation first.")
        weights = parameters[:, self.columns.index("mixup_weight")]
        partner = mixup.partners(parameters[:, self.columns.index("mixup_key")])
        soft = labels if labels.is_floating_point() else labels.float()
        return mixup.mix(images, images[partner], weights), mixup.mix(soft, soft[partner], weights)


class _Draws:
    """The epoch's uniform numbers, (n,) in [0, 1), by parameter."""

    def __init__(self, count: int, address: tuple[int, ...]) -> None:
        self._count = count
        self._address = address

    def __call__(self, name: str) -> Numbers:
        return self.numbered(_NUMBERS[name])

    def between(self, name: str, low: float, high: float) -> Numbers:
        return low + self(name) * (high - low)

    def numbered(self, number: int) -> Numbers:
        return uniforms(hash_key(*self._address, number), self._count)


def _check_range(name: str, bounds: tuple[float, ...]) -> None:
    if len(bounds) != 2 or not all(math.isfinite(b) for b in bounds) or not 0 < bounds[0] <= bounds[1]:
        raise ValueError(f"{name} must be (smallest, largest) with 0 < smallest <= largest, not {bounds}.")
