"""Specs of networks, and the one function that builds a network from a spec and a seed."""

from __future__ import annotations

import bisect
import difflib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from deepauc.kernels.dropout import drop_in_dense_layers, require_rate
from deepauc.models.activations import assert_no_relu, replace_relu
from deepauc.models.average import AverageSpec, OnFeaturesSpec, OnPicturesSpec
from deepauc.models.bags import BagSpec
from deepauc.models.classifier import classifier_head, narrow_classifier, reset_classifier
from deepauc.models.factory import FactorySpec
from deepauc.models.initialisation import require_momentum, set_norm_momentum_, xavier_uniform_
from deepauc.models.pretrained import FoundWeights, find_weights, load_weights, require_file
from deepauc.models.resnet20 import ResNet20Spec
from deepauc.models.small import MLPSpec, SmallCNNSpec
from deepauc.models.stem import use_small_stem
from deepauc.models.thumbnail import ThumbnailSpec
from deepauc.models.weight_packages import SHORT

__all__ = [
    "AverageSpec",
    "BagSpec",
    "FactorySpec",
    "MLPSpec",
    "ModelSpec",
    "ResNet20Spec",
    "SmallCNNSpec",
    "ThumbnailSpec",
    "TimmSpec",
    "architecture",
    "build_model",
    "check_output",
    "classifier_head",
    "is_of_bags",
    "member_specs",
    "require_files",
    "reset_classifier",
]


