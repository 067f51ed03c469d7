"""Local processes as the crew of `cluster.py`, each with one torch thread."""

from __future__ import annotations

import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

from deepauc.studies.load import Parcel
from deepauc.studies.running.cluster import Answer, Order, unpack_and_carry_out


class ProcessCrew:
    """Orders in a pool of processes; those that have no process yet wait here.

    A process that is killed breaks the pool: what was going then is tried again, each order in a pool of its own, and
    the others go on in a new pool.
    """

    local, threads = True, 1

    def __init__(self, jobs: int) -> None:
        self.slots = jobs
        self._pool = _pool(jobs)
        self._waiting: list[Order] = []
        self._going: dict[Future[Answer], Order] = {}
        self._ended: list[tuple[Order, Answer | str]] = []

    def begin(self, order: Order) -> None:
        self._waiting.append(order)

    def next_ended(self) -> tuple[Order, Answer | str]:
        while not self._ended:
            try:
                self._fill()
                for future in wait(self._going, return_when=FIRST_COMPLETED).done:
                    answer = _answer(future)
                    self._ended.append((self._going.pop(future), answer))
            except BrokenProcessPool:
                doubtful, self._going = list(self._going.values()), {}
                self.close()
                self._ended += [(order, _alone(order)) for order in doubtful]
                self._pool = _pool(self.slots)
        return self._ended.pop(0)

    def close(self) -> None:
        """Once what is going has ended."""
        self._pool.shutdown()

    def _fill(self) -> None:
        while self._waiting and len(self._going) < self.slots:
            order = self._waiting[0]
            if order.until is not None and time.time() >= order.until:
                self._ended.append((order, Answer((), True)))
            else:
                self._going[self._pool.submit(unpack_and_carry_out, Parcel.of(order))] = order
            del self._waiting[0]


def _pool(jobs: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))


def _answer(future: Future[Answer]) -> Answer | str:
    """Or why there is none: a task that does not load, say."""
    try:
        return future.result()
    except BrokenProcessPool:
        raise
    except Exception as error:
        return " ".join(str(error).split()) or type(error).__name__


def _alone(order: Order) -> Answer | str:
    with _pool(1) as pool:
        try:
            return _answer(pool.submit(unpack_and_carry_out, Parcel.of(order)))
        except BrokenProcessPool:
            return "its process was killed (out of memory?)"
