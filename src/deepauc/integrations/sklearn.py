"""`DeepAUCClassifier`: AUC maximisation as a scikit-learn estimator, for arrays and tables.

This module, and nothing that `import deepauc` loads, imports scikit-learn: an estimator is one by inheritance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin  # noqa: TID253
from sklearn.linear_model import LogisticRegression  # noqa: TID253
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold, check_cv  # noqa: TID253
from sklearn.utils import check_random_state  # noqa: TID253
from sklearn.utils.multiclass import check_classification_targets  # noqa: TID253
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data  # noqa: TID253

from deepauc.integrations.table_training import (
    FeatureTable,
    Floats,
    LinearPlusMLP,
    ModuleFactory,
    Rows,
    Scorer,
    TableRun,
    TableSettings,
)
from deepauc.labels import scale_free_array
from deepauc.metrics.auroc import auroc
from deepauc.metrics.basis.columns import group_numbers
from deepauc.metrics.recalibration import TemperatureScaling

Splits = list[tuple[Rows, Rows]]

TIE = 1e-9  # mean AUCs closer than this are equal: the order of a sum must not choose the length of training
RIDGE = 1e-3  # on the slope of the recalibration, where the mean cross-entropy is what is minimised
SMALLEST_SLOPE = 1e-3  # a standard deviation of the scores: probabilities are all but constant, their order is kept


class DeepAUCClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Maximises the AUC of a small network on a table: AUC-M and PESG on sigmoid scores, one-vs-rest for classes.

    fit: features are standardised; cross-validation finds the length of training (and the weight decay, where several
    are given) with the best mean AUC on held-out rows; a network is then trained for that long on all rows. Slope and
    intercept of `predict_proba` come from the held-out scores, so its mean is near the share of positives.

    Fitted: classes_, n_iter_, weight_decay_, cv_auc_ (mean over folds, and over classes one-vs-rest), cv_curve_,
    module_, standardiser_, recalibration_ (one per column), n_features_in_, feature_names_in_.

    Args:
        module: Makes the network, called with (in_features, num_outputs); None is a linear model plus an MLP.
        hidden: Widths of that MLP.
        margin: Margin of AUCMarginLoss.
        lr: Learning rate of PESG.
        gamma: PESG's pull towards its reference.
        momentum: Momentum of PESG.
        weight_decay: Weight decay of PESG; of several values cross-validation chooses one.
        batch_size: Rows per step. A smaller table is taken whole, a larger one by ClassQuotaSampler.
        max_iter: Largest number of steps.
        n_iter_no_change: Steps without a better AUC after which cross-validation ends.
        check_every: Steps between two looks at the AUC.
        cv: Number of folds, a scikit-learn splitter, or (train, test) pairs.
        device: Where it is trained; it is kept and applied on the CPU, in float64.
        random_state: Random seed.
    """

    def __init__(
        self,
        *,
        module: ModuleFactory | None = None,
        hidden: int | Sequence[int] = (64,),
        margin: float = 1.0,
        lr: float = 0.1,
        gamma: float = 0.002,
        momentum: float = 0.9,
        weight_decay: float | Sequence[float] = (1e-3, 3e-2),
        batch_size: int = 512,
        max_iter: int = 500,
        n_iter_no_change: int = 100,
        check_every: int = 10,
        cv: int | Any = 5,
        device: str = "cpu",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.module = module
        self.hidden = hidden
        self.margin = margin
        self.lr = lr
        self.gamma = gamma
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.n_iter_no_change = n_iter_no_change
        self.check_every = check_every
        self.cv = cv
        self.device = device
        self.random_state = random_state

    def fit(
        self,
        X: npt.ArrayLike,
        y: npt.ArrayLike,
        sample_weight: npt.ArrayLike | None = None,
        *,
        groups: npt.ArrayLike | None = None,
    ) -> Self:
        """Train the network.

        Args:
            X: (N, F) finite numbers.
            y: (N,) classes.
            sample_weight: (N,).
            groups: (N,), patients; each is kept in one fold.
        """
        features, labels = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(labels)
        weights = _check_sample_weight(sample_weight, features, dtype=np.float64)
        kept = _rows_with_weight(weights)
        self.classes_, numbers = np.unique(labels[kept], return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y holds only one class ({_plain(self.classes_[0])!r}) in the rows with weight: "
                "an AUC needs at least two classes."
            )
        if len(self.classes_) == 2:
            columns = numbers[:, None].astype(np.float64)
        else:
            columns = (numbers[:, None] == np.arange(len(self.classes_))).astype(np.float64)
        own = scale_free_array(weights[kept])
        table = FeatureTable(features[kept], columns, own / own.mean())
        settings = self._settings()
        splits = self._splits(features, labels, kept, numbers, groups, settings.seed)

        trials = [
            _cross_validate(
                table,
                splits,
                replace(settings, weight_decay=decay),
                max_iter=self.max_iter,
                patience=self.n_iter_no_change,
                every=self.check_every,
            )
            for decay in self._decays()
        ]
        best = max(trial.auc for trial in trials)
        chosen = next(trial for trial in trials if trial.auc >= best - TIE)
        self.n_iter_, self.weight_decay_ = chosen.steps, chosen.weight_decay
        self.cv_auc_, self.cv_curve_ = chosen.auc, chosen.curve
        self.recalibration_ = _recalibrations(chosen, table)

        run = TableRun(table, [np.arange(len(kept))], replace(settings, weight_decay=chosen.weight_decay))
        run.advance(chosen.steps)
        (trained,) = run.scorers
        self.module_ = trained.module.cpu().eval()
        self.standardiser_ = trained.standardiser
        return self

    def decision_function(self, X: npt.ArrayLike) -> Floats:
        """Recalibrated log-odds: (N,) of the second class for two classes, else (N, C), each class against the rest."""
        check_is_fitted(self)
        features = validate_data(self, X, dtype=np.float64, reset=False)
        scores = Scorer(self.module_, self.standardiser_, torch.device("cpu"))(features)
        logits = [one.slope * h + one.intercept for one, h in zip(self.recalibration_, scores.T, strict=True)]
        return logits[0] if len(logits) == 1 else np.stack(logits, axis=1)

    def predict_proba(self, X: npt.ArrayLike) -> Floats:
        """Probabilities (N, C); for more than two classes the one-vs-rest ones, divided by their sum."""
        logits = self.decision_function(X)
        probability = np.exp(-np.logaddexp(0.0, -logits))
        if logits.ndim == 1:
            return np.stack([1 - probability, probability], axis=1)
        return probability / probability.sum(axis=1, keepdims=True)

    def predict(self, X: npt.ArrayLike) -> npt.NDArray[Any]:
        """The likeliest class. For a rare one that is seldom what is wanted: put a threshold on `predict_proba`."""
        logits = self.decision_function(X)
        numbers = (logits > 0).astype(np.intp) if logits.ndim == 1 else logits.argmax(axis=1)
        return self.classes_[numbers]

    def _settings(self) -> TableSettings:
        for name in ("batch_size", "max_iter", "n_iter_no_change", "check_every"):
            value = getattr(self, name)
            if not isinstance(value, Integral) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}.")
        if self.batch_size < 4:
            raise ValueError(f"batch_size must be at least 4, to hold some rows of each class, not {self.batch_size}.")
        hidden = tuple(np.atleast_1d(self.hidden).tolist())
        if any(not isinstance(width, Integral) or width < 1 for width in hidden):
            raise ValueError(f"hidden must hold whole numbers of at least 1, not {hidden}.")
        return TableSettings(
            module=self.module or (lambda inputs, outputs: LinearPlusMLP(inputs, outputs, hidden=hidden)),
            margin=self.margin,
            lr=self.lr,
            gamma=self.gamma,
            weight_decay=0.0,
            momentum=self.momentum,
            batch_size=self.batch_size,
            device=_device(self.device),
            seed=int(check_random_state(self.random_state).randint(2**31 - 1)),
        )

    def _decays(self) -> list[float]:
        decays: list[float] = np.asarray(self.weight_decay, dtype=np.float64).reshape(-1).tolist()
        if not decays:
            raise ValueError("weight_decay is empty: give a number, or several to choose from.")
        return decays

    def _splits(
        self,
        features: Floats,
        labels: npt.NDArray[Any],
        kept: Rows,
        numbers: npt.NDArray[np.intp],
        groups: npt.ArrayLike | None,
        seed: int,
    ) -> Splits:
        """(train, held out) pairs among the rows with weight; a splitter of the user's sees, and counts, all rows."""
        patients = None if groups is None else np.asarray(groups)
        if patients is not None and patients.shape != labels.shape:
            raise ValueError(f"groups have shape {patients.shape}; they must be {labels.shape}, one patient per row.")
        known = None if groups is None else group_numbers(groups, len(labels))  # a missing one is refused
        splits: Iterable[tuple[Rows, Rows]]
        if isinstance(self.cv, Integral):
            own = None if known is None else known[kept]
            folds = _possible_folds(int(self.cv), numbers, own, self.classes_)
            kind = StratifiedKFold if own is None else StratifiedGroupKFold
            splits = kind(folds, shuffle=True, random_state=seed).split(features[kept], numbers, own)
        else:
            place = np.full(len(labels), -1)
            place[kept] = np.arange(len(kept))
            user = check_cv(self.cv, labels, classifier=True).split(features, labels, patients)
            mapped = ((place[train], place[test]) for train, test in user)
            splits = ((train[train >= 0], test[test >= 0]) for train, test in mapped)
        found = list(splits)
        for train, _ in found:
            if len(np.unique(numbers[train])) < len(self.classes_):
                raise ValueError(
                    "a fold of the cross-validation trains without one of the classes: use fewer folds, "
                    "a stratified splitter, or give rare classes more rows."
                )
        return found


