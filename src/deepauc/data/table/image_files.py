"""The image column of a table: where the files lie, that none leaves the table's folder, that all can be decoded."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import compress
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from deepauc.data.images.decode import ImageError, ImageFacts, Window, examine_image
from deepauc.data.table.problems import Problem, shown

_SUFFIXES = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".dcm")
_WORKERS = min(8, os.cpu_count() or 1)
_BATCH = 64 * _WORKERS


@dataclass(frozen=True, kw_only=True)
class ImageColumn:
    """For each row the file's real path and what its decoding has shown; None where there is a problem."""

    paths: list[str | None]
    facts: list[ImageFacts | None]
    problems: list[Problem]

    def rows(self, keep: npt.NDArray[np.bool_]) -> ImageColumn:
        """Those where `keep`, (N,), is true, with the problems of all."""
        paths, facts = list(compress(self.paths, keep)), list(compress(self.facts, keep))
        return ImageColumn(paths=paths, facts=facts, problems=self.problems)


def examine_column(
    cells: Sequence[str],
    lines: Sequence[int],
    column: str,
    *,
    folder: Path,
    allow_outside: bool,
    window: Window | None,
    progress: Callable[[int, int], None] | None,
) -> ImageColumn:
    """Find and decode every file once. `progress` is called with (rows done, rows in all)."""
    problems: list[Problem] = []
    resolve = _Resolver(folder, allow_outside=allow_outside)
    paths: list[str | None] = []
    for cell, line in zip(cells, lines, strict=True):
        path = resolve(cell, line, column)
        if isinstance(path, Problem):
            problems.append(path)
        paths.append(None if isinstance(path, Problem) else path)

    def examine(path: str | None) -> ImageFacts | ImageError | None:
        try:
            return None if path is None else examine_image(path, window=window)
        except ImageError as error:
            return error

    facts: list[ImageFacts | None] = []
    with warnings.catch_warnings(), ThreadPoolExecutor(max_workers=_WORKERS) as pool:
        warnings.simplefilter("ignore", UserWarning)  # Pillow's remarks on odd but readable files
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        for start in range(0, len(paths), _BATCH):
            for offset, found in enumerate(pool.map(examine, paths[start : start + _BATCH])):
                row = start + offset
                if isinstance(found, ImageError):
                    message = f"{shown(cells[row])}: {found}{_hint(paths[row], found)}"
                    problems.append(Problem(lines[row], column, found.kind, message))
                facts.append(found if isinstance(found, ImageFacts) else None)
            if progress is not None:
                progress(len(facts), len(paths))
    return ImageColumn(paths=paths, facts=facts, problems=problems)


class _Resolver:
    """Cells as real paths. Folders are resolved once: tables list thousands of files in few of them."""

    def __init__(self, folder: Path, *, allow_outside: bool) -> None:
        self.folder = os.path.realpath(folder)
        self.allow_outside = allow_outside
        self.real_folders: dict[str, str] = {}

    def __call__(self, cell: str, line: int, column: str) -> str | Problem:
        name = cell.strip()
        if not name:
            return Problem(line, column, "missing file", "the cell is empty")
        try:
            if "\\" in name and not os.path.lexists(os.path.join(self.folder, name)):
                name = name.replace("\\", "/")  # written on Windows
            path = self._real_path(os.path.join(self.folder, name))
            if self.allow_outside or os.path.commonpath([self.folder, path]) == self.folder:
                return path
        except (OSError, ValueError) as error:  # a name that the system does not take; another drive on Windows
            return Problem(line, column, "missing file", f"{shown(cell)}: {error}")
        remedy = "--allow-outside permits it (in Python, image_root= names a folder that holds all images)"
        message = f"{shown(cell)}: it lies outside the folder of the images; {remedy}"
        return Problem(line, column, "path leaves folder", message)

    def _real_path(self, path: str) -> str:
        parent, name = os.path.split(path)
        if parent not in self.real_folders:
            self.real_folders[parent] = os.path.realpath(parent)
        joined = os.path.join(self.real_folders[parent], name)
        return os.path.realpath(joined) if name in ("", ".", "..") or os.path.islink(joined) else joined


def _hint(path: str | None, error: ImageError) -> str:
    if error.kind != "missing file" or path is None:
        return ""
    for suffix in _SUFFIXES:
        if os.path.isfile(path + suffix):
            return f" (there is one that ends in {suffix}: write the whole name)"
    return ""
