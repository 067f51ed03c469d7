"""Figures on matplotlib, each as crisp SVG that takes the page's colours and as PNG for markdown."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from deepauc.reporting.document.blocks import Picture
from deepauc.reporting.figures.plots import BLUE, GREEN, VERMILION

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, FAINT, GRID = "#1b1f24", "#6b7280", "#dfe3e8"
_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
# In SVG these colours become the page's variables, so that a figure follows light, dark and print.
_VARIABLES = {INK: "--ink", FAINT: "--faint", GRID: "--grid", BLUE: "--blue", VERMILION: "--red", GREEN: "--green"}
_REFERENCE = re.compile(r"url\(#([^)]+)\)")
_FONT = re.compile(r"font: (?:[a-z]+ |[0-9]+ )*([0-9.]+px)[^;]*")
DOTS_PER_INCH = 150


@dataclass(frozen=True)
class Rendering:
    """svg: one <svg> element. png: a file's content, on white."""

    svg: str
    png: bytes


def render(picture: Picture) -> Rendering:
    """The figure, drawn once and written twice."""
    as_svg, as_png = io.BytesIO(), io.BytesIO()
    with _drawn(picture) as figure:
        figure.savefig(as_svg, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        figure.set_layout_engine("none")  # it is laid out by now
        figure.savefig(as_png, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return Rendering(_adapted(as_svg.getvalue(), picture), as_png.getvalue())


def _adapted(content: bytes, picture: Picture) -> str:
    """Real text, ids of its own, the page's colours, a title for screen readers, no fixed size."""
    for prefix, uri in (("", _SVG), ("xlink", _XLINK)):
        ElementTree.register_namespace(prefix, uri)
    root = ElementTree.fromstring(content)
    for metadata in root.findall(f"{{{_SVG}}}metadata"):
        root.remove(metadata)
    for element in root.iter():
        _adapt(element, picture.name)
    for size in ("width", "height", "version"):
        root.attrib.pop(size, None)
    title = ElementTree.Element(f"{{{_SVG}}}title", {"id": f"{picture.name}-title"})
    title.text = picture.alt
    root.insert(0, title)
    root.attrib |= {"role": "img", "aria-labelledby": f"{picture.name}-title", "class": "figure"}
    return ElementTree.tostring(root, encoding="unicode")


@contextmanager
def _drawn(picture: Picture) -> Iterator[Figure]:
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    style = {
        "svg.fonttype": "none",  # text stays text: it can be read, searched and selected
        "svg.hashsalt": picture.name,  # the same figure gives the same bytes
        "text.parse_math": False,  # a dollar sign in a patient group is no formula
        "font.size": 10,
        "hatch.linewidth": 0.7,
        **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor"), INK),
    }
    with mpl.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)  # the PNG's font lacks some scripts
        figure = Figure(figsize=(picture.width, picture.height), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        axes.grid(color=GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        picture.draw(axes)
        yield figure


def _adapt(element: ElementTree.Element, name: str) -> None:
    """Ids that are unique on the page, colours that follow it, its font."""
    if (own := element.get("id")) is not None:
        element.set("id", f"{name}-{own}")
    if (target := element.attrib.pop(f"{{{_XLINK}}}href", None)) is not None:
        element.set("href", f"#{name}-{target.removeprefix('#')}")
    for attribute in ("clip-path", "fill"):
        if (value := element.get(attribute)) is not None:
            element.set(attribute, _REFERENCE.sub(rf"url(#{name}-\1)", value))
    if (style := element.get("style")) is not None:
        style = _REFERENCE.sub(rf"url(#{name}-\1)", style)
        style = _FONT.sub(r"font-size: \1", style)
        for colour, variable in _VARIABLES.items():
            style = style.replace(colour.lower(), f"var({variable})")
        element.set("style", style)
