"""The tables of the API pages: each parameter is explained, by the docstring or by what it names."""

import inspect
import pkgutil
import re
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import deepauc

DOCS = Path(__file__).parents[2] / "docs"
METHODS = [
    *(f"deepauc.Model.{name}" for name in ("predict", "evaluate", "export")),
    *(f"deepauc.{name}.forward" for name in deepauc.__all__ if name.endswith("Loss")),
    *("deepauc.AUCMarginLoss.diagnose", "deepauc.integrations.sklearn.DeepAUCClassifier.fit"),
]
PAGES = "".join(page.read_text(encoding="utf-8") for page in sorted((DOCS / "api").glob("*.md")))
NAMES = [*re.findall(r"^::: (deepauc[\w.]*)$", PAGES, re.MULTILINE), *METHODS]


def docstring(public: object) -> str:
    return inspect.getdoc(public) if getattr(public, "__doc__", None) else ""


@pytest.fixture(scope="module")
def tables():
    """The functions that fill the tables of the site, without griffe, which builds it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "griffe", SimpleNamespace(Extension=object, Module=object, Class=object))
        yield SimpleNamespace(**runpy.run_path(str(DOCS / "parameters.py")))


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_is_explained(name, tables):
    public = pkgutil.resolve_name(name)
    known = vars(deepauc) | vars(sys.modules[public.__module__])
    wanted = [
        parameter.name
        for parameter in inspect.signature(public).parameters.values()
        if parameter.name != "self" and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    text = docstring(public)
    explained = tables.explained(text, wanted, lambda named: docstring(known.get(named)))
    assert list(explained) == wanted
    assert list(tables.listed(text)) == [parameter for parameter in wanted if parameter in tables.listed(text)]


def test_a_table_takes_over_what_the_docstring_lacks(tables):
    text = "Mean of `other`.\n\nArgs:\n    b: Its own.\n\nReturns:\n    A number."
    other = "Args:\n    a: First,\n        and on.\n    b: Second."
    table = tables.explained(text, ["a", "b", "c"], {"other": other}.__getitem__)
    assert table == {"a": "First,\n        and on.", "b": "Its own."}
    assert tables.with_table(text, table) == (
        "Mean of `other`.\n\nArgs:\n    a: First,\n        and on.\n    b: Its own.\n\nReturns:\n    A number."
    )
