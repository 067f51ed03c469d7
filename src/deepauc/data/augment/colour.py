"""The values of pixels: bytes to [0, 1], normalisation, and colour changes with one factor a sample.

Images are (B, C, H, W) in [0, 1]; the changes follow torchvision's definitions. A factor of 1 (hue: a shift of 0)
leaves an image as it is. Grey images have one channel: saturation and hue leave them alone.
"""

from __future__ import annotations

import torch
from torch import Tensor


def to_unit(images: Tensor) -> Tensor:
    """uint8 as float32 in [0, 1]; floating images as they are."""
    if images.dtype == torch.uint8:
        return images.float().mul_(1 / 255)  # a division by 255 rounds differently on a GPU and on a CPU
    if not images.is_floating_point():
        raise ValueError(f"images must be uint8, or floating-point in [0, 1], not {images.dtype}.")
    return images


def normalise(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """(images - mean) / std by channel; mean and std are (C,), on the images' device."""
    return (images - mean[:, None, None]) / std[:, None, None]


def _per_image(factor: Tensor) -> Tensor:
    return factor[:, None, None, None]


def _blend(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    weight = _per_image(factor)
    return (weight * images).add_((1 - weight) * other).clamp_(0, 1)  # in place: fresh memory costs more than the sums


def grey(images: Tensor) -> Tensor:
    """Luma (ITU-R BT.601), (B, 1, H, W)."""
    if images.shape[1] == 1:
        return images
    if images.shape[1] != 3:
        raise ValueError(
            f"colour changes need 1 or 3 channels, not {images.shape[1]}: "
            "set contrast, saturation, hue and greyscale to 0."
        )
    red, green, blue = images.unbind(1)
    return (0.2989 * red).add_(green, alpha=0.587).add_(blue, alpha=0.114)[:, None]


def adjust_brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Multiply by the factor."""
    return (images * _per_image(factor)).clamp_(0, 1)


def adjust_contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Move away from (above 1) or towards (below 1) the image's mean luma."""
    return _blend(images, grey(images).mean((1, 2, 3), keepdim=True), factor)


def adjust_saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Move away from (above 1) or towards (below 1) each pixel's luma; 0 is the grey image."""
    luma = grey(images)
    return images if images.shape[1] == 1 else _blend(images, luma, factor)


def adjust_hue(images: Tensor, shift: Tensor) -> Tensor:
    """Turn the hue by `shift` of a full circle, in [-0.5, 0.5], at constant HSV value and saturation."""
    if images.shape[1] == 1:
        return images
    grey(images)  # for its message about the number of channels
    red, green, blue = images.unbind(1)
    value, smallest = images.amax(1), images.amin(1)
    chroma = value - smallest
    divisor = torch.where(chroma > 0, chroma, 1)
    # Hue in sixths of a circle; the first of equal largest channels counts, as in torchvision.
    sixths = torch.where(
        red == value,
        (green - blue) / divisor,
        torch.where(green == value, (blue - red) / divisor + 2, (red - green) / divisor + 4),
    )
    sixths = sixths + 6 * shift[:, None, None]
    channels = []
    for offset in (5, 3, 1):  # HSV to RGB without branches: channel = V - C max(0, min(k, 4 - k, 1))
        k = torch.remainder(sixths + offset, 6)
        channels.append(value - chroma * torch.minimum(k, 4 - k).clamp(0, 1))
    return torch.stack(channels, dim=1)
