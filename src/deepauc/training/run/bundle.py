"""What `predict` and ten lines of plain torch load: weights as safetensors, everything else as json."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from deepauc.data.augment.batch import Augment
from deepauc.data.images.decode import Window
from deepauc.data.task import Task
from deepauc.metrics.recalibration import IsotonicScaling, LabelwiseScaling, TemperatureScaling, recalibration_from_dict
from deepauc.models.average import AverageSpec, OnFeaturesSpec, OnPicturesSpec
from deepauc.models.build import FactorySpec, ModelSpec, architecture, build_model, member_specs
from deepauc.models.classifier import classifier_name
from deepauc.models.factory import require_permitted
from deepauc.models.fusion import SMALLEST_SCALE, CategoricalColumn, MetadataEncoder, NumericColumn
from deepauc.models.pretrained import require_finite
from deepauc.training.plain import from_plain, to_plain
from deepauc.training.preprocessing import Preprocessing
from deepauc.training.run.folder import RunFolder
from deepauc.training.run.output_file import write_atomically
from deepauc.training.test_time import Copies, copies_in, score_copies

MAX_BYTES = 1 << 26  # of bundle.json; recalibrators can be long
MOST_LAYERS = 1000


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A trained network with its preprocessing, label names, thresholds and recalibration (both from validation).

    thresholds: by label, what validation reaches -> threshold. calibration: by label, a recalibrator as plain data.
    metadata: a `MetadataEncoder` as plain data where the inputs are encoded metadata columns. copies: what a score is
    the mean of; None: of the image as it is. features: the columns of numbers in order, where an export knew them; in
    a run folder run.json has them. window: what deep grey of image files was mapped from; None: each image's own.
    cautions: what the users of an export must not overlook, as the report has it. picture: the shape (H, W, C) of the
    images, where the inputs are images and metadata together (`training.prepare.encoded_metadata.PicturesAndMetadata`).
    """

    model: ModelSpec
    shape: tuple[int, ...]
    kind: str
    label_names: tuple[str, ...]
    preprocessing: Preprocessing
    thresholds: dict[str, dict[str, float]] = field(default_factory=dict)
    calibration: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] | None = None
    copies: Copies | None = None
    features: tuple[str, ...] = ()
    window: Window | None = None
    cautions: tuple[str, ...] = ()
    picture: tuple[int, int, int] | None = None

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """(H, W, C) of the images it takes, alone or with metadata; None: it takes none."""
        if len(self.shape) != 3:
            return self.picture
        height, width, channels = self.shape
        return height, width, channels

    def save(self, folder: Path) -> None:
        """bundle.json beside model.safetensors."""
        plain = {
            "format": 1,
            "model": to_plain(self.model),
            "shape": list(self.shape),
            "kind": self.kind,
            "label_names": list(self.label_names),
            "preprocessing": {
                "mean": list(self.preprocessing.mean),
                "std": list(self.preprocessing.std),
                "images": self.preprocessing.images,
            },
            "thresholds": self.thresholds,
            "calibration": self.calibration,
            "metadata": self.metadata,
            "copies": None
            if self.copies is None
            else {"number": self.copies.number, "augment": to_plain(self.copies.augment)},
        }
        later = {"features": self.features, "window": self.window, "cautions": self.cautions, "picture": self.picture}
        plain |= {name: list(value) for name, value in later.items() if value}
        write_atomically(folder / "bundle.json", (json.dumps(plain, indent=2) + "\n").encode())

    @classmethod
    def load(cls, folder: str | Path) -> Bundle:
        """From a run folder, or any folder with the two files. Nothing in it is believed before it is checked."""
        path = Path(folder) / "bundle.json"
        if not path.is_file():  # opening a pipe would wait for ever
            run = RunFolder(path.parent)
            run.require_classifier()
            if run.record_path.exists() and not run.done:
                raise ValueError(f"{folder} holds an unfinished run: run its command again to finish it.")
            raise ValueError(f"{folder} holds no trained network: it has no bundle.json.")
        try:
            if path.stat().st_size > MAX_BYTES:
                raise ValueError(f"it has more than {MAX_BYTES:,} bytes")
            plain = json.loads(path.read_text(encoding="utf-8"))
            bundle = cls(
                model=from_plain(plain["model"]),
                shape=tuple(int(n) for n in plain["shape"]),
                kind=plain["kind"],
                label_names=tuple(plain["label_names"]),
                preprocessing=Preprocessing(
                    mean=tuple(float(x) for x in plain["preprocessing"]["mean"]),
                    std=tuple(float(x) for x in plain["preprocessing"]["std"]),
                    images=bool(plain["preprocessing"]["images"]),
                ),
                thresholds=plain["thresholds"],
                calibration=plain.get("calibration", {}),  # only probabilities need it
                metadata=plain["metadata"],
                copies=_copies(plain.get("copies")),
                features=tuple(plain.get("features", ())),
                window=_window(plain.get("window")),
                cautions=tuple(map(str, plain.get("cautions", ()))),
                picture=_picture(plain.get("picture")),
            )
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
            why = f" ({_one_line(error)})" if isinstance(error, ValueError) else ""  # others are no sentences
            raise ValueError(f"{path} is damaged or of another version{why}.") from error
        if (fault := bundle._fault()) is not None:
            raise ValueError(f"{path} is damaged or of another version ({fault}).")
        return bundle

    def network(self, folder: str | Path) -> nn.Module:
        """The network with its weights, in eval mode, on the CPU.

        A factory that the bundle names is called only if the user has named it too; see `models.factory`.
        """
        weights, spec = Path(folder) / "model.safetensors", architecture(self.model)
        try:
            factories = [one.factory for one in member_specs(spec) if isinstance(one, FactorySpec)]
            for factory in factories:
                require_permitted(factory)
            if not factories and weights.is_file():
                self._require_size(spec, weights.stat().st_size)
            model = self._built(spec)
        except Exception as error:  # a damaged description reaches torch and timm and meets any exception there is
            raise ValueError(f"the network of {folder} cannot be built: {_one_line(error)}.") from error
        load_weights(weights, model)
        return model.eval()

    def scores(
        self,
        model: nn.Module,
        task: Task,
        device: torch.device,
        *,
        made: Mapping[str, npt.NDArray[np.float32]] | None = None,
    ) -> dict[str, npt.NDArray[np.float32]]:
        """Of the labelled rows of every part by a network of this run, (n, L) each, made as the run's own are.

        made: by part, those that need not be made again.
        """
        there = made or {}
        return {
            part: there[part]
            if part in there
            else score_copies(
                model, task, task.labelled(part), self.preprocessing, device, copies=copies_in(part, self.copies)
            )
            for part in task.parts
        }

    def recalibration(self) -> LabelwiseScaling:
        """What makes probabilities (n, L) of this network's raw scores (n, L), by `apply`; as fitted on validation.

        It never turns the order of a label's scores round: a temperature of positive slope keeps it (as far as float64
        reaches: p near 1 ties), a slope of 0 ties all rows, an isotonic curve ties some.
        """
        if missing := [name for name in self.label_names if name not in self.calibration]:
            raise ValueError(
                f"probabilities for {', '.join(missing)} need a validation part with positives and negatives. "
                "Train with such a part, or use the raw scores, which rank."
            )
        entries = [self.calibration[name] for name in self.label_names]
        try:
            found = recalibration_from_dict({"kind": "labelwise", "labels": entries})
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise ValueError("the recalibration in bundle.json is damaged.") from error
        if not isinstance(found, LabelwiseScaling) or not all(map(_rises, found.labels)):
            raise ValueError("the recalibration in bundle.json is damaged (no rising curve from 0 to 1).")
        return found

    def _built(self, spec: ModelSpec) -> nn.Module:
        return build_model(spec, in_channels=self.shape[-1], num_outputs=len(self.label_names), seed=0)

    def _require_size(self, spec: ModelSpec, available: int) -> None:
        """Before memory is taken for it: the network described may not be larger than the file of its weights."""
        with torch.device("meta"):  # shapes alone
            state = self._built(spec).state_dict()
        needed = sum(entry.numel() * entry.element_size() for entry in state.values())
        if needed > available:
            raise ValueError(f"it takes {needed:,} bytes, but model.safetensors has {available:,}")

    def _fault(self) -> str | None:
        """What is wrong with the fields of a file that could be read, in words."""
        networks = member_specs(self.model) if isinstance(self.model, ModelSpec) else ()
        if not networks or not all(isinstance(one, ModelSpec) for one in networks):
            return "model is not a network"
        lists = [value for one in networks for value in vars(one).values() if isinstance(value, tuple | list)]
        lists.append(networks)
        names, each = self.label_names, self.preprocessing
        named = bool(names) and all(isinstance(name, str) for name in names) and len(set(names)) == len(names)
        fits = len(self.shape) in (1, 3) and min(self.shape) >= 1
        tables = (self.thresholds, self.calibration, self.metadata or {})
        required = {
            f"a network of more than {MOST_LAYERS} layers": all(len(value) <= MOST_LAYERS for value in lists),
            f"inputs of shape {self.shape}": fits,
            f"kind {self.kind!r}": self.kind in ("binary", "multilabel"),
            f"label names {names!r}": named and (self.kind != "binary" or len(names) == 1),
            "mean and standard deviation do not fit the inputs": fits
            and len(each.mean) == len(each.std) == self.shape[-1],
            "a mean or standard deviation that no input can be standardised by": each.sound,
            "thresholds, calibration or metadata are not tables": all(isinstance(table, dict) for table in tables),
            "a threshold that is not a finite number": not isinstance(self.thresholds, dict)
            or all(map(_finite, self.thresholds.values())),
            "metadata do not fit the inputs": self.metadata is None or self._encodes(),
            "a picture without metadata": self.picture is None or self.metadata is not None,
            "a member of the average does not fit the inputs": self._members_fit(),
            "features do not fit the inputs": not self.features
            or (fits and len(self.features) == self.shape[0] and all(isinstance(name, str) for name in self.features)),
            "copies do not fit the inputs": self.copies is None
            or (len(self.shape) == 3 and self.copies.augment.crop_padding < min(self.shape[:2])),
        }
        return next((fault for fault, holds in required.items() if not holds), None)

    def _encodes(self) -> bool:
        """Whether the metadata are an encoder that makes such inputs."""
        try:
            encoder = MetadataEncoder.from_dict(self.metadata or {})
            wanted = len(encoder.feature_names) + (0 if self.picture is None else math.prod(self.picture))
            return self.shape == (wanted,) and all(map(_sound, encoder.columns))
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
            return False

    def _members_fit(self) -> bool:
        """Whether those that take a part of the inputs take one that is there."""
        start = 0 if self.picture is None else math.prod(self.picture)
        members = self.model.members if isinstance(self.model, AverageSpec) else ()
        return all(
            one.shape == self.picture
            if isinstance(one, OnPicturesSpec)
            else (one.start, one.start + one.inputs) == (start, self.shape[0])
            for one in members
            if isinstance(one, OnPicturesSpec | OnFeaturesSpec)
        )


