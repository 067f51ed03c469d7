"""The document as markdown beside png figures."""

from __future__ import annotations

import re

from deepauc.reporting.document import blocks
from deepauc.text_tables import markdown_table

_SPECIAL = re.compile(r"([\\`*_\[\]<>#~$&])")
_BACKTICKS = re.compile(r"`+")


def markdown_page(document: blocks.Document, *, folder: str) -> str:
    """The same sections, tables and figures; `folder` is where the figures' png files lie, relative to the text."""
    parts = [f"# {escaped(document.title)}", escaped(document.subtitle), f"> {escaped(document.footer)}"]
    for section in document.sections:
        parts.append(f"## {escaped(section.title)}")
        parts += [_block(block, folder) for block in section.blocks]
    return "\n\n".join(parts) + "\n"


def escaped(text: str) -> str:
    """Text that markdown, and html inside it, leave alone."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.splitlines()))


def _block(block: blocks.Block, folder: str) -> str:  # noqa: PLR0911  (one return a kind of block)
    match block:
        case blocks.Paragraph():
            return escaped(block.text)
        case blocks.Caution():
            return f"> **Caution.** {escaped(block.text)}"
        case blocks.Missing():
            return f"**Not shown: {escaped(block.what)}.** Reason: {escaped(block.why)}"
        case blocks.Heading():
            return f"### {escaped(block.text)}"
        case blocks.Headline():
            details = "  \n".join(escaped(detail) for detail in block.details)
            return f"**{escaped(block.value)}** {escaped(block.label)}  \n{details}"
        case blocks.DataTable():
            return f"**{escaped(block.caption)}**\n\n{_table(block)}"
        case blocks.Facts():
            return "\n".join(f"- {escaped(term)}: {escaped(text)}" for term, text in block.pairs)
        case blocks.Code():
            fence = "`" * max(3, *(len(run) + 1 for run in _BACKTICKS.findall(block.text)), 3)
            return f"**{escaped(block.title)}**\n\n{fence}json\n{block.text}\n{fence}"
        case blocks.Gallery():
            return "\n\n".join(_picture(picture, folder) for picture in block.pictures)
        case blocks.Beside():
            return "\n\n".join([*(_block(part, folder) for part in block.left), _picture(block.right, folder)])
        case blocks.Thumbnails():
            return "\n\n".join(_picture(image, folder) for image in block.images)


def _picture(picture: blocks.Picture | blocks.Thumbnail, folder: str) -> str:
    return f"![{escaped(picture.alt)}]({folder}/{picture.name}.png)\n\n*{escaped(picture.caption)}*"


def _table(table: blocks.DataTable) -> str:
    header = [escaped(name) for name in table.header]
    return markdown_table(header, [[escaped(cell.text) for cell in row] for row in table.rows])
