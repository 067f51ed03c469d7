"""Where each output pixel comes from: crop with padding and flips by index, everything else by one affine sampling.

All functions take one value a sample, have shapes that follow from their arguments' shapes alone and draw nothing, so
they can be captured in a CUDA graph and compiled without a break.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from deepauc.data.augment.colour import to_unit


def crop_and_flip(
    images: Tensor,
    *,
    padding: int,
    crop_y: Tensor,
    crop_x: Tensor,
    flip: Tensor,
    vertical_flip: Tensor,
    fill: float,
) -> Tensor:
    """Pad by `padding` on each side, cut (H, W) out at (crop_y, crop_x), flip; to the bit, for any number type.

    Images (B, H, W, C); crop_y, crop_x: (B,), whole numbers from 0 to 2 padding; flips: (B,), 0 or 1.
    """
    batch, height, width, channels = images.shape
    padded_height, padded_width = height + 2 * padding, width + 2 * padding
    padded = functional.pad(images, (0, 0, padding, padding, padding, padding), value=fill)
    pixels = batch * padded_height * padded_width
    # Half the index traffic. Where a network is exported for batches of any size, there is no number to compare.
    kind = torch.int32 if isinstance(pixels, int) and pixels < 2**31 else torch.int64

    def source(size: int, start: Tensor, flipped: Tensor) -> Tensor:  # (B, size)
        places = torch.arange(size, dtype=kind, device=images.device)
        places = torch.where(flipped.bool()[:, None], size - 1 - places, places)
        return places + start.to(kind)[:, None]

    sample = torch.arange(batch, dtype=kind, device=images.device)[:, None]
    rows = (sample * padded_height + source(height, crop_y, vertical_flip)) * padded_width
    places = rows[:, :, None] + source(width, crop_x, flip)[:, None, :]
    flat = padded.reshape(pixels, channels).index_select(0, places.reshape(-1))
    return flat.view(batch, height, width, channels)


def enlarged_crop(images: Tensor, *, share: float, y: Tensor, x: Tensor) -> Tensor:
    """A window of whole pixels cut out of each image and enlarged to its size: torchvision's Resize of a tensor.

    Images (B, H, W, C), uint8 or floating in [0, 1] -> floating, the same shape. The window's sides are `share` of the
    image's, rounded; y, x: (B,) in [0, 1), its place. Bilinear with align_corners=False: pixels outside the window do
    not enter, at its border the outermost ones go on. (Antialiasing, torchvision's default, changes nothing in
    enlarging.)
    """
    batch, height, width = images.shape[:3]

    def places(size: int, place: Tensor) -> Tensor:  # (B, window)
        window = max(1, round(share * size))
        free = size - window
        start = (place * (free + 1)).floor().clamp(max=free).long()  # in float32 a place just below 1 may round to it
        return start[:, None] + torch.arange(window, device=images.device)

    rows, columns = places(height, y), places(width, x)
    sample = torch.arange(batch, device=images.device)[:, None, None]
    cut = images[sample, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    enlarged = functional.interpolate(to_unit(cut), size=(height, width), mode="bilinear", align_corners=False)
    return enlarged.permute(0, 2, 3, 1)


@dataclass(frozen=True)
class Affine:
    """x -> L x + t for each sample, on pixel coordinates around the image's centre; each entry is (B,)."""

    xx: Tensor
    xy: Tensor
    yx: Tensor
    yy: Tensor
    x: Tensor
    y: Tensor

    @classmethod
    def identity(cls, like: Tensor) -> Affine:
        one, zero = torch.ones_like(like), torch.zeros_like(like)
        return cls(one, zero, zero, one, zero, zero)

    def then(self, other: Affine) -> Affine:
        """First this map, then the other one."""
        return Affine(
            other.xx * self.xx + other.xy * self.yx,
            other.xx * self.xy + other.xy * self.yy,
            other.yx * self.xx + other.yy * self.yx,
            other.yx * self.xy + other.yy * self.yy,
            other.xx * self.x + other.xy * self.y + other.x,
            other.yx * self.x + other.yy * self.y + other.y,
        )


def diagonal(xx: Tensor, yy: Tensor, x: Tensor, y: Tensor) -> Affine:
    """A map without rotation or shear."""
    zero = torch.zeros_like(xx)
    return Affine(xx, zero, zero, yy, x, y)


def inverse_affine(*, angle: Tensor, shift_x: Tensor, shift_y: Tensor, zoom: Tensor, shear: Tensor) -> Affine:
    """From output to input, of: shear along x, rotate, zoom, then shift (torchvision's convention and signs).

    Angle and shear in degrees, shifts in pixels; all (B,).
    """
    turn = angle * (math.pi / 180)
    slant = torch.tan(shear * (math.pi / 180))
    cos, sin = torch.cos(turn), torch.sin(turn)
    xx, xy = (cos - sin * slant) / zoom, (sin + cos * slant) / zoom
    yx, yy = -sin / zoom, cos / zoom
    return Affine(xx, xy, yx, yy, -(xx * shift_x + xy * shift_y), -(yx * shift_x + yy * shift_y))


def sample_affine(images: Tensor, source: Affine, *, fill: float) -> Tensor:
    """Images (B, C, H, W), floating, read at `source` of each output pixel: bilinear, `fill` outside."""
    height, width = images.shape[2:]
    # By hand: affine_grid is a matrix product, which TF32 and autocast would round to a tenth of a pixel.
    y = _centred(height, images)[None, :, None]
    x = _centred(width, images)[None, None, :]

    def at(along_x: Tensor, along_y: Tensor, shift: Tensor, size: int) -> Tensor:  # in grid_sample's [-1, 1]
        scale = 2 / size
        column, row, offset = (v[:, None, None] * scale for v in (along_x, along_y, shift))
        return column * x + row * y + offset

    grid = torch.stack(
        (at(source.xx, source.xy, source.x, width), at(source.yx, source.yy, source.y, height)), dim=-1
    ).to(images.dtype)
    sampled = functional.grid_sample(
        images - fill if fill else images, grid, mode="bilinear", padding_mode="zeros", align_corners=False
    )
    return sampled + fill if fill else sampled


def _centred(size: int, like: Tensor) -> Tensor:
    return torch.arange(size, dtype=torch.float32, device=like.device) - (size - 1) / 2


def coarse_dropout(images: Tensor, *, centre_x: Tensor, centre_y: Tensor, size: float, fill: float) -> Tensor:
    """Images (B, C, H, W) with K boxes each set to `fill`; centres (B, K) and size as shares of the sides."""
    height, width = images.shape[2:]

    def inside(count: int, centre: Tensor) -> Tensor:  # (B, K, count)
        middle = (torch.arange(count, dtype=torch.float32, device=images.device) + 0.5) / count
        return ((middle - centre[:, :, None]).abs() < size / 2).to(images.dtype)

    # How many holes cover a pixel: rows times columns, summed over the holes; small whole numbers, exact in any type.
    covered = torch.bmm(inside(height, centre_y).transpose(1, 2), inside(width, centre_x))
    return torch.where((covered > 0)[:, None], fill, images)