def _finite(points: Any) -> bool:
    """Whether these are numbers by their names."""
    return isinstance(points, dict) and all(
        isinstance(value, int | float) and abs(value) <= sys.float_info.max for value in points.values()
    )


def _window(plain: Any) -> Window | None:
    if plain is None:
        return None
    low, high = map(float, plain)
    if not -math.inf < low < high < math.inf:
        raise ValueError(f"a window from {low:g} to {high:g}")
    return low, high


def _copies(plain: Mapping[str, Any] | None) -> Copies | None:
    if plain is None:
        return None
    augment = from_plain(plain["augment"])
    if not isinstance(augment, Augment):
        raise ValueError("copies are changed by no augmentation")
    return Copies(number=plain["number"], augment=augment)


def _picture(plain: Any) -> tuple[int, int, int] | None:
    if plain is None:
        return None
    height, width, channels = map(int, plain)
    if min(height, width, channels) < 1:
        raise ValueError(f"a picture of shape {plain}")
    return height, width, channels


def _sound(column: NumericColumn | CategoricalColumn) -> bool:
    if not (isinstance(column.name, str) and isinstance(column.missing_seen, bool)):
        return False
    if isinstance(column, NumericColumn):
        return math.isfinite(column.mean) and SMALLEST_SCALE <= column.scale < math.inf
    return bool(column.categories) and all(isinstance(category, str) for category in column.categories)


