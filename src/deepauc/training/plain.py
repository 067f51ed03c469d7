"""Specs as plain JSON and back: what run.json holds, what names a run, and what a bundle is rebuilt from."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from deepauc.data.augment.batch import Augment
from deepauc.models.average import AverageSpec, OnFeaturesSpec, OnPicturesSpec
from deepauc.models.bags import BagSpec
from deepauc.models.build import FactorySpec, MLPSpec, ResNet20Spec, SmallCNNSpec, ThumbnailSpec, TimmSpec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.auc_square import AUCSquare
from deepauc.objectives.average_precision import AveragePrecision
from deepauc.objectives.baselines import CrossEntropy, Focal
from deepauc.objectives.contrastive import Contrastive, SupervisedContrastive
from deepauc.objectives.pairwise import PairwiseAUC
from deepauc.objectives.partial_auc import PartialAUC
from deepauc.objectives.poly_view import PolyView
from deepauc.objectives.vicreg import VICReg
from deepauc.optim.pdsca import PDSCASpec
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import AdamSpec, AdamWSpec, SGDSpec
from deepauc.training.identity import FROZEN, REQUIRED, first_name, names_of
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.schedule import Constant, Cosine, Cyclic, Steps

# What records and settings files may name; a new spec goes here and nowhere else.
OBJECTIVES: tuple[type, ...] = (
    *(AUCMargin, AUCSquare, CrossEntropy, Focal, PairwiseAUC, PartialAUC, AveragePrecision),
    *(Contrastive, SupervisedContrastive, VICReg, PolyView),
)
OPTIMIZERS: tuple[type, ...] = (PESGSpec, SGDSpec, AdamSpec, AdamWSpec, PDSCASpec)
SCHEDULES: tuple[type, ...] = (Constant, Steps, Cosine, Cyclic)
IMAGE_MODELS: tuple[type, ...] = (ResNet20Spec, TimmSpec, FactorySpec, MLPSpec, SmallCNNSpec, ThumbnailSpec)
MODELS: tuple[type, ...] = (*IMAGE_MODELS, BagSpec)
SPECS: tuple[type, ...] = (Recipe, Stage, Augment, *OBJECTIVES, *OPTIMIZERS, *SCHEDULES, *MODELS)
SPECS += (AverageSpec, OnFeaturesSpec, OnPicturesSpec)


def to_plain(value: Any, *, defaults: bool = True) -> Any:
    """A spec as {"type": its class, its fields...}, everything inside likewise.

    Without defaults: what hashes rest on and tuning records hold, by the frozen names and defaults of `identity`.
    """
    if is_dataclass(value) and not isinstance(value, type):
        cls = type(value)
        frozen = _frozen(cls)
        options = {
            f.name: to_plain(getattr(value, f.name), defaults=defaults)
            for f in fields(value)
            if f.init and (defaults or not _is_default(f, frozen, getattr(value, f.name)))
        }
        return {"type": cls.__name__ if defaults or cls not in SPECS else first_name(cls.__name__), **options}
    if isinstance(value, Mapping):
        return {str(k): to_plain(v, defaults=defaults) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(v, defaults=defaults) for v in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    name = value.__name__ if isinstance(value, type) else type(value).__name__
    raise ValueError(
        f"a recipe holds specs, numbers, strings and tuples; {name} is none of these. For a loss or an optimizer of "
        "your own write a spec: a frozen dataclass whose method build() makes it."
    )


def _frozen(cls: type) -> Mapping[str, Any]:
    """Options and defaults as they were introduced; of a user's own spec nothing is frozen."""
    return FROZEN.get(first_name(cls.__name__), {}) if cls in SPECS else {}


def _is_default(field: Field[Any], frozen: Mapping[str, Any], value: Any) -> bool:
    default = frozen.get(field.name, field.default)
    if isinstance(default, dict):  # a spec or a mapping, which stands there as plain data
        return bool(to_plain(value, defaults=False) == default)
    if default is not MISSING:
        return bool(default == value) and type(default) is type(value)
    factory = field.default_factory
    return callable(factory) and bool(factory() == value)


def from_plain(value: Any) -> Any:
    """What `to_plain` was given; unknown types and options are refused with the nearest valid name.

    An option that is left out has the default it was introduced with: the record is from before it, or leaves it out.
    """
    if isinstance(value, list):
        return tuple(from_plain(v) for v in value)
    if not isinstance(value, dict):
        return value
    if "type" not in value:
        return {k: from_plain(v) for k, v in value.items()}
    # A user's factory may have an argument called "type": its arguments are left as they are.
    inner = {k: v if k == "arguments" else from_plain(v) for k, v in value.items() if k != "type"}
    known = names_of(SPECS)
    cls = known[valid_name(value["type"], list(known), "type")]
    options = [f.name for f in fields(cls) if f.init]
    given = {valid_name(name, options, f"option of {cls.__name__}"): inner[name] for name in inner}
    left_out = {
        name: from_plain(default) if isinstance(default, dict) else default
        for name, default in _frozen(cls).items()
        if name not in given and default is not REQUIRED
    }
    return cls(**left_out, **given)


def objective_type(name: str) -> type | None:
    """The spec of this name in a record, by whichever of its names; None for one that is not of this package."""
    return names_of(OBJECTIVES).get(name)


def identity_text(recipe: Recipe) -> str:
    """What the names of runs are hashes of."""
    return json.dumps(to_plain(recipe, defaults=False), sort_keys=True)


def recipe_hash(recipe: Recipe) -> str:
    """SHA-256 of what a recipe says beyond the defaults: an option that comes later leaves old runs their name."""
    return hashlib.sha256(identity_text(recipe).encode()).hexdigest()


def run_id(recipe: Recipe, data: str, seed: int, *, origin: str | None = None) -> str:
    """What a study's run is called. data: the task's hash. origin: of linked runs, the run it starts from, if any."""
    linked = "" if origin is None else f" {origin}"
    return hashlib.sha256(f"{identity_text(recipe)} {data} {seed}{linked}".encode()).hexdigest()[:20]


def valid_name(name: str, names: list[str], what: str) -> str:
    """The name, if it is one of these; else a ValueError with the nearest of them."""
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(names))}."
    raise ValueError(f"{name!r} is not a known {what}; {hint}")
