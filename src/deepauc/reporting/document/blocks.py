"""A report as blocks, before it is a page or markdown: both are written from these, so they say the same."""

from __future__ import annotations

import base64
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LONGEST_NAME = 80
_UNSAFE = frozenset("\ufffe\uffff\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c")
_ISOLATE, _END_ISOLATE = "\u2068", "\u2069"


@dataclass(frozen=True)
class Paragraph:
    text: str


@dataclass(frozen=True)
class Caution:
    """Something the reader must not overlook."""

    text: str


@dataclass(frozen=True)
class Missing:
    """Why something the reader looks for is not here."""

    what: str
    why: str


@dataclass(frozen=True)
class Heading:
    text: str
    anchor: str


@dataclass(frozen=True, kw_only=True)
class Headline:
    """The one number, what it is, and lines of detail under it."""

    value: str
    label: str
    details: tuple[str, ...]


@dataclass(frozen=True)
class TableCell:
    """text is shown; value, where it is a number, is sorted by."""

    text: str
    value: float | None = None


@dataclass(frozen=True, kw_only=True)
class DataTable:
    """The first column names the row."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...]


@dataclass(frozen=True)
class Facts:
    """Pairs of a term and what it is."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Code:
    """Text kept as it is, folded away under its title."""

    title: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure: `draw` fills matplotlib axes; `alt` says in words what is to be seen. `name` never holds data."""

    name: str
    caption: str
    alt: str
    draw: Callable[[Any], None]
    width: float = 4.3  # inches
    height: float = 3.4


@dataclass(frozen=True)
class Gallery:
    """Figures side by side where there is room."""

    pictures: tuple[Picture, ...]


@dataclass(frozen=True)
class Beside:
    """Words or a table, and the figure that belongs to it: side by side where there is room."""

    left: tuple[Paragraph | Missing | DataTable, ...]
    right: Picture


@dataclass(frozen=True, kw_only=True)
class Thumbnail:
    """A small photograph as a PNG; `alt` says in words what it is. `name` never holds data."""

    name: str
    caption: str
    alt: str
    png: bytes

    @property
    def data_uri(self) -> str:
        return "data:image/png;base64," + base64.b64encode(self.png).decode("ascii")


@dataclass(frozen=True)
class Thumbnails:
    """Photographs side by side, as many as there is room for."""

    images: tuple[Thumbnail, ...]


Block = Paragraph | Caution | Missing | Heading | Headline | DataTable | Facts | Code | Gallery | Beside | Thumbnails


@dataclass(frozen=True, kw_only=True)
class Section:
    """folded: closed until the reader opens it, and not printed while it is."""

    anchor: str
    title: str
    blocks: tuple[Block, ...]
    folded: bool = False


@dataclass(frozen=True, kw_only=True)
class Document:
    title: str
    subtitle: str
    sections: tuple[Section, ...]
    footer: str

    @property
    def pictures(self) -> tuple[Picture, ...]:
        found: list[Picture] = []
        for block in (block for section in self.sections for block in section.blocks):
            if isinstance(block, Gallery):
                found += block.pictures
            elif isinstance(block, Beside):
                found.append(block.right)
        return tuple(found)

    @property
    def thumbnails(self) -> tuple[Thumbnail, ...]:
        blocks = (block for section in self.sections for block in section.blocks)
        return tuple(image for block in blocks if isinstance(block, Thumbnails) for image in block.images)


def shown(name: str, *, longest: int = LONGEST_NAME) -> str:
    """A name from the data, fit to stand in a sentence, a table or a figure.

    Control characters, and marks that turn the direction of the text around them, are written out as escapes; a name
    that itself runs from right to left is isolated from its surroundings; a very long one is cut.
    """
    text = "".join(_visible(character) for character in str(name))
    text = text if len(text) <= longest else text[: longest - 1] + "…"
    if any(unicodedata.bidirectional(character) in ("R", "AL", "AN") for character in text):
        return f"{_ISOLATE}{text}{_END_ISOLATE}"
    return text


def _visible(character: str) -> str:
    if character in _UNSAFE or unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp"):
        return character.encode("unicode_escape", "surrogatepass").decode("ascii")
    return character
