"""Loss forward + backward on one CPU thread: ours, torch's binary cross-entropy, LibAUC's AUCMLoss where importable.

    python benchmarks/losses.py

Scores are a leaf tensor of float32, labels 0/1 in float32 with 10 % of positives. What a call of the module costs is
timed, checks of the input included. Best of several, all contenders in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from deepauc.objectives.auc_margin import AUCMarginLoss
from deepauc.objectives.auc_square import AUCSquareLoss
from deepauc.objectives.baselines import CrossEntropyLoss
from timing import best_in_turn, one_thread, readable

SIZES = (128, 1_024, 65_536, 1_048_576)
LIBAUC_PATIENCE = 5.0  # seconds; where its time is expected to be above, it is left out
BCE, LIBAUC = "torch BCE", "LibAUC AUCMLoss"
Row = dict[str, Any]
Loss = Callable[[Tensor, Tensor], Tensor]


def cpu_rows() -> list[Row]:
    """One row a size: seconds of every contender, their ratio to torch's BCE, and LibAUC's to AUCMarginLoss."""
    rows: list[Row] = []
    with one_thread():
        for size in SIZES:
            expected = rows[-1]["seconds"].get(LIBAUC, 0) * size / rows[-1]["size"] if rows else 0
            rows.append(_row(size, with_libauc=expected < LIBAUC_PATIENCE))
    return rows


def as_table(rows: list[Row]) -> str:
    """A markdown table: time, and in brackets the multiple of BCE's."""
    names = list(rows[0]["seconds"])
    lines = ["| scores | " + " | ".join(names) + " | LibAUC / AUCMarginLoss |", "|---:|" + "---:|" * (len(names) + 1)]
    for row in rows:
        cells = [
            f"{readable(row['seconds'][name])} ({row['over_bce'][name]:.2f}x)" if name in row["seconds"] else "not run"
            for name in names
        ]
        gain = row["libauc_over_ours"]
        lines.append(f"| {row['size']:,} | {' | '.join(cells)} | {'-' if gain is None else f'{gain:.0f}x'} |")
    return "\n".join(lines)


def _row(size: int, *, with_libauc: bool) -> Row:
    generator = torch.Generator().manual_seed(0)
    labels = (torch.rand(size, generator=generator) < 0.1).float()
    labels[:2] = torch.tensor([0.0, 1.0])
    scores = torch.rand(size, generator=generator).requires_grad_()
    losses: dict[str, Loss] = {
        "AUCMarginLoss": AUCMarginLoss(prior=0.1),
        "AUCSquareLoss": AUCSquareLoss(prior=0.1),
        "CrossEntropyLoss": CrossEntropyLoss(),
        BCE: F.binary_cross_entropy_with_logits,
    }
    theirs = _libauc_loss() if with_libauc else None
    if theirs is not None:
        losses[LIBAUC] = theirs
    jobs = {name: _forward_backward(loss, scores, labels) for name, loss in losses.items()}
    seconds = best_in_turn(jobs, seconds=2.0, most=2000)
    return {
        "size": size,
        "seconds": seconds,
        "over_bce": {name: spent / seconds[BCE] for name, spent in seconds.items()},
        "libauc_over_ours": seconds[LIBAUC] / seconds["AUCMarginLoss"] if LIBAUC in seconds else None,
    }


def _forward_backward(loss: Loss, scores: Tensor, labels: Tensor) -> Callable[[], None]:
    parameters = list(loss.parameters()) if isinstance(loss, torch.nn.Module) else []

    def run() -> None:
        for leaf in (scores, *parameters):
            leaf.grad = None
        loss(scores, labels).backward()  # type: ignore[no-untyped-call]

    return run


def _libauc_loss() -> Loss | None:
    try:
        from libauc.losses import AUCMLoss
    except ImportError:
        return None
    return _Column(AUCMLoss(margin=1.0, imratio=0.1, device=torch.device("cpu")))


class _Column(torch.nn.Module):
    """LibAUC's losses want (N, 1)."""

    def __init__(self, loss: torch.nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        return self.loss(scores.unsqueeze(1), labels.unsqueeze(1)).sum()


if __name__ == "__main__":
    print(as_table(cpu_rows()))