def _rises(scaling: TemperatureScaling | IsotonicScaling) -> bool:
    """Whether it is a map to [0, 1] that never falls; NaN is none."""
    if isinstance(scaling, TemperatureScaling):
        return 0 <= scaling.slope < math.inf and math.isfinite(scaling.intercept)
    knots, values = scaling.scores, scaling.probabilities
    return (
        len(knots) == len(values) > 0
        and all(map(math.isfinite, knots))
        and all(low < high for low, high in pairwise(knots))
        and all(0 <= value <= 1 for value in values)
        and all(low <= high for low, high in pairwise(values))
    )


def save_weights(path: Path, model: nn.Module, *, classifier: bool = True) -> None:
    """A network's state dict as safetensors; classifier: False leaves that layer out, where nothing has trained it."""
    from safetensors.torch import save

    left_out = () if classifier else _classifier_entries(model)
    state = {k: v.detach().cpu().contiguous() for k, v in model.state_dict().items() if k not in left_out}
    write_atomically(path, save(state))


def load_weights(path: Path, model: nn.Module, *, own_classifier: bool = False) -> None:
    """A safetensors file into a network; names and shapes must fit, and every number must be finite.

    own_classifier: a file without a classifier layer, or with one of another shape, leaves the network its own.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    if not path.is_file():
        raise ValueError(f"{path} does not exist: train first, or name the folder of a finished run.")
    try:
        state = load(path.read_bytes())
    except (SafetensorError, LookupError, TypeError, ValueError, RuntimeError, OSError) as error:
        raise ValueError(
            f"{path} is damaged or is not a safetensors file ({error}). Pickled weights are refused."
        ) from error
    own = model.state_dict()
    if own_classifier and any(name not in state or state[name].shape != own[name].shape for name in own):
        state |= {name: own[name] for name in _classifier_entries(model)}
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(
            f"the weights in {path} belong to another network: {str(error).splitlines()[-1].strip()}"
        ) from error
    require_finite(model.state_dict(), path)


def _classifier_entries(model: nn.Module) -> tuple[str, ...]:
    """The names of the classifier layer's tensors in the network's state dict."""
    layer = classifier_name(model)
    return tuple(f"{layer}.{name}" for name in model.get_submodule(layer).state_dict())


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
