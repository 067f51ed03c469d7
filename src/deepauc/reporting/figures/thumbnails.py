"""The cases a run is most wrong about as thumbnails beside their Grad-CAM overlays, only where they are asked for."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor, nn

from deepauc.data.images.decode import ImageFileInputs
from deepauc.data.table.image_files import examine_column
from deepauc.data.table.rows import read_rows
from deepauc.models.build import is_of_bags
from deepauc.models.grad_cam import grad_cam
from deepauc.names import one_form
from deepauc.reporting.document.blocks import (
    Block,
    Caution,
    Heading,
    Missing,
    Paragraph,
    Section,
    Thumbnail,
    Thumbnails,
    shown,
)
from deepauc.reporting.evaluation.findings import Case, RunFindings
from deepauc.reporting.figures.bag_images import DecidedBag, decided_bags
from deepauc.training.run.bundle import Bundle
from deepauc.training.run.run import Run

DEFAULT_CASES = 4  # of each kind and label, where --cases does not say
SIDE = 144  # pixels of the longer side of a thumbnail
_GAP = 6
_WARM = np.array([255.0, 140.0, 0.0])  # what the map tints towards
_BATCH = 32
_PRIVACY = "These are images of patients, and their ids may name patients: take care with whom you share this page."
_READING = (
    "Left: the image as the network sees it. Right: the same image, tinted where it raises the score (Grad-CAM on "
    "the last feature map; outlined: above half of its maximum, which is scaled for each image; no tint: no place "
    "raises the score). A map shows where the network looks, not that it looks for the right reason, and is only as "
    "fine as that feature map."
)
_CHANGED = (
    "Images that now get another score than in scores.csv: {count} (largest difference {largest:.2g}). The files, "
    "or how they are read, may have changed since training."
)
_FOLDS = (
    "The score of an image and its map come from its fold's network, which was not trained on it. This page does "
    "not check whether the files are those of training."
)
_COPIES = (
    "A score is the mean over {number} augmented copies of the image; the map and the picture on the left show the "
    "image without augmentation. So this page does not check whether the files are those of training."
)

_OF_BAGS = (
    "A row is a bag of images. Of each bag up to three images are shown: those whose scores count most in the bag's. "
    "The weight says by how much the bag's score rises with that image's; the score behind it is the image's own."
)

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class ImageTable:
    """Where a run's images are to be found. image_column: by default the one the run was trained with."""

    path: str | Path
    image_column: str | None = None
    allow_outside: bool = False


@dataclass(frozen=True, kw_only=True)
class CaseImages:
    """The images of some cases, in their order, and what is to be said of all of them first.

    images: of each case one; of a bag those that decided.
    """

    images: tuple[tuple[Thumbnail, ...], ...]
    remarks: tuple[Block, ...]


def case_images(
    folder: Path, label_names: Sequence[str], cases: Sequence[Case], table: ImageTable | None
) -> CaseImages:
    """The images of these rows, found in the table by id, beside their Grad-CAM. table: None is the run's own."""
    bundle = Bundle.load(folder)
    if len(bundle.shape) != 3 or not bundle.preprocessing.images:
        if bundle.picture is not None:
            raise ValueError(f"{folder} takes images and metadata: examples need a network on images alone.")
        raise ValueError(f"{folder} was not trained on images, so there are none to show.")
    remarks: list[Block] = [Caution(_PRIVACY), Paragraph(_READING)]
    if not cases:
        return CaseImages(images=(), remarks=tuple(remarks))
    model, table = bundle.network(folder), table or _own_table(folder)
    if is_of_bags(bundle.model):
        return _bag_images(folder, bundle, model, label_names, cases, table, remarks)
    source, names = _image_source(folder, bundle, [case.id for case in cases], table)
    images = source(np.array([names.index(case.id) for case in cases]))
    maps = _maps(folder, model, bundle, label_names, cases, images)
    if isinstance(maps, Missing):
        remarks[1:] = [maps]
    comparable = bundle.copies is None and all(case.fold is None for case in cases)
    changed = _changed_scores(model, bundle, label_names, cases, images) if comparable else []
    remarks += _about_scores(bundle, cases, changed)
    found = (
        _thumbnail(case, f"thumbnail-{row}", images[row], None if isinstance(maps, Missing) else maps[row])
        for row, case in enumerate(cases)
    )
    return CaseImages(images=tuple((one,) for one in found), remarks=tuple(remarks))


