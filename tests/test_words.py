"""What people read: no path of this repository, which an installed package does not have, and never `1 rows`.

What the commands print is looked at wherever a test calls one (`deepauc` in cli/conftest.py).
"""

import ast
import re
import string
from pathlib import Path

import pytest

import deepauc
from deepauc.training.plan.wording import COMMON, SENTENCES, _Formatter

PACKAGE = Path(deepauc.__file__).parent
OURS = re.compile(r"(?<![\w/.])(?:results|docs|experiments|benchmarks|reliability|examples|tests)/[\w*{]")
FACTS = {
    "~sum": [31, 11], "~time": 40.0, "~pace": [0.2], "~shares": {"train": 1.0}, "~size_of": (8, 8), "~or": ["--tta"],
    "~numbers": [0.5], "~trials": [(1.0, 0.1, 0.9)],
}  # fmt: skip
LIMITS = {"most": 16, "least": 16, "side": 32, "below": 200}  # never 1


def texts(source: str, *, with_docstrings: bool) -> list[str]:
    """All strings of a file, those with fields as one; docstrings are for who reads the source, but for a command's."""
    tree, skipped = ast.parse(source), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped |= set(map(id, node.values))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and not with_docstrings:
            skipped.add(id(node.value))
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(str(one.value) if isinstance(one, ast.Constant) else "{}" for one in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            found.append(node.value)
    return found


@pytest.mark.parametrize(("text", "ours"), [("see docs/speed.md", True), ("--results DIR", False), ("a/docs/b", False)])
def test_a_path_of_the_repository_would_be_seen(text, ours):
    source = f'def f(x):\n    """docs/a.md"""\n    raise ValueError(f"{{x}} {text}")'
    assert any(map(OURS.search, texts(source, with_docstrings=False))) is ours


def test_no_text_names_a_path_of_the_repository():
    found = []
    for path in (path for suffix in ("py", "j2", "js", "html") for path in sorted(PACKAGE.rglob(f"*.{suffix}"))):
        source = path.read_text(encoding="utf-8")
        if OURS.search(source):  # in a comment, or where it is read
            shown = texts(source, with_docstrings=path.parent.name == "cli") if path.suffix == ".py" else [source]
            found += [(path.name, one) for one in shown if OURS.search(one)]
    assert found == []


@pytest.mark.parametrize("name", SENTENCES)
def test_one_of_anything_is_singular_in_the_plan(name, one_as_many):
    for sentence in {**COMMON, **SENTENCES[name]}.values():
        facts = {}
        for _, field, spec, _ in string.Formatter().parse(sentence):
            if field is not None:
                facts[field] = FACTS.get(spec or "", LIMITS.get(field, 1))
        assert not one_as_many(_Formatter().vformat(sentence, (), facts)), sentence


@pytest.mark.parametrize("text", ["1 rows", "only 1 labelled rows", "(1 images)"])
def test_one_as_many_would_be_seen(text, one_as_many):
    assert one_as_many(text)


@pytest.mark.parametrize("text", ["1 row", "11 rows", "0.1 rows", "stage 1 of 2", "1,001 rows", "rows: 1. Images: 2"])
def test_a_right_count_is_let_pass(text, one_as_many):
    assert not one_as_many(text)
