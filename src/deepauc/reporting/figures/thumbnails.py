"""The cases a run is most wrong about as thumbnails beside their Grad-CAM overlays, only where they are asked for."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import nn

from deepauc.data.images.decode import ImageFileInputs
from deepauc.data.table.image_files import examine_column
from deepauc.data.table.rows import read_rows
from deepauc.models.grad_cam import grad_cam
from deepauc.names import one_form
from deepauc.reporting.document.blocks import Block, Caution, Heading, Paragraph, Section, Thumbnail, Thumbnails, shown
from deepauc.reporting.evaluation.findings import Case, RunFindings
from deepauc.training.run.bundle import Bundle
from deepauc.training.run.run import Run

DEFAULT_CASES = 4  # of each kind and label, where --cases does not say
SIDE = 144  # pixels of the longer side of a thumbnail
_GAP = 6
_WARM = np.array([255.0, 140.0, 0.0])  # what the map tints towards
_BATCH = 32
_PRIVACY = "These are images of patients, with ids that may name them: mind with whom this page is shared."
_READING = (
    "Left the image as the network sees it, right the same tinted where it raises the score (Grad-CAM on the last "
    "feature map; outlined: above half of its maximum, which is scaled image by image; no tint: no place raises it). "
    "A map shows where the network looks, not that it looks for the right reason, and is only as fine as that feature "
    "map."
)
_CHANGED = (
    "{count} of these images get another score now than scores.csv records (largest difference {largest:.2g}): "
    "the files, or how they are read, may have changed since training."
)
_COPIES = (
    "A score is the mean over {number} changed copies of the image; the map is of the image as it is, as is what the "
    "network sees on the left. Whether the files are those of training is therefore not checked here."
)

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class ImageTable:
    """Where a run's images are to be found. image_column: by default the one the run was trained with."""

    path: str | Path
    image_column: str | None = None
    allow_outside: bool = False


def thumbnails_section(run_dir: str | Path, findings: RunFindings, table: ImageTable) -> Section:
    """The images of the findings' cases, found in the table by id, as a section of the report."""
    folder, cases = Path(run_dir), findings.cases
    bundle = Bundle.load(folder)
    if len(bundle.shape) != 3 or not bundle.preprocessing.images:
        raise ValueError(f"{folder} was not trained on images: leave --thumbnails out.")
    if not cases:
        text = "There are none: no label has both a positive and a negative row in the part that is judged."
        return Section(anchor="thumbnails", title="Images of the largest errors", blocks=(Paragraph(text),))
    images = _images_of(folder, bundle, cases, table)
    maps, differences = _explained(bundle.network(folder), bundle, findings, images)
    several = len(findings.label_names) > 1
    blocks: list[Block] = [Caution(_PRIVACY), Paragraph(_READING)]
    if bundle.copies is not None:
        blocks.append(Paragraph(_COPIES.format(number=bundle.copies.number)))
    elif changed := [d for d in differences if d > 0]:
        blocks.append(Caution(_CHANGED.format(count=len(changed), largest=max(changed))))
    kinds = list(dict.fromkeys((case.label, case.kind) for case in cases))
    for number, (label, kind) in enumerate(kinds):
        title = "Negatives with the highest scores" if _is_negative(kind) else "Positives with the lowest scores"
        title = f"{title}: {shown(label)}" if several else title
        blocks.append(Heading(title, f"thumbnails-{number}"))
        rows = [row for row, case in enumerate(cases) if (case.label, case.kind) == (label, kind)]
        blocks.append(Thumbnails(tuple(_thumbnail(cases[row], row, images[row], maps[row]) for row in rows)))
    return Section(anchor="thumbnails", title="Images of the largest errors", blocks=tuple(blocks))