def _bag_images(
    folder: Path,
    bundle: Bundle,
    model: nn.Module,
    label_names: Sequence[str],
    cases: Sequence[Case],
    table: ImageTable,
    remarks: Sequence[Block],
) -> CaseImages:
    """Of each case, which is a bag, the images that count most in its score."""
    bags = list(dict.fromkeys(case.id for case in cases))
    files = _files_in_bags(folder, bags, table)
    source, names = _image_source(folder, bundle, [name for bag in bags for name in files[bag]], table)
    place = {name: row for row, name in enumerate(names)}
    decided = dict[str, DecidedBag]()
    for fold in dict.fromkeys(case.fold for case in cases):
        mine = list(dict.fromkeys(case.id for case in cases if case.fold == fold))
        alone = model if fold is None else _of_fold(folder, model, fold)
        found = decided_bags(alone, bundle, source, [[place[file] for file in files[bag]] for bag in mine])
        decided |= dict(zip(mine, found, strict=True))
    shown_images: list[tuple[Thumbnail, ...]] = []
    said: list[Block] = []
    changed: list[float] = []
    for row, case in enumerate(cases):
        number, bag = label_names.index(case.label), decided[case.id]
        off = abs(bag.score[number] - case.score)
        comparable = bundle.copies is None and case.fold is None
        changed += [off] if comparable and off > 0.05 * max(1.0, abs(case.score)) else []
        pixels = source(np.array([one.row for one in bag.images[number]]))
        own = [replace(case, id=names[one.row], score=one.score[number]) for one in bag.images[number]]
        maps = _maps(folder, model, bundle, label_names, own, pixels)
        if isinstance(maps, Missing) and not said:
            said.append(maps)
        shown_images.append(
            tuple(
                _thumbnail(
                    one,
                    f"thumbnail-{row}-{n}",
                    pixels[n],
                    None if isinstance(maps, Missing) else maps[n],
                    of_bag=f"{shown(case.id)} ({bag.size:,} image{'s' * (bag.size != 1)}, score {case.score:.3g}), "
                    f"weight {deciding.weight[number]:.2g}: ",
                )
                for n, (one, deciding) in enumerate(zip(own, bag.images[number], strict=True))
            )
        )
    blocks = [remarks[0], *(said or remarks[1:]), Paragraph(_OF_BAGS), *_about_scores(bundle, cases, changed)]
    return CaseImages(images=tuple(shown_images), remarks=tuple(blocks))


def _about_scores(bundle: Bundle, cases: Sequence[Case], changed: Sequence[float]) -> list[Block]:
    """Whose scores these are, and by how much those that can be compared have changed."""
    if any(case.fold is not None for case in cases):
        return [Paragraph(_FOLDS)]
    if bundle.copies is not None:
        return [Paragraph(_COPIES.format(number=bundle.copies.number))]
    return [Caution(_CHANGED.format(count=len(changed), largest=max(changed)))] if changed else []


def _files_in_bags(folder: Path, bags: Sequence[str], table: ImageTable) -> dict[str, list[str]]:
    """What the column of images says of each bag's rows."""
    data = Run(folder).record.data
    column, of_bag = table.image_column or data.image_column, data.bag_column
    if column is None or of_bag is None:
        raise ValueError(f"{folder} does not record its columns of images and bags: it was not trained from a table.")
    cells = read_rows(Path(table.path), [column, of_bag])
    files: dict[str, list[str]] = {bag: [] for bag in bags}
    for bag, cell in zip(cells.columns[of_bag], cells.columns[column], strict=True):
        if (name := one_form(bag)) in files:
            files[name].append(one_form(cell))
    if missing := [bag for bag in bags if not files[bag]]:
        raise ValueError(
            f"{len(missing)} of {len(bags)} bags are not in column {of_bag!r} of {table.path} (first: "
            f"{shown(missing[0])!r}). Name the table that the run was trained on."
        )
    return files


