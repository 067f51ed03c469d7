"""The examples in the docstrings of the metrics give what they show, and every module with a public metric has one."""

import doctest
import importlib
from pathlib import Path

import pytest

import deepauc

MODULES = sorted(path.stem for path in (Path(deepauc.__file__).parent / "metrics").glob("[a-z]*.py"))
PUBLIC = {getattr(deepauc, name).__module__ for name in deepauc.__all__}


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    module = importlib.import_module(f"deepauc.metrics.{name}")
    found = doctest.testmod(module)
    assert not found.failed
    assert found.attempted or module.__name__ not in PUBLIC