def side_by_side(image: Pixels, heat: npt.NDArray[np.floating[Any]], *, side: int = SIDE) -> bytes:
    """A small PNG: the image (H, W, C), a transparent gap, the image tinted by its map (H, W) in [0, 1].

    side: pixels of the longer side of each of the two.
    """
    height, width = image.shape[:2]
    scale = side / max(height, width)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    colour = image if image.shape[2] == 3 else np.repeat(image[..., :1], 3, axis=2)
    # Few pixels stay visible as such; many are averaged.
    how = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.LANCZOS
    small = np.asarray(Image.fromarray(colour).resize(size, how), dtype=np.float64)
    smooth = Image.fromarray(heat.astype(np.float32)).resize(size, Image.Resampling.BILINEAR)
    place = np.clip(np.asarray(smooth, dtype=np.float64), 0, 1)
    tinted = small + 0.55 * place[..., None] * (_WARM - small)
    line = _outline(place > 0.5)
    # White beside black: the outline is seen on dark and on bright images, and without colours.
    tinted[_outline(~(place > 0.5)) & ~line] = 0
    tinted[line] = 255
    sheet = np.zeros((size[1], 2 * size[0] + _GAP, 4), dtype=np.uint8)
    sheet[:, : size[0], :3], sheet[:, size[0] + _GAP :, :3] = small.round(), tinted.round()
    sheet[:, : size[0], 3] = sheet[:, size[0] + _GAP :, 3] = 255
    content = io.BytesIO()
    Image.fromarray(sheet).save(content, format="PNG", optimize=True)
    return content.getvalue()


def _outline(inside: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """The pixels inside that have a neighbour outside; the image's edge is no neighbour."""
    padded = np.pad(inside, 1, mode="edge")
    whole = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    return inside & ~whole


def _images_of(folder: Path, bundle: Bundle, cases: Sequence[Case], table: ImageTable) -> Pixels:
    """The cases' images (n, H, W, C) at the network's size."""
    data = Run(folder).record.data
    column = table.image_column or data.image_column
    if not column:
        why = "was trained on a packed set, which has no columns" if data.packed else "does not record its columns"
        raise ValueError(f"{folder} {why}: name that of the images, --image-column COLUMN.")
    cells = read_rows(Path(table.path), [column])
    files = {one_form(cell): (cell, line) for cell, line in zip(cells.columns[column], cells.lines, strict=True)}
    names = list(dict.fromkeys(case.id for case in cases))
    if missing := [name for name in names if name not in files]:
        raise ValueError(
            f"--thumbnails: {len(missing)} of {len(names)} ids are not in column {column!r} of {table.path}, "
            f"the first {shown(missing[0])!r}. Name the table the run was trained on: an id is what that column says."
        )
    # Only these files are opened, however long the table is.
    found = examine_column(
        [files[name][0] for name in names],
        [files[name][1] for name in names],
        column,
        folder=Path(table.path).parent,
        allow_outside=table.allow_outside,
        window=bundle.window,
        progress=None,
    )
    if found.problems:
        first = found.problems[0]
        raise ValueError(
            f"--thumbnails: {len(found.problems)} of {len(names)} images cannot be shown; {table.path}, "
            f"row {first.row}: {first.message}."
        )
    height, width, channels = bundle.shape
    source = ImageFileInputs(
        [path for path in found.paths if path is not None],
        shape=(height, width, channels),
        file_digests=[fact.file_digest for fact in found.facts if fact is not None],
        window=bundle.window,
    )
    return source(np.array([names.index(case.id) for case in cases]))


def _explained(
    model: nn.Module, bundle: Bundle, findings: RunFindings, images: Pixels
) -> tuple[npt.NDArray[np.float32], list[float]]:
    """Maps (n, H, W), and by how much scores differ from the recorded ones: 0 up to what another device makes."""
    cases = findings.cases
    maps = np.zeros(images.shape[:3], dtype=np.float32)
    differences = [0.0] * len(cases)
    for number, name in enumerate(findings.label_names):
        mine = [row for row, case in enumerate(cases) if case.label == name]
        for start in range(0, len(mine), _BATCH):
            rows = mine[start : start + _BATCH]
            inputs = bundle.preprocessing(torch.from_numpy(images[rows]))
            maps[rows] = grad_cam(model, inputs, label=number).numpy()
            with torch.no_grad():
                scores = model(inputs)[:, number].tolist()
            for row, score in zip(rows, scores, strict=True):
                off = abs(score - cases[row].score)
                differences[row] = off if off > 0.05 * max(1.0, abs(score)) else 0.0
    return maps, differences


def _thumbnail(case: Case, row: int, image: Pixels, heat: npt.NDArray[np.float32]) -> Thumbnail:
    label = "0 (negative)" if _is_negative(case.kind) else "1 (positive)"
    what = f"{shown(case.id)}: {shown(case.label)} {label}, score {case.score:.3g}"
    seen = "tinted where it raises the score" if heat.max() > 0 else "without a tint: no place raises the score"
    return Thumbnail(
        name=f"thumbnail-{row}",
        caption=what,
        alt=f"{what}. Left the image, right the same {seen}.",
        png=side_by_side(image, heat),
    )


def _is_negative(kind: str) -> bool:
    return kind.startswith("negative")
