"""Specs as plain JSON and back: what run.json holds, what names a run, and what a bundle is rebuilt from."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from deepauc.data.augment import Augment
from deepauc.models.build import FactorySpec, MLPSpec, ResNet20Spec, SmallCNNSpec, TimmSpec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.auc_square import AUCSquare
from deepauc.objectives.baselines import CrossEntropy, Focal
from deepauc.objectives.contrastive import Contrastive, SupervisedContrastive
from deepauc.objectives.pairwise import Pairwise
from deepauc.objectives.vicreg import VICReg
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import AdamSpec, AdamWSpec, SGDSpec
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.schedule import Constant, Cosine, Cyclic, Steps

# What records and settings files may name; a new spec goes here and nowhere else.
OBJECTIVES: tuple[type, ...] = (
    *(AUCMargin, AUCSquare, CrossEntropy, Focal, Pairwise),
    *(Contrastive, SupervisedContrastive, VICReg),
)
OPTIMIZERS: tuple[type, ...] = (PESGSpec, SGDSpec, AdamSpec, AdamWSpec)
SCHEDULES: tuple[type, ...] = (Constant, Steps, Cosine, Cyclic)
MODELS: tuple[type, ...] = (ResNet20Spec, TimmSpec, FactorySpec, MLPSpec, SmallCNNSpec)
SPECS: tuple[type, ...] = (Recipe, Stage, Augment, *OBJECTIVES, *OPTIMIZERS, *SCHEDULES, *MODELS)


def to_plain(value: Any, *, defaults: bool = True) -> Any:
    """A spec as {"type": its class, its fields...}, everything inside likewise; with or without default values."""
    if is_dataclass(value) and not isinstance(value, type):
        options = {
            f.name: to_plain(getattr(value, f.name), defaults=defaults)
            for f in fields(value)
            if f.init and (defaults or not _is_default(f, getattr(value, f.name)))
        }
        return {"type": type(value).__name__, **options}
    if isinstance(value, Mapping):
        return {str(k): to_plain(v, defaults=defaults) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(v, defaults=defaults) for v in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"a recipe holds specs, numbers, strings and tuples; {type(value).__name__} is none of these.")


def _is_default(field: Field[Any], value: Any) -> bool:
    if field.default is not MISSING:
        return bool(field.default == value) and type(field.default) is type(value)
    return field.default_factory is not MISSING and bool(field.default_factory() == value)


def from_plain(value: Any) -> Any:
    """What `to_plain` was given; unknown types and options are refused with the nearest valid name."""
    if isinstance(value, list):
        return tuple(from_plain(v) for v in value)
    if not isinstance(value, dict):
        return value
    if "type" not in value:
        return {k: from_plain(v) for k, v in value.items()}
    # A user's factory may have an argument called "type": its arguments are left as they are.
    inner = {k: v if k == "arguments" else from_plain(v) for k, v in value.items() if k != "type"}
    known = {cls.__name__: cls for cls in SPECS}
    cls = known[valid_name(value["type"], list(known), "type")]
    options = [f.name for f in fields(cls) if f.init]
    return cls(**{valid_name(name, options, f"option of {cls.__name__}"): inner[name] for name in inner})


def recipe_hash(recipe: Recipe) -> str:
    """SHA-256 of what a recipe says beyond the defaults: an option that comes later leaves old runs their name."""
    return hashlib.sha256(json.dumps(to_plain(recipe, defaults=False), sort_keys=True).encode()).hexdigest()


def valid_name(name: str, names: list[str], what: str) -> str:
    """The name, if it is one of these; else a ValueError with the nearest of them."""
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(names))}."
    raise ValueError(f"{name!r} is no {what}; {hint}")
