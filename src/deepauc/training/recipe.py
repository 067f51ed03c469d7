"""What a run is made of: frozen specs, from the network to the last stage."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Literal, Protocol, get_args, runtime_checkable

import torch
from torch import nn

from deepauc.data.augment.batch import Augment
from deepauc.data.uncertain import Choice
from deepauc.kernels.dropout import require_rate
from deepauc.models.build import ModelSpec
from deepauc.training.schedule import Constant, Schedule
from deepauc.training.test_time import Copies

Bound = Literal["auto", "sigmoid", "l2", "rms", "none"]
Precision = Literal["float32", "bfloat16"]


class ObjectiveSpec(Protocol):
    """Builds a loss with forward(scores, labels, weights) once the prior of each label is known."""

    @property
    def bound(self) -> str:
        """What goes between network and loss unless the stage says otherwise."""

    @property
    def soft_labels(self) -> bool: ...

    def build(self, *, prior: Sequence[float]) -> nn.Module: ...


@runtime_checkable
class ViewObjectiveSpec(ObjectiveSpec, Protocol):
    """Builds a loss with forward(first view, second view, ..., labels=) on projections: it trains features."""

    @property
    def views(self) -> int:
        """How many augmented views of each image the loss compares."""

    @property
    def uses_labels(self) -> bool:
        """Whether the loss looks at labels; if not, rows without any are as good as others."""


@runtime_checkable
class IndexedObjectiveSpec(Protocol):
    """Builds a loss with forward(scores, labels, index, weights): one that remembers something of each row.

    num_rows: of the task; the index (B,) holds their numbers.
    """

    @property
    def needs_index(self) -> bool: ...

    def build(self, *, prior: Sequence[float], num_rows: int) -> nn.Module: ...


class OptimizerSpec(Protocol):
    """Builds an optimizer over network and objective.

    One that keeps the objective's dual variables where they may be, as PESG does, has `projects = True`.
    """

    @property
    def lr(self) -> float: ...

    def build(self, parameters: Iterable[nn.Parameter], objective: nn.Module) -> torch.optim.Optimizer: ...


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One objective, one optimizer, one stream of batches. Two-stage training is two of these.

    A stage whose objective compares views (`Contrastive`, `PolyView`, ...) trains the network below its classifier
    with a projection head behind it, which is dropped at the stage's end. It sees the training part, rows without a
    label too unless there is a quota (never one whose group is in validation or test), ignores sample weights, and has
    no validation AUC.

    Args:
        objective: The spec of the loss, such as `AUCMargin()` or `CrossEntropy()`.
        optimizer: The spec of the optimizer, such as `PESGSpec()` or `SGDSpec()`.
        epochs: Length in passes over the training part; give this or `iterations`.
        iterations: Length in steps; give this or `epochs`.
        batch_size: Rows per step.
        positives_per_batch: Positives in each batch (`ClassQuotaSampler`); None shuffles plainly.
        schedule: How the learning rate changes: `Constant()`, `Steps()`, `Cosine()` or `Cyclic()`.
        augment: Random changes of the training images; None leaves them as they are.
        views: Augmented views of each image in a batch; as many as the objective compares.
        projection: Hidden and output width of the projection head of a stage on views.
        bound: What the scores pass before the loss, in training only: "sigmoid", "l2" (`BatchScoreNorm`), "rms"
            (`BatchScoreRMSNorm`) or "none"; "auto" is the objective's own.
        reset_classifier: Start from the network as it is, with a fresh last layer.
        start_from: Folder of another run whose weights this stage starts from.
        place: Position in its recipe, from 0, of a stage that is trained on its own; its random numbers depend on
            it.
        uncertain: What becomes of labels marked -1, for all labels or by name; None refuses them.
        gradient_clip: Largest L2 norm of the gradient; None does not clip.
        ema: Share of the old average that each step keeps, in an average of the weights; None keeps no average.
        accumulate: Number of pieces in which a batch passes the network; the loss sees it whole.
        precision: "float32", or "bfloat16" for the network's forward and backward pass.
        keep: The weights of the "last" epoch, or of the "best" on validation.
        patience: Epochs without a better validation AUC after which the stage ends.
        backbone_rate: The learning rate of all layers but the last, as a share of the optimizer's: below 1 to keep near
            pretrained weights.
        graded_rates: Only the first quarter of these layers has `backbone_rate`; the other quarters come nearer to the
            optimizer's rate, each by the same factor.
        frozen_epochs: Epochs at the start of the stage in which all layers but the last have a learning rate of 0.
        drop_rate: Rate of the network's dropout layers in this stage, such as 0 in a first stage; None: the network's
            own. The network must have such layers (`drop_rate` of `ResNet20Spec`, `proj_drop_rate` of a DenseNet).
        images_per_bag: Images of a bag that a step sees at most, drawn anew in every step; None: all. Scores are always
            of all images.
    """

    objective: ObjectiveSpec
    optimizer: OptimizerSpec
    epochs: int | None = None
    iterations: int | None = None
    batch_size: int = 128
    positives_per_batch: int | None = None
    schedule: Schedule = field(default_factory=Constant)
    augment: Augment | None = None
    views: int = 1
    projection: tuple[int, int] = (128, 128)
    bound: Bound = "auto"
    reset_classifier: bool = False
    start_from: str | None = None
    place: int | None = None
    uncertain: Choice | Mapping[str, Choice] | None = None
    gradient_clip: float | None = None
    ema: float | None = None
    accumulate: int = 1
    precision: Precision = "float32"
    keep: Literal["last", "best"] = "last"
    patience: int | None = None
    backbone_rate: float = 1.0
    graded_rates: bool = False
    frozen_epochs: int = 0
    drop_rate: float | None = None
    images_per_bag: int | None = None

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.iterations is None):
            raise ValueError("a stage has a length in epochs or in iterations: give one of the two.")
        counts = ("epochs", "iterations", "batch_size", "positives_per_batch", "accumulate", "patience", "views")
        for name in (*counts, "images_per_bag"):
            value = getattr(self, name)
            if value is not None and (value != int(value) or value < 1):
                raise ValueError(f"{name} must be a whole number of at least 1, not {value}.")
        if self.place is not None and (self.place != int(self.place) or self.place < 0):
            raise ValueError(f"place must be a whole number, from 0, not {self.place}.")
        if self.bound not in get_args(Bound):
            raise ValueError(f"bound must be one of {', '.join(get_args(Bound))}, not {self.bound!r}.")
        if self.precision not in get_args(Precision):
            raise ValueError(f"precision must be float32 or bfloat16, not {self.precision!r}.")
        if self.ema is not None and not 0 < self.ema < 1:
            raise ValueError(f"ema is the share of the old average kept in a step, between 0 and 1, not {self.ema}.")
        if self.gradient_clip is not None and not self.gradient_clip > 0:
            raise ValueError(f"gradient_clip must be positive, not {self.gradient_clip}.")
        if self.batch_size % self.accumulate:
            raise ValueError(f"accumulate {self.accumulate} must divide batch_size {self.batch_size}.")
        if self.augment is not None and self.augment.mixup and not self.objective.soft_labels:
            remedy = "set soft_labels=True in the stage's objective"
            if is_dataclass(self.objective) and "soft_labels" not in {f.name for f in fields(self.objective)}:
                remedy = f"{type(self.objective).__name__} takes hard ones only, so leave mixup out"
            raise ValueError(f"mixup makes soft labels: {remedy}.")
        if self.ema is not None and self.takes_turns:
            raise ValueError(
                "ema averages the weights of every step, and PDSCA's inner steps hold others: leave ema out."
            )
        self._check_views()

    def _check_views(self) -> None:
        if not 0 < self.backbone_rate <= 1:
            raise ValueError(f"backbone_rate is a share of the learning rate, in (0, 1], not {self.backbone_rate}.")
        if self.frozen_epochs != int(self.frozen_epochs) or not 0 <= self.frozen_epochs < (self.epochs or math.inf):
            raise ValueError(
                f"frozen_epochs must be a whole number, from 0 and below the stage's epochs, not {self.frozen_epochs}."
            )
        if self.graded_rates and self.backbone_rate == 1:
            raise ValueError("graded_rates lie between backbone_rate and 1: give a backbone_rate below 1.")
        if self.splits_layers and (self.on_views or self.takes_turns):
            raise ValueError(
                "backbone_rate and frozen_epochs are for stages that train all layers by one loss: leave them out here."
            )
        if self.drop_rate is not None:
            require_rate(self.drop_rate, "drop_rate")
        wanted = self.objective.views if isinstance(self.objective, ViewObjectiveSpec) else 1
        if self.views != wanted:
            raise ValueError(
                f"{type(self.objective).__name__} takes {wanted} view{'s' * (wanted > 1)} of each image: "
                f"set views={wanted}, not {self.views}."
            )
        if not self.on_views:
            return
        object.__setattr__(self, "projection", tuple(self.projection))
        if len(self.projection) != 2 or not all(width == int(width) and width >= 1 for width in self.projection):
            raise ValueError(
                f"projection is the head's hidden and output width, two whole numbers, not {self.projection}."
            )
        if self.augment is None:
            raise ValueError("views of an image differ by their augmentation: give the stage an augment.")
        if self.resolved_bound != "none":
            raise ValueError("a stage on views has no scores to bound: leave bound out.")
        if self.keep == "best" or self.patience is not None:
            raise ValueError("a stage on views has no validation AUC to choose by: leave keep and patience out.")

    @property
    def on_views(self) -> bool:
        """Whether the stage compares views and trains features, rather than scores."""
        return self.views > 1

    @property
    def splits_layers(self) -> bool:
        """Whether the layers below the last one have learning rates of their own."""
        return self.backbone_rate != 1 or self.frozen_epochs > 0

    @property
    def needs_index(self) -> bool:
        """Whether the loss is given the numbers of the rows, too."""
        return isinstance(self.objective, IndexedObjectiveSpec) and self.objective.needs_index

    @property
    def optimizer_projects(self) -> bool:
        """Whether the optimizer's step ends with the objective's projection."""
        return bool(getattr(self.optimizer, "projects", False))

    @property
    def takes_turns(self) -> bool:
        """Whether the optimizer's steps minimise two losses in turn (PDSCA)."""
        return bool(getattr(self.optimizer, "takes_turns", False))

    def build_objective(self, *, prior: Sequence[float], num_rows: int) -> nn.Module:
        """The loss, once the prior of each label and the number of rows are known."""
        if isinstance(self.objective, IndexedObjectiveSpec) and self.objective.needs_index:
            return self.objective.build(prior=prior, num_rows=num_rows)
        return self.objective.build(prior=prior)

    @property
    def resolved_bound(self) -> str:
        return self.objective.bound if self.bound == "auto" else self.bound


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A network and its stages.

    Args:
        model: The spec of the network, such as `ResNet20Spec()` or `TimmSpec(name="densenet121")`.
        stages: One `Stage` or several, trained one after the other.
        guard: After the last stage, keep the earlier stage's network if that is better on validation.
        test_curve: Also write the test AUC of each epoch, to a file that no selection opens.
        evaluate_every: Epochs between two validations (and points of that curve); a stage's last epoch always has one.
        alpha_curve: Also write alpha of each step, likewise.
        deterministic: Ask torch for deterministic algorithms on a GPU; a CPU is deterministic anyway.
        tta: Test-time augmentation: the final scores, thresholds and calibration, and later `predict`, are of the mean
            over this many copies of each image, changed as in training. 0: of the image as it is. Scores during
            training are of the image as it is.
        standardise: Inputs lose the mean and deviation of the training part. False: images stay in [0, 1], features as
            they are.
        watch: The history of each epoch also has `train_auc`, of the scores that the loss saw in its steps, and
            `weight_square`, the sum of squares of the layers' weights at its end.
        input_mean: Of images in [0, 1], by channel: what is subtracted instead of the training part's mean, such as
            what pretrained weights expect; with `input_std`, or None.
        input_std: What they are divided by then.
        frozen: Train the last layer alone. The features below it are computed once, of the images as they are, with
            the weights that the network starts from.
        keep_stages: Keep the weights at the end of each stage with scores, as `guard` does, without choosing.
    """

    model: ModelSpec
    stages: tuple[Stage, ...]
    guard: bool = False
    test_curve: bool = False
    evaluate_every: int = 1
    alpha_curve: bool = False
    deterministic: bool = False
    tta: int = 0
    standardise: bool = True
    watch: bool = False
    input_mean: tuple[float, ...] | None = None
    input_std: tuple[float, ...] | None = None
    frozen: bool = False
    keep_stages: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", tuple(self.stages))
        self._check_inputs()
        if not self.stages:
            raise ValueError("a recipe has at least one stage.")
        if self.evaluate_every != int(self.evaluate_every) or self.evaluate_every < 1:
            raise ValueError(f"evaluate_every must be a whole number of at least 1, not {self.evaluate_every}.")
        if self.evaluate_every > 1 and any(s.keep == "best" or s.patience is not None for s in self.stages):
            raise ValueError("keep='best' and patience look at every epoch: leave evaluate_every at 1.")
        if self.guard and self.stages[-1].on_views:
            raise ValueError("guard keeps the better of two classifiers: the last stage, on views, trains none.")
        if self.guard and sum(not stage.on_views for stage in self.stages) < 2:
            raise ValueError("guard compares the last stage with an earlier one: there is only one that gives scores.")
        if self.tta:
            self._check_tta()
        if self.frozen:
            self._check_frozen()

    def _check_inputs(self) -> None:
        if self.input_mean is None and self.input_std is None:
            return
        if self.input_mean is None or self.input_std is None or len(self.input_mean) != len(self.input_std):
            raise ValueError("input_mean and input_std go together, one number each for every channel.")
        if not all(map(math.isfinite, self.input_mean)) or not all(0 < std < math.inf for std in self.input_std):
            raise ValueError("input_mean must be finite and input_std positive.")
        if not self.standardise:
            raise ValueError("standardise=False leaves inputs as they are: leave out input_mean and input_std.")
        object.__setattr__(self, "input_mean", tuple(map(float, self.input_mean)))
        object.__setattr__(self, "input_std", tuple(map(float, self.input_std)))

    def _check_frozen(self) -> None:
        """The features are there once: nothing may change the images, nor the layers below the last."""
        for stage in self.stages:
            for option in ("augment", "start_from"):
                if getattr(stage, option) is not None:
                    raise ValueError(f"frozen computes features once, of the images as they are: leave {option} out.")
            if stage.on_views or stage.splits_layers or stage.drop_rate is not None:
                raise ValueError(
                    "frozen trains the last layer alone: leave out views, backbone_rate, frozen_epochs and drop_rate."
                )

    def _check_tta(self) -> None:
        scored = [stage.augment for stage in self.stages if not stage.on_views]
        copies = self.copies
        if copies is None or self.stages[-1].on_views:
            raise ValueError("tta changes copies of an image as in training: give the last stage an augment, or tta=0.")
        if any(augment is None or replace(augment, mixup=0.0) != copies.augment for augment in scored):
            raise ValueError("tta needs the same augment (mixup aside) in all stages that give scores.")
        object.__setattr__(self, "tta", copies.number)

    @property
    def copies(self) -> Copies | None:
        """What `tta` asks for."""
        augment = self.stages[-1].augment
        return Copies(number=self.tta, augment=replace(augment, mixup=0.0)) if self.tta and augment else None