@dataclass(frozen=True, kw_only=True)
class TimmSpec:
    """Any network of timm's by name: densenet121, tf_efficientnet_b5, inception_resnet_v2, resnet50, ...

    Args:
        name: timm's name of it.
        activation: "elu" replaces every ReLU, checked; None leaves the network's own.
        small_stem: A 3x3 stride-1 first convolution and no max-pool, for images of about 32 pixels (DenseNet, ResNet).
        pretrained: Published weights that are on this machine (`models.pretrained.find_weights`). It never downloads,
            nor falls back to random weights.
        weights: The same from this safetensors file.
        drop_rate: Dropout before the classifier.
        drop_path_rate: As in timm.
        image_size: For networks that fix it when they are built (vision transformers).
        proj_drop_rate: Dropout inside the network, in DenseNet behind every dense layer, where it follows from the step
            alone (`kernels.dropout`).
        norm_momentum: A batch's share in the running statistics of batch normalisation; None leaves the network's own.
        start: "xavier" draws convolutions anew, uniform, with a classifier's bias of 0; None leaves the network's own,
            which for DenseNet is He's.
    """

    name: str = "densenet121"
    activation: Literal["elu"] | None = None
    small_stem: bool = False
    pretrained: bool = False
    weights: str | None = None
    drop_rate: float = 0.0
    drop_path_rate: float = 0.0
    image_size: int | None = None
    proj_drop_rate: float = 0.0
    norm_momentum: float | None = None
    start: Literal["xavier"] | None = None

    def __post_init__(self) -> None:
        if self.activation not in ("elu", None):
            raise ValueError(f"activation must be 'elu', or None for the network's own, not {self.activation!r}.")
        for option in ("drop_rate", "drop_path_rate", "proj_drop_rate"):
            require_rate(getattr(self, option), option)
        require_momentum(self.norm_momentum)
        if self.start not in ("xavier", None):
            raise ValueError(f"start must be 'xavier', or None for the network's own, not {self.start!r}.")
        if self.start is not None and (self.pretrained or self.weights is not None):
            raise ValueError("start draws random weights, and this network starts from trained ones: leave start out.")

    def build(self, *, in_channels: int, num_outputs: int) -> nn.Module:
        model = self._create(in_channels=in_channels, num_outputs=num_outputs)
        starts_trained = self.starts_trained
        if (found := self.found_weights()) is not None:
            name = None if found.source == "file" else self.name
            load_weights(model, found.file, in_channels=in_channels, num_outputs=num_outputs, name=name)
        if self.small_stem:
            use_small_stem(model, keep_kernel=starts_trained)
        if self.start == "xavier":
            xavier_uniform_(model)
        if self.norm_momentum is not None:
            set_norm_momentum_(model, self.norm_momentum)
        if self.proj_drop_rate:
            drop_in_dense_layers(model, self.proj_drop_rate)
        if self.activation is not None:
            if replace_relu(model, self.activation) == 0:
                raise ValueError(
                    f"activation={self.activation!r}: {self.name} has no ReLU to replace. Leave activation out: "
                    "the network keeps its own, as EfficientNet does its SiLU."
                )
            device = next(model.parameters()).device
            if (self, in_channels, device.type) not in _WITHOUT_RELU:
                assert_no_relu(model, torch.zeros(2, in_channels, *self._example_size(model), device=device))
                _WITHOUT_RELU.add((self, in_channels, device.type))
        return model

    def require_files(self) -> None:
        """ValueError where there is no such network, or the weights it starts from are not here; builds nothing."""
        self._require_known()
        if self.weights is not None:
            require_file(Path(self.weights))
        elif self.pretrained:
            find_weights(self.name)

    @property
    def starts_trained(self) -> bool:
        """Whether the network starts from weights that other training has found."""
        return self.pretrained or self.weights is not None

    def found_weights(self) -> FoundWeights | None:
        """The file that the network starts from; None where it starts at random. ValueError where it is not here."""
        if self.weights is not None:
            return FoundWeights(file=Path(self.weights), source="file", origin=self.weights, licence=None)
        return find_weights(self.name) if self.pretrained else None

    def _require_known(self) -> None:
        import timm

        # "hf-hub:..." would go to the network, "local-dir:..." might load a pickle.
        if not timm.is_model(self.name):
            known = {**SHORT, **{name: name for name in timm.list_models()}}
            near = [known[name] for name in difflib.get_close_matches(self.name, known, n=3)]
            hint = f" Did you mean {', '.join(near)}?" if near else " timm.list_models() lists them."
            raise ValueError(f"timm has no network named {self.name!r}.{hint}")

    def _create(self, *, in_channels: int, num_outputs: int) -> nn.Module:
        import timm

        self._require_known()
        options: dict[str, Any] = {
            "drop_rate": self.drop_rate or None,  # timm leaves out what is None: not every network has every option
            "drop_path_rate": self.drop_path_rate or None,
            "proj_drop_rate": self.proj_drop_rate or None,
            "img_size": self.image_size,
        }
        try:
            model: nn.Module = timm.create_model(
                self.name, pretrained=False, num_classes=num_outputs, in_chans=in_channels, **options
            )
        except TypeError as error:
            set_options = {"image_size" if k == "img_size" else k: v for k, v in options.items() if v is not None}
            raise ValueError(f"{self.name} does not take the options {set_options}: {error}.") from error
        narrow_classifier(model)
        return model

    def _example_size(self, model: nn.Module) -> tuple[int, int]:
        """Small, so that the check costs a fraction of a second, and large enough for every network of timm's."""
        config: Any = model.pretrained_cfg
        if config.get("fixed_input_size") or self.image_size is not None:
            height, width = config["input_size"][1:] if self.image_size is None else (self.image_size,) * 2
            return height, width
        return (16, 16) if self.small_stem else (96, 96)


# Networks that were looked through in this process: the weights of another seed call nothing else.
_WITHOUT_RELU: set[tuple[TimmSpec, int, str]] = set()
_FORWARD_ERRORS = (RuntimeError, ValueError, TypeError, AssertionError)

ModelSpec = (
    ResNet20Spec
    | TimmSpec
    | FactorySpec
    | MLPSpec
    | SmallCNNSpec
    | ThumbnailSpec
    | AverageSpec
    | OnFeaturesSpec
    | OnPicturesSpec
    | BagSpec
)


def member_specs(spec: ModelSpec) -> tuple[ModelSpec, ...]:
    """The networks of an average, or the one network; of bags the network of an image."""
    if isinstance(spec, BagSpec):
        return (spec.image,)  # type: ignore[return-value]  # a known spec
    if isinstance(spec, OnFeaturesSpec | OnPicturesSpec):
        return member_specs(spec.member)  # type: ignore[arg-type]  # known specs
    if not isinstance(spec, AverageSpec):
        return (spec,)
    return tuple(one for member in spec.members for one in member_specs(member))  # type: ignore[arg-type]  # known specs


