"""`Model`: a finished run as one works with it in Python, and `load`, which opens one from its folder."""

from __future__ import annotations

import html
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from deepauc.data.table.frame import Table
from deepauc.metrics.crossval.folds import fold_auroc_interval
from deepauc.metrics.intervals import Estimate
from deepauc.names import rows_have
from deepauc.pipeline.leaderboard import one_split_board
from deepauc.pipeline.outcome import doubts, paired_tests
from deepauc.pipeline.single import save_single
from deepauc.reporting.evaluation.label import too_few
from deepauc.reporting.evaluation.run import run_scores
from deepauc.reporting.evaluation.sample import count_rows, sample_of
from deepauc.reporting.export import copy_bundle
from deepauc.reporting.external import External, evaluate_table
from deepauc.reporting.figures.label import interval_text
from deepauc.reporting.folds import kept_name, verdict
from deepauc.training.predict.table import predict_table
from deepauc.training.run.bundle import Bundle
from deepauc.training.run.fold_record import BoardRow
from deepauc.training.run.folder import RunFolder
from deepauc.training.run.record import IMAGES, RunRecord
from deepauc.training.run.run import Run
from deepauc.training.run.scores import Scores

if TYPE_CHECKING:
    import pandas as pd


def load(folder: str | Path) -> Model:
    """The model of a finished run, by its folder.

    Args:
        folder: Of the run, such as `runs/first`.
    """
    return Model(Path(folder))


