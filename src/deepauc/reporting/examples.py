"""`examples.html`: images a run is right about, wrong about and undecided on, on a page apart from the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from deepauc.reporting.document.blocks import Block, Document, Heading, Missing, Paragraph, Section, Thumbnails, shown
from deepauc.reporting.document.page import html_page
from deepauc.reporting.document.sections import NOT_A_DEVICE
from deepauc.reporting.evaluation.findings import Case
from deepauc.reporting.evaluation.label import rows_of
from deepauc.reporting.evaluation.run import judged_part
from deepauc.reporting.figures.thumbnails import CaseImages, ImageTable, case_images
from deepauc.training.run.bundle import Bundle
from deepauc.training.run.output_file import require_output_folder, write_atomically
from deepauc.training.run.own_files import BUNDLE, MODEL, SCORES, require_own
from deepauc.training.run.run import Run
from deepauc.training.run.scores import OOF, Scores, read_run_scores

EXAMPLES = "examples.html"
EACH = 4  # images of each kind and label, of fewer than twelve of a class a third
THRESHOLD = "specificity 0.9"  # what borderline is near to
HIGH, LOW, NEAR = "with a high score", "with a low score", "near the threshold"
CHAPTERS = {
    "Best": (
        (f"positive {HIGH}", "Positives with the highest scores"),
        (f"negative {LOW}", "Negatives with the lowest scores"),
    ),
    "Worst": (
        (f"positive {LOW}", "Positives with the lowest scores"),
        (f"negative {HIGH}", "Negatives with the highest scores"),
    ),
    "Borderline": (
        (f"positive {NEAR}", "Positives nearest to the threshold"),
        (f"negative {NEAR}", "Negatives nearest to the threshold"),
    ),
}


def write_examples(
    run_dir: str | Path, *, table: ImageTable | None = None, out: str | Path | None = None, force: bool = False
) -> Path:
    """The best, the worst and the borderline images of the judged part, with Grad-CAM, as `examples.html`.

    table: where the images are; by default the table that the run was trained on. They are patients' images, which is
    why no other page has them. force: as in `write_report`.
    """
    folder = Path(run_dir)
    target = folder if out is None else Path(out)
    require_output_folder(target)
    require_own(folder, MODEL, BUNDLE, SCORES, force=force)
    record, scores, bundle = Run(folder).record, read_run_scores(folder), Bundle.load(folder)
    part = judged_part(scores)
    if part is None:
        raise ValueError(f"{folder} has neither a test nor a validation part to take examples from.")
    judged, cuts = scores.part(part), [bundle.thresholds.get(name, {}).get(THRESHOLD) for name in bundle.label_names]
    cases = tuple(case for j, cut in enumerate(cuts) for case in find_examples(judged, j, bundle.label_names[j], cut))
    found = case_images(folder, bundle.label_names, cases, table)
    document = Document(
        title=f"Examples of run {shown(folder.resolve().name)}",
        subtitle=f"{shown(record.task.name)} · images of {rows_of(part)}" if record.task.name else rows_of(part),
        sections=(
            Section(anchor="about", title="About these images", blocks=(*found.remarks, *_about(part, bundle, cuts))),
            *_chapters(cases, found, bundle.label_names),
        ),
        footer=NOT_A_DEVICE,
    )
    target.mkdir(parents=True, exist_ok=True)
    write_atomically(target / EXAMPLES, html_page(document, {}).encode("utf-8", "backslashreplace"))
    return target / EXAMPLES


def find_examples(judged: Scores, number: int, name: str, threshold: float | None, *, each: int = EACH) -> list[Case]:
    """Of one label the best, the worst and the borderline rows of both classes; no row twice.

    threshold: what borderline rows are near to; None: none are.
    """
    scores, labels = judged.scores[:, number], judged.labels[:, number]
    found = []
    for value, word, sign in ((1, "positive", 1), (0, "negative", -1)):
        rows = np.flatnonzero((labels == value) & np.isfinite(scores))
        rows = rows[np.argsort(sign * scores[rows], kind="stable")]  # the worst first
        count = min(each, max(1, len(rows) // 3))
        worst, best = rows[:count], rows[count:][::-1][:count]
        between = rows[count : max(count, len(rows) - count)]
        near = between[:0]
        if threshold is not None:
            near = between[np.argsort(np.abs(scores[between] - threshold), kind="stable")]
        ends = (LOW, HIGH) if value else (HIGH, LOW)
        for kind, some in ((ends[1], best), (ends[0], worst), (NEAR, near[:count])):
            for row in some:
                other = sign * scores[labels == 1 - value]
                found.append(
                    Case(
                        id=str(row) if judged.ids is None else str(judged.ids[row]),
                        label=name,
                        kind=f"{word} {kind}",
                        score=float(scores[row]),
                        wrong_side_of=float(np.mean(other > sign * scores[row])) if len(other) else 0.0,
                        fold=str(judged.folds[row]) if judged.folds is not None and judged.folds[row] else None,
                    )
                )
    return found


def _about(part: str, bundle: Bundle, cuts: Sequence[float | None]) -> list[Block]:
    blocks: list[Block] = [
        Paragraph(
            f"These are images of {rows_of(part)}. Best and worst are the ends of the ranking. The worst are the "
            "positives with the lowest scores and the negatives with the highest; some of them may still be on the "
            "right side of a threshold."
        )
    ]
    on = "all held-out rows" if part == OOF else "validation"
    known = [(name, cut) for name, cut in zip(bundle.label_names, cuts, strict=True) if cut is not None]
    if known:
        said = ", ".join(f"{cut:.4g}" if len(cuts) == 1 else f"{shown(name)} {cut:.4g}" for name, cut in known)
        blocks.append(
            Paragraph(f"Borderline images lie nearest to the threshold for 90 % specificity on {on} ({said}).")
        )
    if without := [shown(name) for name, cut in zip(bundle.label_names, cuts, strict=True) if cut is None]:
        why = f"there is no threshold for {', '.join(without)}: there are no positives or no negatives to choose it on."
        blocks.append(Missing("borderline images", why))
    return blocks


def _chapters(cases: Sequence[Case], found: CaseImages, names: Sequence[str]) -> Iterator[Section]:
    for title, kinds in CHAPTERS.items():
        anchor, blocks = title.lower(), list[Block]()
        for number, name in enumerate(names):
            for place, (kind, heading) in enumerate(kinds):
                chosen = [row for row, case in enumerate(cases) if (case.label, case.kind) == (name, kind)]
                if chosen:
                    text = heading if len(names) == 1 else f"{heading}: {shown(name)}"
                    blocks.append(Heading(text, f"{anchor}-{number + 1}-{place + 1}"))
                    blocks.append(Thumbnails(tuple(one for row in chosen for one in found.images[row])))
        if blocks:
            yield Section(anchor=anchor, title=title, blocks=tuple(blocks))
