"""Griffe extension for the API pages: what a docstring leaves unexplained is taken from what it names in backticks.

An option is thus explained once: `AUCMargin` names `AUCMarginLoss`, and its table has the texts from there.
"""

import re
from collections import ChainMap
from collections.abc import Callable, Iterable
from contextlib import suppress
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


class SharedParameters(griffe.Extension):
    """Completes the docstrings of a package's classes and functions."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        def docstring_of(name: str, module: griffe.Module) -> str:
            found = module.members.get(name) or pkg.members.get(name)
            with suppress(griffe.AliasResolutionError):  # of a package that is not read
                return found.docstring.value if found is not None and found.docstring else ""
            return ""

        def complete(within: griffe.Module | griffe.Class) -> None:
            for member in [member for member in within.members.values() if not member.is_alias]:
                if isinstance(member, griffe.Module | griffe.Class):
                    complete(member)
                if isinstance(member, griffe.Class | griffe.Function) and member.docstring:
                    text, module = member.docstring.value, member.module
                    names = [parameter.name for parameter in member.parameters if parameter.name not in ("self", "cls")]
                    table = explained(text, names, lambda name: docstring_of(name, module))  # noqa: B023
                    if len(table) > len(listed(text)):
                        member.docstring.value = with_table(text, table)

        complete(pkg)
