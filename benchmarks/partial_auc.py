"""Partial AUC and AP losses, forward + backward on one CPU thread, beside torch's BCE, all pairs, and LibAUC's.

    python benchmarks/partial_auc.py

Scores are a leaf tensor of float32. What a call of the module costs is timed, checks of the input included. Best of
several, all contenders in turn, LibAUC 2.0.1's (`pAUC_CVaR_Loss`, where importable), which takes seconds, after the
others. AP and LibAUC's go through all pairs, so they stop at so many of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from deepauc.objectives.average_precision import AveragePrecisionLoss
from deepauc.objectives.pairwise import PairwiseAUCLoss
from deepauc.objectives.partial_auc import PartialAUCLoss
from timing import best_in_turn, one_thread, readable

SIZES = (128, 1_024, 65_536)
SHARES = (0.01, 0.5)
MOST_PAIRS, LIBAUC_PAIRS = 2_000_000, 50_000_000
BCE, AP, LIBAUC = "torch BCE", "AveragePrecisionLoss", "LibAUC, FPR <= .3"
Row = dict[str, Any]


def cpu_rows() -> list[Row]:
    """One row a size and share of positives: seconds of every contender, and their ratio to torch's BCE."""
    with one_thread():
        return [_row(size, share) for size in SIZES for share in SHARES]


def as_table(rows: list[Row]) -> str:
    """A markdown table: time, and in brackets the multiple of BCE's."""
    names = list(rows[0]["seconds"])
    lines = ["| scores | positives | " + " | ".join(names) + " |", "|---:|---:|" + "---:|" * len(names)]
    for row in rows:
        cells = [
            f"{readable(row['seconds'][name])} ({row['over_bce'][name]:.1f}x)" if name in row["seconds"] else "not run"
            for name in names
        ]
        lines.append(f"| {row['size']:,} | {row['positive_share']:.0%} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _row(size: int, share: float) -> Row:
    generator = torch.Generator().manual_seed(0)
    labels = torch.zeros(size)
    labels[torch.randperm(size, generator=generator)[: max(round(size * share), 1)]] = 1
    scores = (torch.randn(size, generator=generator) + labels).requires_grad_()
    losses: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        BCE: F.binary_cross_entropy_with_logits,
        "all pairs": PairwiseAUCLoss(),
        "FPR <= .3": PartialAUCLoss(max_fpr=0.3),
        "TPR >= .8": PartialAUCLoss(min_tpr=0.8),
        "both": PartialAUCLoss(max_fpr=0.3, min_tpr=0.8),
    }
    if size * labels.sum() <= MOST_PAIRS:
        loss_fn, index = AveragePrecisionLoss(size), torch.arange(size)
        losses[AP] = lambda s, y: loss_fn(s, y, index)

    def forward_backward(loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], None]:
        def run() -> None:
            scores.grad = None
            loss(scores, labels).backward()  # type: ignore[no-untyped-call]

        return run

    seconds = best_in_turn({name: forward_backward(loss) for name, loss in losses.items()}, seconds=6.0, most=2000)
    if size * labels.sum() <= LIBAUC_PAIRS and (theirs := _libauc(size, int(labels.sum()))) is not None:
        seconds |= best_in_turn({LIBAUC: forward_backward(theirs)}, least=1)
    over_bce = {name: spent / seconds[BCE] for name, spent in seconds.items()}
    return {"size": size, "positive_share": share, "seconds": seconds, "over_bce": over_bce}


def _libauc(size: int, positives: int) -> Callable[[Tensor, Tensor], Tensor] | None:
    try:
        from libauc.losses.auc import pAUC_CVaR_Loss
    except ImportError:
        return None
    loss_fn = pAUC_CVaR_Loss(size, positives, beta=0.3, device=torch.device("cpu"))
    index = torch.arange(size)
    return lambda s, y: loss_fn(s.unsqueeze(1), y.unsqueeze(1), index)


if __name__ == "__main__":
    print(as_table(cpu_rows()))