@dataclass(frozen=True)
class _Trial:
    """Cross-validation with one weight decay: the best length, and the held-out scores there."""

    weight_decay: float
    steps: int
    auc: float
    curve: Floats  # mean AUC after every `check_every` steps
    rows: Rows  # held-out rows, fold after fold
    scores: Floats  # theirs, (len(rows), L)


def _cross_validate(
    table: FeatureTable, splits: Splits, settings: TableSettings, *, max_iter: int, patience: int, every: int
) -> _Trial:
    """All folds go on side by side until their mean AUC has not risen for `patience` steps."""
    run = TableRun(table, [train for train, _ in splits], settings)
    held_out = [table.features[test] for _, test in splits]
    curve: list[float] = []
    lengths: list[int] = []
    best: list[tuple[int, list[Floats]]] = []  # lengths of the highest AUC, with the scores there
    while run.steps < max_iter:
        run.advance(min(every, max_iter - run.steps))
        scores = [scorer(features) for scorer, features in zip(run.scorers, held_out, strict=True)]
        aucs = [_mean_auc(h, table, test) for h, (_, test) in zip(scores, splits, strict=True)]
        lengths.append(run.steps)
        curve.append(float(np.mean(aucs)))
        best.append((run.steps, scores))
        highest = max(curve)
        equal = {length for length, value in zip(lengths, curve, strict=True) if value >= highest - TIE}
        best = [(length, kept) for length, kept in best if length in equal]
        if run.steps - min(equal) >= patience:
            break
    steps, scores = best[(len(best) - 1) // 2]  # of several best lengths the middle one, the least by chance
    return _Trial(
        weight_decay=settings.weight_decay,
        steps=steps,
        auc=curve[lengths.index(steps)],
        curve=np.array(curve),
        rows=np.concatenate([test for _, test in splits]),
        scores=np.concatenate(scores),
    )


def _mean_auc(scores: Floats, table: FeatureTable, rows: Rows) -> float:
    """Of the rows' scores, over the columns that have both classes among them."""
    columns = table.columns[rows]
    positives = columns.sum(0)
    both = np.flatnonzero((positives > 0) & (positives < len(rows)))
    if not both.size:
        raise ValueError(
            "a held-out part of the cross-validation has one class only: use a stratified splitter, or fewer folds."
        )
    return float(np.mean(auroc(scores[:, both], columns[:, both], weights=table.weights[rows])))


def _recalibrations(trial: _Trial, table: FeatureTable) -> tuple[TemperatureScaling, ...]:
    columns, weights = table.columns[trial.rows], table.weights[trial.rows]
    return tuple(_recalibration(h, y, weights) for h, y in zip(trial.scores.T, columns.T, strict=True))


def _recalibration(scores: Floats, positive: Floats, weights: Floats) -> TemperatureScaling:
    """Slope and intercept of least mean cross-entropy + RIDGE/2 slope^2, the slope a standard deviation of the scores.

    The intercept is free, so the mean probability of these rows is their share of positives; the ridge keeps the slope
    finite where the classes are separable, whatever the number and weights of the rows. The order is never turned.
    """
    share = float(np.average(positive, weights=weights))
    if not 0 < share < 1:
        raise ValueError(
            "one of the classes is in no held-out part of the cross-validation: use a stratified splitter."
        )
    centre = float(np.average(scores, weights=weights))
    spread = math.sqrt(float(np.average((scores - centre) ** 2, weights=weights))) or 1.0
    model = LogisticRegression(C=1 / (RIDGE * weights.sum()), solver="newton-cholesky", tol=1e-12, max_iter=200)
    model.fit(((scores - centre) / spread)[:, None], positive, sample_weight=weights)
    slope, intercept = float(model.coef_[0, 0]), float(model.intercept_[0])
    if slope < SMALLEST_SLOPE:
        slope, intercept = SMALLEST_SLOPE, math.log(share / (1 - share))
    return TemperatureScaling(slope=slope / spread, intercept=intercept - slope * centre / spread)


def _rows_with_weight(weights: Floats) -> Rows:
    if (weights < 0).any():
        raise ValueError("sample_weight must not be negative.")
    kept = np.flatnonzero(weights)
    if not kept.size:
        raise ValueError("every sample_weight is zero: at least some rows of two classes need weight.")
    return kept


def _possible_folds(
    wanted: int, numbers: npt.NDArray[np.intp], groups: npt.NDArray[Any] | None, classes: npt.NDArray[Any]
) -> int:
    """The folds asked for, or as many as the rarest class has rows (patients): each fold holds out one of each."""
    if wanted < 2:
        raise ValueError(f"cv must be at least 2 folds, not {wanted}.")
    owners = np.arange(len(numbers)) if groups is None else np.unique(groups, return_inverse=True)[1]
    counts = [len(np.unique(owners[numbers == number])) for number in range(len(classes))]
    rarest = int(np.argmin(counts))
    if counts[rarest] < 2:
        what = "row" if groups is None else "group"
        raise ValueError(
            f"class {_plain(classes[rarest])!r} has only one {what} with weight: "
            "cross-validation needs two or more of each class."
        )
    return min(wanted, counts[rarest])


def _plain(label: Any) -> Any:
    """A class as the user wrote it: 1, not np.int64(1)."""
    return label.item() if isinstance(label, np.generic) else label


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise ValueError(f"device is {name!r}; write 'cpu', or 'cuda' for a GPU.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device is {name!r}, but torch finds no GPU on this machine; write 'cpu'.")
    if device.type == "mps":
        raise ValueError("device 'mps' has no 64-bit numbers, which this classifier needs: write 'cpu'.")
    return device
