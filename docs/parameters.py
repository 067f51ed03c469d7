"""Griffe extension for the API pages: what a docstring leaves unexplained is taken from what it names in backticks.

An option is thus explained once: `AUCMargin` names `AUCMarginLoss`, and its table has the texts from there.
"""

import re
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import griffe

SECTION = re.compile(r"^(?:Args|Attributes):\n(?: +\S.*\n?)+", re.MULTILINE)


def listed(text: str) -> dict[str, str]:
    """What the docstring itself says of each parameter, with the lines that go on."""
    section = SECTION.search(text)
    return dict(re.findall(r"^    (\w+): (\S.*(?:\n {5,}.*)*)", section[0], re.MULTILINE)) if section else {}


def explained(text: str, parameters: Iterable[str], docstring_of: Callable[[str], str]) -> dict[str, str]:
    """What is said of each parameter, by the docstring or else by the first name in it that explains it."""
    said = ChainMap(listed(text), *(listed(docstring_of(name)) for name in re.findall(r"`(\w+)`", text)))
    return {parameter: said[parameter] for parameter in parameters if parameter in said}


def with_table(text: str, table: dict[str, str]) -> str:
    """The docstring with this table as its section of parameters."""
    head, *rest = re.split(r"\n\n(?=(?:Returns|Raises|Examples):\n)", SECTION.sub("", text).rstrip(), maxsplit=1)
    lines = "\n".join(f"    {parameter}: {said}" for parameter, said in table.items())
    return "\n\n".join([head.rstrip(), f"Args:\n{lines}", *rest])


def docstring_in(scope: Mapping[str, Any], name: str) -> str:
    """The docstring of a name; none where it is of a package that is not read."""
    with suppress(KeyError, AttributeError, griffe.AliasResolutionError):
        return scope[name].docstring.value
    return ""


class SharedParameters(griffe.Extension):
    """Completes the docstrings of a package's classes and functions."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        self._complete(pkg, pkg.members)

    def _complete(self, within: griffe.Module | griffe.Class, public: Mapping[str, Any]) -> None:
        for member in within.members.values():
            if member.is_alias or not isinstance(member, griffe.Module | griffe.Class | griffe.Function):
                continue
            if isinstance(member, griffe.Module | griffe.Class):
                self._complete(member, public)
            if not isinstance(member, griffe.Module) and member.docstring:
                text, scope = member.docstring.value, {**public, **member.module.members}
                table = explained(text, [each.name for each in member.parameters], partial(docstring_in, scope))
                if len(table) > len(listed(text)):
                    member.docstring.value = with_table(text, table)
