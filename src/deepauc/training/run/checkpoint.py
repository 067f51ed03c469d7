"""Nested state in one safetensors file, written atomically. Nothing is ever unpickled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepauc.training.run.output_file import write_atomically


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """dicts, lists, tuples, numbers, strings, None and tensors, nested as one likes, into one safetensors file."""
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    skeleton = json.dumps(_dismantle(state, tensors))
    write_atomically(path, save(tensors, metadata={"state": skeleton, "sha256": _checksum(skeleton, tensors)}))


def load_state(path: Path) -> Any:
    """What `save_state` was given, tensors on the CPU. A damaged or pickled file is a ValueError that says so."""
    from safetensors import SafetensorError, safe_open

    try:
        with path.open("rb") as content:
            start = content.read(10)
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist.") from None
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            # Copied out of the mapped file: Windows replaces and deletes none that is still mapped.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        if metadata["sha256"] != _checksum(metadata["state"], tensors):
            raise ValueError("its checksum is wrong")
        return _rebuild(json.loads(metadata["state"]), tensors)
    except torch.OutOfMemoryError:
        raise
    except (SafetensorError, LookupError, TypeError, ValueError, AttributeError, OSError, RuntimeError) as error:
        if start[:2] in (b"PK", b"\x80\x02", b"\x80\x04", b"\x80\x05"):
            raise ValueError(
                f"{path} is a pickle (a torch.save file). Loading one can run any code, so it is refused: "
                "save the weights as safetensors."
            ) from None
        raise ValueError(f"{path} is damaged or is not a checkpoint ({error}). Delete it to start again.") from error


def _checksum(skeleton: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of all that a file holds: safetensors itself does not notice a byte that has changed."""
    sha = hashlib.sha256(skeleton.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        sha.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}:".encode())
        if tensor.numel():
            sha.update(tensor.cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def _dismantle(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(value, Mapping):
        return {"dict": [[_dismantle(k, tensors), _dismantle(v, tensors)] for k, v in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [_dismantle(v, tensors) for v in value]}
    if isinstance(value, list):
        return [_dismantle(v, tensors) for v in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"cannot save a {type(value).__name__}")


def _rebuild(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_rebuild(v, tensors) for v in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "tuple":
        return tuple(_rebuild(v, tensors) for v in content)
    return {_rebuild(k, tensors): _rebuild(v, tensors) for k, v in content}
