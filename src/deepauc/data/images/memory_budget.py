"""So much memory for all threads together: whoever needs more than is left waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class MemoryBudget:
    """A semaphore weighted by bytes. What needs more than the whole budget waits until it is alone, and then runs."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held = 0
        self._changed = threading.Condition()

    @contextmanager
    def hold(self, wanted: int) -> Iterator[None]:
        """Wait for so many bytes, and keep them until the block ends. A thread holds one such share at a time."""
        share = min(wanted, self.limit)
        with self._changed:
            self._changed.wait_for(lambda: self._held + share <= self.limit)
            self._held += share
        try:
            yield
        finally:
            with self._changed:
                self._held -= share
                self._changed.notify_all()
