"""`import deepauc` stays light, and the public names are the ones people rely on."""

import json
import subprocess
import sys

import deepauc
from deepauc.training.plain import MODELS, OBJECTIVES, OPTIMIZERS, SPECS

HEAVY = ["pandas", "sklearn", "matplotlib", "timm", "torchvision", "scipy.stats", "triton.language", "typer", "rich"]

PROGRAM = """
import json, sys
import torch
before = set(sys.modules)
import deepauc
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_import_pulls_in_nothing_heavy():
    out = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    new = set(json.loads(out))
    assert "deepauc.optim.pesg" in new  # the program really looked
    assert not [name for name in HEAVY if name in new]


def test_public_names_are_listed_and_there():
    assert sorted(deepauc.__all__, key=str.lower) == sorted(set(deepauc.__all__), key=str.lower)
    for name in deepauc.__all__:
        assert getattr(deepauc, name) is not None


def test_every_spec_of_a_recipe_is_public():
    assert {cls.__name__ for cls in SPECS} <= set(deepauc.__all__)


def test_specs_follow_one_scheme():
    """A loss without the word Loss is its spec; an optimizer's or a network's ends in Spec."""
    for spec in OBJECTIVES:
        assert f"{spec.__name__}Loss" in deepauc.__all__
    for spec in (*OPTIMIZERS, *MODELS):
        assert spec.__name__.endswith("Spec")
