"""Bad ends: Ctrl-C, a loss that is no number, memory that runs out. Each says what is kept and what to do."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from deepauc.labels import Diverged
from deepauc.models.bags import Bags
from deepauc.training.run.folder import RunFolder
from deepauc.training.run.output_file import write_atomically

_NO_MEMORY = ("allocate memory", "MPS backend out of memory")  # of a CPU, of Apple's GPUs: errors without a class


class TrainingStopped(RuntimeError):
    """Training cannot go on; the message names step, cause and remedy."""


class TrainingDiverged(TrainingStopped):
    """It cannot go on since it has diverged: see `labels.Diverged`, from which it comes."""


class Interrupted(KeyboardInterrupt):
    """Asked to stop, and the state is saved."""


class Unheard:
    """Stands in for an ignored Ctrl-C, as a script's background processes have it, until `rung`: then it interrupts."""

    def __init__(self, rung: threading.Event) -> None:
        self.rung = rung

    def __call__(self, *_: object) -> None:
        if self.rung.is_set():
            raise KeyboardInterrupt


class InterruptFlag:
    """Turns Ctrl-C and SIGTERM into a flag that is read between steps; a second one stops at once."""

    def __init__(self) -> None:
        self.raised = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> InterruptFlag:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        before = self._before.get(signal.Signals(number))
        if isinstance(before, Unheard) and not before.rung.is_set():
            return
        if self.raised:
            raise KeyboardInterrupt
        self.raised = True

    def leave(self, folder: RunFolder) -> None:
        """To be called right after a checkpoint was written."""
        if self.raised:
            raise Interrupted(f"interrupted; {folder.path} is saved. Run the same command again to resume")


@contextmanager
def stopped_at(
    iteration: int,
    rows: npt.NDArray[np.int64],
    folder: RunFolder,
    model: nn.Module,
    inputs: Tensor | Bags,
    *,
    views: int = 1,
) -> Iterator[None]:
    """Around a step: says at which step and on which rows it failed, and keeps that in stopped.json.

    rows: the batch; inputs: what passes the network here, `views` of each image, with several ranks of this one's.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        known = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not known and not any(words in str(error) for words in _NO_MEMORY):
            raise
        raise TrainingStopped(_out_of_memory(model, inputs, views=views)) from error
    except ValueError as error:
        details = {"iteration": iteration, "rows": rows.tolist(), "message": str(error)}
        write_atomically(folder.path / "stopped.json", json.dumps(details).encode())
        kept = "the last checkpoint is kept" if folder.checkpoint_path.exists() else "there is no checkpoint yet"
        raise stopped_by(
            error,
            f"stopped at step {iteration}: {error} The rows of that batch are in "
            f"{folder.path / 'stopped.json'}; {kept}.",
        ) from error


def stopped_by(error: ValueError, message: str) -> TrainingStopped:
    """What to raise from this error."""
    return TrainingDiverged(message) if isinstance(error, Diverged) else TrainingStopped(message)


def fitting_batch(model: nn.Module, inputs: Tensor | Bags) -> int | None:
    """The largest of half, a quarter, ... of the batch that passes forward and backward; None if one row does not."""
    size = len(inputs) // 2
    while size:
        model.zero_grad(set_to_none=True)
        if inputs.is_cuda:
            torch.cuda.empty_cache()
        try:
            model(inputs[:size]).sum().backward()
        except (MemoryError, RuntimeError):
            size //= 2
            continue
        return size
    return None


def _out_of_memory(model: nn.Module, inputs: Tensor | Bags, *, views: int) -> str:
    batch = len(inputs) // views
    fits = (fitting_batch(model, inputs) or 0) // views
    if not fits and isinstance(inputs, Bags):
        return (
            f"out of memory with a batch of {batch} bags; not even one fits: set images_per_bag below "
            f"{max(inputs.sizes)}, or use smaller images or a smaller network."
        )
    if not fits:
        return (
            f"out of memory with a batch of {batch}; not even one image fits: use smaller images or a smaller network."
        )
    pieces = next(count for count in range(-(-batch // fits), batch + 1) if batch % count == 0)  # a Stage's condition
    return (
        f"out of memory with a batch of {batch}; {fits} fit. Set batch_size={fits}, or accumulate={pieces} to keep "
        "the batch whole for the loss."
    )
