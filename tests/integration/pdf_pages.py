"""How far down each page of a PDF is filled, read from the file that chromium writes; nothing else is needed."""

import re
import zlib

import numpy as np

MARGIN = 18 / 25.4 * 72 - 4  # of the report's style, in points; a line may lie a little below its text
_TOKEN = re.compile(rb"\((?:\\.|[^\\)])*\)|<[0-9A-Fa-f]*>|[\[\]]|/[^\s/\[\]<>()]+|[^\s\[\]<>()/]+")
_PATHS = {b"re": 4, b"m": 2, b"l": 2, b"c": 6}  # what makes a path, and of how many numbers
_PAINTS = {b"f", b"f*", b"S", b"s", b"B", b"B*", b"b", b"b*"}


def filled(pdf):
    """For each page the share of its height, from the top edge, down to the lowest text, line or box on it.

    What is as high as the page, such as its white ground, is no mark, nor is what stands in its lower margin.
    """
    found = []
    for page in re.finditer(rb"/Type\s*/Page\b(.*?)endobj", pdf, re.DOTALL):
        height = float(re.search(rb"/MediaBox\s*\[\s*\S+ \S+ \S+ (\S+?)\s*\]", page.group(1)).group(1))
        number = re.search(rb"/Contents (\d+) 0 R", page.group(1)).group(1)
        start = re.search(rb"\n" + number + rb" 0 obj.*?stream\r?\n", pdf, re.DOTALL).end()
        content = zlib.decompressobj().decompress(pdf[start:])
        lowest = min((mark for mark in _marks(content, height) if mark > MARGIN), default=height)
        found.append(1 - float(lowest) / height)
    return found


def _marks(content, height):
    """Heights above the lower edge at which text stands, or what is painted begins."""
    place, saved, numbers, path = np.eye(3), [], [], []
    for token in _TOKEN.findall(content):
        try:
            numbers.append(float(token))
            continue
        except ValueError:
            pass
        if token in (b"[", b"]") or token[:1] in b"/(<":
            continue
        if token == b"q":
            saved.append(place)
        elif token == b"Q":
            place = saved.pop()
        elif token == b"cm":
            place = _matrix(numbers) @ place
        elif token == b"Tm":
            yield (_matrix(numbers) @ place)[2, 1]
        elif token in _PATHS:
            path += _heights(numbers[-_PATHS[token] :], token, place)
        elif token in _PAINTS and path:
            if max(path) - min(path) < 0.8 * height:
                yield min(path)
            path = []
        elif token == b"n":  # the end of a path that only clips
            path = []
        numbers = []


def _matrix(numbers):
    a, b, c, d, e, f = numbers[-6:]
    return np.array([[a, b, 0], [c, d, 0], [e, f, 1]])


def _heights(numbers, token, place):
    corners = list(zip(numbers[::2], numbers[1::2], strict=True))
    if token == b"re":
        x, y, width, tall = numbers
        corners = [(x, y), (x + width, y + tall)]
    return [float((np.array([x, y, 1]) @ place)[1]) for x, y in corners]
