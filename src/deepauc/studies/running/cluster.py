"""Runs in other processes: a crew of local ones (`process_crew`), or the tasks of a Ray cluster (`ray_crew`).

A task is one run, or several packed on its GPU. It holds no images: a worker loads them itself. Ray starts a task again
elsewhere when its worker is lost, and the run goes on from its checkpoint where the folder of runs is shared. A worker
holds the lock of a run's folder while it trains, so that one that was only thought lost and its successor never train
the same run at once, and a finished folder is not trained again. Records are written by the caller alone.
"""

from __future__ import annotations

import os
import platform
import signal
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from deepauc.studies.load import Parcel
from deepauc.studies.running.execution import Ended, OnEnd, one_by_one, packed, worker_task
from deepauc.studies.running.missing import MissingRun, same_shape
from deepauc.studies.sources import Place
from deepauc.training.run.file_lock import lock
from deepauc.training.run.folder import RunFolder, surroundings
from deepauc.training.run.output_file import write_atomically


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Where tasks run and what each asks for.

    address: of a Ray cluster (`auto`: the one this machine belongs to), or `local` for one that begins and ends with
    the call. gpus: of each task, a fraction where tasks share a GPU; by default 1 with a GPU and 0 without. cpus: of
    each task, and its torch threads. retries: how often a task is started again when its worker is lost.
    """

    address: str = "local"
    gpus: float | None = None
    cpus: int = 1
    retries: int = 3

    def __post_init__(self) -> None:
        if self.cpus < 1 or self.retries < 0 or (self.gpus is not None and self.gpus < 0):
            raise ValueError("a task needs at least 1 CPU, no fewer than 0 GPUs, and no fewer than 0 retries.")


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a worker is sent. runs: the fields of each MissingRun but its task, which the worker loads."""

    runs: tuple[dict[str, Any], ...]
    place: Place
    device: str
    threads: int
    packed: bool
    until: float | None  # wall-clock time: a monotonic clock means nothing elsewhere
    mark: Path  # a file beside the run folders; a worker that does not see it sends finished folders back
    data: str | None  # DEEPAUC_DATA of the caller

    @property
    def ids(self) -> list[str]:
        return [run["id"] for run in self.runs]


@dataclass(frozen=True)
class Answer:
    """Of a task: the runs that are over; out_of_time: the others have saved their state."""

    ended: tuple[Ended, ...]
    out_of_time: bool


class Crew(Protocol):
    """Whoever carries out orders. slots: how many at once; threads: of each; local: on this machine."""

    slots: int
    threads: int
    local: bool

    def begin(self, order: Order) -> None: ...

    def next_ended(self) -> tuple[Order, Answer | str]:
        """The next order that is over, with its answer, or with the reason why there is none and will be none."""


def by_crew(
    runs: Sequence[MissingRun],
    place: Place,
    device: torch.device,
    *,
    crew: Crew,
    pack: int,
    deadline: float | None,
    ended: OnEnd,
) -> bool:
    """All runs as tasks, spread over the crew. Whether the time ran out.

    A pack whose worker is lost time and again is taken apart: each of its runs is tried once more in a task of its own.
    """
    by_id = {run.id: run for run in runs}
    until = None if deadline is None else time.time() + deadline - time.monotonic()
    place.runs.mkdir(parents=True, exist_ok=True)
    mark = place.runs / f".cluster-{uuid.uuid4().hex}"

    def begin(some: Sequence[MissingRun], *, side_by_side: bool) -> None:
        crew.begin(
            Order(
                runs=tuple(_without_task(run) for run in some),
                place=place,
                device=str(device),
                threads=crew.threads,
                packed=side_by_side,
                until=until,
                mark=mark,
                data=os.environ.get("DEEPAUC_DATA"),
            )
        )

    mark.touch()
    out_of_time, waiting = False, set(by_id)
    try:
        for some in packs(runs, pack=pack, slots=crew.slots):
            begin(some, side_by_side=pack > 1)
        while waiting:
            order, answer = crew.next_ended()
            if isinstance(answer, Answer):
                over, left = answer.ended, list[str]()
                waiting -= set(order.ids)
                out_of_time |= answer.out_of_time
            else:
                done = [one for one in order.ids if RunFolder(by_id[one].folder(place)).done]
                left = [one for one in order.ids if one not in done]
                over = tuple(Ended(id=one, message=None, seconds=0, packed=len(order.ids)) for one in done)
                if len(order.ids) == 1:
                    over += tuple(Ended(id=one, message=answer, seconds=0) for one in left)
                    left = []
                waiting -= set(order.ids) - set(left)
            for end in over:
                _take_files(end, by_id[end.id].folder(place))
                ended(end)
            for one in left:
                begin([by_id[one]], side_by_side=False)
    finally:
        mark.unlink(missing_ok=True)
    return out_of_time


