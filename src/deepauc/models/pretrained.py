"""Pretrained weights from the disk, complete or not at all: no download, no pickle, no layer left random unsaid."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

# What timm's modules call the function that renames a published checkpoint's tensors.
_RENAMING_FUNCTIONS = ("checkpoint_filter_fn", "_filter_torchvision_pretrained", "_filter_fn")
_AT_RANDOM = "start at random: pretrained=False, in a study --set pretrained=false"


def load_weights(model: nn.Module, file: Path, *, in_channels: int, num_outputs: int) -> None:
    """Fill a timm network from a safetensors file; only a classifier layer of another size stays as it is.

    A first convolution for three channels is adapted to `in_channels` as timm does it (summed for one, repeated and
    rescaled for others). Anything else that is missing, left over or of another shape is a ValueError.
    """
    from timm.models import adapt_input_conv

    state = _renamed(_read(file), model)
    wanted = model.state_dict()
    config: Mapping[str, Any] = getattr(model, "pretrained_cfg", {})
    for path in _names(config.get("first_conv")):
        key = f"{path}.weight"
        if key in state and state[key].shape[1] == 3 and in_channels != 3:
            state[key] = adapt_input_conv(in_channels, state[key])
    new_head = set()
    for path in _names(config.get("classifier")):
        keys = {f"{path}.weight", f"{path}.bias"} & wanted.keys()
        if any(key not in state or state[key].shape[0] != num_outputs for key in keys):
            new_head |= keys
    for key in new_head:
        state.pop(key, None)
    missing = sorted(wanted.keys() - state.keys() - new_head)
    left_over = sorted(state.keys() - wanted.keys())
    reshaped = [
        f"{key} {tuple(state[key].shape)} for {tuple(wanted[key].shape)}"
        for key in sorted(state.keys() & wanted.keys())
        if state[key].shape != wanted[key].shape
    ]
    faults = {"missing": missing, "left over": left_over, "of another shape": reshaped}
    if any(faults.values()):
        shown = "; ".join(f"{len(keys)} {kind} ({', '.join(keys[:3])})" for kind, keys in faults.items() if keys)
        raise ValueError(
            f"{file} does not fit this network: {shown}. Give the weights of the same network, "
            "or leave them out to start at random."
        )
    model.load_state_dict(state, strict=False)
    require_finite(model.state_dict(), file)


def require_finite(state: Mapping[str, Tensor], file: Path) -> None:
    """ValueError with the first tensor's name where weights that were loaded from a file hold NaN or infinity."""
    for name, tensor in state.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ValueError(
                f"{file}: the tensor {name!r} holds NaN or infinity, so the network would give no score. The file is "
                "damaged, or the training it comes from diverged: take the weights from their source again, or train "
                "again."
            )


def require_file(file: Path) -> None:
    """ValueError where somebody's file of weights is not there."""
    if not file.is_file():
        raise ValueError(f"weights {str(file)!r} does not exist. Check the path, or leave weights out.")


def cached_weights(config: Mapping[str, Any], *, name: str) -> Path:
    """timm's published weights of this network in Hugging Face's cache on this machine; the network is never asked.

    config: what timm calls the network's pretrained_cfg.
    """
    from huggingface_hub import try_to_load_from_cache

    repository = config.get("hf_hub_id")
    if not repository:
        raise ValueError(
            f"timm publishes no weights for {name}. Give a file as weights='file.safetensors', or {_AT_RANDOM}."
        )
    file_name = config.get("hf_hub_filename") or ""
    for candidate in dict.fromkeys([file_name, "model.safetensors"]):
        if candidate.endswith(".safetensors"):
            found = try_to_load_from_cache(repository, candidate)
            if isinstance(found, str):
                return Path(found)
    raise ValueError(
        f"pretrained=True, but the weights of {name} are not on this machine. Where there is a connection, run "
        f"`hf download {repository} model.safetensors`; then copy the file and give weights='.../model.safetensors', "
        f"or {_AT_RANDOM}."
    )


def _read(file: Path) -> dict[str, Tensor]:
    if file.suffix != ".safetensors":
        raise ValueError(
            f"weights {str(file)!r} is no .safetensors file. Other formats are pickles, which can run code when "
            "loaded: convert it first with safetensors.torch.save_file(state_dict, 'weights.safetensors')."
        )
    require_file(file)
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(file)
    except (SafetensorError, RuntimeError, ValueError, OSError) as error:  # a header may ask for an absurd shape
        raise ValueError(f"weights {str(file)!r} cannot be read ({error}). Copy or download it again.") from error


def _renamed(state: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The state under the network's own names: timm's published files partly carry older ones."""
    if state.keys() == model.state_dict().keys():
        return state
    module = inspect.getmodule(type(model))
    rename: Callable[..., dict[str, Tensor]] | None = next(
        (function for name in _RENAMING_FUNCTIONS if callable(function := getattr(module, name, None))), None
    )
    if rename is None:
        return state
    takes_model = len(inspect.signature(rename).parameters) > 1
    return rename(state, model) if takes_model else rename(state)


def _names(value: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())
