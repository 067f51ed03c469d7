"""Pairwise AUC losses, forward and backward on one CPU thread, against BCE and against all pairs in one matrix.

    python benchmarks/pairwise.py [--json PATH]

Best of several, the three taken in turn. BCE is torch's; "all pairs" forms the n+ x n- matrix and leaves the gradient
to autograd, up to 4,096 scores. Logistic goes through the pairs too (in chunks), so it stops at MOST_PAIRS of them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from deepauc.objectives.pairwise import PairwiseAUCLoss, Surrogate

SIZES = (128, 1_024, 4_096, 65_536, 1_048_576)
SHARES = (0.01, 0.5)
BRUTE_FORCE_UP_TO = 4_096
MOST_PAIRS = 50_000_000


@dataclasses.dataclass(frozen=True)
class Row:
    surrogate: str
    n: int
    positive_share: float
    seconds: float
    bce_seconds: float
    all_pairs_seconds: float | None

    @property
    def over_bce(self) -> float:
        return self.seconds / self.bce_seconds

    @property
    def faster_than_all_pairs(self) -> float | None:
        return None if self.all_pairs_seconds is None else self.all_pairs_seconds / self.seconds


def all_pairs(scores: Tensor, labels: Tensor, surrogate: Surrogate, margin: float = 1.0) -> Tensor:
    """The mean over the n+ x n- matrix of pairs, as it is usually written."""
    z = margin - (scores[labels == 1].unsqueeze(1) - scores[labels == 0].unsqueeze(0))
    if surrogate == "square":
        return z.square().mean()
    if surrogate == "logistic":
        return F.softplus(z).mean()
    return (z.relu().square() if surrogate == "squared_hinge" else z.relu()).mean()


def best_in_turn(losses: list[Callable[[Tensor, Tensor], Tensor]], scores: Tensor, labels: Tensor) -> list[float]:
    """The shortest forward + backward of each, in rounds of one run each, for a second (three rounds at least)."""
    best = [float("inf")] * len(losses)
    started, rounds = time.perf_counter(), 0
    while rounds < 3 or (time.perf_counter() - started < 1.0 and rounds < 300):
        for k, loss in enumerate(losses):
            scores.grad = None
            before = time.perf_counter()
            loss(scores, labels).backward()  # type: ignore[no-untyped-call]
            best[k] = min(best[k], time.perf_counter() - before)
        rounds += 1
    return best


def cpu_rows(sizes: tuple[int, ...] = SIZES) -> list[Row]:
    """One row a surrogate, size and share of positives; sets torch to one thread while it runs."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rows = []
    for n in sizes:
        for share in SHARES:
            generator = torch.Generator().manual_seed(0)
            labels = torch.zeros(n)
            labels[torch.randperm(n, generator=generator)[: max(round(n * share), 1)]] = 1
            scores = (torch.randn(n, generator=generator) + labels).requires_grad_()
            positives = int(labels.sum())
            for surrogate in get_args(Surrogate):
                if surrogate == "logistic" and positives * (n - positives) > MOST_PAIRS:
                    continue
                losses: list[Callable[[Tensor, Tensor], Tensor]] = [
                    PairwiseAUCLoss(surrogate),
                    F.binary_cross_entropy_with_logits,
                ]
                if n <= BRUTE_FORCE_UP_TO:
                    losses.append(lambda s, y, surrogate=surrogate: all_pairs(s, y, surrogate))  # type: ignore[misc]
                seconds = best_in_turn(losses, scores, labels)
                rows.append(Row(surrogate, n, share, seconds[0], seconds[1], seconds[2] if len(seconds) > 2 else None))
    torch.set_num_threads(threads)
    return rows


def markdown(rows: list[Row]) -> str:
    lines = [
        "| surrogate | scores | positives | ours, ms | BCE, ms | ours / BCE | all pairs, ms | all pairs / ours |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        pairs = "-" if row.all_pairs_seconds is None else f"{row.all_pairs_seconds * 1e3:.3f}"
        gain = "-" if row.faster_than_all_pairs is None else f"{row.faster_than_all_pairs:.1f}"
        lines.append(
            f"| {row.surrogate} | {row.n:,} | {row.positive_share:.0%} | {row.seconds * 1e3:.3f} | "
            f"{row.bce_seconds * 1e3:.3f} | {row.over_bce:.1f} | {pairs} | {gain} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the rows there too")
    arguments = parser.parse_args()
    rows = cpu_rows()
    machine = f"{cpu_name()}, one thread, torch {torch.__version__}, Python {platform.python_version()}"
    print(f"{machine}\n\n{markdown(rows)}")
    if arguments.json:
        record = {"machine": machine, "rows": [dataclasses.asdict(row) for row in rows]}
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
