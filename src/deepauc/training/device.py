"""The device that a user names, checked before anything is read."""

from __future__ import annotations

import torch

from deepauc.training.engine.loop import chosen_device


def checked_device(name: str | None, *, option: str = "device") -> torch.device:
    """The device of this name, or what there is; a ValueError says which names there are. option: as users call it."""
    try:
        device = chosen_device(name)
    except RuntimeError:
        raise ValueError(f"{option} {name}: write cpu, cuda, or cuda:1 for the second GPU.") from None
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()):
        raise ValueError(
            f"{option} {name}: there is no such GPU on this machine ({torch.cuda.device_count()} found); "
            f"leave {option} out to use what is there."
        )
    if device.type not in ("cpu", "cuda") and not (device.type == "mps" and torch.backends.mps.is_available()):
        raise ValueError(f"{option} {name}: there is no such device on this machine; write cpu, or cuda for a GPU.")
    return device
