"""`import deepauc` stays light, and the public names are the ones people rely on."""

import json
import subprocess
import sys

import pytest

import deepauc

HEAVY = ["pandas", "sklearn", "matplotlib", "timm", "torchvision", "scipy.stats", "triton.language", "typer", "rich"]

PROGRAM = """
import json, sys
import deepauc
assert "torch" not in sys.modules  # `deepauc --help` is not to wait for it
import torch
before = set(sys.modules)
from deepauc import *
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
        assert getattr(deepauc, name).__name__ == name
    assert dir(deepauc) == sorted(deepauc.__all__)
    with pytest.raises(AttributeError, match="no attribute 'AUCMargin'"):
        deepauc.AUCMargin  # noqa: B018
