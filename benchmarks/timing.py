"""Best times of contenders that take turns, so that a busy moment of the machine meets all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch

Job = Callable[[], object]


def best_in_turn(
    jobs: Mapping[str, Job], *, seconds: float = 1.0, least: int = 5, most: int = 500, slow: float = 0.5
) -> dict[str, float]:
    """Shortest run of each job in seconds: rounds of one run each for `seconds`; a job over `slow` runs thrice only."""
    best = dict.fromkeys(jobs, float("inf"))
    for job in jobs.values():
        job()  # allocations, code paths and caches of the first call
    began, rounds = time.perf_counter(), 0
    while rounds < least or (time.perf_counter() - began < seconds and rounds < most):
        turn = rounds % len(jobs)  # nobody always follows the same job, and finds its caches swept by it
        for name, job in [*list(jobs.items())[turn:], *list(jobs.items())[:turn]]:
            if rounds >= 3 and best[name] > slow:
                continue
            start = time.perf_counter()
            job()
            best[name] = min(best[name], time.perf_counter() - start)
        rounds += 1
    return best


@contextmanager
def one_thread() -> Iterator[None]:
    """torch on one thread while it lasts."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def readable(seconds: float) -> str:
    """`12.3 us`, `4.56 ms`, `7.8 s`."""
    if seconds < 1e-3:
        return f"{1e6 * seconds:.3g} us"
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
