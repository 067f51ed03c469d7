"""A trained run that judges one image at a time: score, probability, position among known scores, Grad-CAM."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from deepauc.data.images.decode import Pixels, decode_image
from deepauc.data.task import ArrayInputs, Task
from deepauc.metrics.recalibration import LabelwiseScaling
from deepauc.models.build import is_of_bags
from deepauc.models.grad_cam import grad_cam
from deepauc.reporting.figures.thumbnails import side_by_side
from deepauc.serve.known_scores import Distribution, Floats, Reached, known_scores, reached_within_folds
from deepauc.training.engine.loop import chosen_device
from deepauc.training.predict.average import probability_meaning
from deepauc.training.run.bundle import Bundle
from deepauc.training.run.own_files import BUNDLE, MODEL, SCORES, require_own
from deepauc.training.run.scores import OOF
from deepauc.training.scoring import require_finite
from deepauc.training.test_time import score_copies

SIDE = 320  # pixels of the longer side of a map


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """A raw score; a score at or above it is called positive. name: as in bundle.json, such as `specificity 0.9`."""

    name: str
    value: float
    reached: Reached | None


@dataclass(frozen=True, kw_only=True)
class LabelJudgement:
    """What the run says of one image and one label.

    above_negatives, above_positives: the share of the training rows of that class with a lower score, ties counted one
    half; None where no such row is known. picture: a PNG as a data address, the image beside its Grad-CAM.
    """

    label: str
    score: float
    probability: float | None
    above_negatives: float | None
    above_positives: float | None
    picture: str | None


@dataclass(frozen=True, kw_only=True)
class ServedLabel:
    """One label of the run, and what its scores are compared with."""

    name: str
    thresholds: tuple[Threshold, ...]
    distribution: Distribution | None


class ServedRun:
    """A run's network in memory, and everything that a score of it is read by. It keeps nothing of an image."""

    def __init__(self, folder: str | Path, *, device: str | torch.device | None = None, force: bool = False) -> None:
        self.folder = Path(folder)
        bundle = Bundle.load(self.folder)
        if len(bundle.shape) != 3 or not bundle.preprocessing.images:
            what = "images alone" if bundle.picture else "images"
            raise ValueError(f"{folder} was not trained on {what}: deepauc predict scores a table.")
        if is_of_bags(bundle.model):
            raise ValueError(
                f"{folder} scores bags of images, and this page takes one: deepauc predict scores a table."
            )
        self.cautions = require_own(self.folder, MODEL, BUNDLE, SCORES, force=force)
        self._bundle, self._device = bundle, chosen_device(device)
        self._network: nn.Module = bundle.network(self.folder).to(self._device)
        self._recalibration, self.probability_note = self._probabilities()
        self._training, held_out = known_scores(self.folder, len(bundle.label_names))
        folds = reached_within_folds(self.folder)
        self.labels = tuple(
            ServedLabel(
                name=name,
                thresholds=tuple(
                    Threshold(
                        name=asked,
                        value=value,
                        reached=folds.get((name, asked)) if there is None else there.reached(value),
                    )
                    for asked, value in bundle.thresholds.get(name, {}).items()
                ),
                distribution=None if trained is None else trained.distribution(),
            )
            for name, trained, there in zip(bundle.label_names, self._training, held_out, strict=True)
        )
        self.map_note = self._why_no_map()

    @property
    def folds(self) -> bool:
        """Whether the training images were scored by networks of folds that did not see them."""
        return any(known is not None and known.part == OOF for known in self._training)

    @property
    def copies(self) -> int:
        """Changed copies of an image that a score is the mean of; 0: a score is of the image as it is."""
        return 0 if self._bundle.copies is None else self._bundle.copies.number

    def judge(self, content: bytes) -> tuple[LabelJudgement, ...]:
        """The file's picture, scored as `predict` scores it, label by label. An ImageError says what is wrong."""
        bundle = self._bundle
        height, width, channels = bundle.shape
        decoded = decode_image(content, channels=channels, size=(height, width), window=bundle.window)
        image = decoded.copy()  # torch takes no array that may not be written to
        scores = self._scores(image)
        chances = None if self._recalibration is None else np.clip(self._recalibration.apply(scores[None])[0], 0, 1)
        found = []
        for j, (name, known) in enumerate(zip(bundle.label_names, self._training, strict=True)):
            above_negatives, above_positives = (None, None) if known is None else known.share_below(scores[j])
            found.append(
                LabelJudgement(
                    label=name,
                    score=float(scores[j]),
                    probability=None if chances is None else float(chances[j]),
                    above_negatives=above_negatives,
                    above_positives=above_positives,
                    picture=None if self.map_note is not None else self._picture(image, j),
                )
            )
        return tuple(found)

    def _scores(self, image: Pixels) -> Floats:
        """(L,), raw."""
        bundle = self._bundle
        names = bundle.label_names
        task = Task(
            name="one image",
            kind="binary" if len(names) == 1 else "multilabel",
            source=ArrayInputs(image[None]),
            labels=np.zeros((1,) if len(names) == 1 else (1, len(names)), dtype=np.float32),  # nobody looks at them
            label_names=names,
            parts={},
        )
        found = score_copies(
            self._network, task, np.arange(1), bundle.preprocessing, self._device, copies=bundle.copies
        )
        require_finite(found, np.array(["this image"]), of="the network")
        return found[0].astype(np.float64)

    def _map(self, image: Pixels, label: int) -> npt.NDArray[np.float32]:
        inputs = self._bundle.preprocessing(torch.from_numpy(image[None]).to(self._device))
        return grad_cam(self._network, inputs, label=label)[0].cpu().numpy()

    def _picture(self, image: Pixels, label: int) -> str:
        png = side_by_side(image, self._map(image, label), side=SIDE)
        return "data:image/png;base64," + base64.b64encode(png).decode("ascii")

    def _why_no_map(self) -> str | None:
        """Why this network has no Grad-CAM, found out once, on an empty image; None where it has."""
        try:
            self._map(np.zeros(self._bundle.shape, dtype=np.uint8), 0)
        except ValueError as error:
            return str(error)
        return None

    def _probabilities(self) -> tuple[LabelwiseScaling | None, str]:
        """What makes probabilities of scores, and what they mean; or why there are none."""
        try:
            found = self._bundle.recalibration()
        except ValueError as error:
            return None, f"Not known: {error}"
        said = probability_meaning([self.folder], self._bundle.label_names, [found], [1.0])
        said = said.removeprefix("probability: ")  # the page has that word before it
        return found, f"{said[0].upper()}{said[1:]}."
