"""What is odd about prepared data, as lines that the command and `fit` show alike."""

from __future__ import annotations

from collections.abc import Iterator

from deepauc.data.task import Task
from deepauc.names import counted, group_word, leak_text
from deepauc.training.prepare.prepare import Prepared


def said_of(prepared: Prepared) -> Iterator[str]:
    """Warnings of parts that hold next to nothing, the table's cautions, and what stands in two parts."""
    report, word = prepared.report, group_word(prepared.report.group_column)
    for one in _too_few(prepared.task):
        yield f"Warning: {one} Its AUC means little."
    for text in (*(alike.text(word) for alike in report.alike), *report.missing_codes, *report.cautions):
        yield f"Caution: {text}"
    for kind, count in prepared.leaks.items():
        yield f"LEAK: {leak_text(kind, count, word)} in two parts. The AUC will be too good."
    if prepared.possible_leaks:
        yield (
            f"POSSIBLE LEAK: {counted(prepared.possible_leaks, word)} may be in two parts under different names (see "
            "the caution above). The AUC may be too good."
        )


def _too_few(task: Task) -> Iterator[str]:
    """A sentence for each label of a held-out part with fewer than two rows of a class."""
    for part in task.parts:
        labels = task.labels[task.labelled(part)].reshape(-1, task.num_labels)
        for name, column in zip(task.label_names, labels.T, strict=True):
            negatives, positives = int((column == 0).sum()), int((column == 1).sum())
            count, what = (positives, "positive") if positives <= negatives else (negatives, "negative")
            if part != "train" and count < 2:
                yield f'{part} has {f"only 1 {what}" if count else f"no {what}"} for "{name}".'
