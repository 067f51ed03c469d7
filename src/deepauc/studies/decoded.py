"""Images of a study decoded once: kept in memory, or packed beside the runs; a listener hears how far that is."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace

from deepauc.data.images.decode import ImageFileInputs
from deepauc.data.packed.sets import open_packed, pack
from deepauc.data.task import Task
from deepauc.studies.sources import Place
from deepauc.training.prepare.in_memory import InMemoryInputs, fits_in_memory

TELL_EVERY = 60.0  # seconds, while images are decoded
_tell: ContextVar[Callable[[str], None] | None] = ContextVar("_tell", default=None)


def decoded_once(task: Task, place: Place) -> Task:
    """The task with its images in memory where they fit, else in a packed copy beside the runs, made at first use.

    Image files of other sizes than those it was made of have a copy of their own.
    """
    if fits_in_memory(task.source):
        return replace(task, source=InMemoryInputs(task.source, progress=_decoding()))
    assert task.ids is not None
    files = task.source.sizes() if isinstance(task.source, ImageFileInputs) else ""
    key = hashlib.sha256(f"{task.source.shape}{task.ids.tolist()}{files}".encode()).hexdigest()[:12]
    folder = place.runs / "packed" / f"{task.name.replace('/', '-')}-{key}"
    if folder.exists():
        return replace(task, source=open_packed(folder))
    if (tell := _tell.get()) is not None:
        tell(f"decoding {len(task):,} images once, into {folder}")
    return replace(task, source=pack(task.source, folder, progress=_decoding()))


@contextmanager
def telling(tell: Callable[[str], None]) -> Iterator[None]:
    """While a task is loaded in here, `tell` hears once a minute how far its images are decoded; it may take hours."""
    token = _tell.set(tell)
    try:
        yield
    finally:
        _tell.reset(token)


def _decoding() -> Callable[[int, int], None] | None:
    tell, began = _tell.get(), time.monotonic()
    if tell is None:
        return None
    told = began

    def advance(done: int, total: int) -> None:
        nonlocal told
        now = time.monotonic()
        if done < total and now - told >= TELL_EVERY:
            told = now
            left = (now - began) / done * (total - done) / 60
            tell(f"decoded {done:,} of {total:,} images, about {left:.0f} min left")

    return advance