def require_files(spec: ModelSpec) -> None:
    """ValueError for what can be known of a spec without its images: no such network, no weights on this machine."""
    if isinstance(spec, BagSpec):
        spec = spec.image  # type: ignore[assignment]  # a known spec
    if isinstance(spec, TimmSpec):
        spec.require_files()


def is_of_bags(spec: ModelSpec) -> bool:
    """Whether the network scores bags of images."""
    if isinstance(spec, AverageSpec):
        return isinstance(spec.members[0], BagSpec)
    return isinstance(spec, BagSpec)


def build_model(
    spec: ModelSpec,
    *,
    in_channels: int,
    num_outputs: int,
    seed: int,
    input_shape: tuple[int, ...] | None = None,
) -> nn.Module:
    """The network on the CPU, its random weights a function of the seed alone; the global generator is not touched.

    in_channels: of the images, or the number of features. Output: raw scores (N, num_outputs). input_shape: of one
    input, (C, H, W) or (F,); given, the output's shape is tried out.
    """
    for name, value in (("in_channels", in_channels), ("num_outputs", num_outputs)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}.")
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which would reseed the GPUs' generators too.
        torch.default_generator.manual_seed(seed)
        model = spec.build(in_channels=in_channels, num_outputs=num_outputs)
        if input_shape is not None:
            check_output(model, input_shape, num_outputs=num_outputs)
    return model


def check_output(model: nn.Module, input_shape: tuple[int, ...], *, num_outputs: int) -> None:
    """Raise ValueError unless the model turns one input of this shape, (C, H, W) or (F,), into (1, num_outputs)."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        output = _tried(model, input_shape)
    except _FORWARD_ERRORS as error:
        reason = str(error).rstrip(".")
        remedy = "Check the number of channels and the size of the images against what the network takes."
        if len(input_shape) == 3 and (side := _smallest_side(model, input_shape[0])) > min(input_shape[1:]):
            remedy = (
                f"The smallest images it takes are {side} x {side}: enlarge these (image size), or choose a network "
                "for small ones, as resnet20 or small-cnn."
            )
        raise ValueError(
            f"{type(model).__name__} fails on an input of shape {tuple(input_shape)}: {reason}. {remedy}"
        ) from error
    finally:
        for module, training in modes:
            module.training = training
    if not isinstance(output, torch.Tensor) or output.shape != (1, num_outputs):
        got = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        remedy = (
            "return scores.unsqueeze(1)"
            if got == (1,)
            else f"give its last layer {num_outputs} outputs, and return one tensor of raw scores"
        )
        raise ValueError(
            f"{type(model).__name__} gives {got} for one input; (N, num_outputs) is needed, here (1, {num_outputs}): "
            f"{remedy}."
        )


def _tried(model: nn.Module, input_shape: tuple[int, ...]) -> Any:
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    with torch.no_grad():
        return model(torch.zeros(1, *input_shape, device=device))


def _smallest_side(model: nn.Module, channels: int) -> int:
    """Of the square images that the model does not fail on; 0 where it fails on all of up to 512 pixels."""

    def works(side: int) -> bool:
        try:
            _tried(model, (channels, side, side))
        except _FORWARD_ERRORS:
            return False
        return True

    enough = next((1 << power for power in range(10) if works(1 << power)), 0)
    return bisect.bisect_left(range(enough), True, lo=enough // 2 + 1, key=works) if enough > 1 else enough


def architecture(spec: ModelSpec) -> ModelSpec:
    """The same network without the weights it starts from: what a checkpoint is loaded into."""
    if isinstance(spec, AverageSpec):
        return AverageSpec(members=tuple(architecture(one) for one in spec.members))  # type: ignore[arg-type]
    if isinstance(spec, BagSpec):
        return replace(spec, image=architecture(spec.image))  # type: ignore[arg-type]  # a known spec
    if isinstance(spec, OnFeaturesSpec | OnPicturesSpec):
        return replace(spec, member=architecture(spec.member))  # type: ignore[arg-type]
    return replace(spec, pretrained=False, weights=None) if isinstance(spec, TimmSpec) else spec