def thumbnails_section(run_dir: str | Path, findings: RunFindings, table: ImageTable) -> Section:
    """The images of the findings' cases, found in the table by id, as a section of the report."""
    cases = findings.cases
    found = case_images(Path(run_dir), findings.label_names, cases, table)
    if not cases:
        text = "There are none: no label has both a positive and a negative row in the judged part."
        return Section(anchor="thumbnails", title="Images of the largest errors", blocks=(Paragraph(text),))
    blocks: list[Block] = [*found.remarks]
    kinds = list(dict.fromkeys((case.label, case.kind) for case in cases))
    for number, (label, kind) in enumerate(kinds):
        title = "Negatives with the highest scores" if _is_negative(kind) else "Positives with the lowest scores"
        title = f"{title}: {shown(label)}" if len(findings.label_names) > 1 else title
        blocks.append(Heading(title, f"thumbnails-{number}"))
        rows = [row for row, case in enumerate(cases) if (case.label, case.kind) == (label, kind)]
        blocks.append(Thumbnails(tuple(one for row in rows for one in found.images[row])))
    return Section(anchor="thumbnails", title="Images of the largest errors", blocks=tuple(blocks))


def side_by_side(image: Pixels, heat: npt.NDArray[np.floating[Any]] | None, *, side: int = SIDE) -> bytes:
    """A small PNG: the image (H, W, C), a transparent gap, the image tinted by its map (H, W) in [0, 1].

    Without a map the image alone. side: pixels of the longer side of each of the two.
    """
    height, width = image.shape[:2]
    scale = side / max(height, width)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    colour = image if image.shape[2] == 3 else np.repeat(image[..., :1], 3, axis=2)
    # Few pixels stay visible as such; many are averaged.
    how = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.LANCZOS
    small = np.asarray(Image.fromarray(colour).resize(size, how), dtype=np.float64)
    if heat is None:
        return _png(small.round().astype(np.uint8))
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
    return _png(sheet)


def _png(pixels: Pixels) -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, format="PNG", optimize=True)
    return content.getvalue()


