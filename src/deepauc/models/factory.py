"""A network of the user's own: any importable function or class that makes an nn.Module."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

PERMITTED = "DEEPAUC_FACTORIES"  # environment variable: names of factories, separated by commas

_named_here: set[str] = set()  # factories that this process was told to call by its own user, not by a bundle


@dataclass(frozen=True, kw_only=True)
class FactorySpec:
    """A network that a function of yours returns; it must give (N, num_outputs).

    Args:
        factory: "package.module:function", which returns an nn.Module.
        arguments: What the function is called with. Its parameters `in_channels` and `num_outputs`, if it has them, are
            filled in unless they are here; torchvision's functions want `num_classes`.
    """

    factory: str
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def build(self, *, in_channels: int, num_outputs: int) -> nn.Module:
        make = _imported(self.factory)
        _named_here.add(self.factory)
        signature = inspect.signature(make)
        known = {"in_channels": in_channels, "num_outputs": num_outputs}
        arguments = {name: value for name, value in known.items() if name in signature.parameters}
        arguments |= self.arguments
        try:
            signature.bind(**arguments)
        except TypeError as error:
            raise ValueError(f"factory {self.factory!r} does not take the arguments {arguments}: {error}.") from error
        model = make(**arguments)
        if not isinstance(model, nn.Module):
            raise ValueError(
                f"factory {self.factory!r} returned {type(model).__name__}, not a torch.nn.Module; "
                "name a function or class that makes the network."
            )
        return model


def require_permitted(factory: str) -> None:
    """ValueError unless this process has called the factory before, or the environment variable PERMITTED names it.

    For files that others may have written: to call what such a file names is to run any code.
    """
    permitted = {name.strip() for name in os.environ.get(PERMITTED, "").split(",")}
    if factory not in _named_here and factory not in permitted:
        raise ValueError(
            f"its network is built by {factory!r}, and a file from others could name any code there. "
            f"If you trust it, set {PERMITTED}={factory}"
        )


def _imported(path: str) -> Callable[..., object]:
    module_name, separator, name = path.partition(":")
    if not (module_name and separator and name):
        raise ValueError(f"factory must read 'package.module:function', not {path!r}.")
    try:
        found: object = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(
            f"factory {path!r}: module {module_name!r} cannot be imported ({error}). "
            "Install it, or put its folder on PYTHONPATH."
        ) from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"factory {path!r}: module {module_name!r} has no {name!r}.")
        found = getattr(found, part)
    if not callable(found):
        raise ValueError(f"factory {path!r} is {type(found).__name__}, which cannot be called; name a function.")
    return found
