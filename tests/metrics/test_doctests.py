"""The examples in the docstrings of the metrics give what they show, and every module of metrics has one."""

import doctest
import importlib
from pathlib import Path

import pytest

import deepauc.metrics

MODULES = sorted(path.stem for path in Path(deepauc.metrics.__path__[0]).glob("[a-z]*.py"))
WITHOUT = {"mean_interval"}  # of seeds, for studies


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    module = importlib.import_module(f"deepauc.metrics.{name}")
    found = doctest.testmod(module)
    assert not found.failed
    assert (found.attempted > 0) == (name not in WITHOUT)
