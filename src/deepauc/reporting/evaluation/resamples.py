"""How many bootstrap samples a report draws: of very many rows fewer, so that it does not take the longest of all."""

from __future__ import annotations

import math
from statistics import NormalDist

from deepauc.reporting.evaluation.findings import Counts, Resamples

FULL = Resamples(auc=2000, others=1000)
FULL_ROWS = 200_000  # up to which all of them are drawn
FEWEST_SHARE = 5  # a fifth of them is drawn of any number of rows
_PER_RARE_ROW = 50  # the AUC's bootstrap draws no more cells than this a row of the rarer class (`resampled_auroc`)


def resamples_of(counts: Counts) -> Resamples:
    """All up to 200,000 labelled rows; beyond, as many fewer as there are more rows, but a fifth at the least.

    The rows alone decide, never a measured time. Without patients of several rows, the AUC's bootstrap costs little
    where a class is rare, and so keeps its samples.
    """
    rarer = min(counts.positives, counts.negatives)
    drawn = counts.rows if counts.clustered else min(counts.rows, _PER_RARE_ROW * rarer)
    return Resamples(auc=_fewer(FULL.auc, drawn), others=_fewer(FULL.others, counts.rows))


def _fewer(full: int, rows: int) -> int:
    return full if rows <= FULL_ROWS else max(full // FEWEST_SHARE, full * FULL_ROWS // rows)


def fewer_told(counts: Counts) -> str | None:
    """What a reader must know where not all samples were drawn."""
    found = resamples_of(counts)
    if found == FULL:
        return None
    auc = f"{found.auc:,} instead of {FULL.auc:,} for the AUC, " if found.auc < FULL.auc else ""
    return (
        f"With {counts.rows:,} rows, more than {FULL_ROWS:,}, fewer bootstrap samples are drawn: {auc}{found.others:,} "
        f"instead of {FULL.others:,} for bands, average precision and calibration. By chance an end of such an "
        f"interval is off by about {100 * _end_error(found.others):.0f} % of its half-width, instead of "
        f"{100 * _end_error(FULL.others):.0f} %. DeLong's intervals are not affected."
    )


def _end_error(samples: int) -> float:
    """Standard error of the 2.5 % quantile of so many normal numbers, of its distance from their mean."""
    tail, normal = 0.025, NormalDist()
    end = normal.inv_cdf(tail)
    return math.sqrt(tail * (1 - tail) / samples) / (normal.pdf(end) * -end)
