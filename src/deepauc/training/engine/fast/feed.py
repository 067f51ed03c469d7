"""Images for the fast engine: all of them on the device, or batch by batch through pinned memory."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from deepauc.data.splits import trainable_rows
from deepauc.data.task import Task

SHARE_OF_FREE_MEMORY = 0.5
HOST_BYTES = 1 << 30
CHUNK = 4096
AHEAD = 3

Ready = queue.Queue[Tensor | BaseException]


def rows_needed(tasks: Sequence[Task]) -> npt.NDArray[np.int64]:
    """Rows that training or scoring on these tasks may read: what is in no part (removed positives, say) is not one."""
    held_out = [task.labelled(part) for task in tasks for part in task.parts if part != "train"]
    return np.unique(np.concatenate([*(trainable_rows(task) for task in tasks), *held_out]))


def images_on_device(task: Task, device: torch.device, *, rows: npt.NDArray[np.int64] | None = None) -> Tensor | None:
    """Inputs as they are, (N, H, W, C) uint8 or (N, F) float32; None where they would crowd the device.

    rows: the ones to read; the others are 0. None reads all.
    """
    size = len(task) * int(np.prod(task.source.shape)) * task.source.dtype.itemsize
    room = torch.cuda.mem_get_info(device)[0] * SHARE_OF_FREE_MEMORY if device.type == "cuda" else HOST_BYTES
    if size > room:
        return None
    dtype = torch.uint8 if task.source.dtype == np.uint8 else torch.float32
    images = torch.zeros(len(task), *task.source.shape, dtype=dtype, device=device)
    wanted = np.arange(len(task)) if rows is None else rows
    for start in range(0, len(wanted), CHUNK):
        some = wanted[start : start + CHUNK]
        images[torch.from_numpy(some).to(device)] = torch.from_numpy(task.inputs(some)).to(device)
    return images


class HostFeed:
    """Reads batches ahead in a thread and brings them to one place on the device, `staged`.

    The thread holds the data, not the feed, and ends with it: none is left behind by a run that is broken off.
    """

    def __init__(self, task: Task, batch_size: int, device: torch.device) -> None:
        self.task, self.device = task, device
        dtype = torch.uint8 if task.source.dtype == np.uint8 else torch.float32
        self.staged = torch.zeros(batch_size, *task.source.shape, dtype=dtype, device=device)
        self._ready: Ready = queue.Queue(maxsize=AHEAD)
        self._let_go = weakref.finalize(self, _let_go, self._ready, threading.Event())

    def start(self, table: npt.NDArray[np.int64]) -> None:
        """Begin to read these batches, (steps, batch_size)."""
        self._let_go()  # of a table before
        self._ready, left = queue.Queue(maxsize=AHEAD), threading.Event()
        self._let_go = weakref.finalize(self, _let_go, self._ready, left)
        pinned = self.device.type == "cuda"
        threading.Thread(target=_read, args=(self.task, table, self._ready, left, pinned), daemon=True).start()

    def next(self) -> None:
        """The next batch into `staged`, in the order of the stream that calls."""
        batch = self._ready.get()
        if isinstance(batch, BaseException):
            raise batch
        self.staged.copy_(batch, non_blocking=True)


def _read(task: Task, table: npt.NDArray[np.int64], ready: Ready, left: threading.Event, pinned: bool) -> None:
    """Fills the queue, until nobody is left to take from it."""
    try:
        for rows in table:
            if left.is_set():
                return
            batch = torch.from_numpy(task.inputs(rows))
            # The allocator of pinned memory hands a block out again only when its copy is over.
            ready.put(batch.pin_memory() if pinned else batch)
    except BaseException as error:  # raised where the batch is asked for
        ready.put(error)


def _let_go(ready: Ready, left: threading.Event) -> None:
    """Ends a reader: it puts one batch more at the most, for which there is now room."""
    left.set()
    with suppress(queue.Empty):
        while True:
            ready.get_nowait()
