"""The paper's four losses as methods of a study, and the two named recipes of its benchmark tables.

`literal`: Theorem 1 and D1 to D4 as printed. F_M with its factor p(1 - p), BSN before the AUC losses, PESG without
momentum at lr 0.1, weight decay 1e-4, batches of 128, 100 epochs, lr divided by ten at 50 % and 75 %, where PESG's
reference is renewed; CE and focal by SGD without momentum at the same lr. Grids as printed: m and gamma, focal's alpha
and gamma.

`paper`: the same with the loss divided by p(1 - p), and each loss with a learning rate of its own: 12 configurations
drawn by seed 14 from the printed grid x lr {.01, .03, .1, .3}, for CE and focal x momentum {0, .9} as well. CE has
eight such configurations in all, and gets them all.

What the paper leaves open, and what is done here: augmentation (random crop with a padding of 4 pixels, flips), the
stem of DenseNet121 for 32 pixels (its own, that of ImageNet), the factor of the decay (10): all in the records.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from deepauc.data.augment.batch import Augment
from deepauc.models.build import FactorySpec, ModelSpec, ResNet20Spec, SmallCNNSpec, TimmSpec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.auc_square import AUCSquare
from deepauc.objectives.baselines import CrossEntropy, Focal
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import SGDSpec
from deepauc.studies.grid import Grid, product, sample
from deepauc.training.recipe import Bound, ObjectiveSpec, Precision, Recipe, Stage
from deepauc.training.schedule import Steps

Network = Literal["R", "D", "S", "B", "H"]
Loss = Literal["ce", "focal", "auc_s", "auc_m"]

MARGINS = (0.1, 0.3, 0.5, 0.7, 1.0)
GAMMAS = (1 / 100, 1 / 300, 1 / 500, 1 / 700, 1 / 1000)
FOCAL_ALPHAS = (0.25, 0.5, 0.75)
FOCAL_GAMMAS = (1.0, 2.0, 5.0)
LEARNING_RATES = (0.01, 0.03, 0.1, 0.3)
MOMENTA = (0.0, 0.9)
DRAWN, DRAW_SEED = 12, 14
_SMALL_RESNET18 = "experiments.search.networks:small_resnet18"


def network_of(network: Network, *, drop_rate: float = 0.0) -> ModelSpec:
    """ResNet20 or DenseNet121, both with ELU (D2). None of the paper's: S, small, for a CPU; ResNet18 for small images,
    B, and H, half as wide. drop_rate: before the classifier, in DenseNet121 behind every dense layer."""
    known: dict[str, ModelSpec] = {
        "R": ResNet20Spec(drop_rate=drop_rate),
        "D": TimmSpec(name="densenet121", activation="elu", proj_drop_rate=drop_rate),
        "S": SmallCNNSpec(widths=(16, 32), drop_rate=drop_rate),
        "B": FactorySpec(factory=_SMALL_RESNET18, arguments={"width": 64, "drop_rate": drop_rate}),
        "H": FactorySpec(factory=_SMALL_RESNET18, arguments={"width": 32, "drop_rate": drop_rate}),
    }
    if network not in known:
        raise ValueError(f"network must be one of {', '.join(map(repr, known))}, not {network!r}.")
    return known[network]


def reading(
    *,
    loss: Loss,
    network: Network = "R",
    lr: float = 0.1,
    momentum: float = 0.0,
    weight_decay: float = 1e-4,
    epochs: int = 100,
    batch_size: int = 128,
    augmented: bool = True,
    precision: Precision = "bfloat16",
    focal_alpha: float = 0.25,
    focal_gamma: float = 2.0,
    margin: float = 1.0,
    gamma: float = 1 / 500,
    normalise: bool = True,
    constrain_alpha: bool = True,
    bound: Bound = "l2",
) -> Recipe:
    """CE and alpha-balanced focal loss by SGD; the AUC losses by PESG, without momentum.

    From margin on the arguments are those of the AUC losses; bound "l2" is the paper's batch score normalisation.
    """
    objectives: dict[Loss, ObjectiveSpec] = {
        "ce": CrossEntropy(),
        "focal": Focal(alpha=focal_alpha, gamma=focal_gamma),
        "auc_s": AUCSquare(normalise=normalise),
        "auc_m": AUCMargin(margin=margin, normalise=normalise, constrain_alpha=constrain_alpha),
    }
    by_pesg = loss in ("auc_s", "auc_m")
    stage = Stage(
        objective=objectives[loss],
        optimizer=PESGSpec(lr=lr, gamma=gamma, weight_decay=weight_decay)
        if by_pesg
        else SGDSpec(lr=lr, momentum=momentum, weight_decay=weight_decay),
        epochs=epochs,
        batch_size=batch_size,
        schedule=Steps(milestones=tuple(sorted({m for m in (epochs // 2, 3 * epochs // 4) if m >= 1}))),
        augment=Augment() if augmented else None,
        bound=bound if by_pesg else "auto",
        precision=precision,
    )
    return Recipe(model=network_of(network), stages=(stage,))


def named(name: str, recipe: Callable[..., Recipe], *unused: str, **arguments: Any) -> Callable[..., Recipe]:
    """The function with these arguments as its defaults, under a name of its own, which records keep.

    unused: arguments that it has no use for; a study then refuses them, and `--set` leaves it out.
    """
    method = partial(recipe, **arguments)
    signature = inspect.signature(method)
    kept = [parameter for parameter in signature.parameters.values() if parameter.name not in unused]
    vars(method).update(__name__=name, __signature__=signature.replace(parameters=kept))
    return method


_FOCAL, _AUC = ("focal_alpha", "focal_gamma"), ("gamma", "normalise", "bound")
_UNUSED = {
    "ce": (*_FOCAL, *_AUC, "margin", "constrain_alpha"),
    "focal": (*_AUC, "margin", "constrain_alpha"),
    "auc_s": (*_FOCAL, "momentum", "margin", "constrain_alpha"),
    "auc_m": (*_FOCAL, "momentum"),
}
METHODS = {loss: named(loss, reading, "loss", *unused, loss=loss) for loss, unused in _UNUSED.items()}
TITLES = {"ce": "CE", "focal": "Focal", "auc_s": "AUC-S", "auc_m": "AUC-M"}

_PRINTED: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "ce": {},
    "focal": {"focal_alpha": FOCAL_ALPHAS, "focal_gamma": FOCAL_GAMMAS},
    "auc_s": {"gamma": GAMMAS},
    "auc_m": {"margin": MARGINS, "gamma": GAMMAS},
}


@dataclass(frozen=True, kw_only=True)
class NamedRecipe:
    """What the four methods have in common in a table: arguments that are fixed, and the grid of each.

    rates: the axes of each that belong to the network as much as to the loss: learning rate and momentum.
    """

    name: str
    fixed: Mapping[str, Mapping[str, Any]]
    grids: Mapping[str, Grid]
    rates: Mapping[str, Mapping[str, tuple[float, ...]]]

    def printed(self, loss: str) -> tuple[str, ...]:
        """Axes of the grid that belong to the loss alone."""
        return tuple(axis for axis in self.grids[loss].axes if axis not in self.rates[loss])

    def rate_grid(self, loss: str) -> Grid:
        """The learning rates (and momenta) alone, in an order drawn by the same seed."""
        return sample(self.rates[loss], n=DRAWN, seed=DRAW_SEED) if self.rates[loss] else product({})


_RATES = {
    loss: {"lr": LEARNING_RATES, **({"momentum": MOMENTA} if loss in ("ce", "focal") else {})} for loss in _PRINTED
}

LITERAL = NamedRecipe(
    name="literal",
    fixed={"ce": {}, "focal": {}, "auc_s": {"normalise": False}, "auc_m": {"normalise": False}},
    grids={loss: product(axes) for loss, axes in _PRINTED.items()},
    rates={loss: {} for loss in _PRINTED},
)
PAPER = NamedRecipe(
    name="paper",
    fixed={"ce": {}, "focal": {}, "auc_s": {"normalise": True}, "auc_m": {"normalise": True}},
    grids={loss: sample({**axes, **_RATES[loss]}, n=DRAWN, seed=DRAW_SEED) for loss, axes in _PRINTED.items()},
    rates=_RATES,
)
RECIPES = {recipe.name: recipe for recipe in (LITERAL, PAPER)}
