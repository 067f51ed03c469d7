"""What the hashes of recipes and runs rest on: the name and the defaults that each spec had when it was introduced.

A run is known by the hash of its recipe, and a hash leaves out every option at its default. If it went by the
constructors, a new default or a new class name would give all earlier runs another name, or one name to two different
runs. So nothing here ever changes. What may be added:

- a new option, with the default it is introduced with (the one that leaves earlier runs as they were);
- a new spec, with all its options;
- a renamed class, in RENAMED; its entry in FROZEN keeps the first name.
"""

from __future__ import annotations

from typing import Any, Final

REQUIRED: Final = object()  # an option without a default: always part of the hash

# By first name and option. A spec stands as its plain data.
FROZEN: Final[dict[str, dict[str, Any]]] = {
    "Recipe": {
        "model": REQUIRED,
        "stages": REQUIRED,
        "guard": False,
        "test_curve": False,
        "evaluate_every": 1,
        "alpha_curve": False,
        "deterministic": False,
        "tta": 0,
        "standardise": True,
        "watch": False,
        "input_mean": None,
        "input_std": None,
        "frozen": False,
        "keep_stages": False,
    },
    "Stage": {
        "objective": REQUIRED,
        "optimizer": REQUIRED,
        "epochs": None,
        "iterations": None,
        "batch_size": 128,
        "positives_per_batch": None,
        "schedule": {"type": "Constant"},
        "augment": None,
        "views": 1,
        "projection": (128, 128),
        "bound": "auto",
        "reset_classifier": False,
        "start_from": None,
        "place": None,
        "uncertain": None,
        "gradient_clip": None,
        "ema": None,
        "accumulate": 1,
        "precision": "float32",
        "keep": "last",
        "patience": None,
        "backbone_rate": 1.0,
        "graded_rates": False,
        "frozen_epochs": 0,
        "drop_rate": None,
        "images_per_bag": None,
    },
    "Augment": {
        "flip": True,
        "vertical_flip": False,
        "crop_padding": 4,
        "rotation": 0.0,
        "translation": 0.0,
        "scale": (1.0, 1.0),
        "shear": 0.0,
        "resized_crop": (1.0, 1.0),
        "brightness": 0.0,
        "contrast": 0.0,
        "saturation": 0.0,
        "hue": 0.0,
        "greyscale": 0.0,
        "coarse_dropout": 0,
        "hole_size": 0.2,
        "mixup": 0.0,
        "fill": 0.0,
        "enlarged_crop": 1.0,
    },
    "AUCMargin": {"margin": 1.0, "normalise": True, "constrain_alpha": True, "soft_labels": False},
    "AUCSquare": {"normalise": True, "soft_labels": False},
    "CrossEntropy": {
        "label_smoothing": 0.0,
        "pos_weight": None,
        "soft_labels": False,
        "prior_weights": False,
        "scale": 1.0,
    },
    "Focal": {"alpha": 0.25, "gamma": 2.0, "soft_labels": False, "scale": 1.0},
    "Pairwise": {"surrogate": "squared_hinge", "margin": 1.0, "soft_labels": False},
    "PartialAUC": {"max_fpr": 1.0, "min_tpr": 0.0, "surrogate": "squared_hinge", "margin": 1.0},
    "AveragePrecision": {"margin": 1.0, "memory": 0.9},
    "Contrastive": {"temperature": 0.2},
    "SupervisedContrastive": {"temperature": 0.2, "classes": "both"},
    "VICReg": {"invariance": 25.0, "variance": 25.0, "covariance": 1.0},
    "PolyView": {"temperature": 0.2, "views": 4},
    "PESGSpec": {
        "lr": 0.1,
        "gamma": 0.002,
        "weight_decay": 0.0,
        "momentum": 0.0,
        "reference": "start",
        "alpha_step": "gradient",
        "clip_value": None,
        "decay_norms": True,
    },
    "PDSCASpec": {
        "lr": 0.1,
        "inner_lr": 0.1,
        "beta0": 0.9,
        "beta1": 0.9,
        "gamma": 0.002,
        "weight_decay": 0.0,
        "momentum": 0.0,
        "reference": "start",
        "decay_norms": True,
    },
    "SGDSpec": {
        "lr": 0.1,
        "momentum": 0.9,
        "weight_decay": 0.0,
        "nesterov": False,
        "clip_value": None,
        "decay_norms": True,
    },
    "AdamSpec": {"lr": 0.001, "betas": (0.9, 0.999), "weight_decay": 0.0, "decay_norms": True},
    "AdamWSpec": {"lr": 0.001, "betas": (0.9, 0.999), "weight_decay": 0.01, "decay_norms": True},
    "Constant": {},
    "Steps": {"milestones": REQUIRED, "factor_each": 0.1, "unit": "epochs"},
    "Cosine": {"warmup": 0, "floor": 0.0},
    "Cyclic": {"top": 8.0, "period": 8},
    "ResNet20Spec": {"activation": "elu", "start": "he", "norm_momentum": 0.1, "drop_rate": 0.0},
    "TimmSpec": {
        "name": "densenet121",
        "activation": None,
        "small_stem": False,
        "pretrained": False,
        "weights": None,
        "drop_rate": 0.0,
        "drop_path_rate": 0.0,
        "image_size": None,
        "proj_drop_rate": 0.0,
        "norm_momentum": None,
        "start": None,
    },
    "FactorySpec": {"factory": REQUIRED, "arguments": {}},
    "MLPSpec": {"hidden": (256, 128), "activation": "elu"},
    "SmallCNNSpec": {"widths": (32, 64, 128), "activation": "elu", "drop_rate": 0.0},
    "ThumbnailSpec": {"size": 16, "grey": False},
    "BagSpec": {"image": REQUIRED, "pooling": "smooth-max", "tau": 1.0, "attention_width": 64},
    "AverageSpec": {"members": REQUIRED},
    "OnFeaturesSpec": {"member": REQUIRED, "inputs": REQUIRED, "features": REQUIRED, "start": 0},
    "OnPicturesSpec": {"member": REQUIRED, "shape": REQUIRED},
}

# First name -> the name of the class today. Records, bundles and settings files may have either.
RENAMED: Final[dict[str, str]] = {"Pairwise": "PairwiseAUC"}


def first_name(name: str) -> str:
    """What a class of this name was called when it was introduced."""
    return next((first for first, present in RENAMED.items() if present == name), name)


def names_of(classes: tuple[type, ...]) -> dict[str, type]:
    """These classes by all their names, today's first."""
    today = {cls.__name__: cls for cls in classes}
    return today | {first: today[present] for first, present in RENAMED.items() if present in today}
