"""Grad-CAM: which places of an image raise a network's score (Selvaraju et al. 2017)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepauc.models.average import AverageNetwork


def grad_cam(model: nn.Module, images: Tensor, *, label: int = 0) -> Tensor:
    """Maps (N, H, W) in [0, 1] of preprocessed images (N, C, H, W): 1 where the score of `label` is raised most.

    L = ReLU(sum_k w_k A_k) with w_k the mean over places of d score / d A_k (equations 1 and 2), A the last feature
    map (N, K, h, w), h · w > 1, that any module of the network puts out; resized bilinearly and divided by its
    maximum, image by image. Of an average of networks the maps of its members are summed before, each with the
    derivative of the average's score, so that a member counts by its share; a linear member has no map. A map is 0
    throughout where no place raises the score. The network runs in eval mode and is left as it was: no gradient is
    kept, no weight, buffer or mode changes.
    """
    if images.ndim != 4:
        raise ValueError(f"Grad-CAM needs images (N, C, H, W), not a tensor of shape {tuple(images.shape)}.")
    with _in_eval_mode(model), torch.enable_grad():
        features, scores = _forward_from(model, images, _last_spatial_modules(model, images))
        if scores.ndim == 1:
            scores = scores[:, None]
        if not 0 <= label < scores.shape[1]:
            raise ValueError(f"label {label} is not among the network's {scores.shape[1]} outputs, counted from 0.")
        gradients = torch.autograd.grad(scores[:, label].sum(), features)
    maps = torch.zeros(len(images), *images.shape[2:], device=images.device)
    for feature, gradient in zip(features, gradients, strict=True):
        weights = gradient.mean((2, 3), keepdim=True)
        raised = F.relu((weights * feature.detach()).sum(1, keepdim=True))
        maps += F.interpolate(raised.float(), size=images.shape[2:], mode="bilinear", align_corners=False)[:, 0]
    highest = maps.amax((1, 2), keepdim=True)
    return torch.where(highest > 0, maps / highest.clamp_min(torch.finfo(maps.dtype).tiny), 0.0)


@contextmanager
def _in_eval_mode(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _last_spatial_modules(model: nn.Module, images: Tensor) -> list[tuple[nn.Module, int]]:
    """The module that puts out the last spatial map, and at which of its calls; of an average one for each member."""
    if not isinstance(model, AverageNetwork):
        return [_last_spatial_module(model, images)]
    found = []
    for member in model.members:
        try:
            found.append(_last_spatial_module(member, images))
        except ValueError:  # a linear one
            continue
    if not found:
        raise ValueError("Grad-CAM needs a late feature map (N, K, h, w), and no network of this average has one.")
    return found


def _last_spatial_module(model: nn.Module, images: Tensor) -> tuple[nn.Module, int]:
    """Of one network; a module may be used twice."""
    names = {module: name for name, module in model.named_modules()}
    calls: dict[nn.Module, int] = {}
    last: tuple[nn.Module, int] | None = None

    def look(module: nn.Module, _inputs: Any, output: Any) -> None:
        nonlocal last
        call = calls[module] = calls.get(module, -1) + 1
        if isinstance(output, Tensor) and _is_map(output, images):
            last = module, call

    handles = [module.register_forward_hook(look) for module in names]
    try:
        with torch.no_grad():
            model(images[:1])
    finally:
        for handle in handles:
            handle.remove()
    # A transformer's only such map is its cut into patches, before anything is recognised; some keep channels last.
    transformer = last is not None and names[last[0]].startswith("patch_embed")
    if last is None or transformer or getattr(model, "output_fmt", "NCHW") == "NHWC":
        raise ValueError(
            f"{type(model).__name__} has no late feature map (N, K, h, w): Grad-CAM needs a convolutional network."
        )
    return last


def _is_map(output: Tensor, images: Tensor) -> bool:
    """(N, K, h, w) of about the image's proportions: attention has (N, heads, tokens, width), pooling (N, K, 1, 1)."""
    if output.ndim != 4 or output.shape[2] * output.shape[3] <= 1:
        return False
    down, across = images.shape[2] / output.shape[2], images.shape[3] / output.shape[3]
    return min(down, across) >= 1 and max(down, across) <= 2 * min(down, across)


def _forward_from(
    model: nn.Module, images: Tensor, modules: Sequence[tuple[nn.Module, int]]
) -> tuple[list[Tensor], Tensor]:
    """Those maps as leaves, and the scores as a function of them: nothing before them is differentiated."""
    kept: dict[nn.Module, Tensor] = {}
    wanted, calls = dict(modules), dict.fromkeys((module for module, _ in modules), 0)

    def cut(module: nn.Module, _inputs: Any, output: Tensor) -> Tensor | None:
        calls[module] += 1
        if calls[module] - 1 != wanted[module]:
            return None
        kept[module] = output.detach().clone().requires_grad_()
        return kept[module].clone()  # the next layer may work in place

    handles = [module.register_forward_hook(cut) for module in wanted]
    try:
        scores: Tensor = model(images)
    finally:
        for handle in handles:
            handle.remove()
    return [kept[module] for module in wanted], scores
