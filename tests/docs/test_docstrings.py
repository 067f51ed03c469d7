"""What the API pages show as tables of parameters: each docstring lists its parameters, all of them, in their order."""

import inspect
import re

import pytest

import deepauc

LISTED = [
    *(deepauc.Stage, deepauc.Recipe, deepauc.PESG, deepauc.auroc, deepauc.auroc_interval, deepauc.compare_auroc),
    *(getattr(deepauc, name) for name in deepauc.__all__ if name.endswith("Loss")),
]


@pytest.mark.parametrize("public", LISTED, ids=lambda public: public.__name__)
def test_parameters_are_listed(public):
    text = inspect.getdoc(public)
    section = text.split("\nArgs:\n", 1)[1].split("\n\n", 1)[0]
    assert re.findall(r"^    (\w+): \S", section, re.MULTILINE) == list(inspect.signature(public).parameters)