def _outline(inside: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """The pixels inside that have a neighbour outside; the image's edge is no neighbour."""
    padded = np.pad(inside, 1, mode="edge")
    whole = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    return inside & ~whole


def _own_table(folder: Path) -> ImageTable:
    """The one that the run was trained on, if it is still where it was."""
    data = Run(folder).record.data
    if data.table is None:
        why = "was trained on a packed set, which has no files" if data.packed else "does not record its table"
        raise ValueError(f"{folder} {why}: name the table of its images, --table data.csv --image-column file.")
    if not Path(data.table).is_file():
        raise ValueError(f"the table of {folder}, {data.table}, does not exist: name it with --table FILE.")
    return ImageTable(path=data.table)


def _image_source(
    folder: Path, bundle: Bundle, wanted: Sequence[str], table: ImageTable
) -> tuple[ImageFileInputs, list[str]]:
    """These images of the table at the network's size, and the name of each."""
    data = Run(folder).record.data
    column = table.image_column or data.image_column
    if not column:
        why = "was trained on a packed set, which has no columns" if data.packed else "does not record its columns"
        raise ValueError(f"{folder} {why}: name that of the images, --image-column COLUMN.")
    cells = read_rows(Path(table.path), [column])
    files = {one_form(cell): (cell, line) for cell, line in zip(cells.columns[column], cells.lines, strict=True)}
    names = list(dict.fromkeys(wanted))
    if missing := [name for name in names if name not in files]:
        raise ValueError(
            f"ids that are not in column {column!r} of {table.path}: {len(missing):,} of {len(names):,} (first: "
            f"{shown(missing[0])!r}). Name the table that the run was trained on."
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
            f"images that cannot be shown: {len(found.problems):,} of {len(names):,}; {table.path}, row {first.row}: "
            f"{first.message}."
        )
    height, width, channels = bundle.shape
    source = ImageFileInputs(
        [path for path in found.paths if path is not None],
        shape=(height, width, channels),
        file_digests=[fact.file_digest for fact in found.facts if fact is not None],
        window=bundle.window,
    )
    return source, names


def _batches(
    bundle: Bundle, label_names: Sequence[str], cases: Sequence[Case], images: Pixels
) -> Iterator[tuple[int, list[int], Tensor]]:
    """The number of a label, some of its cases, and their images as the network takes them."""
    for number, name in enumerate(label_names):
        mine = [row for row, case in enumerate(cases) if case.label == name]
        for start in range(0, len(mine), _BATCH):
            rows = mine[start : start + _BATCH]
            yield number, rows, bundle.preprocessing(torch.from_numpy(images[rows]))


def _maps(
    folder: Path, model: nn.Module, bundle: Bundle, label_names: Sequence[str], cases: Sequence[Case], images: Pixels
) -> npt.NDArray[np.float32] | Missing:
    """(n, H, W), or why the network has none. A row of a fold has its map from that fold's networks."""
    maps = np.zeros(images.shape[:3], dtype=np.float32)
    for fold in dict.fromkeys(case.fold for case in cases):
        mine = np.array([row for row, case in enumerate(cases) if case.fold == fold])
        alone = model if fold is None else _of_fold(folder, model, fold)
        for number, rows, inputs in _batches(bundle, label_names, [cases[row] for row in mine], images[mine]):
            try:
                maps[mine[rows]] = grad_cam(alone, inputs, label=number).numpy()
            except ValueError as error:
                return Missing("Grad-CAM", str(error))
    return maps


def _of_fold(folder: Path, model: nn.Module, fold: str) -> nn.Module:
    """The average with the networks of one fold alone: `save_average` has them fold by fold for each candidate."""
    record = Run(folder).record.folds
    assert record is not None
    alone = copy.deepcopy(model)
    share = alone.get_buffer("share")
    own = torch.arange(len(share)) % len(record.names) == record.names.index(fold)
    share.copy_(torch.where(own, share, 0.0) / share[own].sum())
    return alone


@torch.no_grad()
def _changed_scores(
    model: nn.Module, bundle: Bundle, label_names: Sequence[str], cases: Sequence[Case], images: Pixels
) -> list[float]:
    """By how much scores differ from the recorded ones, of those that differ by more than another device makes."""
    changed = []
    for number, rows, inputs in _batches(bundle, label_names, cases, images):
        for row, score in zip(rows, model(inputs)[:, number].tolist(), strict=True):
            off = abs(score - cases[row].score)
            changed += [off] if off > 0.05 * max(1.0, abs(score)) else []
    return changed


def _thumbnail(
    case: Case, name: str, image: Pixels, heat: npt.NDArray[np.float32] | None, *, of_bag: str = ""
) -> Thumbnail:
    label = "0 (negative)" if _is_negative(case.kind) else "1 (positive)"
    what = f"{of_bag}{shown(case.id)}: {shown(case.label)} {label}, score {case.score:.3g}"
    seen = ""
    if heat is not None:
        tinted = "tinted where it raises the score" if heat.max() > 0 else "without a tint: no place raises the score"
        seen = f" Left: the image. Right: the same {tinted}."
    return Thumbnail(name=name, caption=what, alt=f"{what}.{seen}", png=side_by_side(image, heat))


def _is_negative(kind: str) -> bool:
    return kind.startswith("negative")
