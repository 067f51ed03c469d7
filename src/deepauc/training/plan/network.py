"""The image size and the network of a plan, from the sizes of the files and the kind of device alone."""

from __future__ import annotations

import math
from collections.abc import Mapping

from deepauc.models.build import MLPSpec, ModelSpec, ResNet20Spec, SmallCNNSpec, TimmSpec
from deepauc.training.plan.decision import ASKED, Decision, DeviceKind, Fact

Sizes = Mapping[tuple[int, int], int]  # (height, width) of the files -> how many

LARGEST_SIDE: dict[str, int] = {"cpu": 64, "cuda": 224}
# Of images for pretrained weights: they know photographs of about 224 pixels, and shrink an image 32 times.
PRETRAINED_SIDES: dict[str, tuple[int, int]] = {"cpu": (128, 128), "cuda": (128, 224)}  # smallest, largest
SMALLER = "small-cnn"  # on a CPU, where a ResNet20 takes too long
SMALL_SIDE = 64  # up to here a ResNet20, beyond it a network of timm's


def planned_size(sizes: Sizes, device_kind: DeviceKind, *, pretrained: bool = False) -> tuple[int, int] | None:
    """(height, width): the medians over the files, both shrunk until the longer side is within reach of the device.

    pretrained: small images are enlarged.
    """
    if not sizes:
        return None
    height, width = (_median(sizes, side) for side in (0, 1))
    least, most = PRETRAINED_SIDES[device_kind] if pretrained else (1, LARGEST_SIDE[device_kind])
    longer = max(height, width)
    factor = min(max(longer, least), most) / longer
    return max(1, round(height * factor)), max(1, round(width * factor))


def size_decision(
    size: tuple[int, int], sizes: Sizes, device_kind: DeviceKind, *, pretrained: bool = False
) -> Decision:
    """Why images are of this size, where the files are of those; none, where there are no files (packed sets)."""

    def decided(*reason: str, **facts: Fact) -> Decision:
        return Decision(name="image size", value=size, reason=reason, rests_on=facts)

    if not sizes:
        return decided("images")
    if size != planned_size(sizes, device_kind, pretrained=pretrained):
        return decided(*ASKED)
    if set(sizes) == {size}:
        return decided("files")
    common, count = max(sizes.items(), key=lambda item: item[1])
    most = PRETRAINED_SIDES[device_kind][1] if pretrained else LARGEST_SIDE[device_kind]
    if pretrained and max(size) > max(_median(sizes, side) for side in (0, 1)):
        return decided("enlarged", sizes=len(sizes), common=common, count=count)
    if max(size) < most:
        return decided("median", sizes=len(sizes), common=common, count=count)
    device = "CPU" if device_kind == "cpu" else "GPU"
    return decided("shrunk", sizes=len(sizes), common=common, count=count, device=device, most=most)


def image_network(side: int, device_kind: DeviceKind, *, spent: float, measured: bool = False) -> Decision:
    """By name. spent: the share of the budget that a ResNet20 would take; measured: of the minutes, by timed steps."""
    if device_kind == "cuda" and side > SMALL_SIDE:
        return Decision(name="network", value="densenet121", reason=("medical",))
    facts: dict[str, Fact] = {"side": SMALL_SIDE, "spent": spent}
    if device_kind == "cuda" or (side <= SMALL_SIDE and spent <= 1):
        why = "in time" if measured else "small images"
        return Decision(name="network", value="resnet20", reason=(why,), rests_on=facts)
    return Decision(name="network", value=SMALLER, reason=("slow here" if measured else "slow",), rests_on=facts)


def named_model(name: str, shape: tuple[int, ...]) -> ModelSpec:
    """`small-cnn`, `resnet20`, `mlp`, or any network of timm's by its name there."""
    if len(shape) == 1 and name != "mlp":
        raise ValueError(f"the model for a table of numbers is mlp, not {name}.")
    if len(shape) == 3 and name == "mlp":
        raise ValueError("mlp is for tables of numbers; for images: small-cnn, resnet20 or a network of timm's.")
    match name:
        case "mlp":
            return MLPSpec(hidden=(64, 32))
        case "small-cnn":
            return SmallCNNSpec(widths=_widths(max(shape[:2])))
        case "resnet20":
            return ResNet20Spec()
        case _:
            return TimmSpec(name=name)


def _widths(side: int) -> tuple[int, ...]:
    """One width a halving, down to about 8 pixels; larger images start narrower, since there the cost is."""
    count = max(2, min(5, 1 + math.ceil(math.log2(max(side, 1) / 8))))
    first = 32 if side <= 32 else 16
    return tuple(min(256, first << depth) for depth in range(count))


def _median(sizes: Sizes, side: int) -> int:
    """Of the heights (0) or widths (1) over all files, the lower one of two."""
    lengths: dict[int, int] = {}
    for size, count in sizes.items():
        lengths[size[side]] = lengths.get(size[side], 0) + count
    half, seen = sum(lengths.values()) / 2, 0
    for length in sorted(lengths):
        seen += lengths[length]
        if seen >= half:
            return length
    raise ValueError("the table holds no images.")
