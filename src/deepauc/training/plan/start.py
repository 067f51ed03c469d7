"""What a plan's network starts from, where that is not at random: pretrained weights, kept as they are or trained.

On a CPU the layers below the last stay frozen: each image then passes the network once, and the last layer is trained
on the features in seconds. On a GPU all layers are trained, those below the last at a lower rate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from deepauc.models.build import TimmSpec
from deepauc.models.pretrained import FoundWeights, expected_inputs
from deepauc.models.weight_packages import SHORT
from deepauc.optim.standard import AdamWSpec
from deepauc.training.plan.decision import ASKED, Decision, DeviceKind, Fact, replaced
from deepauc.training.plan.inputs import PlanOptions
from deepauc.training.plan.last_stage import ADAMW_LR, LastStage
from deepauc.training.recipe import OptimizerSpec

DEFAULT = "tf_efficientnet_lite0"
NOT_PUBLISHED = ("small-cnn", "resnet20", "mlp")  # ours
FILE = ".safetensors"
SLOWER = 0.1  # the rate of pretrained layers that are trained on, as a share of the last one's; not measured
# Frozen: a linear model of a thousand features learns a few hundred rows by heart and needs far more decay. Chosen on
# the validation parts of BreastMNIST and PneumoniaMNIST, for AUC-M by PESG (results/pretrained-cpu.md).
FROZEN_ADAMW = AdamWSpec(lr=0.0005, weight_decay=1.0)
FROZEN_LR, FROZEN_DECAY = 0.3, 1.0  # of the last stage: a share of its usual rate, and the decay


@dataclass(frozen=True, kw_only=True)
class Start:
    """The network with its weights, what these expect of images in [0, 1], and whether all but the last layer stays."""

    model: TimmSpec
    mean: tuple[float, ...]
    std: tuple[float, ...]
    frozen: bool

    @property
    def kind(self) -> Literal["frozen", "trained"]:
        return "frozen" if self.frozen else "trained"

    @property
    def adamw(self) -> AdamWSpec:
        """Of the cross-entropy stage."""
        return FROZEN_ADAMW if self.frozen else AdamWSpec(lr=ADAMW_LR)

    def backbone_rate(self, optimizer: OptimizerSpec | None = None) -> float:
        """Of a stage with this optimizer. One that takes turns has one rate for all."""
        return 1.0 if self.frozen or getattr(optimizer, "takes_turns", False) else SLOWER

    def last_stage(self, usual: LastStage) -> LastStage:
        """The usual last stage with rates for these layers."""
        optimizer: Any = usual.optimizer
        if self.frozen:
            optimizer = replace(optimizer, lr=FROZEN_LR * optimizer.lr, weight_decay=FROZEN_DECAY)
        facts: dict[str, Fact] = {**self._facts, "backbone": self.backbone_rate(optimizer)}
        for one in usual.decisions:
            if one.name == "learning rates":
                facts |= one.rests_on
        both = Decision(
            name="learning rates",
            value=(self.adamw.lr, optimizer.lr),
            reason=(self.kind, "sigmoid"),
            rests_on=facts,
        )
        return LastStage(usual.objective, optimizer, replaced(usual.decisions, both))

    def rate(self) -> Decision:
        """Of the cross-entropy stage, where it is alone."""
        return Decision(name="learning rate", value=self.adamw.lr, reason=(self.kind,), rests_on=self._facts)

    @property
    def _facts(self) -> dict[str, Fact]:
        return {"backbone": self.backbone_rate(), "decay": self.adamw.weight_decay}

    def decisions(self) -> list[Decision]:
        facts: dict[str, Fact] = {"mean": self.mean, "std": self.std}
        return [
            Decision(name="inputs", value="as the weights expect", reason=("expected",), rests_on=facts),
            Decision(name="backbone", value=self.kind, reason=(self.kind,)),
        ]


def starting_model(options: PlanOptions) -> TimmSpec | None:
    """The network that the options ask for with pretrained weights; None where it is to start at random."""
    asked = options.pretrained
    if not asked:
        return None
    if isinstance(asked, str) and asked.endswith(FILE):
        if options.model is None:
            raise ValueError(
                f"pretrained {asked!r} is a file of weights: name its network too, with --model NAME, or with model "
                "under [plan] of a settings file."
            )
        return TimmSpec(name=_published(options.model), weights=asked)
    name = SHORT.get(asked, asked) if isinstance(asked, str) else None
    model = None if options.model is None else SHORT.get(options.model, options.model)
    if name is not None and model is not None and name != model:
        raise ValueError(f"pretrained names the network {asked}, and model {options.model}: leave one of them out.")
    return TimmSpec(name=_published(name or model or DEFAULT), pretrained=True)


def plan_start(shape: tuple[int, ...], options: PlanOptions, device_kind: DeviceKind) -> Start | None:
    """shape: of one input."""
    model = starting_model(options)
    if model is None:
        return None
    if len(shape) != 3:
        raise ValueError("pretrained weights are for images, and these are numbers: leave pretrained out.")
    mean, std = expected_inputs(model.name, channels=shape[2])
    frozen = device_kind == "cpu" if options.backbone == "auto" else options.backbone == "frozen"
    if frozen and options.tta:
        raise ValueError("tta needs augmented copies, and a frozen backbone sees each image once: leave out tta, or "
                         "set backbone trained.")  # fmt: skip
    if frozen and options.first_stage == "contrastive":
        raise ValueError("a contrastive first stage trains the backbone, which is frozen: leave first_stage out.")
    return Start(model=model, mean=mean, std=std, frozen=frozen)


def weights_decision(model: TimmSpec, found: FoundWeights) -> Decision:
    """Where the weights come from, and their licence: said of what lies on this machine, and so no part of a plan."""
    facts: dict[str, Fact] = {
        "source": found.source,
        "origin": found.origin,
        "licence": found.licence or "unknown",
        "file": found.file.name,
    }
    reason = ("file", "own licence") if found.source == "file" else (found.source, "licence")
    return Decision(name="weights", value=model.name, reason=reason, rests_on=facts)


def _published(name: str) -> str:
    if name in NOT_PUBLISHED:
        raise ValueError(f"no weights are published for {name}: leave out the model or pretrained, or name another "
                         "network of timm, such as densenet121.")  # fmt: skip
    return name


def network_decision(start: Start, options: PlanOptions) -> Decision:
    """By name."""
    asked = options.model is not None or isinstance(options.pretrained, str)
    return Decision(name="network", value=start.model.name, reason=ASKED if asked else ("pretrained",))