def packs(runs: Sequence[MissingRun], *, pack: int, slots: int) -> Iterator[list[MissingRun]]:
    """Runs of one shape side by side, at most `pack` of them, and fewer where slots would be idle otherwise."""
    left, most = list(runs), max(1, min(pack, -(-len(runs) // slots)))
    while left:
        some = same_shape(left, pack=most)
        yield some
        left = [run for run in left if run not in some]


def unpack_and_carry_out(parcel: Parcel) -> Answer:
    """The task: a worker first loads the file that declares the studies, which must be there under the same path."""
    return carry_out(parcel.open())


def carry_out(order: Order) -> Answer:
    """In a worker: train what is ordered, one run or several side by side."""
    torch.set_num_threads(order.threads)
    if order.data is not None:
        os.environ.setdefault("DEEPAUC_DATA", order.data)
    place, device, over = order.place, torch.device(order.device), list[Ended]()
    folders = {one: place.runs / one for one in order.ids}
    shared = order.mark.exists()

    def ended(end: Ended) -> None:
        if end.message is not None:
            end = replace(end, surroundings=surroundings(device))
        elif not shared:
            end = replace(end, files=_files(folders[end.id]))
        over.append(end)

    with _interruptible(), _locks(list(folders.values()), order.until) as held:
        if not held:
            return Answer((), True)
        deadline = None if order.until is None else time.monotonic() + order.until - time.time()
        if order.packed:
            out_of_time = packed(_with_tasks(order), place, device, deadline=deadline, ended=ended)
        else:
            for folder in folders.values():  # one that has left its pack
                (folder / ".packed").unlink(missing_ok=True)
            out_of_time = one_by_one(_with_tasks(order), place, device, deadline=deadline, ended=ended)
    return Answer(tuple(over), out_of_time)


def _without_task(run: MissingRun) -> dict[str, Any]:
    return {part.name: getattr(run, part.name) for part in fields(run) if part.name != "task"}


def _with_tasks(order: Order) -> list[MissingRun]:
    return [
        MissingRun(**run, task=worker_task(run["study"].task, run["seed"], run["phase"], order.place))
        for run in order.runs
    ]


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def _take_files(end: Ended, folder: Path) -> None:
    """The folder of a finished run as the worker has it, DONE last."""
    for name in sorted(end.files, key=lambda name: name == "DONE"):
        write_atomically(folder / name, end.files[name])


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ray's workers are deaf to SIGINT, by which training is told to save its state and stop; Windows has no mask."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _locks(folders: Sequence[Path], until: float | None) -> Iterator[bool]:
    """Nobody else trains in these folders inside the block; False if there was no time for that.

    A lock goes with its process, however that ends; its file says which one it was.
    """
    with ExitStack() as stack:
        for folder in sorted(folders):  # in one order for all: no two wait for each other
            folder.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(lock_path(folder).open("ab"))
            if not lock(file, until=until):
                yield False
                return
            file.truncate(0)
            file.write(f"{platform.node()} {os.getpid()}\n".encode())
            file.flush()
        yield True


def lock_path(folder: Path) -> Path:
    """Held by the worker that trains in this folder; it names machine and process."""
    return folder.with_name(f".{folder.name}.lock")


def seen_from_everywhere(place: Place) -> Place:
    """The same folders by paths that mean the same in every process."""
    return replace(
        place,
        data=None if place.data is None else place.data.absolute(),
        runs=place.runs.absolute(),
        results=place.results.absolute(),
    )