class Model:
    """A finished run. Nothing is loaded before it is asked for.

    `path` is the folder of the run, `report` its html page. With folds, `auc` is the mean AUC within folds, corrected
    for the choice of the candidate; with one split it is that of the test part, or of validation where there is none.

    Args:
        path: The folder of the run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._run = Run(path)  # refused, where it is none
        RunFolder(path).require_classifier()

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @cached_property
    def _record(self) -> RunRecord:
        return self._run.record

    @cached_property
    def _scores(self) -> Scores:
        return run_scores(self.path, self._record)

    @property
    def auc(self) -> Estimate[float]:
        """The AUC on held-out rows with its 95 % interval; with several labels, their mean."""
        folds = self._record.folds
        if folds is not None and folds.choice is not None:
            return folds.choice.auc
        rows = self._judged()
        names = [rows.label_names.index(name) for name in self.aucs]
        if not names:
            raise ValueError(f"{self.path} has no AUC: no label has positives and negatives in a held-out part.")
        if len(names) == 1:
            return self.aucs[rows.label_names[names[0]]]
        found = fold_auroc_interval(
            rows.scores[:, names], rows.labels[:, names], np.zeros(len(rows)), groups=rows.groups, average=True
        )
        return found.floats()

    @property
    def aucs(self) -> dict[str, Estimate[float]]:
        """The AUC of each label on held-out rows, with its 95 % interval."""
        results = self._record.results.auc
        folds = self._record.folds
        if folds is not None and folds.choice is not None:
            return dict(folds.choice.aucs)
        part = next((name for name in ("test", "validation") if name in results), None)
        return {} if part is None else dict(results[part])

    @property
    def leaderboard(self) -> pd.DataFrame:
        """The candidates with their AUC: candidate, label, auc, low, high, seconds, kept."""
        import pandas as pd

        rows = [
            {
                "candidate": row.candidate,
                "label": row.label,
                "auc": row.auc.value,
                "low": row.auc.low,
                "high": row.auc.high,
                "seconds": row.seconds,
                "kept": row.kept,
            }
            for row in self._board()
        ]
        return pd.DataFrame(rows, columns=["candidate", "label", "auc", "low", "high", "seconds", "kept"])

    @property
    def oof(self) -> pd.DataFrame:
        """Scores of rows by a network that was not trained on them: id, group, fold, label, score.

        With one split these are the rows of validation. Several labels: one row for each, its name in `name`. `id` is
        the image file, the column `id` of `fit`, or else the place of the row, from 0 (of a file: its line).
        """
        import pandas as pd

        part = "oof" if self._record.folds is not None else "validation"
        if part not in self._scores.part_names:
            raise ValueError(f"{self.path} was trained without a validation part, so it has no such scores.")
        rows = self._scores.part(part)
        blocks = []
        for j, name in enumerate(rows.label_names):
            columns: dict[str, Any] = {
                "id": rows.ids,
                "group": rows.groups,
                "fold": rows.folds,
                "label": rows.labels[:, j],
                "score": rows.scores[:, j],
            }
            several = {"name": name} if len(rows.label_names) > 1 else {}
            blocks.append(pd.DataFrame(columns | several))
        return pd.concat(blocks, ignore_index=True)

    def predict(self, table: Table, *, image_root: str | Path | None = None, device: str | None = None) -> pd.DataFrame:
        """Scores and probabilities of new rows: id, score, probability; several labels: score:NAME, probability:NAME.

        Warns where rows are named like ones that the model was trained on: their held-out scores are in `oof`.

        Args:
            table: A file or a DataFrame with the columns of training; no labels are needed.
            image_root: The folder that image paths are relative to.
            device: "cpu" or "cuda".
        """
        import warnings

        import pandas as pd

        has_probability = bool(self._calibrated())
        found = predict_table(
            [self.path], table, image_root=image_root, probability=has_probability, device=device, id_column=self._id()
        )
        if found.rows_seen:
            warnings.warn(
                f"{rows_have(found.rows_seen)} the name of a training row. Such scores are too good; "
                ".oof has scores of the training rows by networks that did not see them.",
                UserWarning,
                stacklevel=2,
            )
        columns: dict[str, Any] = {"id": found.ids}
        several = len(found.label_names) > 1
        for j, name in enumerate(found.label_names):
            columns[f"score:{name}" if several else "score"] = found.scores[:, j]
        if found.probabilities is not None:
            for j, name in enumerate(found.label_names):
                columns[f"probability:{name}" if several else "probability"] = found.probabilities[:, j]
        return pd.DataFrame(columns)

    def evaluate(
        self,
        table: Table,
        *,
        recalibrate: bool = False,
        positive: str | None = None,
        image_root: str | Path | None = None,
        device: str | None = None,
    ) -> External:
        """The model on new labelled rows, beside its figures in training.

        Args:
            table: A file or a DataFrame with the columns of training.
            recalibrate: Shift the probabilities to the prevalence there.
            positive: The label that is positive there, if it is neither 1 nor that of training.
            image_root: The folder that image paths are relative to.
            device: "cpu" or "cuda".
        """
        return evaluate_table(
            self.path, table, recalibrate=recalibrate, positive=positive, image_root=image_root, device=device
        )

    def export(self, folder: str | Path, *, single: bool = False) -> Path:
        """The weights and their description, which `deepauc predict` and plain torch load, into a new folder.

        Args:
            folder: A new one.
            single: With folds, the network of one fold instead of the average of all: smaller and faster.
        """
        if not single:
            copy_bundle(self.path, folder)
            return Path(folder)
        with TemporaryDirectory() as place:
            save_single(self.path, Path(place))
            copy_bundle(place, folder)
        return Path(folder)

    @property
    def summary(self) -> str:
        """The result in a sentence or two."""
        folds = self._record.folds
        if folds is not None:
            return " ".join(verdict(folds))
        part = next((name for name in ("test", "validation") if name in self._record.results.auc), "validation")
        inputs = self._record.inputs
        kept = "" if inputs is None else f" (kept: {kept_name(inputs)})"
        said = doubts(paired_tests(self.report.with_suffix(".json")))
        rows = self._judged()
        few = [too_few(count_rows(sample_of(rows, j))) for j in range(len(rows.label_names))]
        auc = f"AUC {interval_text(self.auc)}" if None in few else f"AUC not given, {few[0]},"
        return " ".join([*said, f"{auc} on the {part} part{kept}"])

    def __repr__(self) -> str:
        return f"Model({str(self.path)!r}): {self.summary}"

    def _repr_html_(self) -> str:
        link = f'<a href="{html.escape(str(self.report))}">{html.escape(str(self.report))}</a>'
        board = self.leaderboard.to_html(index=False, float_format=lambda value: f"{value:.3f}")
        return f"<p>{html.escape(self.summary)}</p>{board}<p>Report: {link}</p>"

    def _board(self) -> tuple[BoardRow, ...]:
        choice = self._record.choice
        if choice is None:
            return one_split_board(self._run)
        if self._record.folds is not None:
            return choice.board
        others = one_split_board(Run(self.path / IMAGES))
        return (*choice.board, *(row for row in others if row.candidate != choice.default))

    def _judged(self) -> Scores:
        part = next((name for name in ("test", "validation") if name in self._scores.part_names), None)
        if part is None:
            raise ValueError(f"{self.path} has no held-out part to judge it on.")
        return self._scores.part(part)

    def _calibrated(self) -> bool:
        bundle = Bundle.load(self.path)
        return all(name in bundle.calibration for name in bundle.label_names)

    def _id(self) -> str | None:
        """Where metadata alone were kept beside images, rows are called by their files as in training."""
        data = self._record.data
        takes_images = Bundle.load(self.path).image_shape is not None
        return data.id_column or (None if takes_images else data.image_column)
