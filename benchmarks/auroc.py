"""AUROC and its bootstrap against scikit-learn and torchmetrics, as ratios from interleaved runs.

    python benchmarks/auroc.py [--huge] [--gpu] [--json PATH]

One thread on the CPU, best of several runs, the contenders taking turns. Scores are normal float32 as a network gives
them. torchmetrics wants probabilities: it gets their sigmoid, computed outside its time. 10^8 scores with --huge.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deepauc.metrics.auroc import auroc
from deepauc.metrics.intervals import auroc_interval
from timing import one_thread, readable

SHARES = (0.01, 0.5)
LOOP_RESAMPLES = 20  # of scikit-learn's bootstrap loop are timed; its time is scaled up to all
Row = dict[str, Any]


def cpu_rows(*, huge: bool = False) -> list[Row]:
    """AUROC from 10^5 to 10^7 scores (10^8 when huge), then the 2,000-fold bootstrap of 10^5."""
    sizes = [10**5, 10**6, 10**7] + ([10**8] if huge else [])
    with one_thread():
        rows = [_auroc_row(size, share) for size in sizes for share in SHARES]
        return rows + [_bootstrap_row(10**5, share) for share in SHARES]


def gpu_rows() -> list[Row]:
    """AUROC of CUDA tensors against torchmetrics on the same device; empty without CUDA."""
    if not torch.cuda.is_available():
        return []
    return [_gpu_row(size, share) for size in (10**6, 10**7, 10**8) for share in SHARES]


def as_table(rows: list[Row]) -> str:
    """A markdown pipe table; the ratio is the contender's time over deepauc's."""
    lines = ["| what | scores | positives | deepauc | contenders | |", "|---|---|---|---|---|---|"]
    for row in rows:
        ours = row["seconds"]["deepauc"]
        others = ", ".join(
            f"{name} {readable(seconds)} ({row['ratio'][name]:.1f}x)"
            for name, seconds in row["seconds"].items()
            if name != "deepauc"
        )
        share = f"{100 * row['positive_share']:g} %"
        lines.append(f"| {row['name']} | {row['size']:,} | {share} | {readable(ours)} | {others} | {row['note']} |")
    return "\n".join(lines)


def _auroc_row(size: int, share: float) -> Row:
    from sklearn.metrics import roc_auc_score
    from torchmetrics.functional.classification import binary_auroc

    scores, labels = _problem(size, share)
    probabilities = torch.from_numpy(scores).sigmoid()
    targets = torch.from_numpy(labels)
    contenders: dict[str, Callable[[], Any]] = {
        "deepauc": lambda: auroc(scores, labels),
        "scikit-learn": lambda: roc_auc_score(labels, scores),
        "torchmetrics": lambda: binary_auroc(probabilities, targets, validate_args=False),
    }
    runs = {10**5: 9, 10**6: 7, 10**7: 4, 10**8: 2}[size]
    seconds, values = _take_turns(contenders, runs)
    _require_equal(values["deepauc"], values["scikit-learn"])
    return _row("AUROC, one CPU thread", size, share, seconds, f"best of {runs}")


def _bootstrap_row(size: int, share: float, n_resamples: int = 2000) -> Row:
    from sklearn.metrics import roc_auc_score

    scores, labels = _problem(size, share)
    rng = np.random.default_rng(0)

    def loop() -> list[float]:
        values = []
        for _ in range(LOOP_RESAMPLES):
            drawn = rng.integers(0, size, size)
            values.append(roc_auc_score(labels[drawn], scores[drawn]))
        return values

    contenders = {
        "deepauc": lambda: auroc_interval(scores, labels, method="bootstrap", n_resamples=n_resamples),
        "scikit-learn in a loop": loop,
    }
    seconds, _ = _take_turns(contenders, 4)
    seconds["scikit-learn in a loop"] *= n_resamples / LOOP_RESAMPLES
    note = f"best of 4; the loop timed on {LOOP_RESAMPLES} resamples and scaled to {n_resamples:,}"
    return _row(f"AUROC bootstrap, {n_resamples:,} resamples, one CPU thread", size, share, seconds, note)


def _gpu_row(size: int, share: float) -> Row:
    from torchmetrics.functional.classification import binary_auroc

    generator = torch.Generator("cuda").manual_seed(0)
    labels = (torch.rand(size, device="cuda", generator=generator) < share).long()
    scores = torch.randn(size, device="cuda", generator=generator) + labels
    probabilities = scores.sigmoid()
    contenders: dict[str, Callable[[], Any]] = {
        "deepauc": lambda: auroc(scores, labels),
        "torchmetrics": lambda: binary_auroc(probabilities, labels, validate_args=False).item(),
    }
    for run in contenders.values():
        run()  # the first call loads kernels
    seconds, _ = _take_turns(contenders, 10, before=torch.cuda.synchronize)
    return _row(f"AUROC, {torch.cuda.get_device_name()}", size, share, seconds, "best of 10")


def _problem(size: int, share: float) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    labels = (rng.random(size, dtype=np.float32) < share).astype(np.int64)
    scores = rng.standard_normal(size, dtype=np.float32)
    scores += labels
    return scores, labels


def _take_turns(
    contenders: dict[str, Callable[[], Any]], runs: int, before: Callable[[], None] = lambda: None
) -> tuple[dict[str, float], dict[str, Any]]:
    best, values = dict.fromkeys(contenders, float("inf")), {}
    for _ in range(runs):
        for name, run in contenders.items():
            before()
            start = time.perf_counter()
            values[name] = run()
            best[name] = min(best[name], time.perf_counter() - start)
    return best, values


def _require_equal(ours: float, theirs: float) -> None:
    if abs(ours - theirs) > 1e-9:
        raise RuntimeError(f"deepauc gives {ours}, scikit-learn {theirs}: a speed comparison of different values")


def _row(name: str, size: int, share: float, seconds: dict[str, float], note: str) -> Row:
    ratio = {other: seconds[other] / seconds["deepauc"] for other in seconds if other != "deepauc"}
    return {"name": name, "size": size, "positive_share": share, "seconds": seconds, "ratio": ratio, "note": note}


def main() -> None:
    """Print the table; write the rows where --json says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--huge", action="store_true", help="10^8 scores too: minutes, and 10 GB of memory")
    parser.add_argument("--gpu", action="store_true", help="only the rows of the GPU")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    rows = gpu_rows() if options.gpu else cpu_rows(huge=options.huge) + gpu_rows()
    print(as_table(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
