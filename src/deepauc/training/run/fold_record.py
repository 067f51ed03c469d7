"""What run.json says of cross-validation: the folds, the candidates judged on them, and the one that was kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from deepauc.metrics.intervals import Estimate


@dataclass(frozen=True, kw_only=True)
class BoardRow:
    """The AUC of a candidate for one label, over the folds; seconds: to train it in all folds.

    less_kept: the paired difference, this AUC less that of the kept candidate; None of the kept one itself, of runs
    with one split and of earlier versions.
    """

    candidate: str
    label: str
    auc: Estimate[float]
    seconds: float
    kept: bool
    trivial: bool
    less_kept: Estimate[float] | None = None


@dataclass(frozen=True, kw_only=True)
class KeptCandidate:
    """The candidate that was kept. Figures are means over labels, but for `aucs`.

    auc, aucs: corrected for the choosing. too_few: labels that `auc` leaves out, and why. with_trivial: the trivial
    baseline that joins its average. trivial: the best of them; lead: the AUC of the kept candidate, without it, less
    that baseline's.
    """

    kept: str
    default: str
    auc: Estimate[float]
    aucs: Mapping[str, Estimate[float]]
    board: tuple[BoardRow, ...]
    with_trivial: str | None = None
    trivial: str | None = None
    lead: Estimate[float] | None = None
    too_few: Mapping[str, str] = field(default_factory=dict)

    @property
    def counted(self) -> int:
        """Labels that the mean is over."""
        return sum(name not in self.too_few for name in self.aucs)

    @property
    def clearly_better(self) -> bool | None:
        """Than the best trivial baseline, beyond chance (95 %); None where there is none."""
        return None if self.lead is None else self.lead.low > 0


@dataclass(frozen=True, kw_only=True)
class FoldsRecord:
    """names: of the folds, in the order of their folders. column: of the table that names them. choice: at the
    end, by its name in run.json.
    """

    names: tuple[str, ...]
    column: str | None = None
    cautions: tuple[str, ...] = ()
    choice: KeptCandidate | None = None

    @classmethod
    def of(cls, plain: Any) -> FoldsRecord | None:
        """None where run.json has none; a ValueError where it is damaged."""
        if plain is None:
            return None
        try:
            return cls(
                names=tuple(map(str, plain["names"])),
                column=plain.get("column"),
                cautions=tuple(map(str, plain.get("cautions", ()))),
                choice=kept_candidate(plain.get("choice")),
            )
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise ValueError("run.json is damaged: its entry on folds cannot be read.") from error

    def to_plain(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value is not None}


def kept_candidate(plain: Any) -> KeptCandidate | None:
    """None where run.json has none."""
    if plain is None:
        return None
    try:
        return _kept(plain)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError("run.json is damaged: what it says of candidates cannot be read.") from error


def _kept(plain: Mapping[str, Any]) -> KeptCandidate:
    board = (
        BoardRow(**{**row, "auc": Estimate(**row["auc"]), "less_kept": _estimate(row.get("less_kept"))})
        for row in plain["board"]
    )
    return KeptCandidate(
        kept=plain["kept"],
        default=plain["default"],
        auc=Estimate(**plain["auc"]),
        aucs={label: Estimate(**auc) for label, auc in plain["aucs"].items()},
        board=tuple(board),
        with_trivial=plain.get("with_trivial"),
        trivial=plain.get("trivial"),
        lead=_estimate(plain.get("lead")),
        too_few=dict(plain.get("too_few", {})),
    )


def _estimate(plain: Mapping[str, float] | None) -> Estimate[float] | None:
    return None if plain is None else Estimate(**plain)
