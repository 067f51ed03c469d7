"""What every objective that a recipe may name has to keep to, whoever adds the next one."""

import re
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Literal, get_args, get_origin, get_type_hints

import pytest
import torch

from deepauc.data.augment.batch import Augment
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.average_precision import AveragePrecision
from deepauc.objectives.baselines import CrossEntropy, Focal
from deepauc.objectives.pairwise import PairwiseAUC
from deepauc.objectives.partial_auc import PartialAUC
from deepauc.objectives.saddle_loss import SaddleLoss
from deepauc.optim.pdsca import PDSCASpec
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import AdamSpec, AdamWSpec, SGDSpec
from deepauc.training.engine.fast.forward import value_key
from deepauc.training.plain import OBJECTIVES
from deepauc.training.recipe import Bound, Stage, ViewObjectiveSpec

PRIOR = (0.3, 0.2)
OPTIONS = [(cls, option.name) for cls in OBJECTIVES for option in fields(cls) if option.init]


def stage(objective):
    views = objective.views if isinstance(objective, ViewObjectiveSpec) else 1
    return Stage(objective=objective, optimizer=SGDSpec(), epochs=1, views=views, augment=Augment())


def built(objective, prior=PRIOR):
    return stage(objective).build_objective(prior=prior, num_rows=12)


def value(objective, scores, labels, prior=PRIOR):
    index = (torch.arange(len(scores)),) if stage(objective).needs_index else ()
    return built(objective, prior)(scores, labels, *index)


def other_value(cls, name):
    """A valid value of this option that is not its default."""
    hint, value = get_type_hints(cls)[name], getattr(cls(), name)
    if get_origin(hint) is Literal:
        return next(one for one in get_args(hint) if one != value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    return 2.0 if value is None else value / 2 + 0.15


def key(objective):
    trainer = SimpleNamespace(
        objective=built(objective),
        stream=SimpleNamespace(prior=PRIOR, batch_size=8),
        device=torch.device("cpu"),
        task=SimpleNamespace(source=SimpleNamespace(shape=(4, 4, 1)), num_labels=2),
    )
    return value_key(stage(objective), trainer)


@pytest.mark.parametrize(("cls", "name"), OPTIONS, ids=lambda one: getattr(one, "__name__", one))
def test_losses_that_differ_in_one_option_do_not_share_a_compiled_program(cls, name, monkeypatch):
    """The fast engine tells losses apart by their spec, whatever they print."""
    changed = replace(cls(), **{name: other_value(cls, name)})
    assert changed != cls()
    loss_fn = built(changed)
    if not isinstance(loss_fn, SaddleLoss):  # margin and prior are tensors that the program is given
        assert repr(loss_fn) != repr(built(cls()))  # who prints a loss sees all its options
        monkeypatch.setattr(type(loss_fn), "extra_repr", lambda _: "")
        assert repr(loss_fn) == repr(built(cls()))
        assert key(changed) != key(cls())
        assert key(cls()) == key(cls())


@pytest.mark.parametrize("cls", [one for one in OBJECTIVES if not isinstance(one(), ViewObjectiveSpec)])
def test_a_label_is_judged_by_its_own_entries(cls):
    """Scores (N, L): the mean over labels, so that no pair is made of two labels' scores."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(12, 2, generator=generator, dtype=torch.float64)
    labels = (torch.rand(12, 2, generator=generator) < 0.5).double()
    both = value(cls(), scores, labels)
    each = [value(cls(), scores[:, j : j + 1], labels[:, j : j + 1], PRIOR[j : j + 1]) for j in range(2)]
    torch.testing.assert_close(both, torch.stack(each).mean())


@pytest.mark.parametrize("cls", OBJECTIVES)
def test_it_says_what_goes_before_it(cls):
    assert cls().bound in set(get_args(Bound)) - {"auto"}
    assert isinstance(cls().soft_labels, bool)


@pytest.mark.parametrize(
    ("cls", "options", "message"),
    [
        (AUCMargin, {"margin": 0.0}, "margin must be positive and finite, not 0.0."),
        (AUCMargin, {"margin": (0.5, -1.0)}, "margin must be positive and finite, not (0.5, -1.0)."),
        (PairwiseAUC, {"surrogate": "cube"}, "surrogate must be one of square, squared_hinge, hinge, logistic"),
        (PairwiseAUC, {"margin": -1.0}, "margin must be finite and not negative"),
        (PartialAUC, {"surrogate": "cube"}, "surrogate must be one of square, squared_hinge, hinge, logistic"),
        (PartialAUC, {"max_fpr": 0.0}, "it must lie in (0, 1]"),
        (AveragePrecision, {"memory": 0.0}, "above 0 and at most 1"),
        (CrossEntropy, {"label_smoothing": 1.0}, "label_smoothing must lie in [0, 1)"),
        (CrossEntropy, {"pos_weight": 0.0}, "pos_weight must be one positive number"),
        (CrossEntropy, {"pos_weight": 2.0, "prior_weights": True}, "prior_weights and pos_weight both weigh"),
        (CrossEntropy, {"scale": 0.0}, "scale must be positive and finite"),
        (Focal, {"alpha": 2.0}, "alpha must lie in [0, 1]"),
        (Focal, {"gamma": -1.0}, "gamma must be finite and not negative"),
        (SGDSpec, {"lr": -0.1}, "lr must be finite and not negative, not -0.1."),
        (PESGSpec, {"momentum": 1.0}, "momentum must be at least 0 and below 1, not 1.0."),
        (PESGSpec, {"gamma": float("nan")}, "gamma must be finite and not negative, not nan."),
        (AdamSpec, {"betas": (0.9, 1.0)}, "betas must be at least 0 and below 1, not (0.9, 1.0)."),
        (AdamWSpec, {"weight_decay": -1.0}, "weight_decay must be finite and not negative, not -1.0."),
        (PDSCASpec, {"reference": "origin"}, "reference must be 'start' or 'zero', not 'origin'."),
        (PDSCASpec, {"lr": float("inf")}, "lr must be finite and not negative, not inf."),
    ],
)
def test_a_bad_value_is_refused_where_it_is_written(cls, options, message):
    """Not when the stage begins, which may be hours later."""
    with pytest.raises(ValueError, match=re.escape(message)):
        cls(**options)
