"""The document as one html file that needs nothing else: style, script and figures are inside."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from importlib import resources
from importlib.metadata import version
from typing import Any

from deepauc.reporting.document.blocks import Block, DataTable, Document


def html_page(document: Document, svg: Mapping[str, str]) -> str:
    """The page; `svg` holds the figures by name.

    Text is escaped by jinja2, text in figures was when they were serialised. Beyond that the page's own policy allows
    no script but the one whose hash it names, and no connection at all.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    templates = resources.files("deepauc.reporting") / "templates"
    script = (templates / "report.js").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, finalize=_together)
    template = environment.from_string((templates / "report.html.j2").read_text(encoding="utf-8"))
    return template.render(
        document=document,
        style=Markup((templates / "report.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        kind_of=_kind_of,
        numeric=_numeric_columns,
        svg_of=lambda picture: Markup(svg[picture.name]),
        version=version("deepauc"),
    )


def _together(value: Any) -> Any:
    """A number and its per cent sign stay on one line."""
    return value.replace(" %", "\u00a0%") if type(value) is str else value


def _kind_of(block: Block) -> str:
    return type(block).__name__


def _numeric_columns(table: DataTable) -> set[int]:
    """Columns after the first that hold numbers: they stand flush right."""
    return {
        column for column in range(1, len(table.header)) if any(row[column].value is not None for row in table.rows)
    }
